//! What a controller is, and what it is given.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::Client;
use opentelemetry_sdk::trace::SdkTracer;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use weft_identity::authority::Authority;
use weft_transfer::ConnectionPool;

use crate::{
    controllers::{
        api_writer::WriteError,
        cache::Key,
        fabric::agents::AgentTemplate,
        job::{query::Query, secret::Secrets},
        kinds::Cache,
        membership::Membership,
        metrics::Metrics,
        request::{Event, ObjectId, Request},
        writer::{Requester, Writer},
    },
    reports::{Fabrics, NodeState},
    web::Heartbeat,
};

/// Controllers reconcile this often though nothing has happened: deadlines and silences are counted in
/// seconds.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What the controllers work with.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Of this leader.
    pub epoch: u64,
    /// When the last successful renewal of its Lease was sent.
    pub renewals: watch::Receiver<Instant>,
    /// Liveness heartbeat.
    pub heartbeat: Heartbeat,
    /// Signs tickets.
    pub authority: Arc<Authority>,
    /// The ways to agents.
    pub pool: ConnectionPool,
    /// Makes the spans of jobs, where they are asked for.
    pub tracer: Option<SdkTracer>,
    /// What agents say of their nodes.
    pub reports: watch::Receiver<BTreeMap<String, NodeState>>,
    /// Configuration for agents; written by the controllers.
    pub fabrics: watch::Sender<Fabrics>,
    /// What the agents' DaemonSets are made from.
    pub template: AgentTemplate,
    /// What is wrong with the Service that owns the DaemonSets.
    pub service_problem: watch::Receiver<Option<String>>,
    /// Whether nodes' devices are published as ResourceSlices.
    pub resource_slices: bool,
    /// Whether claims share one published device of each node.
    pub consumable_capacity: bool,
    /// Requests to the API server in a second, at most; Events are among them.
    pub writes_per_second: NonZeroU32,
    /// Jobs of one namespace that may run at a time.
    pub jobs_per_namespace: NonZeroU32,
    /// Labels of models of one namespace that a node may have.
    pub labels_per_namespace: NonZeroU32,
    /// What is counted.
    pub metrics: Metrics,
}

/// What controllers are made from.
pub(crate) struct Setup<'a> {
    /// What the process has.
    pub(crate) context: &'a Context,
    /// Reads Secrets.
    pub(crate) secrets: Secrets,
    /// Has the controllers reconcile at once.
    pub(crate) wake: Arc<Notify>,
}

/// What is decided about the objects of a kind, or of several that belong together.
///
/// The controller manager has it reconcile after every change of the cache, and at least once a second.
pub(crate) trait Controller: Send {
    /// Names it among the others.
    fn name(&self) -> &'static str;

    /// Adds to the cache what no watch brings. Called before anything reconciles.
    fn prepare(&mut self, _cache: &mut Cache) {}

    /// Decides what there is to decide, and submits what is to be written. It never waits.
    fn reconcile(&mut self, context: &mut ReconcileContext<'_>);

    /// One of its requests has a result; the cache has stored the response.
    fn on_write_result(
        &mut self,
        _key: &Key,
        _request: &Request,
        _result: Result<(), &WriteError>,
    ) {
    }

    /// Answers a query of `kubectl weft`, or gives it back: it is for another controller.
    fn handle_query(&self, query: Query, _cache: &Cache, _now: Timestamp) -> Option<Query> {
        Some(query)
    }
}

/// What a controller decides from, and the writer that sends what it submits.
pub(crate) struct ReconcileContext<'a> {
    /// The objects of the API.
    pub(crate) cache: &'a Cache,
    /// Which fabric each node belongs to.
    pub(crate) membership: &'a Membership,
    /// Now, by this machine's clock.
    pub(crate) now: Timestamp,
    /// How long this process has led.
    pub(crate) led_for: Duration,
    /// Sends what is submitted.
    pub(crate) writer: &'a mut Writer,
    /// The controller that reconciles.
    pub(crate) controller: &'static str,
}

impl ReconcileContext<'_> {
    /// Replaces what is to be written for this key. What was submitted for it before and has not been sent
    /// is dropped.
    pub(crate) fn submit(&mut self, key: &Key, requests: Vec<Request>) {
        let requester = Requester {
            controller: self.controller,
            key: key.clone(),
        };
        self.writer.submit(&requester, requests);
    }

    /// Publishes an Event of an object.
    pub(crate) fn publish(&mut self, object: &ObjectReference, event: Event) {
        self.writer.publish(object, vec![event]);
    }

    /// Whether an object is left alone because requests for it have failed.
    pub(crate) fn is_backing_off(&self, object: &ObjectId) -> bool {
        self.writer.is_backing_off(object)
    }
}
