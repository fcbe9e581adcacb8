//! The NICs that an endpoint's connections lead to. Connections to one NIC share its paths.

use super::PeerName;
use crate::path::{PathSet, PathSetConfig};
use crate::units::PathId;

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
}

impl<P: PeerName> Peers<P> {
    pub(super) fn new() -> Peers<P> {
        Peers { places: Vec::new() }
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

impl<P> Peers<P> {
    /// One connection less; a NIC without any is forgotten.
    pub(super) fn leave(&mut self, place: u32) {
        if let Some(peer) = &mut self.places[place as usize] {
            peer.connections -= 1;
            if peer.connections == 0 {
                self.places[place as usize] = None;
            }
        }
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
