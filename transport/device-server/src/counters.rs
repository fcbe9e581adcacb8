//! What is counted of a device.

use weft_engine::CopiedBytes;

/// Since the device was made; an engine that goes on with it counts its connections on, and everything else anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Packets that asked for memory which they may not reach.
    pub(crate) refused: u64,
    /// Offers of other tenants.
    pub(crate) refused_offers: u64,
    /// Calls and work requests for what is not the program's, or not its queue pair's, to use, and openings by another
    /// protocol.
    pub(crate) refused_calls: u64,
    /// Work requests of send queues that have begun.
    pub(crate) operations: u64,
    /// Payload bytes that peers have acknowledged.
    pub(crate) bytes_sent: u64,
    /// Payload bytes that have come.
    pub(crate) bytes_received: u64,
    /// Bytes of its programs' memory that were copied, by each way.
    pub(crate) copied: CopiedBytes,
}

impl Counters {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            refused: self.refused + other.refused,
            refused_offers: self.refused_offers + other.refused_offers,
            refused_calls: self.refused_calls + other.refused_calls,
            operations: self.operations + other.operations,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            copied: self.copied + other.copied,
        }
    }
}
