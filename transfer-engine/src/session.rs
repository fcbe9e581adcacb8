//! The connections with a peer that one set-up makes. They begin and end together.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use weft_engine::{Failure, Post};

use crate::failure::Cause;
use crate::link_choice::LinkInUse;
use crate::lock::lock;
use crate::operations::{Connection, PartId};

/// A work request costs a NIC as much as this many bytes beside its own.
const REQUEST_BYTES: u64 = 1500;

/// The connections with a peer.
pub(crate) struct Session {
    /// For writes and reads.
    pub(crate) connections: Vec<Arc<Connection>>,
    /// For sends: in order, on one engine.
    pub(crate) messages: Arc<Connection>,
    /// The time that the work of each of them takes, picoseconds.
    loads: Mutex<Vec<u128>>,
    /// Which link it goes over, and to which host, at the end that called.
    pub(crate) link: OnceLock<(LinkInUse, IpAddr)>,
    /// Why it is over.
    pub(crate) ended: OnceLock<Cause>,
    /// What a connection of it failed by. It may come after the end that the peer made of the session for it.
    pub(crate) failure: OnceLock<Failure>,
    /// Reads that wait until another read is done.
    pub(crate) reads: Mutex<VecDeque<(PartId, Post, Arc<Connection>)>>,
    /// Ends the control connection.
    pub(crate) hang_up: Notify,
}

impl Session {
    pub(crate) fn new(connections: Vec<Arc<Connection>>, messages: Arc<Connection>) -> Self {
        Self {
            loads: Mutex::new(vec![0; connections.len()]),
            connections,
            messages,
            link: OnceLock::new(),
            ended: OnceLock::new(),
            failure: OnceLock::new(),
            reads: Mutex::default(),
            hang_up: Notify::new(),
        }
    }

    pub(crate) fn all_connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.connections.iter().chain([&self.messages])
    }

    /// The connection whose turn it is: each carries bytes in proportion to its speed.
    pub(crate) fn next_connection(&self, bytes: u64) -> &Arc<Connection> {
        let speeds = self.connections.iter().map(|it| it.speed_bps);
        &self.connections[rotate(&mut lock(&self.loads), speeds, bytes)]
    }
}

/// Adds work of `bytes` bytes to the load that is the least with it, and answers which that is.
fn rotate(loads: &mut [u128], speeds: impl Iterator<Item = u64>, bytes: u64) -> usize {
    let bits = u128::from(bytes.saturating_add(REQUEST_BYTES)) * 8;
    let costs = speeds.map(|speed| bits * 1_000_000_000_000 / u128::from(speed));
    let with = loads.iter().zip(costs).map(|(load, cost)| load + cost);
    let least = with.enumerate().min_by_key(|(_, load)| *load);
    let (index, load) = least.unwrap_or_default();
    loads[index] = load;
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_in_proportion_to_their_speeds() {
        let mut loads = [0; 2];
        let speeds = [100_000_000_000, 300_000_000_000];
        let mut next = |_| rotate(&mut loads, speeds.into_iter(), 64);
        let turns: Vec<usize> = (0..8).map(&mut next).collect();
        assert_eq!(
            turns.iter().filter(|turn| **turn == 0).count(),
            2,
            "{turns:?}"
        );
        assert_eq!(turns[..3], [1, 1, 1]);
    }
}
