//! What has arrived.

use super::{full_map, ring_slots};
use crate::drops::DropReason;
use crate::units::{ChunkNumber, Key};
use crate::wire::Partial;
use serde::{Deserialize, Serialize};

/// The last chunk of a message with an immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MessageEnd {
    /// The message's first chunk.
    pub first: ChunkNumber,
    /// Its last.
    pub last: ChunkNumber,
    /// Its immediate.
    pub immediate: u32,
    /// The key of the region that it went to.
    pub key: Key,
}

/// What became of a chunk by one packet more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked {
    /// It is whole.
    Whole,
    /// What is there of it is its beginning.
    Beginning,
    /// A packet before one that is there is missing: on the one path that all take, it is lost.
    Gap,
}

/// The receiver's scoreboard: which chunks of the window are whole, which packets of the others are
/// there. Also the replay protection: what is marked here is never placed again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiveBoard {
    window: u16,
    cumulative: ChunkNumber,
    /// One past the highest chunk of which anything has arrived.
    end: ChunkNumber,
    /// One bit a slot: the chunk is whole.
    whole: Vec<u64>,
    /// One map a slot: the packets that are there.
    maps: Vec<u64>,
    /// One count a slot: the chunk's packets, 0 before the first arrived.
    counts: Vec<u8>,
    /// Messages whose last chunk is there but not all before it.
    ends: Vec<MessageEnd>,
    /// Chunks that got a packet since the last acknowledgement and are not whole.
    touched: Vec<ChunkNumber>,
}

/// More touched chunks than this are not remembered: the acknowledgement holds as many.
const TOUCHED_MAX: usize = crate::wire::ACK_PARTIALS_MAX;

impl ReceiveBoard {
    /// A board on which nothing has arrived.
    pub fn new(window: u16) -> ReceiveBoard {
        let slots = ring_slots(window);
        ReceiveBoard {
            window,
            cumulative: ChunkNumber::default(),
            end: ChunkNumber::default(),
            whole: vec![0; slots / 64],
            maps: vec![0; slots],
            counts: vec![0; slots],
            ends: Vec::with_capacity(slots.min(64)),
            touched: Vec::with_capacity(TOUCHED_MAX),
        }
    }

    /// Every chunk before this one is whole.
    pub fn cumulative(&self) -> ChunkNumber {
        self.cumulative
    }

    /// Messages that wait for chunks before their last.
    pub fn waiting_messages(&self) -> usize {
        self.ends.len()
    }

    /// From the oldest chunk that is not whole to the newest of which anything has arrived.
    pub fn span(&self) -> u64 {
        u64::try_from(self.end.ahead_of(self.cumulative)).unwrap_or(0)
    }

    /// Whether a chunk before `chunk` got a packet since the last acknowledgement and is not whole.
    pub fn has_part_before(&self, chunk: ChunkNumber) -> bool {
        let mut touched = self.touched.iter();
        touched.any(|&part| {
            part.ahead_of(chunk) < 0 && part.ahead_of(self.cumulative) >= 0 && !self.is_whole(part)
        })
    }

    fn slot(&self, chunk: ChunkNumber) -> usize {
        chunk.0 as usize & (self.maps.len() - 1)
    }

