//! Where a job's bytes come from, and which fabric that makes it a job of.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, core::SelectorExt as _};
use weft_crds::{FileSource, ObjectSource, RdmaFabric, TransferJob};

use crate::controllers::{
    condition::listed,
    job::obstacle::{Obstacle, permanent, temporary},
    kinds::Cache,
    membership::{Membership, selector},
};

/// Where a job's bytes come from.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// From a node's files.
    File(&'a FileSource),
    /// From a store.
    Object(&'a ObjectSource),
}

/// The origin of a job's bytes, or the obstacle where its spec does not name exactly one.
pub(crate) fn origin(job: &TransferJob) -> Result<Origin<'_>, Obstacle> {
    match (&job.spec.source.file, &job.spec.source.object) {
        (Some(file), None) => Ok(Origin::File(file)),
        (None, Some(object)) => Ok(Origin::Object(object)),
        // The definition refuses it, but it may have been changed since.
        _ => Err(permanent(
            "SourceMissing",
            "spec.source: give exactly one of: file, object".to_owned(),
        )),
    }
}

/// The fabric that a job is in.
pub(crate) fn fabric_of_job<'a>(
    job: &TransferJob,
    origin: Origin<'_>,
    cache: &'a Cache,
    membership: &'a Membership,
) -> Result<(&'a str, &'a RdmaFabric), Obstacle> {
    match origin {
        Origin::File(file) => {
            let field = ("SourceNodeNotInFabric", "spec.source.file.node");
            fabric_of(&file.node, field, cache, membership)
        }
        Origin::Object(_) => fabric_of_destinations(job, cache, membership),
    }
}

/// Why no job begins in a fabric that is being deleted. Those that run there end as they would.
pub(crate) fn check_not_deleted(name: &str, cache: &Cache) -> Result<(), Obstacle> {
    let fabric = cache.fabrics.named(name);
    if fabric.is_none_or(|fabric| fabric.metadata.deletion_timestamp.is_none()) {
        return Ok(());
    }
    let text = format!(
        "RdmaFabric {name} is being deleted; the job begins when another one has its nodes"
    );
    Err(temporary("FabricDeleted", text))
}

/// A node's fabric, or what is wrong with the field that names it.
fn fabric_of<'a>(
    node: &str,
    (reason, field): (&'static str, &str),
    cache: &'a Cache,
    membership: &'a Membership,
) -> Result<(&'a str, &'a RdmaFabric), Obstacle> {
    let name = membership.fabric(node);
    let found = name.and_then(|name| Some((name, cache.fabrics.named(name)?)));
    found.ok_or_else(|| {
        let what = if cache.nodes.named(node).is_none() {
            "there is no such node; `kubectl weft roots` lists nodes".to_owned()
        } else {
            "no RdmaFabric selects it; label the node, or name one that `kubectl weft roots` lists"
                .to_owned()
        };
        temporary(reason, format!("{field}: {node}: {what}"))
    })
}

/// The nodes of fabrics that a job's selector selects, each with its fabric.
pub(crate) fn selected<'a>(
    job: &TransferJob,
    cache: &Cache,
    membership: &'a Membership,
) -> Result<Vec<(&'a str, &'a str)>, Obstacle> {
    let wanted = job.spec.destinations.node_selector.clone();
    let wanted = selector(&wanted.unwrap_or_default()).map_err(|fault| {
        let text = format!("spec.destinations.nodeSelector: {fault}");
        permanent("SelectorInvalid", text)
    })?;
    let is_wanted = |node: &str| {
        let node = cache.nodes.named(node);
        node.is_some_and(|node| wanted.matches(node.labels()))
    };
    let selected = membership.nodes().filter(|(node, _)| is_wanted(node));
    Ok(selected.collect())
}

/// The fabric of the destinations: there is no source's node that says which it is.
fn fabric_of_destinations<'a>(
    job: &TransferJob,
    cache: &'a Cache,
    membership: &'a Membership,
) -> Result<(&'a str, &'a RdmaFabric), Obstacle> {
    let to = &job.spec.destinations;
    if let Some(node) = to.nodes.as_ref().and_then(|nodes| nodes.first()) {
        let field = ("NodeNotInFabric", "spec.destinations.nodes");
        return fabric_of(node, field, cache, membership);
    }
    let selected = selected(job, cache, membership)?.into_iter();
    let fabrics: BTreeSet<&str> = selected.map(|(_, fabric)| fabric).collect();
    let fabrics: Vec<&str> = fabrics.into_iter().collect();
    match fabrics[..] {
        [] => Err(temporary(
            "NoDestinations",
            "spec.destinations: no node of any fabric matches; it begins when one does: label a node"
                .to_owned(),
        )),
        [name] => match cache.fabrics.named(name) {
            Some(fabric) => Ok((name, fabric)),
            None => Err(temporary(
                "NodeNotInFabric",
                format!("spec.destinations: RdmaFabric {name} is no more; make it again"),
            )),
        },
        _ => Err(temporary(
            "FabricsDiffer",
            format!(
                "spec.destinations.nodeSelector: the nodes are of several fabrics, {}; add a label \
                 that only one of them has",
                listed(&fabrics)
            ),
        )),
    }
}
