//! The controllers: fabrics, their nodes and agents, and jobs.
//!
//! One task owns what there is (`world`) and decides everything; `fabric` and `job` are pure
//! functions from that to requests. A transfer is a task of its own (`work`), which the owner looks
//! at. Only a leader runs this.
//!
//! After every change, and once a second, everything is decided anew. So a request that failed, or
//! that there was no room for, is simply made again, from what is true by then.

mod agents;
mod bucket;
mod cluster;
mod condition;
mod fabric;
mod job;
mod membership;
mod request;
mod resolve;
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
use k8s_openapi::{api::apps::v1::DaemonSet, jiff::Timestamp};
use kube::{Client, Resource as _, ResourceExt as _};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use self::{
    agents::AgentTemplate,
    bucket::Bucket,
    cluster::Cluster,
    fabric::Sighting,
    job::Order,
    membership::Membership,
    request::Request,
    work::Work,
    world::{Key, World, uid},
};
use crate::{
    authority::Authority,
    reports::{FabricView, Fabrics, NodeState},
};

/// Everything is looked at so often: deadlines and silences are counted in seconds.
const LOOK: Duration = Duration::from_secs(1);
/// When something was left undone, it is tried again so soon.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two steps: what comes in a bunch is decided at once.
const BREATH: Duration = Duration::from_millis(20);
/// An object whose request failed is left alone for so long …
const HOLD: Duration = Duration::from_secs(1);
/// … which doubles so often: 32 s.
const HOLD_DOUBLINGS: u32 = 5;

/// What the controllers count.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    writes: Counter,
    dropped: Counter,
    failed: Counter,
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
    /// Issues the operator's certificate and signs tickets.
    pub authority: Arc<Authority>,
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

/// Runs until it is dropped.
pub async fn run(context: Context) -> Result<Infallible, ControllerError> {
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
    let mut watches = cluster.watch();
    let mut reports = context.reports.clone();
    let mut controllers = Controllers {
        bucket: Bucket::new(Duration::ZERO),
        began: Instant::now(),
        changed: Arc::default(),
        world: World::default(),
        works: BTreeMap::new(),
        written: BTreeMap::new(),
        holds: BTreeMap::new(),
        cluster,
        context,
        template,
    };
    let changed = Arc::clone(&controllers.changed);
    let mut due = Instant::now() + LOOK;
    loop {
        tokio::select! {
            Some(seen) = watches.next() => seen.enter(&mut controllers.world),
            Ok(()) = reports.changed() => {}
            () = changed.notified() => {}
            () = sleep_until(due) => {}
        }
        let begin = Instant::now() + BREATH;
        while let Ok(Some(seen)) = tokio::time::timeout_at(begin, watches.next()).await {
            seen.enter(&mut controllers.world);
        }
        while let Some(Some(seen)) = watches.next().now_or_never() {
            seen.enter(&mut controllers.world);
        }
        reports.mark_unchanged();
        let all_done = !controllers.world.is_whole() || controllers.step().await;
        due = Instant::now() + if all_done { LOOK } else { AGAIN };
    }
}

/// An object that is left alone for a while.
struct Hold {
    until: Instant,
    failures: u32,
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
    bucket: Bucket,
    began: Instant,
    changed: Arc<Notify>,
}

impl Controllers {
    /// Decides everything and does what there is room for; whether there was room for all.
    async fn step(&mut self) -> bool {
        let now = Timestamp::now();
        let membership = Membership::of(&self.world);
        self.publish(&membership);
        let sightings = self.sightings();
        let mut requests = fabric::decide(&fabric::View {
            world: &self.world,
            membership: &membership,
            sightings: &sightings,
            leading: self.began.elapsed(),
            template: &self.template,
            now,
        });
        let (transitions, progress) = self.jobs(&membership, now);
        // The jobs first: people wait for them.
        requests.splice(0..0, transitions);
        let mut all_done = true;
        for request in requests.into_iter().chain(progress) {
            all_done &= self.carry_out(&request, now).await;
        }
        all_done
    }

