//! Decides the next step of fabrics, their nodes and their agents: a pure function of the cache and of the
//! agents' reports.

mod devices;
mod in_use;
mod labels;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::apps::v1::DaemonSet,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;
use serde_json::json;
use weft_crds::{
    FabricNode, FabricNodeStatus, FabricStatus, Finding, NodeCount, NodeNic, NodePorts, RdmaFabric,
};
use weft_proto::operator::v1::NodeReport;

pub(crate) use self::labels::model_label;
use crate::controllers::{
    cache::{Key, readiness, uid},
    condition::{self, ConditionUpdate, listed},
    fabric::agents::{self, APPLIED, FABRIC_LABEL},
    fabric::configuration::pod_configuration,
    fabric::view::View,
    job::obstacle::Obstacle,
    kinds::Cache,
    membership::Members,
    request::{Change, Event, ObjectId, Request},
};
use crate::reports::{NodeState, SILENCE};

/// A new node's agent has this long to start before the node's status says what it waits for: until then the
/// first status is that of a node that is Ready, so a new node costs two writes.
const STARTUP: SignedDuration = SignedDuration::from_secs(60);
/// Why a node is Ready whose agent works with an earlier configuration of its fabric.
const CONFIGURATION_PENDING: &str = "ConfigurationPending";

/// What is decided about fabrics.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// What is to be written, one request for an object at most.
    pub(crate) requests: Vec<Request>,
    /// Why nodes cannot have the label of a job, by job.
    pub(crate) label_problems: BTreeMap<Key, Obstacle>,
}

/// Decides fabrics, their nodes and their agents.
pub(crate) fn decide(view: &View<'_>) -> Decision {
    let (mut requests, label_problems) = labels::decide(view);
    requests.extend(agents(view));
    requests.extend(fabric_nodes(view));
    requests.extend(statuses(view));
    Decision {
        requests,
        label_problems,
    }
}

fn agents(view: &View<'_>) -> Vec<Request> {
    let mut requests = Vec::new();
    let none = Members::default();
    for (key, fabric) in view.cache.fabrics.iter() {
        let members = view.membership.members(&key.name).unwrap_or(&none);
        if members.fault.is_some() {
            // Whatever runs goes on until somebody mends the selector.
            continue;
        }
        if view.service_problem.is_some() {
            // Kubernetes would delete it again.
            continue;
        }
        let wanted = agents::daemon_set(view.template, fabric);
        let key = Key::of(&wanted.metadata);
        let existing = view.cache.daemon_sets.get(&key);
        let applied = existing.and_then(|set| set.annotations().get(APPLIED));
        if applied.is_none() || applied != wanted.annotations().get(APPLIED) {
            // One that is deleted meanwhile is not brought back by a late answer.
            requests.push(Request {
                uid: existing.map(uid).unwrap_or_default(),
                ..Request::new::<DaemonSet>(key, Change::Apply(json!(wanted)))
            });
        }
    }
    for (_, set) in view.cache.daemon_sets.iter() {
        let fabric = set.labels().get(FABRIC_LABEL);
        if fabric.is_some_and(|fabric| view.cache.fabrics.named(fabric).is_none())
            && set.metadata.deletion_timestamp.is_none()
        {
            let key = Key::of(&set.metadata);
            requests.push(Request {
                uid: uid(set),
                ..Request::new::<DaemonSet>(key, Change::Delete)
            });
        }
    }
    requests
}

