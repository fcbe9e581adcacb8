//! What is asked of a connection, and what it tells.

use crate::units::Key;
use serde::{Deserialize, Serialize};

/// A one-sided write to a region of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The caller's name for it: comes back in chunks and in the completion.
    pub token: u64,
    /// How many bytes; 0 is fine.
    pub bytes: u64,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region, bytes.
    pub offset: u64,
    /// Counts at the peer once all bytes are placed.
    pub immediate: Option<u32>,
}

/// Why a write was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The write needs more than 2^24 chunks, or its end overflows the offset.
    #[error("the write is too long for one message: split it")]
    TooLong,
    /// The connection has failed or was closed.
    #[error("the connection is closed: connect again")]
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Failure {
    /// Nothing was acknowledged for the stall timeout, on any path.
    #[error("the peer acknowledged nothing for the stall timeout, on any path")]
    Stalled,
    /// The peer does not know the connection: it was restarted.
    #[error("the peer does not know this connection: it was restarted; connect again")]
    PeerRestarted,
    /// Closed at this end.
    #[error("the connection was closed at this end")]
    Closed,
    /// The peer refused a write for good: its key.
    #[error(
        "the peer refused a write: no region of the connection's domain has its key, because it was \
         deregistered or the key is wrong"
    )]
    KeyRefused,
    /// The peer refused a write for good: its place.
    #[error("the peer refused a write: it does not lie within its region; check offset and length")]
    BoundsRefused,
    /// The peer refused a write for the stall timeout.
    #[error(
        "the peer's region was not armed for the stall timeout: its owner has not given the buffer back"
    )]
    NotArmed,
    /// The peer acknowledges what it has not received.
    #[error("the peer acknowledged packets that were never sent: it does not run this protocol")]
    AckOfUnsent,
    /// The peer has never granted credit.
    #[error(
        "the peer granted no credit for the stall timeout: its congestion control is another one; all nodes of a \
         fabric must have the same"
    )]
    NoCredit,
}

impl Failure {
    /// A stable label.
    pub const fn reason(self) -> &'static str {
        match self {
            Failure::Stalled => "Stalled",
            Failure::PeerRestarted => "PeerRestarted",
            Failure::Closed => "Closed",
            Failure::KeyRefused => "KeyRefused",
            Failure::BoundsRefused => "BoundsRefused",
            Failure::NotArmed => "NotArmed",
            Failure::AckOfUnsent => "AckOfUnsent",
            Failure::NoCredit => "NoCredit",
        }
    }
}

/// What the caller must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Every byte of a write was placed at the peer, and its immediate counted; where immediates go in
    /// order, it counts as soon as those before it have.
    Completed {
        /// As in [`Write::token`].
        token: u64,
    },
    /// A message of the peer with an immediate is here whole.
    Immediate {
        /// The immediate.
        value: u32,
        /// The key of the region that it went to.
        key: Key,
    },
    /// The connection is over. No event follows, nothing is placed any more.
    Failed(Failure),
}
