//! What protects a packet: a keyed hash and a checksum, an AEAD cipher, or the link alone.
//!
//! One [`Seal`] protects the packets of one direction of a connection in one key phase. The cipher itself is
//! not in this crate, which builds without C and for wasm32: it comes in as a [`Cipher`].

use super::{
    DataHeader, HEADER_BYTES, KeyPhase, OVERHEAD_BYTES, PREFIX_BYTES, TRAILER_BYTES, field,
    get_u32, get_u64, put_u32, put_u64,
};
use crate::drops::DropReason;
use core::hash::Hasher as _;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::sync::Arc;

/// What protects the packets of a connection; the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Integrity {
    /// A keyed hash authenticates the header and the payload's CRC32C, which finds damage. Neither hides
    /// anything, and the CRC is not keyed: an attacker who can change packets can change the payload.
    #[default]
    Sealed,
    /// As [`Integrity::Sealed`] for a connection to a multicast group: a switch rewrites connection id, key
    /// and offset at the last hop, so these lie outside the hash.
    SealedGroup,
    /// AES-128-GCM encrypts payload and body and authenticates all of the packet.
    Aead,
    /// Nothing: the link itself protects what it carries.
    Trusted,
    /// A keyed hash authenticates headers and control packets, so nobody speaks for another connection. Nothing checks the
    /// payload: the link keeps it whole, as shared memory of one node does.
    SealedHeader,
}

impl Integrity {
    /// Its name in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Integrity::Sealed => "sealed",
            Integrity::SealedGroup => "sealed-group",
            Integrity::Aead => "aead",
            Integrity::Trusted => "trusted",
            Integrity::SealedHeader => "sealed-header",
        }
    }

    /// Its value in the settings that both ends exchange.
    pub const fn code(self) -> u32 {
        match self {
            Integrity::Sealed => 0,
            Integrity::SealedGroup => 1,
            Integrity::Aead => 2,
            Integrity::Trusted => 3,
            Integrity::SealedHeader => 4,
        }
    }

    /// The integrity of a value in the settings of the peer.
    pub const fn from_code(code: u32) -> Option<Integrity> {
        match code {
            0 => Some(Integrity::Sealed),
            1 => Some(Integrity::SealedGroup),
            2 => Some(Integrity::Aead),
            3 => Some(Integrity::Trusted),
            4 => Some(Integrity::SealedHeader),
            _ => None,
        }
    }
}

/// 32 secret bytes for one direction of a connection, exchanged over the control API.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

/// Never prints the secret.
impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// An AEAD cipher with tags of 16 bytes, and how its keys are derived.
pub trait Cipher: core::fmt::Debug + Send + Sync {
    /// The key that `secret` stands for.
    fn packet_key(&self, secret: &Secret) -> Arc<dyn PacketKey>;

    /// The secret of the key phase after the one of `secret`.
    fn next_secret(&self, secret: &Secret) -> Secret;

    /// Packets that an end seals under one key before it changes to the next.
    fn key_phase_packets(&self) -> u64;
}

/// One key of a [`Cipher`]. A packet number is the nonce: it is used once with each key.
pub trait PacketKey: core::fmt::Debug + Send + Sync {
    /// Encrypts `body` in place; returns the tag that authenticates `header` and `body`.
    fn seal(&self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TRAILER_BYTES];

    /// Decrypts `body`, which ends in its tag, in place. Answers whether header and body are authentic; if
    /// not, what `body` holds means nothing.
    #[must_use]
    fn open(&self, packet_number: u64, header: &[u8], body: &mut [u8]) -> bool;
}

/// The key of the keyed hash: SipHash-1-3 (Aumasson and Bernstein, 2012; docs/decisions/0006) under the first
/// half of the direction's secret. A key, and not a hasher made from it: a hasher made on the spot is known to
/// be empty, and the compiler drops what deals with bytes left over.
#[derive(Clone, Copy)]
struct HashKey(u64, u64);

