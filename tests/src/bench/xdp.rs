//! `xdp`: CPU time of both ends' workers over AF_XDP against UDP, where interfaces neither cut nor join packets.

use std::net::IpAddr;

use weft_engine::LinkKind;
use weft_fabric::Fabric;

use super::ends::{Ends, Shape};
use super::raw::{LAP, MEMORY, MESSAGE};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

/// Ids of the rows for CPU time and rate, the MTU, and what must hold of the time. The larger one is what a veth allows with a
/// program.
const CASES: [([&str; 2], u16, Must); 2] = [
    (["xdp", "xdp-rate"], 1500, Must::RatioAtMost(0.7)),
    (["xdp-3400", "xdp-3400-rate"], 3400, Must::Reported),
];

/// Two rows for each MTU.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let mut rows = Vec::new();
    for (pair, (ids, mtu, must)) in (0..).step_by(2).zip(CASES) {
        let start = |pair, link| {
            let addresses = join_nodes(&fabric, pair, mtu)?;
            let shape = Shape {
                link,
                ..Shape::default()
            };
            Ends::start_at(&fabric, shape, addresses, mtu)
        };
        // Each has interfaces of its own: a program slows down what it passes.
        let ours = start(pair, LinkKind::Xdp)?;
        let theirs = start(pair + 1, LinkKind::Udp)?;
        let writes = Writes {
            bytes: MESSAGE,
            count: if context.quick { 128 } else { 512 },
            outstanding: 8,
            memory: MEMORY,
            lap: LAP,
        };
        // Neither pays for the first touch of its pages, or looks for its neighbour.
        let warm_up = Writes {
            count: 64,
            ..writes
        };
        for ends in [&ours, &theirs] {
            writes::measure(ends, warm_up)?;
        }
        let (mut cpu, mut rate) = (Rounds::default(), Rounds::default());
        for _ in 0..context.rounds {
            let [ours, theirs] = [&ours, &theirs].map(|ends| writes::measure(ends, writes));
            let (ours, theirs) = (ours?, theirs?);
            cpu.add_pair(ours.seconds_per_gigabyte(), theirs.seconds_per_gigabyte());
            rate.add_pair(ours.gigabytes_per_second(), theirs.gigabytes_per_second());
        }
        let what = format!(
            "writes of 1 MiB over AF_XDP, eight under way, MTU {mtu}, one veth, GSO and GRO off, every byte checked"
        );
        let time = format!("CPU time of both workers, {what}");
        rows.push(cpu.row(ids[0], time, "s/GB", "udp", must));
        rows.push(rate.row(ids[1], what, "GB/s", "udp", Must::Reported));
    }
    Ok(rows)
}

/// Joins nodes 0 and 1 by a veth of their own. Answers their addresses on it.
fn join_nodes(fabric: &Fabric, pair: u8, mtu: u16) -> Result<[IpAddr; 2], BenchError> {
    let run = |node: usize, program: &'static str, arguments: &str| {
        let mut command = fabric.command(node, program);
        let output = command.args(arguments.split_whitespace()).output();
        let output = output.map_err(BenchError::system(program))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(BenchError::Program {
                program: format!("{program} {arguments}"),
                message: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    };
    let name = format!("xdp{pair}");
    let peer = &fabric.node(1).name;
    run(
        0,
        "ip",
        &format!("link add {name} type veth peer name {name} netns {peer}"),
    )?;
    let addresses = [1, 2].map(|host| IpAddr::from([10, 99, pair, host]));
    for (node, address) in addresses.iter().enumerate() {
        let off = "gso off gro off tso off tx-udp-segmentation off";
        run(node, "ethtool", &format!("-K {name} {off}"))?;
        run(node, "ip", &format!("addr add {address}/24 dev {name}"))?;
        run(node, "ip", &format!("link set {name} mtu {mtu} up"))?;
    }
    Ok(addresses)
}