    /// Decides all jobs and does what is to be done here; gives what is to be written, progress apart.
    fn jobs(&mut self, membership: &Membership, now: Timestamp) -> (Vec<Request>, Vec<Request>) {
        let mut orders = Vec::new();
        let mut requests = (Vec::new(), Vec::new());
        let uids: BTreeSet<String> = self.world.jobs.iter().map(|(_, job)| uid(job)).collect();
        self.works.retain(|uid, _| uids.contains(uid));
        self.written.retain(|uid, _| uids.contains(uid));
        self.works.retain(|uid, work| {
            if work.is_lost() {
                tracing::error!(
                    uid,
                    "a transfer's task ended without an outcome; it begins again"
                );
            }
            !work.is_lost()
        });
        for (key, job) in self.world.jobs.iter() {
            let uid = uid(job);
            let work = self.works.get(&uid).map(Work::snapshot);
            let decision = job::decide(&job::View {
                job,
                world: &self.world,
                membership,
                work: work.as_ref(),
                leader_epoch: self.context.epoch,
                written: self.written.get(&uid).copied(),
                now,
            });
            match decision.request {
                Some(
                    request @ Request::JobStatus {
                        is_progress: true, ..
                    },
                ) => {
                    requests.1.push(request);
                }
                Some(request) => requests.0.push(request),
                None => {}
            }
            if let Some(order) = decision.order {
                orders.push((key.clone(), uid, order));
            }
        }
        for (key, uid, order) in orders {
            self.obey(key, uid, order);
        }
        requests
    }

    fn obey(&mut self, key: Key, uid: String, order: Order) {
        let object = ("TransferJob", key);
        let authority = &self.context.authority;
        let changed = Arc::clone(&self.changed);
        let begun = match order {
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
                let authority = authority.of_fabric(&transfer.fabric);
                Work::begin(*transfer, Arc::new(authority), changed)
            }
            Order::Withdraw { transfer, discard } => {
                let authority = authority.of_fabric(&transfer.fabric);
                Work::withdraw(*transfer, discard, Arc::new(authority), changed)
            }
            Order::Permit(attempt) => {
                if let Some(work) = self.works.get(&uid) {
                    work.permit(attempt);
                }
                return;
            }
            Order::Stop { discard } => {
                if let Some(work) = self.works.get(&uid) {
                    work.stop(discard);
                }
                return;
            }
            Order::Forget => {
                self.works.remove(&uid);
                // What follows from that is decided at once.
                self.changed.notify_one();
                return;
            }
        };
        match begun {
            Ok(work) => {
                self.works.insert(uid, work);
            }
            Err(error) => {
                let Key { namespace, name } = &object.1;
                tracing::warn!(namespace, name, %error, "a job cannot begin; it is tried again");
                self.hold(object);
            }
        }
    }

    /// Makes a request; false where there is no room for it now.
    async fn carry_out(&mut self, request: &Request, now: Timestamp) -> bool {
        let object = request.object();
        if self.is_held(&object) {
            return true;
        }
        let is_progress = matches!(
            request,
            Request::JobStatus {
                is_progress: true,
                ..
            }
        );
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
                if let Request::JobStatus { key, uid, news, .. } = request {
                    self.written.insert(uid.clone(), now);
                    self.tell(key, news).await;
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
                self.hold(object);
                true
            }
        }
    }

    async fn tell(&mut self, key: &Key, news: &[request::News]) {
        let Some(job) = self.world.jobs.get(key) else {
            return;
        };
        for news in news {
            if self.bucket.take(self.began.elapsed(), true) {
                self.context.tally.writes.inc();
                self.cluster.tell(job, news).await;
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

    fn hold(&mut self, object: (&'static str, Key)) {
        let hold = self.holds.entry(object).or_insert(Hold {
            until: Instant::now(),
            failures: 0,
        });
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
        let key = self.context.authority.ticket_key();
        let view = |name: &str| {
            let fabric = self.world.fabrics.named(name)?;
            let nodes = membership.members(name)?.nodes.clone();
            Some(FabricView {
                config: fabric::config(fabric, &key),
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
