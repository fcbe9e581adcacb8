//! What a job needs whose source is an object: a fabric, somebody who reads, and a Secret.

use kube::ResourceExt as _;
use weft_crds::{ObjectSource, RdmaFabric, TransferJob};
use weft_transfer::{NodeLocation, Secret, StoreObject};

use crate::controllers::{
    cache::Key,
    fabric::decide::is_ready,
    job::obstacle::{Obstacle, temporary},
    kinds::Cache,
};

/// What stands between a job and the Secret that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecretUnavailable {
    /// Nobody has looked lately whether the operator may read it.
    NotProbed(Key),
    /// It may not, or there is none.
    Unreadable(Obstacle),
}

/// The Secret that a job names, in its own namespace.
pub(crate) fn secret(job: &TransferJob) -> Option<Key> {
    let object = job.spec.source.object.as_ref()?;
    let name = object.secret_ref.as_ref()?.name.clone();
    let namespace = job.namespace().unwrap_or_default();
    Some(Key { namespace, name })
}

/// Whether a job's Secret can be read, as far as that is known.
pub(crate) fn check_secret(job: &TransferJob, cache: &Cache) -> Result<(), SecretUnavailable> {
    let Some(secret) = secret(job) else {
        return Ok(());
    };
    match cache.secrets.get(&secret) {
        None => Err(SecretUnavailable::NotProbed(secret)),
        Some(Ok(())) => Ok(()),
        Some(Err(obstacle)) => {
            let text = format!("spec.source.object.secretRef: {}", obstacle.message);
            Err(SecretUnavailable::Unreadable(temporary(
                &obstacle.reason,
                text,
            )))
        }
    }
}

/// What a fabric lets be read.
pub(crate) fn allowed(object: &ObjectSource, fabric: &RdmaFabric) -> Result<(), Obstacle> {
    if object.url.starts_with("http://") && !fabric.spec.objects.allow_insecure {
        let text = format!(
            "spec.source.object.url: fabric {} lets nothing be read without TLS: name an https URL, or \
             have spec.objects.allowInsecure set in the fabric",
            fabric.name_any()
        );
        return Err(temporary("ObjectInsecure", text));
    }
    Ok(())
}

/// Who reads first, and in which order the others take over: the one that has read before, then those
/// that read for the fewest unfinished jobs. Those that cannot now come last.
pub(crate) fn readers(
    job: &TransferJob,
    copies: &[NodeLocation],
    cache: &Cache,
    fabric: &RdmaFabric,
) -> Vec<String> {
    let name = fabric.name_any();
    let before = job.status.as_ref().map(|status| status.reader.as_str());
    let uid = job.uid().unwrap_or_default();
    let is_unfinished_other = |other: &TransferJob| {
        let is_over = other.status.as_ref().is_none_or(|it| it.phase.is_over());
        !is_over && other.uid().unwrap_or_default() != uid
    };
    let busy: Vec<&str> = (cache.jobs.iter())
        .filter(|(_, other)| is_unfinished_other(other))
        .filter_map(|(_, other)| Some(other.status.as_ref()?.reader.as_str()))
        .collect();
    let rank = |node: &str| {
        let can = is_ready(cache, node, &name);
        let load = busy.iter().filter(|reader| **reader == node).count();
        // Jobs that begin at once, before any of them is written down, do not all choose the same.
        let tie_break = blake3::hash(format!("{uid}/{node}").as_bytes());
        (!can, before != Some(node), load, *tie_break.as_bytes())
    };
    let mut nodes: Vec<String> = copies.iter().map(|copy| copy.node.clone()).collect();
    nodes.sort_by_cached_key(|node| rank(node));
    nodes
}

/// What the reader is asked to read.
pub(crate) fn object(
    job: &TransferJob,
    source: &ObjectSource,
    readers: Vec<String>,
    cache: &Cache,
) -> StoreObject {
    let expect = source.expect.as_ref();
    StoreObject {
        url: source.url.clone(),
        etag: expect.and_then(|it| it.etag.clone()).unwrap_or_default(),
        bytes: expect.and_then(|it| u64::try_from(it.bytes?).ok()),
        secret: secret(job).zip(cache.secret_reader.clone()).map(
            |(Key { namespace, name }, secret_reader)| Secret {
                namespace,
                name,
                reader: secret_reader,
            },
        ),
        readers,
    }
}

#[cfg(test)]
mod tests;
