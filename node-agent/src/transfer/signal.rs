//! Signals between two agents: immediates that are sent without bytes, to no region.
//!
//! Slot numbers are credits. The others come from the top of the range.

use std::sync::Arc;

use weft_core::units::ConnectionId;
use weft_engine::{Engine, SIGNAL, Source, WriteRequest};

/// Says nothing. Sent over an idle connection, so that the loss of the peer is noticed.
pub(crate) const PING: u32 = u32::MAX;
/// This end has given the attempt up; the state of its attempt says why.
pub(crate) const ABORTED: u32 = u32::MAX - 1;
/// An idle connection is pinged this often.
pub(crate) const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
/// An end that gives up waits so long until the peer knows.
pub(crate) const ABORT_NOTICE_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(300);

/// The context of a signal's write: no message has this number.
pub(crate) const CONTEXT: u64 = u64::MAX;

/// Sends a signal: a write of no bytes. False where the connection is over; its own event says why.
#[must_use]
pub(crate) fn send(engine: &Engine, connection: ConnectionId, immediate: u32) -> bool {
    let request = WriteRequest {
        connection,
        source: Source::Bytes(Arc::new(Box::default())),
        source_offset: 0,
        bytes: 0,
        key: SIGNAL,
        offset: 0,
        immediate: Some(immediate),
        context: CONTEXT,
    };
    engine.write(request).is_ok()
}
