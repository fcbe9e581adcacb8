//! What a connection counts.

use serde::{Deserialize, Serialize};

/// Counters of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Chunks sent, resends included.
    pub chunks_sent: u64,
    /// Of these: chunks of which something was sent again.
    pub chunks_resent: u64,
    /// Packets sent, resends included.
    pub packets_sent: u64,
    /// Packets sent again.
    pub packets_resent: u64,
    /// Payload bytes acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes placed.
    pub bytes_placed: u64,
    /// Packets placed.
    pub packets_placed: u64,
    /// Chunks of which only a part was lost.
    pub chunks_partly_lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Resends that were not needed.
    pub spurious: u64,
    /// Timers that were served so late that they were re-armed once.
    pub late_timers: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Acknowledgements received.
    pub acks_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Tail-loss probes sent: a packet of the newest chunk, sent again because nothing was heard.
    pub tail_probes: u64,
}

impl Stats {
    /// Adds another connection's counters to these.
    pub fn add(&mut self, other: &Stats) {
        // Taken apart whole, so that a new counter cannot be forgotten here.
        let Stats {
            chunks_sent,
            chunks_resent,
            packets_sent,
            packets_resent,
            bytes_acked,
            bytes_placed,
            packets_placed,
            chunks_partly_lost,
            timeouts,
            spurious,
            late_timers,
            acks_sent,
            acks_received,
            probes_sent,
            tail_probes,
        } = *other;
        self.chunks_sent += chunks_sent;
        self.chunks_resent += chunks_resent;
        self.packets_sent += packets_sent;
        self.packets_resent += packets_resent;
        self.bytes_acked += bytes_acked;
        self.bytes_placed += bytes_placed;
        self.packets_placed += packets_placed;
        self.chunks_partly_lost += chunks_partly_lost;
        self.timeouts += timeouts;
        self.spurious += spurious;
        self.late_timers += late_timers;
        self.acks_sent += acks_sent;
        self.acks_received += acks_received;
        self.probes_sent += probes_sent;
        self.tail_probes += tail_probes;
    }
}
