//! The manifests that this node has: those that it listed for the operator, and those that it was prepared
//! with.
//!
//! A manifest passes between agents only. The operator knows its digest, and signs who may fetch it from
//! whom. What is not here any more the operator has listed again, with the next attempt.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tonic::Status;
use weft_proto::agent::v1::{
    Entry as Told, FetchManifestRequest, ManifestHolder, ManifestPart,
    ObjectVersion as ToldVersion, SignedTicket,
};

use crate::dial::{Client, OtherAgent, TRY_TIMEOUT};
use crate::fault::Fault;
use crate::files::{Entry, EntryKind, Manifest, ManifestBuilder, ObjectVersion, Shape};
use crate::guard;
use crate::tls::Tls;

/// Manifests are kept until they take more than this together; the newest stays in any case.
const KEPT_BYTES: usize = 32 << 20;

/// Of one part, about: what HTTP/2 has under way of a stream.
const PART_BYTES: usize = 64 << 10;
/// Of an entry, beside its path.
const ENTRY_BYTES: usize = 16;

/// All of them, the one that came last at the end.
#[derive(Debug, Default)]
pub(crate) struct Manifests(Mutex<VecDeque<Arc<Manifest>>>);

impl Manifests {
    /// Keeps one. An earlier listing of the same is forgotten.
    pub(crate) fn keep(&self, manifest: Arc<Manifest>) {
        let mut kept = self.lock();
        kept.retain(|known| known.digest() != manifest.digest());
        kept.push_back(manifest);
        let mut bytes: usize = kept.iter().map(|known| known.memory()).sum();
        while bytes > KEPT_BYTES && kept.len() > 1 {
            bytes -= kept.pop_front().map_or(0, |oldest| oldest.memory());
        }
    }

    /// The manifest with this digest.
    pub(crate) fn get(&self, digest: &[u8]) -> Result<Arc<Manifest>, Fault> {
        let kept = self.lock();
        let found = kept.iter().find(|known| known.digest() == digest);
        found.cloned().ok_or(Fault::ManifestUnknown)
    }

    /// The same, if it was listed on this node.
    pub(crate) fn listed(&self, digest: &[u8]) -> Result<Arc<Manifest>, Fault> {
        let found = self.get(digest)?;
        found
            .is_listed_here()
            .then_some(found)
            .ok_or(Fault::ManifestUnknown)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Manifest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A manifest as another agent is told it; an empty directory is one part.
pub(crate) fn parts(manifest: Arc<Manifest>) -> impl Iterator<Item = ManifestPart> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let mut at = next?;
        let mut part = ManifestPart {
            directory: manifest.shape() == Shape::Directory,
            entries: Vec::new(),
        };
        let mut bytes = 0;
        while bytes < PART_BYTES
            && let Some(entry) = manifest.entry(at)
        {
            bytes += entry.path.len() + ENTRY_BYTES;
            let version = manifest.version(at);
            part.entries.push(Told {
                path: entry.path.to_owned(),
                size: match entry.kind {
                    EntryKind::File { bytes } => Some(bytes),
                    EntryKind::Directory => None,
                },
                mode: entry.mode,
                version: version.map(|version| ToldVersion {
                    etag: version.etag.clone(),
                    modified_ns: version.modified_ns,
                }),
            });
            at += 1;
        }
        next = (at < manifest.len()).then_some(at);
        Some(part)
    })
}

/// Fetches the manifest with this digest from the agent that has listed it.
pub(crate) async fn fetch(
    digest: &[u8],
    holder: &ManifestHolder,
    tls: Tls,
    patience: Duration,
) -> Result<Manifest, Fault> {
    let agent = OtherAgent {
        node: &holder.node,
        address: &holder.control_address,
        field: "manifest_from.control_address",
    };
    let client = agent.client(&tls)?;
    let call = || receive(agent, client.clone(), holder.ticket.clone());
    let manifest = agent.retry(patience, call).await?;
    if manifest.digest() != digest {
        return Err(Fault::PeerFaulty {
            node: holder.node.clone(),
            problem: "another manifest than it had listed".to_owned(),
        });
    }
    Ok(manifest)
}

async fn receive(
    agent: OtherAgent<'_>,
    mut client: Client,
    ticket: Option<SignedTicket>,
) -> Result<Manifest, Fault> {
    let failed = |status: Status| agent.fault(&status);
    let silent = |_| agent.silent();
    let call = client.fetch_manifest(FetchManifestRequest { ticket });
    let answered = timeout(TRY_TIMEOUT, call).await.map_err(silent)?;
    let mut parts = answered.map_err(failed)?.into_inner();
    let mut building: Option<ManifestBuilder> = None;
    while let Some(part) = timeout(TRY_TIMEOUT, parts.message())
        .await
        .map_err(silent)?
        .map_err(failed)?
    {
        let shape = match part.directory {
            true => Shape::Directory,
            false => Shape::File,
        };
        let building = building.get_or_insert_with(|| ManifestBuilder::new(shape));
        for told in part.entries {
            let entry = Entry {
                path: &told.path,
                kind: match told.size {
                    Some(bytes) => EntryKind::File { bytes },
                    None => EntryKind::Directory,
                },
                mode: told.mode,
            };
            match told.version {
                Some(ToldVersion { etag, modified_ns }) => {
                    building.object(entry, ObjectVersion { etag, modified_ns })?;
                }
                None => building.add(entry)?,
            }
        }
    }
    let built = building.ok_or_else(|| Fault::PeerFaulty {
        node: agent.node.to_owned(),
        problem: "no manifest".to_owned(),
    })?;
    // Sorting and checking take a while where there are many.
    guard::blocking("manifest", move || built.finish())
        .await
        .map_err(Fault::from)
}
