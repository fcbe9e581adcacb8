//! What is made of what was measured: a pure function.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;
use serde::Serialize;
use weft_crds::{Diagnosis, FabricNode, NodeFacts, RdmaFabric, Reach};
use weft_fabric::quantity;

use super::Examined;

/// A certificate is renewed when 8 of its 24 hours are left; with fewer it was tried and refused.
const CERTIFICATE_LEFT_S: i64 = 7 * 3600;
/// Certificates hold from an hour before they are made: a clock further behind refuses them. Well
/// before that somebody shall know.
const CLOCK_APART_MS: u64 = 60_000;
/// The agent without its buffers: program, connections, manifests.
const AGENT_BYTES: u64 = 64 << 20;

/// Where the problem says what to do.
const SAYS_ITSELF: &str = "";

/// Something that is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Which node or nodes.
    pub(super) subject: String,
    /// What is wrong.
    pub(super) problem: String,
    /// What to do; empty where the problem says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) fix: String,
}

fn finding(subject: impl Into<String>, problem: String, fix: impl Into<String>) -> Finding {
    Finding {
        subject: subject.into(),
        problem,
        fix: fix.into(),
    }
}

/// Whether its agent reports, and can work.
pub(super) fn is_ready(node: &FabricNode) -> bool {
    ready(node).is_some_and(|condition| condition.status == "True")
}

fn ready(node: &FabricNode) -> Option<&Condition> {
    condition(node.status.as_ref()?.conditions.as_slice(), "Ready")
}

fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

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
        of_fabric(fabric, &mut found);
    }
    for node in nodes {
        by_itself(node, now, &mut found);
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
    versions(nodes, &told, &mut found);
    mtus(nodes, &mut found);
    for one in &told {
        reaches(one, &mut found);
    }
    found
}

/// What its conditions say, but for nodes that are not ready: each of these is a finding.
fn of_fabric(fabric: &RdmaFabric, found: &mut Vec<Finding>) {
    let Some(status) = &fabric.status else {
        return;
    };
    for (kind, wrong) in [
        ("Ready", "False"),
        ("Conflicting", "True"),
        ("AgentsApplied", "False"),
    ] {
        let is_wrong = |said: &&Condition| said.status == wrong && said.reason != "NodesNotReady";
        if let Some(said) = condition(&status.conditions, kind).filter(is_wrong) {
            found.push(finding(
                format!("fabric {}", fabric.name_any()),
                format!("{}: {}", said.reason, said.message),
                SAYS_ITSELF,
            ));
        }
    }
}

fn by_itself(node: &FabricNode, now: Timestamp, found: &mut Vec<Finding>) {
    let name = node.name_any();
    if !is_ready(node) {
        let text = ready(node).map_or("its agent has not reported yet", |ready| &ready.message);
        let fix =
            "see its agent: kubectl --namespace weft-system get pods -o wide, and the pod's log";
        found.push(finding(&name, format!("is not ready: {text}"), fix));
        return;
    }
    if let Some(pending) = ready(node).filter(|ready| ready.reason == "ConfigurationPending") {
        found.push(finding(&name, pending.message.clone(), SAYS_ITSELF));
    }
    let Some(status) = &node.status else {
        return;
    };
    for one in &status.findings {
        found.push(finding(
            &name,
            format!("{}: {}", one.reason, one.message),
            SAYS_ITSELF,
        ));
    }
    if let Some(ends) = &status.certificate_expires {
        let left = ends.0.as_second() - now.as_second();
        if left < CERTIFICATE_LEFT_S {
            let text = match left {
                ..=0 => "its certificate has ended".to_owned(),
                left => format!(
                    "its certificate ends in {} min and was not renewed",
                    left / 60
                ),
            };
            let fix = "see why in its agent's log: the operator refuses it, or is not reached";
            found.push(finding(&name, text, fix));
        }
    }
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

fn versions(nodes: &[FabricNode], told: &[&Diagnosis], found: &mut Vec<Finding>) {
    let Some(operator) = told.first().map(|one| &one.operator_version) else {
        return;
    };
    let others = nodes.iter().filter_map(|node| {
        let version = &node.status.as_ref()?.version;
        (version != operator && !version.is_empty())
            .then(|| format!("{} has {version}", node.name_any()))
    });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        let text = format!(
            "agents are of another release than the operator, {operator}: {}",
            others.join(", ")
        );
        let fix = "wait for the rollout: kubectl --namespace weft-system rollout status daemonset; then helm upgrade again";
        found.push(finding("cluster", text, fix));
    }
}

fn mtus(nodes: &[FabricNode], found: &mut Vec<Finding>) {
    let mut by_fabric: BTreeMap<&str, BTreeMap<u32, Vec<String>>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| is_ready(node)) {
        if let Some(status) = &node.status {
            let mtus = by_fabric.entry(&node.spec.fabric).or_default();
            mtus.entry(status.mtu).or_default().push(node.name_any());
        }
    }
    for (fabric, mtus) in by_fabric.iter().filter(|(_, mtus)| mtus.len() > 1) {
        let all: Vec<String> = mtus
            .iter()
            .map(|(mtu, nodes)| format!("{mtu} on {}", nodes.join(", ")))
            .collect();
        let text = format!(
            "the data interfaces differ in MTU, and such nodes cannot connect: {}",
            all.join("; ")
        );
        found.push(finding(
            format!("fabric {fabric}"),
            text,
            "give all of them the same MTU",
        ));
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
