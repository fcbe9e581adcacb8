//! Which request the writer sends next: pure, times are since some start.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;

use crate::controllers::{
    backoff::Backoff,
    cache::Key,
    request::{Event, ObjectId, Priority, Request},
};

/// Requests under way at once.
const IN_FLIGHT_MAX: usize = 8;
/// … of one kind: an admission webhook that hangs for one kind leaves room for the others.
const IN_FLIGHT_OF_A_KIND_MAX: usize = 6;
/// Events that wait; more are dropped. One goes after the other: where each takes 20 ms, it takes 10 s
/// to publish them.
const EVENTS_WAITING_MAX: usize = 500;
/// Events of one reason about an object in [`EVENTS_INTERVAL`], as many as client-go lets through at once: a program that makes its
/// device unhealthy and healthy again all the time fills neither the API server nor the queue.
const EVENTS_OF_A_REASON_MAX: usize = 25;
const EVENTS_INTERVAL: Duration = Duration::from_secs(300);

/// The first delay after a request that failed …
const FAILED_FIRST: Duration = Duration::from_secs(1);
/// … and the longest.
const FAILED_LONGEST: Duration = Duration::from_secs(32);
/// The first delay after one that lost to a newer version of the object, which is on its way in milliseconds.
const CONFLICT_FIRST: Duration = Duration::from_millis(100);
/// … and the longest.
const CONFLICT_LONGEST: Duration = Duration::from_secs(8);
/// A failure so long after the last is a first one.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// Who wants something written: each has its own latest request for an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Requester {
    /// The controller.
    pub(crate) controller: &'static str,
    /// Of what it decides about.
    pub(crate) key: Key,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It is written.
    Written,
    /// The object has another version.
    Conflict,
    /// It was refused, or not answered.
    Failed,
}

/// What the writer sends next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NextWrite {
    Request((Requester, ObjectId)),
    Event,
}

/// What is sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Write {
    Request(Requester, Request),
    Event(ObjectReference, Event),
}

#[derive(Debug)]
struct Waiting {
    /// Since when it waits, by the number of submissions. A newer request takes its position in the queue.
    since: u64,
    request: Request,
}

/// The requests that wait.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    waiting: BTreeMap<(Requester, ObjectId), Waiting>,
    in_flight: BTreeMap<ObjectId, Requester>,
    events: VecDeque<(ObjectReference, Event)>,
    /// When Events were added in the last [`EVENTS_INTERVAL`], by the object's kind, namespace and name, and their reason. The rate at
    /// which they are sent bounds how many there are.
    recent_events: BTreeMap<[String; 4], Vec<Duration>>,
    /// Whether an Event is in flight. One at a time, so that people read them in order; it does not count among the
    /// requests.
    is_event_in_flight: bool,
    failed: Backoff<ObjectId>,
    conflicts: Backoff<ObjectId>,
    submissions: u64,
    /// When each namespace was served last, by the number of requests taken. Those that were not served since the
    /// queue was empty are absent.
    served: BTreeMap<String, u64>,
    requests_taken: u64,
}

impl Default for WriteQueue {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            events: VecDeque::new(),
            recent_events: BTreeMap::new(),
            is_event_in_flight: false,
            failed: Backoff::new(FAILED_FIRST, FAILED_LONGEST, FORGET_AFTER),
            conflicts: Backoff::new(CONFLICT_FIRST, CONFLICT_LONGEST, FORGET_AFTER),
            submissions: 0,
            served: BTreeMap::new(),
            requests_taken: 0,
        }
    }
}

