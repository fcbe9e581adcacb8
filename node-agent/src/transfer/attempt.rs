//! One attempt at a job on this node: its state, its counters, its workers, its end.
//!
//! Owned by [`crate::control::attempt_registry`]; shared with the attempt's threads. Everybody reports through it, and
//! it alone decides what state the attempt is in.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::Instant;
use weft_proto::agent::v1::AttemptRef;

use crate::fail_fast;
use crate::fault::Fault;
use crate::files::Digest;
use crate::transfer::peer::Peer;
use crate::transfer::recorder::Recorder;
use crate::transfer::state::{Event, State, Transition};

/// What observers of an attempt wait for.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Its state.
    pub state: State,
    /// Why it failed, in `Failed` only.
    pub fault: Option<Fault>,
    /// Digest of the whole, once all of it is here (at the source: once it is read).
    pub digest: Option<Digest>,
    /// Threads and tasks that still work for the attempt.
    pub workers: usize,
    /// Over and without workers: it takes no worker any more, and is cleaned up.
    pub refuses_workers: bool,
    /// Over and cleaned up: no byte of this attempt arrives any more.
    pub closed: bool,
}

/// What is counted as it happens.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of all files of the manifest.
    pub bytes_total: AtomicU64,
    /// Bytes that are here and checked, or at the source: read and hashed.
    pub bytes: AtomicU64,
    /// Of these: those that were here before.
    pub bytes_resumed: AtomicU64,
    /// Files of a directory that was there have been replaced one after the other.
    pub file_by_file: AtomicBool,
}

/// An attempt.
#[derive(Debug)]
pub struct Attempt {
    /// Which one.
    pub attempt_ref: AttemptRef,
    /// What is counted.
    pub counters: Counters,
    /// When the operator last asked about it.
    renewed: Mutex<Instant>,
    status: watch::Sender<Status>,
    peers: Mutex<Vec<Arc<Peer>>>,
    /// Dropped to tell all threads to stop.
    stop: Mutex<Option<Sender<Infallible>>>,
    stopped: Receiver<Infallible>,
    /// Until all is verified, or over.
    recorder: Mutex<Option<Recorder>>,
}

impl Attempt {
    /// A new one, in `Pending`.
    #[must_use]
    pub fn new(attempt_ref: AttemptRef) -> Arc<Self> {
        let (stop, stopped) = crossbeam_channel::bounded(0);
        Arc::new(Self {
            attempt_ref,
            counters: Counters::default(),
            renewed: Mutex::new(Instant::now()),
            status: watch::Sender::default(),
            peers: Mutex::default(),
            stop: Mutex::new(Some(stop)),
            stopped,
            recorder: Mutex::default(),
        })
    }

    /// The status now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> State {
        self.status.borrow().state
    }

    /// Gives every change of the status.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Applies an event and returns what the table says.
    pub fn apply(&self, event: Event) -> Transition {
        self.change(event, None, None)
    }

    /// All blocks are here, and this is their digest.
    pub fn all_blocks(&self, digest: Option<Digest>) {
        self.change(Event::AllBlocks, None, digest);
    }

    /// Sets how the files are recorded once they are verified.
    pub(crate) fn set_recorder(&self, recorder: Recorder) {
        *fail_fast::lock(&self.recorder) = Some(recorder);
    }

    /// Everything is checked and published. Records the copy first, so only threads that may block call this.
    pub fn set_published(&self, digest: Option<Digest>) {
        let recorder = fail_fast::lock(&self.recorder).take();
        if let (Some(recorder), Some(digest)) = (recorder, digest.or(self.status().digest)) {
            recorder.record(&self.attempt_ref.uid, &digest);
        }
        self.change(Event::Published, None, digest);
    }

    /// Ends the attempt without success, unless it is over already; its threads stop.
    pub fn fail(&self, fault: Fault) {
        self.change(Event::Fail, Some(fault), None);
        self.stop();
    }

    fn change(&self, event: Event, fault: Option<Fault>, digest: Option<Digest>) -> Transition {
        let mut transition = Transition::Refuse;
        self.status.send_if_modified(|status| {
            transition = status.state.on(event);
            let attempt_ref = &self.attempt_ref;
            let Transition::To(next) = transition else {
                if let Some(fault) = &fault
                    && status.state == State::Verified
                    && status.workers > 0
                {
                    tracing::warn!(
                        job = attempt_ref.uid, attempt = attempt_ref.number, state = %status.state,
                        reason = fault.reason(), "the verified node stops sending to its children: {fault}"
                    );
                }
                return false;
            };
            match &fault {
                Some(fault) => tracing::warn!(
                    job = attempt_ref.uid, attempt = attempt_ref.number, from = %status.state, to = %next,
                    reason = fault.reason(), "{fault}"
                ),
                None => tracing::info!(
                    job = attempt_ref.uid, attempt = attempt_ref.number, from = %status.state, to = %next, "state"
                ),
            }
            status.state = next;
            if next == State::Failed {
                status.fault = fault;
            }
            if digest.is_some() {
                status.digest = digest;
            }
            true
        });
        transition
    }

    /// Stops all threads, whatever the state.
    pub fn stop(&self) {
        drop(fail_fast::lock(&self.stop).take());
    }

    /// A channel that is disconnected once the threads must stop.
    #[must_use]
    pub fn stop_channel(&self) -> Receiver<Infallible> {
        self.stopped.clone()
    }

    /// Whether the threads must stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
    }

    /// Counts a thread, task or command as working for this attempt until the result is dropped. None once the
    /// attempt refuses workers. Taken before the state is changed, so that the end waits for the worker.
    #[must_use]
    pub fn begin_work(self: &Arc<Self>) -> Option<WorkGuard> {
        let mut taken = false;
        self.status.send_if_modified(|status| {
            taken = !status.refuses_workers;
            status.workers += usize::from(taken);
            taken
        });
        taken.then(|| WorkGuard(self.clone()))
    }

    /// Refuses further workers if the attempt is over and has none. Returns whether it refuses them.
    pub fn try_refuse_workers(&self) -> bool {
        let mut refuses = false;
        self.status.send_if_modified(|status| {
            let was = status.refuses_workers;
            status.refuses_workers |= status.state.is_terminal() && status.workers == 0;
            refuses = status.refuses_workers;
            refuses != was
        });
        refuses
    }

    /// Everything is over and cleaned up.
    pub fn close(&self) {
        drop(fail_fast::lock(&self.recorder).take());
        self.status.send_modify(|status| status.closed = true);
    }

    /// Waits until everything is over and cleaned up.
    pub async fn wait_closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.watch().wait_for(|status| status.closed).await;
    }

    /// The operator has asked about the attempt.
    pub fn renew(&self) {
        *fail_fast::lock(&self.renewed) = Instant::now();
    }

    /// Time since the operator last asked about it.
    #[must_use]
    pub fn idle(&self) -> Duration {
        fail_fast::lock(&self.renewed).elapsed()
    }

    /// Adds a peer.
    pub fn add_peer(&self, peer: Arc<Peer>) {
        fail_fast::lock(&self.peers).push(peer);
    }

    /// The peers.
    #[must_use]
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        fail_fast::lock(&self.peers).clone()
    }
}

