//! What a cluster that is up can be asked for: a line of JSON each way over a socket in its state
//! directory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Put the images of these archives where every node's pods find them.
    LoadImages(Vec<PathBuf>),
    /// Which components there are, and whether they run.
    Status,
    /// End a component as a crash would, and leave it so.
    Kill(String),
    /// Start a component again that has ended.
    Start(String),
    /// Let a spine drop everything that it should forward. Its links stay up.
    FailSpine(usize),
    /// End that.
    HealSpine(usize),
    /// Take the data link of a node down: its port has no carrier.
    UnplugNode(String),
    /// End that.
    PlugNode(String),
    /// Cut a node's power, and start it again: all its processes end at once, what it has in memory is gone, its disk stays.
    RebootNode(String),
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The components by name, and whether each runs.
    Status(Vec<(String, bool)>),
    /// It is not, for this reason.
    Refused(String),
}

/// The socket's name in the state directory.
pub(crate) const SOCKET: &str = "socket";