    fn is_whole(&self, chunk: ChunkNumber) -> bool {
        let slot = self.slot(chunk);
        self.whole[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Whether this packet is new and wanted.
    ///
    /// # Errors
    /// [`DropReason::Duplicate`], [`DropReason::BeyondWindow`], or [`DropReason::Malformed`] when it
    /// contradicts earlier packets of its chunk.
    pub fn check(&self, chunk: ChunkNumber, packet: u8, packets: u8) -> Result<(), DropReason> {
        let ahead = chunk.ahead_of(self.cumulative);
        if ahead < 0 {
            return Err(DropReason::Duplicate);
        }
        if ahead >= i32::from(self.window) {
            return Err(DropReason::BeyondWindow);
        }
        let slot = self.slot(chunk);
        if self.whole[slot / 64] >> (slot % 64) & 1 == 1 || self.maps[slot] >> packet & 1 == 1 {
            return Err(DropReason::Duplicate);
        }
        let count = self.counts[slot];
        if count != 0 && count != packets {
            return Err(DropReason::Malformed);
        }
        Ok(())
    }

    /// The packet, checked before, was placed.
    pub fn mark(&mut self, chunk: ChunkNumber, packet: u8, packets: u8) -> Marked {
        let slot = self.slot(chunk);
        self.counts[slot] = packets;
        self.maps[slot] |= 1 << packet;
        if chunk.plus(1).ahead_of(self.end) > 0 {
            self.end = chunk.plus(1);
        }
        let map = self.maps[slot];
        if map != full_map(packets) {
            if self.touched.len() < TOUCHED_MAX && self.touched.last() != Some(&chunk) {
                self.touched.push(chunk);
            }
            return if map & map.wrapping_add(1) == 0 {
                Marked::Beginning
            } else {
                Marked::Gap
            };
        }
        self.whole[slot / 64] |= 1 << (slot % 64);
        while self.is_whole(self.cumulative) {
            let slot = self.slot(self.cumulative);
            self.whole[slot / 64] &= !(1 << (slot % 64));
            self.maps[slot] = 0;
            self.counts[slot] = 0;
            self.cumulative = self.cumulative.plus(1);
        }
        Marked::Whole
    }

    /// The last chunk of a message is whole; its immediate counts when [`ReceiveBoard::complete`]
    /// says so.
    pub fn end_message(&mut self, end: MessageEnd) {
        self.ends.push(end);
    }

    /// Hands out each message that is complete now.
    pub fn complete(&mut self, mut on_message: impl FnMut(MessageEnd)) {
        let mut at = 0;
        while at < self.ends.len() {
            if self.all_whole(self.ends[at].first, self.ends[at].last) {
                on_message(self.ends.swap_remove(at));
            } else {
                at += 1;
            }
        }
    }

    fn all_whole(&self, first: ChunkNumber, last: ChunkNumber) -> bool {
        if last.ahead_of(self.cumulative) < 0 {
            return true;
        }
        let mut chunk = if first.ahead_of(self.cumulative) > 0 {
            first
        } else {
            self.cumulative
        };
        while chunk.ahead_of(last) <= 0 {
            if !self.is_whole(chunk) {
                return false;
            }
            chunk = chunk.plus(1);
        }
        true
    }

    /// The acknowledgement's map: word w holds the chunks from `cumulative` rounded down to a
    /// multiple of 64, plus 64·w. Returns how many words of `out` were filled.
    pub fn map(&self, out: &mut [u64]) -> usize {
        let base = self.cumulative.minus(self.cumulative.0 % 64);
        let span = self.end.ahead_of(base).max(0) as usize;
        if self.end.ahead_of(self.cumulative) <= 0 {
            return 0;
        }
        let words = span.div_ceil(64).min(out.len());
        for (w, word) in out.iter_mut().enumerate().take(words) {
            *word = self.whole[self.slot(base.plus(64 * w as u32)) / 64];
        }
        words
    }

    /// Takes the partly received chunks that were touched since the last call.
    pub fn take_partials(&mut self, out: &mut [Partial]) -> usize {
        let mut filled = 0;
        for at in 0..self.touched.len() {
            let chunk = self.touched[at];
            if filled < out.len() && chunk.ahead_of(self.cumulative) >= 0 && !self.is_whole(chunk) {
                out[filled] = Partial {
                    chunk,
                    packets: self.maps[self.slot(chunk)],
                };
                filled += 1;
            }
        }
        self.touched.clear();
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(board: &mut ReceiveBoard, chunk: u32, packet: u8, packets: u8) -> bool {
        let chunk = ChunkNumber(chunk);
        board.check(chunk, packet, packets).expect("new and wanted");
        board.mark(chunk, packet, packets) == Marked::Whole
    }

    #[test]
    fn a_message_completes_when_its_gap_closes_and_not_before() {
        let mut board = ReceiveBoard::new(128);
        for chunk in [0, 1, 3] {
            assert!(arrive(&mut board, chunk, 0, 1));
        }
        let (first, last) = (ChunkNumber(1), ChunkNumber(3));
        board.end_message(MessageEnd {
            first,
            last,
            immediate: 9,
            key: Key(1),
        });
        let mut seen = Vec::new();
        board.complete(|end| seen.push(end.immediate));
        assert_eq!(seen, []);
        assert!(arrive(&mut board, 2, 0, 1));
        board.complete(|end| seen.push(end.immediate));
        assert_eq!((seen, board.cumulative()), (vec![9], ChunkNumber(4)));
    }

    #[test]
    fn a_packet_that_others_of_its_chunk_have_overtaken_is_a_gap() {
        let mut board = ReceiveBoard::new(128);
        let mut mark = |packet| board.mark(ChunkNumber(0), packet, 5);
        let marks = [0, 1, 3, 2, 4].map(&mut mark);
        use Marked::{Beginning, Gap, Whole};
        assert_eq!(marks, [Beginning, Beginning, Gap, Beginning, Whole]);
        assert_eq!(board.span(), 0);
        assert!(!board.has_part_before(ChunkNumber(4)));
        board.mark(ChunkNumber(3), 0, 5);
        assert_eq!(board.span(), 3);
        assert!(board.has_part_before(ChunkNumber(4)));
        assert!(!board.has_part_before(ChunkNumber(3)));
    }

    #[test]
    fn the_map_starts_at_a_multiple_of_64_and_survives_the_ring() {
        let mut board = ReceiveBoard::new(128);
        for chunk in 0..1000 {
            assert!(arrive(&mut board, chunk, 0, 1));
        }
        assert!(arrive(&mut board, 1001, 0, 1));
        assert!(arrive(&mut board, 1100, 0, 1));
        let mut map = [0u64; 16];
        assert_eq!(board.map(&mut map), 3);
        let base = 1000 / 64 * 64;
        let bits: Vec<u32> = (0..192)
            .filter(|i| map[*i / 64] >> (i % 64) & 1 == 1)
            .map(|i| base + i as u32)
            .collect();
        assert_eq!(bits, [1001, 1100]);
    }

    #[test]
    fn what_was_received_or_lies_beyond_the_window_is_refused() {
        let mut board = ReceiveBoard::new(64);
        assert!(!arrive(&mut board, 1, 0, 2));
        assert_eq!(
            board.check(ChunkNumber(1), 0, 2),
            Err(DropReason::Duplicate)
        );
        assert_eq!(
            board.check(ChunkNumber(1), 1, 3),
            Err(DropReason::Malformed)
        );
        assert_eq!(
            board.check(ChunkNumber(64), 0, 1),
            Err(DropReason::BeyondWindow)
        );
        assert_eq!(
            board.check(ChunkNumber(u32::MAX), 0, 1),
            Err(DropReason::Duplicate)
        );
    }
}
