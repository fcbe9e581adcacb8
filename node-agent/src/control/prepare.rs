//! Prepare: makes a destination ready to receive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_proto::agent::v1::{Location, ManifestHolder, PrepareRequest, PrepareResponse};

use crate::config::SLOTS_MIN;
use crate::control::attempt_handle::{AttemptHandle, Prepared};
use crate::control::attempt_registry::AttemptRegistry;
use crate::control::manifest_fetch;
use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{Destination, DestinationConfig, Manifest};
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::layout::MessageLayout;
use crate::transfer::recorder::{RecordedFiles, Recorder};
use crate::transfer::state::{Event, State, Transition};

/// How often a caller that waits for Prepare renews the lease of its attempt.
const RENEWALS_PER_LEASE: u32 = 3;

impl AttemptRegistry {
    /// Makes a destination ready. Goes on when the caller hangs up.
    pub async fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<PrepareResponse, Fault> {
        let attempt_ref = convert::attempt_ref(request.attempt.clone())?;
        // Before anything is refused: a job whose first attempt is refused has left nothing.
        self.register_job(&attempt_ref);
        let repeatable = PrepareRequest {
            leader_epoch: 0,
            // A repetition may bring a new ticket.
            manifest_from: None,
            ..request.clone()
        };
        let location = convert::required(request.location.clone(), "location")?;
        let (root, path) = self.resolve(&location)?;
        let overwrite = convert::overwrite(request.overwrite())?;
        let name = request.job_name;
        let recorded_for = name
            .clone()
            .map(|name| convert::copy_job(&attempt_ref.uid, name))
            .transpose()?;
        let (algorithm, expect) = convert::verification(request.verification)?;
        let handle = self.find_or_begin(&attempt_ref).await?;
        handle.begin(name);
        handle.attempt.renew();
        handle.register_request("Prepare", &repeatable)?;
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = handle.attempt.begin_work();
        match (handle.attempt.apply(Event::Prepare), worker) {
            (Transition::To(_), Some(worker)) => {
                let uid = convert::uid(&attempt_ref)?;
                let (digest, fingerprint) = (request.manifest_digest, request.fingerprint);
                let holder = request.manifest_from;
                let config = move |manifest| DestinationConfig {
                    root,
                    path,
                    job: uid,
                    recorded_for,
                    manifest,
                    algorithm,
                    overwrite,
                    expect,
                };
                let (registry, handle) = (self.clone(), handle.clone());
                fail_fast::spawn("prepare", async move {
                    let _worker = worker;
                    let mut watch = handle.attempt.watch();
                    let manifest = tokio::select! {
                        manifest = registry.manifest(&digest, &fingerprint, holder.as_ref()) => manifest,
                        _ = watch.wait_for(|status| status.state == State::Failed) => return,
                    };
                    let made = match manifest {
                        Ok(manifest) => {
                            registry
                                .prepare_destination(&handle, config(manifest), location)
                                .await
                        }
                        Err(fault) => Err(fault),
                    };
                    if let Err(fault) = made {
                        handle.attempt.fail(fault);
                    }
                });
            }
            (Transition::Stay, _) => {}
            _ => return Err(handle.not_ready("cancel it and prepare the next attempt")),
        }
        wait_until_prepared(&handle, self.config.lease).await
    }

    /// The manifest that a destination is prepared with.
    async fn manifest(
        &self,
        digest: &[u8],
        fingerprint: &[u8],
        holder: Option<&ManifestHolder>,
    ) -> Result<Arc<Manifest>, Fault> {
        let kept = self.manifests.get(digest, fingerprint);
        let is_exact = match &kept {
            Ok(kept) => fingerprint.is_empty() || kept.fingerprint() == fingerprint,
            Err(_) => false,
        };
        let Some(holder) = holder.filter(|_| !is_exact) else {
            return kept;
        };
        let tls = self.config.tls.borrow().clone();
        let retry_for = self.config.retry_for;
        let fetched = manifest_fetch::fetch(digest, fingerprint, holder, tls, retry_for).await?;
        let manifest = Arc::new(fetched.received_as(fingerprint));
        self.manifests.insert(manifest.clone());
        Ok(manifest)
    }

