//! Cancel: ends an attempt, and removes what its job has left where the operator asks for that.

use std::sync::Arc;

use futures::future::join_all;
use weft_proto::agent::v1::{AttemptRef, CancelRequest, CancelResponse};

use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{FileError, copies};
use crate::transfer::state::State;

impl AttemptRegistry {
    /// Ends an attempt. The answer comes when no byte of it arrives any more.
    pub async fn cancel(self: &Arc<Self>, request: CancelRequest) -> Result<CancelResponse, Fault> {
        let CancelRequest {
            attempt,
            remove_partials,
            release_copies,
            ..
        } = request;
        let attempt_ref = convert::attempt_ref(attempt)?;
        // An earlier process may have left files of a job that is not known here.
        self.register_unknown_job(&attempt_ref);
        // An unknown attempt is remembered as cancelled, so that a later Prepare or Start of it is refused.
        let handle = match self.find_or_begin(&attempt_ref).await {
            // A later attempt has ended this one.
            Err(Fault::StaleAttempt { .. }) => return Ok(CancelResponse {}),
            handle => handle?,
        };
        handle.attempt.fail(Fault::Cancelled);
        handle.attempt.wait_closed().await;
        if remove_partials && handle.attempt.state() == State::Failed {
            self.remove_partials(handle).await?;
        }
        if release_copies {
            self.release_copies(&attempt_ref).await?;
        }
        Ok(CancelResponse {})
    }

    /// Removes what the attempts of a job have left, if this attempt, which is over, is the latest. The next
    /// Cancel tries again to remove what cannot be removed now.
    async fn remove_partials(self: &Arc<Self>, handle: Arc<AttemptHandle>) -> Result<(), Fault> {
        let (registry, attempt_ref) = (self.clone(), handle.attempt.attempt_ref.clone());
        let uid = convert::uid(&attempt_ref)?;
        let faults = fail_fast::spawn_blocking("remove-partials", move || {
            // The next attempt's Prepare waits for this lock, or has come before.
            let mut leftover = handle.leftover();
            let latest = registry.latest(&handle.attempt.attempt_ref);
            match latest.is_some_and(|latest| Arc::ptr_eq(&latest, &handle)) {
                true => leftover.remove_partials(&uid),
                false => Vec::new(),
            }
        })
        .await;
        for fault in &faults {
            tracing::warn!(
                job = attempt_ref.uid,
                reason = fault.reason(),
                "partial files not removed: {fault}"
            );
        }
        faults
            .into_iter()
            .next()
            .map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Takes a job out of the records of all roots, and removes the copies that no job needs then. A copy that
    /// an attempt reads or writes is removed after the attempt.
    async fn release_copies(&self, attempt_ref: &AttemptRef) -> Result<(), Fault> {
        let mut released = Vec::new();
        for root in &self.reloadable_config().roots {
            let (root, uid) = (root.clone(), attempt_ref.uid.clone());
            // When the caller hangs up, this future ends and the work goes on.
            released.push(fail_fast::spawn_blocking("release-copies", move || {
                copies::release(&root, &uid)
            }));
        }
        let released = join_all(released).await;
        self.copies_changed.send_modify(|count| *count += 1);
        let all: Result<(), FileError> = released.into_iter().collect();
        Ok(all?)
    }
}
