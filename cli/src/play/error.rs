//! Why there was no transfer to report on.

use std::{io, path::PathBuf};

use weft_fabric::{FabricError, isolation::IsolationError, quantity};
use weft_identity::authority::AuthorityError;

use crate::stage::StageError;

/// Every text names the cause and the remedy. A transfer that failed is no error but a report.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
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
    /// Agents could not be set up, or have ended.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// No keys or certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A file or directory of ours.
    #[error("{}: {source}; free some space there, or give --out DIR elsewhere", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No directory for keys and logs.
    #[error("{}: no temporary directory can be made there: {source}; set TMPDIR to a directory where you may write", path.display())]
    NoTemporary {
        /// Where.
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
    /// The copies would not fit on the disk.
    #[error(
        "{}: {copies} copies of {} take {} and {} are free there: give --out DIR elsewhere, fewer --nodes, or less data",
        path.display(), quantity::bytes(*bytes), quantity::bytes(*needed), quantity::bytes(*free)
    )]
    TooLittleRoom {
        /// Where the nodes' files are to be.
        path: PathBuf,
        /// Of one copy.
        bytes: u64,
        /// How many.
        copies: u64,
        /// Together.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// Another run uses the directory of --out.
    #[error("--out {}: another weft play uses it now; wait for its end, or give another directory", path.display())]
    OutInUse {
        /// The directory.
        path: PathBuf,
    },
    /// No page.
    #[error(
        "--ui-port {port}: the fabric's page cannot be served there: {source}; give another port, or 0 for a free one"
    )]
    PageNotServed {
        /// The port of 127.0.0.1.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The result is no JSON.
    #[error("the result cannot be written as JSON: {0}; leave out --json")]
    Json(#[from] serde_json::Error),
    /// The result could not be written.
    #[error("the result cannot be written: {0}; check the pipe or the disk behind the output")]
    Output(io::Error),
    /// No runtime.
    #[error(
        "the runtime cannot be started: {0}; raise the limit of open files, as with `ulimit -n 1024`"
    )]
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
            Self::Fabric(error) => error.reason(),
            Self::NeedsFabric { source, .. } => source.reason(),
            Self::Authority(error) => error.reason(),
            Self::Files { .. } => "FilesUnusable",
            Self::NoTemporary { .. } => "NoTemporaryDirectory",
            Self::TooLittleMemory { .. } => "TooLittleMemory",
            Self::TooLittleRoom { .. } => "TooLittleRoom",
            Self::Stage(error) => error.reason(),
            Self::OutInUse { .. } => "OutInUse",
            Self::PageNotServed { .. } => "PageNotServed",
            Self::Json(_) => "ResultNotJson",
            Self::Output(_) => "OutputNotWritten",
            Self::Runtime(_) => "NoRuntime",
            Self::Signalled { .. } => "Signalled",
        }
    }
}
