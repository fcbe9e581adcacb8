//! Decides the next step of a job: a pure function of the cache and of the job's transfer.
//!
//! A decision is at most one request to the API server and one effect in this process. Everything that
//! has to outlive this process is written before it is acted upon: the finalizer before the first
//! command, an attempt's number before its first command. So this process and a successor both go on from
//! what is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;
use serde_json::json;
use weft_crds::{DeletionPolicy, Phase, TransferJob, TransferJobStatus};

use crate::controllers::{
    cache::{Key, uid},
    job::{
        object_source::{self, SecretUnavailable},
        obstacle::Obstacle,
        queue::{AdmissionQueue, QueueEntry, SlotRequest},
        resolve::{self, TransferRequest},
        snapshot::Snapshot,
        status,
    },
    kinds::Cache,
    membership::Membership,
    request::{Change, FINALIZER, Priority, Request},
};
use crate::reports::{NodeState, SILENCE, nodes_with_copy};
use weft_transfer::{AgentEndpoint, Cleanup, DestinationsUpdate, End, TransferPhase};

/// Progress is written when the written progress is so old …
const PROGRESS_AGE: SignedDuration = SignedDuration::from_secs(5);
/// … and so many percent of all bytes have moved since.
const PROGRESS_PERCENT: i64 = 1;
/// A rate is also written when it is so old and has halved or doubled: people read it, and the time that is left.
const RATE_AGE: SignedDuration = SignedDuration::from_secs(60);

/// What a job is decided from.
pub(crate) struct View<'a> {
    /// The job.
    pub(crate) job: &'a TransferJob,
    /// The other objects.
    pub(crate) cache: &'a Cache,
    /// Which fabric each node belongs to.
    pub(crate) membership: &'a Membership,
    /// The snapshot of the job's running transfer.
    pub(crate) snapshot: Option<&'a Snapshot>,
    /// The node revision of the cache that the transfer's destinations were last updated from.
    pub(crate) applied_node_revision: Option<u64>,
    /// What agents say of their nodes.
    pub(crate) reports: &'a BTreeMap<String, NodeState>,
    /// Which jobs may begin.
    pub(crate) queue: &'a AdmissionQueue,
    /// Of this process.
    pub(crate) leader_epoch: u64,
    /// How long this process has led.
    pub(crate) led_for: Duration,
    /// When its status was last written by this process.
    pub(crate) status_written_at: Option<Timestamp>,
    /// Now.
    pub(crate) now: Timestamp,
}

/// Something for this process to do.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// See whether this Secret can be read: the job waits for that.
    ProbeSecret(Key),
    /// Move the bytes.
    Begin(Box<TransferRequest>),
    /// Tell the agents that it is over; nobody here is working at it.
    CancelOrphan {
        /// The agents, and the transfer that is over.
        transfer: Box<TransferRequest>,
        /// What the agents remove.
        cleanup: Cleanup,
    },
    /// The nodes have changed: the destinations as they are now, where that can be said.
    UpdateDestinations {
        /// The revision of the nodes that this is of.
        revision: u64,
        /// The destinations, and how they are reached.
        update: Option<Box<(DestinationsUpdate, Vec<AgentEndpoint>)>>,
    },
    /// An attempt of this number may begin: it is written down.
    AttemptRecorded(u32),
    /// Cancel the transfer, and tell the agents.
    Cancel(Cleanup),
    /// Drop the task. The next step is decided anew.
    DropTask,
}

/// What to do next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decision {
    /// What to ask of the API server.
    pub(crate) request: Option<Request>,
    /// What to do here.
    pub(crate) effect: Option<Effect>,
    /// The job's entry in the queue: it is running, or waits for nothing but other jobs. `None` takes it out of the queue,
    /// which frees its path and slots.
    pub(crate) entry: Option<QueueEntry>,
}

impl From<Effect> for Decision {
    fn from(effect: Effect) -> Self {
        Self {
            effect: Some(effect),
            ..Self::default()
        }
    }
}

impl From<Request> for Decision {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
            ..Self::default()
        }
    }
}

/// Why a job is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StopReason {
    Suspend,
    Deadline,
    /// Attempts were made, by this process or an earlier one; none is under way, and no further one can begin.
    Obstacle(Obstacle),
}

impl StopReason {
    /// What the agents remove. Verified copies stay.
    fn cleanup(&self) -> Cleanup {
        match self {
            Self::Suspend => Cleanup::Nothing,
            Self::Deadline | Self::Obstacle(_) => Cleanup::Partials,
        }
    }
}

