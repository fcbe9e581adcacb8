//! From what a job says to what the agents are asked: nodes, places, addresses, the network between.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, core::SelectorExt as _};
use weft_crds::{Algorithm, FileSource, Overwrite, RdmaFabric, Strategy, TransferJob};
use weft_planner::Topology;
use weft_proto::agent::v1::{self as agent, JobName};
use weft_transfer::{
    Endpoint, LeaderContext, MembershipUpdate, Place, Spec, Timing, local, node_of,
};

use crate::controllers::{
    fabric::decide::{is_configuration_pending, is_ready, listed},
    job::{
        network::{endpoints, payload_share, topology},
        obstacle::{Obstacle, wait},
        origin::{Origin, fabric_of_job, origin},
        place::{JobEnd, apart, place},
        reading,
    },
    kinds::Cache,
    membership::{Membership, selector},
};

/// What a transfer needs.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    /// The fabric that it is in.
    pub(crate) fabric: String,
    /// What is to be moved, and where.
    pub(crate) spec: Spec,
    /// The agents of all nodes in it.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Everything that a job needs to begin, or what is in its way. Destinations that are not ready are
/// in it: the others need not wait for them.
pub(crate) fn resolve(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
) -> Result<Transfer, Obstacle> {
    let transfer = build_transfer(job, cache, membership, leader_epoch, &BTreeSet::new())?;
    let awake = |place: &Place| is_ready(cache, node_of(&place.node), &transfer.fabric);
    let source = transfer.spec.source.node.as_str();
    let source = transfer.spec.object.is_none().then_some(source);
    if source.is_some() && !awake(&transfer.spec.source) {
        let text = format!(
            "spec.source.file.node: {} is not ready; see: kubectl get fabricnodes",
            transfer.spec.source.node
        );
        return Err(wait("NodesNotReady", text));
    }
    let destinations = &transfer.spec.destinations;
    if !destinations.iter().any(awake) {
        let asleep: Vec<&str> = destinations
            .iter()
            .map(|copy| node_of(&copy.node))
            .collect();
        let text = format!(
            "spec.destinations: none of the nodes is ready: {}; it begins when one is; see: kubectl \
             get fabricnodes",
            listed(&asleep)
        );
        return Err(wait("NodesNotReady", text));
    }
    let nodes = destinations.iter().map(|copy| node_of(&copy.node));
    match mixed_configurations(cache, &transfer.fabric, nodes.chain(source)) {
        Some(obstacle) => Err(obstacle),
        None => Ok(transfer),
    }
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
    Some(wait(
        "ConfigurationPending",
        format!(
            "the agents of {} of its nodes work with an earlier configuration of fabric {fabric} than the others: \
             {}; the job begins when their pods are replaced; see: kubectl get fabricnodes",
            pending.len(),
            listed(&pending)
        ),
    ))
}

/// What is in a job's way, as far as one thing does not hide the other; for who plans a job.
pub(crate) fn obstacles(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let Ok(origin) = origin(job) else {
        return found;
    };
    let Ok((name, fabric)) = fabric_of_job(job, origin, cache, membership) else {
        return found;
    };
    let file = match origin {
        Origin::File(file) => {
            found.extend(place(job, fabric, cache, JobEnd::Source(file)).err());
            Some(file)
        }
        Origin::Object(object) => {
            found.extend(reading::allowed(object, fabric).err());
            None
        }
    };
    let source = file.map(|file| file.node.as_str());
    let to = &job.spec.destinations;
    let side = JobEnd::Destination {
        // The root is the same on all nodes.
        node: source.unwrap_or_default(),
        to,
    };
    found.extend(place(job, fabric, cache, side).err());
    let mut names: Vec<String> = source.into_iter().map(str::to_owned).collect();
    match destinations(job, name, cache, membership) {
        Ok(nodes) => {
            let is_elsewhere = |file: &FileSource| {
                file.root != to.root
                    || file.path.trim_end_matches('/') != to.path.trim_end_matches('/')
            };
            let is_there = file.is_some_and(|file| !is_elsewhere(file));
            let others = nodes.iter().filter(|node| Some(node.as_str()) != source);
            names.extend(others.cloned());
            if names.len() <= 1 && (nodes.is_empty() || is_there) {
                let is_listed = to.nodes.is_some();
                found.push(no_destinations(name, source, is_listed));
            }
        }
        Err(obstacle) => found.push(obstacle),
    }
    let all = names.iter().map(String::as_str);
    found.extend(mixed_configurations(cache, name, all));
    names.retain(|node| !is_ready(cache, node, name));
    if !names.is_empty() {
        let asleep: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = format!(
            "{} of its nodes are not ready: {}; a destination is waited for while the others go on, \
             a file's node holds all up; see: kubectl get fabricnodes",
            asleep.len(),
            listed(&asleep)
        );
        found.push(wait("NodesNotReady", text));
    }
    found
}

