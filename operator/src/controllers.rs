//! The controllers: fabrics, their nodes and agents, and jobs.
//!
//! One task owns the cache of the API's objects and runs a controller for each kind that `kinds`
//! lists. A controller decides by pure functions from the cache to requests, and never waits for an answer:
//! the writer sends the requests, and its answers are events like those of watches. Only a leader runs this.

mod backoff;
mod cache;
mod cluster;
mod cluster_node;
mod condition;
mod fabric;
mod job;
mod kinds;
mod lead;
mod membership;
mod request;
mod tally;
mod work_queue;
mod writer;

#[cfg(test)]
mod api_server;
/// The example of docs/add-a-kind.md.
#[cfg(test)]
mod example;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, convert::Infallible, num::NonZeroU32, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::ObjectReference},
    jiff::Timestamp,
};
use kube::{Client, Resource as _};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until},
};
use weft_identity::authority::Authority;
use weft_transfer::ConnectionPool;

pub(crate) use self::request::FINALIZER;
use self::{
    cache::Key,
    cluster::{Cluster, ClusterError},
    fabric::agents::AgentTemplate,
    job::secret::Secrets,
    kinds::{Cache, WatchEvent},
    lead::Lead,
    membership::Membership,
    request::{Event, Object, Request},
    writer::{Answer, Owner, Writer},
};
pub use self::{
    job::question::{Neighbour, Neighbours, Question, ReportedCopy, Survey},
    tally::Tally,
};
use crate::{
    patience::patiently,
    reports::{Fabrics, NodeState},
    web::Pulse,
};

/// Controllers reconcile this often though nothing has happened: deadlines and silences are counted in
/// seconds.
const LOOK: Duration = Duration::from_secs(1);
/// Changes that come within this time are decided together.
const DEBOUNCE: Duration = Duration::from_millis(20);

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
    pub channels: ConnectionPool,
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

/// What controllers are made from.
pub(crate) struct Setup<'a> {
    /// What the process has.
    pub(crate) context: &'a Context,
    /// What DaemonSets of agents are made from.
    pub(crate) template: AgentTemplate,
    /// Reads Secrets.
    pub(crate) secrets: Secrets,
    /// Has the controllers reconcile at once.
    pub(crate) wake: Arc<Notify>,
}

/// What is decided about the objects of a kind, or of several that belong together.
///
/// The runner has it reconcile after every change of the cache, and at least once a second.
pub(crate) trait Controller: Send {
    /// Names it among the others.
    fn name(&self) -> &'static str;

    /// Adds to the cache what no watch brings. Called before anything reconciles.
    fn prepare(&mut self, _cache: &mut Cache) {}

    /// Decides what there is to decide, and submits what is to be written. It never waits.
    fn reconcile(&mut self, round: &mut Round<'_>);

    /// One of its requests has been answered; the cache has learned the answer.
    fn answered(&mut self, _key: &Key, _request: &Request, _result: Result<(), &ClusterError>) {}

    /// Answers a question of `kubectl weft`, or gives it back: it is for another controller.
    fn answer(&self, question: Question, _cache: &Cache, _now: Timestamp) -> Option<Question> {
        Some(question)
    }
}

/// One round of reconciling: what every controller decides from, and the writer.
pub(crate) struct Round<'a> {
    /// The objects of the API.
    pub(crate) cache: &'a Cache,
    /// Whose the nodes are.
    pub(crate) membership: &'a Membership,
    /// Now, by this machine's clock.
    pub(crate) now: Timestamp,
    /// How long this process has led.
    pub(crate) elapsed: Duration,
    writer: &'a mut Writer,
    controller: &'static str,
}

