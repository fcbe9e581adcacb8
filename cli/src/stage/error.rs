//! Why there is no stage.

use std::{io, path::PathBuf, process::ExitStatus};

use weft_identity::authority::AuthorityError;

/// Every text names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
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
    /// It could not be killed.
    #[error("the agent of {node} cannot be killed: {source}; end it with kill -9")]
    AgentNotKilled {
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
    /// No free ports on loopback.
    #[error("no free ports on 127.0.0.1: {0}; end programs that hold UDP ports from 20000 on")]
    NoFreePorts(io::Error),
    /// No keys or certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A file or directory of ours.
    #[error("{}: {source}; free some space there, or give another directory", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A path that no configuration can say.
    #[error("the agent's configuration cannot be written: {0}; use paths that are UTF-8")]
    Configuration(#[from] serde_json::Error),
    /// What runs in the namespaces would end with this program.
    #[error("agents and fabric cannot be left running: {0}; make room in memory and run again")]
    NotKept(io::Error),
}

impl StageError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::AgentMissing { .. } => "AgentMissing",
            Self::AgentNotStarted { .. } => "AgentNotStarted",
            Self::AgentNotKilled { .. } => "AgentNotKilled",
            Self::AgentNotReady { .. } => "AgentNotReady",
            Self::AgentEnded { .. } => "AgentEnded",
            Self::NoFreePorts(_) => "NoFreePorts",
            Self::Authority(error) => error.reason(),
            Self::Files { .. } => "FilesUnusable",
            Self::Configuration(_) => "ConfigurationNotWritten",
            Self::NotKept(_) => "NotKept",
        }
    }
}
