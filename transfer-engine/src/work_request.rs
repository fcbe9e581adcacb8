//! Work requests before they have a connection.

use std::sync::Arc;

use weft_engine::{ConnectionId, Piece, Post, Region, SIGNAL, WorkRequest, Write};

/// A work request that is on no connection yet.
pub(crate) fn post(request: impl Into<WorkRequest>, pieces: Vec<Piece>) -> Post {
    Post {
        connection: ConnectionId(0),
        request: request.into(),
        pieces,
    }
}

/// A message without bytes whose immediate counts.
pub(crate) fn signal(immediate: u32) -> Post {
    let write = Write {
        token: 0,
        bytes: 0,
        key: SIGNAL,
        offset: 0,
        immediate: Some(immediate),
    };
    post(write, Vec::new())
}

pub(crate) fn piece(source: &Arc<Region>, offset: u64, bytes: u64) -> Piece {
    Piece {
        source: Arc::clone(source).into(),
        offset,
        bytes,
    }
}
