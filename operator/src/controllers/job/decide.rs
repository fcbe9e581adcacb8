//! Decides the next step of a job: a pure function of the cache and of the job's transfer.
//!
//! A decision is at most one request to the API server and one order to this process. Everything that
//! has to outlive this process is written before it is acted upon: the finalizer before the first
//! command, an attempt's number before its first command. So this process and a successor both go on from
//! what is written.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;
use serde_json::json;
use weft_crds::{DeletionPolicy, Phase, TransferJob, TransferJobStatus};

use crate::controllers::{
    cache::{Key, uid},
    copies::{self, Parting},
    holds::HeldNodes,
    job::{
        queue::{self, Party, Queue, Stake, Turn},
        reading::{self, Shut},
        resolve::{self, Obstacle, Transfer},
        snapshot::{Outcome, Snapshot},
        status,
    },
    kinds::Cache,
    membership::Membership,
    models,
    request::{Change, FINALIZER, Priority, Request},
};
use weft_transfer::{Contact, Removal, Roster};

/// Progress is written when what is written is so old …
const PROGRESS_AGE: SignedDuration = SignedDuration::from_secs(5);
/// … and this part of all bytes has moved since: 1 %.
const PROGRESS_PART: i64 = 100;

/// So long after a deadline nodes are labelled, where a thousand take two minutes; and so long after any end
/// those are waited for whose writes fail.
const NOTING: SignedDuration = SignedDuration::from_mins(2);

/// After that the job ends without the rest of its labels: these change as fast as they are written, or
/// hundreds of nodes do not answer.
const HOPELESS: Duration = Duration::from_secs(3600);

/// What a job is decided from.
pub(crate) struct View<'a> {
    /// The job.
    pub(crate) job: &'a TransferJob,
    /// The other objects.
    pub(crate) cache: &'a Cache,
    /// Whose the nodes are.
    pub(crate) membership: &'a Membership,
    /// What this process is doing for it.
    pub(crate) work: Option<&'a Snapshot>,
    /// The layout of the cache that the work has last been told of.
    pub(crate) met: Option<u64>,
    /// For how long that has been over.
    pub(crate) over: Duration,
    /// Nodes that cannot be written to.
    pub(crate) held: &'a HeldNodes,
    /// Whose turn it is, as far as that has been decided.
    pub(crate) queue: &'a Queue,
    /// Of this process.
    pub(crate) leader_epoch: u64,
    /// When it began to lead.
    pub(crate) began: Timestamp,
    /// When its status was last written by this process.
    pub(crate) written: Option<Timestamp>,
    /// Now.
    pub(crate) now: Timestamp,
}

/// Something for this process to do.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    /// See whether this Secret can be read: the job waits for that.
    Look(Key),
    /// Move the bytes.
    Begin(Box<Transfer>),
    /// Tell the agents that it is over; nobody here is working at it.
    Withdraw {
        /// The agents, and the transfer that is over.
        transfer: Box<Transfer>,
        /// Partial files go, too.
        discard: bool,
        /// Verified copies that may go.
        copies: Vec<Removal>,
    },
    /// The cache has another layout: who is to have a copy by now, where that can be said.
    Meet {
        /// Which layout.
        layout: u64,
        /// Who, and how they are reached.
        who: Option<Box<(Roster, Vec<Contact>)>>,
    },
    /// An attempt of this number may begin: it is written down.
    Permit(u32),
    /// End the work, and tell the agents.
    Stop {
        /// Partial files go, too.
        discard: bool,
        /// Verified copies that may go.
        copies: Vec<Removal>,
    },
    /// All agents know that it is over: these copies go, and the others stay.
    Remove(Vec<Removal>),
    /// Its outcome is written down.
    Forget,
}

/// What to do next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decision {
    /// What to ask of the API server.
    pub(crate) request: Option<Request>,
    /// What to do here.
    pub(crate) order: Option<Order>,
    /// Where its jobs take turns: what the queue is to know of this one.
    pub(crate) party: Option<Party>,
}

