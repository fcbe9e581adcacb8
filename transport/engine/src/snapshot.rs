//! The engine's counters at one moment, for metrics and for `kubectl weft status`.

use std::time::Duration;

use weft_core::connection::Stats;
use weft_core::drops::Drops;
use weft_core::path::PathReport;
use weft_core::units::ConnectionId;
use weft_link::{Counters, LinkAddress, SocketBuffers};
use weft_memory::Counts;

/// Everything that is counted, of all workers together.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The connections there are, each part of a split one by itself.
    pub connections: Vec<ConnectionSnapshot>,
    /// The NICs that they lead to.
    pub peers: Vec<PeerSnapshot>,
    /// What the connections that are over had counted; with the live ones' it only grows.
    pub ended: Stats,
    /// Arriving packets that were not used, of all connections, live or over, and of none.
    pub drops: Drops,
    /// What the sockets did.
    pub link: Counters,
    /// The socket buffers that the kernel granted: the smallest of all ports.
    pub buffers: SocketBuffers,
    /// The regions, which all workers share.
    pub regions: Counts,
    /// Resets sent to peers with packets for no connection.
    pub resets_sent: u64,
    /// Resets not sent because too many had been of late.
    pub resets_withheld: u64,
    /// CPU time that the worker threads have used, without what callers used who sent their own small messages; of an
    /// inline worker, that of the thread which asks.
    pub cpu: Duration,
}

/// One connection, or one part of a connection that is split.
#[derive(Debug, Clone)]
pub struct ConnectionSnapshot {
    /// The connection's id here.
    pub id: ConnectionId,
    /// Which part of it, from 0.
    pub part: usize,
    /// The peer's address.
    pub peer: LinkAddress,
    /// Its counters.
    pub stats: Stats,
    /// Its packets that were not used.
    pub drops: Drops,
    /// Chunks in flight.
    pub outstanding_chunks: usize,
    /// Writes posted and not yet acknowledged whole.
    pub writes: usize,
}

/// The paths to one NIC.
#[derive(Debug, Clone)]
pub struct PeerSnapshot {
    /// Its address.
    pub address: LinkAddress,
    /// Paths that carry data.
    pub live_paths: usize,
    /// Each path.
    pub paths: Vec<PathReport>,
}

impl Snapshot {
    /// Adds what another worker counted; regions are counted by the engine.
    pub(crate) fn add(&mut self, other: Self) {
        self.connections.extend(other.connections);
        self.peers.extend(other.peers);
        self.ended.add(&other.ended);
        self.drops.add(&other.drops);
        self.link.add(&other.link);
        self.buffers.receive = self.buffers.receive.min(other.buffers.receive);
        self.buffers.send = self.buffers.send.min(other.buffers.send);
        self.resets_sent += other.resets_sent;
        self.resets_withheld += other.resets_withheld;
        self.cpu += other.cpu;
    }

    /// The counters of all connections, live and over.
    pub fn stats(&self) -> Stats {
        let mut sum = self.ended;
        for connection in &self.connections {
            sum.add(&connection.stats);
        }
        sum
    }
}
