//! Why a call is refused at once. Each error names the field and the remedy; nothing was begun.

use std::io;
use std::net::SocketAddr;

use weft_engine::{Access, BadNics, EngineError, MemfdError};

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A setting or an argument cannot be used.
    #[error("{field} {problem}")]
    Invalid {
        /// Which one.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The NICs cannot be used together.
    #[error("nics: {0}")]
    Nics(BadNics),
    /// A NIC's address and port cannot be opened.
    #[error("nics, ports: cannot listen at {endpoint} ({source}): {}", remedy(.source))]
    Listen {
        /// The address of the NIC, and the first port that was tried.
        endpoint: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The workers cannot share the ports.
    #[error(
        "workers is {workers} and port_count is {port_count}: workers must be a divisor of port_count"
    )]
    UnevenWorkers {
        /// How many were asked for.
        workers: u16,
        /// How many ports they share.
        port_count: u16,
    },
    /// The engine is closed.
    #[error("the engine is closed: start another one")]
    Closed,
    /// The engine of a link did not start.
    #[error(transparent)]
    Link(#[from] EngineError),
    /// The operating system refused a call.
    #[error(
        "{call} failed ({source}): check the limits on threads, files and memory (`ulimit -a`)"
    )]
    System {
        /// The call.
        call: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// Memory could not be made.
    #[error(transparent)]
    Memfd(#[from] MemfdError),
    /// Bytes do not lie in their region.
    #[error(
        "{field}: {bytes} bytes at offset {offset} do not lie in a region of {region_bytes} bytes"
    )]
    OutOfBounds {
        /// `source` or `destination`.
        field: &'static str,
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The length of the region.
        region_bytes: u64,
    },
    /// The memory is not registered with this engine.
    #[error("{field} is not registered with this engine, or no longer: register it with reg_mr")]
    NotRegistered {
        /// `source` or `destination`.
        field: &'static str,
    },
    /// The region is registered for other uses.
    #[error("{field} is registered for {has:?} and needs {needs:?}: register it with this access")]
    AccessDenied {
        /// `source` or `destination`.
        field: &'static str,
        /// What it is registered for.
        has: Access,
        /// What is needed.
        needs: Access,
    },
    /// The process was forked after the engine was started.
    #[error(
        "this process was forked from {parent}, which has the engine's threads: start an engine after the fork"
    )]
    Forked {
        /// The process that started the engine.
        parent: u32,
    },
}

/// What helps where an endpoint cannot be opened.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => "name addresses that `ip address` shows on this machine",
        io::ErrorKind::PermissionDenied => "use ports from 1024 on, or run as root",
        // Linux, for a link-local address of IPv6 without its interface.
        io::ErrorKind::InvalidInput => "use addresses that are not link-local",
        _ => "check the limit on open files (`ulimit -n`)",
    }
}

impl TransferError {
    /// A stable name for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "Invalid",
            Self::Listen { .. } => "CannotListen",
            Self::UnevenWorkers { .. } => "UnevenWorkers",
            Self::Closed => "Closed",
            Self::Nics(_) => "BadNics",
            Self::Link(error) => error.reason(),
            Self::System { .. } => "SystemCallFailed",
            Self::Memfd(_) => "BadMemfd",
            Self::OutOfBounds { .. } => "OutOfBounds",
            Self::NotRegistered { .. } => "NotRegistered",
            Self::AccessDenied { .. } => "AccessDenied",
            Self::Forked { .. } => "Forked",
        }
    }

    pub(crate) fn system(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { call, source }
    }

    pub(crate) fn check_at_least_one(field: &'static str, value: u64) -> Result<(), Self> {
        let problem = "is 0: it must be at least 1";
        match value {
            0 => Err(Self::Invalid { field, problem }),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_range(
        field: &'static str,
        region_bytes: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(Self::OutOfBounds {
                field,
                offset,
                bytes,
                region_bytes,
            }),
        }
    }
}
