//! What the handle asks of a worker.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weft_core::units::{ConnectionId, Key};
use weft_core::wire::Secret;

use crate::doze::Doze;
use crate::ends::RemoteEnd;
use crate::parts::Parts;
use crate::snapshot::Snapshot;
use weft_core::memory::DomainId;
use weft_memory::Source;

/// One request; a worker serves them in the order they were made.
pub(crate) enum Command {
    /// Know this end: its packets are no strangers', even before it is connected.
    Allocate {
        id: ConnectionId,
        domain: DomainId,
        receive_secret: Secret,
    },
    /// Begin to send and receive.
    Connect {
        id: ConnectionId,
        remote: Box<RemoteEnd>,
        parts: Arc<Parts>,
    },
    /// Send.
    Write { id: ConnectionId, write: Outgoing },
    /// Another part of this connection has failed: end this one too.
    End { id: ConnectionId },
    /// End a connection and say so.
    Close { id: ConnectionId },
    /// Tell what was counted.
    Snapshot { answer: Sender<Snapshot> },
    /// End the worker.
    Stop,
}

/// Where a worker takes its commands from.
pub(crate) struct Queue {
    pub(crate) commands: Sender<Command>,
    pub(crate) doze: Arc<Doze>,
}

impl Queue {
    pub(crate) fn send(&self, command: Command) {
        // The queue is gone only when the worker has ended: in the drop of the engine.
        if self.commands.send(command).is_ok() {
            self.doze.wake();
        }
    }
}

/// A write on its way.
pub(crate) struct Outgoing {
    pub(crate) source: Source,
    pub(crate) source_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) immediate: Option<u32>,
    pub(crate) context: u64,
}
