//! Prepare: makes a destination ready to receive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_proto::agent::v1::{Location, ManifestHolder, PrepareRequest, PrepareResponse};

use crate::config::SLOTS_MIN;
use crate::control::attempt_handle::{AttemptHandle, Prepared};
use crate::control::attempt_registry::AttemptRegistry;
use crate::control::manifest_fetch;
use crate::convert;
use crate::critical;
use crate::fault::Fault;
use crate::files::{Destination, DestinationConfig, Manifest};
use crate::transfer::layout::Layout;
use crate::transfer::received_blocks::ReceivedBlocks;
use crate::transfer::recorder::{RecordedFiles, Recorder};
use crate::transfer::state::{Event, State, Transition};

impl AttemptRegistry {
    /// Makes a destination ready. Goes on when the caller hangs up.
    pub async fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<PrepareResponse, Fault> {
        let job = convert::job(request.job.clone())?;
        // Before anything is refused: a job whose first attempt is refused has left nothing.
        self.register_job(&job);
        let repeatable = PrepareRequest {
            leader_epoch: 0,
            // A repetition may bring a new ticket.
            manifest_from: None,
            ..request.clone()
        };
        let location = convert::given(request.location.clone(), "location")?;
        let (root, path) = self.place(&location)?;
        let overwrite = convert::overwrite(request.overwrite())?;
        let name = request.job_name;
        let recorded_for = name
            .clone()
            .map(|name| convert::copy_job(&job.uid, name))
            .transpose()?;
        let (algorithm, expect) = convert::verification(request.verification)?;
        let known = self.find_or_begin(&job).await?;
        known.set_name(name);
        known.attempt.renew();
        known.is_first("Prepare", &repeatable)?;
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = known.attempt.worker();
        match (known.attempt.apply(Event::Prepare), worker) {
            (Transition::To(_), Some(worker)) => {
                let uid = convert::uid(&job)?;
                let (digest, state) = (request.manifest_digest, request.state);
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
                let (jobs, known) = (self.clone(), known.clone());
                critical::spawn("prepare", async move {
                    let _worker = worker;
                    let mut watch = known.attempt.watch();
                    let manifest = tokio::select! {
                        manifest = jobs.manifest(&digest, &state, holder.as_ref()) => manifest,
                        _ = watch.wait_for(|status| status.state == State::Failed) => return,
                    };
                    let made = match manifest {
                        Ok(manifest) => jobs.make(&known, config(manifest), location).await,
                        Err(fault) => Err(fault),
                    };
                    if let Err(fault) = made {
                        known.attempt.fail(fault);
                    }
                });
            }
            (Transition::Stay, _) => {}
            _ => return Err(known.not_ready("cancel it and prepare the next attempt")),
        }
        prepared(&known).await
    }

    /// The manifest that a destination is prepared with.
    async fn manifest(
        &self,
        digest: &[u8],
        state: &[u8],
        holder: Option<&ManifestHolder>,
    ) -> Result<Arc<Manifest>, Fault> {
        let kept = self.manifests.get(digest, state);
        let (Err(Fault::ManifestUnknown), Some(holder)) = (&kept, holder) else {
            return kept;
        };
        let tls = self.config.tls.borrow().clone();
        let fetched = manifest_fetch::fetch(digest, holder, tls, self.config.retry_for).await?;
        let manifest = Arc::new(fetched);
        self.manifests.keep(manifest.clone());
        Ok(manifest)
    }

    async fn make(
        &self,
        known: &Arc<AttemptHandle>,
        config: DestinationConfig,
        location: Location,
    ) -> Result<(), Fault> {
        let is_recorded = config.recorded_for.is_some();
        let (of, budget) = (known.clone(), self.config.memory.clone());
        let (prepared, response) = critical::spawn_blocking("prepare", move || {
            of.left().expect(&config);
            of.resources().share = Some(budget.share(usize::from(SLOTS_MIN))?);
            make_ready(&of, config, location)
        })
        .await?;
        if is_recorded {
            known.attempt.set_recorder(Recorder {
                files: RecordedFiles::Destination(prepared.staged.destination.clone()),
                records: self.copies_changed.clone(),
            });
        }
        {
            let mut resources = known.resources();
            resources.prepared = Some(Arc::new(prepared));
            resources.prepare_response = Some(response);
        }
        known.attempt.apply(Event::Prepared);
        Ok(())
    }
}

/// Waits until the attempt is prepared.
async fn prepared(known: &AttemptHandle) -> Result<PrepareResponse, Fault> {
    let mut watch = known.attempt.watch();
    // The sender lives as long as `known`.
    let _ = watch
        .wait_for(|status| !matches!(status.state, State::Pending | State::Preparing))
        .await;
    if known.attempt.state() == State::Failed {
        return Err(known.not_ready("prepare the next attempt"));
    }
    let response = known.resources().prepare_response;
    response.ok_or_else(|| known.not_ready("it is a source: only destinations are prepared"))
}

fn make_ready(
    known: &AttemptHandle,
    config: DestinationConfig,
    location: Location,
) -> Result<(Prepared, PrepareResponse), Fault> {
    let attempt = &known.attempt;
    let check_stop = || match attempt.is_stopping() {
        true => Err(Fault::Cancelled),
        false => Ok(()),
    };
    check_stop()?;
    let layout = Layout::new(&config.manifest, config.algorithm);
    let total = &attempt.counters.bytes_total;
    total.store(layout.manifest.bytes(), Ordering::Relaxed);
    let destination = Arc::new(Destination::prepare(config)?);
    known.left().add(&destination);
    let filled = ReceivedBlocks::fill(destination.clone(), layout, check_stop);
    let staged = match filled {
        Ok(staged) => Arc::new(staged),
        Err(fault) => {
            destination.abort();
            return Err(fault);
        }
    };
    let response = PrepareResponse {
        blocks_have: staged.have_blocks,
        blocks_total: staged.layout.blocks,
        reserved_bytes: staged
            .layout
            .manifest
            .bytes()
            .saturating_sub(staged.have_bytes),
    };
    Ok((Prepared { staged, location }, response))
}
