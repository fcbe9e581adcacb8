//! `file-xxh3`, `file-blake3`: a file from the memory of one node to that of another, against `nc`
//! and `scp` between the same two nodes, and `cp` within that memory.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use weft_planner::Strategy;
use weft_proto::agent::v1::Algorithm;

use super::memory::{Memory, write_random};
use super::peers::{Scp, cp, nc};
use super::rounds::{Must, Rounds};
use super::stage::{Stage, Transfer};
use super::{BenchError, Context};
use crate::report::Row;

const SOURCE: &str = "source";
const COPY: &str = "copy";

/// Six rows: either digest against each peer.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let bytes: u64 = if context.quick { 128 << 20 } else { 1 << 30 };
    let fabric = Arc::new(context.two_nodes()?);
    let memory = Memory::mount(3 * bytes)?;
    let directories = vec![memory.path().join("node0"), memory.path().join("node1")];
    let stage = Stage::set(
        Arc::clone(&fabric),
        directories,
        &memory.path().join("agents"),
    )?;
    let scp = Scp::start(&fabric, &memory.path().join("ssh"))?;
    let (source, copy) = (
        stage.directory(0).join(SOURCE),
        stage.directory(1).join(COPY),
    );
    write_random(&source, bytes)?;

    let rate = |took: Duration| bytes as f64 / took.as_secs_f64() / 1e9;
    let ours = |algorithm| -> Result<f64, BenchError> {
        let strategy = Strategy::Direct;
        let transfer = Transfer {
            source: SOURCE,
            destination: COPY,
            strategy,
            algorithm,
        };
        let took = stage.transfer(transfer)?;
        fs::remove_file(&copy).map_err(BenchError::system("the copy"))?;
        Ok(rate(took))
    };
    let theirs = |took: Duration| -> Result<f64, BenchError> {
        fs::remove_file(&copy).map_err(BenchError::system("the copy"))?;
        Ok(rate(took))
    };
    // The first of each pays for programs and pages that the others find in place.
    ours(Algorithm::Xxh3)?;
    theirs(nc(&fabric, &source, &copy)?)?;
    theirs(cp(&source, &copy)?)?;
    let mut rows = [(); 6].map(|()| Rounds::default());
    for _ in 0..context.rounds {
        let xxh3 = ours(Algorithm::Xxh3)?;
        let nc = theirs(nc(&fabric, &source, &copy)?)?;
        let blake3 = ours(Algorithm::Blake3)?;
        let scp = theirs(scp.copy(&fabric, &source, &copy)?)?;
        let cp = theirs(cp(&source, &copy)?)?;
        let pairs = [
            (xxh3, nc),
            (xxh3, scp),
            (xxh3, cp),
            (blake3, nc),
            (blake3, scp),
            (blake3, cp),
        ];
        for (rounds, (ours, theirs)) in rows.iter_mut().zip(pairs) {
            rounds.add_pair(ours, theirs);
        }
    }
    let mtu = fabric.spec().mtu;
    let row = |id: &str, digest: &str, rounds: &Rounds, peer: &str, least: f64| {
        let work = format!(
            "{} MiB, tmpfs to tmpfs, veth, MTU {mtu}, request to fsynced and verified by {digest}",
            bytes >> 20
        );
        rounds.row(id, work, "GB/s", peer, Must::RatioAtLeast(least))
    };
    let [xxh3_nc, xxh3_scp, xxh3_cp, blake3_nc, blake3_scp, blake3_cp] = &rows;
    Ok(vec![
        row("file-xxh3", "XXH3", xxh3_nc, "nc", 3.0),
        row("file-xxh3-scp", "XXH3", xxh3_scp, "scp", 2.0),
        row("file-xxh3-cp", "XXH3", xxh3_cp, "cp", 0.85),
        row("file-blake3", "BLAKE3", blake3_nc, "nc", 3.0),
        row("file-blake3-scp", "BLAKE3", blake3_scp, "scp", 2.0),
        row("file-blake3-cp", "BLAKE3", blake3_cp, "cp", 0.75),
    ])
}
