//! The callback thread calls the program, so that no callback holds up transfers. It also reads the words of watchers:
//! nothing wakes a thread when a device writes to memory.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use weft_engine::{Region, Words};

use crate::error::TransferError;

/// Gets the old and the new value of a word, on the callback thread.
pub type WatchHandler = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Bytes of the memory of a word: a process or a device that maps the page sees no other word.
const PAGE_BYTES: u64 = 4096;

/// A word of 64 bits that is watched until this is dropped.
pub struct Watcher(Arc<Watched>);

struct Watched {
    region: Arc<Region>,
    words: Words,
    handler: WatchHandler,
}

impl Watcher {
    /// Adds to the word. The callback sees what was written before.
    pub fn add(&self, value: u64) {
        self.0.words[0].fetch_add(value, Ordering::Release);
    }

    /// The word.
    pub fn load(&self) -> u64 {
        self.0.words[0].load(Ordering::Acquire)
    }

    /// A memfd whose first 8 bytes are the word, for a process or a device that increments it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.region.file()
    }
}

enum Job {
    Call(Box<dyn FnOnce() + Send>),
    Watch(Weak<Watched>),
    Stop,
}

/// The way to the callback thread.
pub(crate) struct Callbacks(Sender<Job>);

impl Callbacks {
    /// The thread runs until [`Callbacks::end`].
    pub(crate) fn start(interval: Duration) -> Result<(Self, JoinHandle<()>), TransferError> {
        let (jobs, queue) = unbounded();
        let thread = spawn("weft-callbacks", move || run(&queue, interval))?;
        Ok((Self(jobs), thread))
    }

    pub(crate) fn call(&self, call: Box<dyn FnOnce() + Send>) {
        // The thread ends after the engine.
        let _ = self.0.send(Job::Call(call));
    }

    /// Watches a new word until the [`Watcher`] is dropped.
    pub(crate) fn watch(&self, handler: WatchHandler) -> Result<Watcher, TransferError> {
        let region = Arc::new(Region::memfd("weft-watcher", PAGE_BYTES)?);
        let words = Words::new(&region, 0, 1).map_err(|_| TransferError::OutOfBounds {
            field: "watcher",
            offset: 0,
            bytes: 8,
            region_bytes: PAGE_BYTES,
        })?;
        let watched = Arc::new(Watched {
            region,
            words,
            handler,
        });
        let _ = self.0.send(Job::Watch(Arc::downgrade(&watched)));
        Ok(Watcher(watched))
    }

    /// Ends the thread when it has made the calls until now.
    pub(crate) fn end(&self) {
        let _ = self.0.send(Job::Stop);
    }
}

fn guarded(call: impl FnOnce()) {
    // What a callback leaves half changed is the program's: nothing here uses it.
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a callback panicked; the engine goes on");
    }
}

/// The thread's body.
fn run(queue: &Receiver<Job>, interval: Duration) {
    // Words, and their last values.
    let mut watched: Vec<(Weak<Watched>, u64)> = Vec::new();
    loop {
        let job = match watched.is_empty() {
            true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => queue.recv_timeout(interval),
        };
        match job {
            Ok(Job::Call(call)) => guarded(call),
            Ok(Job::Watch(word)) => watched.push((word, 0)),
            Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        watched.retain_mut(|(word, last)| {
            let Some(word) = word.upgrade() else {
                return false;
            };
            let now = word.words[0].load(Ordering::Acquire);
            let old = std::mem::replace(last, now);
            if old != now {
                guarded(|| (word.handler)(old, now));
            }
            true
        });
    }
}

pub(crate) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, TransferError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(TransferError::system("spawn a thread"))
}

/// Waits for the end of a thread, unless it is the caller: a callback may drop the engine.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        tracing::error!("a thread of the engine panicked");
    }
}
