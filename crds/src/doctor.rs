//! What is wrong by what objects say, without a measurement: pure functions. `kubectl weft doctor` prints it, and the
//! operator shows it on the fabric's page.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{FabricNode, RdmaFabric};

/// A certificate is renewed when 8 of its 24 hours are left; with fewer it was tried and refused.
const CERTIFICATE_LEFT_S: i64 = 7 * 3600;

/// Where the problem says what to do.
const SAYS_ITSELF: &str = "";

/// Something that is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which node or nodes.
    pub subject: String,
    /// What is wrong.
    pub problem: String,
    /// What to do; empty where the problem says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// A finding.
pub fn finding(subject: impl Into<String>, problem: String, fix: impl Into<String>) -> Finding {
    Finding {
        subject: subject.into(),
        problem,
        fix: fix.into(),
    }
}

/// Whether its agent reports, and can work.
pub fn is_ready(node: &FabricNode) -> bool {
    ready(node).is_some_and(|condition| condition.status == "True")
}

fn ready(node: &FabricNode) -> Option<&Condition> {
    condition(node.status.as_ref()?.conditions.as_slice(), "Ready")
}

fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// What its conditions say, but for nodes that are not ready: each of these is a finding.
pub fn of_fabric(fabric: &RdmaFabric, found: &mut Vec<Finding>) {
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

/// What is wrong with a node by itself.
pub fn of_node(node: &FabricNode, now: Timestamp, found: &mut Vec<Finding>) {
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

/// Agents of another release than the operator's.
pub fn of_versions<'a>(
    nodes: impl IntoIterator<Item = &'a FabricNode>,
    operator: &str,
) -> Option<Finding> {
    let others = nodes.into_iter().filter_map(|node| {
        let version = &node.status.as_ref()?.version;
        (version != operator && !version.is_empty())
            .then(|| format!("{} has {version}", node.name_any()))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        let text = format!(
            "agents are of another release than the operator, {operator}: {}",
            others.join(", ")
        );
        let fix = "wait for the rollout: kubectl --namespace weft-system rollout status daemonset; then helm upgrade again";
        finding("cluster", text, fix)
    })
}

/// Nodes of a fabric that differ in MTU.
pub fn of_mtus<'a>(nodes: impl IntoIterator<Item = &'a FabricNode>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut by_fabric: BTreeMap<&str, BTreeMap<u32, Vec<String>>> = BTreeMap::new();
    for node in nodes.into_iter().filter(|node| is_ready(node)) {
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
    found
}
