//! A peer says anything over a TCP connection, cut anywhere: to a real link, over loopback.
//!
//! The link must hand over exactly the packets whose frames came whole before the first bad one, in order and with each
//! byte, whether it places, buffers or passes over their payloads; count the stranger or the bad frame; and close the
//! connection.
//!
//! In the input, five bytes say how the honest preamble is spoilt, if at all. Pieces follow; see [`Piece`].
#![no_main]

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use weft_core::drops::DropReason;
use weft_core::memory::{DomainId, Place, Ticket};
use weft_core::received::{Offer, Received};
use weft_core::units::{ChunkNumber, ConnectionId, Key, PathId, Source, Time};
use weft_core::wire::{DataHeader, Envelope, Flags, HEADER_BYTES, KeyPhase, Opcode, TRAILER_BYTES};
use weft_link::{Handler, Link, LinkToken, Poller, PortRange, TcpConfig, TcpLink};

const PACKET_BYTES_MAX: u16 = 33_000;
const PATHS: u16 = 16;
const TOKEN: u64 = 0x7765_6674;
const PREAMBLE_BYTES: usize = 48;
/// Bytes that one piece brings at most.
const PIECE_BYTES_MAX: usize = 40_000;
/// Bytes that an input brings at most: what a link reads in a few turns.
const STREAM_BYTES_MAX: usize = 400_000;
/// Far longer than a turn takes.
const PATIENCE: Duration = Duration::from_secs(8);

struct Fixture {
    link: TcpLink,
    poller: Poller,
    port: u16,
}

static FIXTURE: LazyLock<Mutex<Fixture>> = LazyLock::new(|| {
    // Another fuzzer may have taken some.
    let first = 18_000 + (std::process::id() % 500) as u16 * 4;
    let open = |port| {
        let config = TcpConfig {
            nics: Ipv4Addr::LOCALHOST.into(),
            ports: PortRange {
                first: port,
                count: 1,
            },
            token: LinkToken(TOKEN),
            paths: PATHS,
            packet_bytes: PACKET_BYTES_MAX,
            dscp: 0,
        };
        TcpLink::open(config).ok().map(|link| (link, port))
    };
    let (mut link, port) = (first..20_000).find_map(open).expect("a port is free");
    let poller = Poller::new(&mut link).expect("descriptors are left");
    Mutex::new(Fixture { link, poller, port })
});

/// A part of what the peer says. The first byte says which: its lowest two bits.
enum Piece<'a> {
    /// 0: these bytes. A byte with their number is before them.
    Bytes(&'a [u8]),
    /// 1: the frame of a data packet with so many bytes of payload (u16) and this offset (u8), which says what the receiver
    /// does with it: see [`Arrivals::offer`].
    Data { payload: usize, offset: u8 },
    /// 2: this length (u32), and so many bytes (u16) of a pattern.
    Length { length: u32, bytes: usize },
    /// 3: nothing, until the link has read what was said before.
    Pause,
}

fn next_piece<'a>(rest: &mut &'a [u8]) -> Option<Piece<'a>> {
    let mut take = |bytes: usize| {
        let (taken, after) = rest.split_at_checked(bytes)?;
        *rest = after;
        Some(taken)
    };
    let u16_of = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    Some(match take(1)?[0] & 3 {
        0 => {
            let bytes = take(1)?[0];
            Piece::Bytes(take(bytes.into())?)
        }
        1 => {
            let said = take(3)?;
            Piece::Data {
                payload: u16_of(said).min(PIECE_BYTES_MAX),
                offset: said[2],
            }
        }
        2 => {
            let said = take(6)?;
            Piece::Length {
                length: u32::from_le_bytes(*said.first_chunk()?),
                bytes: u16_of(&said[4..]).min(PIECE_BYTES_MAX),
            }
        }
        _ => Piece::Pause,
    })
}

fn pattern(bytes: usize, first: usize) -> impl Iterator<Item = u8> {
    (first..first + bytes).map(|at| (at * 31 % 251 + at / 251 % 5) as u8)
}

