//! `page`: how long a document of the fabric's page takes to make. What a browser needs to paint it comes on top.

use std::{
    hint::black_box,
    time::{Instant, SystemTime},
};

use weft_page::{Destination, Fabric, Job, Leaf, Link, Node, NodeState, Phase, View, render};

use super::rounds::{Must, Rounds};
use super::{BenchError, Context};
use crate::report::{Row, median};

const NODES: usize = 200;
const LEAVES: usize = 13;
const SPINES: usize = 8;
const JOBS: usize = 1_000;
/// Until a browser paints, in milliseconds.
const MOST_MS: f64 = 300.0;
/// Documents of a round.
const TIMES: usize = 50;

/// One row.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let (fabric, view) = (fabric(), View::default());
    let mut rounds = Rounds::default();
    let mut bytes = 0;
    for _ in 0..context.rounds {
        let mut took = Vec::new();
        for _ in 0..TIMES {
            let begun = Instant::now();
            bytes = black_box(render(&fabric, &view)).len();
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        rounds.add(median(&mut took));
    }
    let work = format!(
        "the fabric's page of {NODES} nodes and {JOBS} jobs, {} KiB, made; median of {TIMES}",
        bytes >> 10
    );
    Ok(vec![rounds.row(
        "page",
        work,
        "ms",
        "",
        Must::AtMost(MOST_MS),
    )])
}

/// Every job goes to 64 nodes, as many as a job's status names.
fn fabric() -> Fabric {
    let mut fabric = Fabric::new("fabric", SystemTime::now());
    let name = |i: usize| format!("node-{i:03}");
    let node = |i: usize| Node {
        name: name(i),
        state: NodeState::Ready,
        sends: Some(i as u64),
        receives: Some(1_000_000),
        ..Node::default()
    };
    fabric.leaves = (0..LEAVES)
        .map(|leaf| Leaf {
            name: format!("leaf{leaf}"),
            nodes: (leaf..NODES).step_by(LEAVES).map(node).collect(),
        })
        .collect();
    fabric.spines = Some(SPINES);
    fabric.links = (0..LEAVES * SPINES)
        .map(|i| Link {
            leaf: i / SPINES,
            spine: Some(i % SPINES),
            heat: (i % SPINES) as f64 / SPINES as f64,
            bytes_per_second: 1_000_000,
        })
        .collect();
    let destination = |i: usize| Destination {
        node: name(i),
        done: Some(i as f64 / NODES as f64),
        state: "Transferring".to_owned(),
    };
    fabric.jobs = (0..JOBS)
        .map(|i| Job {
            namespace: format!("team-{}", i % 10),
            name: format!("job-{i}"),
            phase: Phase::Transferring,
            done: 40,
            total: Some(100),
            from: name(0),
            to: (1..=64).map(destination).collect(),
            destinations: NODES - 1,
            ..Job::default()
        })
        .collect();
    fabric
}
