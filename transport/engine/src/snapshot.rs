//! The engine's counters at one moment, for metrics and for `kubectl weft status`.

use std::net::IpAddr;
use std::time::Duration;

use weft_core::connection::Stats;
use weft_core::drops::Drops;
use weft_core::endpoint::PeerTotals;
use weft_core::path::{PathReport, PathSet, PathState};
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
    /// What has ended with NICs; what they and their connections have now is not in it.
    pub past_peers: Vec<(LinkAddress, PeerTotals)>,
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

/// The paths between two NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicPair {
    /// The one of this engine.
    pub here: IpAddr,
    /// The peer's.
    pub there: IpAddr,
    /// How many paths there are.
    pub paths: usize,
    /// Those that carry data: none where the two do not reach each other.
    pub live_paths: usize,
    /// Chunks sent, resends included.
    pub sent_chunks: u64,
    /// Those of them that were declared lost.
    pub lost_chunks: u64,
}

impl NicPair {
    /// Adds it to what others say of the same two NICs.
    pub fn add_to(self, pairs: &mut Vec<Self>) {
        let is_same = |it: &&mut Self| (it.here, it.there) == (self.here, self.there);
        match pairs.iter_mut().find(is_same) {
            Some(same) => {
                same.paths += self.paths;
                same.live_paths += self.live_paths;
                same.sent_chunks += self.sent_chunks;
                same.lost_chunks += self.lost_chunks;
            }
            None => pairs.push(self),
        }
    }
}

/// The paths to one NIC, or to those of one machine.
#[derive(Debug, Clone)]
pub struct PeerSnapshot {
    /// Its address.
    pub address: LinkAddress,
    /// Paths that carry data.
    pub live_paths: usize,
    /// Each path.
    pub paths: Vec<PathReport>,
    /// Each pair of NICs, in the order of their first paths.
    pub nic_pairs: Vec<NicPair>,
}

impl PeerSnapshot {
    pub(crate) fn new(here: &LinkAddress, address: LinkAddress, paths: &PathSet) -> Self {
        let live_paths = paths.live();
        let paths: Vec<_> = paths.report().collect();
        let mut nic_pairs: Vec<NicPair> = Vec::new();
        for path in &paths {
            let (here, there) = here.nics_of_path(&address, path.id);
            let pair = NicPair {
                here,
                there,
                paths: 1,
                live_paths: usize::from(path.state == PathState::Live),
                sent_chunks: path.sent_chunks,
                lost_chunks: path.lost_chunks,
            };
            pair.add_to(&mut nic_pairs);
        }
        Self {
            address,
            live_paths,
            paths,
            nic_pairs,
        }
    }
}

impl Snapshot {
    /// Adds what another worker counted; regions are counted by the engine.
    pub(crate) fn add(&mut self, other: Self) {
        self.connections.extend(other.connections);
        self.peers.extend(other.peers);
        self.past_peers.extend(other.past_peers);
        self.ended.add(&other.ended);
        self.drops.add(&other.drops);
        self.link.add(&other.link);
        self.buffers.receive = self.buffers.receive.min(other.buffers.receive);
        self.buffers.send = self.buffers.send.min(other.buffers.send);
        self.resets_sent += other.resets_sent;
        self.resets_withheld += other.resets_withheld;
        self.cpu += other.cpu;
    }

    /// Adds what another engine of the same program has.
    pub fn add_engine(&mut self, other: Self) {
        self.regions.armed += other.regions.armed;
        self.regions.armed_bytes += other.regions.armed_bytes;
        self.regions.taken += other.regions.taken;
        self.add(other);
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
