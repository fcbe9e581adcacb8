//! What shall become of a job: a pure function of what there is.
//!
//! A decision is at most one request to the API server and one order to this process. Everything that
//! has to outlive this process is written before it is acted upon: the finalizer before the first
//! command, an attempt's number before its first command. So whoever decides next, here or in a
//! successor, goes on from what is written.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use weft_crds::{Phase, TransferJob, TransferJobStatus};

use super::{
    membership::Membership,
    request::{FINALIZER, Request},
    resolve::{self, Obstacle, Transfer},
    snapshot::{Outcome, Snapshot},
    status,
    world::{Key, World, uid},
};

/// Progress is written when what is written is so old …
const PROGRESS_AGE: SignedDuration = SignedDuration::from_secs(5);
/// … and this part of all bytes has moved since: 1 %.
const PROGRESS_PART: i64 = 100;

/// What a job is decided from.
pub(super) struct View<'a> {
    /// The job.
    pub(super) job: &'a TransferJob,
    /// The other objects.
    pub(super) world: &'a World,
    /// Whose the nodes are.
    pub(super) membership: &'a Membership,
    /// What this process is doing for it.
    pub(super) work: Option<&'a Snapshot>,
    /// Of this process.
    pub(super) leader_epoch: u64,
    /// When its status was last written by this process.
    pub(super) written: Option<Timestamp>,
    /// Now.
    pub(super) now: Timestamp,
}

/// Something for this process to do.
#[derive(Debug, Clone)]
pub(super) enum Order {
    /// Move the bytes.
    Begin(Box<Transfer>),
    /// Tell the agents that it is over; nobody here is working at it.
    Withdraw {
        /// Whom, and of what.
        transfer: Box<Transfer>,
        /// Partial files go, too.
        discard: bool,
    },
    /// An attempt of this number may begin: it is written down.
    Permit(u32),
    /// End the work, and tell the agents.
    Stop {
        /// Partial files go, too.
        discard: bool,
    },
    /// Its outcome is written down.
    Forget,
}

/// What to do next.
#[derive(Debug, Clone, Default)]
pub(super) struct Decision {
    /// What to ask of the API server.
    pub(super) request: Option<Request>,
    /// What to do here.
    pub(super) order: Option<Order>,
}

impl From<Order> for Decision {
    fn from(order: Order) -> Self {
        Self {
            order: Some(order),
            request: None,
        }
    }
}

impl From<Request> for Decision {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
            order: None,
        }
    }
}

/// Why a job is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Suspend,
    Deadline,
}

/// What shall become of it.
pub(super) fn decide(view: &View<'_>) -> Decision {
    let old = view.job.status.clone().unwrap_or_default();
    if view.job.metadata.deletion_timestamp.is_some() {
        return leave(view, &old);
    }
    if old.phase.is_over() {
        return finished(view, &old);
    }
    let stop = stop(view.job, &old, view.now);
    match (view.work, stop) {
        (Some(work), stop) => match (&work.outcome, stop) {
            (Some(Outcome::Withdrawn { .. }), None) => Order::Forget.into(),
            (Some(Outcome::Withdrawn { .. }), Some(stop)) => stopped(view, &old, stop),
            (Some(Outcome::Complete | Outcome::Failed), _) => {
                write(view, &old, status::of_work(view.job, work, view.now))
            }
            (None, Some(stop)) => Order::Stop {
                discard: stop == Stop::Deadline,
            }
            .into(),
            (None, None) => go_on(view, &old, work),
        },
        (None, Some(stop)) => match settle(view, &old, stop == Stop::Deadline) {
            Some(order) => order.into(),
            None => stopped(view, &old, stop),
        },
        (None, None) => begin(view, &old),
    }
}

fn stop(job: &TransferJob, old: &TransferJobStatus, now: Timestamp) -> Option<Stop> {
    let until = job
        .spec
        .deadline_seconds
        .zip(old.start_time.as_ref())
        .and_then(|(seconds, start)| start.0.checked_add(SignedDuration::from_secs(seconds)).ok());
    if until.is_some_and(|until| now >= until) {
        Some(Stop::Deadline)
    } else {
        job.spec.suspend.then_some(Stop::Suspend)
    }
}

fn is_held(job: &TransferJob) -> bool {
    job.finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER)
}

fn hold(job: &TransferJob, hold: bool) -> Request {
    Request::Finalizer {
        key: Key::of(&job.metadata),
        uid: uid(job),
        hold,
    }
}