impl Round<'_> {
    /// Replaces what is to be written for this key. What was submitted for it before and has not been sent
    /// is dropped.
    pub(crate) fn submit(&mut self, key: &Key, requests: Vec<Request>) {
        let owner = Owner {
            controller: self.controller,
            key: key.clone(),
        };
        self.writer.submit(&owner, requests);
    }

    /// Publishes an Event of an object.
    pub(crate) fn publish(&mut self, object: &ObjectReference, event: Event) {
        self.writer.publish(object, vec![event]);
    }

    /// Whether an object is left alone because requests for it have failed.
    pub(crate) fn is_backing_off(&self, object: &Object) -> bool {
        self.writer.is_backing_off(object)
    }
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
    let wake = Arc::new(Notify::new());
    let secrets = Secrets::new(context.client.clone(), &context.namespace);
    let setup = Setup {
        context: &context,
        template: AgentTemplate {
            manifest: context.template.clone(),
            namespace: context.namespace.clone(),
            operator: context.service_address.clone(),
            owner: deployment.and_then(|deployment| deployment.owner_ref(&())),
        },
        secrets: secrets.clone(),
        wake: Arc::clone(&wake),
    };
    let mut watches = kinds::watch(&context.client, &context.namespace);
    let mut reports = context.reports.clone();
    let mut runner = Runner {
        controllers: kinds::controllers(&setup),
        writer: Writer::new(
            Arc::new(cluster),
            context.writes_per_second,
            context.tally.clone(),
        ),
        lead: Lead::new(context.epoch, context.renewals.clone()),
        began: Instant::now(),
        cache: Cache {
            ticket_key: context.authority.ticket_key(),
            secret_reader: Some(Arc::new(secrets)),
            ..Cache::default()
        },
        membership: Membership::default(),
        members_of: None,
        context,
    };
    let mut due = Instant::now() + LOOK;
    let mut send_at = due;
    loop {
        tokio::select! {
            Some(event) = watches.next() => runner.watched(event),
            answer = runner.writer.answered() => runner.answered(answer),
            Ok(()) = reports.changed() => {}
            () = wake.notified() => {}
            // Before everything has been listed, nobody knows what there is.
            Some(question) = questions.recv(), if runner.cache.is_synced() => {
                runner.answer(question);
                continue;
            }
            () = sleep_until(send_at) => {
                send_at = runner.send();
                continue;
            }
            () = sleep_until(due) => {}
        }
        let woken = Instant::now();
        runner.context.pulse.beat(woken);
        let begin = woken + DEBOUNCE;
        while let Ok(Some(event)) = tokio::time::timeout_at(begin, watches.next()).await {
            runner.watched(event);
        }
        while let Some(Some(event)) = watches.next().now_or_never() {
            runner.watched(event);
        }
        while let Some(answer) = runner.writer.answered().now_or_never() {
            runner.answered(answer);
        }
        reports.mark_unchanged();
        // Without the lead there is nothing to decide either.
        match runner.lead.may_write(Instant::now()) {
            true if runner.cache.is_synced() => runner.reconcile(),
            true => {}
            false => runner.writer.clear(),
        }
        send_at = runner.send();
        let steps = &runner.context.tally.steps;
        steps.observe(woken.elapsed().as_secs_f64());
        due = Instant::now() + LOOK;
    }
}

struct Runner {
    context: Context,
    controllers: Vec<Box<dyn Controller>>,
    cache: Cache,
    writer: Writer,
    lead: Lead,
    membership: Membership,
    /// The layout that it is of.
    members_of: Option<u64>,
    began: Instant,
}

impl Runner {
    /// A watch says something.
    fn watched(&mut self, event: WatchEvent) {
        self.lead.sees(event.leader_epoch, Instant::now());
        event.enter(&mut self.cache);
    }

    /// Has every controller reconcile.
    fn reconcile(&mut self) {
        let layout = self.cache.layout();
        if self.members_of != Some(layout) {
            self.membership = Membership::of(&self.cache);
            self.members_of = Some(layout);
        }
        for controller in &mut self.controllers {
            controller.prepare(&mut self.cache);
        }
        for controller in &mut self.controllers {
            controller.reconcile(&mut Round {
                cache: &self.cache,
                membership: &self.membership,
                now: Timestamp::now(),
                elapsed: self.began.elapsed(),
                writer: &mut self.writer,
                controller: controller.name(),
            });
        }
        self.cache.clear_changed();
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
        let result = match result {
            Ok(answered) => {
                self.cache.learn(&request, answered);
                let events = request.events.clone();
                self.writer.publish(&request.reference(), events);
                Ok(())
            }
            Err(error) => {
                self.failed(&request, &error);
                Err(error)
            }
        };
        let mut controllers = self.controllers.iter_mut();
        if let Some(controller) = controllers.find(|one| one.name() == owner.controller) {
            controller.answered(&owner.key, &request, result.as_ref().copied());
        }
    }

    fn failed(&self, request: &Request, error: &ClusterError) {
        let (kind, Key { namespace, name }) = (request.kind(), &request.key);
        if error.is_conflict() {
            tracing::debug!(kind, namespace, name, %error, "the object has changed");
        } else {
            tracing::warn!(kind, namespace, name, %error, "a write failed; it is repeated");
            self.context.tally.failed.inc();
        }
    }

    fn answer(&self, question: Question) {
        let mut question = Some(question);
        for controller in &self.controllers {
            let Some(open) = question.take() else {
                return;
            };
            question = controller.answer(open, &self.cache, Timestamp::now());
        }
    }
}
