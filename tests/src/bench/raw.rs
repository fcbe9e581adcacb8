//! `raw`: the engine against a blaster that makes the same kernel calls and nothing else; the CPU time of the receiver in
//! the same rounds; and the engine with a scrape of its metrics each second against the same without.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use weft_fabric::{Fabric, Spec};

use super::blaster::{Blasted, Blaster, BlasterConfig, Progress};
use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

pub(super) const MESSAGE: usize = 1 << 20;
/// Walked through at the sender: more than the caches hold.
pub(super) const MEMORY: usize = 64 << 20;
/// Walked through at the receiver, before every byte is checked.
pub(super) const LAP: usize = 512 << 20;
/// As often as the tightest Prometheus scrapes.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
const BLASTER_PORT: u16 = 19_000;
/// How long the blaster's receiver waits for its first datagram.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// One MTU and what must hold at it.
struct Case {
    /// Ids of the rows for the rate and for the receiver's CPU time.
    ids: [&'static str; 2],
    mtu: u32,
    rate: Must,
    cpu: Must,
    /// Whether it is measured with scrapes, too.
    is_scraped: bool,
}

/// Play's MTU and Ethernet's. 0.112 CPU seconds per GB are 0.7 of what the receiver took at 3110b88
/// on two cores of a shared AMD EPYC.
const CASES: [Case; 2] = [
    Case {
        ids: ["raw", "raw-cpu"],
        mtu: 9000,
        rate: Must::RatioAtLeast(0.72),
        cpu: Must::AtMost(0.112),
        is_scraped: true,
    },
    Case {
        ids: ["raw-1500", "raw-1500-cpu"],
        mtu: 1500,
        rate: Must::RatioAtLeast(0.68),
        cpu: Must::Reported,
        is_scraped: false,
    },
];

/// Two rows for each MTU.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for case in CASES {
        let mtu = case.mtu;
        let fabric = context.fabric(&Spec {
            nodes: 2,
            leaves: 1,
            mtu,
            ..Spec::default()
        })?;
        let ends = Ends::start(&fabric, Shape::default())?;
        let count = if context.quick { 256 } else { 1024 };
        let writes = Writes {
            bytes: MESSAGE,
            count,
            outstanding: 8,
            memory: MEMORY,
            lap: LAP,
        };
        let (datagram, spin) = (ends.sender.datagram_bytes(), ends.sender.spin());
        // Neither pays for the first touch of its pages in a round.
        let warm_up = Writes {
            count: 64,
            ..writes
        };
        writes::measure(&ends, warm_up)?;
        let (mut rate, mut cpu) = (Rounds::default(), Rounds::default());
        for _ in 0..context.rounds {
            let ours = writes::measure(&ends, writes)?;
            let bytes = count * MESSAGE as u64;
            let theirs = blast(&fabric, datagram, spin, MEMORY, bytes)?;
            rate.add_pair(ours.gigabytes_per_second(), theirs.bytes_per_second() / 1e9);
            cpu.add_pair(
                ours.receiver_seconds_per_gigabyte(),
                theirs.cpu.as_secs_f64() / theirs.bytes as f64 * 1e9,
            );
        }
        let what = format!(
            "writes of 1 MiB, eight under way, MTU {mtu}, veth through one leaf, both poll {} µs",
            spin.as_micros()
        );
        rows.push(rate.row(
            case.ids[0],
            format!("memory to memory, {what}, every byte checked"),
            "GB/s",
            "blaster",
            case.rate,
        ));
        rows.push(cpu.row(
            case.ids[1],
            format!("CPU time of the receiver's worker, {what}"),
            "s/GB",
            "blaster",
            case.cpu,
        ));
        if case.is_scraped {
            // Some seconds, so that there is more than one scrape.
            let writes = Writes {
                count: 4 * count,
                ..writes
            };
            rows.push(scraped(context, &ends, writes, &what)?);
        }
    }
    Ok(rows)
}

/// One row: with a scrape of both ends each second, against none.
fn scraped(context: &Context, ends: &Ends, writes: Writes, what: &str) -> Result<Row, BenchError> {
    let mut rate = Rounds::default();
    for _ in 0..context.rounds {
        let with = thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                // The first one comes at once.
                while {
                    black_box(ends.sender.scrape() + ends.receiver.scrape());
                    ended.recv_timeout(SCRAPE_INTERVAL) == Err(RecvTimeoutError::Timeout)
                } {}
            });
            let measured = writes::measure(ends, writes);
            drop(done);
            measured
        })?;
        let without = writes::measure(ends, writes)?;
        rate.add_pair(with.gigabytes_per_second(), without.gigabytes_per_second());
    }
    Ok(rate.row(
        "raw-scraped",
        format!("memory to memory, {what}, both ends' metrics read each second"),
        "GB/s",
        "without",
        Must::RatioAtLeast(0.99),
    ))
}

/// What arrives of a blast of so many bytes, which goes through as much memory.
pub(super) fn blast(
    fabric: &Fabric,
    datagram_bytes: u16,
    spin: Duration,
    memory: usize,
    bytes: u64,
) -> Result<Blasted, BenchError> {
    let end = |node: usize| -> Result<(SocketAddr, Blaster), BenchError> {
        let local = SocketAddr::new(fabric.node(node).data_address.into(), BLASTER_PORT);
        let config = BlasterConfig {
            local,
            datagram_bytes,
            spin,
        };
        let bound = fabric.in_node(node, || Blaster::bind(config))?;
        Ok((local, bound.map_err(BenchError::system("blaster: bind"))?))
    };
    let ((_, sender), (peer, mut receiver)) = (end(0)?, end(1)?);
    let message = vec![0x5A; memory];
    let times = (bytes as usize / memory).max(1);
    let bytes = (times * memory) as u64;
    let progress = Progress::default();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.receive(bytes, PATIENCE, &progress));
        sender
            .send(peer, &message, times, &progress)
            .map_err(BenchError::system("blaster: send"))?;
        let blasted = receiving
            .join()
            .map_err(|_| BenchError::Panicked("blaster"))?;
        blasted.map_err(BenchError::system("blaster: receive"))
    })
}
