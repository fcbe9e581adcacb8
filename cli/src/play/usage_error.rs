//! What is wrong with the arguments of `weft play`.

use std::{io, path::PathBuf};

use weft_fabric::SpecError;

/// What a data path's pair of port ranges carries at most.
pub(super) const MAX_PATHS: u16 = 256;

/// An argument that makes no sense. Every text names the flag and what to give instead.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The fabric cannot be.
    #[error(transparent)]
    Fabric(#[from] SpecError),
    /// There would be nobody to send to.
    #[error("--nodes {0}: one sends and another receives; give at least --nodes 2")]
    TooFewNodes(usize),
    /// Outside what two port ranges give.
    #[error("--paths {0}: give a number from 1 to {MAX_PATHS}")]
    Paths(u16),
    /// A node that is not there.
    #[error("{flag} {given}: there is no node {given}; the nodes are 0 to {last}")]
    NoSuchNode {
        /// The flag.
        flag: &'static str,
        /// The number given.
        given: usize,
        /// The last node.
        last: usize,
    },
    /// The source in --to.
    #[error("--to {given}: node 0 has the data already; leave it out", given = "0")]
    SourceIsDestination,
    /// A node twice in --to.
    #[error("--to names node {0} twice: name it once")]
    DuplicateDestination(usize),
    /// A spine that is not there.
    #[error("--fail-spine {given}: there is no spine {given}; the spines are 0 to {last}")]
    NoSuchSpine {
        /// The number given.
        given: usize,
        /// The last spine.
        last: usize,
    },
    /// A NIC would fail that is the only one of its node.
    #[error("--fail-nic: a node has one NIC, and no other to go on with; add --nics 2")]
    OnlyNic,
    /// A restart without a kill before it.
    #[error(
        "--restart-node {0}: the agent of node {0} is not killed before that time; add --kill-node {0}@TIME with an earlier time"
    )]
    RestartWithoutKill(usize),
    /// A second kill of an agent that is dead.
    #[error("--kill-node {0}: it is dead by then; add --restart-node {0}@TIME between the two")]
    KilledTwice(usize),
    /// The source cannot be read.
    #[error("--source {}: {source}; give a file or directory that {user} can read", path.display())]
    SourceUnreadable {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// Who reads.
        user: String,
    },
    /// It is no file.
    #[error("--source {}: this is a {kind}; give a regular file or a directory", path.display())]
    SourceKind {
        /// As given.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// It has no name that a destination could have.
    #[error("--source {}: it has no name that is UTF-8; give one below it, or rename it", path.display())]
    SourceName {
        /// As given.
        path: PathBuf,
    },
    /// The directory cannot be used.
    #[error("--out {}: {source}; give a directory that can be written, or one to be made", path.display())]
    Out {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something is in it.
    #[error("--out {}: it is not empty; give an empty directory, one to be made, or that of an interrupted run", path.display())]
    OutNotEmpty {
        /// As given.
        path: PathBuf,
    },
    /// A run of other data is in it.
    #[error("--out {}: it holds a run of {data}; give the same --source, or --size and --seed, or another directory", path.display())]
    OutOfOtherData {
        /// As given.
        path: PathBuf,
        /// Of that run.
        data: String,
    },
    /// It would be in the fabric's own `/run`, which ends with it.
    #[error("--out {}: the fabric has a /run of its own, which ends with it; give a directory elsewhere", path.display())]
    OutInRun {
        /// As given.
        path: PathBuf,
    },
    /// The copies would be part of what is copied.
    #[error("--out {}: it lies within --source {}; give a directory outside of it", path.display(), within.display())]
    OutInSource {
        /// As given.
        path: PathBuf,
        /// The source.
        within: PathBuf,
    },
}

impl UsageError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Fabric(error) => error.reason(),
            Self::TooFewNodes(_) => "TooFewNodes",
            Self::Paths(_) => "PathsOutOfRange",
            Self::NoSuchNode { .. } => "NoSuchNode",
            Self::SourceIsDestination => "SourceIsDestination",
            Self::DuplicateDestination(_) => "DuplicateDestination",
            Self::NoSuchSpine { .. } => "NoSuchSpine",
            Self::OnlyNic => "OnlyNic",
            Self::RestartWithoutKill(_) => "RestartWithoutKill",
            Self::KilledTwice(_) => "KilledTwice",
            Self::SourceUnreadable { .. } => "SourceUnreadable",
            Self::SourceKind { .. } => "SourceKind",
            Self::SourceName { .. } => "SourceName",
            Self::Out { .. } => "OutUnusable",
            Self::OutNotEmpty { .. } => "OutNotEmpty",
            Self::OutOfOtherData { .. } => "OutOfOtherData",
            Self::OutInRun { .. } => "OutInRun",
            Self::OutInSource { .. } => "OutInSource",
        }
    }
}
