//! A socket to try with what of a size reaches another machine, and what the kernel offers sockets.

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{UdpSockRef, UdpSocketState};

use crate::LinkError;
use crate::udp::{SocketBuffers, grant_buffers};

/// A UDP socket of any free port whose packets are never fragmented, whatever is known of the way.
#[derive(Debug)]
pub struct ProbeSocket {
    socket: UdpSocket,
    offers: Offers,
}

/// What the kernel does for a UDP socket of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// It cuts one send into packets (UDP GSO).
    pub gso: bool,
    /// It merges received packets (UDP GRO).
    pub gro: bool,
    /// The buffers that a socket is asked for …
    pub wanted: SocketBuffers,
    /// … and what was granted.
    pub granted: SocketBuffers,
}

impl ProbeSocket {
    /// Opens it at an address of this machine; it does not block.
    ///
    /// # Errors
    /// The address is not here, or the system refuses the socket.
    pub fn open(address: IpAddr) -> Result<Self, LinkError> {
        let failed = |call: &'static str| {
            move |source: io::Error| LinkError::System {
                call,
                address,
                source,
            }
        };
        let socket = UdpSocket::bind((address, 0)).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrNotAvailable {
                LinkError::AddressNotHere { address }
            } else {
                failed("bind")(source)
            }
        })?;
        // Sets DF without heeding what is known of the path's MTU, and asks for GRO.
        let state =
            UdpSocketState::new(UdpSockRef::from(&socket)).map_err(failed("UDP socket set-up"))?;
        let segment = 1200;
        let gso = setsockopt(&socket, sockopt::UdpGsoSegment, &segment).is_ok();
        if gso {
            // Probes are single packets.
            let _ = setsockopt(&socket, sockopt::UdpGsoSegment, &0);
        }
        let wanted = SocketBuffers::default();
        let granted = grant_buffers(&socket, wanted).map_err(failed("setsockopt SO_RCVBUF"))?;
        let gro = state.gro_segments() > 1;
        let offers = Offers {
            gso,
            gro,
            wanted,
            granted,
        };
        Ok(Self { socket, offers })
    }

    /// What the kernel does for it.
    pub fn offers(&self) -> Offers {
        self.offers
    }

    /// The socket itself.
    pub fn into_socket(self) -> UdpSocket {
        self.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn what_does_not_fit_the_interface_is_refused_and_not_cut() {
        for (address, too_long) in [
            // Loopback carries 65,536 bytes, an IPv4 packet has 65,535 at most.
            (IpAddr::V4(Ipv4Addr::LOCALHOST), 65_508),
            (IpAddr::V6(Ipv6Addr::LOCALHOST), 65_536 - 48 + 1),
        ] {
            let probe = ProbeSocket::open(address).unwrap();
            assert!(probe.offers().granted.receive > 0);
            let socket = probe.into_socket();
            let to = socket.local_addr().unwrap();
            let error = socket.send_to(&vec![0; too_long], to).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(nix::libc::EMSGSIZE), "{address}");
            assert_eq!(socket.send_to(&[0; 1472], to).unwrap(), 1472);
        }
    }

    #[test]
    fn an_address_of_another_machine_is_named() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let error = ProbeSocket::open(address.parse().unwrap()).unwrap_err();
            assert!(matches!(error, LinkError::AddressNotHere { .. }), "{error}");
        }
    }
}
