//! `Peer`: what one connection of an attempt reports to progress streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_core::path::{PathReport, PathState};
use weft_core::units::ConnectionId;
use weft_engine::{LinkAddress, Snapshot};
use weft_proto::agent::v1::{PathSummary, PeerProgress, Role};

use crate::config::ConfigSource;
use crate::fault::Fault;

/// The state of a connection.
#[derive(Debug, Clone)]
enum ConnectionState {
    /// Not agreed on yet.
    Awaited,
    /// In the engine.
    Open {
        id: ConnectionId,
        address: LinkAddress,
    },
    /// Over, with its last counts.
    Closed(ConnectionCounts),
}

/// The counts of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionCounts {
    /// Chunks sent, resent ones included.
    pub chunks_sent: u64,
    /// Of these: again.
    pub chunks_resent: u64,
    /// Its paths.
    pub paths: PathSummary,
}

/// One connection of an attempt. Written by the thread that holds the connection.
#[derive(Debug)]
pub struct Peer {
    /// The node at the other end.
    pub node: String,
    /// Which side that node is on.
    pub role: Role,
    bytes: AtomicU64,
    state: Mutex<(ConnectionState, Option<Fault>)>,
}

impl Peer {
    /// A connection that is not agreed on yet.
    #[must_use]
    pub fn new(node: String, role: Role) -> Self {
        Self {
            node,
            role,
            bytes: AtomicU64::new(0),
            state: Mutex::new((ConnectionState::Awaited, None)),
        }
    }

    /// It is in the engine.
    pub fn opened(&self, id: ConnectionId, address: LinkAddress) {
        self.lock().0 = ConnectionState::Open { id, address };
    }

    /// It is about to leave the engine.
    pub fn closed(&self, snapshot: &Snapshot) {
        let counted = self.counted(snapshot);
        self.lock().0 = ConnectionState::Closed(counted);
    }

    /// It failed; the first reason stays.
    pub fn failed(&self, fault: Fault) {
        self.lock().1.get_or_insert(fault);
    }

    /// Why it failed, if it has.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.lock().1.clone()
    }

    /// Data bytes that reached the other end.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Data bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Its counts by now.
    #[must_use]
    pub fn counted(&self, snapshot: &Snapshot) -> ConnectionCounts {
        match self.lock().0.clone() {
            ConnectionState::Awaited => ConnectionCounts::default(),
            ConnectionState::Closed(counted) => counted,
            ConnectionState::Open { id, address } => count(snapshot, id, address),
        }
    }

    /// For a progress stream.
    #[must_use]
    pub fn to_proto(&self, node: &str, author: ConfigSource, snapshot: &Snapshot) -> PeerProgress {
        let counted = self.counted(snapshot);
        let fault = self.fault();
        let said = |text: fn(&Fault) -> String| fault.as_ref().map(text).unwrap_or_default();
        PeerProgress {
            node: self.node.clone(),
            role: self.role.into(),
            bytes: self.bytes(),
            chunks_sent: counted.chunks_sent,
            chunks_resent: counted.chunks_resent,
            paths: Some(counted.paths),
            failed: fault.is_some(),
            reason: said(|fault| fault.reason().to_owned()),
            message: match &fault {
                Some(fault) => format!("node {node}: {fault}"),
                None => String::new(),
            },
            retriable: fault.as_ref().is_some_and(|fault| fault.retriable(author)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (ConnectionState, Option<Fault>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(snapshot: &Snapshot, id: ConnectionId, address: LinkAddress) -> ConnectionCounts {
    let stats = snapshot
        .connections
        .iter()
        .find(|c| c.id == id)
        .map(|c| &c.stats);
    let paths = snapshot.peers.iter().find(|p| p.address == address);
    ConnectionCounts {
        chunks_sent: stats.map_or(0, |s| s.chunks_sent + s.chunks_resent),
        chunks_resent: stats.map_or(0, |s| s.chunks_resent),
        paths: summary(paths.map_or(&[], |p| p.paths.as_slice())),
    }
}

fn summary(paths: &[PathReport]) -> PathSummary {
    let of = |state: fn(&PathState) -> bool| {
        // At most 256 paths.
        paths.iter().filter(|p| state(&p.state)).count() as u32
    };
    let mut srtts: Vec<u64> = paths
        .iter()
        .filter_map(|p| p.srtt)
        .map(|t| t.get())
        .collect();
    srtts.sort_unstable();
    PathSummary {
        live: of(|state| matches!(state, PathState::Live)),
        suspect: of(|state| matches!(state, PathState::Suspect | PathState::Narrow)),
        suspended: of(|state| matches!(state, PathState::Suspended)),
        srtt_min_ns: srtts.first().copied().unwrap_or(0),
        srtt_median_ns: srtts.get(srtts.len() / 2).copied().unwrap_or(0),
        srtt_max_ns: srtts.last().copied().unwrap_or(0),
        chunks_lost: paths.iter().map(|p| p.lost_chunks).sum(),
        ce_packets: paths.iter().map(|p| p.ce_packets).sum(),
        timeouts: paths.iter().map(|p| p.timeouts).sum(),
    }
}
