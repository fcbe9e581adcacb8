//! What only this engine can make: region keys, connection ids, reset keys.

use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use weft_core::units::{ConnectionId, Host, Key};
use weft_core::wire::Secret;
use weft_link::LinkToken;

use crate::error::EngineError;

/// The low bits of connection ids that name the worker.
const WORKER_BITS: u32 = 8;

/// Most workers of an engine.
pub(crate) const WORKERS_MAX: usize = 1 << WORKER_BITS;

/// Computes what the tokens of Resets are made from: HMAC-SHA256 of the connection's id under the
/// node's key, cut to 64 bits. The peer is told it when the connection is made, and it is never sent
/// over the data path. The node's key outlives the engine, so that the next one can speak for the
/// connections of the last.
#[derive(Clone)]
pub(crate) struct ResetKeys(hmac::Key);

impl ResetKeys {
    pub(crate) fn new(node_key: &Secret) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &node_key.0))
    }

    pub(crate) fn of(&self, connection: ConnectionId) -> u64 {
        cut(
            &self.0,
            &[b"weft reset".as_slice(), &connection.0.to_le_bytes()].concat(),
        )
    }
}

/// The token of a Reset to `peer`. Whoever elicits one gets that of its own address, which no other
/// peer believes, now or when the connection's id is in use (decision 0009).
pub(crate) fn reset_token(key: u64, peer: Host) -> u64 {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key.to_le_bytes());
    cut(&key, &peer.0)
}

/// The token that a peer sends first when it connects to an engine of this node. It is told with the engine's address.
pub(crate) fn link_token(node_key: &Secret) -> LinkToken {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &node_key.0);
    LinkToken(cut(&key, b"weft link"))
}

fn cut(key: &hmac::Key, message: &[u8]) -> u64 {
    let tag = hmac::sign(key, message);
    let mut word = [0; 8];
    word.copy_from_slice(&tag.as_ref()[..8]);
    u64::from_le_bytes(word)
}

/// Gives out region keys and connection ids of one engine's life.
pub(crate) struct Names {
    /// Drawn at each start and never told: region keys are its HMACs, so that nobody guesses one.
    secret: hmac::Key,
    keys: AtomicU64,
    ids: AtomicU64,
    /// Tells this life of the engine from the node's others.
    pub(crate) incarnation: u64,
    /// Of this life's draws of paths, unless the configuration names one.
    pub(crate) seed: u64,
}

impl Names {
    /// `incarnation`: that of the engine whose connections go on, if any do.
    pub(crate) fn draw(incarnation: Option<u64>) -> Result<Self, EngineError> {
        let mut random = [0; 56];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| EngineError::NoRandomness)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&random[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Ok(Self {
            secret: hmac::Key::new(hmac::HMAC_SHA256, &random[..32]),
            keys: AtomicU64::new(0),
            // A random start: a packet for a connection of the last life should meet none of this.
            ids: AtomicU64::new(word(32)),
            incarnation: incarnation.unwrap_or(word(40)),
            seed: word(48),
        })
    }

    /// A key that nobody can guess: 64 random bits.
    pub(crate) fn key(&self) -> Key {
        loop {
            let count = self.keys.fetch_add(1, Ordering::Relaxed);
            let key = Key(cut(&self.secret, &count.to_le_bytes()));
            // 0 is no region's key; 1 in 2^64 keys would be.
            if key != crate::SIGNAL {
                return key;
            }
        }
    }

    /// The next connection id. It comes round again after 2^24 connections.
    pub(crate) fn connection(&self, worker: usize) -> ConnectionId {
        let count = self.ids.fetch_add(1, Ordering::Relaxed) as u32;
        ConnectionId(count << WORKER_BITS | worker as u32)
    }
}

/// The worker that a connection id names.
pub(crate) fn worker_of_connection(id: ConnectionId) -> usize {
    id.0 as usize % WORKERS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_repeat_and_ids_name_their_worker() {
        let names = Names::draw(None).unwrap();
        let keys: std::collections::BTreeSet<u64> = (0..1000).map(|_| names.key().0).collect();
        assert_eq!(keys.len(), 1000);
        let (a, b) = (names.connection(7), names.connection(7));
        assert_ne!(a, b);
        assert_eq!(worker_of_connection(a), 7);
    }

    #[test]
    fn two_lives_draw_their_paths_from_different_seeds() {
        let seeds = [(); 2].map(|()| Names::draw(None).unwrap().seed);
        assert_ne!(seeds[0], seeds[1]);
    }

    #[test]
    fn the_reset_key_depends_on_the_node_key_and_the_id_only() {
        let (mine, other) = (Secret([1; 32]), Secret([2; 32]));
        let id = ConnectionId(5);
        assert_eq!(ResetKeys::new(&mine).of(id), ResetKeys::new(&mine).of(id));
        assert_ne!(ResetKeys::new(&mine).of(id), ResetKeys::new(&other).of(id));
        assert_ne!(
            ResetKeys::new(&mine).of(id),
            ResetKeys::new(&mine).of(ConnectionId(6))
        );
    }
}
