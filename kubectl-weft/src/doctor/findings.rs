//! What is made of what was measured: a pure function.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use weft_crds::{
    Diagnosis, FabricNode, NodeFacts, RdmaFabric, Reach,
    doctor::{self, Finding, finding},
};
use weft_fabric::quantity;

use super::Examined;

/// Certificates hold from an hour before they are made: a clock further behind refuses them. Well
/// before that somebody shall know.
const CLOCK_APART_MS: u64 = 60_000;
/// The agent without its buffers: program, connections, manifests.
const AGENT_BYTES: u64 = 64 << 20;

/// Everything that is wrong: the fabrics and nodes by themselves first, then between nodes.
pub(super) fn find(
    fabrics: &[RdmaFabric],
    nodes: &[FabricNode],
    examined: &[Examined],
    now: Timestamp,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if nodes.is_empty() {
        let fix = "make an RdmaFabric whose spec.nodeSelector matches nodes; see: kubectl get rdmafabrics";
        found.push(finding("cluster", "no node is in a fabric".to_owned(), fix));
    }
    for fabric in fabrics {
        doctor::of_fabric(fabric, &mut found);
    }
    for node in nodes {
        doctor::of_node(node, now, &mut found);
    }
    for one in examined {
        if let Some(error) = &one.error {
            let fix = "see the log of its agent, and restart it";
            found.push(finding(
                &one.node,
                format!("could not be examined: {error}"),
                fix,
            ));
        }
    }
    let told: Vec<&Diagnosis> = examined
        .iter()
        .filter_map(|one| one.diagnosis.as_ref())
        .collect();
    for one in &told {
        facts(&one.node, &one.facts, &mut found);
        clock(one, &mut found);
    }
    let operator = told.first().map(|one| &*one.operator_version);
    found.extend(operator.and_then(|operator| doctor::of_versions(nodes, operator)));
    found.extend(doctor::of_mtus(nodes));
    for one in &told {
        reaches(one, &mut found);
    }
    found
}

fn facts(node: &str, facts: &NodeFacts, found: &mut Vec<Finding>) {
    for (name, has) in [("GSO", facts.gso), ("GRO", facts.gro)] {
        if !has {
            let text = format!(
                "the kernel ({}) has no UDP {name}: every packet costs a system call",
                facts.kernel
            );
            found.push(finding(
                node,
                text,
                "use Linux 5.0 or newer, and let the pod's seccomp profile allow setsockopt",
            ));
        }
    }
    let buffers = [
        (
            "receive",
            "net.core.rmem_max",
            facts.receive_buffer_wanted,
            facts.receive_buffer_granted,
        ),
        (
            "send",
            "net.core.wmem_max",
            facts.send_buffer_wanted,
            facts.send_buffer_granted,
        ),
    ];
    for (name, setting, wanted, granted) in buffers {
        if granted < wanted {
            let text = format!(
                "sockets get {} of {name} buffer instead of {}: bursts are lost and sent again",
                quantity::bytes(granted),
                quantity::bytes(wanted)
            );
            // The kernel doubles what it is asked for.
            let fix = format!(
                "on the node: sysctl -w {setting}={}, and keep it in /etc/sysctl.d",
                wanted / 2
            );
            found.push(finding(node, text, fix));
        }
    }
    let needed = facts.memory_budget + AGENT_BYTES;
    if facts.memory_limit > 0 && facts.memory_limit < needed {
        let text = format!(
            "the agent's pod may use {}, its buffers alone {}: the kernel will end it",
            quantity::bytes(facts.memory_limit),
            quantity::bytes(facts.memory_budget)
        );
        let fix = format!(
            "raise agent.resources.limits.memory to {} MiB, or leave it out",
            needed.div_ceil(1 << 20)
        );
        found.push(finding(node, text, fix));
    }
}

fn clock(one: &Diagnosis, found: &mut Vec<Finding>) {
    if one.clock_ahead_ms.unsigned_abs() > CLOCK_APART_MS {
        let way = if one.clock_ahead_ms > 0 {
            "ahead of"
        } else {
            "behind"
        };
        let seconds = one.clock_ahead_ms.unsigned_abs() / 1000;
        let text =
            format!("its clock is {seconds} s {way} the operator's: certificates fail by that");
        found.push(finding(&one.node, text, "run a time service on both nodes"));
    }
}

/// For each peer and link what is wrong by the smallest packets, and what is wrong by larger ones besides.
fn reaches(one: &Diagnosis, found: &mut Vec<Finding>) {
    let mut peers: BTreeMap<(&str, &str), Vec<&Reach>> = BTreeMap::new();
    for reach in &one.reaches {
        let peer = (reach.node.as_str(), reach.link.as_str());
        peers.entry(peer).or_default().push(reach);
    }
    for ((peer, _), mut reaches) in peers {
        reaches.sort_by_key(|reach| reach.packet_bytes);
        let mut smaller: Option<&Reach> = None;
        for reach in reaches {
            if let Some((problem, fix)) = unreached(reach, smaller) {
                found.push(finding(format!("{} → {peer}", one.node), problem, fix));
            }
            smaller = Some(reach);
        }
    }
}

/// What is wrong beyond what is wrong by smaller packets.
fn unreached(reach: &Reach, smaller: Option<&Reach>) -> Option<(String, String)> {
    let size = reach.packet_bytes;
    if !reach.error.is_empty() {
        if smaller.is_some_and(|smaller| !smaller.error.is_empty()) {
            return None;
        }
        let error = &reach.error;
        let text = format!("the node does not even send packets of {size} bytes: {error}");
        let fix = "look at its routes and the MTU of its data interface";
        return Some((text, fix.to_owned()));
    }
    let known = smaller.map_or(&[][..], |smaller| &smaller.silent_ports);
    let new = reach
        .silent_ports
        .iter()
        .filter(|port| !known.contains(port));
    let new: Vec<u16> = new.copied().collect();
    if new.is_empty() {
        return None;
    }
    let ports = listed(&new);
    if reach.link == "tcp" {
        return Some((
            format!("no connection to TCP {ports}"),
            format!(
                "see that the data networks route to each other, and let TCP {ports} through in both directions"
            ),
        ));
    }
    let is_all = reach.silent_ports.len() == usize::from(reach.ports);
    Some(match (is_all, smaller) {
        (true, Some(smaller)) => (
            format!(
                "packets of {} bytes arrive, of {size} bytes none, though both interfaces have that \
                 MTU",
                smaller.packet_bytes
            ),
            format!(
                "raise the MTU of the switches between them to {size}, or lower that of the \
                 interfaces"
            ),
        ),
        (true, None) => (
            format!("no packet of {size} bytes is answered at UDP {ports}"),
            format!(
                "see that the data networks route to each other, and let UDP {ports} through in \
                 both directions"
            ),
        ),
        (false, _) => (
            format!("packets of {size} bytes are not answered at UDP {ports}, at others they are"),
            format!("let UDP {ports} through between the data networks"),
        ),
    })
}

/// `7500-7515, 7520`.
fn listed(ports: &[u16]) -> String {
    let ports: BTreeSet<u16> = ports.iter().copied().collect();
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for port in ports {
        match runs.last_mut() {
            Some((_, last)) if u32::from(*last) + 1 == u32::from(port) => *last = port,
            _ => runs.push((port, port)),
        }
    }
    let run = |(first, last): (u16, u16)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
}
