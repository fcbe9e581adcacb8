//! `SenderEvent`: what the block reader, the receiver and the dialers send to the sender's thread.

use std::sync::Arc;

use weft_core::units::{ConnectionId, Key};
use weft_engine::Engine;

use crate::fault::Fault;
use crate::transfer::buffers::Buffer;
use crate::transfer::fanout::ChildIndex;
use crate::transfer::message::PresentBlocks;

/// An event for the sender.
#[derive(Debug)]
pub(crate) enum SenderEvent {
    /// The block reader has built this message: its number, its buffer and its length.
    Built(u32, Buffer, usize),
    /// Messages below this number can be asked for.
    ReadableUntil(u32),
    /// A child has agreed on a connection, which is in the engine.
    Connected(ChildIndex, ChildConnection),
    /// A child could not be connected to.
    Refused(ChildIndex, Fault),
}

/// An agreed connection to a child.
#[derive(Debug)]
pub(crate) struct ChildConnection {
    /// In the engine.
    pub guard: ConnectionGuard,
    /// Where the child receives.
    pub slots: Vec<Key>,
    /// What the child has.
    pub present: PresentBlocks,
}

/// Closes an allocated connection when it is dropped, unless [`into_parts`](Self::into_parts) was called: also where a call
/// is given up half way, or an event is not read.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    engine: Arc<Engine>,
    id: Option<ConnectionId>,
}

impl ConnectionGuard {
    /// For a connection that was allocated.
    pub(crate) fn new(engine: Arc<Engine>, id: ConnectionId) -> Self {
        Self {
            engine,
            id: Some(id),
        }
    }

    /// The id, and the engine that has the connection. The caller closes it.
    pub(crate) fn into_parts(mut self) -> (ConnectionId, Arc<Engine>) {
        (self.id.take().unwrap_or_default(), self.engine.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.close(id);
        }
    }
}
