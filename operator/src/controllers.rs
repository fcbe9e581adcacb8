//! The controllers: fabrics, their nodes and agents, and jobs.
//!
//! One task owns what there is (`world`) and decides everything; `fabric` and `job` are pure
//! functions from that to requests. A transfer is a task of its own (`work`), which the owner looks
//! at. Only a leader runs this.
//!
//! What something has happened to is decided anew, a job by itself: the agenda has what that is. A
//! request that failed, or that there was no room for, is simply made again, from what is true by
//! then. Fabrics are few, and decided together, once a second and when something but a job changes.

mod agenda;
mod agents;
mod bucket;
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
mod stumbles;
mod tally;
mod views;
mod work;
mod world;
mod writes;

#[cfg(test)]
mod scenario;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
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
use weft_identity::authority::Authority;
use weft_transfer::{Channels, Vault};

pub use self::question::{Neighbour, Neighbours, Question, Survey};
pub(crate) use self::request::FINALIZER;
pub use self::tally::Tally;
use self::{
    agenda::Agenda,
    agents::AgentTemplate,
    bucket::{Bucket, Rank},
    cluster::{Cluster, ClusterError, Seen},
    holds::Holds,
    lead::Lead,
    looks::Looks,
    membership::Membership,
    models::Notes,
    queue::Queue,
    request::{News, Request},
    secret::Secrets,
    stumbles::Stumbles,
    work::Work,
    world::{Key, World, uid},
    writes::rank,
};
use crate::{
    patience::patiently,
    reports::{Fabrics, NodeState},
    web::Pulse,
};

/// Fabrics are looked at so often, and the agenda: deadlines and silences are counted in seconds.
const LOOK: Duration = Duration::from_secs(1);
/// When something was left undone, it is tried again so soon.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two steps: what comes in a bunch is decided at once.
const BREATH: Duration = Duration::from_millis(20);

/// Writes that no job's change waits for take so long in a step, but for the last of them: it may be one
/// that is not answered.
const WRITES_WITHIN: Duration = Duration::from_secs(2);

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
    let mut controllers = Controllers {
        bucket: Bucket::new(Duration::ZERO),
        label_bucket: Bucket::of_labels(Duration::ZERO),
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
        labelled: None,
        stumbles: Stumbles::default(),
        untold: Vec::new(),
        notes: Notes::default(),
        holds: Holds::default(),
        looks: Looks::new(secrets, tell),
        agenda: Agenda::default(),
        queue: Queue::default(),
        membership: Membership::default(),
        members_of: None,
        fabrics_of: None,
        cluster,
        context,
        template,
    };
    let changed = Arc::clone(&controllers.changed);
    let mut due = Instant::now() + LOOK;
    loop {
        let mut are_reports_new = false;
        tokio::select! {
            Some(seen) = watches.next() => controllers.take(seen),
            Ok(()) = reports.changed() => are_reports_new = true,
            Some(seen) = seen_secrets.recv() => controllers.saw(seen),
            () = changed.notified() => {}
            // Before everything has been listed, nobody knows what there is.
            Some(question) = questions.recv(), if controllers.world.is_whole() => {
                controllers.answer(question);
                continue;
            }
            () = sleep_until(due) => {}
        }
        let woken = Instant::now();
        controllers.context.pulse.beat(woken);
        let begin = woken + BREATH;
        while let Ok(Some(seen)) = tokio::time::timeout_at(begin, watches.next()).await {
            controllers.take(seen);
        }
        while let Some(Some(seen)) = watches.next().now_or_never() {
            controllers.take(seen);
        }
        are_reports_new |= reports.has_changed().unwrap_or(false);
        reports.mark_unchanged();
        let all_done = if controllers.world.is_whole() {
            // Whoever may not write has nothing to decide either.
            controllers.lead.may_write(Instant::now()) && controllers.step(are_reports_new).await
        } else {
            true
        };
        let steps = &controllers.context.tally.steps;
        steps.observe(woken.elapsed().as_secs_f64());
        due = Instant::now() + if all_done { LOOK } else { AGAIN };
    }
}

struct Controllers {
    context: Context,
    cluster: Cluster,
    template: AgentTemplate,
    world: World,
    /// By the jobs' UIDs.
    works: BTreeMap<String, Work>,
    /// When a job's status was last written, by UID.
    written: BTreeMap<String, Timestamp>,
    /// The job whose node was labelled last.
    labelled: Option<Key>,
    lead: Lead,
    stumbles: Stumbles,
    /// What people shall hear of jobs and has not been said yet.
    untold: Vec<(Key, News)>,
    notes: Notes,
    holds: Holds,
    looks: Looks,
    agenda: Agenda,
    queue: Queue,
    membership: Membership,
    /// The layout that it is of.
    members_of: Option<u64>,
    /// What was around the jobs when fabrics were last decided, and when that was.
    fabrics_of: Option<(u64, Instant)>,
    bucket: Bucket,
    /// Of these, labels.
    label_bucket: Bucket,
    began: Instant,
    /// The same by this machine's clock.
    led_since: Timestamp,
    changed: Arc<Notify>,
}

