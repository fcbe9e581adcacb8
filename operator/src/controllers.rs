//! The controllers: fabrics, their nodes and agents, and jobs.
//!
//! One task owns the cache (`world`) and decides everything; `fabric` and `job` are pure functions from
//! the cache to requests. It never waits for an answer: the writer sends the requests, and its answers
//! are events like those of watches. A transfer is a task of its own (`work`), which the owner looks at.
//! Only a leader runs this.
//!
//! A job is decided again when something has happened to it: the work queue has these. A request that
//! failed is made again, from what is true by then. Fabrics are few, and decided together, once a second
//! and when something but a job changes.

mod agents;
mod backoff;
mod cluster;
mod condition;
mod copies;
mod fabric;
mod holds;
mod job;
mod lead;
mod looks;
mod membership;
mod models;
mod network;
mod orders;
mod origin;
mod place;
mod question;
mod queue;
mod reading;
mod request;
mod resolve;
mod secret;
mod snapshot;
mod status;
mod tally;
mod views;
mod work;
mod work_queue;
mod world;
mod writer;

#[cfg(test)]
mod api_server;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::{api::apps::v1::DaemonSet, jiff::Timestamp};
use kube::{Client, Resource as _};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until},
};
use weft_crds::TransferJob;

pub use self::question::{Neighbour, Neighbours, Question, Survey};
pub(crate) use self::request::FINALIZER;
pub use self::tally::Tally;
use self::{
    agents::AgentTemplate,
    backoff::Backoff,
    cluster::{Cluster, ClusterError, Seen},
    holds::{Consequence, Holds},
    lead::Lead,
    looks::Looks,
    membership::Membership,
    models::Notes,
    queue::Queue,
    request::{Change, Event, Request},
    secret::Secrets,
    work::Work,
    work_queue::WorkQueue,
    world::{Key, World, uid},
    writer::{Answer, Owner, Writer},
};
use crate::{
    authority::Authority,
    patience::patiently,
    reports::{Fabrics, NodeState},
    transfer::{Channels, Vault},
    web::Pulse,
};

/// Fabrics are decided this often, and the work queue is looked at: deadlines and silences are counted in
/// seconds.
const LOOK: Duration = Duration::from_secs(1);
/// Changes that come within this time are decided together.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// A transfer whose task ended without an outcome, which is a bug, begins again after this delay …
const CRASH_FIRST: Duration = Duration::from_secs(1);
/// … that doubles up to this: a job that panics at once costs the agents and the log one attempt a minute.
/// It has no last time: a bug of the operator is no reason that a job is Failed, which is final.
const CRASH_LONGEST: Duration = Duration::from_secs(60);
/// A task that ran this long has crashed for another reason.
const CRASH_FORGET_AFTER: Duration = Duration::from_secs(600);

/// What the controllers work with.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Of this leader.
    pub epoch: u64,
    /// When the last request was sent by which its Lease was renewed.
    pub renewals: watch::Receiver<Instant>,
    /// That the controllers go on.
    pub pulse: Pulse,
    /// Its key is what agents know tickets by.
    pub authority: Arc<Authority>,
    /// The ways to agents.
    pub channels: Channels,
    /// What agents say of their nodes.
    pub reports: watch::Receiver<BTreeMap<String, NodeState>>,
    /// What agents are told; kept by the controllers.
    pub fabrics: watch::Sender<Fabrics>,
    /// The chart's manifest of an agent's DaemonSet.
    pub template: DaemonSet,
    /// HOST:PORT at which agents reach the leader.
    pub service_address: String,
    /// Requests to the API server in a second, at most; Events are among them.
    pub writes_per_second: NonZeroU32,
    /// What is counted.
    pub tally: Tally,
}

/// Why the controllers cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The operator's own Deployment could not be read.
    #[error("the Deployment weft-operator cannot be read: {0}; check the operator's role")]
    Deployment(String),
}