fn fabric_nodes(view: &View<'_>) -> Vec<Request> {
    let mut requests = Vec::new();
    let fabrics = view.cache.fabrics.iter();
    let configurations: BTreeMap<&str, String> = fabrics
        .map(|(key, fabric)| (key.name.as_str(), pod_configuration(fabric)))
        .collect();
    for (node, fabric) in view.membership.nodes() {
        let fabric_node = view.cache.fabric_nodes.named(node);
        let fabric_node = fabric_node.filter(|existing| existing.spec.fabric == fabric);
        let Some(fabric_node) = fabric_node else {
            let owner = view.cache.nodes.named(node).map(uid).unwrap_or_default();
            let manifest = json!({
                "metadata": { "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": node, "uid": owner }
                ] },
                "spec": { "fabric": fabric },
            });
            let key = Key::cluster_scoped(node);
            requests.push(Request::new::<FabricNode>(key, Change::Apply(manifest)));
            continue;
        };
        let state = view.reports.get(node);
        let state = state.filter(|state| state.fabric == fabric);
        let configuration = configurations.get(fabric).map(String::as_str);
        if let Some(status) = node_status(fabric_node, state, configuration, view) {
            requests.push(Request {
                events: node_events(fabric_node.status.as_ref(), &status),
                ..Request::status(fabric_node, &status)
            });
        }
    }
    for (key, node) in view.cache.fabric_nodes.iter() {
        if view.membership.fabric(&key.name).is_none() && node.metadata.deletion_timestamp.is_none()
        {
            requests.push(Request::unless_changed(node, Change::Delete));
        }
    }
    requests
}

/// What has become of a node, each once.
fn node_events(old: Option<&FabricNodeStatus>, new: &FabricNodeStatus) -> Vec<Event> {
    let mut events = new_findings(old, new);
    events.extend(nics_up_again(old, new));
    events.extend(devices::event(old, new));
    events
}

/// Findings that the status did not have before: each is an Event, once.
fn new_findings(old: Option<&FabricNodeStatus>, new: &FabricNodeStatus) -> Vec<Event> {
    let known: &[Finding] = old.map_or(&[], |old| &old.findings);
    let event = |finding: &Finding| Event {
        warning: true,
        reason: finding.reason.clone(),
        note: finding.message.clone(),
    };
    let is_new = |finding: &&Finding| !known.contains(finding);
    new.findings.iter().filter(is_new).map(event).collect()
}

/// Those of several NICs that were down. That one goes down is a finding.
fn nics_up_again(old: Option<&FabricNodeStatus>, new: &FabricNodeStatus) -> Vec<Event> {
    let known: &[NodeNic] = old.map_or(&[], |old| &old.nics);
    let was_down = |nic: &NodeNic| {
        known
            .iter()
            .any(|it| it.address == nic.address && it.interface == nic.interface && !it.up)
    };
    let again = |nic: &&NodeNic| new.nics.len() > 1 && nic.up && was_down(nic);
    let event = |NodeNic {
                     interface, address, ..
                 }: &NodeNic| Event {
        warning: false,
        reason: "NicUp".to_owned(),
        note: format!("{interface} ({address}) is up again"),
    };
    new.nics.iter().filter(again).map(event).collect()
}

/// The status of a node whose pod is to be made for that configuration, if it differs from the
/// written one.
fn node_status(
    node: &FabricNode,
    state: Option<&NodeState>,
    configuration: Option<&str>,
    view: &View<'_>,
) -> Option<FabricNodeStatus> {
    let old = node.status.clone().unwrap_or_default();
    let mut new = old.clone();
    let name = node.name_any();
    let fabric = &node.spec.fabric;
    if is_starting(node, state, view.now) {
        return None;
    }
    let update = match state {
        None if view.led_for < SILENCE && readiness(node).is_some() => return None,
        None if !is_labelled(view, &name) => not_ready(
            "NodeNotLabelled",
            &format!(
                "node {name} has no label {FABRIC_LABEL}={fabric}, so no agent runs there: the operator writes \
                 it; where that lasts, the operator's log says who refuses it"
            ),
        ),
        None => not_ready(
            "AgentMissing",
            &format!(
                "no agent of node {name} has reported; see: kubectl -n {} get pods -l \
                 {FABRIC_LABEL}={fabric} --field-selector spec.nodeName={name}",
                view.template.namespace
            ),
        ),
        Some(state) => {
            copy_report(&mut new, &state.report);
            match foreign_address(&name, &state.report, view) {
                Some(update) => {
                    // Nothing is sent there.
                    new.control_address.clear();
                    update
                }
                None => ready_condition(&name, state, configuration, view),
            }
        }
    };
    let generation = node.metadata.generation.unwrap_or_default();
    new.observed_generation = generation;
    condition::set(&mut new.conditions, update, generation, view.now);
    devices::set_condition(&mut new, state, generation, view);
    (node.status.as_ref() != Some(&new)).then_some(new)
}

