//! UDP: a socket for each port of a range, GSO out, batched system calls with GRO in.

mod frame;
mod receive;
mod socket;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrIn, SockaddrIn6, SockaddrLike, sendmsg};
use weft_core::units::{Nanos, PathId, Source, Time};

use crate::address::LinkAddress;
use crate::datagram::{IPV4_BYTES, UDP_BYTES, port_of, source};
use crate::error::{LinkError, Refusal};
use crate::link::{
    Capabilities, Counters, Destination, Handler, Link, PathChange, PathCondition, Sent,
};
use crate::local::{LocalLink, LocalSwitch, Run};
use crate::nics::NicAddresses;
use crate::ports::{PortPair, PortRange};
use frame::{FRAME_BYTES, Frame};
use receive::{BATCH_RUNS, Batch, ReceiveBuffers};
pub use socket::SocketBuffers;
use socket::{Port, bind_port, set_dscp};
pub(crate) use socket::{grant_buffers, traffic_class};

/// Most bytes of one UDP send, all its datagrams together: an IPv4 packet has 65,535. (IPv6 carries 20 more;
/// one limit for both, since the two ends agree on the size of a chunk.)
const SEND_BYTES_MAX: usize = 65_535 - (IPV4_BYTES + UDP_BYTES) as usize;

/// When the kernel had no memory for a send it does not say when it has: tried again after this.
const RETRY_AFTER: Nanos = Nanos::from_millis(1);

/// One of several NICs whose send buffer stays full for this long is left to its own: 8 ms is what a full buffer takes at
/// 1 Gbit/s.
const KEPT_MAX: Nanos = Nanos::from_millis(10);

/// What a UDP link is opened with.
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// The addresses of the NICs.
    pub nics: NicAddresses,
    /// The ports to hold: the `i`-th on the `i`-th NIC, modulo their number.
    pub ports: PortRange,
    /// Bytes of a full datagram (UDP payload): header, a full packet's payload, trailer.
    pub datagram_bytes: u16,
    /// Differentiated services code point of everything sent, 0 to 63.
    pub dscp: u8,
    /// Bytes that each socket's buffers should hold.
    pub buffers: SocketBuffers,
    /// Links of this process that are reached through memory.
    pub local_switch: Option<Arc<LocalSwitch>>,
}

/// Another machine's NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpPeer {
    nics: NicAddresses,
    ports: PortRange,
}

impl UdpPeer {
    pub(crate) fn port(&self, index: usize) -> SocketAddr {
        SocketAddr::new(self.nics.of(index), self.ports.port(index))
    }

    pub(crate) fn ports(&self) -> PortRange {
        self.ports
    }

    fn link_address(&self) -> LinkAddress {
        let Self { nics, ports } = *self;
        LinkAddress::Udp { nics, ports }
    }
}

/// The sockets of one port range, of one NIC or of several. Owned by one worker.
///
/// A chunk that a socket takes only in part, or not now, stays in the frame, and no other chunk is sent until it
/// has left. A full send buffer means that the NIC is behind, and a connection that sprays over all ports would meet the
/// same port, or another one of that NIC, soon. Where there are several NICs, a chunk is kept for 10 ms at most.
pub struct UdpLink {
    config: UdpConfig,
    ports: Vec<Port>,
    /// The ports that may hold something received, in the order in which they are read. Each `Port` knows
    /// whether it is among them.
    readable: VecDeque<u16>,
    receive: ReceiveBuffers,
    frame: Frame,
    kept: Option<Kept>,
    local: Option<LocalLink>,
    /// Paths that lead out of a NIC that cannot send now, where there are others.
    changes: VecDeque<PathChange>,
    registry: Option<Registry>,
    counters: Counters,
}

/// What of the frame has not left.
#[derive(Debug, Clone, Copy)]
struct Kept {
    pair: Pair,
    /// The first packet that was not sent.
    next: usize,
    /// When to try again; absent while the poller will say.
    retry_at: Option<Time>,
    /// Where there are several NICs: when it is given up, and the path that it was to take.
    else_by: Option<(Time, LinkAddress, PathId)>,
}

impl Kept {
    fn due(&self) -> Option<Time> {
        let else_by = self.else_by.map(|(by, ..)| by);
        [self.retry_at, else_by].into_iter().flatten().min()
    }
}

