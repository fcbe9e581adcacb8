//! Where a NIC queue is reached, whatever its link.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weft_core::path::PATHS_MAX;
use weft_core::units::{Host, Source};

use crate::datagram;
use crate::error::LinkError;
use crate::ports::PortRange;

/// Bytes of a TCP header with the timestamps that Linux sends (RFC 7323).
const TCP_BYTES: u16 = 32;

/// The address of one end of a link: what the other end is told when a connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkAddress {
    /// UDP sockets of one NIC.
    Udp {
        /// The NIC's address, IPv4 or IPv6.
        address: IpAddr,
        /// The ports.
        ports: PortRange,
    },
    /// TCP connections to one NIC.
    Tcp {
        /// The NIC's address, IPv4 or IPv6.
        address: IpAddr,
        /// One port to connect to for each worker: an engine with one worker has one.
        ports: PortRange,
        /// A peer sends it first, and a connection without it is closed. An engine derives it from its node's key.
        token: LinkToken,
    },
}

/// A link by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// `udp`
    Udp,
    /// `tcp`
    Tcp,
}

impl LinkKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

impl FromStr for LinkKind {
    type Err = LinkError;

    fn from_str(name: &str) -> Result<Self, LinkError> {
        let found = [Self::Udp, Self::Tcp].into_iter();
        let mut found = found.filter(|kind| kind.name() == name);
        let unknown = || LinkError::UnknownLink { name: name.into() };
        found.next().ok_or_else(unknown)
    }
}

/// What an end demands of those that connect to it. Peers are told it with the address, and nobody else is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkToken(pub u64);

/// Never prints the token.
impl fmt::Debug for LinkToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkToken(..)")
    }
}

impl LinkAddress {
    /// The NIC's IP address.
    pub fn ip(&self) -> IpAddr {
        match *self {
            Self::Udp { address, .. } | Self::Tcp { address, .. } => address,
        }
    }

    /// The ports.
    pub fn ports(&self) -> PortRange {
        match *self {
            Self::Udp { ports, .. } | Self::Tcp { ports, .. } => ports,
        }
    }

    /// The same with other ports.
    #[must_use]
    pub fn with_ports(self, ports: PortRange) -> Self {
        match self {
            Self::Udp { address, .. } => Self::Udp { address, ports },
            Self::Tcp { address, token, .. } => Self::Tcp {
                address,
                ports,
                token,
            },
        }
    }

    /// Checks that there can be such an address.
    ///
    /// # Errors
    /// The ports are no range.
    pub fn check(&self) -> Result<(), LinkError> {
        Ok(self.ports().check()?)
    }

    /// The machine, by which packets from it are known.
    pub fn host(&self) -> Host {
        Host::from(self.ip())
    }

    /// Whether a packet from `source` says that it was sent here.
    pub fn holds(&self, source: Source) -> bool {
        match *self {
            Self::Udp { ports, .. } => {
                source.host() == self.host() && ports.holds(datagram::port_of(source))
            }
            // The port that a connection comes from says nothing.
            Self::Tcp { .. } => source.host() == self.host(),
        }
    }

    /// How many paths lead from here to `peer`.
    pub fn paths_to(&self, peer: &Self) -> u32 {
        match (self, peer) {
            (Self::Udp { ports, .. }, Self::Udp { ports: others, .. }) => ports.paths_to(*others),
            // There are as many as there are names for them.
            (Self::Tcp { .. }, Self::Tcp { .. }) => PATHS_MAX.into(),
            _ => 0,
        }
    }

    /// Bytes that the link and the layers below it add to each packet, up to IP; over TCP to each segment.
    pub fn header_bytes(&self) -> u16 {
        match *self {
            Self::Udp { address, .. } => datagram::header_bytes(address),
            Self::Tcp { address, .. } => datagram::ip_bytes(address) + TCP_BYTES,
        }
    }

    /// Bytes of packets to which these are added once where an IP packet has `mtu` bytes at most: over TCP the kernel cuts what
    /// it is given. [`u32::MAX`]: each packet has its own.
    pub fn segment_bytes(&self, mtu: u16) -> u32 {
        match self {
            Self::Udp { .. } => u32::MAX,
            Self::Tcp { .. } => mtu.saturating_sub(self.header_bytes()).max(1).into(),
        }
    }

    /// In how many equal parts the address can be shared among workers: this number and its divisors.
    pub fn parts(&self) -> u16 {
        self.ports().count
    }

    /// The `index`-th of `of` equal parts; `of` divides [`Self::parts`].
    #[must_use]
    pub fn part(&self, index: u16, of: u16) -> Self {
        self.with_ports(self.ports().part(index, of))
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { address, ports } => write!(f, "{address} UDP ports {ports}"),
            Self::Tcp { address, ports, .. } => write!(f, "{address} TCP ports {ports}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(address: &str, first: u16, count: u16) -> LinkAddress {
        LinkAddress::Udp {
            address: address.parse().unwrap(),
            ports: PortRange { first, count },
        }
    }

    #[test]
    fn a_source_is_of_the_address_whose_host_and_ports_it_has() {
        for (here, other) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let here = udp(here, 4000, 16);
            let source = |address: &str, port| {
                datagram::source((address.parse::<IpAddr>().unwrap(), port).into(), 3)
            };
            let text = here.host().to_string();
            assert!(here.holds(source(&text, 4000)) && here.holds(source(&text, 4015)));
            assert!(!here.holds(source(&text, 4016)) && !here.holds(source(other, 4000)));
        }
    }

    #[test]
    fn headers_are_larger_over_ipv6() {
        assert_eq!(udp("10.0.0.1", 4000, 1).header_bytes(), 28);
        assert_eq!(udp("fd00::1", 4000, 1).header_bytes(), 48);
    }

    #[test]
    fn a_part_is_an_address_of_its_own() {
        let whole = udp("fd00::1", 4000, 16);
        assert_eq!(whole.part(3, 4), udp("fd00::1", 4012, 4));
        assert_eq!(whole.paths_to(&whole.part(0, 2)), 128);
        assert_eq!(whole.to_string(), "fd00::1 UDP ports 4000-4015");
    }

    fn tcp() -> LinkAddress {
        let whole = udp("fd00::1", 4000, 16);
        LinkAddress::Tcp {
            address: whole.ip(),
            ports: whole.ports(),
            token: LinkToken(72_623_859_790_382_856),
        }
    }

    #[test]
    fn a_segment_is_what_the_mtu_leaves_of_a_stream() {
        assert_eq!(tcp().segment_bytes(9000), 9000 - 40 - 32);
        assert_eq!(udp("fd00::1", 4000, 1).segment_bytes(9000), u32::MAX);
    }

    #[test]
    fn no_token_is_printed() {
        let tcp = tcp();
        let text = format!("{tcp} {tcp:?}");
        assert!(text.starts_with("fd00::1 TCP ports 4000-4015 Tcp {") && !text.contains("726"));
    }
}