/// Never prints the key.
impl core::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }

    /// That of a header whose payload has no checksum. Apart, so that the hash of others stays in their path.
    #[cold]
    #[inline(never)]
    fn header_hash(self, header: &[u8; HEADER_BYTES], crc: u32) -> u64 {
        self.data_hash(header, crc)
    }

    /// The hash of a data packet's header and the CRC after it, 52 B. Word by word, so that the compiler sees
    /// a fixed length and no loop: a tenth less of the core's time per chunk than by the slice.
    #[inline(always)]
    fn data_hash(self, header: &[u8; HEADER_BYTES], crc: u32) -> u64 {
        let mut hasher = self.hasher();
        for at in (0..HEADER_BYTES).step_by(8) {
            hasher.write_u64(get_u64(header, at..at + 8));
        }
        hasher.write_u32(crc);
        hasher.finish()
    }

    /// The same for a group's packet, with zeros for what a switch rewrites.
    #[cold]
    fn group_hash(self, header: &[u8; HEADER_BYTES], crc: u32) -> u64 {
        let mut fixed = *header;
        for rewritten in [
            field::prefix::CONNECTION,
            field::data::KEY,
            field::data::OFFSET,
        ] {
            fixed[rewritten].fill(0);
        }
        self.data_hash(&fixed, crc)
    }
}

#[derive(Clone, Debug)]
enum Protection {
    Hash(HashKey),
    GroupHash(HashKey),
    Aead(Arc<dyn PacketKey>),
    Trusted,
    /// Of the header alone: the checksum beside it is 0.
    HeaderHash(HashKey),
}

/// Protects the packets of one direction in one key phase: seals what is sent, opens what is received.
#[derive(Clone, Debug)]
pub struct Seal {
    protection: Protection,
    phase: KeyPhase,
}

/// What stands around the payload of a data packet: a link that writes payload into place has read it before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The header, as it stands there.
    pub header: [u8; HEADER_BYTES],
    /// The trailer.
    pub trailer: [u8; TRAILER_BYTES],
}

/// A data packet that is authentic. In [`Integrity::Sealed`] the payload may still be damaged.
#[derive(Clone, Copy, Debug)]
pub struct OpenedData<'a> {
    /// Its header, as it stands there.
    pub header: &'a [u8; HEADER_BYTES],
    /// Its payload, decrypted.
    pub payload: &'a [u8],
    /// The payload's CRC32C where that is what shows damage.
    crc: Option<u32>,
}

impl OpenedData<'_> {
    /// Checks the payload for damage: the last check before it is placed, once it is known that the packet is
    /// wanted.
    ///
    /// # Errors
    /// [`DropReason::Checksum`].
    #[inline]
    pub fn check_payload(&self) -> Result<(), DropReason> {
        match self.crc {
            Some(crc) if payload_crc(self.payload) != crc => Err(DropReason::Checksum),
            _ => Ok(()),
        }
    }
}

impl Seal {
    /// The seal of [`Integrity::Sealed`].
    pub fn new(secret: &Secret) -> Seal {
        Seal {
            protection: Protection::Hash(HashKey(
                get_u64(&secret.0, 0..8),
                get_u64(&secret.0, 8..16),
            )),
            phase: KeyPhase::FIRST,
        }
    }

    /// The seal of one direction with the secret of this key phase.
    pub fn with(
        integrity: Integrity,
        secret: &Secret,
        phase: KeyPhase,
        cipher: &dyn Cipher,
    ) -> Seal {
        let hash = HashKey(get_u64(&secret.0, 0..8), get_u64(&secret.0, 8..16));
        let protection = match integrity {
            Integrity::Sealed => Protection::Hash(hash),
            Integrity::SealedGroup => Protection::GroupHash(hash),
            Integrity::Aead => Protection::Aead(cipher.packet_key(secret)),
            Integrity::Trusted => Protection::Trusted,
            Integrity::SealedHeader => Protection::HeaderHash(hash),
        };
        Seal { protection, phase }
    }

    /// Its key phase.
    #[inline]
    pub fn phase(&self) -> KeyPhase {
        self.phase
    }

