//! An engine's connections on their way to the next engine.

use std::sync::Arc;

use weft_core::endpoint::SavedConnection as SavedState;
use weft_core::units::ConnectionId;
use weft_link::LinkAddress;

use crate::post::Piece;

/// The open connections of an engine that has ended, and what is under way on them: [`crate::Engine::save`]. It holds their
/// secrets: hand it to nobody but the next engine.
#[derive(Debug)]
pub struct SavedEngine {
    /// Tells the life of the engine from the node's others. It goes on.
    pub incarnation: u64,
    /// The connections.
    pub connections: Vec<SavedConnection>,
}

/// A connection, and the work requests of its user that are not complete.
#[derive(Debug)]
pub struct SavedConnection {
    /// Its name.
    pub id: ConnectionId,
    /// Whose the other end is, as authenticated.
    pub owner: Arc<str>,
    /// The peer's address.
    pub address: LinkAddress,
    /// The life of the peer's engine.
    pub peer_incarnation: u64,
    /// What [`weft_core::connection::Connection::save`] wrote.
    pub state: Vec<u8>,
    /// Work requests that are not complete.
    pub posts: Vec<SavedPost>,
}

/// A work request that is not complete.
#[derive(Debug)]
pub struct SavedPost {
    /// The name by which the connection calls it.
    pub token: u64,
    /// What comes back to the user with its end.
    pub context: u64,
    /// What is sent.
    pub pieces: Vec<Piece>,
    /// It is a write of one piece, which comes back with [`crate::Event::Written`].
    pub is_single: bool,
    /// Bytes that it counts for.
    pub bytes: u64,
    /// It waits for a response.
    pub awaits_response: bool,
}

impl SavedConnection {
    /// Of a connection's state and what its user has under way.
    pub(crate) fn new(
        id: ConnectionId,
        saved: SavedState<crate::peer::PeerNic>,
        posts: Vec<SavedPost>,
    ) -> Self {
        Self {
            id,
            owner: saved.peer.owner,
            address: saved.peer.address,
            peer_incarnation: saved.generation,
            state: saved.state,
            posts,
        }
    }
}
