//! `nics`: one connection over 1, 2 and 4 NICs of 1 Gbit/s, and over four of which one loses its cable.

use std::thread;
use std::time::{Duration, Instant};

use weft_fabric::{Fabric, Spec};

use super::arrivals::{back_at, bins, typical, worst};
use super::ends::{Ends, Shape};
use super::messages;
use super::rounds::{Must, Rounds};
use super::spray::goodput;
use super::{BenchError, Context};
use crate::report::Row;

const RATE: u64 = 1_000_000_000;
const NICS: usize = 4;
/// How many NICs, and the goodput against one that must be reached.
const CASES: [(usize, Must); 2] = [(2, Must::RatioAtLeast(1.9)), (4, Must::RatioAtLeast(3.7))];
/// Writes of 1 MiB for each NIC: a second.
const WRITES: u64 = 128;
const QUICK_WRITES: u64 = 48;

/// When the cable is pulled out, and how long the writing goes on after that.
const FAILS_AFTER: Duration = Duration::from_millis(1000);
const GOES_ON: Duration = Duration::from_millis(1000);
/// The window has opened by then.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
const BIN: Duration = Duration::from_millis(10);
/// By when the other NICs must carry what they can.
const BACK_WITHIN: Duration = Duration::from_millis(50);

/// A row for each number of NICs, and two for one that is lost.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        nics: NICS,
        leaves: 1,
        node_rate: Some(RATE),
        ..Spec::default()
    })?;
    let writes = if context.quick { QUICK_WRITES } else { WRITES };
    let mut rounds = [(); CASES.len()].map(|()| Rounds::default());
    for round in 0..context.rounds {
        let over = |nics: usize| {
            let shape = Shape {
                nics,
                draw: round as u16,
                ..Shape::default()
            };
            goodput(&fabric, shape, writes * nics as u64)
        };
        let one = over(1)?;
        for ((nics, _), rounds) in CASES.into_iter().zip(&mut rounds) {
            rounds.add_pair(over(nics)?, one);
        }
    }
    let mut rows: Vec<_> = CASES
        .iter()
        .zip(&rounds)
        .map(|((nics, must), rounds)| {
            let work = format!(
                "goodput of one connection over {nics} NICs of 1 Gbit/s each, MTU {}, {:.2} to {:.2}",
                fabric.spec().mtu,
                rounds.smallest(),
                rounds.largest()
            );
            let id = format!("nics-{nics}");
            rounds.row(&id, work, "Gbit/s", "one NIC", *must)
        })
        .collect();
    rows.extend(without_a_cable(context, &fabric)?);
    Ok(rows)
}

fn without_a_cable(context: &Context, fabric: &Fabric) -> Result<[Row; 2], BenchError> {
    let [mut late, mut back, mut before, mut after] = [(); 4].map(|()| Rounds::default());
    for round in 0..context.rounds {
        let shape = Shape {
            nics: NICS,
            draw: round as u16,
            ..Shape::default()
        };
        let ends = Ends::start(fabric, shape)?;
        let begun = Instant::now();
        let end = FAILS_AFTER + GOES_ON;
        let (arrivals, at) = thread::scope(|scope| {
            let failing = scope.spawn(|| {
                thread::sleep(FAILS_AFTER.saturating_sub(begun.elapsed()));
                // The program `ip` takes some milliseconds to begin: they count against us.
                let at = begun.elapsed();
                fabric.unplug_nic(1, NICS - 1).map(|()| at)
            });
            let arrivals = messages::exchange(&ends, begun, end);
            let at = failing
                .join()
                .map_err(|_| BenchError::Panicked("the fault"))?;
            Ok::<_, BenchError>((arrivals?, at?))
        })?;
        fabric.plug_nic(1, NICS - 1)?;
        let usual = typical(&bins(&arrivals, SETTLED_AFTER, FAILS_AFTER, BIN));
        if usual == 0.0 {
            return Err(BenchError::Idle);
        }
        let steady = typical(&bins(&arrivals, at + 4 * BACK_WITHIN, end, BIN));
        // Whichever is more: what was there less one NIC's part, or what it came to in the end.
        let others = steady.max(usual * (NICS - 1) as f64 / NICS as f64);
        let bins = bins(&arrivals, at, end, BIN);
        let bin = back_at(&bins, 0.9 * others).unwrap_or(bins.len());
        late.add(worst(&arrivals).as_secs_f64() * 1e3);
        back.add((BIN * bin as u32).as_secs_f64() * 1e3);
        before.add(usual * 8.0 / 1e9);
        after.add(steady * 8.0 / 1e9);
    }
    let what = "one of the receiver's four NICs loses its cable";
    let late_work = format!(
        "{what}: worst time from post to placement of a chunk; largest {:.1}",
        late.largest()
    );
    let back_work = format!(
        "{what}: until goodput in bins of 10 ms is back at 0.9 of three NICs' ({:.2} Gbit/s before, {:.2} after); largest \
         {:.0}",
        before.ours(),
        after.ours(),
        back.largest()
    );
    let most = Must::AtMost(BACK_WITHIN.as_secs_f64() * 1e3);
    Ok([
        late.row("nics-down-latency", late_work, "ms", "", Must::Reported),
        back.row("nics-down-recovery", back_work, "ms", "", most),
    ])
}