    async fn prepare_destination(
        &self,
        handle: &Arc<AttemptHandle>,
        config: DestinationConfig,
        location: Location,
    ) -> Result<(), Fault> {
        let is_recorded = config.recorded_for.is_some();
        let (of, budget) = (handle.clone(), self.config.memory.clone());
        let (prepared, response) = fail_fast::spawn_blocking("prepare", move || {
            of.leftover().note_attempt(&config);
            of.resources().buffers = Some(budget.reserve(usize::from(SLOTS_MIN))?);
            prepare_blocking(&of, config, location)
        })
        .await?;
        if is_recorded {
            handle.attempt.set_recorder(Recorder {
                files: RecordedFiles::Destination(prepared.blocks.destination.clone()),
                copies_changed: self.copies_changed.clone(),
            });
        }
        {
            let mut resources = handle.resources();
            resources.prepared = Some(Arc::new(prepared));
            resources.prepare_response = Some(response);
        }
        handle.attempt.apply(Event::Prepared);
        Ok(())
    }
}

/// Waits until the attempt is prepared.
/// Hashing what is there may take longer than the lease: the operator renews it as long as it waits for the answer.
async fn wait_until_prepared(
    handle: &AttemptHandle,
    lease: Duration,
) -> Result<PrepareResponse, Fault> {
    let mut watch = handle.attempt.watch();
    let mut renewals = tokio::time::interval(lease / RENEWALS_PER_LEASE);
    let prepared =
        watch.wait_for(|status| !matches!(status.state, State::Pending | State::Preparing));
    tokio::pin!(prepared);
    loop {
        tokio::select! {
            // The sender lives as long as `handle`.
            _ = &mut prepared => break,
            _ = renewals.tick() => handle.attempt.renew(),
        }
    }
    if handle.attempt.state() == State::Failed {
        return Err(handle.not_ready("prepare the next attempt"));
    }
    let response = handle.resources().prepare_response;
    response.ok_or_else(|| handle.not_ready("it is a source: only destinations are prepared"))
}

/// Makes the files and hashes what is on disk. For threads that may block.
fn prepare_blocking(
    handle: &AttemptHandle,
    config: DestinationConfig,
    location: Location,
) -> Result<(Prepared, PrepareResponse), Fault> {
    let attempt = &handle.attempt;
    let check_stop = || match attempt.is_stopping() {
        true => Err(Fault::Cancelled),
        false => Ok(()),
    };
    check_stop()?;
    let layout = MessageLayout::new(&config.manifest, config.algorithm);
    let total = &attempt.counters.bytes_total;
    total.store(layout.manifest.bytes(), Ordering::Relaxed);
    let destination = Arc::new(Destination::prepare(config)?);
    handle.leftover().add(&destination);
    let filled = DestinationBlocks::scan_disk(destination.clone(), layout, check_stop);
    let blocks = match filled {
        Ok(blocks) => Arc::new(blocks),
        Err(fault) => {
            destination.abort();
            return Err(fault);
        }
    };
    let response = PrepareResponse {
        blocks_have: blocks.present_blocks,
        blocks_total: blocks.layout.blocks,
        bytes_missing: blocks
            .layout
            .manifest
            .bytes()
            .saturating_sub(blocks.present_bytes),
    };
    Ok((Prepared { blocks, location }, response))
}

#[cfg(test)]
mod tests {
    use weft_engine::DomainId;
    use weft_proto::agent::v1::AttemptRef;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_keeps_its_lease_while_a_caller_waits_for_prepare_and_not_after() {
        let attempt_ref = AttemptRef {
            uid: "uid".to_owned(),
            generation: 1,
            number: 1,
        };
        let handle = AttemptHandle::new(&attempt_ref, DomainId(1), Arc::default());
        handle.attempt.apply(Event::Prepare);
        let lease = Duration::from_secs(900);
        let waiting = wait_until_prepared(&handle, lease);
        let hung_up = tokio::time::timeout(lease * 10, waiting).await;
        assert!(hung_up.is_err() && handle.attempt.idle() <= lease / RENEWALS_PER_LEASE);
        tokio::time::advance(lease).await;
        assert!(handle.attempt.idle() >= lease);
    }
}