/// A thread, task or command that works for an attempt; dropped at the end of that work.
#[derive(Debug)]
pub struct WorkGuard(Arc<Attempt>);

impl WorkGuard {
    /// Runs `work` on a thread of that name, which counts as this worker until it ends.
    pub(crate) fn spawn(
        self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Fault> {
        let spawned = fail_fast::thread(name, move || {
            let _worker = self;
            work();
        });
        spawned.map(drop).map_err(|error| Fault::Engine {
            problem: format!(
                "a thread could not be made: {error}: raise the limit on threads (TasksMax of the \
                 agent's unit, or the limit on pids of its pod)"
            ),
        })
    }
}

impl Clone for WorkGuard {
    fn clone(&self) -> Self {
        // This worker exists, so the attempt takes further ones.
        self.0.status.send_modify(|status| status.workers += 1);
        Self(self.0.clone())
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.status.send_modify(|status| status.workers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn attempt() -> Arc<Attempt> {
        Attempt::new(AttemptRef {
            uid: "job".to_owned(),
            generation: 1,
            number: 1,
        })
    }

    #[test]
    fn an_attempt_that_is_over_refuses_workers_once_it_has_none() {
        let attempt = attempt();
        let first = attempt.begin_work().unwrap();
        assert!(!attempt.try_refuse_workers(), "the attempt goes on");
        attempt.fail(Fault::Cancelled);
        assert!(!attempt.try_refuse_workers(), "there is a worker");
        let second = first.clone();
        drop(first);
        assert!(!attempt.try_refuse_workers() && attempt.begin_work().is_some());
        drop(second);
        assert!(attempt.try_refuse_workers());
        assert!(attempt.begin_work().is_none());
        assert_eq!(attempt.status().workers, 0);
    }

    /// What is logged while `work` runs.
    fn logged(work: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Log(Arc<Mutex<Vec<u8>>>);
        impl Write for Log {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_relay_that_stops_serving_after_it_was_verified_says_why() {
        let attempt = attempt();
        let events = [
            Event::Prepare,
            Event::Prepared,
            Event::Connect,
            Event::AllBlocks,
            Event::Published,
        ];
        for event in events {
            assert!(matches!(attempt.apply(event), Transition::To(_)));
        }
        let serving = attempt.begin_work();
        let text = logged(|| attempt.fail(Fault::LeaseExpired { seconds: 900 }));
        assert!(
            text.contains("WARN") && text.contains("LeaseExpired"),
            "{text}"
        );
        assert_eq!(attempt.state(), State::Verified);
        // An end without workers is not logged.
        drop(serving);
        let text = logged(|| attempt.fail(Fault::ShuttingDown));
        assert_eq!(text, "");
    }
}
