//! TCP: a path is a connection, made by the end that sends data on it. The kernel resends what is lost.
//!
//! What a socket does not take is kept with its connection and blocks that path alone. When a connection breaks, the link
//! says so ([`PathCondition::Broken`]), and what is sent on that path after a while connects it again. Acknowledgements go
//! back on the connection that the data came on. An end that connects sends its path, its own address and the token of the
//! other end first; a connection without that token is closed at once.

mod frame;
mod handshake;
mod receive;
mod stream;
mod ways;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use slab::Slab;
use weft_core::units::{PathId, Source, Time};
use weft_core::wire::CONTROL_BYTES_MAX;

use crate::address::{LinkAddress, LinkToken};
use crate::error::{LinkError, Refusal};
use crate::incoming::IncomingPaths;
use crate::link::{
    Capabilities, Counters, Destination, Handler, Link, PathChange, PathCondition, Sent,
};
use crate::nics::NicAddresses;
use crate::outgoing::OutgoingPaths;
use crate::ports::PortRange;
use receive::{Reader, Sink, Turn};
use stream::{Role, Stream};
use ways::HALF_FRAME_MAX;

/// The tokens of the sockets that others connect to, one for each NIC, end here. The poller has the one above for itself.
const LISTENERS_END: usize = usize::MAX - 1;

/// Chunks of one turn are sent together, up to so many bytes: the system's calls, and the receiver's being woken, cost less
/// so, and the bytes stay in a core's second-level cache between their checksum and the kernel's copy. A socket for which as
/// many wait is full: control packets for it are lost, as the next acknowledgement or probe says the same.
const GATHER_BYTES: usize = 256 << 10;

/// Connections from one IP address at most: those of 16 engines with 128 paths each. Each may hold a buffer of 32 KiB and
/// what the kernel keeps for a socket.
const PER_HOST_MAX: usize = 2_048;

/// Connections of a link at most: from 4,096 engines with four paths each.
const TOTAL_MAX: usize = 16_384;

/// What a TCP link is opened with.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// The addresses of the NICs. The `i`-th path is of the `i`-th, modulo their number.
    pub nics: NicAddresses,
    /// The link is connected to at the first of these, at each NIC.
    pub ports: PortRange,
    /// What every peer sends first when it connects here.
    pub token: LinkToken,
    /// Paths to a peer, and from it: others are refused.
    pub paths: u16,
    /// Bytes of a full packet: header, payload, trailer.
    pub packet_bytes: u16,
    /// Differentiated services code point of everything sent, 0 to 63.
    pub dscp: u8,
}

/// Another machine's NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpPeer(LinkAddress);

/// The TCP connections of a worker, over one NIC or several.
pub struct TcpLink {
    config: TcpConfig,
    listeners: Vec<TcpListener>,
    /// The devices of the NICs, where sockets are bound to them.
    devices: Vec<Option<String>>,
    is_listener_readable: bool,
    /// Whose turn it was last.
    next_listener: usize,
    /// Connections were taken in this turn: others wait for the next one.
    has_accepted: bool,
    /// By token.
    streams: Slab<Stream>,
    outgoing: OutgoingPaths,
    incoming: IncomingPaths,
    /// Connections without a purpose so far, the oldest first.
    unfinished: VecDeque<usize>,
    /// Those that may hold something received, in the order in which they are read.
    readable: VecDeque<usize>,
    /// Those for which something waits that their sockets may take.
    sendable: Vec<usize>,
    reader: Reader,
    /// Buffers for what is sent.
    spare: Vec<Vec<u8>>,
    changes: VecDeque<PathChange>,
    registry: Option<Registry>,
    /// As of the last call that told.
    now: Time,
    /// When to look for what has waited for too long.
    check_at: Option<Time>,
    counters: Counters,
}

impl TcpLink {
    /// Changes the differentiated services code point of everything sent from now on, 0 to 63.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn set_dscp(&mut self, dscp: u8) -> Result<(), LinkError> {
        self.config.dscp = dscp;
        let address = self.config.nics.first();
        for (_, stream) in &self.streams {
            let set = stream::set_dscp(&stream.socket, address, dscp);
            set.map_err(failed("setsockopt IP_TOS", address))?;
        }
        Ok(())
    }

    fn insert(&mut self, stream: Stream) -> io::Result<usize> {
        let entry = self.streams.vacant_entry();
        let slot = entry.key();
        if let Some(registry) = &self.registry {
            watch(registry, &stream.socket, slot)?;
        }
        entry.insert(stream);
        Ok(slot)
    }

    fn check_by(&mut self, at: Time) {
        self.check_at = Some(self.check_at.map_or(at, |check_at| check_at.min(at)));
    }

    fn set_readable(&mut self, slot: usize) {
        if let Some(stream) = self.streams.get_mut(slot)
            && !std::mem::replace(&mut stream.is_readable, true)
        {
            self.readable.push_back(slot);
        }
    }

    /// Sends what waits on a connection, as far as its socket takes it, and says when that changes what its path takes.
    fn flush_stream(&mut self, slot: usize) {
        let Some(stream) = self.streams.get_mut(slot) else {
            return;
        };
        stream.used_at = self.now;
        if stream.flush(&mut self.spare, &mut self.counters).is_err() {
            return self.close(slot);
        }
        let waits = stream.waiting() > 0;
        if let Role::Outgoing {
            way, is_blocked, ..
        } = &mut stream.role
            && std::mem::replace(is_blocked, waits) != waits
        {
            let condition = match waits {
                true => PathCondition::Blocked,
                false => PathCondition::Ready,
            };
            self.changes.push_back(PathChange::new(*way, condition));
        }
    }
}

