//! The controllers: fabrics, their nodes and agents, and jobs.
//!
//! One task owns the cache of the API's objects and runs a controller for each kind that `kinds`
//! lists. A controller decides by pure functions from the cache to requests, and never waits for an answer:
//! the writer sends the requests, and its results are events like those of watches. Only a leader runs this.

mod api_writer;
mod backoff;
mod cache;
mod cluster_node;
pub(crate) mod condition;
mod controller;
mod device_slices;
mod fabric;
pub(crate) mod job;
pub(crate) mod kinds;
mod membership;
mod metrics;
mod request;
mod resource_slice;
mod work_queue;
mod write_fence;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use self::{
    api_writer::{ApiWriter, WriteError},
    cache::Key,
    controller::{Controller, ReconcileContext, Setup, TICK},
    device_slices::SliceController,
    fabric::FabricController,
    job::{JobController, secret::Secrets},
    kinds::{Cache, WatchEvent, for_each_kind},
    membership::Membership,
    request::Request,
    write_fence::WriteFence,
    writer::{WriteResult, Writer},
};
pub use self::{
    controller::Context,
    fabric::agents::AgentTemplate,
    job::query::{Neighbours, Preflight, Query, QueryView, ReportedCopy},
    metrics::Metrics,
};

pub(crate) use self::{
    cache::FORCE,
    job::{query, snapshot::manifest_summary},
    request::{FABRIC_FINALIZER, FINALIZER},
};

/// Changes that come within this time are decided together.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Runs until it is dropped, and answers queries in between.
pub async fn run(context: Context, mut queries: mpsc::Receiver<Query>) -> Infallible {
    let writer = ApiWriter::new(context.client.clone(), context.epoch);
    let wake = Arc::new(Notify::new());
    // The agents run in the operator's own namespace.
    let namespace = &context.template.namespace;
    let secrets = Secrets::new(context.client.clone(), namespace);
    let setup = Setup {
        context: &context,
        secrets: secrets.clone(),
        wake: Arc::clone(&wake),
    };
    let mut watches = kinds::watch(&context.client, namespace, context.resource_slices);
    let mut reports = context.reports.clone();
    let mut manager = ControllerManager {
        controllers: controllers(&setup),
        writer: Writer::new(
            Arc::new(writer),
            context.writes_per_second,
            context.metrics.clone(),
        ),
        write_fence: WriteFence::new(context.epoch, context.renewals.clone()),
        began: Instant::now(),
        cache: Cache {
            ticket_key: context.authority.ticket_key(),
            secret_reader: Some(Arc::new(secrets)),
            ..Cache::default()
        },
        membership: Membership::default(),
        membership_revision: None,
        context,
    };
    let mut due = Instant::now() + TICK;
    let mut send_at = due;
    loop {
        tokio::select! {
            Some(event) = watches.next() => manager.on_watch_event(event),
            result = manager.writer.next_result() => manager.on_write_result(result),
            Ok(()) = reports.changed() => {}
            () = wake.notified() => {}
            // Queries wait until the cache is synced.
            Some(query) = queries.recv(), if manager.cache.is_synced() => {
                manager.handle_query(query);
                continue;
            }
            () = sleep_until(send_at) => {
                send_at = manager.send();
                continue;
            }
            () = sleep_until(due) => {}
        }
        let woken = Instant::now();
        manager.context.heartbeat.beat(woken);
        let begin = woken + DEBOUNCE;
        while let Ok(Some(event)) = tokio::time::timeout_at(begin, watches.next()).await {
            manager.on_watch_event(event);
        }
        while let Some(Some(event)) = watches.next().now_or_never() {
            manager.on_watch_event(event);
        }
        while let Some(result) = manager.writer.next_result().now_or_never() {
            manager.on_write_result(result);
        }
        reports.mark_unchanged();
        // A process that does not lead has nothing to decide either.
        match manager.write_fence.may_write(Instant::now()) {
            true if manager.cache.is_synced() => manager.reconcile(),
            true => {}
            false => {
                manager.writer.clear();
                manager.context.metrics.nodes_not_ready.set(0);
            }
        }
        send_at = manager.send();
        let seconds = &manager.context.metrics.reconcile_seconds;
        seconds.observe(woken.elapsed().as_secs_f64());
        due = Instant::now() + TICK;
    }
}

