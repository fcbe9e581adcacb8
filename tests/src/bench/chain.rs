//! `chain-3`, `chain-8`: a broadcast along a chain, against the time that one link needs for it.

use std::fs;
use std::sync::Arc;

use weft_fabric::Spec;
use weft_planner::Strategy;
use weft_proto::agent::v1::Algorithm;

use super::memory::{Memory, write_random};
use super::rounds::{Must, Rounds};
use super::stage::{Stage, Transfer};
use super::{BenchError, Context};
use crate::report::Row;

const SOURCE: &str = "source";
const COPY: &str = "copy";

/// How long a chain, over which links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) id: &'static str,
    pub(super) destinations: usize,
    /// Of each node's link, Mbit/s.
    pub(super) rate: u64,
}

/// `chain-3`.
pub(super) const THREE: Chain = Chain {
    id: "chain-3",
    destinations: 3,
    rate: 1000,
};
/// `chain-8`: nine nodes' links share two cores.
pub(super) const EIGHT: Chain = Chain {
    id: "chain-8",
    destinations: 8,
    rate: 300,
};

/// One row.
pub(super) fn measure(context: &Context, chain: Chain) -> Result<Vec<Row>, BenchError> {
    let Chain {
        id,
        destinations,
        rate,
    } = chain;
    let bytes: u64 = if context.quick { 64 << 20 } else { 256 << 20 };
    let nodes = destinations + 1;
    let fabric = Arc::new(context.fabric(&Spec {
        nodes,
        node_rate: Some(rate * 1_000_000),
        ..Spec::default()
    })?);
    let memory = Memory::mount((nodes as u64 + 1) * bytes)?;
    let directories = (0..nodes)
        .map(|i| memory.path().join(format!("node{i}")))
        .collect();
    let stage = Stage::set(
        Arc::clone(&fabric),
        directories,
        &memory.path().join("agents"),
    )?;
    write_random(&stage.directory(0).join(SOURCE), bytes)?;
    let mtu = fabric.spec().mtu;
    let share = stage.payload_share();
    let least = bytes as f64 * 8.0 / (rate as f64 * 1e6 * share);
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let took = stage.transfer(Transfer {
            source: SOURCE,
            destination: COPY,
            strategy: Strategy::Chain,
            algorithm: Algorithm::Blake3,
        })?;
        rounds.add_pair(took.as_secs_f64(), least);
        for i in 1..nodes {
            fs::remove_file(stage.directory(i).join(COPY)).map_err(BenchError::system("a copy"))?;
        }
    }
    let work = format!(
        "{} MiB to {destinations} nodes in a chain, node links of {rate} Mbit/s, MTU {mtu}, payload \
         share {share:.3}, request to the last verified",
        bytes >> 20
    );
    Ok(vec![rounds.row(
        id,
        work,
        "s",
        "one link",
        Must::RatioAtMost(1.15),
    )])
}