    /// Writes a data packet to the start of `out`; returns its length. The header's key phase is this seal's.
    ///
    /// # Panics
    /// If `out` is shorter than the payload and [`OVERHEAD_BYTES`].
    #[inline]
    pub fn seal_data(&self, header: &DataHeader, payload: &[u8], out: &mut [u8]) -> usize {
        let length = payload.len() + OVERHEAD_BYTES;
        let (front, rest) = out[..length]
            .split_first_chunk_mut::<HEADER_BYTES>()
            .expect("a packet is longer than a header");
        let (middle, trailer) = rest.split_at_mut(payload.len());
        header.emit(self.phase, front);
        // The checksum first: it brings the payload into the cache that the copy reads from.
        let (hash, crc) = match &self.protection {
            Protection::Hash(key) => {
                let crc = payload_crc(payload);
                (key.data_hash(front, crc), crc)
            }
            Protection::GroupHash(key) => {
                let crc = payload_crc(payload);
                (key.group_hash(front, crc), crc)
            }
            Protection::Aead(key) => {
                middle.copy_from_slice(payload);
                trailer.copy_from_slice(&key.seal(header.packet_number, front, middle));
                return length;
            }
            Protection::Trusted => (0, 0),
            Protection::HeaderHash(key) => (key.header_hash(front, 0), 0),
        };
        middle.copy_from_slice(payload);
        put_u64(trailer, field::trailer::HASH, hash);
        put_u32(trailer, field::trailer::CRC, crc);
        put_u32(trailer, field::trailer::ZERO, 0);
        length
    }

    /// The same of a payload of `bytes` bytes that `fill` writes, or fails to write: it is written where it is sent from, and its
    /// checksum is taken there.
    pub(crate) fn seal_data_with<E>(
        &self,
        header: &DataHeader,
        bytes: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let length = bytes + OVERHEAD_BYTES;
        let (front, rest) = out[..length]
            .split_first_chunk_mut::<HEADER_BYTES>()
            .expect("a packet is longer than a header");
        let (middle, trailer) = rest.split_at_mut(bytes);
        header.emit(self.phase, front);
        fill(middle)?;
        let (hash, crc) = match &self.protection {
            Protection::Hash(key) => {
                let crc = payload_crc(middle);
                (key.data_hash(front, crc), crc)
            }
            Protection::GroupHash(key) => {
                let crc = payload_crc(middle);
                (key.group_hash(front, crc), crc)
            }
            Protection::Aead(key) => {
                trailer.copy_from_slice(&key.seal(header.packet_number, front, middle));
                return Ok(length);
            }
            Protection::Trusted => (0, 0),
            Protection::HeaderHash(key) => (key.header_hash(front, 0), 0),
        };
        put_u64(trailer, field::trailer::HASH, hash);
        put_u32(trailer, field::trailer::CRC, crc);
        put_u32(trailer, field::trailer::ZERO, 0);
        Ok(length)
    }