/// Runs until it is dropped, and answers questions in between.
pub async fn run(
    context: Context,
    mut questions: mpsc::Receiver<Question>,
) -> Result<Infallible, ControllerError> {
    let cluster = Cluster::new(context.client.clone(), &context.namespace, context.epoch);
    let deployment = patiently("the controllers cannot begin", ClusterError::passes, || {
        cluster.deployment()
    });
    let deployment = deployment
        .await
        .map_err(|error| ControllerError::Deployment(error.to_string()))?;
    let template = AgentTemplate {
        manifest: context.template.clone(),
        namespace: context.namespace.clone(),
        operator: context.service_address.clone(),
        owner: deployment.and_then(|deployment| deployment.owner_ref(&())),
    };
    let secrets = Secrets::new(context.client.clone(), &context.namespace);
    let (tell, mut seen_secrets) = mpsc::unbounded_channel();
    let mut watches = cluster.watch();
    let mut reports = context.reports.clone();
    let cluster = Arc::new(cluster);
    let mut controllers = Controllers {
        writer: Writer::new(cluster, context.writes_per_second, context.tally.clone()),
        lead: Lead::new(context.epoch, context.renewals.clone()),
        began: Instant::now(),
        led_since: Timestamp::now(),
        changed: Arc::default(),
        world: World {
            ticket_key: context.authority.ticket_key(),
            vault: Vault::new(secrets.clone()),
            ..World::default()
        },
        works: BTreeMap::new(),
        written: BTreeMap::new(),
        crashes: Backoff::new(CRASH_FIRST, CRASH_LONGEST, CRASH_FORGET_AFTER),
        notes: Notes::default(),
        holds: Holds::default(),
        looks: Looks::new(secrets, tell),
        work_queue: WorkQueue::default(),
        queue: Queue::default(),
        membership: Membership::default(),
        members_of: None,
        fabrics_of: None,
        context,
        template,
    };
    let changed = Arc::clone(&controllers.changed);
    let mut due = Instant::now() + LOOK;
    let mut send_at = due;
    loop {
        let mut are_reports_new = false;
        tokio::select! {
            Some(seen) = watches.next() => controllers.take(seen),
            answer = controllers.writer.answered() => controllers.answered(answer),
            Ok(()) = reports.changed() => are_reports_new = true,
            Some(seen) = seen_secrets.recv() => controllers.saw(seen),
            () = changed.notified() => {}
            // Before everything has been listed, nobody knows what there is.
            Some(question) = questions.recv(), if controllers.world.is_whole() => {
                controllers.answer(question);
                continue;
            }
            () = sleep_until(send_at) => {
                send_at = controllers.send();
                continue;
            }
            () = sleep_until(due) => {}
        }
        let woken = Instant::now();
        controllers.context.pulse.beat(woken);
        let begin = woken + DEBOUNCE;
        while let Ok(Some(seen)) = tokio::time::timeout_at(begin, watches.next()).await {
            controllers.take(seen);
        }
        while let Some(Some(seen)) = watches.next().now_or_never() {
            controllers.take(seen);
        }
        while let Some(answer) = controllers.writer.answered().now_or_never() {
            controllers.answered(answer);
        }
        are_reports_new |= reports.has_changed().unwrap_or(false);
        reports.mark_unchanged();
        // Without the lead there is nothing to decide either.
        if controllers.world.is_whole() && controllers.lead.may_write(Instant::now()) {
            controllers.step(are_reports_new);
        }
        send_at = controllers.send();
        let steps = &controllers.context.tally.steps;
        steps.observe(woken.elapsed().as_secs_f64());
        due = Instant::now() + LOOK;
    }
}

struct Controllers {
    context: Context,
    template: AgentTemplate,
    world: World,
    /// By the jobs' UIDs.
    works: BTreeMap<String, Work>,
    /// When a job's status was last written, by UID.
    written: BTreeMap<String, Timestamp>,
    lead: Lead,
    writer: Writer,
    /// Transfers whose task ended without an outcome, by the jobs' UIDs.
    crashes: Backoff<String>,
    notes: Notes,
    holds: Holds,
    looks: Looks,
    work_queue: WorkQueue,
    queue: Queue,
    membership: Membership,
    /// The layout that it is of.
    members_of: Option<u64>,
    /// What was around the jobs when fabrics were last decided, and when that was.
    fabrics_of: Option<(u64, Instant)>,
    began: Instant,
    /// The same by this machine's clock.
    led_since: Timestamp,
    changed: Arc<Notify>,
}

impl Controllers {
    /// Decides what there is to decide.
    fn step(&mut self, are_reports_new: bool) {
        let now = Timestamp::now();
        let layout = self.world.layout();
        if self.members_of != Some(layout) {
            self.membership = Membership::of(&self.world);
            self.members_of = Some(layout);
        }
        self.jobs(now);
        if let Some(requests) = self.fabrics(are_reports_new, now) {
            self.writer.submit(&Owner::Fabrics, requests);
        }
    }

    /// Sends what may be sent. Returns when to do so again, at the latest.
    fn send(&mut self) -> Instant {
        let now = Instant::now();
        let again = self.lead.may_write(now).then(|| self.writer.dispatch());
        again.flatten().unwrap_or(now + LOOK)
    }

    /// The API server has answered a request, or an Event.
    fn answered(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else {
            return;
        };
        let Answer {
            owner,
            request,
            result,
        } = answer;
        let object = request.object();
        match result {
            Ok(answered) => {
                self.holds.clear(&object);
                let is_status = matches!(request.change, Change::ApplyStatus(_));
                if is_status && object.kind == TransferJob::kind(&()) {
                    self.written.insert(request.uid.clone(), Timestamp::now());
                }
                self.world.learn(&object, answered);
                self.writer.publish(&request.reference(), &request.events);
            }
            Err(error) => self.failed(&request, &error),
        }
        if let Owner::Job(key) = owner {
            self.work_queue.add(key);
        }
    }

