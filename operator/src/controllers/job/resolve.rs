//! From what a job says to what the agents are asked: nodes, locations, addresses, the network between.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use weft_crds::{Algorithm, Overwrite, Strategy, Symlinks, TransferJob};
use weft_planner::Topology;
use weft_proto::agent::v1::{self as agent, JobName};
use weft_transfer::{
    AgentEndpoint, DestinationsUpdate, LeaderContext, NodeLocation, Spec, Timing, local_copy_name,
    node_of,
};

use crate::controllers::{
    condition::listed,
    fabric::decide::{is_configuration_pending, is_ready},
    job::{
        job_side::{JobSide, check_not_nested, locate},
        network::{endpoints, payload_share, topology},
        object_source,
        obstacle::{Obstacle, permanent, temporary},
        origin::{Origin, check_not_deleted, fabric_of_job, origin, selected},
    },
    kinds::Cache,
    membership::Membership,
};

/// What a transfer needs.
#[derive(Debug, Clone)]
pub(crate) struct TransferRequest {
    /// The fabric that it is in.
    pub(crate) fabric: String,
    /// What is to be moved, and where.
    pub(crate) spec: Spec,
    /// The agents of its nodes, of those that have reported an address.
    pub(crate) endpoints: Vec<AgentEndpoint>,
}

impl TransferRequest {
    /// The nodes that are to have a copy.
    fn destination_nodes(&self) -> Vec<&str> {
        let locations = self.spec.destinations.iter();
        locations.map(|location| node_of(&location.node)).collect()
    }
}

/// Everything that a job needs to begin, or every obstacle that can be found in one pass.
/// Destinations that are not ready are in it: the others need not wait for them.
pub(crate) fn resolve(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
) -> Result<TransferRequest, Vec<Obstacle>> {
    let transfer = build_transfer(job, cache, membership, leader_epoch, &BTreeSet::new())?;
    // A job that an earlier leader has begun there goes on: the fabric is kept until it is over.
    let status = job.status.as_ref();
    if !status.is_some_and(|it| it.phase.is_running() && it.fabric == transfer.fabric) {
        check_not_deleted(&transfer.fabric, cache).map_err(|obstacle| vec![obstacle])?;
    }
    let file = job.spec.source.file.as_ref();
    let source = file.map(|file| file.node.as_str());
    let destination_nodes = transfer.destination_nodes();
    let found = unready(cache, &transfer.fabric, source, &destination_nodes);
    match found.is_empty() {
        true => Ok(transfer),
        false => Err(found),
    }
}

/// The obstacles at a job's agents: not ready, or some with an earlier configuration than the others.
fn unready(
    cache: &Cache,
    fabric: &str,
    source: Option<&str>,
    destination_nodes: &[&str],
) -> Vec<Obstacle> {
    let is_not_ready = |node: &&str| !is_ready(cache, node, fabric);
    let mut found = Vec::new();
    if let Some(source) = source.filter(is_not_ready) {
        let text =
            format!("spec.source.file.node: {source} is not ready; see: kubectl get fabricnodes");
        found.push(temporary("NodesNotReady", text));
    } else if !destination_nodes.is_empty() && destination_nodes.iter().all(is_not_ready) {
        let text = format!(
            "spec.destinations: none of the nodes is ready: {}; it begins when one is; see: kubectl \
             get fabricnodes",
            listed(destination_nodes)
        );
        found.push(temporary("NodesNotReady", text));
    }
    let nodes = destination_nodes.iter().copied().chain(source);
    found.extend(mixed_configurations(cache, fabric, nodes));
    found
}

/// Destinations that a job begins without, for who plans it.
pub(crate) fn late_destinations(transfer: &TransferRequest, cache: &Cache) -> Option<Obstacle> {
    let mut late = transfer.destination_nodes();
    late.retain(|node| !is_ready(cache, node, &transfer.fabric));
    let text = format!(
        "{} of its destinations are not ready: {}; the others do not wait for them; see: kubectl get \
         fabricnodes",
        late.len(),
        listed(&late)
    );
    (!late.is_empty()).then(|| temporary("NodesNotReady", text))
}