/// Decides the next step of a job.
pub(crate) fn decide(view: &View<'_>) -> Decision {
    let decision = next(view);
    let running_entry = |fabric: &str, slots| QueueEntry::new(view.job, fabric, true, slots);
    // It keeps its destination path and its job slots (see `queue`) until agents have been told of its end.
    let snapshot = view.snapshot.filter(|snapshot| snapshot.end.is_none());
    let own_entry = snapshot.map(|snapshot| {
        let slots = SlotRequest::of_transfer(snapshot, view.cache);
        running_entry(&snapshot.fabric, slots)
    });
    // A leader before this one had begun it, and its agents have not been told of an end yet.
    let written_status = view.job.status.as_ref().filter(|_| view.snapshot.is_none());
    let begun = written_status.filter(|old| old.phase.is_running() && !old.fabric.is_empty());
    let earlier_entry = begun.map(|old| running_entry(&old.fabric, None));
    Decision {
        entry: own_entry.or(decision.entry).or(earlier_entry),
        ..decision
    }
}

fn next(view: &View<'_>) -> Decision {
    let old = view.job.status.clone().unwrap_or_default();
    if view.job.metadata.deletion_timestamp.is_some() {
        return finalize(view, &old);
    }
    if old.phase.is_over() {
        return finished(view);
    }
    let stop = stop(view, &old);
    match (view.snapshot, stop) {
        (Some(snapshot), stop) => match (&snapshot.end, stop) {
            // Agents that were cancelled to suspend the job are cancelled again when its partial files are to be removed.
            (Some(End::Cancelled(done)), Some(stop)) if *done >= stop.cleanup() => {
                stopped(view, &old, &stop)
            }
            (Some(End::Cancelled(_)), _) => Effect::DropTask.into(),
            (Some(End::Complete | End::Failed), _) => {
                let status = status::transfer_status(view.job, snapshot, view.now);
                let mut decision = write(view, &old, &status);
                if let Some(request) = &mut decision.request {
                    let leftovers = status::left_behind(view.job, &snapshot.unconfirmed);
                    request.events.extend(leftovers);
                }
                decision
            }
            (None, Some(stop)) => Effect::Cancel(stop.cleanup()).into(),
            (None, None) => go_on(view, &old, snapshot),
        },
        (None, Some(stop)) => match cancel_orphan(view, &old, stop.cleanup()) {
            Some(effect) => effect.into(),
            None => stopped(view, &old, &stop),
        },
        (None, None) => begin(view, &old),
    }
}

/// When it has to be looked at though nothing has happened to it.
pub(crate) fn next_deadline(job: &TransferJob) -> Option<Timestamp> {
    let status = job.status.as_ref()?;
    let after = |seconds: Option<i64>, since: Option<&Time>| {
        let span = SignedDuration::from_secs(seconds?);
        since?.0.checked_add(span).ok()
    };
    if status.phase.is_over() {
        after(
            job.spec.ttl_seconds_after_finished,
            status.completion_time.as_ref(),
        )
    } else {
        after(job.spec.deadline_seconds, status.start_time.as_ref())
    }
}

fn stop(view: &View<'_>, old: &TransferJobStatus) -> Option<StopReason> {
    if !old.phase.is_over() && next_deadline(view.job).is_some_and(|until| view.now >= until) {
        return Some(StopReason::Deadline);
    }
    if view.job.spec.suspend {
        return Some(StopReason::Suspend);
    }
    // What runs in this process goes on with the job as it was when it began.
    let runs =
        |snapshot: &Snapshot| snapshot.phase != TransferPhase::Ending && snapshot.end.is_none();
    if old.attempt == 0 || view.snapshot.is_some_and(runs) {
        return None;
    }
    let found = resolve::resolve(view.job, view.cache, view.membership, view.leader_epoch).err()?;
    let first = found.into_iter().next();
    first
        .filter(|obstacle| obstacle.is_final)
        .map(StopReason::Obstacle)
}

fn has_finalizer(job: &TransferJob) -> bool {
    job.finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER)
}

fn set_finalizer(job: &TransferJob, present: bool) -> Request {
    let finalizers: &[&str] = if present { &[FINALIZER] } else { &[] };
    let manifest = json!({ "metadata": { "finalizers": finalizers } });
    Request {
        priority: Priority::High,
        ..Request::unless_changed(job, Change::Apply(manifest))
    }
}

/// It may go.
fn remove_finalizer(view: &View<'_>) -> Request {
    let unconfirmed = view
        .snapshot
        .map_or(&[][..], |snapshot| &snapshot.unconfirmed);
    Request {
        events: status::left_behind(view.job, unconfirmed)
            .into_iter()
            .collect(),
        ..set_finalizer(view.job, false)
    }
}