impl From<Order> for Decision {
    fn from(order: Order) -> Self {
        Self {
            order: Some(order),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Suspend,
    Deadline,
}

/// Decides the next step of a job.
pub(crate) fn decide(view: &View<'_>) -> Decision {
    let decision = next(view);
    // It keeps its places until agents have been told of its end.
    let work = view.work.filter(|work| work.outcome.is_none());
    let stake = work.and_then(|work| Stake::of_work(view.job, work, view.cache));
    let at_work = stake.map(|stake| Party::new(view.job, true, stake));
    Decision {
        party: at_work.or(decision.party),
        ..decision
    }
}

fn next(view: &View<'_>) -> Decision {
    let old = view.job.status.clone().unwrap_or_default();
    if view.job.metadata.deletion_timestamp.is_some() {
        return leave(view, &old);
    }
    if old.phase.is_over() {
        return finished(view);
    }
    let stop = stop(view.job, &old, view.now);
    match (view.work, stop) {
        (Some(work), stop) => match (&work.outcome, stop) {
            (Some(Outcome::Withdrawn { .. }), None) => Order::Forget.into(),
            (Some(Outcome::Withdrawn { .. }), Some(Stop::Suspend)) => {
                stopped(view, &old, Stop::Suspend)
            }
            // Verified copies stay, and nodes are labelled as after any other end, for a limited time: the
            // user who set the deadline waits.
            (Some(Outcome::Withdrawn { discard }), Some(Stop::Deadline)) => {
                let until = due(view.job).and_then(|due| due.checked_add(NOTING).ok());
                let request = until.filter(|until| view.now < *until);
                let request = request.and_then(|_| label(view, work));
                match request {
                    Some(request) => request.into(),
                    None if *discard => stopped(view, &old, Stop::Deadline),
                    // Agents know that it is suspended, and must now remove what it left: they are told again.
                    None => Order::Forget.into(),
                }
            }
            (Some(Outcome::Complete | Outcome::Failed), _) => {
                // First what only this process knows: with the outcome written, nobody asks again.
                match label(view, work) {
                    Some(request) => request.into(),
                    None => write(view, &old, &status::of_work(view.job, work, view.now)),
                }
            }
            (None, Some(stop)) => Order::Stop {
                discard: stop == Stop::Deadline,
                copies: Vec::new(),
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

/// The next node to be labelled. Whoever waits for the job's end does not wait for ever for nodes that fail.
fn label(view: &View<'_>, work: &Snapshot) -> Option<Request> {
    if view.over >= HOPELESS {
        return None;
    }
    let waited = view.over.checked_sub(NOTING.unsigned_abs());
    models::next(view.job, view.cache, work, (view.held, waited))
}

/// When it has to be looked at though nothing has happened to it.
pub(crate) fn due(job: &TransferJob) -> Option<Timestamp> {
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

fn stop(job: &TransferJob, old: &TransferJobStatus, now: Timestamp) -> Option<Stop> {
    if !old.phase.is_over() && due(job).is_some_and(|until| now >= until) {
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
    let finalizers: &[&str] = if hold { &[FINALIZER] } else { &[] };
    let manifest = json!({ "metadata": { "finalizers": finalizers } });
    Request {
        priority: Priority::High,
        ..Request::unless_changed(job, Change::Apply(manifest))
    }
}

/// It may go.
fn release(view: &View<'_>) -> Request {
    let untold = view.work.map_or(&[][..], |work| &work.untold);
    Request {
        events: status::left_behind(view.job, untold).into_iter().collect(),
        ..hold(view.job, false)
    }
}

/// It is being deleted: first nothing of it may be left at the agents.
fn leave(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    if !is_held(view.job) {
        // It ends without us; whatever was begun for it is dropped with it.
        return Decision {
            order: view.work.map(|_| Order::Forget),
            ..Decision::default()
        };
    }
    if view.work.is_some_and(|work| work.has_parted) {
        return release(view).into();
    }
    let takes_copies = view.job.spec.deletion_policy == DeletionPolicy::Delete;
    let around = (view.cache, view.membership);
    // A leader that comes late is as patient as its predecessor was.
    let since = view.job.metadata.deletion_timestamp.as_ref();
    let since = since.map_or(view.began, |since| since.0.max(view.began));
    let leaving = view.now.duration_since(since);
    let leaving = Duration::try_from(leaving).unwrap_or_default();
    let held = (view.held, leaving.checked_sub(NOTING.unsigned_abs()));
    let parting = takes_copies.then(|| Parting::of(view.job, around, view.work, held));
    let unsay = parting.as_ref().and_then(|parting| parting.unsay.clone());
    let unsay = unsay.filter(|_| leaving < HOPELESS);
    match depart(view, old, parting, unsay.is_some()) {
        order @ Some(_) => Decision {
            request: unsay,
            order,
            party: None,
        },
        None => unsay.unwrap_or_else(|| release(view)).into(),
    }
}

/// What is to be done before it may go; nothing once it may, or while nodes say of copies that stay that they
/// are its own: while they do, another job that is being deleted, too, may be about to leave it some.
fn depart(
    view: &View<'_>,
    old: &TransferJobStatus,
    parting: Option<Parting<'_>>,
    is_said: bool,
) -> Option<Order> {
    let discard = true;
    if let Some(known) = view.work.and_then(|work| work.parting.as_ref()) {
        let remove = parting.map(|parting| parting.with(known));
        return (!is_said).then(|| Order::Remove(remove.unwrap_or_default()));
    }
    let copies = parting.map_or_else(Vec::new, |parting| parting.going);
    match view.work.map(|work| work.outcome) {
        Some(None) => Some(Order::Stop { discard, copies }),
        // Whatever goes or stays, agents are told first.
        None if is_said && !old.phase.is_over() => settle(view, old, discard),
        _ if is_said => None,
        _ if !copies.is_empty() => withdraw(view, discard, copies),
        // Whoever could be reached has been told.
        Some(Some(Outcome::Withdrawn { discard: true } | Outcome::Complete | Outcome::Failed)) => {
            None
        }
        Some(Some(Outcome::Withdrawn { discard: false })) => Some(Order::Forget),
        None if old.phase.is_over() => None,
        None => settle(view, old, discard),
    }
}

fn withdraw(view: &View<'_>, discard: bool, copies: Vec<Removal>) -> Option<Order> {
    resolve::involved(
        view.job,
        view.cache,
        view.membership,
        view.leader_epoch,
        &copies,
    )
    .filter(|transfer| !transfer.contacts.is_empty())
    .map(|transfer| Order::Withdraw {
        transfer: Box::new(transfer),
        discard,
        copies,
    })
}

/// What is to be done until no agent is at it any more, where nobody here is; nothing once that is so.
fn settle(view: &View<'_>, old: &TransferJobStatus, discard: bool) -> Option<Order> {
    // Waiting may have been written over an attempt of a leader before this one.
    let at_work = old.phase != Phase::Suspended && !old.phase.is_over();
    if old.attempt == 0 || !(at_work || discard) {
        return None;
    }
    withdraw(view, discard, Vec::new())
}

/// Complete or Failed: that is written, so nothing of it is of use any more.
fn finished(view: &View<'_>) -> Decision {
    let order = view.work.map(|_| Order::Forget);
    // What is removed with it is removed before it is. A suspended job keeps nothing and is kept by
    // nothing: an uninstall suspends all, and nobody is there afterwards to remove anything.
    let keep = view.job.spec.deletion_policy == DeletionPolicy::Delete
        && !view.job.spec.suspend
        && !copies::brought(view.job, view.cache, None).is_empty();
    if is_held(view.job) != keep {
        return Decision {
            request: Some(hold(view.job, keep)),
            order,
            party: None,
        };
    }
    let request = due(view.job)
        .is_some_and(|until| view.now >= until)
        .then(|| Request::unless_changed(view.job, Change::Delete));
    Decision {
        request,
        order,
        party: None,
    }
}

fn stopped(view: &View<'_>, old: &TransferJobStatus, stop: Stop) -> Decision {
    let new = match stop {
        Stop::Suspend => status::suspended(view.job, view.now),
        Stop::Deadline => {
            let seconds = view.job.spec.deadline_seconds.unwrap_or_default();
            let untold = view.work.map_or(&[][..], |work| &work.untold);
            let left = status::left_behind(view.job, untold);
            let left = left.map_or(String::new(), |left| format!("; {}", left.note));
            status::overdue(view.job, view.work, seconds, &left, view.now)
        }
    };
    let decision = write(view, old, &new);
    if decision.request.is_none() && view.work.is_some() {
        return Order::Forget.into();
    }
    decision
}

fn go_on(view: &View<'_>, old: &TransferJobStatus, work: &Snapshot) -> Decision {
    let mut decision = write(view, old, &status::of_work(view.job, work, view.now));
    if decision.request.is_none() {
        decision.request = label(view, work);
    }
    let layout = view.cache.layout();
    if view.met != Some(layout) {
        let nodes = work.destinations.iter().map(|there| there.node.as_str());
        let has: BTreeSet<&str> = nodes.collect();
        let who = resolve::roster(view.job, view.cache, view.membership, &has).map(Box::new);
        decision.order = Some(Order::Meet { layout, who });
    } else if let Some(number) = work.claims.filter(|number| *number <= old.attempt) {
        decision.order = Some(Order::Permit(number));
    }
    decision
}

fn begin(view: &View<'_>, old: &TransferJobStatus) -> Decision {
    let wait = |obstacle: &Obstacle| {
        let waiting = status::waiting(view.job, obstacle, view.now);
        write(view, old, &waiting)
    };
    match resolve::resolve(view.job, view.cache, view.membership, view.leader_epoch) {
        Ok(transfer) => match reading::unlocked(view.job, view.cache) {
            Ok(()) => in_turn(view, old, transfer),
            Err(Shut::Unseen(secret)) => {
                // What is at work keeps its places while that is seen.
                let stake = Stake::of(&transfer, view.cache).filter(|_| queue::is_at_work(old));
                Decision {
                    party: stake.map(|stake| Party::new(view.job, true, stake)),
                    ..Order::Look(secret).into()
                }
            }
            Err(Shut::Denied(obstacle)) => wait(&obstacle),
        },
        Err(Obstacle {
            reason,
            message,
            is_final: true,
        }) => write(
            view,
            old,
            &status::failed(view.job, reason, &message, view.now),
        ),
        Err(obstacle) => wait(&obstacle),
    }
}

/// Nothing but its turn is in its way.
fn in_turn(view: &View<'_>, old: &TransferJobStatus, transfer: Transfer) -> Decision {
    let is_at_work = queue::is_at_work(old);
    let stake = Stake::of(&transfer, view.cache);
    let party = |is_at_work| {
        let stake = stake.clone();
        stake.map(|stake| Party::new(view.job, is_at_work, stake))
    };
    if let Some(stake) = stake.as_ref().filter(|_| !is_at_work) {
        let decision = match view.queue.turn(&uid(view.job), stake) {
            Some(Turn::Begins) => None,
            Some(Turn::Waits { node, .. }) => {
                let obstacle = queue::queued(node, &stake.fabric);
                let waiting = TransferJobStatus {
                    fabric: stake.fabric.clone(),
                    ..status::waiting(view.job, &obstacle, view.now)
                };
                Some(write(view, old, &waiting))
            }
            // The queue has not heard of it, and decides with the next look.
            None => Some(Decision::default()),
        };
        if let Some(decision) = decision {
            return Decision {
                party: party(false),
                ..decision
            };
        }
    }
    let begins = is_held(view.job);
    Decision {
        party: party(is_at_work || begins),
        ..match begins {
            true => Order::Begin(Box::new(transfer)).into(),
            false => hold(view.job, true).into(),
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
    Request {
        events: status::news(old, new),
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
