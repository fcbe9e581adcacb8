//! Acknowledgements.
//!
//! Body: cumulative chunk number u32 · map words u8 · partials u8 · echoes u8 · 0 · sent-at u32
//! (this end's clock, units of 64 ns; less an echo's delay it is when that packet arrived) · the map (u64
//! words; bit i of word w is chunk base + 64·w + i, where base is cumulative rounded down to a
//! multiple of 64, so that both ends compare whole words) · partials (chunk u32, packets in chunk
//! u8, 0 u24, packet map u64) · echoes (path u8, 0 u8, CE packets u16, packets u16, largest packet u16, sent-at u32,
//! delay u32 of 64 ns, packet number u32: its lower half).

use super::field::{ack, echo, partial};
use super::{
    ChunkNumber, ConnectionId, DropReason, Kind, PREFIX_BYTES, PathId, Seal, TRAILER_BYTES, get_u8,
    get_u16, get_u32, get_u64, put_prefix, put_u8, put_u16, put_u32, put_u64,
};

/// Words of the map at most: a ring of 1,024 chunks ([`crate::recovery::WINDOW_MAX`] + 64).
pub(crate) const MAP_WORDS_MAX: usize = 16;
/// Partly received chunks that one acknowledgement can tell of.
pub(crate) const PARTIALS_MAX: usize = 16;
/// Paths that one acknowledgement can echo.
pub(crate) const ECHOES_MAX: usize = 32;

const FIXED_BYTES: usize = 12;
const WORD_BYTES: usize = 8;
const PARTIAL_BYTES: usize = 16;
const ECHO_BYTES: usize = 20;

pub(super) const ACK_BYTES_MAX: usize = PREFIX_BYTES
    + FIXED_BYTES
    + MAP_WORDS_MAX * WORD_BYTES
    + PARTIALS_MAX * PARTIAL_BYTES
    + ECHOES_MAX * ECHO_BYTES
    + TRAILER_BYTES;

/// A chunk of which some packets have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Partial {
    /// The chunk.
    pub chunk: ChunkNumber,
    /// How many packets it was cut into.
    pub of: u8,
    /// Bit i: packet i has arrived.
    pub packets: u64,
}

/// What arrived on one path since the last acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Echo {
    /// The path.
    pub path: PathId,
    /// Packets that bore Congestion Experienced (RFC 3168).
    pub ce: u16,
    /// Packets in all, 65,535 of them at most.
    pub packets: u16,
    /// Bytes of the largest of them, header and trailer included.
    pub largest: u16,
    /// The newest packet's sent-at, as it stood there.
    pub sent_at: u32,
    /// How long it lay here before this acknowledgement, units of 64 ns.
    pub delay: u32,
    /// The lower half of its packet number: only who has received it knows that.
    pub number: u32,
}

/// An acknowledgement to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// Every chunk before this one has arrived whole.
    pub cumulative: ChunkNumber,
    /// This end's clock when it was written, as [`crate::units::Time::to_wire`].
    pub sent_at: u32,
    /// Bit i: chunk base + i has arrived whole; base is `cumulative` rounded down to a multiple
    /// of 64. At most 16 words.
    pub map: &'a [u64],
    /// Partly received chunks, at most 16.
    pub partials: &'a [Partial],
    /// Echoes, at most 32.
    pub echoes: &'a [Echo],
}

impl Ack<'_> {
    /// Writes the sealed packet; returns its length. Lists beyond their limits are cut.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        let map = &self.map[..self.map.len().min(MAP_WORDS_MAX)];
        let partials = &self.partials[..self.partials.len().min(PARTIALS_MAX)];
        let echoes = &self.echoes[..self.echoes.len().min(ECHOES_MAX)];
        put_prefix(
            out,
            Kind::Ack,
            seal.phase(),
            path,
            connection,
            packet_number,
        );
        let body = &mut out[PREFIX_BYTES..];
        put_u32(body, ack::CUMULATIVE, self.cumulative.0);
        put_u8(body, ack::WORDS, map.len() as u8);
        put_u8(body, ack::PARTIALS, partials.len() as u8);
        put_u8(body, ack::ECHOES, echoes.len() as u8);
        put_u8(body, ack::ZERO, 0);
        put_u32(body, ack::SENT_AT, self.sent_at);
        let mut at = PREFIX_BYTES + FIXED_BYTES;
        for word in map {
            put_u64(out, at..at + WORD_BYTES, *word);
            at += WORD_BYTES;
        }
        for p in partials {
            let item = &mut out[at..at + PARTIAL_BYTES];
            put_u32(item, partial::CHUNK, p.chunk.0);
            put_u8(item, partial::OF, p.of);
            item[partial::ZERO].fill(0);
            put_u64(item, partial::PACKETS, p.packets);
            at += PARTIAL_BYTES;
        }
        for e in echoes {
            let item = &mut out[at..at + ECHO_BYTES];
            put_u8(item, echo::PATH, e.path.0);
            put_u8(item, echo::ZERO, 0);
            put_u16(item, echo::CE, e.ce);
            put_u16(item, echo::PACKETS, e.packets);
            put_u16(item, echo::LARGEST, e.largest);
            put_u32(item, echo::SENT_AT, e.sent_at);
            put_u32(item, echo::DELAY, e.delay);
            put_u32(item, echo::NUMBER, e.number);
            at += ECHO_BYTES;
        }
        seal.seal_control(out, at)
    }
}

