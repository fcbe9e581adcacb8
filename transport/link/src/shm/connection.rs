//! One connection: a Unix socket that says whether the peer is there, and two rings in memory that both ends have.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use weft_core::units::Time;

use super::ring::{BadRing, Consumer, Producer, Wakeups};
use crate::outgoing::Way;

/// Bytes that are read from a socket at once: each of them has woken this end.
const RUNG_BYTES: usize = 256;

/// Reads of a socket at once. All that an honest peer's socket holds is less.
const READS_MAX: usize = 16;

/// Which end made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// This end, which sends data on it, after so many attempts in which the peer said nothing.
    Outgoing { failures: u32 },
    /// The other end.
    Incoming,
}

pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) way: Way,
    pub(super) role: Role,
    /// Tells it from others that have had its slot.
    pub(super) generation: u16,
    /// The user of the process that is connected.
    pub(super) user: u32,
    pub(super) inbox: Consumer,
    pub(super) outbox: Producer,
    pub(super) wakeups: Wakeups,
    /// Packets for which the ring has had no room.
    pub(super) kept: VecDeque<Box<[u8]>>,
    /// The endpoint was told that its path takes no chunk.
    pub(super) is_blocked: bool,
    /// Something was put into the ring, and the peer may sleep.
    pub(super) is_published: bool,
    /// The peer has gone. What it has put into the ring is there still.
    pub(super) has_ended: bool,
    /// When something was sent or received.
    pub(super) used_at: Time,
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        way: Way,
        role: Role,
        user: u32,
        (outbox, inbox, wakeups): (Producer, Consumer, Wakeups),
        now: Time,
    ) -> Self {
        Self {
            socket,
            way,
            role,
            generation: 0,
            user,
            inbox,
            outbox,
            wakeups,
            kept: VecDeque::new(),
            is_blocked: false,
            is_published: false,
            has_ended: false,
            used_at: now,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is something to take in, or to close.
    pub(super) fn is_readable(&self) -> bool {
        self.inbox.is_ready() || self.has_ended
    }

    /// Whether a chunk finds room, and nothing waits for room before it.
    pub(super) fn takes_chunk(&mut self) -> Result<bool, BadRing> {
        Ok(self.kept.is_empty() && self.outbox.has_room(Producer::CHUNK_ROOM)?)
    }

    /// Puts what is kept into the ring, as far as there is room. Answers whether anything left.
    pub(super) fn put_kept(&mut self) -> Result<bool, BadRing> {
        let before = self.kept.len();
        while !self.kept.is_empty() && self.outbox.has_packet_room()? {
            if let Some(packet) = self.kept.pop_front() {
                self.outbox.put(&packet);
            }
        }
        Ok(self.kept.len() < before)
    }

    /// Wakes the peer if it sleeps and wants to be woken for this. Answers whether it was.
    pub(super) fn wake(&self, wanted: u64) -> bool {
        let wakes = self.wakeups.take(wanted);
        if wakes {
            // Whatever it does not take now it has enough of to be awake; and if the peer is gone the poller says so.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&self.socket, &[0], flags);
        }
        wakes
    }

    /// Takes what has woken this end out of the socket, and sees whether the peer is there.
    pub(super) fn drain(&mut self) {
        let mut rung = [0; RUNG_BYTES];
        for _ in 0..READS_MAX {
            match recv(&self.socket, &mut rung[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.has_ended = true,
                Ok(_) | Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => self.has_ended = true,
            }
            return;
        }
    }
}
