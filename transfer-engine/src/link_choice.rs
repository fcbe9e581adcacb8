//! Which links an engine has, and which one it uses to a peer.

use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

use weft_engine::LinkKind;

use crate::error::TransferError;

/// Which link an engine uses to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkChoice {
    /// Memory between processes of a node, where both are in one network namespace. Else the faster of UDP and TCP: it is
    /// measured when they connect.
    #[default]
    Auto,
    /// As `Auto`, without shared memory.
    Network,
    /// This one. A peer that does not have it is an error. AF_XDP and UDP are one link to the peer: each end may have either.
    Only(LinkKind),
}

impl LinkChoice {
    /// The links that an engine starts.
    pub(crate) fn kinds(self) -> Vec<LinkKind> {
        match self {
            Self::Auto => vec![LinkKind::Shm, LinkKind::Udp, LinkKind::Tcp],
            Self::Network => vec![LinkKind::Udp, LinkKind::Tcp],
            Self::Only(kind) => vec![kind],
        }
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Network => "network",
            Self::Only(kind) => kind.name(),
        })
    }
}

impl FromStr for LinkChoice {
    type Err = TransferError;

    fn from_str(name: &str) -> Result<Self, TransferError> {
        match name {
            "auto" => Ok(Self::Auto),
            "network" => Ok(Self::Network),
            name => match name.parse() {
                Ok(kind) => Ok(Self::Only(kind)),
                Err(_) => Err(TransferError::Invalid {
                    field: "link",
                    problem: "must be auto, network, udp, tcp, shm or xdp",
                }),
            },
        }
    }
}

/// Names the network namespace of the calling thread, among all machines: processes with the same share memory.
pub(crate) fn place() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/thread-self/ns/net")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_parsed_from_what_it_prints() {
        for name in ["auto", "network", "udp", "tcp", "shm", "xdp"] {
            let choice: LinkChoice = name.parse().unwrap();
            assert_eq!(choice.to_string(), name);
        }
        let error = "rdma".parse::<LinkChoice>().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("link must be auto, network, udp, tcp, shm or xdp"),
            "{error}"
        );
    }
}
