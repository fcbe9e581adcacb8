//! Where a NIC queue is reached, whatever its link.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use weft_core::units::{Host, Source};

use crate::datagram;
use crate::error::LinkError;
use crate::ports::PortRange;

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
}

impl LinkAddress {
    /// The NIC's IP address.
    pub fn ip(&self) -> IpAddr {
        match *self {
            Self::Udp { address, .. } => address,
        }
    }

    /// The ports.
    pub fn ports(&self) -> PortRange {
        match *self {
            Self::Udp { ports, .. } => ports,
        }
    }

    /// The same with other ports.
    #[must_use]
    pub fn with_ports(self, ports: PortRange) -> Self {
        match self {
            Self::Udp { address, .. } => Self::Udp { address, ports },
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
        }
    }

    /// How many paths lead from here to `peer`.
    pub fn paths_to(&self, peer: &Self) -> u32 {
        let (Self::Udp { ports, .. }, Self::Udp { ports: others, .. }) = (self, peer);
        ports.paths_to(*others)
    }

    /// Bytes that the link and the layers below it add to each packet, up to IP.
    pub fn header_bytes(&self) -> u16 {
        match self {
            Self::Udp { address, .. } => datagram::header_bytes(*address),
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
}
