//! How a worker sleeps, and how a command wakes it without a system call when it is awake.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::{Poll, Waker};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

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

    /// Sleeps until a socket of `poll` is ready, `timeout` is over or a command arrives. `idle` is asked
    /// once more, after the worker has said that it sleeps.
    pub(crate) fn sleep(
        &self,
        poll: &Poll,
        timeout: Option<Duration>,
        idle: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        self.asleep.store(true, Ordering::SeqCst);
        let slept = if idle() {
            // Not epoll's own wait: its timeout is in milliseconds, and half an RTO would be lost.
            // An epoll descriptor is itself readable when one of its own is.
            let ready = poll.registry().as_fd();
            ppoll(
                &mut [PollFd::new(ready, PollFlags::POLLIN)],
                timeout.map(TimeSpec::from),
                None,
            )
        } else {
            Ok(0)
        };
        self.asleep.store(false, Ordering::SeqCst);
        match slept {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
