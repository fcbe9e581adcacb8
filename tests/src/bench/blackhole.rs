//! `blackhole`: one of four spines drops everything while its links stay up.
//!
//! One connection writes messages of one chunk (`messages.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_engine::PolicyKind;
use weft_fabric::{Fabric, Spec};

use super::arrivals::{back_at, bins, typical, worst};
use super::ends::{Ends, Shape};
use super::host::Host;
use super::messages;
use super::rounds::{Must, Rounds};
use super::routes::spines_of_paths;
use super::spray::{SPINE_RATE, SPINES};
use super::{BenchError, Context};
use crate::report::Row;

const PATHS: u16 = 128;
/// The spine that fails.
const FAILED: usize = 1;
/// When the spine fails, and how long the writing goes on after that.
const FAILS_AFTER: Duration = Duration::from_millis(1000);
const GOES_ON: Duration = Duration::from_millis(1000);
/// The window has opened by then.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
const BIN: Duration = Duration::from_millis(10);
/// By when the transport must have recovered.
const BACK_WITHIN: Duration = Duration::from_millis(50);
/// How often the failing spine's counter is read.
const WATCH: Duration = Duration::from_millis(1);

/// What one round showed.
#[derive(Debug, Clone, Copy)]
struct Seen {
    worst: Duration,
    back: Duration,
    later_percent: f64,
    before: f64,
    after: f64,
}

/// What the fault's thread knows at the end.
struct Fault {
    /// When the spine's counter stood still.
    at: Duration,
    /// Chunks by path, [`BACK_WITHIN`] after that.
    chunks: Vec<u64>,
}

/// Three rows: latency, recovery, chunks sent into the hole.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    let (mut latency, mut back) = (Rounds::default(), Rounds::default());
    let (mut later, mut before, mut after) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..context.rounds {
        let seen = one_round(&fabric, round as u16)?;
        latency.add(seen.worst.as_secs_f64() * 1e3);
        back.add(seen.back.as_secs_f64() * 1e3);
        later.add(seen.later_percent);
        before.add(seen.before * 8.0 / 1e9);
        after.add(seen.after * 8.0 / 1e9);
    }
    let what = format!("one of {SPINES} spines drops everything, two-choices, {PATHS} paths");
    let rounds = context.rounds;
    let latency_work = format!(
        "{what}: worst time from post to placement of a chunk; median of {rounds} runs, largest \
         {:.1}",
        latency.largest()
    );
    let back_work = format!(
        "{what}: until goodput in bins of 10 ms is back at 0.9 of three spines' ({:.2} Gbit/s \
         before, {:.2} after); largest {:.0}",
        before.ours(),
        after.ours(),
        back.largest()
    );
    let later_work = format!(
        "{what}: share of the chunks sent later than 50 ms after it that went to its paths; \
         largest {:.2}",
        later.largest()
    );
    Ok(vec![
        latency.row(
            "blackhole-latency",
            latency_work,
            "ms",
            "",
            Must::AtMost(50.0),
        ),
        back.row(
            "blackhole-recovery",
            back_work,
            "ms",
            "",
            Must::AtMost(50.0),
        ),
        later.row("blackhole-later", later_work, "%", "", Must::AtMost(1.0)),
    ])
}

fn one_round(fabric: &Fabric, draw: u16) -> Result<Seen, BenchError> {
    let shape = Shape {
        policy: Some(PolicyKind::TwoChoices),
        paths: PATHS,
        draw,
        ..Shape::default()
    };
    let ends = Ends::start(fabric, shape)?;
    let begun = Instant::now();
    let end = FAILS_AFTER + GOES_ON;
    let (arrivals, fault) = thread::scope(|scope| {
        let failing = scope.spawn(|| fail(fabric, &ends.sender, begun));
        let arrivals = messages::exchange(&ends, begun, end);
        let fault = failing
            .join()
            .map_err(|_| BenchError::Panicked("the fault"))?;
        Ok::<_, BenchError>((arrivals?, fault?))
    })?;
    let chunks = ends.sender.chunks_by_path();
    fabric.heal_spine(FAILED)?;
    let spines = spines_of_paths(fabric, shape.ports(), PATHS)?;
    let (mut all, mut into_the_hole) = (0, 0);
    for (path, spine) in spines.into_iter().enumerate() {
        let later = chunks[path].saturating_sub(fault.chunks[path]);
        all += later;
        if spine == FAILED {
            into_the_hole += later;
        }
    }
    let before = typical(&bins(&arrivals, SETTLED_AFTER, FAILS_AFTER, BIN));
    if before == 0.0 {
        // Everything is at 0.9 of nothing.
        return Err(BenchError::Idle);
    }
    let after = bins(&arrivals, fault.at, end, BIN);
    let steady = typical(&bins(&arrivals, fault.at + 4 * BACK_WITHIN, end, BIN));
    // Whichever is more: what was there less one spine's part, or what it came to in the end.
    let three_spines = steady.max(before * (SPINES - 1) as f64 / SPINES as f64);
    let back = back_at(&after, 0.9 * three_spines).unwrap_or(after.len());
    Ok(Seen {
        worst: worst(&arrivals),
        back: BIN * back as u32,
        later_percent: 100.0 * into_the_hole as f64 / all.max(1) as f64,
        before,
        after: steady,
    })
}

/// Fails the spine at its time and finds out when it really fell silent.
fn fail(fabric: &Fabric, sender: &Host, begun: Instant) -> Result<Fault, BenchError> {
    let until = |at: Duration| thread::sleep(at.saturating_sub(begun.elapsed()));
    until(FAILS_AFTER);
    let done = AtomicBool::new(false);
    // `nft` needs milliseconds to start: the spine's own counter says when it took effect.
    let at = thread::scope(|scope| {
        let watching = scope.spawn(|| -> Result<Duration, BenchError> {
            let (mut last, mut changed) = (0, begun.elapsed());
            while !done.load(Ordering::Acquire) {
                let bytes = fabric.spine_bytes()?[FAILED];
                if bytes != last {
                    (last, changed) = (bytes, begun.elapsed());
                }
                thread::sleep(WATCH);
            }
            Ok(changed)
        });
        let failed = fabric.fail_spine(FAILED);
        done.store(true, Ordering::Release);
        let at = watching
            .join()
            .map_err(|_| BenchError::Panicked("the spine's counter"))?;
        failed?;
        at
    })?;
    until(at + BACK_WITHIN);
    Ok(Fault {
        at,
        chunks: sender.chunks_by_path(),
    })
}
