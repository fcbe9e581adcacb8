//! Where a NIC queue is reached, whatever its link.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weft_core::path::PATHS_MAX;
use weft_core::units::{Host, PathId, Source};

use crate::datagram;
use crate::error::LinkError;
use crate::nics::NicAddresses;
use crate::ports::{PortPair, PortRange};

/// Bytes of a TCP header with the timestamps that Linux sends (RFC 7323).
const TCP_BYTES: u16 = 32;

/// The address of one end of a link: what the other end is told when a connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkAddress {
    /// UDP sockets.
    Udp {
        /// The addresses of the NICs.
        nics: NicAddresses,
        /// The ports: the `i`-th is one of the `i`-th NIC, modulo their number.
        ports: PortRange,
    },
    /// TCP connections.
    Tcp {
        /// The addresses of the NICs.
        nics: NicAddresses,
        /// One port to connect to for each worker: an engine with one worker has one.
        ports: PortRange,
        /// A peer sends it first, and a connection without it is closed. An engine derives it from its node's key.
        token: LinkToken,
    },
    /// Memory shared with other processes of the node, in one network namespace. Address and ports only name the end there, and
    /// nothing of the network is used: an engine takes those of its NIC.
    Shm {
        /// An address of the node.
        address: IpAddr,
        /// One name to connect to for each worker: an engine with one worker has one.
        ports: PortRange,
        /// As over TCP.
        token: LinkToken,
    },
}

/// A link by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// `udp`
    Udp,
    /// `tcp`
    Tcp,
    /// `shm`
    Shm,
    /// `xdp`: the datagrams of `udp` through AF_XDP. Both have addresses of one kind.
    Xdp,
}

impl LinkKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Xdp => "xdp",
        }
    }

    /// What peers see of it: AF_XDP sends and receives the datagrams of UDP.
    pub fn wire(self) -> Self {
        match self {
            Self::Xdp => Self::Udp,
            other => other,
        }
    }
}

impl FromStr for LinkKind {
    type Err = LinkError;

