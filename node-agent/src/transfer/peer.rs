//! `Peer`: what one connection of an attempt reports to progress streams.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_core::connection::Stats;
use weft_core::units::ConnectionId;
use weft_engine::{LinkInUse, Snapshot};
use weft_proto::agent::v1::{PeerProgress, Role};

use crate::config::ConfigSource;
use crate::fail_fast;
use crate::fault::Fault;

/// One connection of an attempt. Written by the thread that holds the connection.
#[derive(Debug)]
pub struct Peer {
    /// The node at the other end.
    pub node: String,
    /// Which side that node is on.
    pub role: Role,
    bytes: AtomicU64,
    state: Mutex<PeerState>,
}

#[derive(Debug, Default)]
struct PeerState {
    /// Over a link, in its engine, once it is agreed on.
    connection: Option<(LinkInUse, ConnectionId)>,
    /// As they were when it left the engine.
    last: Option<Stats>,
    fault: Option<Fault>,
}

impl Peer {
    /// A connection that is not agreed on yet.
    #[must_use]
    pub fn new(node: String, role: Role) -> Self {
        Self {
            node,
            role,
            bytes: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// It is in the engine of a link.
    pub fn record_opened(&self, link: LinkInUse, id: ConnectionId) {
        fail_fast::lock(&self.state).connection = Some((link, id));
    }

    /// Its link, once it is agreed on.
    #[must_use]
    pub fn link(&self) -> Option<LinkInUse> {
        let state = fail_fast::lock(&self.state);
        state.connection.as_ref().map(|(link, _)| link.clone())
    }

    /// It is about to leave the engine.
    pub fn record_closed(&self, snapshot: &Snapshot) {
        let last = self.stats(snapshot);
        fail_fast::lock(&self.state).last = Some(last);
    }

    /// It failed; the first reason stays.
    pub fn record_failed(&self, fault: Fault) {
        fail_fast::lock(&self.state).fault.get_or_insert(fault);
    }

    /// Why it failed, if it has.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        fail_fast::lock(&self.state).fault.clone()
    }

    /// Counts data bytes sent to a child, or received from the parent.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn stats(&self, snapshot: &Snapshot) -> Stats {
        let state = fail_fast::lock(&self.state);
        // Engines have ids of their own.
        let open = state.connection.as_ref().and_then(|(link, id)| {
            let mut connections = snapshot.connections.iter();
            connections.find(|open| open.id == *id && open.peer.kind() == link.link)
        });
        let stats = state.last.or(open.map(|open| open.stats));
        stats.unwrap_or_default()
    }

    /// For a progress stream.
    #[must_use]
    pub fn to_proto(
        &self,
        node: &str,
        config_source: ConfigSource,
        snapshot: &Snapshot,
    ) -> PeerProgress {
        let stats = self.stats(snapshot);
        let fault = self.fault();
        let said = |text: &dyn Fn(&Fault) -> String| fault.as_ref().map(text).unwrap_or_default();
        PeerProgress {
            node: self.node.clone(),
            role: self.role.into(),
            bytes: self.bytes.load(Ordering::Relaxed),
            chunks_sent: stats.chunks_sent,
            chunks_resent: stats.chunks_resent,
            failed: fault.is_some(),
            reason: said(&|fault| fault.reason().to_owned()),
            message: said(&|fault| format!("node {node}: {fault}")),
            retriable: fault
                .as_ref()
                .is_some_and(|fault| fault.retriable(config_source)),
        }
    }
}
