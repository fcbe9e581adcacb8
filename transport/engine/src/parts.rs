//! What the parts of one connection share. A connection that is not split has one part.
//!
//! Each part is a connection of its own to its worker: it has its ports, paths, window and congestion state. The
//! engine's user sees one connection: a write goes to the part with the least to do, a failure of one part ends
//! the others, and only the last part to end or to be closed tells the user.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::Sender;
use weft_core::connection::{Failure, REQUESTS_MAX};
use weft_core::units::ConnectionId;

use crate::event::Event;

/// The parts of one connection, shared by the handle and the workers that hold them.
pub(crate) struct Parts {
    parts: Box<[Part]>,
    /// Where its user's events go.
    events: Sender<Event>,
    failure: OnceLock<Failure>,
    /// Parts that go on, or do not know yet that another has failed.
    live: AtomicUsize,
    /// Parts that are not closed.
    open: AtomicUsize,
}

/// How a work request finds its part.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    /// The part with the least to do.
    Least,
    /// The same, and it waits for a response.
    Request,
    /// The first one: sends have an order.
    First,
}

struct Part {
    id: ConnectionId,
    /// Bytes of its writes that are not complete.
    load: AtomicU64,
    /// Requests whose responses are not here.
    requests: AtomicUsize,
}

impl Parts {
    pub(crate) fn new(ids: &[ConnectionId], events: Sender<Event>) -> Self {
        let part = |&id| Part {
            id,
            load: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
        };
        Self {
            parts: ids.iter().map(part).collect(),
            events,
            failure: OnceLock::new(),
            live: AtomicUsize::new(ids.len()),
            open: AtomicUsize::new(ids.len()),
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.parts.iter().map(|part| part.id)
    }

    /// The connection's id for its user.
    pub(crate) fn name(&self) -> ConnectionId {
        self.parts[0].id
    }

    /// Tells the user. One who has dropped the receiver does not want to know.
    pub(crate) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Events that the user has not taken.
    pub(crate) fn untaken(&self) -> usize {
        self.events.len()
    }

    /// Which part this is.
    pub(crate) fn index(&self, id: ConnectionId) -> usize {
        self.ids().position(|part| part == id).unwrap_or(0)
    }

    /// The part for a work request: the one with the fewest bytes that are not complete, and of several such the
    /// first. `None` when that one may wait for no more responses.
    pub(crate) fn choose(&self, choice: Choice, bytes: u64) -> Option<ConnectionId> {
        let load = |part: &&Part| part.load.load(Ordering::Relaxed);
        let may_ask = |part: &&Part| part.requests.load(Ordering::Relaxed) < REQUESTS_MAX;
        let part = match choice {
            Choice::First => self.parts.first()?,
            Choice::Least => self.parts.iter().min_by_key(load)?,
            Choice::Request => self.parts.iter().filter(may_ask).min_by_key(load)?,
        };
        if let Choice::Request = choice {
            let more = |requests| (requests < REQUESTS_MAX).then_some(requests + 1);
            let taken = part
                .requests
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            taken.ok()?;
        }
        part.load.fetch_add(weight(bytes), Ordering::Relaxed);
        Some(part.id)
    }

    /// Counts a work request for the first part that was posted on another engine.
    pub(crate) fn restore(&self, bytes: u64, request: bool) {
        let part = &self.parts[0];
        part.load.fetch_add(weight(bytes), Ordering::Relaxed);
        part.requests.fetch_add(request.into(), Ordering::Relaxed);
    }

    /// Counts requests of the first part that were cancelled on another engine, and that the peer has yet to answer.
    pub(crate) fn restore_requests(&self, count: usize) {
        self.parts[0].requests.fetch_add(count, Ordering::Relaxed);
    }

    /// The peer has answered so many requests of this part that were cancelled.
    pub(crate) fn answered(&self, part: usize, count: usize) {
        let part = &self.parts[part];
        part.requests.fetch_sub(count, Ordering::Relaxed);
    }

    /// A work request of this part is complete.
    pub(crate) fn complete(&self, part: usize, bytes: u64, request: bool) {
        let part = &self.parts[part];
        part.load.fetch_sub(weight(bytes), Ordering::Relaxed);
        if request {
            part.requests.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A part has failed by itself. Answers whether it is the first: then the others are to end.
    pub(crate) fn fail(&self, id: ConnectionId, failure: Failure) -> bool {
        let first = self.failure.set(failure).is_ok();
        if first {
            tracing::warn!(
                connection = %self.name(), part = self.index(id), reason = failure.reason(),
                "connection failed"
            );
        }
        first
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// A part has ended. Answers why the connection has failed when it was the last: nothing lands any more.
    pub(crate) fn ended(&self) -> Option<Failure> {
        let last = self.live.fetch_sub(1, Ordering::AcqRel) == 1;
        self.failure.get().copied().filter(|_| last)
    }

    /// A part is closed. Answers whether it was the last.
    pub(crate) fn closed(&self) -> bool {
        self.open.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// What a write counts: one without bytes is something to do too.
fn weight(bytes: u64) -> u64 {
    bytes.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::Users;
    use std::sync::Arc;

    fn parts(ids: &[ConnectionId]) -> Parts {
        Parts::new(ids, crossbeam_channel::unbounded().0)
    }

    #[test]
    fn a_write_goes_to_the_part_with_the_fewest_bytes_that_are_not_complete() {
        let ids = [ConnectionId(0), ConnectionId(1), ConnectionId(2)];
        let parts = parts(&ids);
        let chosen: Vec<u32> = [100, 10, 0, 0, 5, 50]
            .map(|bytes| parts.choose(Choice::Least, bytes).unwrap().0)
            .into();
        assert_eq!(chosen, [0, 1, 2, 2, 2, 2]);
        parts.complete(0, 100, false);
        let choose = |choice, bytes| parts.choose(choice, bytes);
        assert_eq!(choose(Choice::Least, 0), Some(ids[0]));
        assert_eq!(choose(Choice::Least, 20), Some(ids[0]));
        assert_eq!(choose(Choice::Least, 1), Some(ids[1]));
        assert_eq!(choose(Choice::First, 1_000), Some(ids[0]));
    }

    #[test]
    fn the_last_part_tells_even_when_it_is_connected_after_another_has_failed() {
        let ids = [ConnectionId(0), ConnectionId(1)];
        let (events, told) = crossbeam_channel::unbounded();
        let parts = Arc::new(Parts::new(&ids, events));
        let mut users = Users::default();
        users.add(ids[0], Arc::clone(&parts));
        parts.fail(ids[0], Failure::Stalled);
        users.end(ids[0]);
        assert!(told.is_empty());
        users.add(ids[1], Arc::clone(&parts));
        assert_eq!(told.len(), 1);
        users.end(ids[1]);
        parts.fail(ids[1], Failure::PeerRestarted);
        users.close(ids[1]);
        users.close(ids[0]);
        drop(parts);
        let told: Vec<Event> = told.iter().collect();
        assert!(
            matches!(
                told[..],
                [
                    Event::Failed {
                        connection: ConnectionId(0),
                        failure: Failure::Stalled
                    },
                    Event::Closed {
                        connection: ConnectionId(0)
                    }
                ]
            ),
            "{told:?}"
        );
    }
}
