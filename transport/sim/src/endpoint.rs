//! One end of a connection as its host keeps it.

use weft_core::connection::Connection;
use weft_core::units::Time;

use crate::target::Target;

/// Where an end stands.
#[derive(Debug)]
pub enum EndState {
    /// Its connection runs.
    Open(Box<Connection>),
    /// Its process is being replaced; this is what was saved.
    Saved(Vec<u8>),
    /// It has failed, was closed, or its host has lost its state.
    Closed,
}

/// One end of one incarnation of a connection.
#[derive(Debug)]
pub struct Endpoint {
    /// Its host.
    pub host: usize,
    /// The other end's host.
    pub peer_host: usize,
    /// Which of the scenario's pairs it belongs to.
    pub pair: usize,
    /// Its connection.
    pub state: EndState,
    /// What the other end may write to.
    pub target: Target,
    /// Whether a write was posted here that the peer must refuse.
    pub strayed: bool,
    /// Whether the peer's host has lost its state since, or its end has failed.
    pub peer_died: bool,
    /// When its worker looks at it again though nothing happens, on its host's clock.
    pub timer: Option<Time>,
    /// Messages posted here that have not ended.
    pub open: u64,
}

impl Endpoint {
    /// Whether its connection runs or will be restored.
    pub fn alive(&self) -> bool {
        !matches!(self.state, EndState::Closed)
    }
}
