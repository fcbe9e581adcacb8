//! What the handle asks of a worker.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weft_core::connection::{CancelError, ReceiveBuffer, SharedReceives, WorkRequest};
use weft_core::endpoint::Local;
use weft_core::memory::Access;
use weft_core::units::ConnectionId;

use crate::doze::Doze;
use crate::ends::RemoteEnd;
use crate::parts::Parts;
use crate::post::Pieces;
use crate::snapshot::Snapshot;

/// One request; a worker serves them in the order they were made.
pub(crate) enum Command {
    /// Know this id: until it is connected, its packets are dropped and not answered by a Reset.
    Allocate { id: ConnectionId, local: Local },
    /// Begin to send and receive.
    Connect {
        id: ConnectionId,
        remote: Box<RemoteEnd>,
        parts: Arc<Parts>,
    },
    /// Do some work.
    Post { id: ConnectionId, post: Outgoing },
    /// Cancel what was posted with this context.
    Cancel {
        id: ConnectionId,
        context: u64,
        answer: Sender<Result<(), CancelError>>,
    },
    /// Take a buffer for a send of the peer.
    Receive {
        id: ConnectionId,
        buffer: ReceiveBuffer,
    },
    /// Let the peer do no more than this to regions.
    SetAccess { id: ConnectionId, access: Access },
    /// Do not fail as long as the peer is not ready.
    SetWaitsForReceiver { id: ConnectionId, waits: bool },
    /// Go on when the peer refuses a work request for good.
    SetSurvivesRefusals { id: ConnectionId, survives: bool },
    /// Take buffers for sends of the peer from there.
    ShareReceives {
        id: ConnectionId,
        shared: Arc<dyn SharedReceives>,
    },
    /// Another part of this connection has failed: end this one too.
    End { id: ConnectionId },
    /// End a connection and say so.
    Close { id: ConnectionId },
    /// Mark and limit what is sent from now on.
    Egress {
        dscp: u8,
        /// This worker's part of the cap.
        cap_bps: Option<u64>,
    },
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

/// A work request on its way.
pub(crate) struct Outgoing {
    pub(crate) request: WorkRequest,
    pub(crate) pieces: Pieces,
    pub(crate) context: u64,
    /// Bytes that count as the load of its part.
    pub(crate) bytes: u64,
}
