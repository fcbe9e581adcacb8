//! What the handle asks of a worker.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weft_core::units::{ConnectionId, Key};
use weft_core::wire::Secret;

use crate::engine::RemoteEnd;
use crate::event::Event;
use crate::snapshot::Snapshot;
use weft_core::memory::DomainId;

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
    /// Give a peer's writes a place.
    Register {
        key: Key,
        domain: DomainId,
        buffer: Box<[u8]>,
    },
    /// Give a region whose buffer was handed out a buffer again.
    Arm { key: Key, buffer: Box<[u8]> },
    /// Forget a region.
    Deregister { key: Key },
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
    pub(crate) source: Arc<Box<[u8]>>,
    pub(crate) bytes: u64,
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) immediate: Option<u32>,
    pub(crate) context: u64,
}
