//! A host: an endpoint and its worker's loop. The simulator, the tests, the benchmarks and the fuzz targets all
//! turn their endpoints here.
//!
//! Payload is named by the write's token ([`pattern`]), unless the environment has a buffer for it: the receiving
//! end can say what must be there.

use weft_core::connection::{Chunk, ChunkSource, Event, Failure};
use weft_core::endpoint::{Endpoint, Transmit};
use weft_core::memory::Memory;
use weft_core::received::Received;
use weft_core::units::{ConnectionId, Key, PathId, Source, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, OVERHEAD_BYTES, Reset};

use crate::pattern;

/// Datagrams that travel together: all but the last are `segment` bytes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// The host that they left.
    pub from: usize,
    /// The host that they reach.
    pub to: usize,
    /// The path that they take, in the numbering of either end.
    pub path: PathId,
    /// Marked congestion-experienced.
    pub ce: bool,
    /// Bytes of each but the last.
    pub segment: usize,
    /// The datagrams, one behind the other.
    pub bytes: Vec<u8>,
}

/// What surrounds an endpoint in a turn: its memory, the network, and everybody who watches.
pub trait Environment: Memory {
    /// An empty buffer for datagrams.
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// What a Reset in the name of this host proves itself with.
    fn reset_token(&self, to: usize, connection: ConnectionId) -> u64;

    /// What the write `token` holds from `offset` on: to its end, or at least as much as a chunk.
    fn content(&self, token: u64, offset: u64) -> &[u8] {
        pattern::from(token, offset)
    }

    /// What a region of this host holds from `offset` on, for an answer to a read. `None`: it is closed.
    fn region(&self, key: Key, offset: u64) -> Option<&[u8]> {
        let _ = (key, offset);
        Some(&[])
    }

    /// Chunks that the link takes in this turn.
    fn chunks(&self) -> u32 {
        u32::MAX
    }

    /// A chunk is handed to the link. Answers whether the link takes another one in this turn.
    fn takes_more(&mut self, connection: ConnectionId, chunk: &Chunk) -> bool {
        let _ = (connection, chunk);
        true
    }

    /// Sends datagrams.
    fn send(&mut self, datagrams: Datagrams);

    /// The endpoint has taken in datagrams that had arrived.
    fn received(&mut self, datagrams: &Datagrams, endpoint: &Endpoint<usize>) {
        let _ = (datagrams, endpoint);
    }
}

/// One host with one worker.
#[derive(Debug)]
pub struct Host {
    /// Its number, by which the others know it.
    pub index: usize,
    /// Its NIC queue.
    pub endpoint: Endpoint<usize>,
    /// Where control packets are written.
    control: Box<[u8; CONTROL_BYTES_MAX]>,
}

impl Host {
    /// A host with an endpoint.
    pub fn new(index: usize, endpoint: Endpoint<usize>) -> Host {
        Host {
            index,
            endpoint,
            control: Box::new([0; CONTROL_BYTES_MAX]),
        }
    }

    /// One turn: takes in everything that has arrived, sends what there is to send, takes the events.
    pub fn turn(
        &mut self,
        now: Time,
        arrived: &mut [Datagrams],
        environment: &mut impl Environment,
        on_event: impl FnMut(ConnectionId, Event),
    ) {
        self.exchange(now, arrived, environment);
        self.take_events(on_event);
    }

    /// A turn whose events stay where they are.
    pub fn exchange(
        &mut self,
        now: Time,
        arrived: &mut [Datagrams],
        environment: &mut impl Environment,
    ) {
        for datagrams in arrived {
            let received = Received::Packets {
                from: source(datagrams.from),
                ce: datagrams.ce,
                bytes: &mut datagrams.bytes,
                segment: datagrams.segment,
            };
            self.endpoint.handle(now, received, environment);
            environment.received(datagrams, &self.endpoint);
        }
        let mut gone = Vec::new();
        let mut sending = self.endpoint.send(now, true, environment.chunks());
        let buffer = &mut *self.control;
        let outgoing = |to, path, segment, bytes| Datagrams {
            from: self.index,
            to,
            path,
            ce: false,
            segment,
            bytes,
        };
        while let Some(transmit) = sending.poll_transmit(now, buffer) {
            match transmit {
                Transmit::Chunk {
                    connection,
                    peer,
                    chunk,
                } => {
                    let to = *peer;
                    let more = environment.takes_more(connection, &chunk);
                    let mut bytes = environment.buffer();
                    let start = chunk.payload(0).start;
                    let content = match &chunk.source {
                        ChunkSource::Posted { token } => environment.content(*token, start),
                        ChunkSource::Region(place) => {
                            match environment.region(place.key, place.offset + start) {
                                Some(content) => content,
                                None => {
                                    gone.push((connection, chunk));
                                    continue;
                                }
                            }
                        }
                        ChunkSource::Inline(bytes) => bytes.get(start as usize..).unwrap_or(&[]),
                    };
                    let segment = seal(&chunk, content, &mut bytes);
                    environment.send(outgoing(to, chunk.path, segment, bytes));
                    if !more {
                        break;
                    }
                }
                Transmit::Control {
                    peer, path, bytes, ..
                } => {
                    let mut packet = environment.buffer();
                    packet.extend_from_slice(&buffer[..bytes]);
                    environment.send(outgoing(*peer, path, bytes, packet));
                }
                Transmit::Reset(reset) => {
                    let to = usize::from(reset.to.0[HOST_BYTE]);
                    let packet = Reset {
                        path: reset.path,
                        connection: reset.connection,
                        token: environment.reset_token(to, reset.connection),
                    }
                    .emit();
                    let mut bytes = environment.buffer();
                    bytes.extend_from_slice(&packet);
                    environment.send(outgoing(to, reset.path, packet.len(), bytes));
                }
            }
        }
        drop(sending);
        for (connection, chunk) in gone {
            let failure = Failure::SourceClosed;
            self.endpoint.fail_chunk(connection, &chunk, failure);
        }
    }

    /// Hands every event out.
    pub fn take_events(&mut self, mut on_event: impl FnMut(ConnectionId, Event)) {
        while let Some((connection, event)) = self.endpoint.poll_event() {
            on_event(connection, event);
        }
    }
}

/// The byte of a source that holds the host's number.
const HOST_BYTE: usize = 15;

/// Where packets of a host come from.
fn source(host: usize) -> Source {
    let mut source = Source([0; Source::BYTES]);
    source.0[HOST_BYTE] = host as u8;
    source
}

/// Writes the datagrams of a chunk; `content` begins with the payload of the first. Returns the length of the first.
fn seal(chunk: &Chunk, content: &[u8], bytes: &mut Vec<u8>) -> usize {
    let first = chunk.payload(0);
    bytes.resize(chunk.wire_bytes() as usize, 0);
    let mut room = &mut bytes[..];
    for i in 0..chunk.packets() {
        let range = chunk.payload(i);
        let at = (range.start - first.start) as usize;
        let payload = &content[at..at + (range.end - range.start) as usize];
        let length = chunk.seal(i, payload, room);
        room = &mut room[length..];
    }
    (first.end - first.start) as usize + OVERHEAD_BYTES
}
