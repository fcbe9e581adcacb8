//! Prepare: makes a destination ready to receive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_proto::agent::v1::{Location, ManifestHolder, PrepareRequest, PrepareResponse};

use crate::config::SLOTS_MIN;
use crate::control::attempt_handle::{AttemptHandle, Prepared};
use crate::control::attempt_registry::AttemptRegistry;
use crate::control::manifest_fetch;
use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{Destination, DestinationConfig, Manifest};
use crate::transfer::layout::MessageLayout;
use crate::transfer::received_blocks::ReceivedBlocks;
use crate::transfer::recorder::{RecordedFiles, Recorder};
use crate::transfer::state::{Event, State, Transition};

impl AttemptRegistry {
    /// Makes a destination ready. Goes on when the caller hangs up.
    pub async fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<PrepareResponse, Fault> {
        let job = convert::attempt_ref(request.attempt.clone())?;
        // Before anything is refused: a job whose first attempt is refused has left nothing.
        self.register_job(&job);
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
            .map(|name| convert::copy_job(&job.uid, name))
            .transpose()?;
        let (algorithm, expect) = convert::verification(request.verification)?;
        let handle = self.find_or_begin(&job).await?;
        handle.set_name(name);
        handle.attempt.renew();
        handle.is_first("Prepare", &repeatable)?;
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = handle.attempt.worker();
        match (handle.attempt.apply(Event::Prepare), worker) {
            (Transition::To(_), Some(worker)) => {
                let uid = convert::uid(&job)?;
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
                        Ok(manifest) => registry.make(&handle, config(manifest), location).await,
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
        wait_until_prepared(&handle).await
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
        let fetched = manifest_fetch::fetch(digest, holder, tls, self.config.retry_for).await?;
        let manifest = Arc::new(fetched.received_as(fingerprint));
        self.manifests.keep(manifest.clone());
        Ok(manifest)
    }

    async fn make(
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
            make_ready(&of, config, location)
        })
        .await?;
        if is_recorded {
            handle.attempt.set_recorder(Recorder {
                files: RecordedFiles::Destination(prepared.received.destination.clone()),
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
async fn wait_until_prepared(handle: &AttemptHandle) -> Result<PrepareResponse, Fault> {
    let mut watch = handle.attempt.watch();
    // The sender lives as long as `handle`.
    let _ = watch
        .wait_for(|status| !matches!(status.state, State::Pending | State::Preparing))
        .await;
    if handle.attempt.state() == State::Failed {
        return Err(handle.not_ready("prepare the next attempt"));
    }
    let response = handle.resources().prepare_response;
    response.ok_or_else(|| handle.not_ready("it is a source: only destinations are prepared"))
}

fn make_ready(
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
    let filled = ReceivedBlocks::scan_disk(destination.clone(), layout, check_stop);
    let received = match filled {
        Ok(received) => Arc::new(received),
        Err(fault) => {
            destination.abort();
            return Err(fault);
        }
    };
    let response = PrepareResponse {
        blocks_have: received.have_blocks,
        blocks_total: received.layout.blocks,
        reserved_bytes: received
            .layout
            .manifest
            .bytes()
            .saturating_sub(received.have_bytes),
    };
    Ok((Prepared { received, location }, response))
}
