//! How a worker sleeps, and how a command wakes it without a system call when it is awake.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weft_core::units::Time;
use weft_link::{Waiter, Waker};

/// Shared by a worker's thread, which sleeps, and the engine's handle, which wakes it.
pub(crate) struct Doze {
    asleep: AtomicBool,
    /// When the worker wakes by itself, in nanoseconds. Written and read under the worker's lock.
    until: AtomicU64,
    /// The worker's thread waits for the lock.
    is_waiting: AtomicBool,
    waiter: Waiter,
    waker: Waker,
}

impl Doze {
    pub(crate) fn new(waiter: Waiter, waker: Waker) -> Self {
        Self {
            asleep: AtomicBool::new(false),
            until: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            waiter,
            waker,
        }
    }

    /// Whether the worker's thread waits for the lock; a hint.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn set_waiting(&self, waiting: bool) {
        if waiting != self.is_waiting() {
            self.is_waiting.store(waiting, Ordering::Relaxed);
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

    /// Called under the worker's lock by a thread that has changed when there is something to do: the worker must not
    /// sleep past `due`. A worker that is awake looks for itself before it sleeps.
    pub(crate) fn wake_by(&self, due: Option<Time>) {
        if due.is_some_and(|due| due.as_nanos() < self.until.load(Ordering::Relaxed)) {
            self.wake();
        }
    }

    /// Called under the worker's lock before [`Doze::wait`]: the worker is about to sleep until `due`. Its queue is
    /// looked at after this.
    pub(crate) fn prepare_to_sleep(&self, due: Option<Time>) {
        let until = due.map_or(u64::MAX, Time::as_nanos);
        self.until.store(until, Ordering::Relaxed);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// Sleeps, without the worker's lock, until there is something to do or for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let slept = self.waiter.wait(timeout);
        self.cancel_sleep();
        slept
    }

    /// The worker does not sleep, or no longer.
    pub(crate) fn cancel_sleep(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}
