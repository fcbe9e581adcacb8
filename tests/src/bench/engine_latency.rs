//! `engine-lat-8`: writes of 8 bytes, one way and until done, by the TransferEngine and by an engine whose caller polls it.

use std::time::Duration;

use weft_engine::Progress;

use super::ends::{Ends, Shape};
use super::latency::{exchange, until_done};
use super::libfabric::Libfabric;
use super::processes::{Library, Pair, peer};
use super::rounds::{Must, Rounds};
use super::transfer::{Engines, Waits};
use super::turns::{Many, Writer};
use super::ucx::{Test, Ucx};
use super::{BenchError, Context, TCP_CONGESTION};
use crate::report::{Row, median};

const BYTES: usize = 8;
const MEMORY: usize = 1 << 20;
/// Longer than any gap between two messages here: a worker that polls never sleeps.
const POLLS: Duration = Duration::from_millis(1);

/// Five rows: three ways against UCX, two until done against NIXL.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let count: usize = if context.quick { 2_000 } else { 20_000 };
    let mut threads = Engines::start(
        &fabric,
        context.link,
        weft_transfer_engine::Progress::Threads,
        MEMORY,
    )?;
    let mut nixl = Pair::start(&fabric, Library::Nixl, MEMORY);
    let (ucx, libfabric) = (Ucx::find(), Libfabric::find());
    let inline = || {
        let shape = Shape {
            progress: Progress::Inline,
            spin: Some(POLLS),
            ..Shape::default()
        };
        Ends::start(&fabric, shape)
    };
    let many = Many {
        bytes: BYTES,
        count: count as u64,
        outstanding: 1,
    };
    threads.write(many)?;
    let [mut polled, mut polling, mut sleeping] = [(); 3].map(|()| Rounds::default());
    let [mut polled_done, mut done, mut beside] = [(); 3].map(|()| Rounds::default());
    for _ in 0..context.rounds {
        let ways = [
            median(&mut exchange(inline()?, count)?),
            median(&mut threads.one_way(count as u64, Waits::Polling)?),
            median(&mut threads.one_way(count as u64, Waits::Sleeping)?),
        ];
        let theirs = match &ucx {
            Some(ucx) => Some(ucx.measure(
                &fabric,
                Test::Latency {
                    bytes: BYTES,
                    count,
                },
            )?),
            None => None,
        };
        add([&mut polled, &mut polling, &mut sleeping], ways, theirs);
        if let Some(libfabric) = &libfabric {
            beside.add(libfabric.one_way(&fabric, BYTES, count)?);
        }
        let until = [
            median(&mut until_done(inline()?, count)?),
            threads.write(many)?.median_us,
        ];
        let theirs = match &mut nixl {
            Ok(nixl) => Some(nixl.write(many)?.median_us),
            Err(_) => None,
        };
        add([&mut polled_done, &mut done], until, theirs);
    }
    let link = threads.link().unwrap_or_default();
    let by_engine = "an engine over udp that its caller polls";
    let by_transfer = format!("TransferEngine, threads, {link}");
    let peers = [
        Ucx::peer(ucx.as_ref(), "tag_lat"),
        peer(&nixl, Library::Nixl),
    ];
    let beside = match &libfabric {
        Some(_) => format!("libfabric net {:.1} µs", beside.ours()),
        None => "libfabric is not installed".to_owned(),
    };
    let row = |id: &str, text: String, rounds: &Rounds, peer: &str, must| {
        let text = format!("{BYTES} B {text}, {TCP_CONGESTION}, every message checked");
        rounds.row(id, text, "µs", peer, must)
    };
    let polls = "the callers look at the count, with sched_yield";
    Ok(vec![
        row(
            "engine-lat-8-inline",
            format!("one way, {by_engine}; {beside}"),
            &polled,
            &peers[0],
            Must::RatioAtMost(1.1),
        ),
        row(
            "engine-lat-8",
            format!("one way, {by_transfer}, {polls}; {beside}"),
            &polling,
            &peers[0],
            Must::RatioAtMost(3.0),
        ),
        row(
            "engine-lat-8-wait",
            format!("one way, {by_transfer}, the callers sleep"),
            &sleeping,
            &peers[0],
            Must::Reported,
        ),
        row(
            "engine-lat-8-inline-done",
            format!("until done, {by_engine}"),
            &polled_done,
            &peers[1],
            Must::RatioAtMost(0.7),
        ),
        row(
            "engine-lat-8-done",
            format!("until done, {by_transfer}, the caller sleeps"),
            &done,
            &peers[1],
            Must::RatioAtMost(0.7),
        ),
    ])
}

fn add<const N: usize>(rounds: [&mut Rounds; N], ours: [f64; N], theirs: Option<f64>) {
    for (rounds, ours) in rounds.into_iter().zip(ours) {
        match theirs {
            Some(theirs) => rounds.add_pair(ours, theirs),
            None => rounds.add(ours),
        }
    }
}
