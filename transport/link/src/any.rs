//! Whichever link a configuration names: each call is one `match`.

use std::io;

use mio::Registry;
use mio::event::Event;
use weft_core::units::{PathId, Time};

use crate::address::LinkAddress;
use crate::error::{LinkError, Refusal};
use crate::link::{Capabilities, Counters, Destination, Handler, Link, PathChange, Sent};
use crate::shm::{ShmConfig, ShmLink, ShmPeer};
use crate::tcp::{TcpConfig, TcpLink, TcpPeer};
use crate::udp::{SocketBuffers, UdpConfig, UdpLink, UdpPeer};
use crate::xdp::XdpLink;

/// What a link is opened with.
#[derive(Debug, Clone)]
pub enum AnyConfig {
    /// UDP sockets.
    Udp(UdpConfig),
    /// TCP connections.
    Tcp(TcpConfig),
    /// Shared memory.
    Shm(ShmConfig),
    /// AF_XDP beside UDP sockets.
    Xdp(UdpConfig),
}

/// A link of any kind.
#[expect(clippy::large_enum_variant, reason = "one in a worker")]
pub enum AnyLink {
    /// UDP sockets.
    Udp(UdpLink),
    /// TCP connections.
    Tcp(TcpLink),
    /// Shared memory.
    Shm(ShmLink),
    /// AF_XDP beside UDP sockets.
    Xdp(XdpLink),
}

/// What such a link knows of another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnyPeer {
    /// Over UDP, by either link.
    Udp(UdpPeer),
    /// Over TCP.
    Tcp(TcpPeer),
    /// Over shared memory.
    Shm(ShmPeer),
}

macro_rules! each {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            AnyLink::Udp($link) => $call,
            AnyLink::Tcp($link) => $call,
            AnyLink::Shm($link) => $call,
            AnyLink::Xdp($link) => $call,
        }
    };
}

impl AnyLink {
    /// Changes the differentiated services code point of everything sent from now on, 0 to 63.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn set_dscp(&mut self, dscp: u8) -> Result<(), LinkError> {
        each!(self, link => link.set_dscp(dscp))
    }

    /// The buffers that the kernel granted to the sockets, where the link has asked for any.
    pub fn granted_buffers(&self) -> Option<SocketBuffers> {
        match self {
            Self::Udp(link) => Some(link.granted_buffers()),
            Self::Xdp(link) => Some(link.granted_buffers()),
            // The kernel sizes them as it learns the network, or there are none.
            Self::Tcp(_) | Self::Shm(_) => None,
        }
    }
}

impl Link for AnyLink {
    type Config = AnyConfig;
    type Peer = AnyPeer;

    fn open(config: AnyConfig) -> Result<Self, LinkError> {
        Ok(match config {
            AnyConfig::Udp(config) => Self::Udp(UdpLink::open(config)?),
            AnyConfig::Tcp(config) => Self::Tcp(TcpLink::open(config)?),
            AnyConfig::Shm(config) => Self::Shm(ShmLink::open(config)?),
            AnyConfig::Xdp(config) => Self::Xdp(XdpLink::open(config)?),
        })
    }

    fn address(&self) -> LinkAddress {
        each!(self, link => link.address())
    }

    fn capabilities(&self) -> Capabilities {
        each!(self, link => link.capabilities())
    }

    fn counters(&self) -> &Counters {
        each!(self, link => link.counters())
    }

    fn peer(&self, address: &LinkAddress) -> Result<AnyPeer, LinkError> {
        Ok(match self {
            Self::Udp(link) => AnyPeer::Udp(link.peer(address)?),
            Self::Tcp(link) => AnyPeer::Tcp(link.peer(address)?),
            Self::Shm(link) => AnyPeer::Shm(link.peer(address)?),
            Self::Xdp(link) => AnyPeer::Udp(link.peer(address)?),
        })
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        each!(self, link => link.register(registry))
    }

    fn handle_event(&mut self, event: &Event) {
        each!(self, link => link.handle_event(event));
    }

    fn is_readable(&self) -> bool {
        each!(self, link => link.is_readable())
    }

    fn shows_arrivals(&self) -> bool {
        each!(self, link => link.shows_arrivals())
    }

    fn prepare_to_sleep(&mut self) -> bool {
        each!(self, link => link.prepare_to_sleep())
    }

    fn receive(&mut self, handler: &mut impl Handler) -> usize {
        each!(self, link => link.receive(handler))
    }

    fn can_send(&self) -> bool {
        each!(self, link => link.can_send())
    }

    #[inline]
    fn send_chunk(
        &mut self,
        now: Time,
        peer: &AnyPeer,
        path: PathId,
        packets: u32,
        seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent {
        match (self, peer) {
            (Self::Udp(link), AnyPeer::Udp(peer)) => {
                link.send_chunk(now, peer, path, packets, seal)
            }
            (Self::Tcp(link), AnyPeer::Tcp(peer)) => {
                link.send_chunk(now, peer, path, packets, seal)
            }
            (Self::Shm(link), AnyPeer::Shm(peer)) => {
                link.send_chunk(now, peer, path, packets, seal)
            }
            (Self::Xdp(link), AnyPeer::Udp(peer)) => {
                link.send_chunk(now, peer, path, packets, seal)
            }
            // A peer is made by the link that it is used with.
            _ => Sent::Dropped(Refusal::Unreachable),
        }
    }

    fn send_gathered(&mut self) {
        each!(self, link => link.send_gathered());
    }

    fn send_control(&mut self, to: Destination<'_, AnyPeer>, packet: &[u8]) {
        use Destination::{Path, Reverse, Source};
        match (self, to) {
            (Self::Udp(link), Source(source)) => link.send_control(Source(source), packet),
            (Self::Udp(link), Path(AnyPeer::Udp(peer), path)) => {
                link.send_control(Path(peer, path), packet);
            }
            (Self::Udp(link), Reverse(AnyPeer::Udp(peer), path)) => {
                link.send_control(Reverse(peer, path), packet);
            }
            (Self::Tcp(link), Source(source)) => link.send_control(Source(source), packet),
            (Self::Tcp(link), Path(AnyPeer::Tcp(peer), path)) => {
                link.send_control(Path(peer, path), packet);
            }
            (Self::Tcp(link), Reverse(AnyPeer::Tcp(peer), path)) => {
                link.send_control(Reverse(peer, path), packet);
            }
            (Self::Shm(link), Source(source)) => link.send_control(Source(source), packet),
            (Self::Shm(link), Path(AnyPeer::Shm(peer), path)) => {
                link.send_control(Path(peer, path), packet);
            }
            (Self::Shm(link), Reverse(AnyPeer::Shm(peer), path)) => {
                link.send_control(Reverse(peer, path), packet);
            }
            (Self::Xdp(link), Source(source)) => link.send_control(Source(source), packet),
            (Self::Xdp(link), Path(AnyPeer::Udp(peer), path)) => {
                link.send_control(Path(peer, path), packet);
            }
            (Self::Xdp(link), Reverse(AnyPeer::Udp(peer), path)) => {
                link.send_control(Reverse(peer, path), packet);
            }
            // As before.
            (Self::Udp(_) | Self::Tcp(_) | Self::Shm(_) | Self::Xdp(_), _) => {}
        }
    }

    fn flush(&mut self, now: Time) -> bool {
        each!(self, link => link.flush(now))
    }

    fn flush_at(&self) -> Option<Time> {
        each!(self, link => link.flush_at())
    }

    fn poll_path(&mut self) -> Option<PathChange> {
        each!(self, link => link.poll_path())
    }
}
