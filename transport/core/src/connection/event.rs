//! What a connection tells.

use crate::units::Key;
use serde::{Deserialize, Serialize};

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Failure {
    /// For the stall timeout, on any path, nothing was acknowledged, or a cancel was not confirmed.
    #[error(
        "the peer acknowledged nothing, or did not confirm a cancel, for the stall timeout, on any path"
    )]
    Stalled,
    /// The peer does not know the connection.
    #[error(
        "the peer does not know this connection: it was restarted, or has ended it, and its own log says why; connect again"
    )]
    PeerRestarted,
    /// Closed at this end.
    #[error("the connection was closed at this end")]
    Closed,
    /// The peer refused a work request for good: its key.
    #[error(
        "the peer refused a work request: no region of the connection's domain has its key and is registered for it, \
         because it was deregistered, or the key is wrong"
    )]
    KeyRefused,
    /// The peer refused a work request for good: its place.
    #[error(
        "the peer refused a work request: it does not lie within its region or its receive, or a word is not aligned \
         to 8 bytes; check offset and length"
    )]
    BoundsRefused,
    /// The peer refused a work request for the stall timeout.
    #[error(
        "the peer was not ready for the stall timeout: its owner has not given the buffer back, has posted no receive, or \
         does not acknowledge responses"
    )]
    NotArmed,
    /// The response to a request of this end does not fit its place here; or a region was closed for which a packet that
    /// has come waited for those before it.
    #[error(
        "what the peer sent has no place here: register the region of `to_key` of reads and atomics for writes in the \
         connection's domain, check `to_offset`, and deregister no region that the peer writes to in order"
    )]
    NoPlace,
    /// A region that the peer was reading was closed here.
    #[error(
        "a region that the peer was reading was deregistered: deregister it when the peer is done"
    )]
    SourceClosed,
    /// The peer acknowledges what it has not received.
    #[error("the peer acknowledged packets that were never sent: it does not run this protocol")]
    AckOfUnsent,
    /// The peer has never granted credit.
    #[error(
        "the peer granted no credit for the stall timeout: its congestion control is another one; all nodes of a \
         fabric must have the same"
    )]
    NoCredit,
    /// The bytes of a work request could not be read when they were to be sent.
    #[error(
        "the bytes of a work request could not be read: the program that owns the memory has unmapped it, or has ended"
    )]
    SourceUnreadable,
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
            Failure::NoPlace => "NoPlace",
            Failure::SourceClosed => "SourceClosed",
            Failure::AckOfUnsent => "AckOfUnsent",
            Failure::NoCredit => "NoCredit",
            Failure::SourceUnreadable => "SourceUnreadable",
        }
    }
}

/// What the caller must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Every byte of a write or send was placed at the peer, and its immediate counted. Or the response to a read or an
    /// atomic is here. On an in-order connection all that was posted before is complete, too.
    Completed {
        /// The work request's.
        token: u64,
    },
    /// A write or a read was cancelled: from here on no byte of it lands, and its immediate does not count. Bytes of it
    /// that landed before stay.
    Cancelled {
        /// The work request's.
        token: u64,
    },
    /// The peer has refused a write, a read or an atomic for good, on a connection that goes on all the same
    /// ([`Connection::set_survives_refusals`](super::Connection::set_survives_refusals)). From here on no byte of it lands, and its
    /// immediate does not count. Bytes of it that landed before stay: other packets of it may have had their place.
    Refused {
        /// The work request's.
        token: u64,
        /// [`Failure::KeyRefused`] or [`Failure::BoundsRefused`].
        failure: Failure,
    },
    /// A send of the peer is here whole, or a write that it reports.
    Received {
        /// As in [`ReceiveBuffer::token`](super::ReceiveBuffer::token).
        token: u64,
        /// Its length.
        bytes: u64,
        /// Its immediate.
        immediate: Option<u32>,
        /// It was a write: the receive has none of its bytes.
        is_write: bool,
    },
    /// A message of the peer with an immediate is here whole.
    Immediate {
        /// The immediate.
        value: u32,
        /// The key of the region that it went to.
        key: Key,
    },
    /// The connection is over. Nothing is placed any more but what is under way, and only [`Event::Closed`] follows,
    /// when it is closed. [`Endpoint::failed_request`](crate::endpoint::Endpoint::failed_request) names the work request by
    /// which it ended.
    Failed(Failure),
    /// The connection was closed, and no placement of it is under way: memory that it could write to is its owner's.
    Closed,
}
