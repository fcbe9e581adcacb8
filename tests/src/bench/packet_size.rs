//! `packet-size`: one of four spines begins to drop large packets and goes on passing small ones,
//! by a rule of its firewall or because its MTU is lowered.
//!
//! Acknowledgements and small probes still pass, so the paths over that spine look alive.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use weft_fabric::{Fabric, Spec};

use super::arrivals::{back_at, bins, typical, worst};
use super::ends::{Ends, Shape};
use super::messages;
use super::rounds::{Must, Rounds};
use super::spine::Spine;
use super::spray::{PATHS, SPINE_RATE, SPINES};
use super::{BenchError, Context};
use crate::report::Row;

/// The spine that drops.
const FAILED: usize = 1;
/// Bytes of the largest IP packet that still passes.
const PASSES: u32 = 1600;
/// When the spine begins to drop, and how long the writing goes on after that.
const FAILS_AFTER: Duration = Duration::from_millis(1000);
const GOES_ON: Duration = Duration::from_millis(2000);
/// The window has opened by then.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
/// The goodput of this time at the end is what the transport came to.
const LAST: Duration = Duration::from_millis(1000);
const BIN: Duration = Duration::from_millis(10);

/// What makes the spine drop large packets.
#[derive(Clone, Copy)]
enum Cause {
    Rule,
    Mtu,
}

impl Cause {
    fn id(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Mtu => "mtu",
        }
    }

    fn says(self) -> String {
        match self {
            Self::Rule => format!("drops packets above {PASSES} B by a rule"),
            Self::Mtu => format!("has its MTU lowered to {PASSES} B"),
        }
    }

    fn begin(self, spine: &Spine) -> Result<(), BenchError> {
        match self {
            Self::Rule => spine.drop_longer_than(PASSES),
            Self::Mtu => spine.set_mtu(PASSES),
        }
    }

    fn end(self, spine: &Spine, mtu: u32) -> Result<(), BenchError> {
        match self {
            Self::Rule => spine.drop_none(),
            Self::Mtu => spine.set_mtu(mtu),
        }
    }
}

/// Three rows for each cause: latency, recovery, goodput at the end.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    let mut rows = Vec::new();
    for cause in [Cause::Rule, Cause::Mtu] {
        let (mut latency, mut back, mut goodput) =
            (Rounds::default(), Rounds::default(), Rounds::default());
        for draw in 0..context.rounds as u16 {
            let round = one_round(&fabric, cause, draw)?;
            latency.add(round.worst.as_secs_f64() * 1e3);
            back.add(round.back.as_secs_f64() * 1e3);
            goodput.add_pair(round.last * 8.0 / 1e9, round.others * 8.0 / 1e9);
        }
        let id = |what: &str| format!("packet-size-{}-{what}", cause.id());
        let what = format!("one of {SPINES} spines {}, {PATHS} paths", cause.says());
        let rounds = context.rounds;
        rows.push(latency.row(
            &id("latency"),
            format!(
                "{what}: worst time from post to placement of a chunk; median of {rounds} runs, \
                 largest {:.1}",
                latency.largest()
            ),
            "ms",
            "",
            Must::AtMost(50.0),
        ));
        rows.push(back.row(
            &id("recovery"),
            format!(
                "{what}: until goodput in bins of 10 ms is back at 0.9 of the other spines'; \
                 largest {:.0}",
                back.largest()
            ),
            "ms",
            "",
            Must::AtMost(100.0),
        ));
        rows.push(goodput.row(
            &id("goodput"),
            format!("{what}: goodput of the last second of two"),
            "Gbit/s",
            "the other spines before",
            Must::RatioAtLeast(0.9),
        ));
    }
    Ok(rows)
}

/// What one round showed; goodput in bytes per second.
struct Round {
    worst: Duration,
    back: Duration,
    last: f64,
    /// Three quarters of what four spines had before.
    others: f64,
}

/// A node's kernel remembers for ten minutes what a router has said that was too long for it (RFC 1191, section 6.3), and then no
/// connection of the whole size begins.
fn forget_packet_sizes(fabric: &Fabric) -> Result<(), BenchError> {
    for node in 0..fabric.spec().nodes {
        let flushed = fabric.in_node(node, || {
            let flush = ["route", "flush", "cache"];
            Command::new("ip").args(flush).status()
        })?;
        flushed.map_err(BenchError::system("ip route flush cache"))?;
    }
    Ok(())
}

fn one_round(fabric: &Fabric, cause: Cause, draw: u16) -> Result<Round, BenchError> {
    let shape = Shape {
        paths: PATHS,
        draw,
        ..Shape::default()
    };
    let ends = Ends::start(fabric, shape)?;
    let spine = Spine::new(fabric, FAILED);
    let begun = Instant::now();
    let end = FAILS_AFTER + GOES_ON;
    let outcome = thread::scope(|scope| {
        let failing = scope.spawn(|| -> Result<Duration, BenchError> {
            thread::sleep(FAILS_AFTER.saturating_sub(begun.elapsed()));
            // It takes effect some milliseconds later: what is measured from here is longer.
            let at = begun.elapsed();
            cause.begin(&spine)?;
            Ok(at)
        });
        let arrivals = messages::exchange(&ends, begun, end);
        let at = failing
            .join()
            .map_err(|_| BenchError::Panicked("the fault"))?;
        Ok::<_, BenchError>((arrivals?, at?))
    });
    // Also after a round that failed: the next one needs a whole fabric.
    cause.end(&spine, fabric.spec().mtu)?;
    forget_packet_sizes(fabric)?;
    let (arrivals, at) = outcome?;
    let before = typical(&bins(&arrivals, SETTLED_AFTER, FAILS_AFTER, BIN));
    if before == 0.0 {
        // Everything is at 0.9 of nothing.
        return Err(BenchError::Idle);
    }
    let others = before * (SPINES - 1) as f64 / SPINES as f64;
    let after = bins(&arrivals, at, end, BIN);
    let back = back_at(&after, 0.9 * others).unwrap_or(after.len());
    let last = bins(&arrivals, end - LAST, end, LAST);
    Ok(Round {
        worst: worst(&arrivals),
        back: BIN * back as u32,
        last: last.first().copied().unwrap_or(0.0),
        others,
    })
}
