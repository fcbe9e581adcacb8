//! One end of a connection as the run knows it.

use std::collections::{BTreeSet, VecDeque};

use weft_core::connection::ReceiveBuffer;
use weft_core::drops::Drops;
use weft_core::endpoint::Remote;
use weft_core::memory::DomainId;
use weft_core::units::ConnectionId;

use crate::target::Target;

/// Where an end stands.
#[derive(Clone, Debug)]
pub enum Status {
    /// Its host knows the id and joins it to this later.
    Allocated(Remote<usize>),
    /// Its connection runs, or is saved.
    Open,
    /// It has failed, was closed, or its host has lost its state.
    Closed,
}

/// One end of one incarnation of a connection.
#[derive(Debug)]
pub struct EndState {
    /// Its host.
    pub host: usize,
    /// The other end's host.
    pub peer_host: usize,
    /// Which of the scenario's pairs it belongs to.
    pub pair: usize,
    /// Its name at its host.
    pub id: ConnectionId,
    /// Its tenant.
    pub domain: DomainId,
    /// Where it stands.
    pub status: Status,
    /// What the other end may write to.
    pub target: Target,
    /// Receives that are still to be posted here.
    pub receives: VecDeque<ReceiveBuffer>,
    /// The messages posted here that wait for a response, by the number of their request.
    pub requests: Vec<u64>,
    /// The numbers of the reads among them that were cancelled.
    pub cancelled_reads: BTreeSet<u64>,
    /// Whether a write was posted here that the peer must refuse.
    pub strayed: bool,
    /// Whether the peer's host has lost its state since, or its end has failed.
    pub peer_died: bool,
    /// What its connection had dropped when it was last looked at.
    pub drops: Drops,
    /// Messages posted here that have not ended.
    pub open: u64,
}

impl EndState {
    /// Whether its connection runs, or will.
    pub fn alive(&self) -> bool {
        !matches!(self.status, Status::Closed)
    }
}
