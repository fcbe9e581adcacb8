//! The packet formats: what stands in a datagram, byte by byte (tables in `docs/wire.md`).
//!
//! Encoding and decoding only; no state. Decoding never panics and never allocates. The connection
//! builds and reads packets through this module; a worker calls [`peek`] to find the connection.
//!
//! All fields are little endian. A data packet is a 48 B header, payload, and a 16 B trailer. A
//! control packet is a 16 B prefix, a body and the same trailer.

use crate::drops::DropReason;
use crate::units::{ChunkNumber, ConnectionId, Key, PathId};

mod ack;
mod control;
mod data;
pub mod field;
mod key_phase;
mod request;
mod revoke;
mod seal;

pub use ack::{Ack, AckReader, Echo, Partial};
pub(crate) use ack::{
    ECHOES_MAX as ACK_ECHOES_MAX, MAP_WORDS_MAX as ACK_MAP_WORDS_MAX,
    PARTIALS_MAX as ACK_PARTIALS_MAX,
};
pub use control::{Control, Credit, Probe, Refusal, Refused, RequestToSend, Reset};
pub(crate) use data::{CHUNK_INDEX_MAX, FollowingHeader};
pub use data::{DataHeader, Flags, Opcode};
pub use field::Field;
pub use key_phase::KeyPhase;
pub use request::{Atomic, Request};
pub(crate) use revoke::REVOCATIONS_MAX;
pub use revoke::{Revoke, Revoked};
pub(crate) use seal::LONG_BYTES;
pub use seal::{Cipher, Envelope, Integrity, OpenedData, PacketKey, Seal, Secret, payload_crc};

/// The wire version: the low four bits of every datagram's first byte.
pub const VERSION: u8 = 1;

/// Bytes of a data packet's header.
pub const HEADER_BYTES: usize = 48;

/// Bytes of the trailer of every sealed packet.
pub const TRAILER_BYTES: usize = 16;

/// What Weft adds to a data packet's payload.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TRAILER_BYTES;

/// Bytes of the prefix that all packets share.
pub const PREFIX_BYTES: usize = 16;

/// The longest probe: what fits the largest MTU of Ethernet switches, some 9,216 bytes. Where packets are longer,
/// over loopback, no switch drops them by their length.
pub const PROBE_BYTES_MAX: usize = 9_000;

/// The longest control packet: a probe. All others fit any path's MTU.
pub const CONTROL_BYTES_MAX: usize = PROBE_BYTES_MAX;

/// What a control packet's number starts from. Data packets count from a drawn number below 2^32 and control
/// packets from another one beyond this, so that a number is never used twice under one key.
pub const CONTROL_PACKET_NUMBERS: u64 = 1 << 63;

/// The packets of one chunk at most: one bit each in a 64-bit map, one GSO send.
pub const CHUNK_PACKETS_MAX: usize = 64;

const _: () = assert!(
    ack::ACK_BYTES_MAX <= 1_200,
    "an acknowledgement fits any path's MTU"
);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// The kind of a packet: the high four bits of its first byte.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $value,)*
        }

        impl Kind {
            /// Every kind, by value.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            const fn from_bits(bits: u8) -> Option<Kind> {
                match bits {
                    $($value => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// A piece of a chunk.
    Data = 0,
    /// What has arrived.
    Ack = 1,
    /// Asks whether a path is alive: its answer is the echo in an [`Kind::Ack`].
    Probe = 2,
    /// How much the receiver lets the sender send.
    Credit = 3,
    /// Asks the receiver to read its memory, or to change a word of it: a message of one packet.
    Request = 4,
    /// The receiver knows no such connection.
    Reset = 5,
    /// Revokes a message: the receiver is to place no more of it.
    Revoke = 6,
    /// Nothing more of a revoked message is placed.
    Revoked = 7,
    /// A write that the receiver does not place, and why.
    Refusal = 8,
    /// A piece of a chunk of a message that the receiver chooses the memory for.
    Send = 9,
    /// Reserved: a data packet that a switch has cut to its header instead of dropping it.
    Trimmed = 10,
    /// How much the sender wants to send: asks for a [`Kind::Credit`].
    RequestToSend = 11,
    /// A piece of a chunk of the response to a [`Kind::Request`].
    Response = 12,
}

impl Kind {
    const fn first_byte(self) -> u8 {
        VERSION | (self as u8) << 4
    }
}

/// What a worker must know of a datagram to hand it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peek {
    /// The packet's kind.
    pub kind: Kind,
    /// The path it was sent on.
    pub path: PathId,
    /// The connection it names: the receiver's id, and in a [`Kind::Reset`] the sender's.
    pub connection: ConnectionId,
    /// The key that it is sealed with.
    pub phase: KeyPhase,
}

/// Reads the prefix of a datagram. Nothing is authenticated yet.
///
/// # Errors
/// [`DropReason::Truncated`], [`DropReason::Version`] or [`DropReason::Kind`].
pub fn peek(datagram: &[u8]) -> Result<Peek, DropReason> {
    let prefix = Prefix::of(datagram)?;
    Ok(Peek {
        kind: prefix.kind()?,
        path: prefix.path(),
        connection: prefix.connection(),
        phase: prefix.phase(),
    })
}

/// The prefix of a datagram, read field by field: a [`Peek`] in a result is stored and loaded again in another width,
/// and every packet waits for that.
#[derive(Clone, Copy)]
pub(crate) struct Prefix<'a>(&'a [u8; PREFIX_BYTES]);

