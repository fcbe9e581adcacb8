//! Waits until a link is ready or another thread wakes the worker.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use mio::Waker;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::link::Link;

/// The token that no port has.
const WAKER: Token = Token(usize::MAX);

/// Events taken by one call: all ports of a usual range, and the waker.
const EVENTS: usize = 64;

/// The readiness of one link, and a waker.
pub struct Poller {
    poll: Poll,
    events: Events,
}

impl Poller {
    /// A poller of `link`.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(link: &mut impl Link) -> io::Result<Self> {
        let poll = Poll::new()?;
        link.register(poll.registry())?;
        let events = Events::with_capacity(EVENTS);
        Ok(Self { poll, events })
    }

    /// What ends a wait from another thread. One for each poller.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn waker(&self) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), WAKER)
    }

    /// Has each write to an eventfd end a wait, from any process that has it. Nobody needs to read it.
    ///
    /// # Errors
    /// The descriptor cannot be waited for, or is added already.
    pub fn add_waker(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let mut source = SourceFd(&eventfd.as_raw_fd());
        self.poll
            .registry()
            .register(&mut source, WAKER, Interest::READABLE)
    }

    /// Writes to it end no wait any more.
    ///
    /// # Errors
    /// It was not added.
    pub fn remove_waker(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let mut source = SourceFd(&eventfd.as_raw_fd());
        self.poll.registry().deregister(&mut source)
    }

    /// What waits for the link or a waker. Another thread may use the poller meanwhile.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn waiter(&self) -> io::Result<Waiter> {
        let epoll = self.poll.registry().as_fd().try_clone_to_owned()?;
        Ok(Waiter { epoll })
    }

    /// Tells `link` what is ready, without waiting: one system call.
    ///
    /// # Errors
    /// The system does not say what is ready.
    pub fn poll(&mut self, link: &mut impl Link) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in self.events.iter().filter(|event| event.token() != WAKER) {
            link.handle_event(event);
        }
        Ok(())
    }
}

/// Waits for a [`Poller`]'s link and waker.
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    /// Waits until there is something for [`Poller::poll`] to tell, for at most `timeout`.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        // Not epoll's own wait: its timeout is in milliseconds, and half an RTO would be lost.
        // An epoll descriptor is itself readable when one of its own is.
        let mut ready = [PollFd::new(self.epoll.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut ready, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
