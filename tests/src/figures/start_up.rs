//! Figure 6: how long a program waits for its memory before it begins, all of it pinned or each block on demand.
//!
//! Both are measured as the bench rows `device-start` measure them. Pinning is measured where the machine has the memory,
//! and reckoned for more by a straight line through zero: each page costs the same. Registering takes numbers only, so
//! it is measured up to the paper's largest memory, in a file that has no pages.

use super::drawing::{Axis, Drawing, Line, LineOrigin, Panel, Unit};
use crate::bench::devices::{start_up, with_device};
use crate::bench::rounds::Rounds;
use crate::bench::{BenchError, Context};

const GIB: u64 = 1 << 30;
/// Memory that is pinned and registered, GiB.
const PINNED: [u64; 5] = [1, 2, 4, 8, 16];
/// Memory that is registered and not pinned, GiB, after those.
const REGISTERED: [u64; 3] = [64, 320, start_up::LARGEST];

/// What the paper's text says of a container with 1.6 TB, seconds: all pinned, and at most this with PVDMA. Most of the
/// second goes to the hypervisor, which Weft has not.
const PAPER: [(f64, f64); 2] = [(1.6e12, 390.0), (1.6e12, 20.0)];

pub(super) fn measure(context: &Context) -> Result<Drawing, BenchError> {
    let pinned = if context.quick { &PINNED[..2] } else { &PINNED };
    let rounds = context.rounds.min(3);
    let (on_demand, pin_all) = with_device(|device| {
        let (mut on_demand, mut pin_all) = (Vec::new(), Vec::new());
        for gib in pinned.iter().chain(&REGISTERED) {
            let bytes = gib * GIB;
            let (mut register, mut pin) = (Rounds::default(), Rounds::default());
            for _ in 0..rounds {
                register.add(start_up::register(device, bytes)?);
                if pinned.contains(gib) {
                    pin.add(start_up::pin(bytes)?);
                }
            }
            on_demand.push((bytes as f64, register.ours() / 1e3));
            if pinned.contains(gib) {
                pin_all.push((bytes as f64, pin.ours() / 1e3));
            }
        }
        Ok((on_demand, pin_all))
    })?;
    let cost = cost_of_a_byte(&pin_all);
    let last = pin_all.last().map_or(0.0, |point| point.0);
    let all = last.max(1.0)..=(start_up::LARGEST * GIB) as f64;
    let reckoned = [*all.start(), *all.end()].map(|bytes| (bytes, bytes * cost));
    Ok(Drawing {
        title: "Start-up of a program (STELLAR, Figure 6)".to_owned(),
        panels: vec![Panel {
            x: Axis {
                label: "memory of the program",
                unit: Unit::Bytes,
            },
            y: Axis {
                label: "until the memory can be used",
                unit: Unit::Seconds,
            },
            lines: vec![
                Line::new(LineOrigin::Measured, "pin all, measured", pin_all),
                Line::new(
                    LineOrigin::Model,
                    format!(
                        "pin all, model: {:.0} ms for each GiB",
                        cost * GIB as f64 * 1e3
                    ),
                    reckoned.to_vec(),
                ),
                Line::new(LineOrigin::Measured, "Weft, on demand, measured", on_demand),
                Line::new(
                    LineOrigin::Paper,
                    "the paper's text: 390 s, and under 20 s with PVDMA",
                    PAPER.to_vec(),
                ),
            ],
        }],
    })
}

/// The slope of the straight line through zero that is nearest to the points (least squares).
fn cost_of_a_byte(points: &[(f64, f64)]) -> f64 {
    let products = points.iter().map(|(bytes, seconds)| bytes * seconds);
    let squares = points.iter().map(|(bytes, _)| bytes * bytes);
    products.sum::<f64>() / squares.sum::<f64>().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_goes_through_points_that_lie_on_a_line() {
        let points = [(10.0, 5.0), (20.0, 10.0), (40.0, 20.0)];
        assert!((cost_of_a_byte(&points) - 0.5).abs() < 1e-12);
    }
}