/// Agents of which some, and not all, work with an earlier configuration: they may refuse each other
/// (SettingsDiffer) until the pods are replaced.
fn mixed_configurations<'a>(
    cache: &Cache,
    fabric: &str,
    nodes: impl Iterator<Item = &'a str>,
) -> Option<Obstacle> {
    let ready: BTreeSet<&str> = nodes.filter(|node| is_ready(cache, node, fabric)).collect();
    let is_pending = |node: &&str| is_configuration_pending(cache, node);
    let pending: Vec<&str> = ready.iter().copied().filter(is_pending).collect();
    if pending.is_empty() || pending.len() == ready.len() {
        return None;
    }
    Some(temporary(
        "ConfigurationPending",
        format!(
            "the agents of {} of its nodes work with an earlier configuration of fabric {fabric} than the others: \
             {}; the job begins when their pods are replaced; see: kubectl get fabricnodes",
            pending.len(),
            listed(&pending)
        ),
    ))
}

/// Who is to have a copy by now, and how they are reached; `None` while that cannot be said. The
/// endpoints and the topology also cover the destinations that the job has already.
pub(crate) fn destinations_update(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    existing: &BTreeSet<&str>,
) -> Option<(DestinationsUpdate, Vec<AgentEndpoint>)> {
    let TransferRequest {
        spec, endpoints, ..
    } = build_transfer(job, cache, membership, 0, existing).ok()?;
    let nodes = spec.destinations.iter().chain([&spec.source]);
    let nodes = nodes.map(|location| node_of(&location.node));
    let pending = nodes.filter(|node| is_configuration_pending(cache, node));
    let configuration_pending = pending.map(str::to_owned).collect();
    let destinations_update = DestinationsUpdate {
        configuration_pending,
        destinations: spec.destinations,
        topology: spec.topology,
        payload_share: spec.payload_share,
    };
    Some((destinations_update, endpoints))
}

fn build_transfer(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
    existing: &BTreeSet<&str>,
) -> Result<TransferRequest, Vec<Obstacle>> {
    let one = |obstacle| vec![obstacle];
    let origin = origin(job).map_err(one)?;
    let (fabric_name, fabric) = fabric_of_job(job, origin, cache, membership).map_err(one)?;
    let mut found = Vec::new();
    let (source, from) = match origin {
        Origin::File(file) => {
            let from = locate(job, fabric, cache, JobSide::Source(file));
            (Some(file.node.as_str()), noted(from, &mut found))
        }
        Origin::Object(object) => {
            found.extend(object_source::allowed(object, fabric).err());
            (None, None)
        }
    };
    // The root and the path are the same on all nodes.
    let to = locate(
        job,
        fabric,
        cache,
        JobSide::Destination(&job.spec.destinations),
    );
    let to = noted(to, &mut found);
    let nodes = destinations(job, fabric_name, cache, membership);
    let nodes = noted(nodes, &mut found);
    let copies = match (&to, &nodes) {
        (Some(to), Some(nodes)) => noted(copies(nodes, to, from.as_ref()), &mut found),
        _ => None,
    };
    let copies = copies.unwrap_or_default();
    let has_none = copies.is_empty() && (found.is_empty() || nodes == Some(Vec::new()));
    let nodes = nodes.unwrap_or_default();
    if has_none {
        let is_listed = job.spec.destinations.nodes.is_some();
        found.push(no_destinations(fabric_name, source, is_listed));
    }
    let readers = match origin {
        Origin::Object(_) => object_source::readers(job, &copies, cache, fabric),
        // `readers` looks at all jobs, and a file needs none.
        Origin::File(_) => Vec::new(),
    };
    let is_reader = |copy: &&NodeLocation| readers.first() == Some(&copy.node);
    let reader = || copies.iter().find(is_reader).or(copies.first()).cloned();
    let names: BTreeSet<&str> = source
        .into_iter()
        .chain(nodes.iter().map(String::as_str))
        .collect();
    let (true, Some(from)) = (found.is_empty(), from.or_else(reader)) else {
        let others = names.into_iter().filter(|node| Some(*node) != source);
        let others: Vec<&str> = others.collect();
        found.extend(unready(cache, fabric_name, source, &others));
        return Err(found);
    };
    let names: BTreeSet<&str> = names.union(existing).copied().collect();
    Ok(TransferRequest {
        fabric: fabric_name.to_owned(),
        endpoints: endpoints(cache, fabric_name, &names),
        spec: Spec {
            topology: topology(cache, fabric, &names),
            payload_share: payload_share(cache, &names),
            object: match origin {
                Origin::File(_) => None,
                Origin::Object(object) => Some(object_source::object(job, object, readers, cache)),
            },
            ..spec(job, cache, from, copies, leader_epoch)
        },
    })
}

