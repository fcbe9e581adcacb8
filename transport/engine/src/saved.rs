//! An engine's connections on their way to the next engine.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_core::units::ConnectionId;
use weft_link::LinkAddress;

use crate::post::Piece;

/// The open connections of an engine that has ended, and what is under way on them: [`crate::Engine::save`]. It holds their
/// secrets: hand it to nobody but the next engine.
#[derive(Debug)]
pub struct SavedEngine {
    /// For [`crate::Engine::start_as`].
    pub incarnation: u64,
    /// For [`crate::Engine::restore`].
    pub connections: Vec<SavedConnection>,
}

/// A connection, and the work requests of its user that are not complete. For another process their pieces are named
/// otherwise than by references to memory ([`SavedConnection::map_pieces`]).
#[derive(Serialize, Deserialize)]
pub struct SavedConnection<P = Piece> {
    /// Its id.
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
    pub posts: Vec<SavedPost<P>>,
}

/// A work request that is not complete.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedPost<P = Piece> {
    /// Its token in the connection's state.
    pub token: u64,
    /// What comes back to the user with its end.
    pub context: u64,
    /// What is sent.
    pub pieces: Vec<P>,
    /// It is a write of one piece, which comes back with [`crate::Event::Written`].
    pub is_single: bool,
    /// Bytes that it adds to its connection's load.
    pub bytes: u64,
    /// It waits for a response.
    pub awaits_response: bool,
}

impl<P> SavedConnection<P> {
    /// The same with other names for the pieces of its work requests; nothing where one has none.
    pub fn map_pieces<Q>(self, map: impl Fn(P) -> Option<Q>) -> Option<SavedConnection<Q>> {
        let post = |post: SavedPost<P>| {
            Some(SavedPost {
                token: post.token,
                context: post.context,
                pieces: post.pieces.into_iter().map(&map).collect::<Option<_>>()?,
                is_single: post.is_single,
                bytes: post.bytes,
                awaits_response: post.awaits_response,
            })
        };
        Some(SavedConnection {
            id: self.id,
            owner: self.owner,
            address: self.address,
            peer_incarnation: self.peer_incarnation,
            state: self.state,
            posts: self.posts.into_iter().map(post).collect::<Option<_>>()?,
        })
    }
}

/// Shows how much it is, never a secret.
impl<P> fmt::Debug for SavedConnection<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedConnection")
            .field("id", &self.id)
            .field("owner", &self.owner)
            .field("address", &self.address)
            .field("state_bytes", &self.state.len())
            .field("posts", &self.posts.len())
            .finish_non_exhaustive()
    }
}