/// The frame of a data packet that stands at `at` in the stream: length, trailer, header, payload. No two are alike.
fn frame(at: usize, payload: usize, offset: u8) -> Vec<u8> {
    let header = DataHeader {
        opcode: Opcode::Write,
        path: PathId(0),
        packet: 0,
        packets: 1,
        connection: ConnectionId(1),
        packet_number: at as u64,
        sent_at: 0,
        chunk: ChunkNumber(1),
        chunk_index: 0,
        flags: Flags::NONE,
        immediate: 0,
        key: Key(5),
        offset: offset.into(),
    };
    let mut emitted = [0; HEADER_BYTES];
    header.emit(KeyPhase::FIRST, &mut emitted);
    let length = (HEADER_BYTES + payload + TRAILER_BYTES) as u32;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(pattern(TRAILER_BYTES, at));
    frame.extend(emitted);
    frame.extend(pattern(payload, at + 1));
    frame
}

/// What the honest end at another port would say first.
fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut said = [0; PREAMBLE_BYTES];
    said[..5].copy_from_slice(b"WEFT\x01");
    said[8..16].copy_from_slice(&TOKEN.to_le_bytes());
    said[16..32].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    said[32..34].copy_from_slice(&17_000u16.to_le_bytes());
    said[34..36].copy_from_slice(&1u16.to_le_bytes());
    said
}

/// Whether these are the words of somebody who has the token, at the address that it says, for a path that there is. The
/// token and the ports where it is reached itself may be any.
fn is_known(said: &[u8; PREAMBLE_BYTES]) -> bool {
    let honest = preamble();
    let short = |at: usize| u32::from(u16::from_le_bytes([said[at], said[at + 1]]));
    let (first, count) = (short(32), short(34));
    said[..5] == honest[..5]
        && u16::from(said[5]) < PATHS
        && said[8..32] == honest[8..32]
        && PortRange {
            first: first as u16,
            count: count as u16,
        }
        .check()
        .is_ok()
}

/// The packets whose frames are whole, and whether a length that no packet has ends them. A packet's trailer is moved
/// behind it.
fn packets_of(mut stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut packets = Vec::new();
    while let Some((&length, rest)) = stream.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(length) as usize;
        if !(TRAILER_BYTES..=usize::from(PACKET_BYTES_MAX)).contains(&length) {
            return (packets, true);
        }
        let Some((packet, after)) = rest.split_at_checked(length) else {
            break;
        };
        let (trailer, front) = packet.split_at(TRAILER_BYTES);
        packets.push([front, trailer].concat());
        stream = after;
    }
    (packets, false)
}

/// What the link has handed over, in order.
enum Arrival {
    Packet(Vec<u8>),
    /// Its payload is passed over.
    Discarded(Envelope),
    /// It was refused when its payload had been read: the link can but close the connection.
    Refused,
}

#[derive(Default)]
struct Arrivals {
    all: Vec<Arrival>,
    /// The packet that is being placed: without its payload, and then with it.
    placing: Option<(Envelope, Vec<u8>)>,
}

impl Handler for Arrivals {
    fn offer(&mut self, _: Source, envelope: &Envelope, bytes: u32) -> Offer {
        assert!(self.placing.is_none(), "two payloads at once");
        let header = [&envelope.header[..], &envelope.trailer].concat();
        let Ok(header) = DataHeader::parse(&header) else {
            self.all.push(Arrival::Discarded(envelope.clone()));
            return Offer::Discard;
        };
        match header.offset & 3 {
            0 => Offer::Whole,
            1 => {
                self.all.push(Arrival::Discarded(envelope.clone()));
                Offer::Discard
            }
            _ => {
                self.placing = Some((envelope.clone(), Vec::new()));
                Offer::Place {
                    ticket: Ticket::of(&header),
                    place: Place {
                        domain: DomainId(0),
                        key: header.key,
                        offset: header.offset,
                        bytes: bytes.into(),
                    },
                    crc: None,
                }
            }
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
        let (_, payload) = self.placing.as_mut().expect("it was offered");
        payload.extend_from_slice(first);
        payload.resize(place.bytes as usize, 0);
        let mut socket = TcpStream::from(socket.try_clone_to_owned()?);
        socket.read_exact(&mut payload[first.len()..])?;
        if place.offset & 7 == 7 {
            return Ok(Err(DropReason::Checksum));
        }
        match socket.read(ahead) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Ok(0)),
            read => Ok(Ok(read?)),
        }
    }

    fn copy(
        &mut self,
        _: &Place,
        _: Option<u32>,
        _: &[AtomicU8],
    ) -> Result<(), DropReason> {
        unreachable!("TCP has no shared memory")
    }

    fn handle(&mut self, received: Received<'_>) {
        match received {
            Received::Packets { bytes, segment, .. } => {
                assert_eq!(segment, bytes.len(), "a frame is a packet");
                self.all.push(Arrival::Packet(bytes.to_vec()));
            }
            Received::Placed { result, .. } => {
                let (envelope, payload) = self.placing.take().expect("it was offered");
                self.all.push(match result {
                    Ok(()) => {
                        let packet = [&envelope.header[..], &payload, &envelope.trailer].concat();
                        Arrival::Packet(packet)
                    }
                    Err(_) => Arrival::Refused,
                });
            }
        }
    }
}