/// It is being deleted: first nothing of it may be left at the agents.
fn finalize(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    if !has_finalizer(view.job) {
        // It ends without us; whatever was begun for it is dropped with it.
        return Decision {
            effect: view.snapshot.map(|_| Effect::DropTask),
            ..Decision::default()
        };
    }
    let cleanup = match view.job.spec.deletion_policy {
        DeletionPolicy::Retain => Cleanup::Partials,
        DeletionPolicy::Delete => Cleanup::Copies,
    };
    let effect = match view.snapshot.map(|snapshot| snapshot.end) {
        Some(None) => Some(Effect::Cancel(cleanup)),
        Some(Some(End::Cancelled(done))) if done >= cleanup => None,
        Some(Some(End::Complete | End::Failed)) if cleanup == Cleanup::Partials => None,
        Some(Some(_)) => Some(Effect::DropTask),
        None => cancel_orphan(view, old, cleanup),
    };
    effect.map_or_else(|| remove_finalizer(view).into(), Decision::from)
}

/// The cancel to send when this process runs no transfer for the job. `None` when the agents have nothing
/// left to stop or to remove.
fn cancel_orphan(view: &View<'_>, old: &TransferJobStatus, cleanup: Cleanup) -> Option<Effect> {
    let is_due = match cleanup {
        // An earlier leader may have begun an attempt before Waiting was written.
        Cleanup::Nothing => old.phase != Phase::Suspended && !old.phase.is_over(),
        Cleanup::Partials => !old.phase.is_over(),
        Cleanup::Copies => true,
    };
    if old.attempt == 0 || !is_due {
        return None;
    }
    let with_copy = match cleanup {
        Cleanup::Copies => nodes_with_copy(view.reports, &uid(view.job))
            .cloned()
            .collect(),
        Cleanup::Nothing | Cleanup::Partials => BTreeSet::new(),
    };
    let transfer = resolve::to_cancel(
        view.job,
        view.cache,
        view.membership,
        view.leader_epoch,
        &with_copy,
    );
    let transfer = transfer.filter(|transfer| !transfer.endpoints.is_empty())?;
    Some(Effect::CancelOrphan {
        transfer: Box::new(transfer),
        cleanup,
    })
}

/// Complete or Failed: that is written, so nothing of it is of use any more.
fn finished(view: &View<'_>) -> Decision {
    let effect = view.snapshot.map(|_| Effect::DropTask);
    // Its copies are removed before it is. A job that is over and suspended keeps no finalizer: so an uninstall lets
    // it go, after which no operator removes one.
    let verified = view
        .job
        .status
        .as_ref()
        .map_or(0, |status| status.counts.verified);
    let keep = view.job.spec.deletion_policy == DeletionPolicy::Delete
        && !view.job.spec.suspend
        && (verified > 0
            || nodes_with_copy(view.reports, &uid(view.job))
                .next()
                .is_some());
    if has_finalizer(view.job) != keep {
        return Decision {
            request: Some(set_finalizer(view.job, keep)),
            effect,
            ..Decision::default()
        };
    }
    let request = match next_deadline(view.job) {
        Some(until) if view.now >= until => Some(Request::unless_changed(view.job, Change::Delete)),
        _ => update_labelled_condition(view),
    };
    Decision {
        request,
        effect,
        ..Decision::default()
    }
}

/// Writes that nodes cannot have the job's label, and that they can again.
fn update_labelled_condition(view: &View<'_>) -> Option<Request> {
    let old = view.job.status.as_ref()?;
    let obstacle = view.cache.label_problems.get(&Key::of(&view.job.metadata));
    // A new leader has not heard all agents yet: that it knows of no problem says nothing.
    if obstacle.is_none() && view.led_for < SILENCE {
        return None;
    }
    let new = status::update_labelled_condition(view.job, obstacle, view.now)?;
    Some(Request {
        events: status::events_for(old, &new),
        ..Request::status(view.job, &new)
    })
}

fn stopped(view: &View<'_>, old: &TransferJobStatus, stop: &StopReason) -> Decision {
    let new = match stop {
        StopReason::Obstacle(obstacle) => status::failed_status(view.job, obstacle, view.now),
        StopReason::Suspend => status::suspended_status(view.job, view.now),
        StopReason::Deadline => {
            let seconds = view.job.spec.deadline_seconds.unwrap_or_default();
            let unconfirmed = view
                .snapshot
                .map_or(&[][..], |snapshot| &snapshot.unconfirmed);
            let leftovers = status::left_behind(view.job, unconfirmed);
            let leftover_note =
                leftovers.map_or(String::new(), |event| format!("; {}", event.note));
            status::deadline_status(view.job, view.snapshot, seconds, &leftover_note, view.now)
        }
    };
    let decision = write(view, old, &new);
    if decision.request.is_none() && view.snapshot.is_some() {
        return Effect::DropTask.into();
    }
    decision
}

