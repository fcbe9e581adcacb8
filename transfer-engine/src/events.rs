//! The events thread: what the engines report ends operations and counts immediates, and deadlines pass.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use weft_engine::{ConnectionId, EngineError, Event, Failure};

use crate::failure::Cause;
use crate::lock::lock;
use crate::operations::{Deadline, PartEnd, PartId};
use crate::session::Session;
use crate::shared::{Shared, Wake};

/// Events of one engine that are handled before those of the others.
const EVENTS_PER_TURN: usize = 256;

/// The thread's body. Of an engine that the program polls it has the deadlines only.
pub(crate) fn run(shared: &Shared, engines: &[Receiver<Event>], wakes: &Receiver<Wake>) {
    let mut select = Select::new();
    for events in engines {
        select.recv(events);
    }
    select.recv(wakes);
    loop {
        let until = shared.pass_deadlines();
        let Ok(ready) = select.ready_deadline(shared.started + until) else {
            shared.post_waiting_reads();
            continue;
        };
        match engines.get(ready) {
            Some(events) => {
                for event in events.try_iter().take(EVENTS_PER_TURN) {
                    shared.handle(ready, &event);
                }
            }
            None => match wakes.try_recv() {
                Ok(Wake::Stop) | Err(TryRecvError::Disconnected) => return,
                Ok(Wake::Deadline) | Err(TryRecvError::Empty) => {}
            },
        }
    }
}

impl Shared {
    /// What a program that polls does in place of the workers and of this thread. Answers whether there was anything to do.
    /// False also when another call is at it: events are handled in the order in which they came.
    pub(crate) fn poll(&self, events: &Mutex<Vec<Receiver<Event>>>) -> Result<bool, EngineError> {
        let Ok(events) = events.try_lock() else {
            return Ok(false);
        };
        let mut is_busy = false;
        for (engine, (it, events)) in self.engines.iter().zip(&*events).enumerate() {
            is_busy |= it.engine.poll(Duration::ZERO)?;
            for event in events.try_iter() {
                is_busy = true;
                self.handle(engine, &event);
            }
        }
        Ok(is_busy)
    }

    /// Posts a read of each session that has some that wait. A peer that answers reads that were cancelled makes room, and
    /// nothing tells of that: so the events thread looks now and then.
    fn post_waiting_reads(&self) {
        if self.waiting_reads.load(Ordering::Relaxed) == 0 {
            return;
        }
        let sessions: Vec<_> = lock(&self.by_connection).values().cloned().collect();
        for session in sessions {
            self.post_waiting_read(&session);
        }
    }

    fn post_waiting_read(&self, session: &Session) {
        loop {
            let next = lock(&session.reads).pop_front();
            let Some((part, work, connection)) = next else {
                return;
            };
            self.waiting_reads.fetch_sub(1, Ordering::Relaxed);
            // One that was stopped leaves its turn to the next.
            if self.post(session, part, work, &connection) {
                return;
            }
        }
    }

    /// Stops and ends what is due. Answers when to look again.
    fn pass_deadlines(&self) -> Duration {
        loop {
            let due = self.operations().poll(self.now());
            match due {
                Deadline::Passed(operation) => self.stop(operation, &Cause::DeadlinePassed),
                Deadline::Ended(ended) => self.tell([ended]),
                Deadline::Until(until) => return until,
            }
        }
    }

    fn handle(&self, engine: usize, event: &Event) {
        let connection = event.connection();
        match *event {
            Event::Written { context, .. } | Event::Completed { context, .. } => {
                self.posted_ended(engine, connection, context, PartEnd::Done);
            }
            Event::Cancelled { context, .. } => {
                self.posted_ended(engine, connection, context, PartEnd::Cancelled);
            }
            Event::Refused {
                context, failure, ..
            } => {
                let end = PartEnd::Refused(Cause::RequestRefused(failure));
                self.posted_ended(engine, connection, context, end);
            }
            Event::Delivered { immediate, .. } | Event::Signal { immediate, .. } => {
                match self.counters.add(immediate) {
                    Some(reached) => reached
                        .into_iter()
                        .for_each(|part| self.end_part(part, PartEnd::Done)),
                    None => {
                        if let Some(session) = self.session(engine, connection) {
                            self.end_session(&session, &Cause::TooManyImmediates);
                        }
                    }
                }
            }
            Event::Received {
                context,
                bytes,
                immediate,
                ..
            } => self
                .receives
                .received(&self.callbacks, context, bytes, immediate),
            Event::Failed { failure, .. } => {
                if let Some(session) = self.session(engine, connection) {
                    // That the peer has ended says more.
                    if failure != Failure::PeerRestarted {
                        let _ = session.failure.set(failure);
                    }
                    self.end_session(&session, &Cause::Connection(failure));
                }
            }
            // The end of the connection follows, and says why.
            Event::RequestFailed { .. } => {}
            Event::Closed { .. } => self.connection_closed(engine, connection),
        }
    }

    fn posted_ended(&self, engine: usize, connection: ConnectionId, part: PartId, end: PartEnd) {
        self.end_part(part, end);
        // It may have been a read: the next one may begin.
        if self.waiting_reads.load(Ordering::Relaxed) > 0
            && let Some(session) = self.session(engine, connection)
        {
            self.post_waiting_read(&session);
        }
    }

    fn session(&self, engine: usize, connection: ConnectionId) -> Option<Arc<Session>> {
        lock(&self.by_connection)
            .get(&(engine, connection))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use crate::counters::{COUNTERS_MAX, ImmCounters};

    #[test]
    fn messages_make_no_more_counters_than_there_is_room_for() {
        let counters = ImmCounters::new();
        for immediate in 0..COUNTERS_MAX as u32 {
            assert!(counters.add(immediate).is_some());
        }
        assert_eq!(counters.add(COUNTERS_MAX as u32), None);
        assert!(counters.add(7).is_some());
        counters.free(7);
        assert!(counters.add(COUNTERS_MAX as u32).is_some());
    }
}