    /// Opens a data packet, in place where it is encrypted. The caller has chosen this seal by the
    /// packet's key phase.
    ///
    /// # Errors
    /// [`DropReason::Seal`], [`DropReason::Tag`] or [`DropReason::Truncated`].
    #[inline(always)]
    pub fn open_data<'a>(&self, packet: &'a mut [u8]) -> Result<OpenedData<'a>, DropReason> {
        if packet.len() < OVERHEAD_BYTES {
            return Err(DropReason::Truncated);
        }
        let (front, body) = packet
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let packet_number = get_u64(front, field::prefix::PACKET_NUMBER);
        if let Protection::Aead(key) = &self.protection
            && !key.open(packet_number, front, body)
        {
            return Err(DropReason::Tag);
        }
        let (payload, trailer) = body
            .split_last_chunk::<TRAILER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let hashed = |hash: u64, crc: u32| {
            let sealed = get_u64(trailer, field::trailer::HASH) == hash
                && get_u32(trailer, field::trailer::ZERO) == 0;
            if sealed {
                Ok(Some(crc))
            } else {
                Err(DropReason::Seal)
            }
        };
        let crc = get_u32(trailer, field::trailer::CRC);
        let crc = match &self.protection {
            Protection::Hash(key) => hashed(key.data_hash(front, crc), crc)?,
            Protection::GroupHash(key) => hashed(key.group_hash(front, crc), crc)?,
            Protection::HeaderHash(key) => hashed(key.header_hash(front, crc), crc)?.and(None),
            Protection::Aead(_) | Protection::Trusted => None,
        };
        Ok(OpenedData {
            header: front,
            payload,
            crc,
        })
    }

    /// Checks what stands around a payload that has not been read. Returns the CRC32C by which damage to the payload is
    /// found; `None` where the link itself keeps it whole.
    ///
    /// # Errors
    /// [`DropReason::Seal`]; [`DropReason::Tag`] where only the whole packet can be authenticated.
    pub fn open_envelope(&self, envelope: &Envelope) -> Result<Option<u32>, DropReason> {
        let Envelope { header, trailer } = envelope;
        let crc = get_u32(trailer, field::trailer::CRC);
        let hash = match &self.protection {
            Protection::Hash(key) | Protection::HeaderHash(key) => key.data_hash(header, crc),
            Protection::GroupHash(key) => key.group_hash(header, crc),
            Protection::Aead(_) => return Err(DropReason::Tag),
            Protection::Trusted => return Ok(None),
        };
        let sealed = get_u64(trailer, field::trailer::HASH) == hash
            && get_u32(trailer, field::trailer::ZERO) == 0;
        match (sealed, &self.protection) {
            (false, _) => Err(DropReason::Seal),
            (true, Protection::HeaderHash(_)) => Ok(None),
            (true, _) => Ok(Some(crc)),
        }
    }

    /// Seals a control packet whose prefix and body are the first `length` bytes of `packet`; returns the
    /// packet's whole length.
    pub(super) fn seal_control(&self, packet: &mut [u8], length: usize) -> usize {
        let (front, trailer) = packet[..length + TRAILER_BYTES].split_at_mut(length);
        let hash = match &self.protection {
            Protection::Hash(key) | Protection::GroupHash(key) | Protection::HeaderHash(key) => {
                key.hasher().hash(front)
            }
            Protection::Aead(key) => {
                let (prefix, body) = front.split_at_mut(PREFIX_BYTES);
                let number = get_u64(prefix, field::prefix::PACKET_NUMBER);
                trailer.copy_from_slice(&key.seal(number, prefix, body));
                return length + TRAILER_BYTES;
            }
            Protection::Trusted => 0,
        };
        put_u64(trailer, field::trailer::HASH, hash);
        trailer[8..].fill(0);
        length + TRAILER_BYTES
    }

    /// Opens a control packet, in place where it is encrypted; returns prefix and body.
    pub(super) fn open_control<'a>(&self, packet: &'a mut [u8]) -> Result<&'a [u8], DropReason> {
        if packet.len() < PREFIX_BYTES + TRAILER_BYTES {
            return Err(DropReason::Truncated);
        }
        let length = packet.len() - TRAILER_BYTES;
        let (front, trailer) = packet.split_at(length);
        let sealed = match &self.protection {
            Protection::Hash(key) | Protection::GroupHash(key) | Protection::HeaderHash(key) => {
                get_u64(trailer, field::trailer::HASH) == key.hasher().hash(front)
                    && trailer[8..] == [0u8; 8]
            }
            Protection::Aead(key) => {
                let number = get_u64(packet, field::prefix::PACKET_NUMBER);
                let (prefix, body) = packet.split_at_mut(PREFIX_BYTES);
                if !key.open(number, prefix, body) {
                    return Err(DropReason::Tag);
                }
                true
            }
            Protection::Trusted => true,
        };
        if sealed {
            Ok(&packet[..length])
        } else {
            Err(DropReason::Seal)
        }
    }
}

/// A payload as long is copied before its checksum is taken: the processor's string copy streams it from memory as fast as
/// memory gives it, and the copy is read from the cache. By three packets of 1,408 bytes each way takes as long.
pub(crate) const LONG_BYTES: usize = 16 << 10;

/// The shortest payload of which `crc32c` interleaves three parts of 256 B.
#[cfg(target_arch = "x86_64")]
const INTERLEAVED_BYTES: usize = 3 * 256;

