//! The two ends of a connection to be, as the control channel exchanges them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_core::connection::Settings;
use weft_core::memory::Access;
use weft_core::units::ConnectionId;
use weft_core::wire::Secret;
use weft_crypto::part_secret;
use weft_link::LinkAddress;

/// One part of an end that is split over several workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPart {
    /// What the peer puts into the packets of this part.
    pub id: ConnectionId,
    /// The worker that holds it.
    pub address: LinkAddress,
    /// What the tokens of its Resets are made from.
    pub reset_key: u64,
}

/// This end of a connection to be: what the other end must be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LocalEnd {
    /// What the peer puts into its packets. Of a split connection it is the first part's, and the one that
    /// calls and events name.
    pub id: ConnectionId,
    /// What both ends must share.
    pub settings: Settings,
    /// Where the peer sends to: the worker that holds this end.
    pub address: LinkAddress,
    /// Tells this life of the engine from others.
    pub incarnation: u64,
    /// What the peer makes the token from by which it believes a Reset. Told to nobody else.
    pub reset_key: u64,
    /// The parts after the first, in order. A peer that is not told of them uses the first alone.
    pub others: Vec<EndPart>,
}

/// The other end of a connection: what its [`LocalEnd`] said, and the secret it receives under.
#[derive(Debug, Clone)]
pub struct RemoteEnd {
    /// Whose it is, as authenticated. What an owner says of its address and of its engine's incarnation applies to its
    /// own connections only.
    pub owner: Arc<str>,
    /// The peer's id for the connection.
    pub id: ConnectionId,
    /// The peer's address.
    pub address: LinkAddress,
    /// The secret under which we send.
    pub send_secret: Secret,
    /// The peer's settings, compared with ours.
    pub settings: Settings,
    /// The peer engine's life.
    pub incarnation: u64,
    /// What the tokens of its Resets are made from.
    pub reset_key: u64,
    /// The peer's parts after the first, in order.
    pub others: Vec<EndPart>,
    /// What the peer may do to regions here, whatever their own access says.
    pub access: Access,
}

impl RemoteEnd {
    /// The end that the peer `owner`, as authenticated, describes, and which receives under `send_secret`. The peer may
    /// do everything.
    #[must_use]
    pub fn new(owner: Arc<str>, end: &LocalEnd, send_secret: Secret) -> Self {
        Self {
            owner,
            id: end.id,
            address: end.address,
            send_secret,
            settings: end.settings,
            incarnation: end.incarnation,
            reset_key: end.reset_key,
            others: end.others.clone(),
            access: Access::ALL,
        }
    }

    /// The other ends of this end's parts: `count` at most, each whole by itself.
    pub(crate) fn parts(mut self, count: usize) -> Vec<RemoteEnd> {
        let others = std::mem::take(&mut self.others);
        let mut parts = vec![self];
        for (part, other) in (1..).zip(others).take(count.saturating_sub(1)) {
            let first = &parts[0];
            parts.push(RemoteEnd {
                id: other.id,
                address: other.address,
                reset_key: other.reset_key,
                send_secret: part_secret(&first.send_secret, part),
                ..first.clone()
            });
        }
        parts
    }
}