    fn failed(&mut self, request: &Request, error: &ClusterError) {
        let (kind, Key { namespace, name }) = (request.kind(), &request.key);
        if error.is_conflict() {
            tracing::debug!(kind, namespace, name, %error, "the object has changed");
        } else {
            tracing::warn!(kind, namespace, name, %error, "a write failed; it is repeated");
            self.context.tally.failed.inc();
        }
        let elapsed = self.began.elapsed();
        match error.consequence(request) {
            Consequence::LeaveOut { node, key } => self.holds.leave_out(node, key, elapsed),
            Consequence::Hold(failure) => self.holds.hold(request.object(), failure, elapsed),
        }
    }

    /// Takes what a watch says.
    fn take(&mut self, seen: Seen) {
        self.lead.sees(seen.leader_epoch(), Instant::now());
        seen.enter(&mut self.world);
    }

    fn answer(&self, question: Question) {
        let works = self.works.iter();
        let snapshots = works.map(|(uid, work)| (uid.clone(), work.look()));
        let (snapshots, epoch) = (snapshots.collect(), self.context.epoch);
        let known = question::Known {
            world: &self.world,
            snapshots: &snapshots,
            queue: &self.queue,
            leader_epoch: epoch,
        };
        question::answer(question, &known, Timestamp::now());
    }

    /// The jobs to decide now.
    fn due(&mut self) -> BTreeSet<Key> {
        let changed = self.world.take_changed_jobs();
        if !changed.is_empty() {
            let uids: BTreeSet<String> = self.world.jobs.iter().map(|(_, job)| uid(job)).collect();
            self.works.retain(|uid, _| uids.contains(uid));
            self.written.retain(|uid, _| uids.contains(uid));
            self.queue.keep(&uids);
            let jobs = &self.world.jobs;
            self.work_queue.retain(|key| jobs.get(key).is_some());
            self.crashes.retain(|uid| uids.contains(uid));
        }
        for key in changed {
            if self.world.jobs.get(&key).is_none() {
                self.writer.submit(&Owner::Job(key.clone()), Vec::new());
            }
            self.work_queue.add(key);
        }
        for work in self.works.values() {
            if let Some(key) = work.news() {
                self.work_queue.add(key.clone());
            }
        }
        let elapsed = self.began.elapsed();
        for (uid, work) in self.works.extract_if(.., |_, work| work.is_lost()) {
            let wait = self.crashes.failed(uid.clone(), elapsed);
            tracing::error!(
                uid,
                "a transfer's task ended without an outcome; it begins again in {wait:?}"
            );
            self.work_queue.add_at(work.key(), elapsed + wait);
            if let Some(job) = self.world.jobs.get(work.key()) {
                let object = job.object_ref(&());
                self.writer.publish(&object, &[interrupted(wait)]);
            }
        }
        if self.work_queue.is_for_all(self.world.layout(), elapsed) {
            for (key, _) in self.world.jobs.iter() {
                self.work_queue.add(key.clone());
            }
        }
        self.work_queue.take(elapsed)
    }

    /// Decides the jobs that something has happened to.
    fn jobs(&mut self, now: Timestamp) {
        let held = self.holds.nodes(self.began.elapsed());
        let mut orders = Vec::new();
        self.forget_looks();
        for key in self.due() {
            let Some(job) = self.world.jobs.get(&key) else {
                continue;
            };
            let uid = uid(job);
            let work = self.works.get_mut(&uid);
            let met = work.as_ref().and_then(|work| work.met());
            let (work, over) = match work {
                Some(work) => (Some(work.snapshot()), work.over()),
                None => (None, Duration::ZERO),
            };
            let decision = job::decide(&job::View {
                job,
                world: &self.world,
                membership: &self.membership,
                work: work.as_deref(),
                met,
                over,
                held: &held,
                queue: &self.queue,
                leader_epoch: self.context.epoch,
                began: self.led_since,
                written: self.written.get(&uid).copied(),
                now,
            });
            self.queue.see(&uid, decision.party);
            if let Some(due) = job::due(job).filter(|due| *due > now) {
                let left = due.duration_since(now).unsigned_abs();
                self.work_queue.add_at(&key, self.began.elapsed() + left);
            }
            if let Some(order) = decision.order {
                orders.push((key.clone(), uid, order));
            }
            let requests = decision.request.into_iter().collect();
            self.writer.submit(&Owner::Job(key), requests);
        }
        for (key, uid, order) in orders {
            // Another look says whether it came to anything.
            let soon = self.began.elapsed() + LOOK;
            self.work_queue.add_at(&key, soon);
            self.obey(key, uid, order);
        }
        for key in self.queue.settle() {
            self.work_queue.add(key);
            self.changed.notify_one();
        }
    }
}

/// What people read of a job whose transfer ended by a bug.
fn interrupted(wait: Duration) -> Event {
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
