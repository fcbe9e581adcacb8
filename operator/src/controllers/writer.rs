//! Sends requests to the API server, so that deciding never waits for an answer.
//!
//! The writer keeps the latest request for each object and sends at most [`IN_FLIGHT_MAX`] at a time, one
//! for an object, within a rate. An object whose request failed is left alone for a while. Results come
//! back as events of the task that decides; it stores the responses in the cache before it decides again.

mod queue;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::Clock,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::DynamicObject;
use tokio::{task::JoinSet, time::Instant};

pub(crate) use self::queue::Requester;
use self::queue::{NextWrite, Write, WriteOutcome, WriteQueue};
use crate::controllers::{
    api_writer::{ApiWriter, WriteError},
    metrics::Metrics,
    request::{Event, ObjectId, Request},
};

/// Requests that may be sent at once after a rest.
const BURST: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// The rate limiter's clock is the runtime's, which tests can stop and advance.
#[derive(Debug, Clone)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

/// The result of a request.
#[derive(Debug)]
pub(crate) struct WriteResult {
    /// Who wanted it.
    pub(crate) requester: Requester,
    /// What was sent.
    pub(crate) request: Request,
    /// The object as it is from then on; `None` once it is gone.
    pub(crate) result: Result<Option<DynamicObject>, WriteError>,
}

/// What has ended.
enum Done {
    WriteResult(Box<WriteResult>),
    Event,
}

/// Sends requests. Dropping it drops what is waiting and what is under way.
pub(crate) struct Writer {
    writer: Arc<ApiWriter>,
    queue: WriteQueue,
    rate: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Nanos>>,
    /// When the rate allows the next request, if it did not allow the last.
    rate_from: Option<Instant>,
    in_flight: JoinSet<Done>,
    start: Instant,
    metrics: Metrics,
}

impl Writer {
    /// Sends at most `per_second` requests a second, Events included.
    pub(crate) fn new(writer: Arc<ApiWriter>, per_second: NonZeroU32, metrics: Metrics) -> Self {
        let start = Instant::now();
        Self {
            writer,
            queue: WriteQueue::default(),
            rate: RateLimiter::direct_with_clock(
                Quota::per_second(per_second).allow_burst(BURST.min(per_second)),
                RuntimeClock(start),
            ),
            rate_from: None,
            in_flight: JoinSet::new(),
            start,
            metrics,
        }
    }

    /// Replaces what this requester wants to have written. What it wanted before and has not been sent is
    /// dropped. A request for an object that another request of the requester is under way for is dropped, too:
    /// the requester decides again once that has its result.
    pub(crate) fn submit(&mut self, requester: &Requester, requests: Vec<Request>) {
        let dropped = self.queue.submit(requester, requests);
        self.metrics.dropped.inc_by(dropped);
    }

    /// Drops the requests that wait. Events stay: what they report has happened.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Publishes Events of an object. Those that find no room, or are too many of one reason, are dropped.
    pub(crate) fn publish(&mut self, object: &ObjectReference, events: Vec<Event>) {
        let now = self.start.elapsed();
        for event in events {
            if !self.queue.publish(object.clone(), event, now) {
                self.metrics.dropped.inc();
            }
        }
    }

    /// Whether the object is left alone because requests for it have failed.
    pub(crate) fn is_backing_off(&self, object: &ObjectId) -> bool {
        self.queue.is_backing_off(object, self.start.elapsed())
    }

    /// Sends what may be sent now. Returns when to call it again, at the latest.
    pub(crate) fn dispatch(&mut self) -> Option<Instant> {
        let next = self.dispatch_ready();
        let waiting = i64::try_from(self.queue.len()).unwrap_or(i64::MAX);
        self.metrics.waiting.set(waiting);
        next
    }

    fn dispatch_ready(&mut self) -> Option<Instant> {
        if self.rate_from.is_some_and(|from| Instant::now() < from) {
            return self.rate_from;
        }
        while let Some(next) = self.queue.next_write(self.start.elapsed()) {
            if let Err(early) = self.rate.check() {
                let from = self.start + Duration::from(early.earliest_possible());
                self.rate_from = Some(from);
                return self.rate_from;
            }
            self.send(next);
        }
        let wakeup = self.queue.wakeup(self.start.elapsed())?;
        Some(self.start + wakeup)
    }

    fn send(&mut self, next: NextWrite) {
        self.metrics.writes.inc();
        let writer = Arc::clone(&self.writer);
        match self.queue.take(next) {
            Some(Write::Request(requester, request)) => drop(self.in_flight.spawn(async move {
                let result = writer.send(&request).await;
                Done::WriteResult(Box::new(WriteResult {
                    requester,
                    request,
                    result,
                }))
            })),
            Some(Write::Event(object, event)) => drop(self.in_flight.spawn(async move {
                writer.publish(&object, &event).await;
                Done::Event
            })),
            None => {}
        }
    }

    /// Waits for the next result; for ever while nothing is in flight.
    pub(crate) async fn next_result(&mut self) -> Option<WriteResult> {
        let Some(done) = self.in_flight.join_next().await else {
            return std::future::pending().await;
        };
        let done = match done {
            Ok(done) => done,
            // A panic is a bug: the task that decides panics, too.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return None,
            },
        };
        let now = self.start.elapsed();
        let write_result = match done {
            Done::WriteResult(write_result) => *write_result,
            Done::Event => {
                self.queue.finish_event();
                return None;
            }
        };
        let outcome = match &write_result.result {
            Ok(_) => WriteOutcome::Written,
            Err(error) if error.is_conflict() => WriteOutcome::Conflict,
            Err(_) => WriteOutcome::Failed,
        };
        let object = write_result.request.object();
        self.queue.record_outcome(&object, outcome, now);
        Some(write_result)
    }
}
