//! What is asked of the planner.

use serde::{Deserialize, Serialize};

use crate::strategy::Strategy;

/// Default part of the line rate that is payload: an Ethernet frame of MTU 1500 takes 1538 bytes on
/// the wire (8 preamble, 14 header, 4 checksum, 12 gap) and holds 1408 bytes of payload after
/// 20 IPv4, 8 UDP, 48 Weft header and 16 Weft trailer. Acknowledgements run the other way.
pub const PAYLOAD_SHARE: f64 = 1408.0 / 1538.0;

/// Default time from the last byte sent to the last byte seen by the receiving agent, 50 µs.
///
/// Measured on a two-core Linux machine: a 1408-byte UDP datagram over veth through leaf, spine and
/// leaf namespaces to a blocking receiver takes 27 µs in the median and 40 µs at p99 one way (5000
/// round trips, halved); rounded up for the hand-over to the thread that forwards.
pub const HOP_LATENCY_NS: u64 = 50_000;

/// Default [`Request::block_bytes`]: 1 MiB, the block that a receiver checks before it forwards it
/// (the design's BLAKE3 blocks).
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Nodes that one node sends to, at most: an agent's `Start` takes no more.
pub const RECEIVERS_MAX: usize = 64;

/// What is asked of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Name of the node that has the data.
    pub source: String,
    /// Names of the nodes that shall have it, each once, without the source; their order is of no
    /// account.
    pub destinations: Vec<String>,
    /// Bytes to deliver to every destination.
    pub bytes: u64,
    /// Who sends to whom.
    #[serde(default)]
    pub strategy: Strategy,
    /// A relay forwards after this many bytes.
    #[serde(default = "default_block_bytes")]
    pub block_bytes: u64,
    /// Part of the line rate that is payload, from 0.000001 to 1.
    #[serde(default = "default_payload_share")]
    pub payload_share: f64,
    /// Time from the last byte sent to the last byte seen by the receiving agent, nanoseconds.
    #[serde(default = "default_hop_latency_ns")]
    pub hop_latency_ns: u64,
}

fn default_block_bytes() -> u64 {
    BLOCK_BYTES
}

/// Far less than any packet's: with next to nothing a transfer would take longer than a number can say.
pub(crate) const PAYLOAD_SHARE_MIN: f64 = 1e-6;

fn default_payload_share() -> f64 {
    PAYLOAD_SHARE
}

fn default_hop_latency_ns() -> u64 {
    HOP_LATENCY_NS
}

impl Request {
    /// A request with everything that has a default at its default.
    pub fn new(source: impl Into<String>, destinations: Vec<String>, bytes: u64) -> Self {
        Self {
            source: source.into(),
            destinations,
            bytes,
            strategy: Strategy::Auto,
            block_bytes: BLOCK_BYTES,
            payload_share: PAYLOAD_SHARE,
            hop_latency_ns: HOP_LATENCY_NS,
        }
    }
}