    fn from_str(name: &str) -> Result<Self, LinkError> {
        let found = [Self::Udp, Self::Tcp, Self::Shm, Self::Xdp].into_iter();
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
    /// The address of an end of a link of this kind. UDP has no token.
    pub fn of(
        kind: LinkKind,
        nics: impl Into<NicAddresses>,
        ports: PortRange,
        token: LinkToken,
    ) -> Self {
        let nics = nics.into();
        match kind {
            LinkKind::Udp | LinkKind::Xdp => Self::Udp { nics, ports },
            LinkKind::Tcp => Self::Tcp { nics, ports, token },
            LinkKind::Shm => Self::Shm {
                address: nics.first(),
                ports,
                token,
            },
        }
    }

    /// Which link it is of: that of AF_XDP has addresses of UDP.
    pub fn kind(&self) -> LinkKind {
        match self {
            Self::Udp { .. } => LinkKind::Udp,
            Self::Tcp { .. } => LinkKind::Tcp,
            Self::Shm { .. } => LinkKind::Shm,
        }
    }

    /// The NICs' IP addresses.
    pub fn nics(&self) -> NicAddresses {
        match *self {
            Self::Udp { nics, .. } | Self::Tcp { nics, .. } => nics,
            Self::Shm { address, .. } => address.into(),
        }
    }

    /// The first NIC's IP address, which names the machine.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Udp { nics, .. } | Self::Tcp { nics, .. } => nics.first(),
            Self::Shm { address, .. } => *address,
        }
    }

    /// The two NICs that a path from here to `peer` is between: here, and there.
    pub fn nics_of_path(&self, peer: &Self, path: PathId) -> (IpAddr, IpAddr) {
        let (here, there) = (self.nics(), peer.nics());
        let pair = self.pair_of_path(peer, path);
        (here.of(pair.local), there.of(pair.remote))
    }

    /// A number for the NICs that a path from here to `peer` is between.
    pub fn nic_pair(&self, peer: &Self, path: PathId) -> u8 {
        let (here, there) = (self.nics().len(), peer.nics().len());
        let pair = self.pair_of_path(peer, path);
        (pair.local % here * there + pair.remote % there) as u8
    }

    /// Over UDP its ports, otherwise the places of its NICs.
    fn pair_of_path(&self, peer: &Self, path: PathId) -> PortPair {
        let counts = match (self, peer) {
            (Self::Udp { ports, .. }, Self::Udp { ports: others, .. }) => {
                (ports.count, others.count)
            }
            _ => (self.nics().len() as u16, peer.nics().len() as u16),
        };
        PortPair::of_path(path.0, counts.0, counts.1)
    }

    /// The ports.
    pub fn ports(&self) -> PortRange {
        match *self {
            Self::Udp { ports, .. } | Self::Tcp { ports, .. } | Self::Shm { ports, .. } => ports,
        }
    }

    /// What a peer has to know, where it connects.
    pub fn token(&self) -> Option<LinkToken> {
        match *self {
            Self::Udp { .. } => None,
            Self::Tcp { token, .. } | Self::Shm { token, .. } => Some(token),
        }
    }

    /// The same with other ports.
    #[must_use]
    pub fn with_ports(self, ports: PortRange) -> Self {
        let token = self.token().unwrap_or(LinkToken(0));
        Self::of(self.kind(), self.nics(), ports, token)
    }

    /// The same with one NIC.
    #[must_use]
    pub fn with_nic(self, address: IpAddr) -> Self {
        let token = self.token().unwrap_or(LinkToken(0));
        Self::of(self.kind(), address, self.ports(), token)
    }

    /// Checks that there can be such an address.
    ///
    /// # Errors
    /// The ports are no range, or fewer than the NICs.
    pub fn check(&self) -> Result<(), LinkError> {
        let ports = self.ports();
        ports.check()?;
        match self {
            Self::Udp { nics, .. } if nics.len() > ports.count.into() => {
                Err(LinkError::TooFewPorts {
                    nics: nics.len(),
                    ports: ports.count,
                })
            }
            _ => Ok(()),
        }
    }

    /// The machine, by its first NIC.
    pub fn host(&self) -> Host {
        Host::from(self.ip())
    }

    /// The machine, by each of its NICs: by one of these packets from it are known.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        Vec::from(self.nics()).into_iter().map(Host::from)
    }

    /// Whether a packet from `source` says that it was sent here.
    pub fn holds(&self, source: Source) -> bool {
        let is_here = self.hosts().any(|host| host == source.host());
        match *self {
            Self::Udp { ports, .. } => is_here && ports.holds(datagram::port_of(source)),
            // The port that a connection comes from says nothing.
            Self::Tcp { .. } | Self::Shm { .. } => is_here,
        }
    }

    /// How many paths lead from here to `peer`.
    pub fn paths_to(&self, peer: &Self) -> u32 {
        match (self, peer) {
            (Self::Udp { ports, .. }, Self::Udp { ports: others, .. }) => ports.paths_to(*others),
            // There are as many as there are names for them.
            (Self::Tcp { .. }, Self::Tcp { .. }) | (Self::Shm { .. }, Self::Shm { .. }) => {
                PATHS_MAX.into()
            }
            _ => 0,
        }
    }

    /// Bytes that the link and the layers below it add to each packet, up to IP; over TCP to each segment. Shared memory has
    /// no such layers.
    pub fn header_bytes(&self) -> u16 {
        match *self {
            Self::Udp { .. } => datagram::header_bytes(self.ip()),
            Self::Tcp { .. } => datagram::ip_bytes(self.ip()) + TCP_BYTES,
            Self::Shm { .. } => 0,
        }
    }

    /// Bytes of packets to which these are added once where an IP packet has `mtu` bytes at most: over TCP the kernel cuts what
    /// it is given. [`u32::MAX`]: each packet has its own.
    pub fn segment_bytes(&self, mtu: u16) -> u32 {
        match self {
            Self::Udp { .. } | Self::Shm { .. } => u32::MAX,
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
            Self::Udp { nics, ports } => write!(f, "{nics} UDP ports {ports}"),
            Self::Tcp { nics, ports, .. } => write!(f, "{nics} TCP ports {ports}"),
            Self::Shm { address, ports, .. } => write!(f, "{address} shm ports {ports}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(address: &str, first: u16, count: u16) -> LinkAddress {
        LinkAddress::Udp {
            nics: address.parse::<IpAddr>().unwrap().into(),
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
            nics: whole.nics(),
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
        let token = tcp.token().unwrap();
        let shm = LinkAddress::of(LinkKind::Shm, tcp.ip(), tcp.ports(), token);
        for (address, start) in [
            (tcp, "fd00::1 TCP ports 4000-4015 Tcp {"),
            (shm, "fd00::1 shm ports 4000-4015 Shm {"),
        ] {
            let text = format!("{address} {address:?}");
            assert!(text.starts_with(start) && !text.contains("726"), "{text}");
        }
    }

    #[test]
    fn an_address_with_other_ports_stays_one_of_its_link() {
        let ports = PortRange { first: 9, count: 2 };
        for kind in [LinkKind::Udp, LinkKind::Tcp, LinkKind::Shm] {
            let token = LinkToken(7);
            let here: IpAddr = "10.0.0.1".parse().unwrap();
            let address = LinkAddress::of(kind, here, ports, token);
            let part = address.part(1, 2);
            assert_eq!(
                (part.kind(), part.token()),
                (kind, address.token()),
                "{part}"
            );
            assert_eq!(
                part.ports(),
                PortRange {
                    first: 10,
                    count: 1
                }
            );
        }
    }
}
