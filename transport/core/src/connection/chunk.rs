//! A chunk on its way out: which bytes, which path, and the headers.

use super::work::Pages;
use crate::memory::Place;
use crate::units::{ChunkNumber, PathId};
use crate::wire::{DataHeader, Flags, LONG_BYTES, Seal};
use core::convert::Infallible;
use core::ops::Range;
use serde::{Deserialize, Serialize};

/// Where the bytes of a message lie.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ChunkSource {
    /// With who posted the work request.
    Posted {
        /// The work request's.
        token: u64,
    },
    /// In a region here that the peer reads: it was open to reads when the peer asked. If it is closed by now:
    /// [`Endpoint::fail_chunk`](crate::endpoint::Endpoint::fail_chunk).
    Region(Place),
    /// Here.
    Inline(Box<[u8]>),
}

/// A descriptor of one send: its packets, or those of them that are missing at the peer. The link
/// gathers the payload; the core touches it only to seal it.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The path to send it on.
    pub path: PathId,
    /// Its number.
    pub number: ChunkNumber,
    /// Where the bytes of the message lie that it is cut from.
    pub source: ChunkSource,
    pub(super) first: DataHeader,
    /// The packets to send.
    pub(super) map: u64,
    /// How many they are.
    pub(super) packets: u8,
    /// Bytes of their datagrams.
    pub(super) wire_bytes: u32,
    /// Where in the message the chunk's payload starts.
    pub(super) start: u64,
    /// Where the pages go that the message consists of; the header's offset means nothing then.
    pub(super) pages: Option<Pages>,
    /// The chunk's payload, bytes.
    pub(super) length: u32,
    pub(super) packet_payload: u16,
    pub(super) seal: Seal,
}

impl Chunk {
    /// Whether it was sent before.
    pub fn is_resent(&self) -> bool {
        self.first.flags.contains(Flags::RETRANSMITTED)
    }

    /// How many datagrams it is now.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.packets.into()
    }

    /// Bytes of its datagrams, headers and trailers included.
    #[inline]
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes.into()
    }

    /// The place in the chunk of the `i`-th datagram to send.
    #[inline]
    fn index(&self, i: u32) -> u32 {
        if self.map & (self.map.wrapping_add(1)) == 0 {
            return i;
        }
        let mut map = self.map;
        for _ in 0..i {
            map &= map.wrapping_sub(1);
        }
        map.trailing_zeros()
    }

    /// The bytes of the message that the `i`-th datagram carries.
    #[inline]
    pub fn payload(&self, i: u32) -> Range<u64> {
        let step = u32::from(self.packet_payload);
        let start = self.index(i) * step;
        let end = (start + step).min(self.length);
        self.start + u64::from(start)..self.start + u64::from(end)
    }

    /// Writes the `i`-th datagram, header, payload and trailer, to the start of `out`; returns its
    /// length. `payload` is what [`Chunk::payload`] names. Of two datagrams that were written for
    /// one `i` at most one may be sent: both have the same packet number.
    ///
    /// # Panics
    /// If `out` is shorter than the payload and [`crate::wire::OVERHEAD_BYTES`].
    #[inline(always)]
    pub fn seal(&self, i: u32, payload: &[u8], out: &mut [u8]) -> usize {
        match payload.len() >= LONG_BYTES {
            true => self.seal_long(i, payload, out),
            false => self.seal.seal_data(&self.header(i), payload, out),
        }
    }

    #[cold]
    fn seal_long(&self, i: u32, payload: &[u8], out: &mut [u8]) -> usize {
        let sealed: Result<usize, Infallible> = self.seal_with(i, payload.len(), out, |room| {
            room.copy_from_slice(payload);
            Ok(())
        });
        match sealed {
            Ok(length) => length,
        }
    }

    /// The same where the payload, of `bytes` bytes, does not lie in one piece that nobody changes: `fill` writes it to where it
    /// is sent from.
    ///
    /// # Errors
    /// Those of `fill`: the datagram means nothing then.
    ///
    /// # Panics
    /// As [`Chunk::seal`].
    #[inline]
    pub fn seal_with<E>(
        &self,
        i: u32,
        bytes: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.seal.seal_data_with(&self.header(i), bytes, out, fill)
    }

    #[inline(always)]
    fn header(&self, i: u32) -> DataHeader {
        let index = self.index(i);
        let (mut flags, mut immediate) = (self.first.flags, self.first.immediate);
        if index + 1 < u32::from(self.first.packets) {
            // The last packet alone ends the message.
            flags = flags.without(Flags::LAST.with(Flags::IMMEDIATE));
            immediate = 0;
        }
        let at = u64::from(index * u32::from(self.packet_payload));
        let offset = match &self.pages {
            None => self.first.offset + at,
            Some(pages) => pages.place_of(self.start + at),
        };
        DataHeader {
            packet: index as u8,
            flags,
            immediate,
            packet_number: self.first.packet_number + u64::from(i),
            offset,
            ..self.first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::transmit::wire_bytes;
    use super::*;
    use crate::recovery::Sent;
    use crate::units::{ConnectionId, Key};
    use crate::wire::{OVERHEAD_BYTES, Opcode, Secret};

    #[test]
    fn the_bytes_of_any_packets_of_a_chunk_are_the_bytes_of_their_datagrams() {
        for length in [0u32, 1, 100, 101, 250, 300] {
            let packets = length.div_ceil(100).max(1) as u8;
            for map in 1..1 << packets {
                let first = DataHeader {
                    opcode: Opcode::Write,
                    path: PathId(0),
                    packet: 0,
                    packets,
                    connection: ConnectionId(1),
                    packet_number: 0,
                    sent_at: 0,
                    chunk: ChunkNumber(0),
                    chunk_index: 0,
                    flags: Flags::NONE,
                    immediate: 0,
                    key: Key(1),
                    offset: 0,
                };
                let sent = Sent {
                    length,
                    packets,
                    payload: 100,
                    ..Sent::default()
                };
                let chunk = Chunk {
                    path: PathId(0),
                    number: ChunkNumber(0),
                    source: ChunkSource::Posted { token: 0 },
                    pages: None,
                    first,
                    map,
                    packets: map.count_ones() as u8,
                    wire_bytes: wire_bytes(&sent, map),
                    start: 0,
                    length,
                    packet_payload: 100,
                    seal: Seal::new(&Secret([7; 32])),
                };
                let datagrams = (0..chunk.packets()).map(|i| {
                    let payload = chunk.payload(i);
                    payload.end - payload.start + OVERHEAD_BYTES as u64
                });
                let expected: u64 = datagrams.sum();
                assert_eq!(chunk.wire_bytes(), expected, "{length} B, packets {map:b}");
            }
        }
    }
}
