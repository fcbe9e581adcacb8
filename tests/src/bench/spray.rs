//! `spray-4`: goodput of one connection over four spines of 1 Gbit/s, by path policy.

use weft_engine::PolicyKind;
use weft_fabric::{Fabric, Spec};

use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

/// Port draws of a full run, whatever the rounds: which spine a port pair leads to is luck.
pub(super) const DRAWS: usize = 9;
pub(super) const PATHS: u16 = 128;
/// Of each spine's links, bit/s.
pub(super) const SPINE_RATE: u64 = 1_000_000_000;
pub(super) const SPINES: usize = 4;
const WRITE_BYTES: usize = 1 << 20;
/// Walked through at the sender: more than the caches hold.
const MEMORY: usize = 64 << 20;
/// One lap: its end costs a slow path's whole queue.
const LAP: usize = 512 << 20;

/// One row for each policy.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    let policies = [
        (PolicyKind::Oblivious, Must::AtLeast(2.9)),
        (PolicyKind::TwoChoices, Must::AtLeast(3.4)),
        (PolicyKind::Single, Must::AtMost(1.0)),
    ];
    let draws = if context.quick { 3 } else { DRAWS };
    let mut rounds = [(); 3].map(|()| Rounds::default());
    for draw in 0..draws as u16 {
        for ((policy, _), rounds) in policies.iter().zip(&mut rounds) {
            let shape = Shape {
                policy: Some(*policy),
                paths: PATHS,
                draw,
                ..Shape::default()
            };
            // Over a second in any case: one path has a quarter of the four spines.
            let count = match (context.quick, policy) {
                (true, _) => 64,
                (false, PolicyKind::Single) => 128,
                (false, _) => 512,
            };
            rounds.add(goodput(&fabric, shape, count)?);
        }
    }
    let mtu = fabric.spec().mtu;
    Ok(policies
        .iter()
        .zip(&rounds)
        .map(|((policy, must), rounds)| {
            let work = format!(
                "{policy}: goodput of one connection, {SPINES} spines of 1 Gbit/s, {PATHS} paths, \
                 MTU {mtu}, median of {draws} port draws, {:.2} to {:.2}",
                rounds.smallest(),
                rounds.largest()
            );
            rounds.row(&format!("spray-4-{policy}"), work, "Gbit/s", "", *must)
        })
        .collect())
}

/// Payload of so many writes of 1 MiB, Gbit/s, from the first write to the last acknowledgement.
pub(super) fn goodput(fabric: &Fabric, shape: Shape, count: u64) -> Result<f64, BenchError> {
    let ends = Ends::start(fabric, shape)?;
    let writes = Writes {
        bytes: WRITE_BYTES,
        count,
        outstanding: 8,
        memory: MEMORY,
        lap: LAP,
    };
    Ok(writes::measure(&ends, writes)?.gigabytes_per_second() * 8.0)
}
