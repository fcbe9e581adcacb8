//! What the kernel's route to a peer carries.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use nix::sys::socket::{getsockopt, sockopt};

use crate::error::LinkError;

/// Discard: the port that the probe's socket is connected to. Connecting UDP sends nothing.
const NO_PORT: u16 = 9;

/// Asks the kernel about routes from one address, in the network namespace in which it was made.
#[derive(Debug)]
pub struct RouteProbe {
    address: Ipv4Addr,
    socket: UdpSocket,
}

impl RouteProbe {
    /// A probe for routes from `address`.
    pub fn bind(address: Ipv4Addr) -> Result<Self, LinkError> {
        let socket = UdpSocket::bind(SocketAddrV4::new(address, 0)).map_err(|source| {
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

    /// The largest IP packet that the route to `peer` carries, in bytes. Takes turns with nobody:
    /// callers on several threads keep it under a lock.
    pub fn mtu(&mut self, peer: Ipv4Addr) -> Result<u32, LinkError> {
        let ask = || -> io::Result<u32> {
            self.socket.connect(SocketAddrV4::new(peer, NO_PORT))?;
            let mtu = getsockopt(&self.socket, sockopt::IpMtu)?;
            Ok(u32::try_from(mtu).unwrap_or(0))
        };
        ask().map_err(|source| LinkError::NoRoute {
            address: self.address,
            peer,
            source,
        })
    }

    /// Checks that IP packets of `mtu` bytes fit the route to `peer`.
    pub fn check_mtu(&mut self, peer: Ipv4Addr, mtu: u16) -> Result<(), LinkError> {
        let route_mtu = self.mtu(peer)?;
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
