//! Two busy devices of one node: one with a thousand queue pairs, the other with one.
//!
//! What each sends is counted by the node's packet filter, by the ports of its engine, over the same time.

use std::thread;
use std::time::{Duration, Instant};

use weft_engine::Egress;
use weft_fabric::{Fabric, Spec};

use super::devices::{Devices, NAMES, PORTS};
use super::{BenchError, Context};
use crate::bench::rounds::{Must, Rounds};
use crate::bench::spine::run_inside;
use crate::report::Row;

const QUEUE_PAIRS: u32 = 1_000;
const TABLE: &str = "share";
/// A device that has sent so many bytes is busy.
const BUSY_BYTES: u64 = 4 << 20;
/// Until the queue pairs are connected.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bit/s of the link, where there is a limit.
const LINK_BPS: u64 = 1_000_000_000;

/// What the devices share.
#[derive(Debug, Clone, Copy)]
enum Shared {
    /// The processors.
    Cores,
    /// A link.
    Link,
    /// A link, and each device is limited to half of it.
    LimitedLink,
}

/// All rows.
pub(in crate::bench) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    [Shared::Cores, Shared::Link, Shared::LimitedLink]
        .into_iter()
        .map(|shared| row(context, shared))
        .collect()
}

fn row(context: &Context, shared: Shared) -> Result<Row, BenchError> {
    let (id, what, rate, node_bps, device_bps) = match shared {
        Shared::Cores => ("share-1000", "no limit of rate", None, None, None),
        Shared::Link => (
            "share-1000-link",
            "a link of 1 Gbit/s, of which they share 95 %",
            Some(LINK_BPS),
            Some(LINK_BPS / 100 * 95),
            None,
        ),
        Shared::LimitedLink => (
            "share-1000-limited",
            "a link of 1 Gbit/s, each device limited to half of it",
            Some(LINK_BPS),
            None,
            Some(LINK_BPS / 2),
        ),
    };
    let fabric = context.fabric(&Spec {
        nodes: 2,
        leaves: 1,
        node_rate: rate,
        ..Spec::default()
    })?;
    count_ports(&fabric)?;
    let egress = Egress {
        cap_bps: node_bps,
        ..Egress::default()
    };
    let devices = Devices::limited(&fabric, [device_bps; 2], egress)?;
    let time = Duration::from_secs(if context.quick { 1 } else { 4 });
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let [many, one] = sent(&fabric, &devices, time)?;
        let half = (many + one) / 2.0 / time.as_secs_f64() / 1e9;
        rounds.add_pair(one / time.as_secs_f64() / 1e9, half);
    }
    Ok(rounds.row(
        id,
        format!(
            "ib_write_bw -s 65536 of one queue pair beside one of {QUEUE_PAIRS} over another device, {what}; bytes of IP packets"
        ),
        "GB/s",
        "half of both",
        Must::RatioAtLeast(0.9),
    ))
}

/// Bytes that the device with many queue pairs and the one with one have sent in the same time.
fn sent(fabric: &Fabric, devices: &Devices<'_>, time: Duration) -> Result<[f64; 2], BenchError> {
    let before = counted(fabric)?;
    let line = |queue_pairs, depth| {
        format!("ib_write_bw -x 0 -F -s 65536 -D 60 --output=bandwidth -q {queue_pairs} -t {depth}")
    };
    let many = devices.writing(NAMES[0], &line(QUEUE_PAIRS, 16))?;
    let first = busy(fabric, before, None)?;
    let one = devices.writing(NAMES[1], &line(1, 128))?;
    let second = busy(fabric, counted(fabric)?, Some(first))?;
    thread::sleep(time / 4);
    let begun = counted(fabric)?;
    thread::sleep(time);
    let ended = counted(fabric)?;
    drop((many, one));
    let bytes = [first, second].map(|at| ended[at] - begun[at]);
    Ok(bytes.map(|bytes| bytes as f64))
}

/// Which range of ports begins to send.
fn busy(fabric: &Fabric, before: [u64; 2], but: Option<usize>) -> Result<usize, BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let now = counted(fabric)?;
        let busy = |at: &usize| Some(*at) != but && now[*at] - before[*at] > BUSY_BYTES;
        if let Some(at) = (0..2).find(busy) {
            return Ok(at);
        }
        thread::sleep(LOOK_EVERY);
    }
    Err(BenchError::Silent {
        what: "a device that begins to send",
        seconds: PATIENCE.as_secs(),
    })
}

/// Has node 1 count what it sends from the ports of each engine.
fn count_ports(fabric: &Fabric) -> Result<(), BenchError> {
    let rules = [0, 1].map(|slot| {
        let first = PORTS.first + slot * PORTS.count;
        format!("udp sport {first}-{} counter\n", first + PORTS.count - 1)
    });
    let script = format!(
        "table ip {TABLE} {{\nchain output {{\ntype filter hook output priority 0;\n{}}}\n}}\n",
        rules.concat()
    );
    run_inside(&fabric.node(1).namespace, "nft", &["-f", "-"], &script).map(drop)
}

/// Bytes so far.
fn counted(fabric: &Fabric) -> Result<[u64; 2], BenchError> {
    let arguments = ["list", "table", "ip", TABLE];
    let printed = run_inside(&fabric.node(1).namespace, "nft", &arguments, "")?;
    bytes(&printed).ok_or(BenchError::Program {
        program: "nft".to_owned(),
        message: printed,
    })
}

/// Of the two rules: `udp sport 27000-27015 counter packets 3 bytes 4500`.
fn bytes(printed: &str) -> Option<[u64; 2]> {
    let mut counts = printed.lines().filter_map(|line| {
        let (_, bytes) = line.split_once(" bytes ")?;
        bytes.trim().parse().ok()
    });
    Some([counts.next()?, counts.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_both_counters() {
        let printed = "table ip share {\n\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n\
                       \t\tudp sport 27000-27015 counter packets 3 bytes 4500\n\
                       \t\tudp sport 27016-27031 counter packets 0 bytes 0\n\t}\n}\n";
        assert_eq!(bytes(printed), Some([4500, 0]));
        assert_eq!(bytes("table ip share {\n}\n"), None);
    }
}