impl<'a> Prefix<'a> {
    /// That of a packet of our version.
    #[inline]
    pub(crate) fn of(datagram: &'a [u8]) -> Result<Prefix<'a>, DropReason> {
        let prefix = Prefix(datagram.first_chunk().ok_or(DropReason::Truncated)?);
        match prefix.first() & 0x0f {
            VERSION => Ok(prefix),
            _ => Err(DropReason::Version),
        }
    }

    /// Version and kind.
    #[inline]
    fn first(self) -> u8 {
        get_u8(self.0, field::prefix::VERSION_KIND)
    }

    #[inline]
    pub(crate) fn kind(self) -> Result<Kind, DropReason> {
        Kind::from_bits(self.first() >> 4).ok_or(DropReason::Kind)
    }

    #[inline]
    pub(crate) fn path(self) -> PathId {
        PathId(get_u8(self.0, field::prefix::PATH))
    }

    #[inline]
    pub(crate) fn connection(self) -> ConnectionId {
        ConnectionId(get_u32(self.0, field::prefix::CONNECTION))
    }

    #[inline]
    pub(crate) fn phase(self) -> KeyPhase {
        KeyPhase::from_bits(get_u8(self.0, field::prefix::INDEX_PHASE))
    }
}

fn get_u8(bytes: &[u8], field: Field) -> u8 {
    bytes[field.start]
}

fn get_u16(bytes: &[u8], field: Field) -> u16 {
    u16::from_le_bytes([bytes[field.start], bytes[field.start + 1]])
}

fn get_u32(bytes: &[u8], field: Field) -> u32 {
    let mut word = [0u8; 4];
    word.copy_from_slice(&bytes[field]);
    u32::from_le_bytes(word)
}

fn get_u64(bytes: &[u8], field: Field) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&bytes[field]);
    u64::from_le_bytes(word)
}

fn put_u8(bytes: &mut [u8], field: Field, value: u8) {
    bytes[field.start] = value;
}

fn put_u16(bytes: &mut [u8], field: Field, value: u16) {
    bytes[field].copy_from_slice(&value.to_le_bytes());
}

fn put_u32(bytes: &mut [u8], field: Field, value: u32) {
    bytes[field].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], field: Field, value: u64) {
    bytes[field].copy_from_slice(&value.to_le_bytes());
}

/// Writes the prefix of a control packet.
fn put_prefix(
    out: &mut [u8],
    kind: Kind,
    phase: KeyPhase,
    path: PathId,
    connection: ConnectionId,
    number: u64,
) {
    use field::prefix;
    put_u8(out, prefix::VERSION_KIND, kind.first_byte());
    put_u8(out, prefix::PATH, path.0);
    put_u8(out, prefix::INDEX_PHASE, phase.bits());
    put_u8(out, prefix::PACKETS, 0);
    put_u32(out, prefix::CONNECTION, connection.0);
    put_u64(out, prefix::PACKET_NUMBER, number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_back_and_no_other_value_is_one() {
        let kinds: Vec<Kind> = (0..16).filter_map(Kind::from_bits).collect();
        assert_eq!(kinds, Kind::ALL);
    }

    #[test]
    fn the_fields_of_a_part_follow_each_other_without_gap() {
        for (part, fields) in field::ALL {
            for pair in fields.windows(2) {
                assert_eq!(pair[0].1.end, pair[1].1.start, "{part}: {}", pair[1].0);
            }
        }
    }
}
