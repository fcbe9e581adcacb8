//! What the engine refuses at once; each error names the field and the remedy.

use weft_core::connection::{CancelError, PostError, RestoreError};
use weft_core::units::ConnectionId;
use weft_link::{LinkAddress, LinkError};

/// Why a call was refused. Nothing was begun.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting is outside of what it may be.
    #[error("{field} is {value}: it must be {least} to {most}")]
    OutOfRange {
        /// The setting as the configuration file names it.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// The ports cannot be shared out evenly.
    #[error(
        "progress.threads is {workers} and {address} has {} ports: \
         set threads to a divisor of ports.count",
        address.parts()
    )]
    UnevenWorkers {
        /// Threads asked for.
        workers: usize,
        /// The address to share.
        address: Box<LinkAddress>,
    },
    /// A thread cannot run on a CPU.
    #[error(
        "cpus has {cpu}, and no thread of this process may run there ({source}): name CPUs that it may use"
    )]
    Cpu {
        /// The CPU.
        cpu: u16,
        /// What the system says.
        source: std::io::Error,
    },
    /// A saved connection cannot go on.
    #[error("connection {id} cannot go on: {source}: connect again")]
    NotRestored {
        /// Which.
        id: ConnectionId,
        /// Why.
        source: RestoreError,
    },
    /// The link could not be opened or cannot reach the peer.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The two ends were set up differently.
    #[error("{peer} was set up differently: {difference}; give both ends the same value")]
    SettingsDiffer {
        /// The peer.
        peer: Box<LinkAddress>,
        /// The settings that differ, with both values.
        difference: String,
    },
    /// The peer's ports and ours make fewer pairs than paths are wanted.
    #[error(
        "{local} and {peer} make {pairs} pairs, paths is {paths}: \
         lower paths or widen the ranges"
    )]
    TooFewPairs {
        /// Our address.
        local: Box<LinkAddress>,
        /// The peer's.
        peer: Box<LinkAddress>,
        /// Pairs they make.
        pairs: u32,
        /// Paths wanted.
        paths: u16,
    },
    /// The id was not given out by `allocate`, or its connection was closed.
    #[error("{id} is no end of a connection here: allocate one, and do not use it after close")]
    UnknownConnection {
        /// The id.
        id: ConnectionId,
    },
    /// `connect` was called twice for one end.
    #[error("{id} is connected already: allocate an end for each connection")]
    AlreadyConnected {
        /// The id.
        id: ConnectionId,
    },
    /// A write was posted to an end that is allocated but not connected.
    #[error("{id} is not connected yet: call connect with the peer's answer first")]
    NotConnected {
        /// The id.
        id: ConnectionId,
    },
    /// A write asks for more bytes than its source has.
    #[error(
        "the write asks for {bytes} bytes at {source_offset} and its source has {source_bytes}"
    )]
    BeyondSource {
        /// Where they were to begin.
        source_offset: u64,
        /// Asked for.
        bytes: u64,
        /// There.
        source_bytes: u64,
    },
    /// A write with neither bytes nor an immediate would do nothing.
    #[error("a write without bytes needs an immediate: it would do nothing else")]
    EmptyWrite,
    /// The pieces of a message are longer than 2^64 bytes.
    #[error("the pieces are longer than 2^64 bytes together: split the message")]
    PiecesTooLong,
    /// A message and its pieces differ in length. A read and an atomic send none.
    #[error(
        "the work request sends {bytes} bytes and its pieces have {pieces_bytes}: make them equal"
    )]
    PiecesDiffer {
        /// Of the work request.
        bytes: u64,
        /// Of the pieces.
        pieces_bytes: u64,
    },
    /// The work request cannot be done.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The work request is not cancelled: it goes on, or has ended.
    #[error(transparent)]
    Cancel(#[from] CancelError),
    /// A call that only the caller of [`crate::Engine::poll`] may make, on an engine that runs its own threads.
    #[error(
        "this engine runs its own threads: start it with Progress::Inline to poll, save or restore it"
    )]
    NotInline,
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: region keys cannot be drawn safely")]
    NoRandomness,
    /// A thread or an event queue could not be made, or waiting failed.
    #[error("{call} failed ({source}): check the limits on threads and open files (`ulimit -a`)")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl EngineError {
    /// A stable name for conditions and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "CpuNotAllowed",
            Self::NotRestored { .. } => "NotRestored",
            Self::OutOfRange { .. } => "SettingOutOfRange",
            Self::UnevenWorkers { .. } => "UnevenWorkers",
            Self::Link(error) => error.reason(),
            Self::SettingsDiffer { .. } => "SettingsDiffer",
            Self::TooFewPairs { .. } => "TooFewPairs",
            Self::UnknownConnection { .. } => "UnknownConnection",
            Self::AlreadyConnected { .. } => "AlreadyConnected",
            Self::NotConnected { .. } => "NotConnected",
            Self::BeyondSource { .. } => "BeyondSource",
            Self::EmptyWrite => "EmptyWrite",
            Self::PiecesTooLong => "PiecesTooLong",
            Self::PiecesDiffer { .. } => "PiecesDiffer",
            Self::Post(error) => error.reason(),
            Self::Cancel(error) => error.reason(),
            Self::NotInline => "NotInline",
            Self::NoRandomness => "NoRandomness",
            Self::System { .. } => "SystemCallFailed",
        }
    }
}
