//! What the engine tells its user.

use weft_core::connection::Failure;
use weft_core::units::{ConnectionId, Key};
use weft_memory::Source;

use crate::post::Piece;

/// What happened on a connection. Events of one connection arrive in the order they happened; of a split one, those
/// of each part do, and what ends the connection comes after everything else.
#[derive(Debug)]
pub enum Event {
    /// A write of [`crate::Engine::write`] was acknowledged whole: its bytes lie at the other end.
    Written {
        /// The connection.
        connection: ConnectionId,
        /// The `context` of the write.
        context: u64,
        /// What was sent; the engine holds no other reference to it.
        source: Source,
    },
    /// A work request of [`crate::Engine::post`] is done: the bytes of a write, of pages or of a send lie at the other
    /// end, those of a read or an atomic here.
    Completed {
        /// The connection.
        connection: ConnectionId,
        /// The token of the work request.
        context: u64,
        /// What was sent; the engine holds no other reference to it.
        pieces: Vec<Piece>,
    },
    /// The answer to [`crate::Engine::cancel`]: from here on no byte of this write or read lands, and its immediate does not
    /// count. Bytes of it that landed before stay where they are; its place at the other end, or here of a read, may be used
    /// at once.
    Cancelled {
        /// The connection.
        connection: ConnectionId,
        /// The `context` of the write, or the token of the work request.
        context: u64,
        /// What was to be sent; the engine holds no other reference to it.
        pieces: Vec<Piece>,
    },
    /// The peer has refused this write, read or atomic for good, on a connection of
    /// [`crate::Engine::set_survives_refusals`]. From here on no byte of it lands, and its immediate does not count. Bytes of it
    /// that landed before stay where they are.
    Refused {
        /// The connection.
        connection: ConnectionId,
        /// The `context` of the write, or the token of the work request.
        context: u64,
        /// What was to be sent; the engine holds no other reference to it.
        pieces: Vec<Piece>,
        /// [`Failure::KeyRefused`] or [`Failure::BoundsRefused`].
        failure: Failure,
    },
    /// A send of the peer is in its receive whole, or a write of which it has told by [`weft_core::connection::ReportWrite`]
    /// is in its region.
    Received {
        /// The connection.
        connection: ConnectionId,
        /// The token of the receive buffer.
        context: u64,
        /// The length of the send.
        bytes: u64,
        /// Its immediate.
        immediate: Option<u32>,
        /// It was a write: the receive has none of its bytes.
        is_write: bool,
    },
    /// A message with an immediate is in its region whole. The region still receives; an owner that wants
    /// the memory for itself calls [`crate::Engine::take`].
    Delivered {
        /// The connection.
        connection: ConnectionId,
        /// The message's immediate.
        immediate: u32,
        /// The region.
        key: Key,
    },
    /// An immediate that came without bytes, to the key [`crate::SIGNAL`].
    Signal {
        /// The connection.
        connection: ConnectionId,
        /// The immediate.
        immediate: u32,
    },
    /// On a connection of [`crate::Engine::allocate_in_order`]: this work request has failed, and with it all that was
    /// posted after it. What was posted before it is done. [`Event::Failed`] follows, and says why.
    RequestFailed {
        /// The connection.
        connection: ConnectionId,
        /// The `context` of the write, or the token of the work request.
        context: u64,
    },
    /// The connection is over. What was not reported is dropped; what the peer has under way may still land, until
    /// [`Event::Closed`]. [`crate::Engine::close`] still has to be called.
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

impl Event {
    /// The connection that it happened on.
    pub fn connection(&self) -> ConnectionId {
        match *self {
            Event::Written { connection, .. }
            | Event::Completed { connection, .. }
            | Event::Cancelled { connection, .. }
            | Event::Refused { connection, .. }
            | Event::Received { connection, .. }
            | Event::Delivered { connection, .. }
            | Event::Signal { connection, .. }
            | Event::RequestFailed { connection, .. }
            | Event::Failed { connection, .. }
            | Event::Closed { connection } => connection,
        }
    }
}