impl WriteQueue {
    /// How many requests and Events wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.events.len()
    }

    /// Replaces the waiting requests of a requester. Returns how many requests of low priority were replaced by newer ones.
    pub(crate) fn submit(&mut self, requester: &Requester, requests: Vec<Request>) -> u64 {
        let of_requester: Vec<_> = self.of_requester(requester).collect();
        let mut before: BTreeMap<_, _> = of_requester
            .into_iter()
            .filter_map(|key| self.waiting.remove_entry(&key))
            .collect();
        self.submissions += 1;
        let mut replaced = 0;
        for request in requests {
            let object = request.object();
            if self.in_flight.get(&object) == Some(requester) {
                continue;
            }
            let key = (requester.clone(), object);
            let since = match before.remove(&key) {
                Some(old) => {
                    let is_low_priority = old.request.priority == Priority::Low;
                    replaced += u64::from(is_low_priority && old.request != request);
                    old.since
                }
                None => self.submissions,
            };
            self.waiting.insert(key, Waiting { since, request });
        }
        replaced
    }

    fn of_requester(
        &self,
        requester: &Requester,
    ) -> impl Iterator<Item = (Requester, ObjectId)> + use<'_> {
        let first = (
            requester.clone(),
            ObjectId {
                kind: String::new(),
                key: Key::default(),
            },
        );
        let requester = requester.clone();
        self.waiting
            .range(first..)
            .map(|(key, _)| key)
            .take_while(move |(of, _)| *of == requester)
            .cloned()
    }

    /// Drops the requests that wait: the next leader decides anew. Events stay.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Adds an Event; `false` where there is no room, or there have been too many of its reason.
    pub(crate) fn publish(&mut self, object: ObjectReference, event: Event, now: Duration) -> bool {
        if self.events.len() >= EVENTS_WAITING_MAX {
            return false;
        }
        let is_recent = |at: &Duration| now.saturating_sub(*at) < EVENTS_INTERVAL;
        self.recent_events.retain(|_, times| {
            times.retain(is_recent);
            !times.is_empty()
        });
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let of_reason = [
            part(&object.kind),
            part(&object.namespace),
            part(&object.name),
            event.reason.clone(),
        ];
        let times = self.recent_events.entry(of_reason).or_default();
        if times.len() >= EVENTS_OF_A_REASON_MAX {
            return false;
        }
        times.push(now);
        self.events.push_back((object, event));
        true
    }

    /// Whether requests for the object wait because earlier ones failed.
    pub(crate) fn is_backing_off(&self, object: &ObjectId, now: Duration) -> bool {
        self.until(object, now).is_some()
    }

    fn until(&self, object: &ObjectId, now: Duration) -> Option<Duration> {
        let failed = self.failed.until(object, now);
        failed.max(self.conflicts.until(object, now))
    }

    /// What is sent next, if anything may be sent now: Events once no request may be.
    pub(crate) fn next_write(&self, now: Duration) -> Option<NextWrite> {
        let request = self.first(now).cloned().map(NextWrite::Request);
        let has_event = !self.is_event_in_flight && !self.events.is_empty();
        request.or(has_event.then_some(NextWrite::Event))
    }

    /// The most urgent request that may be sent; of equally urgent ones that of the namespace which was served longest
    /// ago, so that a tenant with a thousand jobs delays another's by one request; of one namespace the oldest.
    fn first(&self, now: Duration) -> Option<&(Requester, ObjectId)> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let of_kind = |kind: &str| {
            let of_kind = self.in_flight.keys().filter(|object| object.kind == kind);
            of_kind.count()
        };
        // Thousands of nodes whose requests fail again and again leave room for the rest.
        let rank = |object: &ObjectId, waiting: &Waiting| {
            let priority = match waiting.request.priority {
                Priority::Normal if self.failed.has_failed(object) => Priority::Low,
                priority => priority,
            };
            let served = self.served.get(&object.key.namespace);
            (priority, served.copied().unwrap_or_default(), waiting.since)
        };
        let ready = self.waiting.iter().filter(|((_, object), _)| {
            !self.in_flight.contains_key(object)
                && of_kind(&object.kind) < IN_FLIGHT_OF_A_KIND_MAX
                && self.until(object, now).is_none()
        });
        let first = ready.min_by_key(|((_, object), waiting)| rank(object, waiting));
        first.map(|(key, _)| key)
    }

    /// Takes it: it is under way from then on.
    pub(crate) fn take(&mut self, next: NextWrite) -> Option<Write> {
        match next {
            NextWrite::Request(key) => {
                let waiting = self.waiting.remove(&key)?;
                let (requester, object) = key;
                self.requests_taken += 1;
                match self.waiting.is_empty() {
                    true => self.served.clear(),
                    false => drop(
                        self.served
                            .insert(object.key.namespace.clone(), self.requests_taken),
                    ),
                }
                self.in_flight.insert(object, requester.clone());
                Some(Write::Request(requester, waiting.request))
            }
            NextWrite::Event => {
                let (object, event) = self.events.pop_front()?;
                self.is_event_in_flight = true;
                Some(Write::Event(object, event))
            }
        }
    }

    /// When something may be sent that may not be now, if only time keeps it back.
    pub(crate) fn wakeup(&self, now: Duration) -> Option<Duration> {
        let waiting = self.waiting.keys();
        let untils = waiting.filter_map(|(_, object)| self.until(object, now));
        untils.min()
    }

    /// Records what became of a request that was in flight.
    pub(crate) fn record_outcome(
        &mut self,
        object: &ObjectId,
        outcome: WriteOutcome,
        now: Duration,
    ) {
        self.in_flight.remove(object);
        match outcome {
            WriteOutcome::Written => {
                self.failed.record_success(object);
                self.conflicts.record_success(object);
            }
            WriteOutcome::Conflict => drop(self.conflicts.record_failure(object.clone(), now)),
            WriteOutcome::Failed => drop(self.failed.record_failure(object.clone(), now)),
        }
    }

    /// Records that the Event in flight has been published, or was not.
    pub(crate) fn finish_event(&mut self) {
        self.is_event_in_flight = false;
    }
}

#[cfg(test)]
mod tests;