/// Adds an obstacle to those that were found.
fn noted<T>(result: Result<T, Obstacle>, found: &mut Vec<Obstacle>) -> Option<T> {
    result.map_err(|obstacle| found.push(obstacle)).ok()
}

/// Where copies shall be, without the one that is there already: the source, where that is a node.
fn copies(
    nodes: &[String],
    to: &NodeLocation,
    from: Option<&NodeLocation>,
) -> Result<Vec<NodeLocation>, Obstacle> {
    let mut copies = Vec::new();
    for node in nodes {
        let copy = NodeLocation {
            node: node.clone(),
            ..to.clone()
        };
        match from {
            // It is where it shall be.
            Some(from) if copy == *from => {}
            Some(from) if copy.node == from.node => {
                check_not_nested(&copy, from)?;
                let node = local_copy_name(node);
                copies.push(NodeLocation { node, ..copy });
            }
            _ => copies.push(copy),
        }
    }
    Ok(copies)
}

/// Whom to tell that a job is over, as far as anybody knows them: those it says now, and those its
/// status names, and those that report a copy of it. `None` where its source or its fabric is not known. The endpoints
/// may be empty: then nobody can be told.
pub(crate) fn to_cancel(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
    with_copy: &BTreeSet<String>,
) -> Option<TransferRequest> {
    let shown = job.status.iter().flat_map(|status| &status.destinations);
    let mut names: BTreeSet<String> = shown.map(|destination| destination.node.clone()).collect();
    let source = match origin(job).ok()? {
        Origin::File(file) => file.node.clone(),
        // The agent of a node that does not read knows the job as a destination.
        Origin::Object(_) => {
            let reader = job.status.as_ref().map(|status| status.reader.clone());
            let reader = reader.filter(|reader| !reader.is_empty());
            reader.or_else(|| names.first().cloned())?
        }
    };
    // Nodes may have left the fabric since, or the cluster.
    let written = job.status.as_ref().map(|status| status.fabric.clone());
    let of_nodes = || {
        let shown = names.iter().map(String::as_str);
        let others = with_copy.iter().map(String::as_str);
        let mut nodes = shown.chain(others).chain([source.as_str()]);
        nodes.find_map(|node| Some(cache.fabric_nodes.named(node)?.spec.fabric.clone()))
    };
    let fabric = written
        .filter(|fabric| !fabric.is_empty())
        .or_else(of_nodes)?;
    names.extend(destinations(job, &fabric, cache, membership).unwrap_or_default());
    names.extend(with_copy.iter().cloned());
    let to = &job.spec.destinations;
    let trim_slash = |path: &str| path.trim_end_matches('/').to_owned();
    let file = job.spec.source.file.as_ref();
    let (root, path) = file.map_or((&to.root, &to.path), |file| (&file.root, &file.path));
    let is_elsewhere = (&to.root, trim_slash(&to.path)) != (root, trim_slash(path));
    if file.is_some() && names.remove(&source) && is_elsewhere {
        names.insert(local_copy_name(&source));
    }
    let location = |node: &str, root: &str, path: &str| NodeLocation {
        node: node.to_owned(),
        root: root.to_owned(),
        path: path.to_owned(),
    };
    let copies = names
        .iter()
        .map(|node| location(node, &to.root, &to.path))
        .collect();
    let from = location(&source, root, path);
    let all: BTreeSet<&str> = names
        .iter()
        .map(|name| node_of(name))
        .chain([source.as_str()])
        .collect();
    Some(TransferRequest {
        endpoints: endpoints(cache, &fabric, &all),
        fabric,
        spec: spec(job, cache, from, copies, leader_epoch),
    })
}

