//! The engine's counters at one moment, for metrics and for `kubectl weft status`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use weft_core::connection::Stats;
use weft_core::drops::Drops;
use weft_core::endpoint::PeerTotals;
use weft_core::path::{PathReport, PathSet, PathState};
use weft_core::units::{ConnectionId, PathId};
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
    /// Those that carry none, and should: not those between two NICs that have never reached each other, where others have.
    pub down_paths: usize,
    /// Each path.
    pub paths: Vec<PathReport>,
    /// Each pair of NICs, in the order of their first paths.
    pub nic_pairs: Vec<NicPair>,
}

impl PeerSnapshot {
    pub(crate) fn new(here: &LinkAddress, address: LinkAddress, paths: &PathSet) -> Self {
        let live_paths = paths.live();
        let paths: Vec<_> = paths.report().collect();
        let nics_of = |path| here.nics_of_path(&address, path);
        let down_paths = down_paths(&paths, nics_of);
        let mut nic_pairs: Vec<NicPair> = Vec::new();
        for path in &paths {
            let (here, there) = nics_of(path.id);
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
            down_paths,
            paths,
            nic_pairs,
        }
    }
}

/// NICs of networks that do not meet never answer each other: their paths are not down. `nics_of` says which two NICs a path
/// is between.
fn down_paths(paths: &[PathReport], nics_of: impl Fn(PathId) -> (IpAddr, IpAddr)) -> usize {
    let measured = paths.iter().filter(|path| path.srtt.is_some());
    let meet: HashSet<_> = measured.map(|path| nics_of(path.id)).collect();
    let down = paths.iter().filter(|path| path.state != PathState::Live);
    down.filter(|path| meet.is_empty() || meet.contains(&nics_of(path.id)))
        .count()
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

#[cfg(test)]
mod tests {
    use weft_core::units::Nanos;

    use super::*;

    /// Whether they carry data and whether their round trip is known; even ones are between the first NICs of two machines,
    /// odd ones between the second.
    fn down(paths: &[(PathState, bool)]) -> usize {
        let report = |(id, &(state, is_measured)): (usize, &(PathState, bool))| PathReport {
            id: PathId(id as u8),
            state,
            srtt: is_measured.then_some(Nanos::new(1000)),
            sent_chunks: 1,
            lost_chunks: 0,
            ce_packets: 0,
            timeouts: 0,
        };
        let paths: Vec<_> = paths.iter().enumerate().map(report).collect();
        let nic = |path: PathId| IpAddr::from([10, path.0 % 2, 0, 1]);
        down_paths(&paths, |path| (nic(path), nic(path)))
    }

    #[test]
    fn paths_between_nics_that_have_never_met_are_not_down() {
        use PathState::{Live, Suspended};
        let rail = [
            (Live, true),
            (Suspended, false),
            (Live, true),
            (Suspended, false),
        ];
        assert_eq!(down(&rail), 0);
        // One of a pair's paths is lost.
        let spine = [(Live, true), (Live, true), (Live, true), (Suspended, false)];
        assert_eq!(down(&spine), 1);
        // They met once.
        let cable = [
            (Live, true),
            (Suspended, true),
            (Live, true),
            (Suspended, false),
        ];
        assert_eq!(down(&cable), 2);
        // Nothing answers.
        assert_eq!(down(&[(Suspended, false), (Suspended, false)]), 2);
    }
}
