//! Why there was no transfer to report on.

use std::{io, path::PathBuf, process::ExitStatus};

use crate::{
    authority::AuthorityError,
    fabric::{FabricError, isolation::IsolationError},
    operator::RunnerError,
    quantity,
};

/// Every text names the cause and the remedy. A transfer that failed is no error but a report.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The agent's program is not there.
    #[error(
        "weft-agent is neither {} nor in PATH: build it with `cargo build --release -p weft-agent`, \
         or run `make play`",
        beside.display()
    )]
    AgentMissing {
        /// Where it should be.
        beside: PathBuf,
    },
    /// It could not be started.
    #[error("the agent of {node} cannot be started: {source}; check that weft-agent can be run")]
    AgentNotStarted {
        /// The node.
        node: String,
        /// What the system said.
        source: io::Error,
    },
    /// It did not come up.
    #[error("the agent of {node} was not ready after {seconds} s; its last words:\n{words}")]
    AgentNotReady {
        /// The node.
        node: String,
        /// How long it had.
        seconds: u64,
        /// The end of its log.
        words: String,
    },
    /// It ended by itself.
    #[error("the agent of {node} has ended by itself ({status}); its last words:\n{words}")]
    AgentEnded {
        /// The node.
        node: String,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        words: String,
    },
    /// The fabric could not be built or changed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Loopback has no spines, rates or paths.
    #[error("{flags}: loopback has none of it, and for a fabric: {source}")]
    NeedsFabric {
        /// The flags.
        flags: String,
        /// Why there is no fabric.
        source: IsolationError,
    },
    /// No free ports on loopback.
    #[error("no free ports on 127.0.0.1: {source}; end programs that hold UDP ports from 20000 on")]
    NoFreePorts {
        /// What the system said.
        source: io::Error,
    },
    /// No keys or certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The agents cannot be called.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// A file or directory of ours.
    #[error("{}: {source}; free some space there, or give --out DIR elsewhere", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The copies would not fit into memory.
    #[error(
        "{copies} copies of {} take {} of memory and {} are free: give --out DIR on a disk, fewer \
         --nodes, or less data",
        quantity::bytes(*bytes), quantity::bytes(*needed), quantity::bytes(*free)
    )]
    TooLittleMemory {
        /// Of one copy.
        bytes: u64,
        /// How many.
        copies: u64,
        /// Together.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// A path that no configuration can say.
    #[error("the agent's configuration cannot be written: {0}; use paths that are UTF-8")]
    Configuration(#[from] serde_json::Error),
    /// The result could not be written.
    #[error("the result cannot be written: {0}; check the pipe or the disk behind the output")]
    Output(io::Error),
    /// No threads.
    #[error("no threads can be started: {0}; check the limits of this user (ulimit -u)")]
    Runtime(io::Error),
    /// A signal asked for the end.
    #[error("ended by signal {number}")]
    Signalled {
        /// Its number.
        number: u8,
    },
}

impl PlayError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::AgentMissing { .. } => "AgentMissing",
            Self::AgentNotStarted { .. } => "AgentNotStarted",
            Self::AgentNotReady { .. } => "AgentNotReady",
            Self::AgentEnded { .. } => "AgentEnded",
            Self::Fabric(error) => error.reason(),
            Self::NeedsFabric { source, .. } => source.reason(),
            Self::NoFreePorts { .. } => "NoFreePorts",
            Self::Authority(error) => error.reason(),
            Self::Runner(error) => error.reason(),
            Self::Files { .. } => "FilesUnusable",
            Self::TooLittleMemory { .. } => "TooLittleMemory",
            Self::Configuration(_) => "ConfigurationNotWritten",
            Self::Output(_) => "OutputNotWritten",
            Self::Runtime(_) => "NoThreads",
            Self::Signalled { .. } => "Signalled",
        }
    }
}