/// An agent is called at an address of its Node only: a stolen certificate shall not send the operator elsewhere.
fn foreign_address(name: &str, report: &NodeReport, view: &View<'_>) -> Option<ConditionUpdate> {
    if report.control_address.is_empty() {
        return None;
    }
    let control: Option<SocketAddr> = report.control_address.parse().ok();
    let node = view.cache.nodes.named(name)?;
    let addresses = node.status.addresses.iter().map(|one| &*one.address);
    let ips = addresses.clone();
    let ips: Vec<IpAddr> = ips.filter_map(|one| one.parse().ok()).collect();
    // A cloud provider may give a new Node its addresses late.
    if ips.is_empty() || control.is_some_and(|control| ips.contains(&control.ip())) {
        return None;
    }
    let addresses: Vec<&str> = addresses.collect();
    Some(not_ready(
        "ControlAddressNotOfNode",
        &format!(
            "the agent of node {name} reports control address {}, which is none of the Node's status.addresses \
             ({}), so it is not called: have the agent's --address be one of these",
            report.control_address,
            listed(&addresses)
        ),
    ))
}

/// Whether a node is new, and its agent has reported neither that it can work nor why it cannot.
fn is_starting(node: &FabricNode, state: Option<&NodeState>, now: Timestamp) -> bool {
    let says_nothing =
        state.is_none_or(|state| !state.report.ready && state.report.findings.is_empty());
    let created = node.metadata.creation_timestamp.as_ref();
    let is_new = created.is_some_and(|created| now.duration_since(created.0) < STARTUP);
    says_nothing && is_new && readiness(node).is_none()
}

/// Whether the cluster's node of this name has the label of its fabric.
fn is_labelled(view: &View<'_>, name: &str) -> bool {
    let node = view.cache.nodes.named(name);
    node.is_some_and(|node| labels::has_fabric_label(view, node))
}

/// The condition Ready of a node, by the last report of its agent.
fn ready_condition(
    name: &str,
    state: &NodeState,
    configuration: Option<&str>,
    view: &View<'_>,
) -> ConditionUpdate {
    if state.is_silent(view.now_instant) {
        return not_ready(
            "AgentSilent",
            &format!(
                "the agent of node {name} has not reported for {} s; see: kubectl -n {} get pods -l \
                 {FABRIC_LABEL}={} --field-selector spec.nodeName={name}",
                SILENCE.as_secs(),
                view.template.namespace,
                state.fabric,
            ),
        );
    }
    if state.report.ready {
        let is_pending = configuration.is_some_and(|it| state.report.configuration != it);
        let (reason, message) = match is_pending {
            false => ("AgentReady", "the agent reports and can work".to_owned()),
            true => (CONFIGURATION_PENDING, pending(&state.fabric, view)),
        };
        return ConditionUpdate::new("Ready", true, reason, &message);
    }
    let findings: Vec<&str> = state
        .report
        .findings
        .iter()
        .map(|f| f.message.as_str())
        .collect();
    let cause = if findings.is_empty() {
        "it does not say why".to_owned()
    } else {
        findings.join("; ")
    };
    not_ready(
        "AgentNotReady",
        &format!("the agent of node {name} cannot work: {cause}"),
    )
}

