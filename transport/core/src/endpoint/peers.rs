//! The NICs that an endpoint's connections lead to. Connections to one NIC share its paths.

use std::collections::VecDeque;

use super::PeerName;
use crate::path::{PathSet, PathSetConfig};
use crate::units::PathId;

/// NICs of which it is known what has ended with them; of more, those with which something ended longest ago are forgotten, and
/// first those without a connection: a program that reads the totals of one with a connection must not see them fall.
const PAST_MAX: usize = 256;

/// What has ended with a NIC: what the connections that are over had counted, and the paths that were forgotten with the
/// last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTotals {
    /// Payload bytes that it acknowledged.
    pub bytes_acked: u64,
    /// Chunks sent, resends included.
    pub sent_chunks: u64,
    /// Chunks lost on the way.
    pub lost_chunks: u64,
    /// Packets that were marked Congestion Experienced.
    pub ce_packets: u64,
    /// Timeouts on its paths, probes included.
    pub timeouts: u64,
}

impl PeerTotals {
    /// Adds the paths as they are now.
    fn add_paths(&mut self, paths: &PathSet) {
        for path in paths.report() {
            self.sent_chunks += path.sent_chunks;
            self.lost_chunks += path.lost_chunks;
            self.ce_packets += path.ce_packets;
            self.timeouts += path.timeouts;
        }
    }
}

/// Another NIC.
#[derive(Debug)]
pub(super) struct Peer<P> {
    pub(super) name: P,
    pub(super) generation: u64,
    pub(super) paths: PathSet,
    connections: u32,
}

/// A slab: a connection names its NIC by its place here.
#[derive(Debug)]
pub(super) struct Peers<P> {
    places: Vec<Option<Peer<P>>>,
    /// The one of which something has ended last is the last.
    past: VecDeque<(P, PeerTotals)>,
}

impl<P: PeerName> Peers<P> {
    pub(super) fn new() -> Peers<P> {
        Peers {
            places: Vec::new(),
            past: VecDeque::new(),
        }
    }

    /// The place of the NIC `name`, with one connection more, and whether it lives a new life since the last
    /// connection.
    pub(super) fn join(&mut self, name: P, generation: u64, config: &PathSetConfig) -> (u32, bool) {
        for (place, peer) in self.places.iter_mut().enumerate() {
            if let Some(peer) = peer
                && peer.name == name
            {
                peer.connections += 1;
                let before = core::mem::replace(&mut peer.generation, generation);
                return (place as u32, before != generation);
            }
        }
        let pair = |path| name.nic_pair(PathId(path as u8));
        let paths = PathSet::between(config, (0..config.paths).map(pair).collect());
        let peer = Some(Peer {
            name,
            generation,
            paths,
            connections: 1,
        });
        match self.places.iter().position(Option::is_none) {
            Some(free) => {
                self.places[free] = peer;
                (free as u32, false)
            }
            None => {
                self.places.push(peer);
                (self.places.len() as u32 - 1, false)
            }
        }
    }
}

impl<P: PeerName> Peers<P> {
    /// One connection less, with which the NIC acknowledged so many bytes; the paths to a NIC without any are forgotten.
    pub(super) fn leave(&mut self, place: u32, bytes_acked: u64) {
        let at = place as usize;
        let Some(peer) = &mut self.places[at] else {
            return;
        };
        let known = self.past.iter().position(|(name, _)| *name == peer.name);
        let known = known.and_then(|known| self.past.remove(known));
        let mut totals = known.map_or(PeerTotals::default(), |(_, totals)| totals);
        totals.bytes_acked += bytes_acked;
        peer.connections -= 1;
        let is_last = peer.connections == 0;
        if is_last {
            totals.add_paths(&peer.paths);
        }
        let name = peer.name.clone();
        if is_last {
            self.places[at] = None;
        }
        if self.past.len() == PAST_MAX {
            self.forget_one();
        }
        self.past.push_back((name, totals));
    }

    /// Of the NICs without a connection, the one with which something ended longest ago.
    fn forget_one(&mut self) {
        let is_connected = |name: &P| self.iter().any(|peer| peer.name == *name);
        let gone = self.past.iter().position(|(name, _)| !is_connected(name));
        self.past.remove(gone.unwrap_or_default());
    }
}

impl<P> Peers<P> {
    /// What has ended with each NIC.
    pub(super) fn past(&self) -> impl Iterator<Item = (&P, &PeerTotals)> {
        self.past.iter().map(|(name, totals)| (name, totals))
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&Peer<P>> {
        self.places[place as usize].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Peer<P>> {
        self.places[place as usize].as_mut()
    }

    /// The places of those that `is_peer` names: one for each owner.
    pub(super) fn places_of(&self, is_peer: impl Fn(&P) -> bool) -> Vec<u32> {
        let places = self.places.iter().enumerate();
        let named = places.filter(|(_, peer)| peer.as_ref().is_some_and(|it| is_peer(&it.name)));
        named.map(|(place, _)| place as u32).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer<P>> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    #[test]
    fn what_a_nic_has_acknowledged_stays_known_when_connections_end_and_while_there_is_none() {
        let mut peers = Peers::new();
        let config = PathSetConfig {
            paths: 1,
            rto_min: Nanos::new(1),
            validated: true,
            reliable: false,
        };
        let acked = |peers: &Peers<usize>, name| {
            let mut past = peers.past();
            let found = past.find(|(of, _)| **of == name);
            found.map(|(_, totals)| totals.bytes_acked)
        };
        let (place, _) = peers.join(7, 1, &config);
        assert_eq!(peers.join(7, 1, &config).0, place);
        peers.leave(place, 10);
        assert_eq!(acked(&peers, 7), Some(10));
        peers.leave(place, 5);
        assert_eq!((peers.iter().count(), acked(&peers, 7)), (0, Some(15)));
        let (place, _) = peers.join(7, 1, &config);
        peers.leave(place, 1);
        assert_eq!(acked(&peers, 7), Some(16));
        for other in 1000..1000 + PAST_MAX {
            let (place, _) = peers.join(other, 1, &config);
            peers.leave(place, 1);
        }
        assert_eq!(peers.past().count(), PAST_MAX);
        assert_eq!((acked(&peers, 7), acked(&peers, 1000)), (None, Some(1)));
        // One with a connection stays known.
        peers.join(1000, 1, &config);
        let (place, _) = peers.join(7, 1, &config);
        peers.leave(place, 1);
        assert_eq!((acked(&peers, 1000), acked(&peers, 1001)), (Some(1), None));
    }
}
