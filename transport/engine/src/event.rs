//! What the engine tells its user.

use std::sync::Arc;

use weft_core::connection;
use weft_core::units::{ConnectionId, Key};

/// What happened on a connection. Events of one connection arrive in the order they happened.
#[derive(Debug)]
pub enum Event {
    /// A write was acknowledged whole: its bytes lie at the other end.
    Written {
        /// The connection.
        connection: ConnectionId,
        /// The write's own word.
        context: u64,
        /// What was sent; the engine holds no other reference to it.
        source: Arc<Box<[u8]>>,
    },
    /// A message with an immediate is here whole, and with it the region's buffer. The region
    /// receives nothing until [`crate::Engine::arm`] gives it a buffer again.
    Delivered {
        /// The connection.
        connection: ConnectionId,
        /// The message's immediate.
        immediate: u32,
        /// The region.
        key: Key,
        /// The region's buffer.
        buffer: Box<[u8]>,
    },
    /// An immediate that came without bytes, to the key [`crate::SIGNAL`].
    Signal {
        /// The connection.
        connection: ConnectionId,
        /// The immediate.
        immediate: u32,
    },
    /// The connection is over; nothing more lands from it. Writes that were not reported are
    /// dropped. [`crate::Engine::close`] still has to be called.
    Failed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        failure: Failure,
    },
    /// The answer to [`crate::Engine::close`]: from here on no byte lands from that connection,
    /// and none of its events follows.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The transport gave up.
    #[error(transparent)]
    Transport(#[from] connection::Failure),
    /// The peer's answer to a newer connection came from another life of its engine.
    #[error("the peer has restarted since: connect again")]
    PeerRestarted,
    /// The peer wrote two messages into one arming of a region.
    #[error("the peer wrote to a region that it had no credit for: it must wait for the credit")]
    RegionOverrun {
        /// The region.
        key: Key,
    },
}

impl Failure {
    /// A stable name for conditions and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Transport(failure) => failure.reason(),
            Self::PeerRestarted => "PeerRestarted",
            Self::RegionOverrun { .. } => "RegionOverrun",
        }
    }
}