/// The link, and a connection to it.
struct Conversation<'a> {
    fixture: &'a mut Fixture,
    socket: TcpStream,
    arrivals: Arrivals,
    until: Instant,
}

impl Conversation<'_> {
    fn turn(&mut self) {
        assert!(
            Instant::now() < self.until,
            "the link neither reads nor closes"
        );
        let Fixture { link, poller, .. } = &mut *self.fixture;
        poller.poll(link).expect("the poller answers");
        while link.is_readable() {
            link.receive(&mut self.arrivals);
        }
        link.flush(Time::from_nanos(1));
        while link.poll_path().is_some() {}
    }

    /// Says something, as far as the link listens.
    fn say(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match (&self.socket).write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.turn(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The link has closed it.
                Err(_) => return,
            }
        }
    }

    /// Says nothing more, and waits until the link has closed it.
    fn end(&mut self) {
        // It may be closed already.
        let _ = self.socket.shutdown(Shutdown::Write);
        loop {
            self.turn();
            match (&self.socket).read(&mut [0; 1]) {
                Ok(0) => return,
                Ok(_) => panic!("a link answers nothing by itself"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[cut, at, change, at_too, change_too], mut rest)) = bytes.split_first_chunk() else {
        return;
    };
    let mut fixture = FIXTURE.lock().expect("one at a time");
    let before = *fixture.link.counters();
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, fixture.port)).expect("it listens");
    socket.set_nonblocking(true).expect("a socket can");
    let mut peer = Conversation {
        fixture: &mut fixture,
        socket,
        arrivals: Arrivals::default(),
        until: Instant::now() + PATIENCE,
    };

    let mut first = preamble();
    first[usize::from(at) % PREAMBLE_BYTES] ^= change;
    first[usize::from(at_too) % PREAMBLE_BYTES] ^= change_too;
    // Bytes of the preamble that come alone, in the first segment.
    let (early, late) = first.split_at(usize::from(cut).min(PREAMBLE_BYTES));
    peer.say(early);
    peer.turn();
    peer.say(late);

    let mut stream = Vec::new();
    while let Some(piece) = next_piece(&mut rest)
        && stream.len() < STREAM_BYTES_MAX
    {
        let begin = stream.len();
        match piece {
            Piece::Bytes(bytes) => stream.extend_from_slice(bytes),
            Piece::Data { payload, offset } => stream.extend(frame(begin, payload, offset)),
            Piece::Length { length, bytes } => {
                stream.extend(length.to_le_bytes());
                stream.extend(pattern(bytes, 0));
            }
            Piece::Pause => peer.turn(),
        }
        peer.say(&stream[begin..]);
    }
    peer.end();

    let Conversation { arrivals, .. } = peer;
    let counters = fixture.link.counters();
    let strangers = counters.strangers - before.strangers;
    let bad_frames = counters.bad_frames - before.bad_frames;
    if !is_known(&first) {
        assert_eq!((strangers, bad_frames, arrivals.all.len()), (1, 0, 0));
        return;
    }
    let (packets, is_bad) = packets_of(&stream);
    let is_refused = matches!(arrivals.all.last(), Some(Arrival::Refused));
    assert_eq!(
        (strangers, bad_frames),
        (0, u64::from(is_bad || is_refused))
    );
    if !is_refused {
        assert_eq!(
            arrivals.all.len(),
            packets.len(),
            "packets are missing or made up"
        );
    }
    for (index, (arrival, packet)) in arrivals.all.iter().zip(&packets).enumerate() {
        match arrival {
            Arrival::Packet(arrived) => assert!(arrived == packet, "packet {index} differs"),
            Arrival::Discarded(envelope) => {
                let (header, trailer) = (envelope.header, envelope.trailer);
                assert!(packet.starts_with(&header) && packet.ends_with(&trailer));
            }
            Arrival::Refused => assert_eq!(index + 1, arrivals.all.len(), "it goes on"),
        }
    }
});
