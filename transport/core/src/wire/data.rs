//! The data packet's header.

use super::field::{data, prefix};
use super::{
    CHUNK_PACKETS_MAX, ChunkNumber, ConnectionId, DropReason, HEADER_BYTES, Key, KeyPhase, Kind,
    PathId, TRAILER_BYTES, VERSION, get_u8, get_u32, get_u64, put_u8, put_u32, put_u64,
};
use serde::{Deserialize, Serialize};

/// The flag bits of a data packet. Bits that have no name are sent as 0 and refused when set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// The packet is the last of its message.
    pub const LAST: Flags = Flags(1);
    /// The message that the packet ends has an immediate.
    pub const IMMEDIATE: Flags = Flags(2);
    /// The packet was sent before.
    pub const RETRANSMITTED: Flags = Flags(4);
    /// The sender waits for the acknowledgement of the chunk; set on each packet of a chunk, and it counts
    /// when the chunk is whole.
    pub const ACK_NOW: Flags = Flags(8);
    /// Of a send without bytes: it takes its receive for a write before it, whose length stands in place of the offset.
    pub const WRITTEN: Flags = Flags(16);
    const KNOWN: u8 = 31;

    /// Whether every bit of `other` is set here.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that are not set in `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What the receiver does with the message that a data packet is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Opcode {
    /// Its bytes go where key and offset say.
    #[default]
    Write = Kind::Data as u8,
    /// Its bytes go into the receive with the number that stands for the key, at the offset.
    Send = Kind::Send as u8,
    /// It is a [`super::Request`] for what lies at key and offset; one packet.
    Request = Kind::Request as u8,
    /// It answers the request whose number stands for the key; its bytes go to the place that the request named, at the
    /// offset.
    Response = Kind::Response as u8,
}

impl Opcode {
    #[inline]
    const fn from_bits(bits: u8) -> Option<Opcode> {
        match Kind::from_bits(bits) {
            Some(Kind::Data) => Some(Opcode::Write),
            Some(Kind::Send) => Some(Opcode::Send),
            Some(Kind::Request) => Some(Opcode::Request),
            Some(Kind::Response) => Some(Opcode::Response),
            _ => None,
        }
    }
}

/// The header of a data packet, 48 B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataHeader {
    /// What its message is.
    pub opcode: Opcode,
    /// The path it is sent on.
    pub path: PathId,
    /// Its place in the chunk, from 0.
    pub packet: u8,
    /// Packets in the chunk, 1..=64.
    pub packets: u8,
    /// The receiver's name for the connection.
    pub connection: ConnectionId,
    /// Never reused within a connection and direction.
    pub packet_number: u64,
    /// The sender's clock, units of 64 ns.
    pub sent_at: u32,
    /// The chunk's number within connection and direction.
    pub chunk: ChunkNumber,
    /// The chunk's place in its message, from 0; 24 bits.
    pub chunk_index: u32,
    /// Flags.
    pub flags: Flags,
    /// The message's immediate, 0 without one; a request's number.
    pub immediate: u32,
    /// The key of the region written to or asked for; the number of a send, or of the request that is answered.
    pub key: Key,
    /// Where in the region, or in the message, this packet's payload goes, bytes.
    pub offset: u64,
}

/// The largest chunk index: 24 bits.
pub(crate) const CHUNK_INDEX_MAX: u32 = (1 << 24) - 1;

/// The bits of the packet index in the byte that it shares with the key phase.
const PACKET_BITS: u8 = 0x3f;

/// Chunk index (24 bits) and flags, one word.
const INDEX_AND_FLAGS: super::Field = data::CHUNK_INDEX.start..data::FLAGS.end;

const _: () = assert!(
    CHUNK_PACKETS_MAX <= PACKET_BITS as usize + 1,
    "every packet of a chunk has an index"
);

