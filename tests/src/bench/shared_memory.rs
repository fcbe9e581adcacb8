//! `shm`: writes between two engines of one node through shared memory, against UCX through shared memory.

use std::time::Duration;

use weft_engine::{LinkKind, Progress};

use super::ends::{Ends, Shape};
use super::latency::exchange;
use super::rounds::{Must, Rounds};
use super::ucx::{Over, Test, Ucx};
use super::{BenchError, Context, writes};
use crate::report::{Row, median};

const OUTSTANDING: u64 = 8;
const LATENCY_BYTES: usize = 8;
/// Longer than any gap between two messages here: a worker that polls never sleeps.
const POLLS: Duration = Duration::from_millis(1);

/// Id, name, bytes and what must hold. Each goes from one place to one place, as UCX's program does it.
const CASES: [(&str, &str, usize, f64); 3] = [
    ("shm-64k", "64 KiB", 64 << 10, 0.9),
    ("shm-1m", "1 MiB", 1 << 20, 1.0),
    ("shm-1g", "1 GiB", 1 << 30, 1.0),
];

/// A row for each size, and one for 8 bytes.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let shape = Shape {
        link: LinkKind::Shm,
        paths: 1,
        ..Shape::default()
    };
    let fabric = context.two_nodes()?;
    let ucx = Ucx::find();
    let theirs = |test| match &ucx {
        Some(ucx) => ucx
            .measure_over(&fabric, Over::SharedMemory, test)
            .map(Some),
        None => Ok(None),
    };
    let peer = |test: &str| match &ucx {
        Some(_) => format!("UCX {test}, posix and cma"),
        None => "UCX is not installed".to_owned(),
    };
    let ends = Ends::start_in_one_node(&fabric, shape)?;
    let mut rows = Vec::new();
    for (id, name, bytes, least) in CASES {
        let total: usize = if context.quick { 1 << 30 } else { 8 << 30 };
        let count = (total / bytes).clamp(2, 16_384);
        let mut rounds = Rounds::default();
        for _ in 0..context.rounds {
            let ours = writes::repeat(&ends, bytes, count as u64, OUTSTANDING)?;
            add(&mut rounds, ours, theirs(Test::Rate { bytes, count })?);
        }
        let text = format!(
            "writes of {name} through shared memory of one node, eight under way, one place, the last compared"
        );
        let must = Must::RatioAtLeast(least);
        rows.push(rounds.row(id, text, "GB/s", &peer("tag_bw"), must));
    }
    // The next ones have the same names.
    drop(ends);
    let inline = Shape {
        progress: Progress::Inline,
        spin: Some(POLLS),
        ..shape
    };
    let mut rounds = Rounds::default();
    let (bytes, count) = (LATENCY_BYTES, if context.quick { 2_000 } else { 20_000 });
    for _ in 0..context.rounds {
        let ends = Ends::start_in_one_node(&fabric, inline)?;
        // Who polls opens the memory, in the node's namespace.
        let ours = fabric.in_node(0, || exchange(ends, count))?;
        let ours = median(&mut ours?);
        add(&mut rounds, ours, theirs(Test::Latency { bytes, count })?);
    }
    let text = "write of 8 B through shared memory, one way, the caller polls the engine";
    rows.push(rounds.row(
        "shm-8",
        text.to_owned(),
        "µs",
        &peer("tag_lat"),
        Must::AtMost(0.4),
    ));
    Ok(rows)
}

fn add(rounds: &mut Rounds, ours: f64, theirs: Option<f64>) {
    match theirs {
        Some(theirs) => rounds.add_pair(ours, theirs),
        None => rounds.add(ours),
    }
}