/// Who is to have a copy by now, and how they are reached; `None` while that cannot be said. Those
/// that the job has already stay in it.
pub(crate) fn membership_update(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    has: &BTreeSet<&str>,
) -> Option<(MembershipUpdate, Vec<Endpoint>)> {
    let Transfer {
        spec, endpoints, ..
    } = build_transfer(job, cache, membership, 0, has).ok()?;
    let nodes = spec.destinations.iter().chain([&spec.source]);
    let nodes = nodes.map(|place| node_of(&place.node));
    let pending = nodes.filter(|node| is_configuration_pending(cache, node));
    let configuration_pending = pending.map(str::to_owned).collect();
    let membership_update = MembershipUpdate {
        configuration_pending,
        destinations: spec.destinations,
        topology: spec.topology,
        payload_share: spec.payload_share,
    };
    Some((membership_update, endpoints))
}

fn build_transfer(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
    also: &BTreeSet<&str>,
) -> Result<Transfer, Obstacle> {
    let origin = origin(job)?;
    let (fabric_name, fabric) = fabric_of_job(job, origin, cache, membership)?;
    let from = match origin {
        Origin::File(file) => Some(place(job, fabric, cache, JobEnd::Source(file))?),
        Origin::Object(object) => {
            reading::allowed(object, fabric)?;
            None
        }
    };
    let whole = (fabric_name, fabric);
    let copies = copies(job, whole, cache, membership, from.as_ref())?;
    let Some(first) = copies.first() else {
        let is_listed = job.spec.destinations.nodes.is_some();
        let source = from.as_ref().map(|from| from.node.as_str());
        return Err(no_destinations(fabric_name, source, is_listed));
    };
    let readers = match origin {
        Origin::Object(_) => reading::readers(job, &copies, cache, fabric),
        // It has to look at all jobs for it.
        Origin::File(_) => Vec::new(),
    };
    let reader = copies
        .iter()
        .find(|copy| readers.first() == Some(&copy.node));
    let from = from.unwrap_or_else(|| reader.unwrap_or(first).clone());
    let names: BTreeSet<&str> = std::iter::once(from.node.as_str())
        .chain(copies.iter().map(|copy| node_of(&copy.node)))
        .chain(also.iter().copied())
        .collect();
    Ok(Transfer {
        fabric: fabric_name.to_owned(),
        endpoints: endpoints(cache, fabric_name, &names),
        spec: Spec {
            topology: topology(cache, fabric, &names),
            payload_share: payload_share(cache, &names),
            object: match origin {
                Origin::File(_) => None,
                Origin::Object(object) => Some(reading::object(job, object, readers, cache)),
            },
            ..spec(job, cache, from, copies, leader_epoch)
        },
    })
}

/// Where copies shall be, without the one that is there already: the source, where that is a node.
fn copies(
    job: &TransferJob,
    (fabric_name, fabric): (&str, &RdmaFabric),
    cache: &Cache,
    membership: &Membership,
    from: Option<&Place>,
) -> Result<Vec<Place>, Obstacle> {
    let to = &job.spec.destinations;
    let mut copies = Vec::new();
    for node in &destinations(job, fabric_name, cache, membership)? {
        let side = JobEnd::Destination { node, to };
        let copy = place(job, fabric, cache, side)?;
        match from {
            // It is where it shall be.
            Some(from) if copy == *from => {}
            Some(from) if copy.node == from.node => {
                apart(&copy, from)?;
                let node = local(&copy.node);
                copies.push(Place { node, ..copy });
            }
            _ => copies.push(copy),
        }
    }
    Ok(copies)
}

