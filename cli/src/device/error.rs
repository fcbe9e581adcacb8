//! Why a device could not be used.

use std::{io, path::PathBuf};

use super::NodeProgram;

/// Every text names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Nothing runs.
    #[error(
        "no fabric with devices is running: start one with `weft play --device 0,1 --keep`, as the same user"
    )]
    NoFabric,
    /// Which one is not said.
    #[error("several fabrics are running: name one by --play, of {0}")]
    Several(String),
    /// The node has no device.
    #[error("{node} has no engine of devices; those that have: {nodes}")]
    NoNode {
        /// The node.
        node: String,
        /// Those that have one.
        nodes: String,
    },
    /// The device is not there.
    #[error("there is no device {device} at {node}; see: weft device list")]
    NoDevice {
        /// The node.
        node: String,
        /// The device.
        device: String,
    },
    /// A program of a node was not restarted.
    #[error(
        "the {which} of {node} was not restarted: {source}; see its log, and `weft device list`"
    )]
    NotRestarted {
        /// The node.
        node: String,
        /// Which program.
        which: NodeProgram,
        /// The system's answer.
        source: io::Error,
    },
    /// The directory of devices was not opened to others.
    #[error("{path}: {source}: its mode has to be 0755 for programs of other users")]
    Files {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The engine does not answer.
    #[error(
        "the engine of {node} does not run: start another one by `weft device restart {node}`, and make its device by \
         `weft device create {node}/weft0`"
    )]
    NoEngine {
        /// The node.
        node: String,
    },
    /// The engine answers no.
    #[error("the engine of {node}: {problem}")]
    Engine {
        /// The node.
        node: String,
        /// What it said.
        problem: String,
    },
    /// The program was not started.
    #[error("nsenter cannot be run: {0}; install util-linux and iproute2")]
    NotRun(io::Error),
    /// The directory has not Weft's libraries.
    #[error(
        "{file} is missing, or no library of Weft for this machine: name the directory with Weft's libraries by --libraries"
    )]
    Libraries {
        /// Which.
        file: PathBuf,
    },
    /// A library cannot be mounted.
    #[error(
        "nothing can be mounted at {path}: {source}; it takes root in a user namespace, with the capability CAP_SYS_ADMIN"
    )]
    Mount {
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program with devices was not started.
    #[error("env cannot be run: {0}; install coreutils")]
    NotInjected(io::Error),
    /// A program would not meet the devices.
    #[error("a program would not meet its devices here: do what the lines that begin with fix say")]
    Unreachable,
    /// No runtime.
    #[error("the runtime cannot start: {0}")]
    Runtime(io::Error),
    /// The result cannot be written.
    #[error("the result cannot be written: {0}")]
    Output(io::Error),
}