/// CRC32C of a payload (RFC 3720, B.4). A packet has two, one at each end, and its choice of instructions costs half
/// of what a short payload's checksum does.
#[inline(always)]
pub fn payload_crc(payload: &[u8]) -> u32 {
    // Folding by 512 bits is the fastest where the processor has it. Elsewhere three interleaved CRC
    // instructions are, above all over memory that no cache holds: docs/decisions/0026.
    #[cfg(target_arch = "x86_64")]
    if payload.len() < INTERLEAVED_BYTES
        || std::is_x86_feature_detected!("avx512vl") && std::is_x86_feature_detected!("vpclmulqdq")
    {
        return crc_fast::crc32_iscsi(payload);
    }
    crc32c::crc32c(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{ChunkNumber, ConnectionId, Key, PathId};
    use crate::wire::Flags;

    const HEADER: DataHeader = DataHeader {
        opcode: crate::wire::Opcode::Write,
        path: PathId(1),
        packet: 0,
        packets: 2,
        connection: ConnectionId(0x1111_1111),
        packet_number: 5,
        sent_at: 6,
        chunk: ChunkNumber(7),
        chunk_index: 0,
        flags: Flags::NONE,
        immediate: 0,
        key: Key(0x2222_2222_2222_2222),
        offset: 0x3333,
    };

    fn hash_key() -> HashKey {
        HashKey(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908)
    }

    #[test]
    fn the_hash_word_by_word_is_the_hash_of_the_52_bytes() {
        let header: [u8; HEADER_BYTES] = core::array::from_fn(|i| (i * 5 + 1) as u8);
        let crc = payload_crc(b"payload");
        let bytes = [&header[..], &crc.to_le_bytes()].concat();
        let key = hash_key();
        assert_eq!(key.data_hash(&header, crc), key.hasher().hash(&bytes));
        assert_eq!(bytes.len(), 52);
    }

    #[test]
    fn the_checksum_is_crc32c_at_every_length() {
        // RFC 3720, B.4, and the check value of the catalogue of parametrised CRC algorithms.
        assert_eq!(payload_crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(payload_crc(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..9_000).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let mut register = u32::MAX;
        for (length, byte) in bytes.iter().enumerate() {
            assert_eq!(payload_crc(&bytes[..length]), !register, "{length} B");
            register ^= u32::from(*byte);
            for _ in 0..8 {
                // The polynomial 0x1edc6f41, bits reversed.
                register = (register >> 1) ^ (0x82f6_3b78 * (register & 1));
            }
        }
    }

    #[test]
    fn a_sealed_header_is_found_changed_and_its_payload_is_not() {
        let seal = Seal {
            protection: Protection::HeaderHash(hash_key()),
            phase: KeyPhase::FIRST,
        };
        let mut packet = [0; OVERHEAD_BYTES + 9];
        assert_eq!(
            seal.seal_data(&HEADER, b"a payload", &mut packet),
            packet.len()
        );
        for at in 0..packet.len() {
            let mut changed = packet;
            changed[at] ^= 1;
            let is_payload = (HEADER_BYTES..HEADER_BYTES + 9).contains(&at);
            let envelope = Envelope {
                header: *changed.first_chunk().unwrap(),
                trailer: *changed.last_chunk().unwrap(),
            };
            let wanted = if is_payload {
                Ok(None)
            } else {
                Err(DropReason::Seal)
            };
            assert_eq!(seal.open_envelope(&envelope), wanted, "byte {at}");
            let opened = seal.open_data(&mut changed);
            let opened = opened.map(|opened| opened.check_payload());
            let wanted = wanted.map(|_| Ok(()));
            assert_eq!(opened, wanted, "byte {at}");
        }
        let mut control = [7; PREFIX_BYTES + 20 + TRAILER_BYTES];
        let length = seal.seal_control(&mut control, PREFIX_BYTES + 20);
        assert_eq!(length, control.len());
        for at in 0..length {
            let mut changed = control;
            changed[at] ^= 1;
            assert_eq!(seal.open_control(&mut changed), Err(DropReason::Seal));
        }
        assert!(seal.open_control(&mut control).is_ok());
    }

    #[test]
    fn a_switch_may_rewrite_id_key_and_offset_of_a_groups_packet_and_nothing_else() {
        let header = HEADER;
        let seal = |group: bool| Seal {
            protection: if group {
                Protection::GroupHash(hash_key())
            } else {
                Protection::Hash(hash_key())
            },
            phase: KeyPhase::FIRST,
        };
        let rewritten = [
            field::prefix::CONNECTION,
            field::data::KEY,
            field::data::OFFSET,
        ];
        for group in [false, true] {
            let seal = seal(group);
            let mut packet = [0; OVERHEAD_BYTES + 9];
            let length = seal.seal_data(&header, b"a payload", &mut packet);
            assert_eq!(length, packet.len());
            // From behind the first byte, whose bits are version and kind.
            for at in 1..HEADER_BYTES {
                let mut changed = packet;
                changed[at] ^= 1;
                let may = group && rewritten.iter().any(|field| field.contains(&at));
                let opened = seal
                    .open_data(&mut changed)
                    .map(|opened| opened.check_payload());
                assert_eq!(opened == Ok(Ok(())), may, "byte {at}, group {group}");
            }
        }
    }
}