impl Controllers {
    /// Decides what there is to decide and does what there is room for; whether there was room for all.
    async fn step(&mut self, are_reports_new: bool) -> bool {
        let now = Timestamp::now();
        let layout = self.world.layout();
        if self.members_of != Some(layout) {
            self.membership = Membership::of(&self.world);
            self.members_of = Some(layout);
        }
        let jobs = self.jobs(now);
        // The jobs first: people wait for them. Progress last.
        let (mut progress, mut transitions, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for (key, request) in jobs {
            match rank(&request) {
                Rank::Change => transitions.push((key, request)),
                Rank::Progress => progress.push((key, request)),
                Rank::Label => labels.push((key, request)),
            }
        }
        let mut all_done = true;
        let mut looked = Vec::new();
        for (key, request) in transitions {
            let is_done = self.carry_out(&request, now).await;
            looked.push((key, if is_done { LOOK } else { AGAIN }));
            all_done &= is_done;
        }
        for (key, news) in std::mem::take(&mut self.untold) {
            let job = self.world.jobs.get(&key).map(|job| job.object_ref(&()));
            self.tell(job, "Transfer", &[news]).await;
        }
        // A write that is not answered takes its time, and jobs are not looked at meanwhile. So each kind has a
        // bound of its own, and what has come to nothing is tried after all that has not.
        let mut fabrics = self.fabrics(are_reports_new, now);
        fabrics.sort_by_key(|request| self.holds.failures(&request.object()));
        let until = Instant::now() + WRITES_WITHIN;
        for request in fabrics {
            let has_time = Instant::now() < until;
            all_done &= has_time && self.carry_out(&request, now).await;
        }
        // Before progress, and with a pace of their own: neither waits for ever.
        all_done &= self.label(labels, &mut looked, now).await;
        // Where there is no room for all, those come first that were shown longest ago.
        progress.sort_by_key(|(_, request)| match request {
            Request::JobStatus { uid, .. } => self.written.get(uid).copied(),
            _ => None,
        });
        let until = Instant::now() + WRITES_WITHIN;
        for (key, request) in progress {
            let has_time = Instant::now() < until;
            let is_done = has_time && self.carry_out(&request, now).await;
            looked.push((key, if is_done { LOOK } else { AGAIN }));
        }
        // Whether it was done, and what follows from it, is seen by another look.
        let elapsed = self.began.elapsed();
        for (key, wait) in looked {
            self.agenda.at(&key, elapsed + wait);
        }
        all_done
    }

    /// Has nodes labelled, as far as there is room; whether there was for all. A job has one label after the
    /// other, and may have a thousand: they take turns.
    async fn label(
        &mut self,
        mut labels: Vec<(Key, Request)>,
        looked: &mut Vec<(Key, Duration)>,
        now: Timestamp,
    ) -> bool {
        let is_next =
            |(key, _): &(Key, Request)| self.labelled.as_ref().is_none_or(|last| key > last);
        let next = labels.iter().position(is_next).unwrap_or_default();
        labels.rotate_left(next);
        let mut has_room = true;
        let until = Instant::now() + WRITES_WITHIN;
        for (key, request) in labels {
            let elapsed = self.began.elapsed();
            let is_held = self.holds.is_held(&request.object(), elapsed);
            let wait = if is_held || !has_room {
                LOOK
            } else if Instant::now() < until
                && self.label_bucket.take(elapsed, Rank::Label)
                && self.carry_out(&request, now).await
            {
                self.labelled = Some(key.clone());
                // The next one at once: it is no change of the job by which that would be looked at.
                Duration::ZERO
            } else {
                has_room = false;
                AGAIN
            };
            looked.push((key, wait));
        }
        has_room
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

    /// The jobs that are to be decided now.
    fn due(&mut self) -> BTreeSet<Key> {
        let changed = self.world.take_changed_jobs();
        if !changed.is_empty() {
            let uids: BTreeSet<String> = self.world.jobs.iter().map(|(_, job)| uid(job)).collect();
            self.works.retain(|uid, _| uids.contains(uid));
            self.written.retain(|uid, _| uids.contains(uid));
            self.queue.keep(&uids);
            let jobs = &self.world.jobs;
            self.agenda.keep(|key| jobs.get(key).is_some());
            self.stumbles.keep(&uids);
        }
        changed.into_iter().for_each(|key| self.agenda.note(key));
        for work in self.works.values() {
            if let Some(key) = work.news() {
                self.agenda.note(key.clone());
            }
        }
        let elapsed = self.began.elapsed();
        for (uid, work) in self.works.extract_if(.., |_, work| work.is_lost()) {
            let wait = self.stumbles.stumbled(&uid, elapsed);
            tracing::error!(
                uid,
                "a transfer's task ended without an outcome; it begins again in {wait:?}"
            );
            self.agenda.at(work.key(), elapsed + wait);
            self.untold
                .push((work.key().clone(), stumbles::interrupted(wait)));
        }
        if self.agenda.is_for_all(self.world.layout(), elapsed) {
            for (key, _) in self.world.jobs.iter() {
                self.agenda.note(key.clone());
            }
        }
        self.agenda.take(elapsed)
    }

    /// Decides jobs and does what is to be done here; gives what is to be written.
    fn jobs(&mut self, now: Timestamp) -> Vec<(Key, Request)> {
        let held = self.holds.nodes(self.began.elapsed());
        let (mut orders, mut requests) = (Vec::new(), Vec::new());
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
                self.agenda.at(&key, self.began.elapsed() + left);
            }
            if let Some(order) = decision.order {
                orders.push((key.clone(), uid, order));
            }
            if let Some(request) = decision.request {
                requests.push((key, request));
            }
        }
        for (key, uid, order) in orders {
            // Another look says whether it came to anything.
            let soon = self.began.elapsed() + LOOK;
            self.agenda.at(&key, soon);
            self.obey(key, uid, order);
        }
        for key in self.queue.settle() {
            self.agenda.note(key);
            self.changed.notify_one();
        }
        requests
    }
}
