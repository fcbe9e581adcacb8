//! `isolation`: what TCP, and rules for it, do to programs over virtual devices of the same nodes.
//!
//! "Alibaba Stellar", section 2: RDMA and TCP share one steering table of the NIC there, so rules for TCP delay RDMA.

use std::fmt::Write as _;

use weft_engine::Egress;
use weft_fabric::{Fabric, Spec};

use super::devices::{Devices, Memory, Place};
use super::{BenchError, Context};
use crate::bench::rounds::{Must, Rounds};
use crate::bench::spine::run_inside;
use crate::bench::tcp::TcpLoad;
use crate::report::Row;

const RULES: usize = 10_000;
/// Of the rows' own rules, beside the fabric's.
const TABLE: &str = "isolation";
/// Of the TCP connection beside, where it is paced.
const TCP_BPS: u64 = 100_000_000;
/// Bit/s of the link that two classes share, and of each of them.
const LINK_BPS: u64 = 950_000_000;
const CLASS_BPS: u64 = LINK_BPS / 2;
/// AF31: the class of the devices' packets.
const DSCP: u8 = 26;
/// Bytes of a link's packet that are payload, at MTU 9000.
const PAYLOAD_SHARE: f64 = 8904.0 / 9014.0;

/// Where the rules are.
#[derive(Debug, Clone, Copy)]
enum Rules {
    /// One after the other for what is forwarded, as what pods send and receive is. What the node itself sends and
    /// receives meets them where it is TCP, and otherwise one rule.
    OfPods,
    /// One after the other for everything.
    InLine,
}

/// What a latency is measured beside.
#[derive(Debug, Clone, Copy)]
enum Beside {
    Rules(Rules),
    Tcp(Option<u64>),
}

/// All rows.
pub(in crate::bench) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let mut rows = latencies(context)?;
    rows.push(class(context)?);
    Ok(rows)
}

fn latencies(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let devices = Devices::start(&fabric)?;
    let all = [
        (
            "isolation-rules",
            Beside::Rules(Rules::OfPods),
            Must::RatioAtMost(1.05),
        ),
        (
            "isolation-rules-in-line",
            Beside::Rules(Rules::InLine),
            Must::RatioAtMost(1.05),
        ),
        (
            "isolation-tcp",
            Beside::Tcp(Some(TCP_BPS)),
            Must::RatioAtMost(1.10),
        ),
        ("isolation-tcp-full", Beside::Tcp(None), Must::Reported),
    ];
    all.into_iter()
        .map(|(id, beside, must)| latency(context, &fabric, &devices, (id, beside), must))
        .collect()
}

fn latency(
    context: &Context,
    fabric: &Fabric,
    devices: &Devices<'_>,
    (id, beside): (&str, Beside),
    must: Must,
) -> Result<Row, BenchError> {
    let slow = matches!(beside, Beside::Rules(Rules::InLine) | Beside::Tcp(None));
    let count = match (context.quick, slow) {
        (true, _) => 2_000,
        (false, true) => 5_000,
        (false, false) => 20_000,
    };
    let once = || devices.latency(Place::TwoNodes, Memory::Private, "ib_write_lat", 8, count);
    let mut rounds = Rounds::default();
    let mut tcp = Rounds::default();
    for round in 0..context.rounds {
        let with = || -> Result<(f64, f64), BenchError> {
            match beside {
                Beside::Rules(rules) => {
                    add_rules(fabric, rules)?;
                    let took = once();
                    remove_rules(fabric)?;
                    Ok((took?, 0.0))
                }
                Beside::Tcp(rate) => {
                    let load = TcpLoad::start(fabric, rate)?;
                    Ok((once()?, load.rate()))
                }
            }
        };
        // What comes first is not always the same.
        let (ours, theirs) = if round % 2 == 0 {
            let ours = with()?;
            (ours, once()?)
        } else {
            let theirs = once()?;
            (with()?, theirs)
        };
        rounds.add_pair(ours.0, theirs);
        tcp.add(ours.1);
    }
    let what = match beside {
        Beside::Rules(Rules::OfPods) => {
            format!("{RULES} rules for TCP at both nodes, for what pods send")
        }
        Beside::Rules(Rules::InLine) => {
            format!("{RULES} rules for TCP at both nodes, which every packet passes")
        }
        Beside::Tcp(_) => format!("TCP between the same nodes, {:.2} Gbit/s", tcp.ours() * 8.0),
    };
    let work = format!("ib_write_lat -s 8 one way, two nodes, beside {what}");
    Ok(rounds.row(id, work, "µs", "without", must))
}

