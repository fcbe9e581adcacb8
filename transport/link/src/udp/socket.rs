//! One socket of the range: its options, what the kernel granted, and whether it does GSO.

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::SockRef;

use super::UdpConfig;
use crate::error::LinkError;
use crate::nics::bind_device;

/// The ECN field's ECT(0): "this transport reacts to congestion marks" (RFC 3168, section 5). The field has
/// the same place in the traffic class of IPv6.
const ECT_0: u8 = 0b10;

/// Bytes that a socket's two buffers hold, as the kernel counts them (payload and its overhead).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketBuffers {
    /// Received, not yet read.
    pub receive: usize,
    /// Sent, not yet taken by the device.
    pub send: usize,
}

impl Default for SocketBuffers {
    /// 8 MiB hold every window of this transport (256 chunks of 64 KiB on 16 ports, twice that for
    /// the kernel's overhead) while a worker is off its core; 1 MiB of unsent data is 8 ms of
    /// 1 Gbit/s and enough for 100 Gbit/s at the wake-up latency of a worker.
    fn default() -> Self {
        Self {
            receive: 8 << 20,
            send: 1 << 20,
        }
    }
}

/// A bound socket.
pub(super) struct Port {
    pub(super) socket: UdpSocket,
    pub(super) address: IpAddr,
    pub(super) state: UdpSocketState,
    pub(super) buffers: SocketBuffers,
    /// Whether a send may hold many datagrams. False once the kernel or the device has refused.
    pub(super) gso: bool,
    /// Bytes of a datagram that the kernel cuts a send into; 0: it does not cut.
    segment: usize,
    /// It is among the ports that may hold something received.
    pub(super) readable: bool,
}

impl Port {
    /// Before a send of `bytes` bytes in datagrams of `segment`, which the kernel cuts. A socket option and
    /// no control message: chunks of one size, which are nearly all, take no further call.
    pub(super) fn segment_by(&mut self, segment: usize, bytes: usize) {
        let cuts_wrong = self.segment != 0 && bytes > self.segment;
        if self.segment != segment && (bytes > segment || cuts_wrong) {
            self.set_segment(segment);
        }
    }

    /// From now on the kernel cuts nothing.
    pub(super) fn stop_segmenting(&mut self) {
        self.set_segment(0);
    }

    fn set_segment(&mut self, segment: usize) {
        // What the kernel refuses here it refuses in the send, which says so.
        if setsockopt(&self.socket, sockopt::UdpGsoSegment, &(segment as i32)).is_ok() {
            self.segment = segment;
        }
    }
}

/// Binds and sets up the port of the range with this index, at the device of its NIC where one is given.
pub(super) fn bind_port(
    config: &UdpConfig,
    index: usize,
    device: Option<&str>,
) -> Result<Port, LinkError> {
    let (address, port) = (config.nics.of(index), config.ports.port(index));
    let failed = |call: &'static str| {
        move |source: io::Error| LinkError::System {
            call,
            address,
            source,
        }
    };
    let socket = UdpSocket::bind((address, port)).map_err(|source| {
        let ports = config.ports;
        match source.kind() {
            io::ErrorKind::AddrInUse => LinkError::PortTaken {
                address,
                port,
                ports,
            },
            io::ErrorKind::AddrNotAvailable => LinkError::AddressNotHere { address },
            io::ErrorKind::PermissionDenied => LinkError::NotPermitted { address, ports },
            _ => LinkError::System {
                call: "bind",
                address,
                source,
            },
        }
    })?;
    bind_device(&SockRef::from(&socket), device).map_err(failed("setsockopt SO_BINDTODEVICE"))?;
    let state =
        UdpSocketState::new(UdpSockRef::from(&socket)).map_err(failed("UDP socket set-up"))?;
    // quinn-udp 0.6.3 has room for 96 bytes of control messages and switches the receive timestamp
    // on, which makes 112 of them on a GRO run: the ECN field would be cut off without a word.
    setsockopt(&socket, sockopt::ReceiveTimestampns, &false)
        .map_err(|errno| failed("setsockopt SO_TIMESTAMPNS")(errno.into()))?;
    set_dscp(&socket, address, config.dscp)?;
    // A kernel older than 4.18 has no UDP GSO: every datagram is its own send.
    let gso = setsockopt(
        &socket,
        sockopt::UdpGsoSegment,
        &i32::from(config.datagram_bytes),
    )
    .is_ok();
    let buffers = grant_buffers(&socket, config.buffers).map_err(failed("setsockopt SO_RCVBUF"))?;
    Ok(Port {
        socket,
        address,
        state,
        buffers,
        gso,
        segment: if gso {
            usize::from(config.datagram_bytes)
        } else {
            0
        },
        readable: true,
    })
}

/// A code point with ECN-capable transport.
pub(crate) fn traffic_class(dscp: u8) -> u8 {
    dscp << 2 | ECT_0
}

/// Sets the class of everything that the socket sends, with ECN-capable transport (RFC 3168, ECT(0)).
pub(super) fn set_dscp(socket: &UdpSocket, address: IpAddr, dscp: u8) -> Result<(), LinkError> {
    let failed = |call: &'static str| {
        move |source: io::Error| LinkError::System {
            call,
            address,
            source,
        }
    };
    let class = traffic_class(dscp);
    match address {
        IpAddr::V4(_) => SockRef::from(socket)
            .set_tos_v4(class.into())
            .map_err(failed("setsockopt IP_TOS")),
        IpAddr::V6(_) => setsockopt(socket, sockopt::Ipv6TClass, &class.into())
            .map_err(|errno| failed("setsockopt IPV6_TCLASS")(errno.into())),
    }
}

/// Asks for the buffers with the privilege, then without it, and says what the kernel granted.
/// (The kernel doubles what is asked, for its own overhead.)
pub(crate) fn grant_buffers(
    socket: &UdpSocket,
    wanted: SocketBuffers,
) -> io::Result<SocketBuffers> {
    let options = SockRef::from(socket);
    if setsockopt(socket, sockopt::RcvBufForce, &(wanted.receive / 2)).is_err() {
        options.set_recv_buffer_size(wanted.receive / 2)?;
    }
    if setsockopt(socket, sockopt::SndBufForce, &(wanted.send / 2)).is_err() {
        options.set_send_buffer_size(wanted.send / 2)?;
    }
    Ok(SocketBuffers {
        receive: options.recv_buffer_size()?,
        send: options.send_buffer_size()?,
    })
}