impl DataHeader {
    /// Writes the header, with the key phase of the seal.
    #[inline]
    pub fn emit(&self, phase: KeyPhase, out: &mut [u8; HEADER_BYTES]) {
        put_u8(
            out,
            prefix::VERSION_KIND,
            VERSION | (self.opcode as u8) << 4,
        );
        put_u8(out, prefix::PATH, self.path.0);
        put_u8(out, prefix::INDEX_PHASE, self.packet | phase.bits());
        put_u8(out, prefix::PACKETS, self.packets);
        put_u32(out, prefix::CONNECTION, self.connection.0);
        put_u64(out, prefix::PACKET_NUMBER, self.packet_number);
        put_u32(out, data::SENT_AT, self.sent_at);
        put_u32(out, data::CHUNK, self.chunk.0);
        let word = self.chunk_index & CHUNK_INDEX_MAX | u32::from(self.flags.0) << 24;
        put_u32(out, INDEX_AND_FLAGS, word);
        put_u32(out, data::IMMEDIATE, self.immediate);
        put_u64(out, data::KEY, self.key.0);
        put_u64(out, data::OFFSET, self.offset);
    }

    /// Reads the header of a datagram; version and kind are checked, fields are range-checked,
    /// nothing is authenticated.
    ///
    /// # Errors
    /// [`DropReason::Truncated`], [`DropReason::Version`], [`DropReason::Kind`] or
    /// [`DropReason::Malformed`].
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<DataHeader, DropReason> {
        if datagram.len() < HEADER_BYTES + TRAILER_BYTES {
            return Err(DropReason::Truncated);
        }
        DataHeader::read(datagram.first_chunk().ok_or(DropReason::Truncated)?)
    }

    /// The same of the bytes of the header alone.
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<DataHeader, DropReason> {
        let first = get_u8(bytes, prefix::VERSION_KIND);
        if first & 0x0f != VERSION {
            return Err(DropReason::Version);
        }
        let opcode = Opcode::from_bits(first >> 4).ok_or(DropReason::Kind)?;
        let word = get_u32(bytes, INDEX_AND_FLAGS);
        let header = DataHeader {
            opcode,
            path: PathId(get_u8(bytes, prefix::PATH)),
            packet: get_u8(bytes, prefix::INDEX_PHASE) & PACKET_BITS,
            packets: get_u8(bytes, prefix::PACKETS),
            connection: ConnectionId(get_u32(bytes, prefix::CONNECTION)),
            packet_number: get_u64(bytes, prefix::PACKET_NUMBER),
            sent_at: get_u32(bytes, data::SENT_AT),
            chunk: ChunkNumber(get_u32(bytes, data::CHUNK)),
            chunk_index: word & CHUNK_INDEX_MAX,
            flags: Flags((word >> 24) as u8),
            immediate: get_u32(bytes, data::IMMEDIATE),
            key: Key(get_u64(bytes, data::KEY)),
            offset: get_u64(bytes, data::OFFSET),
        };
        let sound = header.packets as usize <= CHUNK_PACKETS_MAX
            && header.packet < header.packets
            && header.flags.0 & !Flags::KNOWN == 0;
        if sound {
            Ok(header)
        } else {
            Err(DropReason::Malformed)
        }
    }
}

/// The header of the packet that follows another one in its chunk, word by word as it stands in the datagram: only the
/// index, the number and the offset differ. What follows so needs no second parsing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowingHeader([u64; HEADER_BYTES / 8]);

impl FollowingHeader {
    /// What follows a packet with this header and `payload` bytes, which is not the last of its chunk.
    #[inline]
    pub(crate) fn after(header: &[u8; HEADER_BYTES], payload: u64) -> FollowingHeader {
        let mut next = FollowingHeader(words(header));
        next.advance(payload);
        next
    }

    /// Whether it is this header.
    #[inline]
    pub(crate) fn is(&self, header: &[u8; HEADER_BYTES]) -> bool {
        // Not by `==`, which calls memcmp.
        let pairs = words(header).into_iter().zip(self.0);
        pairs.fold(0, |differs, (there, here)| differs | (there ^ here)) == 0
    }

