//! The programs that run at a node.

use std::fmt;

/// What runs at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `weft-agent`.
    Agent,
    /// `weft-engine`, for virtual devices.
    Engine,
}

impl Program {
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Agent => "weft-agent",
            Self::Engine => "weft-engine",
        }
    }

    /// The one of two texts that is of this program: the agent's, or the engine's.
    pub(super) fn reason(self, of: [&'static str; 2]) -> &'static str {
        match self {
            Self::Agent => of[0],
            Self::Engine => of[1],
        }
    }

    /// The package that it is built from.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::Agent => "weft-agent",
            Self::Engine => "weft-node-engine",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Engine => "engine",
        })
    }
}
