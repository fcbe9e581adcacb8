//! Jobs: what is decided about them, and the transfers that this process runs.
//!
//! [`decide`] says what is next for a job, from what the API has and how far its transfer is. A transfer is
//! a task of its own ([`transfer_task`]). A job is decided again when something has happened to it or its time has
//! come: the work queue has these. A request that failed is made again, from what is true by then.

pub(crate) mod decide;
pub(crate) mod job_side;
pub(crate) mod network;
pub(crate) mod object_source;
pub(crate) mod obstacle;
pub(crate) mod origin;
pub(crate) mod query;
pub(crate) mod queue;
pub(crate) mod resolve;
pub(crate) mod secret;
mod secret_probes;
pub(crate) mod snapshot;
pub(crate) mod status;
mod trace;
mod transfer_task;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use opentelemetry_sdk::trace::SdkTracer;
use tokio::sync::{Notify, watch};
use weft_crds::TransferJob;

use self::{
    decide::Effect, obstacle::Obstacle, query::Query, queue::AdmissionQueue,
    secret_probes::SecretProbes, transfer_task::TransferTask,
};
use super::{
    api_writer::WriteError,
    backoff::Backoff,
    cache::{Key, uid},
    controller::{Controller, ReconcileContext, Setup, TICK},
    kinds::Cache,
    request::{Change, Event, ObjectId, Request},
    work_queue::WorkQueue,
};
use crate::reports::NodeState;
use weft_transfer::ConnectionPool;

/// A transfer whose task ended without an outcome, which is a bug, begins again after this delay …
const CRASH_FIRST: Duration = Duration::from_secs(1);
/// … that doubles up to this: a job that panics at once costs the agents and the log one attempt a minute.
/// The number of restarts has no limit: a bug of the operator is no reason that a job is Failed, which is final.
const CRASH_LONGEST: Duration = Duration::from_secs(60);
/// A task that ran this long has crashed for another reason.
const CRASH_FORGET_AFTER: Duration = Duration::from_secs(600);

/// Decides jobs.
pub(crate) struct JobController {
    /// By the jobs' UIDs.
    tasks: BTreeMap<String, TransferTask>,
    /// When a job's status was last written, by UID.
    status_written_at: BTreeMap<String, Timestamp>,
    /// Transfers whose task ended without an outcome, by the jobs' UIDs.
    crashes: Backoff<String>,
    probes: SecretProbes,
    /// Why nodes cannot have the label of a job, by job, as the jobs were last decided.
    label_problems: BTreeMap<Key, Obstacle>,
    work_queue: WorkQueue,
    queue: AdmissionQueue,
    pool: ConnectionPool,
    /// Makes the spans of transfers, where they are asked for.
    tracer: Option<SdkTracer>,
    /// What agents say of their nodes.
    reports: watch::Receiver<BTreeMap<String, NodeState>>,
    wake: Arc<Notify>,
    epoch: u64,
}

impl JobController {
    /// No job is known yet.
    pub(crate) fn new(setup: &Setup<'_>) -> Self {
        Self {
            tasks: BTreeMap::new(),
            status_written_at: BTreeMap::new(),
            crashes: Backoff::new(CRASH_FIRST, CRASH_LONGEST, CRASH_FORGET_AFTER),
            probes: SecretProbes::new(setup.secrets.clone(), Arc::clone(&setup.wake)),
            label_problems: BTreeMap::new(),
            work_queue: WorkQueue::default(),
            queue: AdmissionQueue::new(setup.context.jobs_per_namespace.get() as usize),
            pool: setup.context.pool.clone(),
            tracer: setup.context.tracer.clone(),
            reports: setup.context.reports.clone(),
            wake: Arc::clone(&setup.wake),
            epoch: setup.context.epoch,
        }
    }

    /// The jobs to decide now.
    fn due(&mut self, context: &mut ReconcileContext<'_>) -> BTreeSet<Key> {
        let changed = context.cache.jobs.changed().clone();
        if !changed.is_empty() {
            let uids: BTreeSet<String> =
                context.cache.jobs.iter().map(|(_, job)| uid(job)).collect();
            self.tasks.retain(|uid, _| uids.contains(uid));
            self.status_written_at.retain(|uid, _| uids.contains(uid));
            self.queue.retain(&uids);
            let jobs = &context.cache.jobs;
            self.work_queue.retain(|key| jobs.get(key).is_some());
            self.crashes.retain(|uid| uids.contains(uid));
        }
        for key in changed {
            if context.cache.jobs.get(&key).is_none() {
                context.submit(&key, Vec::new());
            }
            self.work_queue.add(key);
        }
        for task in self.tasks.values() {
            if task.has_new_snapshot() {
                self.work_queue.add(task.key().clone());
            }
        }
        let led_for = context.led_for;
        for (uid, task) in self.tasks.extract_if(.., |_, task| task.has_crashed()) {
            let wait = self.crashes.record_failure(uid.clone(), led_for);
            tracing::error!(
                uid,
                "a transfer's task ended without an outcome; it begins again in {wait:?}"
            );
            self.work_queue.add_at(task.key(), led_for + wait);
            if let Some(job) = context.cache.jobs.get(task.key()) {
                let object = job.object_ref(&());
                context.publish(&object, crash_event(wait));
            }
        }
        if self
            .work_queue
            .take_resync_due(context.cache.node_revision(), led_for)
        {
            for (key, _) in context.cache.jobs.iter() {
                self.work_queue.add(key.clone());
            }
        }
        self.work_queue.drain_due(led_for)
    }

