//! The table of operations. Sans-IO: time is an argument, counted from the start of the engine, and the caller tells the
//! operations that ended.
//!
//! An operation has parts. A part waits for its connection, is posted on one, or waits for a count. The operation ends with
//! its last part. A cancel or a deadline *stops* it: parts that wait are dropped, and each posted part ends when its
//! connection says so, or when the time to confirm is over. The id of a part is the context of its work request. No id is
//! used twice: late reports find nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weft_engine::ConnectionId;

use crate::address::EngineAddress;
use crate::failure::{Cause, Failure, Stage};
use crate::outcome::{Outcome, State};

/// A century: a deadline that is later is this one.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The events thread looks at the deadlines at least this often, so that only an earlier one has to wake it.
const TICK: Duration = Duration::from_millis(500);

/// Names a part; that of the first part names the operation.
pub(crate) type PartId = u64;

/// A connection of an engine.
pub(crate) struct Connection {
    /// Its place among [`crate::shared::Shared::engines`].
    pub(crate) engine: usize,
    pub(crate) id: ConnectionId,
    /// Its two ends, for people.
    pub(crate) path: String,
}

/// Where a part is.
pub(crate) enum Place {
    /// It waits until it is posted.
    Waiting,
    Posted(Arc<Connection>),
    /// It waits for a count of this immediate.
    Expected(u32),
    Ended,
}

pub(crate) struct Part {
    /// `None` for a count.
    pub(crate) peer: Option<EngineAddress>,
    pub(crate) place: Place,
}

impl Part {
    fn failure(&self, cause: Cause) -> Failure {
        let (stage, path) = match &self.place {
            Place::Waiting | Place::Ended => (Stage::Connect, None),
            Place::Posted(connection) => (Stage::Transfer, Some(connection.path.clone())),
            Place::Expected(_) => (Stage::Count, None),
        };
        Failure {
            peer: self.peer.as_ref().map(EngineAddress::name),
            path,
            stage,
            cause,
        }
    }
}

struct Entry {
    state: Arc<State>,
    parts: Vec<Part>,
    /// Parts that have not ended.
    left: usize,
    deadline: Duration,
    /// Of the first part that failed.
    failure: Option<Failure>,
    /// It was stopped, and why.
    stopped: Option<Failure>,
    /// A part was stopped before it was done.
    is_cut_short: bool,
}

impl Entry {
    fn outcome(self) -> Ended {
        let outcome = match (self.stopped, self.failure) {
            (None, None) => Outcome::Done,
            (None, Some(failure)) => Outcome::Failed(failure),
            (Some(_), Some(failure)) => Outcome::Unconfirmed(failure),
            (Some(stopped), None) if self.left > 0 => Outcome::Unconfirmed(stopped),
            (Some(stopped), None) if self.is_cut_short => Outcome::Reusable(stopped),
            (Some(_), None) => Outcome::Done,
        };
        let state = self.state;
        Ended { state, outcome }
    }
}

/// An operation that has ended, and has to be told.
pub(crate) struct Ended {
    pub(crate) state: Arc<State>,
    pub(crate) outcome: Outcome,
}

/// How a part ends.
pub(crate) enum PartEnd {
    Done,
    /// Its connection confirms that no byte of it lands any more.
    Cancelled,
    /// The same, because the peer has refused it.
    Refused(Cause),
    Failed(Cause),
    /// The same before it was taken: no byte has left.
    NotPosted(Cause),
}

/// What a stop leads to.
#[derive(Default)]
pub(crate) struct Stop {
    /// The caller has their connections cancel these.
    pub(crate) posted: Vec<(PartId, Arc<Connection>)>,
    /// The caller forgets that the part waits for this immediate.
    pub(crate) expected: Option<u32>,
    pub(crate) ended: Option<Ended>,
}

/// What the deadlines ask for.
pub(crate) enum Deadline {
    /// The deadline of this operation has passed: the caller stops it.
    Passed(PartId),
    /// The time to confirm the stop is over.
    Ended(Ended),
    /// Nothing until then.
    Until(Duration),
}

#[derive(Default)]
pub(crate) struct Operations {
    next: PartId,
    entries: BTreeMap<PartId, Entry>,
    deadlines: BTreeSet<(Duration, PartId)>,
    /// When the events thread looks at the deadlines next.
    sleeps_until: Duration,
    /// Nothing begins any more.
    is_closed: bool,
}

impl Operations {
    /// Begins an operation, at least 1 part. Their ids follow each other. Answers the first id, and whether the events thread has to be woken; `None` when nothing begins any more.
    pub(crate) fn begin(
        &mut self,
        state: Arc<State>,
        parts: Vec<Part>,
        deadline: Duration,
    ) -> Option<(PartId, bool)> {
        if self.is_closed {
            return None;
        }
        let id = self.next;
        self.next += parts.len() as u64;
        let deadline = deadline.min(DEADLINE_MAX);
        self.deadlines.insert((deadline, id));
        let entry = Entry {
            state,
            left: parts.len(),
            parts,
            deadline,
            failure: None,
            stopped: None,
            is_cut_short: false,
        };
        self.entries.insert(id, entry);
        Some((id, deadline < self.sleeps_until))
    }

