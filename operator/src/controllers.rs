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
mod fabric;
mod job;
mod membership;
mod models;
mod network;
mod question;
mod reading;
mod request;
mod resolve;
mod secret;
mod snapshot;
mod status;
mod work;
mod world;

#[cfg(test)]
mod scenario;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::ObjectReference},
    jiff::Timestamp,
};
use kube::{Client, Resource as _, ResourceExt as _};
use prometheus_client::{
    metrics::{
        counter::Counter,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until},
};

pub use self::question::{Neighbour, Neighbours, Question, Survey};
pub(crate) use self::request::FINALIZER;
use self::{
    agenda::Agenda,
    agents::AgentTemplate,
    bucket::Bucket,
    cluster::Cluster,
    fabric::Sighting,
    job::Order,
    membership::Membership,
    request::Request,
    secret::{SecretFault, Secrets},
    work::Work,
    world::{Key, World, uid},
};
use crate::{
    authority::Authority,
    reports::{FabricView, Fabrics, NodeState},
    transfer::{Channels, Vault},
};

/// Fabrics are looked at so often, and the agenda: deadlines and silences are counted in seconds.
const LOOK: Duration = Duration::from_secs(1);
/// Whether a Secret can be read is believed for so long: nothing tells when that changes, and who waits
/// for it is looked at with all others by then.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// When something was left undone, it is tried again so soon.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two steps: what comes in a bunch is decided at once.
const BREATH: Duration = Duration::from_millis(20);
/// An object whose request failed is left alone for so long …
const HOLD: Duration = Duration::from_secs(1);
/// … which doubles so often: 32 s.
const HOLD_DOUBLINGS: u32 = 5;

/// What the controllers count.
#[derive(Debug, Clone)]
pub struct Tally {
    writes: Counter,
    dropped: Counter,
    failed: Counter,
    steps: Histogram,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            writes: Counter::default(),
            dropped: Counter::default(),
            failed: Counter::default(),
            // From 1 ms to 16 s.
            steps: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
        }
    }
}

impl Tally {
    /// Shows it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "weft_operator_writes",
            "Requests to the API server that changed something, Events included",
            self.writes.clone(),
        );
        registry.register(
            "weft_operator_writes_dropped",
            "Progress and Events that were not written because 20 writes a second are the limit",
            self.dropped.clone(),
        );
        registry.register(
            "weft_operator_writes_failed",
            "Requests that the API server refused or did not answer; they are made again",
            self.failed.clone(),
        );
        registry.register(
            "weft_operator_step_seconds",
            "From hearing of a change to having decided everything anew and asked for what follows",
            self.steps.clone(),
        );
    }
}

/// What the controllers work with.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Of this leader.
    pub epoch: u64,
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
    let cluster = Cluster::new(context.client.clone(), &context.namespace);
    let deployment = cluster
        .deployment()
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
        began: Instant::now(),
        changed: Arc::default(),
        world: World {
            ticket_key: context.authority.ticket_key(),
            vault: Vault::new(secrets.clone()),
            ..World::default()
        },
        works: BTreeMap::new(),
        written: BTreeMap::new(),
        holds: BTreeMap::new(),
        looks: Looks {
            secrets,
            begun: BTreeMap::new(),
            tell,
        },
        agenda: Agenda::default(),
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
            Some(seen) = watches.next() => seen.enter(&mut controllers.world),
            Ok(()) = reports.changed() => are_reports_new = true,
            Some((secret, seen)) = seen_secrets.recv() => controllers.saw(secret, seen),
            () = changed.notified() => {}
            // Before everything has been listed, nobody knows what there is.
            Some(question) = questions.recv(), if controllers.world.is_whole() => {
                controllers.answer(question);
                continue;
            }
            () = sleep_until(due) => {}
        }
        let woken = Instant::now();
        let begin = woken + BREATH;
        while let Ok(Some(seen)) = tokio::time::timeout_at(begin, watches.next()).await {
            seen.enter(&mut controllers.world);
        }
        while let Some(Some(seen)) = watches.next().now_or_never() {
            seen.enter(&mut controllers.world);
        }
        are_reports_new |= reports.has_changed().unwrap_or(false);
        reports.mark_unchanged();
        let all_done = !controllers.world.is_whole() || controllers.step(are_reports_new).await;
        let steps = &controllers.context.tally.steps;
        steps.observe(woken.elapsed().as_secs_f64());
        due = Instant::now() + if all_done { LOOK } else { AGAIN };
    }
}

