//! `Peer`: what one connection of an attempt reports to progress streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_core::units::ConnectionId;
use weft_engine::Snapshot;
use weft_proto::agent::v1::{PeerProgress, Role};

use crate::config::ConfigSource;
use crate::fault::Fault;

/// The state of a connection.
#[derive(Debug, Clone)]
enum ConnectionState {
    /// Not agreed on yet.
    Awaited,
    /// In the engine.
    Open(ConnectionId),
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
    pub fn opened(&self, id: ConnectionId) {
        self.lock().0 = ConnectionState::Open(id);
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
            ConnectionState::Open(id) => count(snapshot, id),
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

fn count(snapshot: &Snapshot, id: ConnectionId) -> ConnectionCounts {
    let stats = snapshot
        .connections
        .iter()
        .find(|c| c.id == id)
        .map(|c| &c.stats);
    ConnectionCounts {
        chunks_sent: stats.map_or(0, |s| s.chunks_sent + s.chunks_resent),
        chunks_resent: stats.map_or(0, |s| s.chunks_resent),
    }
}
