//! The two ends of a connection to be, as the control channel exchanges them.

use std::sync::Arc;

use weft_core::connection::Settings;
use weft_core::units::ConnectionId;
use weft_core::wire::Secret;
use weft_link::LinkAddress;

/// This end of a connection to be: what the other end must be told.
#[derive(Debug, Clone)]
pub struct LocalEnd {
    /// What the peer puts into its packets.
    pub id: ConnectionId,
    /// What both ends must share.
    pub settings: Settings,
    /// Where the peer sends to: the worker that holds this end.
    pub address: LinkAddress,
    /// Tells this life of the engine from others.
    pub generation: u64,
    /// What the peer makes the token from by which it believes a Reset. Told to nobody else.
    pub reset_key: u64,
}

/// The other end of a connection: what its [`LocalEnd`] said, and the secret it receives under.
#[derive(Debug, Clone)]
pub struct RemoteEnd {
    /// Whose it is, as authenticated. What one owner says of an address and its engine's life counts
    /// for nobody else's connections.
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
    pub generation: u64,
    /// What the tokens of its Resets are made from.
    pub reset_key: u64,
}
