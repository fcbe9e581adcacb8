//! What the page of a fabric shows of objects, and of what this process is doing. Rates of nodes come from agents.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use kube::ResourceExt as _;
use weft_crds::{DestinationState, FabricNode, TransferJob, TransferJobStatus, doctor};
use weft_page::{Destination, Devices, Fabric, Finding, Job, Leaf, Node, NodeState, Phase};
use weft_transfer::AgentEndpoint;

use super::{QueryView, running};
use crate::controllers::{
    cache::readiness,
    job::{network, snapshot::Snapshot, status},
};

/// Jobs of a page: five times those that a browser must show at once.
const JOBS_MAX: usize = 5_000;
/// Destinations that are named of a job that is over, and of one that is under way: those have arrows.
const DESTINATIONS_OVER: usize = 4;
const DESTINATIONS_UNDER_WAY: usize = 64;
/// Letters of a text that an agent or a job has.
const LETTERS_MAX: usize = 500;

/// How the agents of a fabric are reached, and what they are called.
pub(crate) struct Agents {
    pub(crate) endpoints: Vec<AgentEndpoint>,
    /// The nodes of data addresses.
    pub(crate) names: BTreeMap<String, String>,
}

/// A fabric with its nodes and jobs; nothing where there is no such fabric.
pub(crate) fn fabric(view: &QueryView<'_>, name: &str) -> Option<Fabric> {
    let object = view.cache.fabrics.named(name)?;
    let nodes: Vec<&FabricNode> = nodes(view, name).collect();
    let mut fabric = Fabric::new(name, SystemTime::from(view.now));
    let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let topology = network::topology(view.cache, object, &names);
    let known = topology.nodes.into_iter();
    let leaf_of: BTreeMap<String, String> = known.map(|node| (node.name, node.leaf)).collect();
    let mut leaves: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
    for one in &nodes {
        let one = node(one, view);
        let leaf = leaf_of.get(&one.name).map_or("", String::as_str);
        leaves.entry(leaf).or_default().push(one);
    }
    let leaf = |(name, nodes): (&str, Vec<Node>)| Leaf {
        name: name.to_owned(),
        nodes,
    };
    fabric.leaves = leaves.into_iter().map(leaf).collect();

    let mut found = Vec::new();
    doctor::of_fabric(object, &mut found);
    let operator = env!("CARGO_PKG_VERSION");
    found.extend(doctor::of_versions(nodes.iter().copied(), operator));
    found.extend(doctor::of_mtus(nodes.iter().copied()));
    fabric.findings = found.into_iter().map(finding).collect();
    let mut note = |text: &str| fabric.notes.push(text.to_owned());
    note("Findings are what objects say. kubectl weft doctor also measures.");
    if object.spec.topology.leaf_label.is_none() {
        note(
            "All nodes are drawn at one leaf: spec.topology.leafLabel of the RdmaFabric names the label that says a \
             node's leaf.",
        );
    }
    write_jobs(view, &mut fabric);
    Some(fabric)
}

/// The agents of a fabric whose addresses are known.
pub(crate) fn agents(view: &QueryView<'_>, name: &str) -> Agents {
    let mut agents = Agents {
        endpoints: Vec::new(),
        names: BTreeMap::new(),
    };
    for node in nodes(view, name) {
        let Some(status) = &node.status else {
            continue;
        };
        let node = node.name_any();
        let others = status.nics.iter().map(|nic| &nic.address);
        for address in others.chain([&status.data_address]) {
            agents.names.insert(address.clone(), node.clone());
        }
        if !status.control_address.is_empty() {
            let address = status.control_address.clone();
            agents.endpoints.push(AgentEndpoint { node, address });
        }
    }
    agents
}

fn nodes<'a>(view: &QueryView<'a>, fabric: &str) -> impl Iterator<Item = &'a FabricNode> {
    let nodes = view.cache.fabric_nodes.iter().map(|(_, node)| node);
    nodes.filter(move |node| node.spec.fabric == fabric)
}

fn node(node: &FabricNode, view: &QueryView<'_>) -> Node {
    let mut found = Vec::new();
    doctor::of_node(node, view.now, &mut found);
    let devices = node.status.as_ref().and_then(|status| status.devices);
    Node {
        name: node.name_any(),
        state: match readiness(node).map(|condition| &*condition.status) {
            Some("True") => NodeState::Ready,
            Some("False") => NodeState::NotReady,
            _ => NodeState::Unknown,
        },
        devices: devices.map(|devices| Devices {
            in_use: devices.in_use,
            total: devices.total,
            unhealthy: devices.unhealthy,
        }),
        findings: found.into_iter().map(finding).collect(),
        ..Node::default()
    }
}

