//! Fetches a manifest from the agent that has listed it. Called for an attempt that is being prepared.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Status;
use weft_proto::agent::v1::{
    FetchManifestRequest, ManifestHolder, ObjectVersion as ToldVersion, SignedTicket,
};

use crate::abort;
use crate::fault::Fault;
use crate::files::{Entry, EntryKind, Manifest, ManifestBuilder, ObjectVersion, Shape};
use crate::tls::Tls;
use crate::transfer::dial::{Client, OtherAgent, TRY_TIMEOUT};

/// Of one part as it is received: parts are some 64 KiB.
const PART_BYTES_MAX: usize = 1 << 20;

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
    client: Client,
    ticket: Option<SignedTicket>,
) -> Result<Manifest, Fault> {
    let failed = |status: Status| agent.fault(&status);
    let silent = |_| agent.silent();
    let mut client = client.max_decoding_message_size(PART_BYTES_MAX);
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
        if part.entries.is_empty() && building.is_some() {
            return Err(Fault::PeerFaulty {
                node: agent.node.to_owned(),
                problem: "a part of a manifest without entries".to_owned(),
            });
        }
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
    abort::blocking("manifest", move || built.finish())
        .await
        .map_err(Fault::from)
}