/// Only bytes have moved.
fn is_progress(request: &Request) -> bool {
    matches!(
        request,
        Request::JobStatus {
            is_progress: true,
            ..
        }
    )
}

/// An object that is left alone for a while.
struct Hold {
    until: Instant,
    failures: u32,
    /// The API server said no, and will again.
    is_refused: bool,
}

/// Whether Secrets can be read, asked of the API server for jobs that wait for it.
struct Looks {
    secrets: Secrets,
    /// When each was last begun.
    begun: BTreeMap<Key, Instant>,
    tell: mpsc::UnboundedSender<(Key, Result<(), SecretFault>)>,
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
    holds: BTreeMap<(&'static str, Key), Hold>,
    looks: Looks,
    agenda: Agenda,
    membership: Membership,
    /// The layout that it is of.
    members_of: Option<u64>,
    /// What was around the jobs when fabrics were last decided, and when that was.
    fabrics_of: Option<(u64, Instant)>,
    bucket: Bucket,
    began: Instant,
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
        let (mut progress, transitions): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .partition(|(_, request)| is_progress(request));
        let mut all_done = true;
        let mut looked = Vec::new();
        for (key, request) in transitions {
            let is_done = self.carry_out(&request, now).await;
            looked.push((key, is_done));
            all_done &= is_done;
        }
        for request in self.fabrics(are_reports_new, now) {
            all_done &= self.carry_out(&request, now).await;
        }
        // Where there is no room for all, those come first that were shown longest ago.
        progress.sort_by_key(|(_, request)| match request {
            Request::JobStatus { uid, .. } => self.written.get(uid).copied(),
            _ => None,
        });
        for (key, request) in progress {
            let is_done = self.carry_out(&request, now).await;
            looked.push((key, is_done));
        }
        // Whether it was done, and what follows from it, is seen by another look.
        let elapsed = self.began.elapsed();
        for (key, is_done) in looked {
            let wait = if is_done { LOOK } else { AGAIN };
            self.agenda.at(&key, elapsed + wait);
        }
        all_done
    }

    fn answer(&self, question: Question) {
        let works = self.works.iter();
        let snapshots = works.map(|(uid, work)| (uid.clone(), work.look()));
        let (snapshots, epoch) = (snapshots.collect(), self.context.epoch);
        question::answer(question, &self.world, &snapshots, epoch, Timestamp::now());
    }

    /// Decides the fabrics, if it is time.
    fn fabrics(&mut self, are_reports_new: bool, now: Timestamp) -> Vec<Request> {
        let around = self.world.surroundings();
        let is_time = self
            .fabrics_of
            .is_none_or(|(known, at)| known != around || at.elapsed() >= LOOK);
        if !is_time && !are_reports_new {
            return Vec::new();
        }
        self.fabrics_of = Some((around, Instant::now()));
        self.publish(&self.membership);
        fabric::decide(&fabric::View {
            world: &self.world,
            membership: &self.membership,
            sightings: &self.sightings(),
            leading: self.began.elapsed(),
            template: &self.template,
            now,
        })
    }

    /// The jobs that are to be decided now.
    fn due(&mut self) -> BTreeSet<Key> {
        let changed = self.world.take_changed_jobs();
        if !changed.is_empty() {
            let uids: BTreeSet<String> = self.world.jobs.iter().map(|(_, job)| uid(job)).collect();
            self.works.retain(|uid, _| uids.contains(uid));
            self.written.retain(|uid, _| uids.contains(uid));
        }
        changed.into_iter().for_each(|key| self.agenda.note(key));
        for work in self.works.values() {
            if let Some(key) = work.news() {
                self.agenda.note(key.clone());
            }
        }
        self.works.retain(|uid, work| {
            if work.is_lost() {
                tracing::error!(
                    uid,
                    "a transfer's task ended without an outcome; it begins again"
                );
            }
            !work.is_lost()
        });
        let elapsed = self.began.elapsed();
        if self.agenda.is_for_all(self.world.layout(), elapsed) {
            for (key, _) in self.world.jobs.iter() {
                self.agenda.note(key.clone());
            }
        }
        self.agenda.take(elapsed)
    }