/// Makes the controller of a kind that has one.
macro_rules! push {
    ($list:ident, $setup:ident) => {};
    ($list:ident, $setup:ident, $controller:ty) => {
        $list.push(Box::new(<$controller>::new($setup)))
    };
}

/// Makes the controllers of all kinds.
macro_rules! controllers {
    ($(
        $(#[doc = $doc:literal])*
        $(#[cfg($condition:meta)])?
        $store:ident: $kind:ty $(=> $controller:ty)?,
    )*) => {
        #[expect(clippy::vec_init_then_push, reason = "a kind may be of tests only")]
        fn controllers(setup: &Setup<'_>) -> Vec<Box<dyn Controller>> {
            let mut controllers: Vec<Box<dyn Controller>> = Vec::new();
            $(
                $(#[cfg($condition)])?
                push!(controllers, setup $(, $controller)?);
            )*
            controllers
        }
    };
}
for_each_kind!(controllers);

struct ControllerManager {
    context: Context,
    controllers: Vec<Box<dyn Controller>>,
    cache: Cache,
    writer: Writer,
    write_fence: WriteFence,
    membership: Membership,
    /// The topology revision that `membership` was computed from.
    membership_revision: Option<u64>,
    began: Instant,
}

impl ControllerManager {
    /// Applies an event of a watch to the cache.
    fn on_watch_event(&mut self, event: WatchEvent) {
        self.write_fence.observe(event.leader_epoch, Instant::now());
        event.apply_to(&mut self.cache);
    }

    /// Has every controller reconcile.
    fn reconcile(&mut self) {
        let revision = self.cache.node_revision();
        if self.membership_revision != Some(revision) {
            self.membership = Membership::of(&self.cache);
            self.membership_revision = Some(revision);
        }
        for controller in &mut self.controllers {
            controller.prepare(&mut self.cache);
        }
        for controller in &mut self.controllers {
            controller.reconcile(&mut ReconcileContext {
                cache: &self.cache,
                membership: &self.membership,
                now: Timestamp::now(),
                led_for: self.began.elapsed(),
                writer: &mut self.writer,
                controller: controller.name(),
            });
        }
        self.cache.clear_changed();
    }

    /// Sends what may be sent. Returns when to do so again, at the latest.
    fn send(&mut self) -> Instant {
        let now = Instant::now();
        let again = self
            .write_fence
            .may_write(now)
            .then(|| self.writer.dispatch());
        again.flatten().unwrap_or(now + TICK)
    }

    /// The writer has the result of a request, or has published an Event.
    fn on_write_result(&mut self, result: Option<WriteResult>) {
        let Some(result) = result else {
            return;
        };
        let WriteResult {
            requester,
            request,
            result,
        } = result;
        let result = match result {
            Ok(response) => {
                self.cache.store_response(&request, response);
                let events = request.events.clone();
                self.writer.publish(&request.reference(), events);
                Ok(())
            }
            Err(error) => {
                self.report_failure(&request, &error);
                if error.is_not_found() {
                    // The response to a write may have added it again after the watch had removed it.
                    self.cache.store_response(&request, None);
                }
                Err(error)
            }
        };
        let mut controllers = self.controllers.iter_mut();
        if let Some(controller) = controllers.find(|one| one.name() == requester.controller) {
            controller.on_write_result(&requester.key, &request, result.as_ref().copied());
        }
    }

    fn report_failure(&self, request: &Request, error: &WriteError) {
        let (kind, Key { namespace, name }) = (request.kind(), &request.key);
        if error.is_conflict() {
            tracing::debug!(kind, namespace, name, %error, "the object has changed");
        } else {
            tracing::warn!(kind, namespace, name, %error, "a write failed; it is repeated");
            self.context.metrics.failed.inc();
        }
    }

    fn handle_query(&self, query: Query) {
        let mut query = Some(query);
        for controller in &self.controllers {
            let Some(open) = query.take() else {
                return;
            };
            query = controller.handle_query(open, &self.cache, Timestamp::now());
        }
    }
}