    /// The packet with this header has `payload` bytes: what follows that one.
    #[inline]
    pub(crate) fn advance(&mut self, payload: u64) {
        self.0[0] = self.0[0].wrapping_add(1 << (8 * prefix::INDEX_PHASE.start));
        self.0[1] = self.0[1].wrapping_add(1);
        self.0[5] = self.0[5].wrapping_add(payload);
    }

    #[inline]
    pub(crate) fn packet_number(&self) -> u64 {
        self.0[1]
    }

    #[inline]
    pub(crate) fn connection(&self) -> ConnectionId {
        ConnectionId((self.0[0] >> 32) as u32)
    }

    #[inline]
    pub(crate) fn key(&self) -> Key {
        Key(self.0[4])
    }

    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.0[5]
    }
}

const _: () = assert!(
    prefix::CONNECTION.start == 4
        && prefix::PACKET_NUMBER.start == 8
        && data::KEY.start == 32
        && data::OFFSET.start == 40,
    "a following header knows them as words"
);

#[inline]
fn words(header: &[u8; HEADER_BYTES]) -> [u64; HEADER_BYTES / 8] {
    core::array::from_fn(|word| get_u64(header, word * 8..word * 8 + 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_header()(
            packets in 1u8..=64, path: u8, connection: u32, packet_number: u64, sent_at: u32,
            chunk: u32, chunk_index in 0..=CHUNK_INDEX_MAX, flags in 0u8..=Flags::KNOWN, kind in 0usize..4,
            immediate: u32, key: u64, offset: u64, pick: prop::sample::Index,
        ) -> DataHeader {
            DataHeader {
                opcode: [Opcode::Write, Opcode::Send, Opcode::Request, Opcode::Response][kind],
                path: PathId(path), packet: pick.index(packets as usize) as u8, packets,
                connection: ConnectionId(connection), packet_number, sent_at,
                chunk: ChunkNumber(chunk), chunk_index, flags: Flags(flags), immediate,
                key: Key(key), offset,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed_back(
            header in any_header(), phase: u8, payload in 0usize..100,
        ) {
            let phase = KeyPhase::from_bits(phase);
            let mut bytes = [0u8; HEADER_BYTES];
            header.emit(phase, &mut bytes);
            let mut datagram = bytes.to_vec();
            datagram.resize(HEADER_BYTES + payload + TRAILER_BYTES, 0);
            prop_assert_eq!(DataHeader::parse(&datagram), Ok(header));
            prop_assert_eq!(crate::wire::peek(&datagram).map(|peek| peek.phase), Ok(phase));
        }

        #[test]
        fn what_follows_a_packet_is_its_header_with_the_next_index_number_and_offset(
            header in any_header(), phase: u8, payload: u16, changed in 0..HEADER_BYTES,
        ) {
            prop_assume!(header.packet + 1 < header.packets);
            let phase = KeyPhase::from_bits(phase);
            let emitted = |header: DataHeader| {
                let mut bytes = [0u8; HEADER_BYTES];
                header.emit(phase, &mut bytes);
                bytes
            };
            let following = DataHeader {
                packet: header.packet + 1,
                packet_number: header.packet_number.wrapping_add(1),
                offset: header.offset.wrapping_add(payload.into()),
                ..header
            };
            let next = FollowingHeader::after(&emitted(header), payload.into());
            let mut header = emitted(following);
            prop_assert!(next.is(&header));
            prop_assert_eq!(next.packet_number(), following.packet_number);
            prop_assert_eq!((next.key(), next.offset()), (following.key, following.offset));
            header[changed] ^= 1;
            prop_assert!(!next.is(&header), "byte {changed} differs");
        }

        #[test]
        fn no_bytes_make_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = DataHeader::parse(&bytes);
        }
    }
}