/// A local port and where it sends to.
#[derive(Debug, Clone, Copy)]
struct Pair {
    local: usize,
    to: SocketAddr,
}

/// Why a send did not leave the machine whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unsent {
    /// The socket's send buffer is full.
    Blocked,
    /// The kernel had no memory for it, and announces no moment to retry.
    NoBuffers,
    /// The kernel refused it.
    Dropped(Refusal),
}

impl UdpLink {
    /// What the link was opened with.
    pub fn config(&self) -> &UdpConfig {
        &self.config
    }

    /// Changes the differentiated services code point of everything sent from now on, 0 to 63.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn set_dscp(&mut self, dscp: u8) -> Result<(), LinkError> {
        self.ports
            .iter()
            .try_for_each(|port| set_dscp(&port.socket, port.address, dscp))
    }

    /// The buffers that the kernel granted: the smallest of all ports. Without CAP_NET_ADMIN it
    /// grants at most `net.core.rmem_max` and `wmem_max`.
    pub fn granted_buffers(&self) -> SocketBuffers {
        let smallest = |of: fn(&SocketBuffers) -> usize| {
            self.ports
                .iter()
                .map(|port| of(&port.buffers))
                .min()
                .unwrap_or(0)
        };
        SocketBuffers {
            receive: smallest(|buffers| buffers.receive),
            send: smallest(|buffers| buffers.send),
        }
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Whether a link of this process is reached through memory.
    pub(crate) fn reaches_in_process(&mut self, peer: &UdpPeer) -> bool {
        let local = self.local.as_mut();
        local.is_some_and(|local| local.reaches(peer.link_address()))
    }

    fn set_readable(&mut self, index: usize) {
        if !std::mem::replace(&mut self.ports[index].readable, true) {
            self.readable.push_back(index as u16);
        }
    }

    /// Hands a control packet, or else the frame, to a link of this process, if the peer is one.
    fn send_to_local(&mut self, peer: &UdpPeer, pair: PortPair, control: Option<&[u8]>) -> bool {
        if self.local.is_none() {
            return false;
        }
        let from = self.source(pair);
        let to = peer.link_address();
        let Some(local) = &mut self.local else {
            return false;
        };
        if !local.reaches(to) {
            return false;
        }
        let (packets, segment) = match control {
            Some(packet) => (1, packet.len()),
            None => (self.frame.packets(), self.frame.packet_bytes()),
        };
        let (buffer, bytes) = match control {
            Some(packet) => (packet.into(), packet.len()),
            None => self.frame.take(local.buffer(FRAME_BYTES)),
        };
        let run = Run {
            from,
            buffer,
            bytes,
            segment,
        };
        let is_taken = local.send(to, run);
        self.counters.count_local(packets, bytes, is_taken);
        true
    }

    /// Where a peer finds that what goes by this pair of ports has come from.
    fn source(&self, pair: PortPair) -> Source {
        let (port, address) = (
            self.config.ports.port(pair.local),
            self.config.nics.of(pair.local),
        );
        source(SocketAddr::new(address, port), pair.remote as u16)
    }

    /// Sends the packets of the frame from `next` on; keeps what the socket does not take.
    fn send_frame(
        &mut self,
        now: Time,
        pair: Pair,
        mut next: usize,
        else_by: Option<(Time, LinkAddress, PathId)>,
    ) -> Sent {
        match self.try_frame(pair, &mut next) {
            Ok(()) => Sent::Whole,
            // The rest of the chunk would meet the same refusal.
            Err(Unsent::Dropped(refusal)) => {
                if let (Refusal::Unreachable, Some((_, to, path))) = (refusal, else_by) {
                    self.leave(to, path);
                }
                Sent::Dropped(refusal)
            }
            Err(unsent) => {
                let announced =
                    unsent == Unsent::Blocked && self.watch_writable(pair.local, true).is_ok();
                let retry_at = (!announced).then_some(now + RETRY_AFTER);
                self.kept = Some(Kept {
                    pair,
                    next,
                    retry_at,
                    else_by,
                });
                Sent::Kept
            }
        }
    }

    /// One system call where the device does GSO, two for a chunk that was cut anew. Packets before `next` have left.
    fn try_frame(&mut self, pair: Pair, next: &mut usize) -> Result<(), Unsent> {
        let port = &mut self.ports[pair.local];
        let packets = self.frame.packets();
        let mut singly = !port.gso;
        while *next < packets {
            let at_once = match singly {
                true => 1,
                false => (SEND_BYTES_MAX / self.frame.packet_bytes().max(1)).max(1),
            };
            let end = packets.min(*next + at_once);
            let bytes = self.frame.wire(*next..end);
            if !singly {
                port.segment_by(self.frame.packet_bytes(), bytes.len());
            }
            match send_bytes(&port.socket, bytes, pair.to) {
                Ok(()) => {
                    if singly && port.gso {
                        // Single packets leave where all together did not: there is no GSO here.
                        port.gso = false;
                        self.counters.gso_refused += 1;
                    }
                    self.counters.count_sent(end - *next, bytes.len());
                    *next = end;
                }
                // A device without GSO says so only now (EIO or EINVAL), and one whose MTU has shrunk says the
                // same: the single packet will tell.
                Err(Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE) if end - *next > 1 => {
                    port.stop_segmenting();
                    singly = true;
                }
                Err(errno) => return Err(self.counters.count_unsent(errno)),
            }
        }
        Ok(())
    }

    /// What was to go on a path goes over another NIC at once.
    fn leave(&mut self, to: LinkAddress, path: PathId) {
        let change = PathChange::new((to, path), PathCondition::Unreachable);
        self.changes.push_back(change);
    }

    /// Asks for (or no longer for) an event when port `index` can send again.
    fn watch_writable(&self, index: usize, watch: bool) -> io::Result<()> {
        let Some(registry) = &self.registry else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let interest = if watch {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let fd = self.ports[index].socket.as_raw_fd();
        registry.reregister(&mut SourceFd(&fd), Token(index), interest)
    }
}

impl Link for UdpLink {
    type Config = UdpConfig;
    type Peer = UdpPeer;

    fn open(config: UdpConfig) -> Result<Self, LinkError> {
        let (nics, ports) = (config.nics, config.ports);
        let address = LinkAddress::Udp { nics, ports };
        address.check()?;
        let devices = nics.devices();
        let ports = (0..usize::from(ports.count))
            .map(|index| bind_port(&config, index, devices[index % devices.len()].as_deref()))
            .collect::<Result<Vec<_>, _>>()?;
        let local = config.local_switch.clone();
        let local = local.map(|switch| LocalLink::open(switch, address));
        let local = local.transpose().map_err(|source| LinkError::System {
            call: "eventfd",
            address: nics.first(),
            source,
        })?;
        let gso_refused = ports.iter().filter(|port| !port.gso).count() as u64;
        Ok(Self {
            readable: (0..config.ports.count).collect(),
            config,
            ports,
            receive: ReceiveBuffers::default(),
            frame: Frame::default(),
            kept: None,
            local,
            changes: VecDeque::new(),
            registry: None,
            counters: Counters {
                gso_refused,
                ..Counters::default()
            },
        })
    }

    fn address(&self) -> LinkAddress {
        LinkAddress::Udp {
            nics: self.config.nics,
            ports: self.config.ports,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            paths: self.config.ports.paths_to(self.config.ports),
            packet_bytes: usize::from(self.config.datagram_bytes),
            chunk_bytes: SEND_BYTES_MAX,
            in_order: false,
            encrypts: false,
            places: false,
            reliable: false,
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn peer(&self, address: &LinkAddress) -> Result<UdpPeer, LinkError> {
        let LinkAddress::Udp { nics, ports } = *address else {
            return Err(LinkError::OtherLink {
                address: self.address().to_string(),
                peer: address.to_string(),
            });
        };
        address.check()?;
        let (here, there) = (self.config.nics.first(), nics.first());
        if here.is_ipv4() != there.is_ipv4() {
            return Err(LinkError::OtherIpVersion {
                address: here,
                peer: there,
            });
        }
        Ok(UdpPeer { nics, ports })
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (index, port) in self.ports.iter().enumerate() {
            let fd = port.socket.as_raw_fd();
            registry.register(&mut SourceFd(&fd), Token(index), Interest::READABLE)?;
        }
        if let Some(local) = &self.local {
            let mut eventfd = SourceFd(&local.eventfd().as_raw_fd());
            registry.register(&mut eventfd, Token(self.ports.len()), Interest::READABLE)?;
        }
        self.registry = Some(registry.try_clone()?);
        Ok(())
    }

    fn handle_event(&mut self, event: &Event) {
        let Token(index) = event.token();
        if index == self.ports.len() {
            // Another link of this process: its queue shows it.
            return;
        }
        if event.is_readable() || event.is_error() {
            self.set_readable(index);
        }
        if event.is_writable()
            && let Some(kept) = &mut self.kept
            && kept.pair.local == index
        {
            kept.retry_at = Some(Time::ZERO);
        }
    }

    fn is_readable(&self) -> bool {
        !self.readable.is_empty() || self.local.as_ref().is_some_and(|local| !local.is_empty())
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.local.as_ref().is_none_or(LocalLink::prepare_to_sleep)
    }

    fn receive(&mut self, handler: &mut impl Handler) -> usize {
        let counters = &mut self.counters;
        let local = self.local.as_mut();
        let local = local.map_or(0, |local| local.receive(BATCH_RUNS, counters, handler));
        let Some(index) = self.readable.pop_front() else {
            return local;
        };
        let at = usize::from(index);
        let (port, counters) = (&self.ports[at], &mut self.counters);
        let (runs, batch) = self.receive.batch(port, at, counters, handler);
        match batch {
            Batch::More => self.readable.push_back(index),
            Batch::Drained => self.ports[usize::from(index)].readable = false,
        }
        local + runs
    }

    fn can_send(&self) -> bool {
        self.kept.is_none()
    }

    fn send_chunk(
        &mut self,
        now: Time,
        peer: &UdpPeer,
        path: PathId,
        packets: u32,
        seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent {
        debug_assert!(self.can_send(), "the chunk that is kept would be lost");
        self.frame.fill(packets, seal);
        let pair = PortPair::of_path(path.0, self.config.ports.count, peer.ports.count);
        if self.send_to_local(peer, pair, None) {
            return Sent::Whole;
        }
        let pair = Pair {
            local: pair.local,
            to: peer.port(pair.remote),
        };
        let has_others = self.config.nics.len() > 1 || peer.nics.len() > 1;
        let else_by = has_others.then(|| (now + KEPT_MAX, peer.link_address(), path));
        self.send_frame(now, pair, 0, else_by)
    }

    fn send_control(&mut self, destination: Destination<'_, UdpPeer>, packet: &[u8]) {
        let here = self.config.ports.count;
        let to_peer = match destination {
            Destination::Path(peer, path) => {
                Ok((peer, PortPair::of_path(path.0, here, peer.ports.count)))
            }
            Destination::Reverse(peer, path) => Ok((
                peer,
                PortPair::mirror_of_path(path.0, here, peer.ports.count),
            )),
            Destination::Source(source) => Err(pair_of(source)),
        };
        let pair = match to_peer {
            Ok((peer, pair)) if self.send_to_local(peer, pair, Some(packet)) => return,
            Ok((peer, pair)) => Pair {
                local: pair.local,
                to: peer.port(pair.remote),
            },
            Err(pair) => pair,
        };
        let port = &mut self.ports[pair.local];
        port.segment_by(packet.len(), packet.len());
        match send_bytes(&port.socket, packet, pair.to) {
            Ok(()) => self.counters.count_sent(1, packet.len()),
            Err(errno) => {
                self.counters.count_unsent(errno);
            }
        }
    }

    fn flush(&mut self, now: Time) -> bool {
        let Some(kept) = self
            .kept
            .take_if(|kept| kept.due().is_some_and(|at| at <= now))
        else {
            return false;
        };
        // What cannot be unwatched reports itself once more, which does no harm.
        let _ = self.watch_writable(kept.pair.local, false);
        self.send_frame(now, kept.pair, kept.next, kept.else_by);
        if let Some(Kept {
            else_by: Some((by, to, path)),
            pair,
            ..
        }) = self.kept
            && by <= now
        {
            self.kept = None;
            let _ = self.watch_writable(pair.local, false);
            self.leave(to, path);
        }
        true
    }

    fn flush_at(&self) -> Option<Time> {
        self.kept.and_then(|kept| kept.due())
    }

    fn poll_path(&mut self) -> Option<PathChange> {
        self.changes.pop_front()
    }
}

/// The way back to a source of this link.
fn pair_of(source: Source) -> Pair {
    let to = SocketAddr::new(source.host().into(), port_of(source));
    let local = usize::from(u16::from_be_bytes([source.0[18], source.0[19]]));
    Pair { local, to }
}

impl Counters {
    fn count_sent(&mut self, packets: usize, bytes: usize) {
        self.send_calls += 1;
        self.sent_packets += packets as u64;
        self.sent_bytes += bytes as u64;
    }

    fn count_local(&mut self, packets: usize, bytes: usize, is_taken: bool) {
        if is_taken {
            self.local_packets += packets as u64;
            self.local_bytes += bytes as u64;
        } else {
            self.local_lost += 1;
        }
    }

    fn count_unsent(&mut self, errno: Errno) -> Unsent {
        match errno {
            Errno::EAGAIN => {
                self.blocked += 1;
                return Unsent::Blocked;
            }
            Errno::ENOBUFS | Errno::ENOMEM => {
                self.no_buffers += 1;
                return Unsent::NoBuffers;
            }
            _ => {}
        }
        let refusal = refusal(errno);
        *match refusal {
            Refusal::TooBig => &mut self.too_big,
            Refusal::NotPermitted => &mut self.not_permitted,
            Refusal::Unreachable => &mut self.unreachable,
            Refusal::PortClosed => &mut self.port_closed,
            Refusal::Other(_) => &mut self.refused,
        } += 1;
        Unsent::Dropped(refusal)
    }
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::EMSGSIZE => Refusal::TooBig,
        Errno::EPERM | Errno::EACCES => Refusal::NotPermitted,
        Errno::ENETUNREACH
        | Errno::EHOSTUNREACH
        | Errno::ENETDOWN
        | Errno::ENODEV
        | Errno::EADDRNOTAVAIL => Refusal::Unreachable,
        Errno::ECONNREFUSED => Refusal::PortClosed,
        other => Refusal::Other(other as i32),
    }
}

fn send_bytes(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) -> Result<(), Errno> {
    match to {
        SocketAddr::V4(to) => send_to(socket, bytes, &SockaddrIn::from(to)),
        SocketAddr::V6(to) => send_to(socket, bytes, &SockaddrIn6::from(to)),
    }
}

fn send_to<S: SockaddrLike>(socket: &UdpSocket, bytes: &[u8], to: &S) -> Result<(), Errno> {
    loop {
        // No control message: the segment size is a socket option, so nothing is allocated.
        match sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &[],
            MsgFlags::MSG_DONTWAIT,
            Some(to),
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_answers_is_kept_or_lost_and_counted_by_its_kind() {
        let mut counters = Counters::default();
        let mut of = |errno| counters.count_unsent(errno);
        assert_eq!(of(Errno::EAGAIN), Unsent::Blocked);
        assert_eq!(of(Errno::ENOBUFS), Unsent::NoBuffers);
        assert_eq!(of(Errno::ENOMEM), Unsent::NoBuffers);
        for (errno, refusal) in [
            (Errno::EMSGSIZE, Refusal::TooBig),
            (Errno::EPERM, Refusal::NotPermitted),
            (Errno::EACCES, Refusal::NotPermitted),
            (Errno::ENETUNREACH, Refusal::Unreachable),
            (Errno::EHOSTUNREACH, Refusal::Unreachable),
            (Errno::ENETDOWN, Refusal::Unreachable),
            (Errno::ECONNREFUSED, Refusal::PortClosed),
            (Errno::EIO, Refusal::Other(Errno::EIO as i32)),
        ] {
            assert_eq!(of(errno), Unsent::Dropped(refusal), "{errno}");
        }
        let expected = Counters {
            blocked: 1,
            no_buffers: 2,
            too_big: 1,
            not_permitted: 2,
            unreachable: 3,
            port_closed: 1,
            refused: 1,
            ..Counters::default()
        };
        assert_eq!(counters, expected);
    }
}
