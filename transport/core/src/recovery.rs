//! What was sent and what has arrived: the scoreboards, and when a chunk is taken for lost.
//!
//! Both are rings over chunk numbers. They decide nothing about paths and windows; the connection
//! does.

mod receive;
mod send;

pub use receive::{MessageEnd, ReceiveBoard};
pub use send::{SendBoard, Sent, SentState};

/// Chunks that may be outstanding at most. The ring holds 64 more, so that a word of the
/// acknowledgement's map never spans both ends of the window.
pub const WINDOW_MAX: u16 = 960;

/// Chunks sent later and acknowledged before a chunk may be taken for lost: above TCP's three
/// (RFC 5681), since paths reorder; UCCL uses 4 (Fig. 10).
pub const DUPLICATE_THRESHOLD: u64 = 4;

/// Packets of one chunk, on one path, that must have overtaken a missing one: TCP's threshold
/// (RFC 5681, section 3.2), for one path keeps order.
pub const OVERTAKEN_THRESHOLD: u32 = 3;

/// The slots of a ring that holds `window` outstanding chunks.
fn ring_slots(window: u16) -> usize {
    (usize::from(window.clamp(1, WINDOW_MAX)) + 64).next_power_of_two()
}

/// A map with the low `packets` bits set.
pub fn full_map(packets: u8) -> u64 {
    if packets >= 64 {
        u64::MAX
    } else {
        (1 << packets) - 1
    }
}