fn watch(registry: &Registry, socket: &TcpStream, slot: usize) -> io::Result<()> {
    // Both from the beginning: each is told once, when it changes.
    let interest = Interest::READABLE | Interest::WRITABLE;
    registry.register(&mut SourceFd(&socket.as_raw_fd()), Token(slot), interest)
}

fn failed(call: &'static str, address: IpAddr) -> impl FnOnce(io::Error) -> LinkError {
    move |source| LinkError::System {
        call,
        address,
        source,
    }
}

impl Link for TcpLink {
    type Config = TcpConfig;
    type Peer = TcpPeer;

    fn open(config: TcpConfig) -> Result<Self, LinkError> {
        config.ports.check()?;
        let devices = config.nics.devices();
        let listeners = handshake::listen(&config, &devices)?;
        let packet_bytes_max = usize::from(config.packet_bytes).max(CONTROL_BYTES_MAX);
        Ok(Self {
            config,
            listeners,
            devices,
            is_listener_readable: true,
            next_listener: 0,
            has_accepted: false,
            streams: Slab::new(),
            outgoing: OutgoingPaths::default(),
            incoming: IncomingPaths::new(PER_HOST_MAX, TOTAL_MAX),
            unfinished: VecDeque::new(),
            readable: VecDeque::new(),
            sendable: Vec::new(),
            reader: Reader::new(packet_bytes_max),
            spare: Vec::new(),
            changes: VecDeque::new(),
            registry: None,
            now: Time::ZERO,
            check_at: None,
            counters: Counters::default(),
        })
    }

