//! `raw`: the engine against a blaster that makes the same kernel calls and nothing else.

use std::net::SocketAddrV4;
use std::thread;
use std::time::Duration;

use weft_cli::fabric::{Fabric, Spec};
use weft_engine::PolicyKind;
use weft_engine::rate::{Writes, write_rate};
use weft_link::blaster::{Blaster, BlasterConfig, Progress};

use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::{BenchError, Context};
use crate::report::Row;

const MESSAGE: usize = 1 << 20;
/// Walked through at both ends: more than the caches hold.
const MEMORY: usize = 64 << 20;
const BLASTER_PORT: u16 = 19_000;
/// How long the blaster's receiver waits for its first datagram.
const PATIENCE: Duration = Duration::from_secs(10);
/// Play's MTU and Ethernet's.
const MTUS: [(&str, u32); 2] = [("raw", 9000), ("raw-1500", 1500)];

/// A row for each MTU.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    MTUS.into_iter()
        .map(|(id, mtu)| row(context, id, mtu))
        .collect()
}

fn row(context: &Context, id: &str, mtu: u32) -> Result<Row, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        leaves: 1,
        mtu,
        ..Spec::default()
    })?;
    let shape = Shape {
        policy: PolicyKind::TwoChoices,
        paths: 128,
        draw: 0,
    };
    let ends = Ends::start(&fabric, shape)?;
    let count = if context.quick { 256 } else { 1024 };
    let writes = Writes {
        bytes: MESSAGE,
        count,
        outstanding: 8,
        memory: MEMORY,
    };
    let datagram = ends.sender.settings().packet_bytes() as u16;
    let spin = Duration::from_nanos(ends.sender.config().spin.get());
    // Neither pays for the first touch of its pages in a round.
    write_rate(
        &ends.sender,
        &ends.receiver,
        Writes {
            count: 64,
            ..writes
        },
    )?;
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let ours = write_rate(&ends.sender, &ends.receiver, writes)?;
        rounds.add_pair(
            ours / 1e9,
            blast(&fabric, datagram, spin, count as usize)? / 1e9,
        );
    }
    let work = format!(
        "memory to memory, writes of 1 MiB, MTU {mtu}, veth through one leaf, both poll {} µs",
        spin.as_micros()
    );
    Ok(rounds.row(id, work, "GB/s", "blaster", Must::RatioAtLeast(0.65)))
}

/// Bytes per second that arrive of a blast of so many messages.
fn blast(
    fabric: &Fabric,
    datagram_bytes: u16,
    spin: Duration,
    messages: usize,
) -> Result<f64, BenchError> {
    let end = |node: usize| -> Result<(SocketAddrV4, Blaster), BenchError> {
        let local = SocketAddrV4::new(fabric.node(node).data_address, BLASTER_PORT);
        let config = BlasterConfig {
            local,
            datagram_bytes,
            spin,
        };
        Ok((local, fabric.in_node(node, || Blaster::bind(config))??))
    };
    let ((_, sender), (peer, mut receiver)) = (end(0)?, end(1)?);
    let message = vec![0x5A; MEMORY];
    let times = (messages * MESSAGE / MEMORY).max(1);
    let bytes = (times * MEMORY) as u64;
    let progress = Progress::default();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.receive(bytes, PATIENCE, &progress));
        sender
            .send(peer, &message, times, &progress)
            .map_err(BenchError::system("blaster: send"))?;
        let blasted = receiving
            .join()
            .map_err(|_| BenchError::Panicked("blaster"))?;
        Ok(blasted
            .map_err(BenchError::system("blaster: receive"))?
            .bytes_per_second())
    })
}
