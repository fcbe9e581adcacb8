//! What the handle asks of a worker.

use crossbeam_channel::Sender;
use weft_core::units::{ConnectionId, Key};
use weft_core::wire::Secret;

use crate::ends::RemoteEnd;
use crate::event::Event;
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
        events: Sender<Event>,
    },
    /// Send.
    Write { id: ConnectionId, write: Outgoing },
    /// End a connection and say so.
    Close { id: ConnectionId },
    /// Tell what was counted.
    Snapshot { answer: Sender<Snapshot> },
    /// End the worker.
    Stop,
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
