//! What the link's tests share: links, packets, and what arrives.

use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use weft_core::drops::DropReason;
use weft_core::memory::{DomainId, Place, Ticket};
use weft_core::received::{Offer, Received};
use weft_core::units::{ChunkNumber, ConnectionId, Key, PathId, Source, Time};
use weft_core::wire::{
    DataHeader, Envelope, Flags, HEADER_BYTES, KeyPhase, OVERHEAD_BYTES, Opcode, TRAILER_BYTES,
};
use weft_link::{
    Handler, Link, LinkAddress, LinkToken, PathChange, PathCondition, Poller, PortRange, Sent,
    TcpConfig, TcpLink, TcpPeer,
};

/// The loopback addresses: every test of a packet's way runs over both.
pub(crate) const HERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Payload of a full packet.
pub(crate) const PAYLOAD: usize = 32 << 10;

/// Paths of each link.
pub(crate) const PATHS: u8 = 16;

/// A machine that has much else to do needs no more than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// The token of the link at a port.
pub(crate) fn token(port: u16) -> LinkToken {
    LinkToken(u64::from(port) << 40 | 0x77)
}

/// A link with its poller, and what has arrived there.
pub(crate) struct End {
    pub(crate) link: TcpLink,
    poller: Poller,
    pub(crate) arrivals: Arrivals,
    pub(crate) changes: Vec<PathChange>,
    /// What the link is told that it is.
    pub(crate) now: Time,
}

impl End {
    pub(crate) fn open(address: IpAddr, port: u16) -> Self {
        let mut link = TcpLink::open(TcpConfig {
            nics: address.into(),
            ports: PortRange {
                first: port,
                count: 1,
            },
            token: token(port),
            paths: PATHS.into(),
            packet_bytes: (PAYLOAD + OVERHEAD_BYTES) as u16,
            dscp: 0,
        })
        .expect("the port is free");
        let poller = Poller::new(&mut link).expect("descriptors are left");
        Self {
            link,
            poller,
            arrivals: Arrivals::default(),
            changes: Vec::new(),
            now: Time::from_nanos(1),
        }
    }

    pub(crate) fn peer(&self, other: &Self) -> TcpPeer {
        let peer = self.link.peer(&other.link.address());
        peer.expect("one IP version")
    }

    /// A turn of its worker, without chunks.
    pub(crate) fn turn(&mut self) {
        let polled = self.poller.poll(&mut self.link);
        polled.expect("the poller answers");
        while self.link.is_readable() {
            self.link.receive(&mut self.arrivals);
        }
        self.link.flush(self.now);
        while let Some(change) = self.link.poll_path() {
            self.changes.push(change);
        }
    }

    /// Whether a path has come to be so.
    pub(crate) fn was_told(&self, path: u8, condition: PathCondition) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.path == PathId(path) && change.condition == condition)
    }

    /// Sends packets as one chunk.
    pub(crate) fn send(&mut self, to: &TcpPeer, path: u8, packets: &[Vec<u8>]) -> Sent {
        let (now, count) = (self.now, packets.len() as u32);
        self.link
            .send_chunk(now, to, PathId(path), count, |i, room| {
                let packet = &packets[i as usize];
                room[..packet.len()].copy_from_slice(packet);
                packet.len()
            })
    }
}

