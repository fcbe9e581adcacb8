//! What two agents tell each other without bytes: immediates sent to no region.
//!
//! Slot numbers are credits. The others come from the top of the range.

use std::sync::Arc;

use weft_core::units::ConnectionId;
use weft_engine::{Engine, SIGNAL, Source, WriteRequest};

/// Nothing; sent over an idle connection so that the death of the peer is noticed.
pub(crate) const PING: u32 = u32::MAX;
/// The sender of this has given the attempt up; its own state says why.
pub(crate) const GIVEN_UP: u32 = u32::MAX - 1;
/// An idle connection is tried this often.
pub(crate) const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
/// How long an end that gives up waits until the peer has heard of it.
pub(crate) const FAREWELL: std::time::Duration = std::time::Duration::from_millis(300);

/// The context of a signal's write: no message has this number.
pub(crate) const CONTEXT: u64 = u64::MAX;

/// A zero-byte write with this immediate.
#[must_use]
pub(crate) fn request(connection: ConnectionId, immediate: u32) -> WriteRequest {
    WriteRequest {
        connection,
        source: Source::Bytes(Arc::new(Box::default())),
        source_offset: 0,
        bytes: 0,
        key: SIGNAL,
        offset: 0,
        immediate: Some(immediate),
        context: CONTEXT,
    }
}

/// Sends a signal. Refused by a connection that is over, which its own event will say.
#[must_use]
pub(crate) fn send(engine: &Engine, connection: ConnectionId, immediate: u32) -> bool {
    engine.write(request(connection, immediate)).is_ok()
}
