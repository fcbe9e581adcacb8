//! Why an operation has not done its work.

use std::fmt;
use std::net::SocketAddr;

/// How far an operation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Connecting to the peer. No byte has left.
    Connect,
    /// Posting a work request. No byte has left.
    Post,
    /// Moving bytes.
    Transfer,
    /// Waiting for a count of immediates.
    Count,
}

/// What ended an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The deadline passed.
    #[error(
        "the deadline passed: check that the peer is alive and that the deadline is long enough"
    )]
    DeadlinePassed,
    /// [`crate::Operation::cancel`].
    #[error("the program cancelled it")]
    Cancelled,
    /// No endpoint of the peer answers.
    #[error(
        "the peer cannot be reached ({0}): check that it runs and that its control ports are open"
    )]
    Unreachable(String),
    /// Another engine answers at this endpoint of the peer.
    #[error(
        "another engine answers at {0}: the peer was restarted, and its old keys are refused (get its new address and descriptors){elsewhere}",
        elsewhere = if_elsewhere(.0)
    )]
    AnotherGeneration(SocketAddr),
    /// The two ends do not fit.
    #[error("the connection was refused: {0}")]
    Refused(String),
    /// The control connection ended.
    #[error(
        "the peer ended the connection: its process has ended, or it dropped or removed this peer"
    )]
    PeerEnded,
    /// A data connection failed. A failure ends all operations under way with this peer.
    #[error("{0}")]
    Connection(weft_engine::Failure),
    /// The peer refused a part of the operation, because of its key or its place. Other operations go on.
    #[error("{0}")]
    RequestRefused(weft_engine::Failure),
    /// The peer has used more immediates than this end keeps counters for.
    #[error(
        "the peer uses more than 1,048,576 immediates that were not freed: use fewer, or free them"
    )]
    TooManyImmediates,
    /// This end removed the peer, or dropped the engine.
    #[error("this end removed the peer or dropped the engine")]
    EndedHere,
    /// The NIC's engine did not take the work request.
    #[error("{text}")]
    NotPosted {
        /// A stable name.
        reason: &'static str,
        /// What the engine says.
        text: String,
    },
}

impl Cause {
    /// A stable name for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DeadlinePassed => "DeadlinePassed",
            Self::Cancelled => "Cancelled",
            Self::Unreachable(_) => "Unreachable",
            Self::AnotherGeneration(_) => "AnotherGeneration",
            Self::Refused(_) => "Refused",
            Self::PeerEnded => "PeerEnded",
            Self::Connection(failure) | Self::RequestRefused(failure) => failure.reason(),
            Self::TooManyImmediates => "TooManyImmediates",
            Self::EndedHere => "EndedHere",
            Self::NotPosted { reason, .. } => reason,
        }
    }
}

/// What else may be wrong with an endpoint of a peer: every machine has its own loopback addresses.
pub(crate) fn if_elsewhere(endpoint: &SocketAddr) -> &'static str {
    match endpoint.ip().is_loopback() {
        true => "; or it runs on another machine (start it with nics that this machine reaches)",
        false => "",
    }
}

/// Where and why an operation ended without its work done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Failure {
    /// [`crate::EngineAddress::name`] of the peer; `None` for a count, which any peer may reach.
    pub peer: Option<String>,
    /// The two ends of the connection, once there is one.
    pub path: Option<String>,
    /// How far the operation was.
    pub stage: Stage,
    /// Why it ended.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer.as_deref().unwrap_or("any peer");
        write!(f, "{peer}, stage {:?}", self.stage)?;
        if let Some(path) = &self.path {
            write!(f, ", path {path}")?;
        }
        write!(f, ": {}", self.cause)
    }
}
