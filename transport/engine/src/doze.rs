//! How a worker sleeps, and how a command wakes it without a system call when it is awake.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_link::Waker;

/// Shared by a worker (who sleeps) and the engine's handle (who wakes).
pub(crate) struct Doze {
    asleep: AtomicBool,
    waker: Waker,
}

impl Doze {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            asleep: AtomicBool::new(false),
            waker,
        }
    }

    /// Called after a command was queued.
    pub(crate) fn wake(&self) {
        // Either the worker's look at its queue comes after the command was queued, or this load
        // comes after the worker said that it sleeps: sequential consistency leaves no third case.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // An eventfd's write fails only when its counter is full, and then it wakes anyway.
            let _ = self.waker.wake();
        }
    }

    /// Sleeps by `wait`, unless there is work: `is_idle` is asked once more, after the worker has said that
    /// it sleeps.
    pub(crate) fn sleep(
        &self,
        is_idle: impl FnOnce() -> bool,
        wait: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.asleep.store(true, Ordering::SeqCst);
        let slept = if is_idle() { wait() } else { Ok(()) };
        self.asleep.store(false, Ordering::SeqCst);
        slept
    }
}
