//! Completion queues, and the channels that say when they have completions.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use weft_device::completion::{Completion, Outcome};
use weft_device::ring::{Producer, Ring};
use weft_device_socket::packet;
use weft_engine::Words;

/// A completion queue on its way to the next engine.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedCompletionQueue {
    produced: u32,
    channel: Option<u32>,
}

impl SavedCompletionQueue {
    pub(crate) fn restore(self, ring: Ring<Words>) -> CompletionQueue {
        CompletionQueue {
            ring: Producer::new(ring, self.produced),
            channel: self.channel,
            is_due: false,
        }
    }
}

/// A completion queue: its ring, and its channel.
pub(crate) struct CompletionQueue {
    ring: Producer<Words>,
    pub(crate) channel: Option<u32>,
    /// It was armed, and its channel is to be told.
    is_due: bool,
}

impl CompletionQueue {
    pub(crate) fn new(ring: Producer<Words>, channel: Option<u32>) -> Self {
        Self {
            ring,
            channel,
            is_due: false,
        }
    }

    /// For the next engine. Between two turns its channel is told already.
    pub(crate) fn save(self) -> SavedCompletionQueue {
        SavedCompletionQueue {
            produced: self.ring.produced(),
            channel: self.channel,
        }
    }

    /// Puts a completion into the ring. Answers whether there was room.
    pub(crate) fn put(&mut self, completion: &Completion) -> bool {
        let is_put = self.ring.push(&[completion.slot()]).is_ok();
        if self.channel.is_some() {
            // The wire does not say which sends are solicited: all are taken to be.
            let is_receive = completion.opcode.is_receive();
            let has_failed = matches!(completion.outcome, Outcome::Failure { .. });
            self.is_due |= self.ring.take_wakeup(is_receive || has_failed);
        }
        is_put
    }

    /// Whether the completions that the program has not taken fit into a queue of so many.
    pub(crate) fn fits(&self, entries: u32) -> bool {
        self.ring.pending().is_ok_and(|pending| pending <= entries)
    }

    /// Goes on in another ring. Answers whether it could.
    pub(crate) fn move_to(&mut self, ring: Ring<Words>) -> bool {
        self.ring.move_to(ring).is_ok()
    }

    /// Whether its channel is to be told, once.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }
}

/// A socket by which the program hears of events: the engine's end, which never waits, and the program's.
pub(crate) fn event_socket() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (socket, program) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok((socket, program))
}

/// The engine's end of a completion channel.
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Queues that the program is told of when it has taken earlier packets, each once: a program that takes none may
    /// have armed them any number of times.
    unsent: VecDeque<u32>,
}

impl Channel {
    /// Both ends: the engine's, and the program's.
    pub(crate) fn new() -> rustix::io::Result<(Self, OwnedFd)> {
        let (socket, program) = event_socket()?;
        let unsent = VecDeque::new();
        Ok((Self { socket, unsent }, program))
    }

    /// Its socket, and what the program is still to be told.
    pub(crate) fn save(self) -> (OwnedFd, VecDeque<u32>) {
        (self.socket, self.unsent)
    }

    pub(crate) fn restore(socket: OwnedFd, unsent: VecDeque<u32>) -> Self {
        Self { socket, unsent }
    }

    pub(crate) fn tell(&mut self, queue: u32) {
        if !self.unsent.contains(&queue) {
            self.unsent.push_back(queue);
        }
        self.send();
    }

    /// Sends what there is. Answers whether something is left.
    pub(crate) fn send(&mut self) -> bool {
        while let Some(queue) = self.unsent.front() {
            match packet::send(self.socket.as_fd(), &queue.to_ne_bytes(), &[]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                // A program that has closed its end wants to hear nothing.
                Ok(()) | Err(_) => self.unsent.pop_front(),
            };
        }
        false
    }
}