/// Whom to tell that a job is over, as far as anybody knows them: those it says now, and those its
/// status names, and those that report a copy of it. `None` where nobody can be told.
pub(crate) fn involved(
    job: &TransferJob,
    cache: &Cache,
    membership: &Membership,
    leader_epoch: u64,
    with_copy: &BTreeSet<String>,
) -> Option<Transfer> {
    let shown = job.status.iter().flat_map(|status| &status.destinations);
    let mut names: BTreeSet<String> = shown.map(|destination| destination.node.clone()).collect();
    let source = match origin(job).ok()? {
        Origin::File(file) => file.node.clone(),
        // Whoever has not read knows of the job as a destination.
        Origin::Object(_) => {
            let reader = job.status.as_ref().map(|status| status.reader.clone());
            let reader = reader.filter(|reader| !reader.is_empty());
            reader.or_else(|| names.first().cloned())?
        }
    };
    // Any of them tells which fabric it was: the source may have left it, or the cluster.
    let fabric = [source.as_str()]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .chain(with_copy.iter().map(String::as_str))
        .find_map(|node| Some(cache.fabric_nodes.named(node)?.spec.fabric.clone()))?;
    names.extend(destinations(job, &fabric, cache, membership).unwrap_or_default());
    names.extend(with_copy.iter().cloned());
    let to = &job.spec.destinations;
    let bare = |path: &str| path.trim_end_matches('/').to_owned();
    let file = job.spec.source.file.as_ref();
    let (root, path) = file.map_or((&to.root, &to.path), |file| (&file.root, &file.path));
    let is_elsewhere = (&to.root, bare(&to.path)) != (root, bare(path));
    if file.is_some() && names.remove(&source) && is_elsewhere {
        names.insert(local(&source));
    }
    let place = |node: &str, root: &str, path: &str| Place {
        node: node.to_owned(),
        root: root.to_owned(),
        path: path.to_owned(),
    };
    let copies = names
        .iter()
        .map(|node| place(node, &to.root, &to.path))
        .collect();
    let from = place(&source, root, path);
    let all: BTreeSet<&str> = names
        .iter()
        .map(|name| node_of(name))
        .chain([source.as_str()])
        .collect();
    Some(Transfer {
        endpoints: endpoints(cache, &fabric, &all),
        fabric,
        spec: spec(job, cache, from, copies, leader_epoch),
    })
}

fn spec(
    job: &TransferJob,
    cache: &Cache,
    source: Place,
    destinations: Vec<Place>,
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
        let strangers: Vec<&str> = nodes
            .iter()
            .filter(|node| membership.fabric(node) != Some(fabric))
            .map(String::as_str)
            .collect();
        if !strangers.is_empty() {
            let text = format!(
                "spec.destinations.nodes: {} not of fabric {fabric}, which the {} is of; label \
                 them so that it selects them, or name one of: kubectl get fabricnodes",
                match strangers.len() {
                    1 => format!("node {} is", strangers[0]),
                    _ => format!("nodes {} are", listed(&strangers)),
                },
                match job.spec.source.file {
                    Some(_) => "source",
                    None => "first node",
                }
            );
            return Err(wait("NodeNotInFabric", text));
        }
        return Ok(nodes.clone());
    }
    let wanted = to.node_selector.clone().unwrap_or_default();
    let wanted = selector(&wanted).map_err(|fault| Obstacle {
        reason: "SelectorInvalid",
        message: format!("spec.destinations.nodeSelector: {fault}"),
        is_final: true,
    })?;
    let members = membership.nodes().filter(|(_, of)| *of == fabric);
    let selected = members.filter(|(node, _)| {
        cache
            .nodes
            .named(node)
            .is_some_and(|node| wanted.matches(node.labels()))
    });
    Ok(selected.map(|(node, _)| node.to_owned()).collect())
}

fn no_destinations(fabric: &str, source: Option<&str>, is_listed: bool) -> Obstacle {
    let Some(source) = source else {
        let text = format!(
            "spec.destinations: no node of fabric {fabric} matches; it begins when one does: label a \
             node"
        );
        return wait("NoDestinations", text);
    };
    if is_listed {
        return Obstacle {
            reason: "NoDestinations",
            message: format!(
                "spec.destinations.nodes: names only {source}, which is the source and has it at \
                 that path: name another node, root or path"
            ),
            is_final: true,
        };
    }
    wait(
        "NoDestinations",
        format!(
            "spec.destinations: no node of fabric {fabric} besides {source}, the source, matches; \
             it begins when one does: label a node"
        ),
    )
}

#[cfg(test)]
mod tests;