/// It is being deleted: first nothing of it may be left at the agents.
fn leave(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    if !is_held(view.job) {
        // It ends without us; whatever was begun for it is dropped with it.
        return Decision {
            order: view.work.map(|_| Order::Forget),
            request: None,
        };
    }
    if !old.phase.is_over()
        && let Some(order) = settle(view, old, true)
    {
        return order.into();
    }
    hold(view.job, false).into()
}

/// What is to be done until no agent is at it any more; nothing once that is so.
fn settle(view: &View<'_>, old: &TransferJobStatus, discard: bool) -> Option<Order> {
    match view.work {
        Some(work) => match work.outcome {
            None => Some(Order::Stop { discard }),
            Some(Outcome::Withdrawn { discard: false }) if discard => Some(Order::Forget),
            Some(_) => None,
        },
        None => {
            let at_work = matches!(
                old.phase,
                Phase::Planning | Phase::Preparing | Phase::Transferring
            );
            if old.attempt == 0 || !(at_work || discard) {
                return None;
            }
            resolve::involved(view.job, view.world, view.membership, view.leader_epoch)
                .filter(|transfer| !transfer.contacts.is_empty())
                .map(|transfer| Order::Withdraw {
                    transfer: Box::new(transfer),
                    discard,
                })
        }
    }
}

/// Complete or Failed: that is written, so nothing of it is of use any more.
fn finished(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    let order = view.work.map(|_| Order::Forget);
    if is_held(view.job) {
        return Decision {
            request: Some(hold(view.job, false)),
            order,
        };
    }
    let ttl = view
        .job
        .spec
        .ttl_seconds_after_finished
        .zip(old.completion_time.as_ref());
    let until =
        ttl.and_then(|(seconds, end)| end.0.checked_add(SignedDuration::from_secs(seconds)).ok());
    let request = until
        .is_some_and(|until| view.now >= until)
        .then(|| Request::DeleteJob {
            key: Key::of(&view.job.metadata),
            uid: uid(view.job),
        });
    Decision { request, order }
}

fn stopped(view: &View<'_>, old: &TransferJobStatus, stop: Stop) -> Decision {
    let new = match stop {
        Stop::Suspend => status::suspended(view.job, view.now),
        Stop::Deadline => {
            let seconds = view.job.spec.deadline_seconds.unwrap_or_default();
            let text = format!(
                "not complete {seconds} s after its start (spec.deadlineSeconds): {} of {} \
                 destinations are verified; give it more time, or see why it is slow in \
                 status.destinations",
                old.counts.verified, old.counts.total
            );
            status::failed(view.job, "DeadlineExceeded", &text, view.now)
        }
    };
    let decision = write(view, old, new);
    if decision.request.is_none() && view.work.is_some() {
        return Order::Forget.into();
    }
    decision
}

fn go_on(view: &View<'_>, old: &TransferJobStatus, work: &Snapshot) -> Decision {
    let mut decision = write(view, old, status::of_work(view.job, work, view.now));
    if let Some(number) = work.claims.filter(|number| *number <= old.attempt) {
        decision.order = Some(Order::Permit(number));
    }
    decision
}

fn begin(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    match resolve::resolve(view.job, view.world, view.membership, view.leader_epoch) {
        Ok(_) if !is_held(view.job) => hold(view.job, true).into(),
        Ok(transfer) => Order::Begin(Box::new(transfer)).into(),
        Err(Obstacle {
            reason,
            message,
            is_final: true,
        }) => write(
            view,
            old,
            status::failed(view.job, reason, &message, view.now),
        ),
        Err(obstacle) => write(view, old, status::waiting(view.job, &obstacle, view.now)),
    }
}

/// Writes a status that is another, if that is worth a write now.
fn write(view: &View<'_>, old: &TransferJobStatus, new: TransferJobStatus) -> Decision {
    if view.job.status.as_ref() == Some(&new) {
        return Decision::default();
    }
    let is_progress = view.job.status.is_some() && !status::is_transition(old, &new);
    if is_progress {
        let is_old = view
            .written
            .is_none_or(|at| view.now.duration_since(at) >= PROGRESS_AGE);
        let moved = new
            .bytes
            .saturating_sub(old.bytes)
            .saturating_mul(PROGRESS_PART);
        if !is_old || moved < new.bytes_total {
            return Decision::default();
        }
    }
    Request::JobStatus {
        key: Key::of(&view.job.metadata),
        uid: uid(view.job),
        news: status::news(old, &new),
        status: Box::new(new),
        is_progress,
    }
    .into()
}

#[cfg(test)]
mod tests;