fn go_on(view: &View<'_>, old: &TransferJobStatus, snapshot: &Snapshot) -> Decision {
    let mut decision = write(
        view,
        old,
        &status::transfer_status(view.job, snapshot, view.now),
    );
    let revision = view.cache.node_revision();
    if view.applied_node_revision != Some(revision) {
        let nodes = snapshot
            .destinations
            .iter()
            .map(|destination| destination.node.as_str());
        let existing: BTreeSet<&str> = nodes.collect();
        let update = resolve::destinations_update(view.job, view.cache, view.membership, &existing)
            .map(Box::new);
        decision.effect = Some(Effect::UpdateDestinations { revision, update });
    } else if let Some(number) = snapshot
        .unrecorded_attempt
        .filter(|number| *number <= old.attempt)
    {
        decision.effect = Some(Effect::AttemptRecorded(number));
    }
    decision
}

fn begin(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    let wait = |obstacle: &Obstacle| {
        let waiting = status::waiting_status(view.job, obstacle, view.now);
        write(view, old, &waiting)
    };
    match resolve::resolve(view.job, view.cache, view.membership, view.leader_epoch) {
        Ok(transfer) => match object_source::check_secret(view.job, view.cache) {
            Ok(()) => begin_if_admitted(view, old, transfer),
            Err(SecretUnavailable::NotProbed(secret)) => {
                // While the Secret is probed, a job keeps what it has in the queue: its place, or its path and slots.
                let is_running = old.phase.is_running();
                let keeps_entry = is_running || view.queue.has_entry(&uid(view.job));
                Decision {
                    entry: keeps_entry.then(|| {
                        let slots = SlotRequest::of(&transfer, view.cache);
                        QueueEntry::new(view.job, &transfer.fabric, is_running, slots)
                    }),
                    ..Effect::ProbeSecret(secret).into()
                }
            }
            Err(SecretUnavailable::Unreadable(obstacle)) => wait(&obstacle),
        },
        Err(found) => match found.into_iter().next() {
            Some(obstacle) if obstacle.is_final => {
                let failed = status::failed_status(view.job, &obstacle, view.now);
                write(view, old, &failed)
            }
            Some(obstacle) => wait(&obstacle),
            None => Decision::default(),
        },
    }
}

/// Nothing is in its way but other jobs.
fn begin_if_admitted(
    view: &View<'_>,
    old: &TransferJobStatus,
    transfer: TransferRequest,
) -> Decision {
    let slots = SlotRequest::of(&transfer, view.cache);
    let mut entry = QueueEntry::new(view.job, &transfer.fabric, old.phase.is_running(), slots);
    if !entry.is_running {
        let decision = match view.queue.admission(&uid(view.job), &entry) {
            // The queue has not heard of it, and decides once every job is known.
            None => Some(Decision::default()),
            Some(admission) => admission.obstacle(&entry).map(|obstacle| {
                let waiting = TransferJobStatus {
                    fabric: transfer.fabric.clone(),
                    ..status::waiting_status(view.job, &obstacle, view.now)
                };
                write(view, old, &waiting)
            }),
        };
        if let Some(decision) = decision {
            return Decision {
                entry: Some(entry),
                ..decision
            };
        }
    }
    let begins = has_finalizer(view.job);
    entry.is_running |= begins;
    Decision {
        entry: Some(entry),
        ..match begins {
            true => Effect::Begin(Box::new(transfer)).into(),
            false => set_finalizer(view.job, true).into(),
        }
    }
}

/// Writes a status that is another, if that is worth a write now.
fn write(view: &View<'_>, old: &TransferJobStatus, new: &TransferJobStatus) -> Decision {
    if view.job.status.as_ref() == Some(new) {
        return Decision::default();
    }
    let is_progress = view.job.status.is_some() && !status::is_transition(old, new);
    if is_progress {
        let is_older_than = |age| {
            let written = view.status_written_at;
            written.is_none_or(|at| view.now.duration_since(at) >= age)
        };
        let moved = new.bytes.saturating_sub(old.bytes).saturating_mul(100);
        let has_moved = moved >= new.bytes_total.saturating_mul(PROGRESS_PERCENT);
        let (before, rate) = (old.bytes_per_second, new.bytes_per_second);
        let has_other_rate = rate < before / 2 || rate / 2 > before;
        let is_news =
            has_moved && is_older_than(PROGRESS_AGE) || has_other_rate && is_older_than(RATE_AGE);
        if !is_news {
            return Decision::default();
        }
    }
    Request {
        events: status::events_for(old, new),
        priority: match is_progress {
            true => Priority::Low,
            false => Priority::High,
        },
        ..Request::status(view.job, new)
    }
    .into()
}

#[cfg(test)]
mod tests;