/// Rules that no packet here fits, at both nodes.
fn add_rules(fabric: &Fabric, rules: Rules) -> Result<(), BenchError> {
    let mut all = String::new();
    for rule in 0..RULES {
        let (third, last) = (rule / 250, rule % 250 + 1);
        // Writing to a string cannot fail.
        let _ = writeln!(all, "ip saddr 198.18.{third}.{last} tcp dport 6443 drop");
    }
    let mut script = format!("table ip {TABLE} {{\n");
    let passed = match rules {
        Rules::OfPods => {
            let _ = writeln!(script, "chain services {{\n{all}}}");
            "meta l4proto 6 jump services\n"
        }
        Rules::InLine => &*all,
    };
    for (hook, rules) in [("forward", &*all), ("input", passed), ("output", passed)] {
        let head = format!("type filter hook {hook} priority 0;");
        let _ = writeln!(script, "chain {hook} {{\n{head}\n{rules}}}");
    }
    script.push_str("}\n");
    on_both(fabric, &script)
}

fn remove_rules(fabric: &Fabric) -> Result<(), BenchError> {
    on_both(fabric, &format!("delete table ip {TABLE}"))
}

fn on_both(fabric: &Fabric, script: &str) -> Result<(), BenchError> {
    (0..2).try_for_each(|node| {
        let namespace = &fabric.node(node).namespace;
        run_inside(namespace, "nft", &["-f", "-"], script).map(drop)
    })
}

/// What a device's writes have of a link that TCP would fill, where each has a class.
fn class(context: &Context) -> Result<Row, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        leaves: 1,
        node_rate: Some(1_000_000_000),
        ..Spec::default()
    })?;
    let class =
        format!("rate {CLASS_BPS}bit ceil {LINK_BPS}bit burst 64kb cburst 64kb quantum 9014");
    let tos = DSCP << 2;
    let script = format!(
        "qdisc replace dev data0 root handle 1: htb default 20\n\
         class add dev data0 parent 1: classid 1:1 htb rate {LINK_BPS}bit burst 64kb cburst 64kb quantum 9014\n\
         class add dev data0 parent 1:1 classid 1:10 htb {class}\n\
         class add dev data0 parent 1:1 classid 1:20 htb {class}\n\
         qdisc add dev data0 parent 1:10 bfifo limit 300kb\n\
         qdisc add dev data0 parent 1:20 bfifo limit 300kb\n\
         filter add dev data0 parent 1: protocol ip prio 1 u32 match ip tos {tos} 0xfc flowid 1:10\n"
    );
    run_inside(&fabric.node(1).namespace, "tc", &["-batch", "-"], &script)?;
    let egress = Egress {
        dscp: DSCP,
        ..Egress::default()
    };
    let devices = Devices::limited(&fabric, [None; 2], egress)?;
    let bytes = 64 << 10;
    // Two seconds, or a half.
    let all = if context.quick {
        CLASS_BPS / 16
    } else {
        CLASS_BPS / 4
    };
    let (mut rounds, mut tcp) = (Rounds::default(), Rounds::default());
    for _ in 0..context.rounds {
        let load = TcpLoad::start(&fabric, None)?;
        let ours = devices.rate(Place::TwoNodes, Memory::Private, bytes, all / bytes as u64)?;
        tcp.add(load.rate());
        rounds.add_pair(ours, CLASS_BPS as f64 / 8e9 * PAYLOAD_SHARE);
    }
    Ok(rounds.row(
        "isolation-class",
        format!(
            "ib_write_bw -s {bytes}, DSCP {DSCP}, over a link of {LINK_BPS} bit/s, whose other half is for TCP, which had {:.3}",
            tcp.ours()
        ),
        "GB/s",
        "its class",
        Must::RatioAtLeast(0.9),
    ))
}
