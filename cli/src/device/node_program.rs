//! The two programs that a node runs.

use std::fmt;

use clap::ValueEnum;

/// Which of a node's two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeProgram {
    /// The one that moves the bytes.
    Engine,
    /// The one that keeps what an engine leaves to the next.
    Agent,
}

impl NodeProgram {
    /// The name of its file.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Engine => "weft-engine",
            Self::Agent => "weft-agent",
        }
    }
}

impl fmt::Display for NodeProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "engine",
            Self::Agent => "agent",
        })
    }
}