fn pending(fabric: &str, view: &View<'_>) -> String {
    format!(
        "the agent can work, but with an earlier configuration of fabric {fabric} (nics, ports, roots, transport), \
         until its pod is replaced; see: kubectl -n {} rollout status daemonset/{}",
        view.template.namespace,
        agents::name(fabric),
    )
}

fn not_ready(reason: &str, message: &str) -> ConditionUpdate {
    ConditionUpdate::new("Ready", false, reason, message)
}

/// Copies what an agent reports into the status of its node.
fn copy_report(status: &mut FabricNodeStatus, report: &NodeReport) {
    let ports = report.ports.unwrap_or_default();
    let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let expires = i64::try_from(report.certificate_expires_unix_s).ok();
    let expires = expires.and_then(|second| Timestamp::from_second(second).ok());
    *status = FabricNodeStatus {
        observed_generation: status.observed_generation,
        conditions: std::mem::take(&mut status.conditions),
        control_address: report.control_address.clone(),
        data_address: report.data_address.clone(),
        interface: report.interface.clone(),
        nics: (report.nics.iter())
            .map(|nic| NodeNic {
                interface: nic.interface.clone(),
                address: nic.address.clone(),
                mbps: nic.mbps,
                up: nic.up,
            })
            .collect(),
        devices: devices::counted(report, status.devices),
        volumes_in_use: report.volumes_in_use,
        mtu: report.mtu,
        link_mbps: report.link_mbps,
        numa_node: report.numa_node,
        pcie_root: report.pcie_root.clone(),
        ports: NodePorts {
            first: small(ports.first),
            count: small(ports.count),
        },
        version: report.version.clone(),
        configuration: report.configuration.clone(),
        certificate_expires: expires
            .filter(|time| time.as_second() > 0)
            .map(condition::whole_seconds),
        findings: report
            .findings
            .iter()
            .map(|f| Finding {
                reason: f.reason.clone(),
                message: f.message.clone(),
            })
            .collect(),
        leader_epoch: status.leader_epoch,
    };
}

fn statuses(view: &View<'_>) -> Vec<Request> {
    let mut requests = Vec::new();
    for (key, fabric) in view.cache.fabrics.iter() {
        if let Some(request) = in_use::finalizer(fabric, view) {
            requests.push(request);
            continue;
        }
        let Some(members) = view.membership.members(&key.name) else {
            continue;
        };
        let status = fabric_status(fabric, members, view);
        if fabric.status.as_ref() != Some(&status) {
            requests.push(Request {
                events: in_use::event(fabric.status.as_ref(), &status),
                ..Request::status(fabric, &status)
            });
        }
    }
    requests
}

fn fabric_status(fabric: &RdmaFabric, members: &Members, view: &View<'_>) -> FabricStatus {
    let mut status = fabric.status.clone().unwrap_or_default();
    let generation = fabric.metadata.generation.unwrap_or_default();
    let name = fabric.name_any();
    let (ready, waiting): (Vec<&str>, Vec<&str>) = (members.nodes.iter().map(String::as_str))
        .partition(|node| is_ready(view.cache, node, &name));
    let selected = members.nodes.len();
    // That they are ready was written by an earlier operator.
    let without_report = match view.led_for < SILENCE {
        true => ready
            .iter()
            .filter(|node| !view.reports.contains_key(**node))
            .count(),
        false => 0,
    };
    status.observed_generation = generation;
    status.nodes = NodeCount {
        selected: u32::try_from(selected).unwrap_or(u32::MAX),
        ready: u32::try_from(selected - waiting.len()).unwrap_or(u32::MAX),
    };
    let (holds, reason, message) = if let Some(fault) = &members.fault {
        (Some(false), "SelectorInvalid", fault.clone())
    } else if selected == 0 {
        let text = "spec.nodeSelector selects no node that is free: label the nodes, or correct it";
        (Some(false), "NoNodes", text.to_owned())
    } else if without_report > 0 {
        let text = format!(
            "a new operator leads: the agents of {without_report} of {selected} nodes have not reported to it yet"
        );
        (None, "AgentsNotHeard", text)
    } else if waiting.is_empty() {
        (
            Some(true),
            "NodesReady",
            format!("{selected} of {selected} nodes are ready"),
        )
    } else {
        let text = format!(
            "{} of {selected} nodes are not ready: {}; see: kubectl get fabricnodes",
            waiting.len(),
            listed(&waiting)
        );
        (Some(false), "NodesNotReady", text)
    };
    let ready = match holds {
        Some(holds) => ConditionUpdate::new("Ready", holds, reason, &message),
        None => ConditionUpdate::unknown("Ready", reason, &message),
    };
    let updates = [
        Some(ready),
        Some(conflict(members)),
        Some(agents_applied(fabric, view)),
        in_use::condition(fabric, view),
    ];
    for update in updates.into_iter().flatten() {
        condition::set(&mut status.conditions, update, generation, view.now);
    }
    status
}

