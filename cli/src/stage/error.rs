//! Why there is no stage.

use std::{io, path::PathBuf, process::ExitStatus};

use weft_identity::authority::AuthorityError;

use super::Program;

/// Every text names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A program is not there.
    #[error(
        "the {program} is neither {} nor in PATH: build it with `cargo build --release -p {}`, \
         or run `make play`",
        beside.display(), program.package()
    )]
    Missing {
        /// Which.
        program: Program,
        /// Where it should be.
        beside: PathBuf,
    },
    /// It could not be started.
    #[error(
        "the {program} of {node} cannot be started: {source}; check that weft-{program} can be run"
    )]
    NotStarted {
        /// Which.
        program: Program,
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
    #[error("the {program} of {node} was not ready after {seconds} s; its last words:\n{words}")]
    NotReady {
        /// Which.
        program: Program,
        /// The node.
        node: String,
        /// How long it had.
        seconds: u64,
        /// The end of its log.
        words: String,
    },
    /// It ended by itself.
    #[error("the {program} of {node} has ended by itself ({status}); its last words:\n{words}")]
    Ended {
        /// Which.
        program: Program,
        /// The node.
        node: String,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        words: String,
    },
    /// Its engine made no device.
    #[error("the engine of {node} made no device: {problem}")]
    NoDevice {
        /// The node.
        node: String,
        /// What the engine said.
        problem: String,
    },
    /// A library that programs use devices by is not there.
    #[error(
        "the library is not {}: build it with `cargo build --release -p weft-verbs-shim -p weft-rdmacm-shim`, \
         or run `make play` with these arguments",
        beside.display()
    )]
    LibraryMissing {
        /// Where it should be.
        beside: PathBuf,
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
            Self::Missing { program, .. } => program.reason(["AgentMissing", "EngineMissing"]),
            Self::NotStarted { program, .. } => {
                program.reason(["AgentNotStarted", "EngineNotStarted"])
            }
            Self::AgentNotKilled { .. } => "AgentNotKilled",
            Self::NotReady { program, .. } => program.reason(["AgentNotReady", "EngineNotReady"]),
            Self::Ended { program, .. } => program.reason(["AgentEnded", "EngineEnded"]),
            Self::NoDevice { .. } => "NoDevice",
            Self::LibraryMissing { .. } => "LibraryMissing",
            Self::NoFreePorts(_) => "NoFreePorts",
            Self::Authority(error) => error.reason(),
            Self::Files { .. } => "FilesUnusable",
            Self::Configuration(_) => "ConfigurationNotWritten",
            Self::NotKept(_) => "NotKept",
        }
    }
}