/// An acknowledgement as it arrived: checked once, read in place.
#[derive(Clone, Copy, Debug)]
pub struct AckReader<'a> {
    cumulative: ChunkNumber,
    sent_at: u32,
    map: &'a [u8],
    partials: &'a [u8],
    echoes: &'a [u8],
}

impl<'a> AckReader<'a> {
    /// Checks the body of an acknowledgement.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] when counts and length do not agree.
    pub fn parse(body: &'a [u8]) -> Result<AckReader<'a>, DropReason> {
        if body.len() < FIXED_BYTES {
            return Err(DropReason::Malformed);
        }
        let count = |field| usize::from(get_u8(body, field));
        let (words, partials) = (count(ack::WORDS), count(ack::PARTIALS));
        let echoes = count(ack::ECHOES);
        let within = words <= MAP_WORDS_MAX && partials <= PARTIALS_MAX && echoes <= ECHOES_MAX;
        let length =
            FIXED_BYTES + words * WORD_BYTES + partials * PARTIAL_BYTES + echoes * ECHO_BYTES;
        if !within || body.len() != length || get_u8(body, ack::ZERO) != 0 {
            return Err(DropReason::Malformed);
        }
        let (map, rest) = body[FIXED_BYTES..].split_at(words * WORD_BYTES);
        let (partials, echoes) = rest.split_at(partials * PARTIAL_BYTES);
        Ok(AckReader {
            cumulative: ChunkNumber(get_u32(body, ack::CUMULATIVE)),
            sent_at: get_u32(body, ack::SENT_AT),
            map,
            partials,
            echoes,
        })
    }

    /// Every chunk before this one has arrived whole.
    pub fn cumulative(&self) -> ChunkNumber {
        self.cumulative
    }

    /// The peer's clock when it wrote this, as it stood there.
    pub fn sent_at(&self) -> u32 {
        self.sent_at
    }

    /// The words of the map.
    pub fn map(&self) -> impl Iterator<Item = u64> + 'a {
        let words = self.map.chunks_exact(WORD_BYTES);
        words.map(|word| get_u64(word, 0..WORD_BYTES))
    }

    /// The partly received chunks.
    pub fn partials(&self) -> impl Iterator<Item = Partial> + 'a {
        self.partials.chunks_exact(PARTIAL_BYTES).map(|p| Partial {
            chunk: ChunkNumber(get_u32(p, partial::CHUNK)),
            of: get_u8(p, partial::OF),
            packets: get_u64(p, partial::PACKETS),
        })
    }

    /// The packet numbers of the echoes, the lower half of each.
    #[inline]
    pub fn echoed_numbers(&self) -> impl Iterator<Item = u32> + 'a {
        let (echoes, _) = self.echoes.as_chunks::<ECHO_BYTES>();
        echoes.iter().map(|e| get_u32(e, echo::NUMBER))
    }

    /// The echoes.
    #[inline]
    pub fn echoes(&self) -> impl Iterator<Item = Echo> + 'a {
        let (echoes, _) = self.echoes.as_chunks::<ECHO_BYTES>();
        echoes.iter().map(|e| Echo {
            path: PathId(get_u8(e, echo::PATH)),
            ce: get_u16(e, echo::CE),
            packets: get_u16(e, echo::PACKETS),
            largest: get_u16(e, echo::LARGEST),
            sent_at: get_u32(e, echo::SENT_AT),
            delay: get_u32(e, echo::DELAY),
            number: get_u32(e, echo::NUMBER),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CONTROL_BYTES_MAX, Control, Secret};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed_back(
            cumulative: u32,
            written_at: u32,
            map in prop::collection::vec(any::<u64>(), 0..=MAP_WORDS_MAX),
            partials in prop::collection::vec(any::<(u32, u8, u64)>(), 0..=PARTIALS_MAX),
            echoes in prop::collection::vec(any::<(u8, u16, u16, u16, u32, u32, u32)>(), 0..=ECHOES_MAX),
        ) {
            let partials: Vec<_> = partials.into_iter()
                .map(|(chunk, of, packets)| Partial { chunk: ChunkNumber(chunk), of, packets }).collect();
            let echoes: Vec<_> = echoes.into_iter()
                .map(|(path, ce, packets, largest, sent_at, delay, number)|
                    Echo { path: PathId(path), ce, packets, largest, sent_at, delay, number }).collect();
            let seal = Seal::new(&Secret([1; 32]));
            let ack = Ack {
                cumulative: ChunkNumber(cumulative), sent_at: written_at,
                map: &map, partials: &partials, echoes: &echoes,
            };
            let mut out = [0u8; CONTROL_BYTES_MAX];
            let length = ack.emit(&mut out, &seal, PathId(4), ConnectionId(6), 1);
            let control = Control::open(&seal, &mut out[..length]).expect("sealed");
            let read = AckReader::parse(control.body).expect("well formed");
            prop_assert_eq!(read.cumulative(), ack.cumulative);
            prop_assert_eq!(read.sent_at(), ack.sent_at);
            prop_assert_eq!(read.map().collect::<Vec<_>>(), map);
            prop_assert_eq!(read.partials().collect::<Vec<_>>(), partials);
            prop_assert_eq!(read.echoes().collect::<Vec<_>>(), echoes);
        }

        #[test]
        fn no_bytes_make_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
            if let Ok(ack) = AckReader::parse(&bytes) {
                let _ = (ack.map().count(), ack.partials().count(), ack.echoes().count());
            }
        }
    }
}