    /// Decides jobs and does what is to be done here; gives what is to be written.
    fn jobs(&mut self, now: Timestamp) -> Vec<(Key, Request)> {
        let nodes = self
            .holds
            .iter()
            .filter(|((kind, _), hold)| *kind == "Node" && hold.is_refused);
        let refused: BTreeSet<String> = nodes.map(|((_, key), _)| key.name.clone()).collect();
        let (mut orders, mut requests) = (Vec::new(), Vec::new());
        self.forget_looks();
        for key in self.due() {
            let Some(job) = self.world.jobs.get(&key) else {
                continue;
            };
            let uid = uid(job);
            let work = self.works.get_mut(&uid);
            let met = work.as_ref().and_then(|work| work.met());
            let work = work.map(Work::snapshot);
            let decision = job::decide(&job::View {
                job,
                world: &self.world,
                membership: &self.membership,
                work: work.as_deref(),
                met,
                refused: &refused,
                leader_epoch: self.context.epoch,
                written: self.written.get(&uid).copied(),
                now,
            });
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
        requests
    }

    fn obey(&mut self, key: Key, uid: String, order: Order) {
        let object = ("TransferJob", key);
        let channels = &self.context.channels;
        let changed = Arc::clone(&self.changed);
        let work = match order {
            Order::Begin(_) | Order::Withdraw { .. } if self.is_held(&object) => return,
            Order::Begin(transfer) => {
                let Key { namespace, name } = &object.1;
                let attempts_before = transfer.spec.mandate.attempts_before;
                tracing::info!(
                    namespace,
                    name,
                    fabric = transfer.fabric,
                    attempts_before,
                    "a transfer begins"
                );
                Work::begin(object.1, *transfer, channels, changed)
            }
            Order::Withdraw {
                transfer,
                discard,
                remove,
            } => Work::withdraw(object.1, *transfer, (discard, remove), channels, changed),
            Order::Meet { layout, who } => {
                if let Some(work) = self.works.get_mut(&uid) {
                    work.meet(layout, who);
                }
                // An attempt may be waiting for its permit.
                self.agenda.note(object.1);
                self.changed.notify_one();
                return;
            }
            Order::Look(secret) => return self.look(secret),
            Order::Permit(attempt) => {
                if let Some(work) = self.works.get(&uid) {
                    work.permit(attempt);
                }
                return;
            }
            Order::Stop { discard, remove } => {
                if let Some(work) = self.works.get(&uid) {
                    work.stop(discard, remove);
                }
                return;
            }
            Order::Forget => {
                self.works.remove(&uid);
                // What follows from that is decided at once.
                self.agenda.note(object.1);
                self.changed.notify_one();
                return;
            }
        };
        self.works.insert(uid, work);
    }

    /// Looks whether a Secret can be read, unless that is under way.
    fn look(&mut self, secret: Key) {
        if self.looks.begun.contains_key(&secret) {
            return;
        }
        self.looks.begun.insert(secret.clone(), Instant::now());
        let (secrets, tell) = (self.looks.secrets.clone(), self.looks.tell.clone());
        tokio::spawn(async move {
            let seen = secrets.read(&secret.namespace, &secret.name).await;
            // Whoever has gone needs no answer. What it holds is read anew when it is needed.
            let _ = tell.send((secret, seen.map(drop)));
        });
    }

    /// What came of a look; those that wait for it are decided at once.
    fn saw(&mut self, secret: Key, seen: Result<(), SecretFault>) {
        for (key, job) in self.world.jobs.iter() {
            if reading::secret(job).as_ref() == Some(&secret) {
                self.agenda.note(key.clone());
            }
        }
        self.world.secrets.insert(secret, seen);
    }

    /// What was seen some time ago is seen anew before it is believed again.
    fn forget_looks(&mut self) {
        let begun = &mut self.looks.begun;
        begun.retain(|_, at| at.elapsed() < LOOK_AGAIN);
        (self.world.secrets).retain(|secret, _| begun.contains_key(secret));
    }

    /// Makes a request; false where there is no room for it now.
    async fn carry_out(&mut self, request: &Request, now: Timestamp) -> bool {
        let object = request.object();
        if self.is_held(&object) {
            return true;
        }
        let is_progress = is_progress(request);
        if !self.bucket.take(self.began.elapsed(), is_progress) {
            if is_progress {
                self.context.tally.dropped.inc();
            }
            return is_progress;
        }
        self.context.tally.writes.inc();
        match self.cluster.carry_out(request, &mut self.world).await {
            Ok(()) => {
                self.holds.remove(&object);
                match request {
                    Request::JobStatus { key, uid, news, .. } => {
                        self.written.insert(uid.clone(), now);
                        let job = self.world.jobs.get(key).map(|job| job.object_ref(&()));
                        self.tell(job, "Transfer", news).await;
                    }
                    Request::FabricNodeStatus { name, news, .. } => {
                        let node = self.world.fabric_nodes.named(name);
                        let node = node.map(|node| node.object_ref(&()));
                        self.tell(node, "Report", news).await;
                    }
                    _ => {}
                }
                // It may be followed by the next, at once.
                self.changed.notify_one();
                true
            }
            Err(error) => {
                let (kind, Key { namespace, name }) = &object;
                if error.is_stale() {
                    tracing::debug!(kind, namespace, name, %error, "the object has changed");
                } else {
                    tracing::warn!(kind, namespace, name, %error, "a write failed; it is repeated");
                    self.context.tally.failed.inc();
                }
                self.hold(object, error.is_refusal());
                true
            }
        }
    }

    /// Says it of an object, unless that is gone.
    async fn tell(
        &mut self,
        object: Option<ObjectReference>,
        action: &str,
        news: &[request::News],
    ) {
        let Some(object) = object else {
            return;
        };
        for news in news {
            if self.bucket.take(self.began.elapsed(), true) {
                self.context.tally.writes.inc();
                self.cluster.tell(&object, action, news).await;
            } else {
                self.context.tally.dropped.inc();
            }
        }
    }

    fn is_held(&self, object: &(&'static str, Key)) -> bool {
        self.holds
            .get(object)
            .is_some_and(|hold| hold.until > Instant::now())
    }

    fn hold(&mut self, object: (&'static str, Key), is_refused: bool) {
        let hold = self.holds.entry(object).or_insert(Hold {
            until: Instant::now(),
            failures: 0,
            is_refused,
        });
        hold.is_refused = is_refused;
        hold.until = Instant::now() + HOLD * 2u32.pow(hold.failures.min(HOLD_DOUBLINGS));
        hold.failures += 1;
        let long_ago = Instant::now().checked_sub(HOLD * 2u32.pow(HOLD_DOUBLINGS + 1));
        self.holds
            .retain(|_, hold| long_ago.is_none_or(|long_ago| hold.until > long_ago));
    }

    fn sightings(&self) -> BTreeMap<String, Sighting> {
        let reports = self.context.reports.borrow();
        let sighting = |state: &NodeState| Sighting {
            fabric: state.fabric.clone(),
            report: state.report.clone(),
            silent: state.seen.elapsed(),
        };
        reports
            .iter()
            .map(|(node, state)| (node.clone(), sighting(state)))
            .collect()
    }

    /// Tells the server of agents what they are to know.
    fn publish(&self, membership: &Membership) {
        let key = &self.world.ticket_key;
        let view = |name: &str| {
            let fabric = self.world.fabrics.named(name)?;
            let nodes = membership.members(name)?.nodes.clone();
            let models = nodes.iter().filter_map(|node| {
                let models = models::to_look_after(&self.world, node);
                (!models.is_empty()).then(|| (node.clone(), models))
            });
            Some(FabricView {
                config: fabric::config(fabric, key),
                models: models.collect(),
                nodes,
            })
        };
        let names = self
            .world
            .fabrics
            .iter()
            .map(|(_, fabric)| fabric.name_any());
        let views: Fabrics = names
            .filter_map(|name| Some((name.clone(), view(&name)?)))
            .collect();
        self.context.fabrics.send_if_modified(|old| {
            let is_other = *old != views;
            if is_other {
                *old = views;
            }
            is_other
        });
    }
}
