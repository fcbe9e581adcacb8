//! What the link's tests share: links, packets, and what arrives.

use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use weft_core::drops::DropReason;
use weft_core::memory::{DomainId, Place, Ticket};
use weft_core::received::{Offer, Received};
use weft_core::units::{ChunkNumber, ConnectionId, Key, PathId, Source, Time};
use weft_core::wire::{
    DataHeader, Envelope, Flags, HEADER_BYTES, KeyPhase, OVERHEAD_BYTES, Opcode,
};
use weft_link::{
    Handler, Link, LinkToken, PathChange, PathCondition, Poller, PortRange, Sent, ShmConfig,
    ShmLink, ShmPeer,
};

/// The address that names every end here.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

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
    pub(crate) link: ShmLink,
    poller: Poller,
    pub(crate) arrivals: Arrivals,
    pub(crate) changes: Vec<PathChange>,
    /// What the link is told that it is.
    pub(crate) now: Time,
}

impl End {
    pub(crate) fn open(port: u16) -> Self {
        let mut link = ShmLink::open(ShmConfig {
            address: HERE,
            ports: PortRange {
                first: port,
                count: 1,
            },
            token: token(port),
            paths: PATHS.into(),
        })
        .expect("the name is free");
        let poller = Poller::new(&mut link).expect("descriptors are left");
        Self {
            link,
            poller,
            arrivals: Arrivals::default(),
            changes: Vec::new(),
            now: Time::from_nanos(1),
        }
    }

    pub(crate) fn peer(&self, other: &Self) -> ShmPeer {
        let peer = self.link.peer(&other.link.address());
        peer.expect("one link")
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

    /// Whether there is nothing to do: then what comes ends [`End::wait`].
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        self.link.prepare_to_sleep()
    }

    /// Sleeps until something comes.
    pub(crate) fn wait(&self) {
        let waiter = self.poller.waiter().expect("descriptors are left");
        let begun = Instant::now();
        waiter.wait(Some(PATIENCE)).expect("it can wait");
        assert!(begun.elapsed() < PATIENCE, "nothing has woken it");
    }

    /// Whether a path has come to be so.
    pub(crate) fn was_told(&self, path: u8, condition: PathCondition) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.path == PathId(path) && change.condition == condition)
    }

    /// Sends packets as one chunk.
    pub(crate) fn send(&mut self, to: &ShmPeer, path: u8, packets: &[Vec<u8>]) -> Sent {
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
        _: &[u8],
        _: BorrowedFd<'_>,
        _: &mut [u8],
    ) -> io::Result<Result<usize, DropReason>> {
        panic!("nothing is read from a socket: {place:?}");
    }

    fn copy(
        &mut self,
        place: &Place,
        _: Option<u32>,
        payload: &[AtomicU8],
    ) -> Result<(), DropReason> {
        let (at, end) = (place.offset as usize, (place.offset + place.bytes) as usize);
        assert_eq!(payload.len(), end - at);
        self.memory.resize(self.memory.len().max(end), 0);
        for (to, from) in self.memory[at..end].iter_mut().zip(payload) {
            *to = from.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn handle(&mut self, received: Received<'_>) {
        match received {
            Received::Packets {
                from,
                bytes,
                segment,
                ..
            } => {
                assert_eq!(segment, bytes.len(), "each packet comes by itself");
                self.packets.push((from, bytes.to_vec()));
            }
            Received::Placed { ticket, result } => {
                result.expect("there is memory");
                self.placed.push(ticket);
            }
        }
    }
}

/// What an end that connects says first, written from the module's text and not with the link's own writer.
pub(crate) fn preamble(to: u16, path: u8, from: u16) -> Vec<u8> {
    let LinkToken(theirs) = token(to);
    let LinkToken(ours) = token(from);
    let mut bytes = b"WSHM\x01".to_vec();
    bytes.extend([path, 0, 0]);
    bytes.extend(theirs.to_le_bytes());
    bytes.extend(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    bytes.extend(from.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(ours.to_le_bytes());
    bytes
}

/// Where things lie in the memory of a connection, and how large it is, likewise.
pub(crate) const DATA_RING: u64 = 4096;
pub(crate) const CONTROL_RING: u64 = DATA_RING + (2 << 20);
pub(crate) const MEMORY_BYTES: u64 = CONTROL_RING + (128 << 10);
/// What the end that connected has consumed of the control ring.
pub(crate) const CONTROL_CONSUMED: u64 = 128;

/// A file as a connection's memory has to be.
pub(crate) fn memfd() -> OwnedFd {
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    memfd_of(MemfdFlags::ALLOW_SEALING, MEMORY_BYTES, seals)
}

pub(crate) fn memfd_of(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | flags);
    let file = file.expect("there is memory");
    rustix::fs::ftruncate(&file, bytes).expect("it is not sealed yet");
    if !seals.is_empty() {
        rustix::fs::fcntl_add_seals(&file, seals).expect("it allows seals");
    }
    file
}

/// A connection to the end at `port`, on which nothing is said yet.
pub(crate) fn connect(port: u16) -> UnixStream {
    let name = format!("weft-shm/{HERE}/{port}");
    let name = SocketAddr::from_abstract_name(name).expect("it is short");
    let stream = UnixStream::connect_addr(&name).expect("it listens");
    stream.set_nonblocking(true).expect("a socket can");
    stream
}

/// Says this on a connection, and hands over these files.
pub(crate) fn say(stream: &UnixStream, said: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(said)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    assert_eq!(sent, Ok(said.len()));
}

/// A connection to the end at `port` that says what an end at `from` would, with its memory.
pub(crate) fn connected(port: u16, from: u16) -> (UnixStream, OwnedFd) {
    let (stream, file) = (connect(port), memfd());
    say(&stream, &preamble(port, 0, from), &[file.as_fd()]);
    (stream, file)
}

/// Writes to the memory of a connection.
pub(crate) fn poke(file: &OwnedFd, at: u64, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(file, bytes, at), Ok(bytes.len()));
}

/// A packet as it stands in a ring, likewise: as an end writes it that is the first of its ring.
pub(crate) fn poke_packet(file: &OwnedFd, at: u64, packet: &[u8]) -> u64 {
    poke(file, at + 16, packet);
    poke(file, at, &(packet.len() as u64).to_le_bytes());
    at + (16 + packet.len() as u64).next_multiple_of(64)
}

/// Whether the other end has closed it.
pub(crate) fn is_closed(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}
