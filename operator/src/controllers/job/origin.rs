//! Where a job's bytes come from, and which fabric that makes it a job of.

use weft_crds::{FileSource, ObjectSource, RdmaFabric, TransferJob};

use crate::controllers::{
    job::{
        reading,
        resolve::{Obstacle, wait},
    },
    kinds::Cache,
    membership::Membership,
};

/// Where a job's bytes come from.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// From a node's files.
    File(&'a FileSource),
    /// From a store.
    Object(&'a ObjectSource),
}

/// Of a job, or what it has to say about that.
pub(crate) fn origin(job: &TransferJob) -> Result<Origin<'_>, Obstacle> {
    match (&job.spec.source.file, &job.spec.source.object) {
        (Some(file), None) => Ok(Origin::File(file)),
        (None, Some(object)) => Ok(Origin::Object(object)),
        // The definition refuses it, but it may have been changed since.
        _ => Err(Obstacle {
            reason: "SourceMissing",
            message: "spec.source: give exactly one of: file, object".to_owned(),
            is_final: true,
        }),
    }
}

/// The fabric that a job is in.
pub(crate) fn home<'a>(
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
        Origin::Object(_) => reading::fabric_of_destinations(job, cache, membership),
    }
}

/// A node's fabric, or what is wrong with the field that names it.
pub(crate) fn fabric_of<'a>(
    node: &str,
    (reason, field): (&'static str, &str),
    cache: &'a Cache,
    membership: &'a Membership,
) -> Result<(&'a str, &'a RdmaFabric), Obstacle> {
    let name = membership.fabric(node);
    let found = name.and_then(|name| Some((name, cache.fabrics.named(name)?)));
    found.ok_or_else(|| {
        let what = if cache.nodes.named(node).is_none() {
            "there is no such node; name one of: kubectl get fabricnodes".to_owned()
        } else {
            "no RdmaFabric selects it; label the node, or name one of: kubectl get fabricnodes"
                .to_owned()
        };
        wait(reason, format!("{field}: {node}: {what}"))
    })
}