fn spec(
    job: &TransferJob,
    cache: &Cache,
    source: NodeLocation,
    destinations: Vec<NodeLocation>,
    leader_epoch: u64,
) -> Spec {
    let namespace = job.namespace().unwrap_or_default();
    let attempts_before = job.status.as_ref().map_or(0, |status| status.attempt);
    Spec {
        uid: job.uid().unwrap_or_default(),
        name: Some(JobName {
            namespace_uid: cache
                .namespaces
                .named(&namespace)
                .and_then(|namespace| namespace.uid())
                .unwrap_or_default(),
            namespace,
            name: job.name_any(),
        }),
        source,
        symlinks: match job.spec.source.file.as_ref().map(|file| file.symlinks) {
            Some(Symlinks::Follow) => agent::Symlinks::Follow,
            Some(Symlinks::Refuse) | None => agent::Symlinks::Refuse,
        },
        object: None,
        destinations,
        topology: Topology::default(),
        strategy: match job.spec.strategy {
            Strategy::Auto => weft_planner::Strategy::Auto,
            Strategy::Direct => weft_planner::Strategy::Direct,
            Strategy::Chain => weft_planner::Strategy::Chain,
            Strategy::Binomial => weft_planner::Strategy::Binomial,
        },
        payload_share: weft_planner::PAYLOAD_SHARE,
        algorithm: match job.spec.verification.algorithm {
            Algorithm::Blake3 => agent::Algorithm::Blake3,
            Algorithm::Xxh3 => agent::Algorithm::Xxh3,
        },
        expect: job.spec.verification.expect.clone().unwrap_or_default(),
        overwrite: match job.spec.overwrite {
            Overwrite::IfDifferent => agent::Overwrite::IfDifferent,
            Overwrite::Never => agent::Overwrite::Never,
            Overwrite::Always => agent::Overwrite::Always,
        },
        backoff_limit: job.spec.backoff_limit,
        timing: Timing::CLUSTER,
        leader: LeaderContext {
            leader_epoch,
            generation: job
                .metadata
                .generation
                .and_then(|g| u64::try_from(g).ok())
                .unwrap_or(1),
            attempts_before,
        },
    }
}

fn destinations(
    job: &TransferJob,
    fabric: &str,
    cache: &Cache,
    membership: &Membership,
) -> Result<Vec<String>, Obstacle> {
    let to = &job.spec.destinations;
    if let Some(nodes) = &to.nodes {
        let others: Vec<&str> = nodes
            .iter()
            .filter(|node| membership.fabric(node) != Some(fabric))
            .map(String::as_str)
            .collect();
        let unknown: Vec<&str> = others
            .iter()
            .copied()
            .filter(|node| cache.nodes.named(node).is_none())
            .collect();
        if !unknown.is_empty() {
            let what = match unknown.len() {
                1 => "there is no node",
                _ => "there are no nodes",
            };
            let text = format!(
                "spec.destinations.nodes: {what} {}; `kubectl weft roots` lists the nodes there are",
                listed(&unknown)
            );
            return Err(temporary("NodeNotInFabric", text));
        }
        if !others.is_empty() {
            let text = format!(
                "spec.destinations.nodes: {} not of fabric {fabric}, which the {} is of; label \
                 them so that it selects them, or name nodes that `kubectl weft roots` lists",
                match others.len() {
                    1 => format!("node {} is", others[0]),
                    _ => format!("nodes {} are", listed(&others)),
                },
                match job.spec.source.file {
                    Some(_) => "source",
                    None => "first node",
                }
            );
            return Err(temporary("NodeNotInFabric", text));
        }
        return Ok(nodes.clone());
    }
    let selected = selected(job, cache, membership)?.into_iter();
    let members = selected.filter(|(_, of)| *of == fabric);
    Ok(members.map(|(node, _)| node.to_owned()).collect())
}

fn no_destinations(fabric: &str, source: Option<&str>, is_listed: bool) -> Obstacle {
    let Some(source) = source else {
        let text = format!(
            "spec.destinations: no node of fabric {fabric} matches; it begins when one does: label a \
             node"
        );
        return temporary("NoDestinations", text);
    };
    if is_listed {
        let text = format!(
            "spec.destinations.nodes: names only {source}, which is the source and has it at \
                 that path: name another node, root or path"
        );
        return permanent("NoDestinations", text);
    }
    temporary(
        "NoDestinations",
        format!(
            "spec.destinations: no node of fabric {fabric} besides {source}, the source, matches; \
             it begins when one does: label a node"
        ),
    )
}

#[cfg(test)]
mod tests;