/// Whether the DaemonSet of the fabric's agents is as the chart's values and the fabric's spec say.
fn agents_applied(fabric: &RdmaFabric, view: &View<'_>) -> ConditionUpdate {
    let name = agents::name(&fabric.name_any());
    let daemon_set = Key {
        namespace: view.template.namespace.clone(),
        name: name.clone(),
    };
    if let Some(problem) = view.service_problem {
        let text = format!(
            "{problem}: agents find the operator by it, and Kubernetes deletes DaemonSet {name} with a Service that is \
             deleted; helm upgrade with the same values makes the Service again"
        );
        let text = condition::truncate(&text);
        return ConditionUpdate::new("AgentsApplied", false, "ServiceMissing", &text);
    }
    match view.refused.get(&ObjectId::of::<DaemonSet>(daemon_set)) {
        None => ConditionUpdate::new(
            "AgentsApplied",
            true,
            "Applied",
            "the DaemonSet is as it should be",
        ),
        Some(problem) => {
            let text = format!(
                "DaemonSet {name} cannot be written, so the agents stay as they are: {problem}; correct the values \
                 of the chart below agent, or the fabric's spec"
            );
            ConditionUpdate::new(
                "AgentsApplied",
                false,
                "WriteRefused",
                &condition::truncate(&text),
            )
        }
    }
}

fn conflict(members: &Members) -> ConditionUpdate {
    if members.taken_by_older.is_empty() {
        let text = "no other fabric has its nodes";
        return ConditionUpdate::new("Conflicting", false, "NoConflict", text);
    }
    let nodes: Vec<&str> = members.taken_by_older.keys().map(String::as_str).collect();
    let fabrics: BTreeSet<&str> = members
        .taken_by_older
        .values()
        .map(String::as_str)
        .collect();
    let fabrics: Vec<&str> = fabrics.into_iter().collect();
    let text = format!(
        "older fabrics have nodes that spec.nodeSelector selects: {} (of {}); make the selectors \
         apart",
        listed(&nodes),
        listed(&fabrics)
    );
    ConditionUpdate::new("Conflicting", true, "NodesTaken", &text)
}

/// A node of a fabric whose agent reports that it can work.
pub(crate) fn is_ready(cache: &Cache, node: &str, fabric: &str) -> bool {
    let node = cache
        .fabric_nodes
        .named(node)
        .filter(|node| node.spec.fabric == fabric);
    node.and_then(readiness)
        .is_some_and(|condition| condition.status == "True")
}

/// Whether the agent of a node that is ready works with an earlier configuration of its fabric.
pub(crate) fn is_configuration_pending(cache: &Cache, node: &str) -> bool {
    let node = cache.fabric_nodes.named(node).and_then(readiness);
    node.is_some_and(|condition| condition.reason == CONFIGURATION_PENDING)
}

#[cfg(test)]
mod tests;
