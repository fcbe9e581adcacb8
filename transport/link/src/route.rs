//! What the kernel's route to a peer carries.

use std::io;
use std::net::{IpAddr, UdpSocket};

use rustix::net::sockopt;

use crate::address::LinkAddress;
use crate::error::LinkError;

/// Discard: the port that the probe's socket is connected to. Connecting UDP sends nothing.
const NO_PORT: u16 = 9;

/// Asks the kernel about routes from one address, in the network namespace in which it was made.
#[derive(Debug)]
pub struct RouteProbe {
    address: IpAddr,
    socket: UdpSocket,
}

impl RouteProbe {
    /// A probe for routes from a link's address.
    ///
    /// # Errors
    /// The address is not here, or the system refuses the socket.
    pub fn bind(address: &LinkAddress) -> Result<Self, LinkError> {
        let address = address.ip();
        let socket = UdpSocket::bind((address, 0)).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrNotAvailable {
                LinkError::AddressNotHere { address }
            } else {
                LinkError::System {
                    call: "bind",
                    address,
                    source,
                }
            }
        })?;
        Ok(Self { address, socket })
    }

    /// The largest IP packet that the route to `peer` carries, in bytes. One call changes the socket's
    /// destination: callers on several threads keep the probe under a lock.
    ///
    /// # Errors
    /// There is no route.
    pub fn mtu(&mut self, peer: &LinkAddress) -> Result<u32, LinkError> {
        let peer = peer.ip();
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Err(LinkError::OtherIpVersion {
                address: self.address,
                peer,
            });
        }
        let ask = || -> io::Result<u32> {
            self.socket.connect((peer, NO_PORT))?;
            let mtu = match peer {
                IpAddr::V4(_) => sockopt::ip_mtu(&self.socket),
                IpAddr::V6(_) => sockopt::ipv6_mtu(&self.socket),
            };
            Ok(mtu?)
        };
        ask().map_err(|source| LinkError::NoRoute {
            address: self.address,
            peer,
            source,
        })
    }

    /// Checks that IP packets of `mtu` bytes fit the route to `peer`.
    ///
    /// # Errors
    /// There is no route, or it carries only smaller packets.
    pub fn check_mtu(&mut self, peer: &LinkAddress, mtu: u16) -> Result<(), LinkError> {
        let route_mtu = self.mtu(peer)?;
        let peer = peer.ip();
        if u32::from(mtu) > route_mtu {
            return Err(LinkError::MtuTooBig {
                address: self.address,
                peer,
                mtu,
                route_mtu,
            });
        }
        Ok(())
    }
}
