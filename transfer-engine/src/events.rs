//! The events thread: what the engines report ends operations and counts immediates, and deadlines pass.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use weft_engine::{ConnectionId, EngineError, Event, Failure};

use crate::failure::Cause;
use crate::lock::lock;
use crate::operations::{Deadline, End, PartId, Step};
use crate::session::Session;
use crate::shared::{Shared, Wake};
use crate::work_request::signal;

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
    pub(crate) fn poll(&self, events: &[Receiver<Event>]) -> Result<bool, EngineError> {
        let mut is_busy = false;
        for (engine, (it, events)) in self.engines.iter().zip(events).enumerate() {
            is_busy |= it.engine.poll(Duration::ZERO)?;
            for event in events.try_iter() {
                self.handle(engine, &event);
            }
        }
        Ok(is_busy)
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
                self.posted_ended(engine, connection, context, End::Done);
            }
            Event::Cancelled { context, .. } => {
                self.posted_ended(engine, connection, context, End::Cancelled);
            }
            Event::Refused {
                context, failure, ..
            } => {
                let end = End::Refused(Cause::RequestRefused(failure));
                self.posted_ended(engine, connection, context, end);
            }
            Event::Delivered { immediate, .. } | Event::Signal { immediate, .. } => {
                for part in self.counters.add(immediate) {
                    self.end_part(part, End::Done);
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

    fn posted_ended(&self, engine: usize, connection: ConnectionId, part: PartId, end: End) {
        let step = self.operations().end(part, end);
        match step {
            Step::Nothing => {}
            Step::Ended(ended) => self.tell([ended]),
            Step::Signal(part, immediate) => match self.session(engine, connection) {
                Some(session) => {
                    self.post(&session, part, signal(immediate), session.next_link(0));
                }
                None => self.end_part(part, End::Failed(Cause::PeerEnded)),
            },
        }
        // It may have been a read: the next one may begin.
        if self.waiting_reads.load(Ordering::Relaxed) > 0
            && let Some(session) = self.session(engine, connection)
        {
            let next = lock(&session.reads).pop_front();
            if let Some((part, work, link)) = next {
                self.waiting_reads.fetch_sub(1, Ordering::Relaxed);
                self.post(&session, part, work, &link);
            }
        }
    }

    fn session(&self, engine: usize, connection: ConnectionId) -> Option<Arc<Session>> {
        lock(&self.by_connection)
            .get(&(engine, connection))
            .cloned()
    }
}