    /// Nothing begins from here on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// The operation of a part, and which part of it that is.
    fn find(&mut self, part: PartId) -> Option<(PartId, &mut Entry, usize)> {
        let (&id, entry) = self.entries.range_mut(..=part).next_back()?;
        let index = (part - id) as usize;
        (index < entry.parts.len()).then_some((id, entry, index))
    }

    /// The caller is about to post a part. Answers whether it should.
    pub(crate) fn post(&mut self, part: PartId, connection: &Arc<Connection>) -> bool {
        match self.find(part) {
            Some((_, entry, index)) if entry.stopped.is_none() => {
                entry.parts[index].place = Place::Posted(Arc::clone(connection));
                true
            }
            _ => false,
        }
    }

    /// The part was not posted after all, and waits again.
    pub(crate) fn unpost(&mut self, part: PartId) {
        if let Some((_, entry, index)) = self.find(part) {
            entry.parts[index].place = Place::Waiting;
        }
    }

    /// Whether the operation of a part was stopped, and goes on.
    pub(crate) fn is_stopped(&mut self, part: PartId) -> bool {
        self.find(part)
            .is_some_and(|(_, entry, _)| entry.stopped.is_some())
    }

    /// Ends a part. Answers the operation that has ended with it.
    pub(crate) fn end(&mut self, part: PartId, end: PartEnd) -> Option<Ended> {
        let (id, entry, index) = self.find(part)?;
        let part = &mut entry.parts[index];
        let failure = match end {
            _ if matches!(part.place, Place::Ended) => return None,
            PartEnd::Done => None,
            PartEnd::Cancelled => {
                entry.is_cut_short = true;
                None
            }
            PartEnd::Refused(_) if entry.stopped.is_some() => {
                entry.is_cut_short = true;
                None
            }
            PartEnd::Refused(cause) | PartEnd::Failed(cause) => Some(part.failure(cause)),
            PartEnd::NotPosted(cause) => Some(Failure {
                stage: Stage::Post,
                ..part.failure(cause)
            }),
        };
        part.place = Place::Ended;
        entry.left -= 1;
        if entry.failure.is_none() {
            entry.failure = failure;
        }
        match entry.left {
            0 => self.remove(id),
            _ => None,
        }
    }

    /// Fails all parts on a connection of an engine, which is over and reports nothing more; with `None` all there are.
    pub(crate) fn fail(&mut self, on: Option<(usize, ConnectionId)>, cause: &Cause) -> Vec<Ended> {
        let is_meant = |part: &Part| match (&part.place, on) {
            (Place::Posted(connection), Some(on)) => (connection.engine, connection.id) == on,
            (_, on) => on.is_none(),
        };
        let entries = self.entries.iter();
        let parts = entries.flat_map(|(id, entry)| (*id..).zip(&entry.parts));
        let meant = parts.filter(|(_, part)| is_meant(part));
        let meant: Vec<PartId> = meant.map(|(id, _)| id).collect();
        let end = |part| self.end(part, PartEnd::Failed(cause.clone()));
        meant.into_iter().filter_map(end).collect()
    }

    /// Stops an operation. Parts that are posted have until `until` to end. Once more changes nothing.
    pub(crate) fn stop(&mut self, operation: PartId, cause: &Cause, until: Duration) -> Stop {
        let mut stop = Stop::default();
        let Some(entry) = self.entries.get_mut(&operation) else {
            return stop;
        };
        if entry.stopped.is_some() {
            return stop;
        }
        for (id, part) in (operation..).zip(&mut entry.parts) {
            match &part.place {
                Place::Ended => continue,
                Place::Posted(connection) => {
                    // What is under way tells most of an operation.
                    if stop.posted.is_empty() {
                        entry.stopped = Some(part.failure(cause.clone()));
                    }
                    stop.posted.push((id, Arc::clone(connection)));
                    continue;
                }
                Place::Expected(immediate) => stop.expected = Some(*immediate),
                Place::Waiting => {}
            }
            let failure = || part.failure(cause.clone());
            entry.stopped.get_or_insert_with(failure);
            part.place = Place::Ended;
            entry.left -= 1;
            entry.is_cut_short = true;
        }
        if entry.left == 0 {
            stop.ended = self.remove(operation);
        } else {
            self.deadlines.remove(&(entry.deadline, operation));
            entry.deadline = until;
            self.deadlines.insert((until, operation));
        }
        stop
    }

    /// What is due now. The caller calls this until it is [`Deadline::Until`].
    pub(crate) fn poll(&mut self, now: Duration) -> Deadline {
        match self.deadlines.first() {
            Some(&(at, id)) if at <= now => match self.entries.get(&id) {
                Some(entry) if entry.stopped.is_none() => Deadline::Passed(id),
                _ => self
                    .remove(id)
                    .map_or(Deadline::Passed(id), Deadline::Ended),
            },
            next => {
                let tick = now + TICK;
                self.sleeps_until = next.map_or(tick, |(at, _)| tick.min(*at));
                Deadline::Until(self.sleeps_until)
            }
        }
    }

    /// Operations that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn remove(&mut self, operation: PartId) -> Option<Ended> {
        let entry = self.entries.remove(&operation)?;
        self.deadlines.remove(&(entry.deadline, operation));
        Some(entry.outcome())
    }
}

#[cfg(test)]
mod tests;
