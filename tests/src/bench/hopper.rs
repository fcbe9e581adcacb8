//! `hopper`: a connection of the policy `hopper` on a spine that is ten times slower than the three
//! others.
//!
//! Which path a connection begins on is the policy's draw. So the spine that it is found on right
//! after its start becomes the slow one. A build without that policy has no such row.

use std::thread;
use std::time::{Duration, Instant};

use weft_engine::PolicyKind;
use weft_fabric::{Fabric, Spec};

use super::arrivals::{back_at, bins, typical};
use super::ends::{Ends, Shape};
use super::messages;
use super::rounds::{Must, Rounds};
use super::routes::spines_of_paths;
use super::spine::Spine;
use super::spray::{PATHS, SPINE_RATE, SPINES};
use super::{BenchError, Context};
use crate::report::Row;

/// Bit/s of the slow spine's links.
const SLOW_RATE: u64 = 100_000_000;
/// When the policy's first path is looked up.
const LOOK_AFTER: Duration = Duration::from_millis(10);
const END: Duration = Duration::from_millis(2000);
/// The goodput of this time at the end is what the policy came to.
const LAST: Duration = Duration::from_millis(1000);
const BIN: Duration = Duration::from_millis(10);

/// Two rows: the time until the connection has a fast spine's goodput, and its goodput at the end.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let Some(policy) = PolicyKind::ALL.iter().find(|p| p.name() == "hopper") else {
        return Ok(Vec::new());
    };
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    let (mut switch, mut goodput) = (Rounds::default(), Rounds::default());
    for draw in 0..context.rounds as u16 {
        let (took, last) = one_round(&fabric, *policy, draw)?;
        switch.add(took.as_secs_f64() * 1e3);
        goodput.add_pair(last * 8.0 / 1e9, SPINE_RATE as f64 / 1e9);
    }
    let what = "one connection on a spine of 100 Mbit/s beside three of 1 Gbit/s";
    Ok(vec![
        switch.row(
            "hopper-switch",
            format!(
                "{what}: until goodput in bins of 10 ms is at 0.9 of a fast spine; largest {:.0}",
                switch.largest()
            ),
            "ms",
            "",
            Must::Reported,
        ),
        goodput.row(
            "hopper-goodput",
            format!("{what}: goodput of the last second of two"),
            "Gbit/s",
            "a fast spine",
            Must::RatioAtLeast(0.9),
        ),
    ])
}

/// From when the spine became slow until a fast spine's goodput, and the goodput at the end in bytes
/// per second.
fn one_round(
    fabric: &Fabric,
    policy: PolicyKind,
    draw: u16,
) -> Result<(Duration, f64), BenchError> {
    let shape = Shape {
        policy: Some(policy),
        paths: PATHS,
        draw,
        ..Shape::default()
    };
    let spines = spines_of_paths(fabric, shape.ports(), PATHS)?;
    let ends = Ends::start(fabric, shape)?;
    let begun = Instant::now();
    let (arrivals, slow) = thread::scope(|scope| {
        let slowing = scope.spawn(|| -> Result<(usize, Duration), BenchError> {
            thread::sleep(LOOK_AFTER.saturating_sub(begun.elapsed()));
            let chunks = ends.sender.chunks_by_path();
            let (path, _) = chunks
                .iter()
                .enumerate()
                .max_by_key(|(_, chunks)| **chunks)
                .ok_or(BenchError::Silent {
                    what: "the first chunk",
                    seconds: 0,
                })?;
            Spine::new(fabric, spines[path]).set_rate(SLOW_RATE)?;
            Ok((spines[path], begun.elapsed()))
        });
        let arrivals = messages::exchange(&ends, begun, END);
        let slow = slowing
            .join()
            .map_err(|_| BenchError::Panicked("the slow spine"))?;
        Ok::<_, BenchError>((arrivals, slow?))
    })?;
    let (spine, at) = slow;
    Spine::new(fabric, spine).set_rate(SPINE_RATE)?;
    let arrivals = arrivals?;
    let fast = SPINE_RATE as f64 / 8.0;
    let after = bins(&arrivals, at, END, BIN);
    let took = BIN * back_at(&after, 0.9 * fast).unwrap_or(after.len()) as u32;
    Ok((took, typical(&bins(&arrivals, END - LAST, END, BIN))))
}
