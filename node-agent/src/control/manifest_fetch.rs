//! Fetches a manifest from an agent that has listed or fetched it. Called for an attempt that is being prepared.

use std::time::Duration;

use tokio::time::timeout;
use weft_proto::agent::v1::{FetchManifestRequest, ManifestHolder, ObjectVersion as SentVersion};

use crate::config::ConfigSource;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{Entry, EntryKind, Manifest, ManifestBuilder, ObjectVersion, Shape};
use crate::tls::Tls;
use crate::transfer::agent_client::{Client, PeerAgent};

/// The largest part that is received: agents send parts of some 64 KiB.
const PART_BYTES_MAX: usize = 1 << 20;

/// A fetch with all its retries takes no longer. The manifest of a million files has some 100 MB, which
/// 10 Mbit/s bring within 80 s.
const FETCH_TIMEOUT: Duration = Duration::from_secs(120);

/// Fetches the manifest with this digest, of the listing with this fingerprint, from an agent that has it.
pub(crate) async fn fetch(
    digest: &[u8],
    fingerprint: &[u8],
    holder: &ManifestHolder,
    tls: Tls,
    retry_for: Duration,
) -> Result<Manifest, Fault> {
    let agent = PeerAgent {
        node: &holder.node,
        address: &holder.control_address,
        field: "manifest_from.control_address",
    };
    let client = agent.client(&tls)?;
    let request = FetchManifestRequest {
        ticket: holder.ticket.clone(),
        fingerprint: fingerprint.to_vec(),
    };
    let call = || receive(agent, client.clone(), request.clone());
    let not_fetched = |problem: String| Fault::ManifestNotFetched {
        node: holder.node.clone(),
        problem,
    };
    match timeout(FETCH_TIMEOUT, agent.retry(retry_for, call)).await {
        Ok(Ok(manifest)) if manifest.digest() == digest => Ok(manifest),
        Ok(Ok(_)) => Err(not_fetched("it sent another list".to_owned())),
        // Whatever the holder answers is no reason to give the job up: the next attempt may ask another one.
        Ok(Err(fault)) if fault.retriable(ConfigSource::Operator) => Err(fault),
        Ok(Err(fault)) => Err(not_fetched(fault.to_string())),
        Err(_) => Err(not_fetched(format!(
            "it took longer than {FETCH_TIMEOUT:?}"
        ))),
    }
}

async fn receive(
    agent: PeerAgent<'_>,
    client: Client,
    request: FetchManifestRequest,
) -> Result<Manifest, Fault> {
    let mut client = client.max_decoding_message_size(PART_BYTES_MAX);
    let mut parts = agent
        .answer(client.fetch_manifest(request))
        .await?
        .into_inner();
    let mut building: Option<ManifestBuilder> = None;
    while let Some(part) = agent.answer(parts.message()).await? {
        let shape = match part.directory {
            true => Shape::Directory,
            false => Shape::File,
        };
        if part.entries.is_empty() && building.is_some() {
            let problem = "a part of a manifest without entries";
            return Err(Fault::faulty(agent.node, problem));
        }
        let building = building.get_or_insert_with(|| ManifestBuilder::new(shape));
        for sent in part.entries {
            let entry = Entry {
                path: &sent.path,
                kind: match (sent.size, sent.link.as_str()) {
                    (Some(bytes), "") => EntryKind::File { bytes },
                    (None, "") => EntryKind::Directory,
                    (None, link_text) => EntryKind::Link { link_text },
                    (Some(_), _) => {
                        return Err(Fault::faulty(agent.node, "a link with a size"));
                    }
                },
                mode: sent.mode,
            };
            match sent.version {
                Some(SentVersion { etag, modified_ns }) => {
                    building.object(entry, ObjectVersion { etag, modified_ns })?;
                }
                None => building.add(entry)?,
            }
            building.set_hole_bytes(sent.hole_bytes);
            building.set_modified_ns(sent.modified_ns);
        }
    }
    let built = building.ok_or_else(|| Fault::faulty(agent.node, "no manifest"))?;
    // Sorting and checking take a while where there are many.
    fail_fast::spawn_blocking("manifest", move || built.finish())
        .await
        .map_err(Fault::from)
}
