//! What the kernel's route to a peer carries.

use std::io;
use std::net::{IpAddr, UdpSocket};

use rustix::net::sockopt;
use socket2::SockRef;

use crate::address::LinkAddress;
use crate::error::LinkError;
use crate::nics::bind_device;

/// Discard: the port that the probe's socket is connected to. Connecting UDP sends nothing.
const NO_PORT: u16 = 9;

/// Asks the kernel about routes from one address, in the network namespace in which it was made.
#[derive(Debug)]
pub struct RouteProbe {
    /// Of each NIC.
    sockets: Vec<(IpAddr, UdpSocket)>,
}

impl RouteProbe {
    /// A probe for routes from a link's NICs.
    ///
    /// # Errors
    /// An address is not here, or the system refuses the socket.
    pub fn bind(address: &LinkAddress) -> Result<Self, LinkError> {
        let nics = address.nics();
        let bind = |(&address, device): (&IpAddr, Option<String>)| {
            let failed = |call: &'static str| {
                move |source: io::Error| LinkError::System {
                    call,
                    address,
                    source,
                }
            };
            let socket = UdpSocket::bind((address, 0)).map_err(|source| match source.kind() {
                io::ErrorKind::AddrNotAvailable => LinkError::AddressNotHere { address },
                _ => failed("bind")(source),
            })?;
            let bound = bind_device(&SockRef::from(&socket), device.as_deref());
            bound.map_err(failed("setsockopt SO_BINDTODEVICE"))?;
            Ok::<_, LinkError>((address, socket))
        };
        let sockets = nics.iter().zip(nics.devices()).map(bind);
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { sockets })
    }

    /// The largest IP packet that the routes to `peer` carry, in bytes, of all its NICs that there is a route to. One call
    /// changes the destination of sockets: callers on several threads keep the probe under a lock.
    ///
    /// # Errors
    /// There is no route.
    pub fn mtu(&mut self, peer: &LinkAddress) -> Result<u32, LinkError> {
        self.narrowest(peer).map(|(mtu, ..)| mtu)
    }

    /// The same with the two NICs that it is between.
    fn narrowest(&mut self, peer: &LinkAddress) -> Result<(u32, IpAddr, IpAddr), LinkError> {
        let (mut least, mut missing) = (None::<(u32, IpAddr, IpAddr)>, None);
        for (address, socket) in &self.sockets {
            let address = *address;
            for &peer in peer.nics().iter() {
                if peer.is_ipv4() != address.is_ipv4() {
                    return Err(LinkError::OtherIpVersion { address, peer });
                }
                match route_mtu(socket, peer) {
                    Ok(mtu) if least.is_some_and(|(least, ..)| least <= mtu) => {}
                    Ok(mtu) => least = Some((mtu, address, peer)),
                    Err(source) => missing = Some((address, peer, source)),
                }
            }
        }
        match (least, missing) {
            (None, Some((address, peer, source))) => Err(LinkError::NoRoute {
                address,
                peer,
                source,
            }),
            // There are NICs at both ends.
            (least, _) => Ok(least.unwrap_or((u32::MAX, peer.ip(), peer.ip()))),
        }
    }

    /// Checks that IP packets of `mtu` bytes fit the routes to `peer`.
    ///
    /// # Errors
    /// There is no route, or one carries only smaller packets.
    pub fn check_mtu(&mut self, peer: &LinkAddress, mtu: u16) -> Result<(), LinkError> {
        let (route_mtu, address, peer) = self.narrowest(peer)?;
        if u32::from(mtu) > route_mtu {
            return Err(LinkError::MtuTooBig {
                address,
                peer,
                mtu,
                route_mtu,
            });
        }
        Ok(())
    }
}

fn route_mtu(socket: &UdpSocket, peer: IpAddr) -> io::Result<u32> {
    socket.connect((peer, NO_PORT))?;
    let mtu = match peer {
        IpAddr::V4(_) => sockopt::ip_mtu(socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(socket),
    };
    Ok(mtu?)
}