    fn address(&self) -> LinkAddress {
        LinkAddress::Tcp {
            nics: self.config.nics,
            ports: self.config.ports,
            token: self.config.token,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            paths: self.address().paths_to(&self.address()),
            packet_bytes: usize::from(self.config.packet_bytes),
            chunk_bytes: frame::CHUNK_BYTES,
            in_order: true,
            encrypts: false,
            places: true,
            reliable: true,
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn peer(&self, address: &LinkAddress) -> Result<TcpPeer, LinkError> {
        let (here, there) = (self.config.nics.first(), address.ip());
        if !matches!(address, LinkAddress::Tcp { .. }) {
            return Err(LinkError::OtherLink {
                address: self.address().to_string(),
                peer: address.to_string(),
            });
        }
        address.check()?;
        if here.is_ipv4() != there.is_ipv4() {
            return Err(LinkError::OtherIpVersion {
                address: here,
                peer: there,
            });
        }
        Ok(TcpPeer(*address))
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (nic, listener) in self.listeners.iter().enumerate() {
            let (fd, token) = (listener.as_raw_fd(), Token(LISTENERS_END - nic));
            registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        for (slot, stream) in &self.streams {
            watch(registry, &stream.socket, slot)?;
        }
        self.registry = Some(registry.try_clone()?);
        Ok(())
    }

    fn handle_event(&mut self, event: &Event) {
        let Token(slot) = event.token();
        if LISTENERS_END - slot < self.listeners.len() {
            self.is_listener_readable = true;
            return;
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.set_readable(slot);
        }
        let stream = self.streams.get(slot);
        if event.is_writable() && stream.is_some_and(|stream| stream.waiting() > 0) {
            self.sendable.push(slot);
        }
    }

    fn is_readable(&self) -> bool {
        !self.readable.is_empty() || self.is_listener_readable && !self.has_accepted
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.has_accepted = false;
        self.sendable.is_empty() && self.changes.is_empty() && !self.is_listener_readable
    }

    fn receive(&mut self, handler: &mut impl Handler) -> usize {
        if self.is_listener_readable && !self.has_accepted {
            self.has_accepted = true;
            self.accept();
        }
        let Some(slot) = self.readable.pop_front() else {
            return 0;
        };
        if let Some(stream) = self.streams.get_mut(slot) {
            stream.is_readable = false;
        }
        if !self.read_preamble(slot) {
            return 0;
        }
        let Some(stream) = self.streams.get_mut(slot) else {
            return 0;
        };
        let Some((peer, _)) = stream.way() else {
            return 0;
        };
        let mut sink = Sink {
            from: source(&peer, slot),
            counters: &mut self.counters,
            handler,
            packets: 0,
        };
        let turn = self.reader.turn(stream, &mut sink);
        let packets = sink.packets;
        if packets > 0 {
            stream.used_at = self.now;
            if let Role::Outgoing { failures, .. } = &mut stream.role {
                *failures = 0;
            }
        }
        let half_by = stream
            .is_half()
            .then(|| stream.half_by.unwrap_or(self.now + HALF_FRAME_MAX));
        match (turn, half_by) {
            (Turn::More, _) => self.set_readable(slot),
            (Turn::Drained, None) => {}
            (Turn::Drained, Some(half_by)) => self.check_by(half_by),
            (Turn::Ended, _) => self.close(slot),
        }
        packets
    }

    fn can_send(&self) -> bool {
        true
    }

    fn send_chunk(
        &mut self,
        now: Time,
        peer: &TcpPeer,
        path: PathId,
        packets: u32,
        mut seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent {
        self.now = now;
        let way = (peer.0, path);
        let slot = self.outgoing(way);
        let Some((slot, stream)) = slot.and_then(|slot| Some((slot, self.streams.get_mut(slot)?)))
        else {
            self.counters.unreachable += 1;
            // Who did not know that the path is broken learns it.
            self.changes
                .push_back(PathChange::new(way, PathCondition::Broken));
            return Sent::Dropped(Refusal::Unreachable);
        };
        if stream.waiting() == 0 {
            self.sendable.push(slot);
        }
        let bytes = stream.put(frame::CHUNK_BYTES, &mut self.spare, |room| {
            (0..packets).fold(0, |end, packet| {
                end + frame::put(&mut room[end..], |room| seal(packet, room))
            })
        });
        self.counters.sent_packets += u64::from(packets);
        self.counters.sent_bytes += bytes as u64;
        if stream.is_blocked() {
            // Who did not know that the path takes nothing learns it: connections to another owner there, say.
            self.changes
                .push_back(PathChange::new(way, PathCondition::Blocked));
            return Sent::Kept;
        }
        if stream.waiting() < GATHER_BYTES {
            return Sent::Whole;
        }
        self.flush_stream(slot);
        match self.streams.get(slot).map(Stream::waiting) {
            Some(1..) => Sent::Kept,
            _ => Sent::Whole,
        }
    }

    fn send_gathered(&mut self) {
        while let Some(slot) = self.sendable.pop() {
            self.flush_stream(slot);
        }
    }

    fn send_control(&mut self, destination: Destination<'_, TcpPeer>, packet: &[u8]) {
        let slot = match destination {
            Destination::Path(peer, path) => self.outgoing((peer.0, path)),
            Destination::Reverse(peer, path) => {
                let (nic, _) = peer.0.nics_of_path(&self.address(), path);
                self.incoming.get(&(peer.0.with_nic(nic), path))
            }
            Destination::Source(from) => {
                // Another connection may have the slot by now.
                let slot = slot_of(from);
                let stream = self.streams.get(slot);
                let way = stream.and_then(Stream::way);
                way.is_some_and(|(peer, _)| source(&peer, slot) == from)
                    .then_some(slot)
            }
        };
        let Some((slot, stream)) = slot.and_then(|slot| Some((slot, self.streams.get_mut(slot)?)))
        else {
            self.counters.unreachable += 1;
            return;
        };
        if stream.waiting() == 0 {
            self.sendable.push(slot);
        }
        if stream.waiting() >= GATHER_BYTES {
            self.counters.blocked += 1;
            return;
        }
        let room = frame::FRONT_BYTES + packet.len();
        let bytes = stream.put(room, &mut self.spare, |room| {
            frame::put(room, |room| {
                room.copy_from_slice(packet);
                packet.len()
            })
        });
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += bytes as u64;
    }

    fn flush(&mut self, now: Time) -> bool {
        self.now = now;
        self.has_accepted = false;
        let busy = !self.sendable.is_empty();
        self.send_gathered();
        if self.check_at.is_some_and(|at| at <= now) {
            self.check();
        }
        busy
    }

    fn flush_at(&self) -> Option<Time> {
        match self.changes.is_empty() && self.sendable.is_empty() {
            true => self.check_at,
            false => Some(Time::ZERO),
        }
    }

    fn poll_path(&mut self) -> Option<PathChange> {
        self.changes.pop_front()
    }
}

/// What the core knows a sender by: its address, and the connection that leads back.
fn source(peer: &LinkAddress, slot: usize) -> Source {
    let mut bytes = [0; Source::BYTES];
    bytes[..16].copy_from_slice(&peer.host().0);
    bytes[16..].copy_from_slice(&(slot as u32).to_be_bytes());
    Source(bytes)
}

fn slot_of(source: Source) -> usize {
    let [.., a, b, c, d] = source.0;
    u32::from_be_bytes([a, b, c, d]) as usize
}