    /// Does what was decided for this process to do. A transfer does not begin while requests for the job fail.
    fn execute(&mut self, context: &ReconcileContext<'_>, key: Key, uid: String, effect: Effect) {
        let object = ObjectId::of::<TransferJob>(key);
        let (pool, tracer) = (&self.pool, self.tracer.as_ref());
        let wake = Arc::clone(&self.wake);
        let task = match effect {
            Effect::Begin(_) | Effect::CancelOrphan { .. }
                if context.is_backing_off(&object)
                    || self.crashes.until(&uid, context.led_for).is_some() =>
            {
                return;
            }
            Effect::Begin(transfer) => {
                let Key { namespace, name } = &object.key;
                let attempts_before = transfer.spec.leader.attempts_before;
                tracing::info!(
                    namespace,
                    name,
                    fabric = transfer.fabric,
                    attempts_before,
                    "a transfer begins"
                );
                TransferTask::new(object.key, *transfer, None, pool, tracer, wake)
            }
            Effect::CancelOrphan { transfer, cleanup } => {
                TransferTask::new(object.key, *transfer, Some(cleanup), pool, tracer, wake)
            }
            Effect::UpdateDestinations { revision, update } => {
                if let Some(task) = self.tasks.get_mut(&uid) {
                    task.update_destinations(revision, update);
                }
                // An attempt may wait until its number is recorded.
                self.work_queue.add(object.key);
                self.wake.notify_one();
                return;
            }
            Effect::ProbeSecret(secret) => return self.probes.probe(secret),
            Effect::AttemptRecorded(attempt) => {
                if let Some(task) = self.tasks.get(&uid) {
                    task.attempt_recorded(attempt);
                }
                return;
            }
            Effect::Cancel(cleanup) => {
                if let Some(task) = self.tasks.get(&uid) {
                    task.cancel(cleanup);
                }
                return;
            }
            Effect::DropTask => {
                self.tasks.remove(&uid);
                // What follows from that is decided at once.
                self.work_queue.add(object.key);
                self.wake.notify_one();
                return;
            }
        };
        self.tasks.insert(uid, task);
    }
}

impl Controller for JobController {
    fn name(&self) -> &'static str {
        "jobs"
    }

    /// Enters the results of probes. The jobs that wait for them are decided at once, and so are those whose labels
    /// nodes cannot have, or can have again.
    fn prepare(&mut self, cache: &mut Cache) {
        if self.label_problems != cache.label_problems {
            let before = std::mem::replace(&mut self.label_problems, cache.label_problems.clone());
            for key in before
                .into_keys()
                .chain(cache.label_problems.keys().cloned())
            {
                self.work_queue.add(key);
            }
        }
        for secret in self.probes.update(&mut cache.secrets) {
            for (key, job) in cache.jobs.iter() {
                if object_source::secret(job).as_ref() == Some(&secret) {
                    self.work_queue.add(key.clone());
                }
            }
        }
    }

    /// Decides the jobs that something has happened to.
    fn reconcile(&mut self, context: &mut ReconcileContext<'_>) {
        let now = context.now;
        let reports = self.reports.clone();
        let reports = reports.borrow();
        let mut effects = Vec::new();
        for key in self.due(context) {
            let Some(job) = context.cache.jobs.get(&key) else {
                continue;
            };
            let uid = uid(job);
            let task = self.tasks.get_mut(&uid);
            let applied_node_revision = task.as_ref().and_then(|task| task.applied_node_revision());
            let snapshot = task.map(TransferTask::snapshot);
            let decision = decide::decide(&decide::View {
                job,
                cache: context.cache,
                membership: context.membership,
                snapshot: snapshot.as_deref(),
                applied_node_revision,
                reports: &reports,
                queue: &self.queue,
                leader_epoch: self.epoch,
                led_for: context.led_for,
                status_written_at: self.status_written_at.get(&uid).copied(),
                now,
            });
            self.queue.update_entry(&uid, decision.entry);
            if let Some(due) = decide::next_deadline(job).filter(|due| *due > now) {
                let remaining = due.duration_since(now).unsigned_abs();
                self.work_queue.add_at(&key, context.led_for + remaining);
            }
            if let Some(effect) = decision.effect {
                effects.push((key.clone(), uid, effect));
            }
            let requests = decision.request.into_iter().collect();
            context.submit(&key, requests);
        }
        for (key, uid, effect) in effects {
            // Decide the job again soon, to see whether the effect has come.
            let soon = context.led_for + TICK;
            self.work_queue.add_at(&key, soon);
            self.execute(context, key, uid, effect);
        }
        for key in self.queue.recompute_admissions() {
            self.work_queue.add(key);
            self.wake.notify_one();
        }
    }

    fn on_write_result(&mut self, key: &Key, request: &Request, result: Result<(), &WriteError>) {
        let is_status = matches!(request.change, Change::ApplyStatus(_));
        if is_status && result.is_ok() {
            self.status_written_at
                .insert(request.uid.clone(), Timestamp::now());
        }
        self.work_queue.add(key.clone());
    }

    fn handle_query(&self, query: Query, cache: &Cache, now: Timestamp) -> Option<Query> {
        let tasks = self.tasks.iter();
        let snapshots = tasks.map(|(uid, task)| (uid.clone(), task.peek()));
        query(&query::QueryView {
            cache,
            snapshots: &snapshots.collect(),
            queue: &self.queue,
            reports: &self.reports.borrow(),
            leader_epoch: self.epoch,
            now,
        });
        None
    }
}

/// What people read of a job whose transfer ended by a bug.
fn crash_event(wait: Duration) -> Event {
    Event {
        warning: true,
        reason: "TransferInterrupted".to_owned(),
        note: format!(
            "the operator's task for this transfer ended by a bug, which its log describes; it begins again \
             in {} s, from what is there",
            wait.as_secs()
        ),
    }
}