/// Has the ends take turns until `done`.
pub(crate) fn drive(ends: &mut [&mut End], what: &str, mut done: impl FnMut(&[&mut End]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(ends) {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        for end in &mut *ends {
            end.turn();
        }
    }
}

/// A data packet for `offset`, with a payload of so many bytes that differ.
pub(crate) fn packet(number: u64, offset: u64, payload: usize) -> Vec<u8> {
    let header = DataHeader {
        opcode: Opcode::Write,
        path: PathId(0),
        packet: 0,
        packets: 1,
        connection: ConnectionId(1),
        packet_number: number,
        sent_at: 0,
        chunk: ChunkNumber(number as u32),
        chunk_index: 0,
        flags: Flags::NONE,
        immediate: 0,
        key: Key(5),
        offset,
    };
    let mut packet = vec![0; payload + OVERHEAD_BYTES];
    let (front, rest) = packet
        .split_first_chunk_mut::<HEADER_BYTES>()
        .expect("it has a header");
    header.emit(KeyPhase::FIRST, front);
    for (at, byte) in rest.iter_mut().enumerate() {
        *byte = (at as u64 * 31 + number * 7) as u8;
    }
    packet
}

/// The packets that have arrived, and the memory that payloads are placed in.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Payloads that are offered are not wanted.
    pub(crate) discards: bool,
    pub(crate) packets: Vec<(Source, Vec<u8>)>,
    pub(crate) memory: Vec<u8>,
    /// Those whose payload lies in memory.
    pub(crate) placed: Vec<Ticket>,
}

impl Handler for Arrivals {
    fn offer(&mut self, _: Source, envelope: &Envelope, bytes: u32) -> Offer {
        let header = [&envelope.header[..], &envelope.trailer].concat();
        match DataHeader::parse(&header) {
            Ok(header) if !self.discards && header.offset < 64 << 20 => Offer::Place {
                ticket: Ticket::of(&header),
                place: Place {
                    domain: DomainId(0),
                    key: header.key,
                    offset: header.offset,
                    bytes: bytes.into(),
                },
                crc: None,
            },
            // As an endpoint does with what it cannot read, and a region out of bounds.
            _ => Offer::Discard,
        }
    }

    fn receive(
        &mut self,
        place: &Place,
        _: Option<u32>,
        first: &[u8],
        socket: BorrowedFd<'_>,
        ahead: &mut [u8],
    ) -> io::Result<Result<usize, DropReason>> {
        let (at, end) = (place.offset as usize, (place.offset + place.bytes) as usize);
        self.memory.resize(self.memory.len().max(end), 0);
        self.memory[at..at + first.len()].copy_from_slice(first);
        let mut socket = TcpStream::from(socket.try_clone_to_owned()?);
        socket.read_exact(&mut self.memory[at + first.len()..end])?;
        match socket.read(ahead) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Ok(0)),
            read => Ok(Ok(read?)),
        }
    }

    fn copy(&mut self, place: &Place, _: Option<u32>, _: &[AtomicU8]) -> Result<(), DropReason> {
        panic!("no memory is shared: {place:?}");
    }

    fn handle(&mut self, received: Received<'_>) {
        match received {
            Received::Packets {
                from,
                bytes,
                segment,
                ..
            } => {
                assert_eq!(segment, bytes.len(), "a frame is a packet");
                self.packets.push((from, bytes.to_vec()));
            }
            Received::Placed { ticket, result } => {
                result.expect("all of it had come");
                self.placed.push(ticket);
            }
        }
    }
}

/// What an end that connects says first, written from the module's text and not with the link's own writer.
pub(crate) fn preamble(to: u16, path: u8, from: u16) -> Vec<u8> {
    let LinkToken(theirs) = token(to);
    let LinkToken(ours) = token(from);
    let mut bytes = b"WEFT\x01".to_vec();
    bytes.extend([path, 0, 0]);
    bytes.extend(theirs.to_le_bytes());
    bytes.extend(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    bytes.extend(from.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(ours.to_le_bytes());
    bytes
}

/// A packet's frame, likewise.
pub(crate) fn frame(packet: &[u8]) -> Vec<u8> {
    let (rest, trailer) = packet.split_at(packet.len() - TRAILER_BYTES);
    [&(packet.len() as u32).to_le_bytes()[..], trailer, rest].concat()
}

/// The address of the end whose preamble this is.
pub(crate) fn address(port: u16) -> LinkAddress {
    LinkAddress::Tcp {
        nics: HERE[0].into(),
        ports: PortRange {
            first: port,
            count: 1,
        },
        token: token(port),
    }
}
