//! What was sent and what has arrived: the scoreboards, and when a chunk is declared lost.
//!
//! Both are rings over chunk numbers. They decide nothing about paths and windows; the connection
//! does.

use crate::units::Nanos;

mod receive;
mod send;

pub use receive::{Marked, MessageEnd, Packet, ReceiveBoard};
pub use send::{SendBoard, Sent, SentState};

/// Chunks that may be outstanding at most. The receiver's ring holds 64 more, so that a word of the
/// acknowledgement's map never spans both ends of the window.
pub const WINDOW_MAX: u16 = 960;

/// Chunks sent later and acknowledged before a chunk may be declared lost: above TCP's three
/// (RFC 5681), since paths reorder; UCCL uses 4 (Fig. 10).
pub const DUPLICATE_THRESHOLD: u64 = 4;

/// Packets of one chunk, on one path, that must have overtaken a missing one: TCP's threshold
/// (RFC 5681, section 3.2), for one path keeps order.
pub const OVERTAKEN_THRESHOLD: u32 = 3;

/// Runs of packets (what one receive call merges: a chunk where the kernel merges it whole, less elsewhere) that
/// one acknowledgement answers at most. TCP answers every second segment (RFC 5681, section 4.2), QUIC lets the
/// peers choose (draft-ietf-quic-ack-frequency); no more than [`DUPLICATE_THRESHOLD`], so that a loss is noticed
/// no later for it.
pub const ACK_RUNS: u32 = 4;

const _: () = assert!(ACK_RUNS > 1 && ACK_RUNS as u64 <= DUPLICATE_THRESHOLD);

/// How long a packet waits at most for its acknowledgement (QUIC's max_ack_delay, RFC 9000, section 13.2.1; 25 ms
/// there). Four chunks of 64 KiB take as long at 20 Gbit/s; the least retransmission timeout in use is 250 us,
/// and counts it in.
pub const ACK_DELAY: Nanos = Nanos::from_micros(100);

/// Heap memory of a vector, bytes.
fn heap_bytes<T>(vector: &Vec<T>) -> usize {
    vector.capacity() * size_of::<T>()
}

/// A map with the low `packets` bits set.
pub fn full_map(packets: u8) -> u64 {
    if packets >= 64 {
        u64::MAX
    } else {
        (1 << packets) - 1
    }
}