fn finding(found: doctor::Finding) -> Finding {
    Finding {
        problem: shortened(&found.problem),
        fix: found.fix,
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LETTERS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn write_jobs(view: &QueryView<'_>, fabric: &mut Fabric) {
    let all = view.cache.jobs.iter().map(|(_, job)| job);
    let of_fabric = all.filter_map(|job| {
        let snapshot = running(view, job).map(AsRef::as_ref);
        (fabric_of(view, job, snapshot)? == fabric.name).then_some((job, snapshot))
    });
    let mut chosen: Vec<(&TransferJob, Option<&Snapshot>)> = of_fabric.collect();
    if chosen.len() > JOBS_MAX {
        let left_out = chosen.len() - JOBS_MAX;
        let phase = |job: &TransferJob| {
            (job.status.as_ref()).map_or(Phase::Pending, |status| phase(status.phase))
        };
        chosen.sort_by_key(|(job, snapshot)| (snapshot.is_none(), phase(job)));
        chosen.truncate(JOBS_MAX);
        fabric.notes.push(format!(
            "{left_out} more jobs are left out, first those that are over; see: kubectl get transferjobs -A"
        ));
    }
    let job = |(one, snapshot): (&TransferJob, Option<&Snapshot>)| match (snapshot, &one.status) {
        (Some(snapshot), _) => job(one, &status::transfer_status(one, snapshot, view.now)),
        (None, Some(status)) => job(one, status),
        (None, None) => job(one, &TransferJobStatus::default()),
    };
    fabric.jobs = chosen.into_iter().map(job).collect();
}

/// The fabric that a job runs on. Before that is known it is that of its source or its first destination, or the only one.
fn fabric_of<'a>(
    view: &QueryView<'a>,
    job: &'a TransferJob,
    snapshot: Option<&'a Snapshot>,
) -> Option<&'a str> {
    let running = snapshot.map(|snapshot| &*snapshot.fabric);
    let written = job.status.as_ref().map(|status| &*status.fabric);
    if let Some(known) = running.or(written).filter(|fabric| !fabric.is_empty()) {
        return Some(known);
    }
    let source = job.spec.source.file.as_ref().map(|file| &file.node);
    let to = job.spec.destinations.nodes.as_ref();
    if let Some(node) = source.or_else(|| to?.first()) {
        let node = view.cache.fabric_nodes.named(node)?;
        return Some(&node.spec.fabric);
    }
    let mut fabrics = view.cache.fabrics.iter();
    let (only, _) = fabrics.next()?;
    fabrics.next().is_none().then_some(&*only.name)
}

fn job(job: &TransferJob, status: &TransferJobStatus) -> Job {
    let positive = |number: i64| u64::try_from(number).unwrap_or_default();
    let phase = phase(status.phase);
    let of_one = status.manifest.as_ref().map(|manifest| manifest.bytes);
    let named = match phase.is_under_way() {
        true => DESTINATIONS_UNDER_WAY,
        false => DESTINATIONS_OVER,
    };
    let states = status.destinations.iter().map(|one| Destination {
        node: one.node.clone(),
        done: match (one.state, of_one) {
            (DestinationState::Verified, _) => Some(1.0),
            (_, Some(bytes @ 1..)) => Some(one.bytes as f64 / bytes as f64),
            _ => None,
        },
        state: format!("{:?}", one.state),
    });
    let wanted = job.spec.destinations.nodes.as_deref().unwrap_or_default();
    let mut to: Vec<Destination> = states.take(named).collect();
    if to.is_empty() {
        let nodes = wanted.iter().take(named).cloned();
        to.extend(nodes.map(|node| Destination {
            node,
            ..Destination::default()
        }));
    }
    let source = &job.spec.source;
    let file = source.file.as_ref().map(|file| &file.node);
    let object = source.object.as_ref().map(|object| &object.url);
    Job {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        phase,
        done: positive(status.bytes),
        total: (status.bytes_total > 0 || of_one.is_some()).then(|| positive(status.bytes_total)),
        rate: positive(status.bytes_per_second),
        from: file.or(object).cloned().unwrap_or_default(),
        destinations: wanted.len().max(status.counts.total as usize),
        to,
        reason: shortened(&status.message),
    }
}

fn phase(phase: weft_crds::Phase) -> Phase {
    match phase {
        weft_crds::Phase::Pending => Phase::Pending,
        weft_crds::Phase::Waiting => Phase::Waiting,
        weft_crds::Phase::Planning => Phase::Planning,
        weft_crds::Phase::Preparing => Phase::Preparing,
        weft_crds::Phase::Transferring => Phase::Transferring,
        weft_crds::Phase::Suspended => Phase::Suspended,
        weft_crds::Phase::Complete => Phase::Complete,
        weft_crds::Phase::Failed => Phase::Failed,
    }
}
