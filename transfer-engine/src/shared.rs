//! What the threads of a TransferEngine share. The calls of the program (`submit`), the events of the NICs (`events`) and
//! set-up (`control`) meet here.
//!
//! A lock is held with no other one, but the operations' with that of a session's reads; and none while code of the program
//! runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc::UnboundedSender;
use weft_engine::{ConnectionId, EngineError, Event, Post, PostError, WorkRequest};

use crate::address::{EngineAddress, JoinToken};
use crate::callbacks::Callbacks;
use crate::config::{LinkEngine, TransferEngineConfig};
use crate::counters::ImmCounters;
use crate::error::TransferError;
use crate::failure::Cause;
use crate::lock::lock;
use crate::measured_links::MeasuredLinks;
use crate::operations::{Connection, Ended, Operations, PartEnd, PartId};
use crate::receives::Receives;
use crate::session::Session;

/// What the program asks of the events thread.
pub(crate) enum Wake {
    /// A deadline is earlier than the thread knows.
    Deadline,
    Stop,
}

/// A call to a peer, by its number.
pub(crate) type Dial = (u64, EngineAddress);

/// A part and its work; `None` only connects.
pub(crate) type Given = (PartId, Option<Post>);

/// A peer that is connected, or being connected when it has no session.
pub(crate) struct Peer {
    /// Which call makes the session. One for a peer that was removed meanwhile is not this one.
    pub(crate) dial: u64,
    pub(crate) session: Option<Arc<Session>>,
    /// Waits for the session.
    pub(crate) waiting: Vec<Given>,
}

pub(crate) struct Shared {
    pub(crate) config: TransferEngineConfig,
    /// Of each link.
    pub(crate) engines: Vec<LinkEngine>,
    /// Where the connections of each engine report.
    pub(crate) events: Vec<Sender<Event>>,
    pub(crate) address: EngineAddress,
    /// The devices of the NICs, where sockets are bound to them.
    pub(crate) devices: Vec<Option<String>>,
    /// The network namespace that the engines are in.
    pub(crate) place: String,
    pub(crate) started: Instant,
    /// The process that has the threads.
    pub(crate) process: u32,
    pub(crate) operations: Mutex<Operations>,
    pub(crate) to_events: Sender<Wake>,
    pub(crate) peers: Mutex<HashMap<JoinToken, Peer>>,
    /// By engine and connection.
    pub(crate) by_connection: Mutex<HashMap<(usize, ConnectionId), Arc<Session>>>,
    /// Reads of all sessions that wait for another read.
    pub(crate) waiting_reads: AtomicUsize,
    pub(crate) counters: ImmCounters,
    pub(crate) receives: Receives,
    pub(crate) callbacks: Callbacks,
    /// What the engines report, of each, where the program polls. Locked by the call that polls.
    pub(crate) polled: Option<Mutex<Vec<Receiver<Event>>>>,
    /// Which link is the fastest, and the memory that it is measured with.
    pub(crate) measured: MeasuredLinks,
    /// Calls to peers so far.
    pub(crate) dials: AtomicU64,
    /// Has the control thread connect to a peer; `None` ends it.
    pub(crate) to_control: UnboundedSender<Option<Dial>>,
}

impl Shared {
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Refuses a process that was forked from the one with the threads.
    pub(crate) fn check_process(&self) -> Result<(), TransferError> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(TransferError::Forked {
                parent: self.process,
            }),
        }
    }

    pub(crate) fn operations(&self) -> MutexGuard<'_, Operations> {
        lock(&self.operations)
    }

    /// Tells of operations that have ended.
    pub(crate) fn tell(&self, ended: impl IntoIterator<Item = Ended>) {
        for Ended { state, outcome } in ended {
            for callback in state.end(outcome.clone()) {
                let outcome = outcome.clone();
                self.callbacks.call(Box::new(move || callback(outcome)));
            }
        }
    }

    pub(crate) fn end_part(&self, part: PartId, end: PartEnd) {
        let ended = self.operations().end(part, end);
        self.tell(ended);
    }

    /// Stops an operation: nothing more of it is posted, and connections cancel what is.
    pub(crate) fn stop(&self, operation: PartId, cause: &Cause) {
        let until = self.now() + self.config.cancel_timeout;
        let stop = self.operations().stop(operation, cause, until);
        if let Some(immediate) = stop.expected {
            self.counters.forget(immediate, operation);
        }
        self.tell(stop.ended);
        for (part, connection) in &stop.posted {
            self.cancel(*part, connection);
        }
        if !stop.posted.is_empty() {
            // The time to confirm may end before the events thread looks at the deadlines.
            let _ = self.to_events.send(Wake::Deadline);
        }
    }

    pub(crate) fn cancel(&self, part: PartId, connection: &Connection) {
        // What is refused ends by itself, or when the time to confirm is over.
        let _ = self.engines[connection.engine]
            .engine
            .cancel(connection.id, part);
    }

    /// Posts work on a connection. Of what is not posted the part ends. Answers false for what has ended before: it leaves its
    /// place to another.
    pub(crate) fn post(
        &self,
        session: &Session,
        part: PartId,
        mut work: Post,
        connection: &Arc<Connection>,
    ) -> bool {
        work.connection = connection.id;
        match &mut work.request {
            WorkRequest::Write(it) => it.token = part,
            WorkRequest::WritePages(it) => it.token = part,
            WorkRequest::Send(it) => it.token = part,
            WorkRequest::ReportWrite(it) => it.token = part,
            WorkRequest::Read(it) => it.token = part,
            WorkRequest::Atomic(it) => it.token = part,
        }
        let is_read = matches!(work.request, WorkRequest::Read(_));
        // Under this lock: a read that ends meanwhile finds the one that waits.
        let waiting = is_read.then(|| (lock(&session.reads), work.clone()));
        if let Some(cause) = session.ended.get() {
            drop(waiting);
            self.end_part(part, PartEnd::NotPosted(cause.clone()));
            return true;
        }
        // Before it is posted: its end may be reported at once.
        if !self.operations().post(part, connection) {
            return false;
        }
        match (self.engines[connection.engine].engine.post(work), waiting) {
            (Ok(()), _) => {
                // The stop may have come before the connection had it.
                if self.operations().is_stopped(part) {
                    self.cancel(part, connection);
                }
            }
            (Err(EngineError::Post(PostError::TooManyRequests)), Some((mut reads, work))) => {
                self.operations().unpost(part);
                reads.push_back((part, work, Arc::clone(connection)));
                self.waiting_reads.fetch_add(1, Ordering::Relaxed);
            }
            (Err(error), waiting) => {
                drop(waiting);
                // A session that is over says more than its connection, which is not there any more.
                let cause = session.ended.get().cloned();
                let cause = cause.unwrap_or_else(|| Cause::NotPosted {
                    reason: error.reason(),
                    text: error.to_string(),
                });
                self.end_part(part, PartEnd::NotPosted(cause));
            }
        }
        true
    }
}
