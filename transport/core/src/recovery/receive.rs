//! What has arrived.

use super::{WINDOW_MAX, full_map, heap_bytes};
use crate::drops::DropReason;
use crate::units::{ChunkNumber, Key};
use crate::wire::{CHUNK_PACKETS_MAX, Partial};
use serde::{Deserialize, Serialize};

/// What the end of a message says, once the message is here whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MessageEnd {
    /// A write with an immediate.
    Immediate {
        /// The immediate.
        value: u32,
        /// The key of the region that it went to.
        key: Key,
    },
    /// A send.
    Sent {
        /// Its number.
        number: u64,
        /// Its length.
        bytes: u64,
        /// Its immediate.
        immediate: Option<u32>,
        /// It reports a write of so many bytes.
        is_write: bool,
    },
    /// The response to a request.
    Response {
        /// The request's number.
        request: u64,
    },
}

/// Where a packet belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Its chunk.
    pub chunk: ChunkNumber,
    /// Its place in the chunk, from 0.
    pub index: u8,
    /// Packets in the chunk, 1..=64.
    pub packets: u8,
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

/// One chunk of the window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Slot {
    /// The packets that are there.
    map: u64,
    /// How many packets it is cut into, 0 before the first arrived. The sender may cut it anew, into more packets:
    /// what came of the fewer is forgotten then.
    packets: u8,
    /// The first of the ends noted for it, by packet: a place in [`ReceiveBoard::ends`].
    ends: u16,
    /// The first chunk of the earliest message that ends here.
    starts: ChunkNumber,
    /// A later chunk whose messages wait for this one.
    blocks: Option<ChunkNumber>,
}

impl Slot {
    const EMPTY: Slot = Slot {
        map: 0,
        packets: 0,
        ends: NONE,
        starts: ChunkNumber(0),
        blocks: None,
    };
}

/// A message's end whose message is not complete.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct NotedEnd {
    end: MessageEnd,
    /// The packet that carried it.
    packet: u8,
    /// The next end of the chunk, or the next free place.
    next: u16,
}

/// No end: beyond [`WINDOW_MAX`] chunks of 64 packets with an end each.
const NONE: u16 = u16::MAX;

const _: () = assert!((WINDOW_MAX as usize) * CHUNK_PACKETS_MAX < NONE as usize);

/// Slots of a board that is first used: 64 chunks, and 64 slots more, so that a word of the map never
/// spans both ends of the ring.
const SLOTS_MIN: usize = 128;

/// The receiver's scoreboard: which chunks of the window are whole, which packets of the others are
/// there. Also the replay protection: what is marked here is never placed again.
///
/// The ring has no slots until the first packet, doubles when a chunk lies beyond it, up to the window, and
/// gives its memory back in [`ReceiveBoard::shrink`].
///
/// A message is complete when all of its chunks are whole. Its end waits at its last chunk. It is handed out
/// when every chunk before is whole; or, unless the ends go in order, as soon as the message's own chunks
/// are: the last one's slot is noted at the first of them that is missing, and looked at again when that
/// one is whole. Each chunk is passed once for the one message that spans it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiveBoard {
    window: u16,
    /// Whether messages are handed out in the order of their chunks.
    in_order: bool,
    cumulative: ChunkNumber,
    /// One past the highest chunk of which anything has arrived.
    end: ChunkNumber,
    /// One bit a slot: the chunk is whole.
    whole: Vec<u64>,
    slots: Vec<Slot>,
    /// Messages whose end is there but not all before it; a slab.
    ends: Vec<NotedEnd>,
    /// The first free place of the slab.
    free_end: u16,
    /// Chunks that got a packet since the last acknowledgement and are not whole.
    touched: Vec<ChunkNumber>,
}

/// More touched chunks than this are not remembered: the acknowledgement holds as many.
const TOUCHED_MAX: usize = crate::wire::ACK_PARTIALS_MAX;

impl ReceiveBoard {
    /// A board on which nothing has arrived; the first chunk has the number `first`. `in_order`: ends of
    /// messages are handed out in the order of their chunks.
    pub fn new(window: u16, first: ChunkNumber, in_order: bool) -> ReceiveBoard {
        ReceiveBoard {
            window: window.clamp(1, WINDOW_MAX),
            in_order,
            cumulative: first,
            end: first,
            whole: Vec::new(),
            slots: Vec::new(),
            ends: Vec::new(),
            free_end: NONE,
            touched: Vec::new(),
        }
    }

    /// Whether messages are handed out in the order of their chunks.
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// Every chunk before this one is whole.
    pub fn cumulative(&self) -> ChunkNumber {
        self.cumulative
    }

    /// From the oldest chunk that is not whole to the newest of which anything has arrived.
    pub fn span(&self) -> u64 {
        u64::try_from(self.end.ahead_of(self.cumulative)).unwrap_or(0)
    }

    /// [`ReceiveBoard::span`] once anything of `chunk` has arrived.
    pub fn span_with(&self, chunk: ChunkNumber) -> u64 {
        let chunk = chunk.plus(1).ahead_of(self.cumulative);
        self.span().max(u64::try_from(chunk).unwrap_or(0))
    }

    /// Whether a chunk before `chunk` got a packet since the last acknowledgement and is not whole.
    pub fn has_part_before(&self, chunk: ChunkNumber) -> bool {
        let mut touched = self.touched.iter();
        touched.any(|&part| {
            part.ahead_of(chunk) < 0 && part.ahead_of(self.cumulative) >= 0 && !self.is_whole(part)
        })
    }

    fn slot(&self, chunk: ChunkNumber) -> usize {
        chunk.0 as usize & (self.slots.len() - 1)
    }

    /// Whether a chunk that has a slot is whole.
    fn is_whole(&self, chunk: ChunkNumber) -> bool {
        let slot = self.slot(chunk);
        self.whole[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Whether the ring reaches as far as a chunk that lies so far ahead of the first that is not whole.
    fn reaches(&self, ahead: usize) -> bool {
        ahead + 64 <= self.slots.len()
    }

    /// Whether this packet is new and wanted.
    ///
    /// # Errors
    /// [`DropReason::Duplicate`], also when its chunk was cut into more packets since, or
    /// [`DropReason::BeyondWindow`].
    pub fn check(&self, packet: Packet) -> Result<(), DropReason> {
        let ahead = packet.chunk.ahead_of(self.cumulative);
        if ahead < 0 {
            return Err(DropReason::Duplicate);
        }
        if ahead >= i32::from(self.window) {
            return Err(DropReason::BeyondWindow);
        }
        if !self.reaches(ahead as usize) {
            return Ok(());
        }
        let slot = &self.slots[self.slot(packet.chunk)];
        if slot.packets == packet.packets {
            // A whole chunk's map is full: every packet of it is there.
            return match slot.map >> packet.index & 1 {
                0 => Ok(()),
                _ => Err(DropReason::Duplicate),
            };
        }
        if slot.packets > packet.packets || self.is_whole(packet.chunk) {
            return Err(DropReason::Duplicate);
        }
        Ok(())
    }

    /// Whether this packet, or all of its chunk, is here.
    pub fn has(&self, packet: Packet) -> bool {
        let ahead = packet.chunk.ahead_of(self.cumulative);
        if ahead < 0 {
            return true;
        }
        if !self.reaches(ahead as usize) {
            return false;
        }
        let slot = &self.slots[self.slot(packet.chunk)];
        let is_marked = slot.packets == packet.packets && slot.map >> packet.index & 1 == 1;
        is_marked || self.is_whole(packet.chunk)
    }

    /// The packets that are missing of the chunk of a packet that was checked before.
    #[inline]
    pub fn missing(&self, packet: Packet) -> u64 {
        let all = full_map(packet.packets);
        if !self.reaches(packet.chunk.ahead_of(self.cumulative) as usize) {
            return all;
        }
        let slot = &self.slots[self.slot(packet.chunk)];
        match slot.packets == packet.packets {
            true => all & !slot.map,
            // What came of it, cut into fewer, will be forgotten.
            false => all,
        }
    }

    /// The packet, checked before and not yet marked, ends a message that began with the chunk `starts`.
    pub fn note_end(&mut self, packet: Packet, starts: ChunkNumber, end: MessageEnd) {
        self.reach(packet.chunk);
        self.cut(packet);
        let place = self.free_end;
        let place = match self.ends.get(usize::from(place)) {
            Some(free) => {
                self.free_end = free.next;
                place
            }
            None => {
                let next = NONE;
                self.ends.push(NotedEnd {
                    end,
                    packet: 0,
                    next,
                });
                (self.ends.len() - 1) as u16
            }
        };
        let slot = self.slot(packet.chunk);
        let slot = &mut self.slots[slot];
        if slot.ends == NONE || starts.ahead_of(slot.starts) < 0 {
            slot.starts = starts;
        }
        // The ends of a chunk are linked in the order of their packets.
        let (mut before, mut next) = (NONE, slot.ends);
        while let Some(noted) = self.ends.get(usize::from(next))
            && noted.packet < packet.index
        {
            (before, next) = (next, noted.next);
        }
        self.ends[usize::from(place)] = NotedEnd {
            end,
            packet: packet.index,
            next,
        };
        match self.ends.get_mut(usize::from(before)) {
            Some(noted) => noted.next = place,
            None => slot.ends = place,
        }
    }

    /// The packet, checked before, was placed. Hands out the messages that are complete by it.
    pub fn mark(&mut self, packet: Packet, on_message: impl FnMut(MessageEnd)) -> Marked {
        self.mark_map(packet, 1 << packet.index, on_message)
    }

    /// The same for several packets of one chunk, cut as `packet` says: those of `map`.
    pub fn mark_map(
        &mut self,
        packet: Packet,
        map: u64,
        mut on_message: impl FnMut(MessageEnd),
    ) -> Marked {
        let chunk = packet.chunk;
        self.reach(chunk);
        self.cut(packet);
        let at = self.slot(chunk);
        let slot = &mut self.slots[at];
        slot.map |= map;
        let map = slot.map;
        if chunk.plus(1).ahead_of(self.end) > 0 {
            self.end = chunk.plus(1);
        }
        if map != full_map(packet.packets) {
            if self.touched.len() < TOUCHED_MAX && self.touched.last() != Some(&chunk) {
                self.touched.push(chunk);
            }
            return if map & map.wrapping_add(1) == 0 {
                Marked::Beginning
            } else {
                Marked::Gap
            };
        }
        self.whole[at / 64] |= 1 << (at % 64);
        let blocked = self.slots[at].blocks.take();
        if chunk == self.cumulative {
            self.advance(&mut on_message);
        } else if !self.in_order {
            self.hand_out_if_complete(chunk, chunk, &mut on_message);
        }
        if let Some(last) = blocked {
            self.hand_out_if_complete(last, chunk, &mut on_message);
        }
        Marked::Whole
    }

    /// The peer revokes the chunks from `first` up to `end`, which belong to one message: whatever comes of them from now on
    /// is a duplicate, and the message is never handed out. Answers whether all of them were whole before: then
    /// nothing changes. No other message waits for these chunks, so none is complete by this; if a peer has claimed a
    /// chunk for two messages, both are lost.
    ///
    /// # Errors
    /// [`DropReason::BeyondWindow`].
    pub fn revoke(&mut self, first: ChunkNumber, end: ChunkNumber) -> Result<bool, DropReason> {
        let ahead = end.ahead_of(self.cumulative);
        if ahead > i32::from(self.window) {
            return Err(DropReason::BeyondWindow);
        }
        if ahead <= 0 {
            return Ok(true);
        }
        let first = match first.ahead_of(self.cumulative) {
            0.. => first,
            _ => self.cumulative,
        };
        let last = end.minus(1);
        self.reach(last);
        if self.first_missing(first, last).is_none() {
            return Ok(true);
        }
        let mut chunk = first;
        while chunk != end {
            let at = self.slot(chunk);
            self.hand_out(at, &mut |_| ());
            // Every packet is there, into however many it is cut.
            (self.slots[at].map, self.slots[at].blocks) = (u64::MAX, None);
            self.whole[at / 64] |= 1 << (at % 64);
            chunk = chunk.plus(1);
        }
        if end.ahead_of(self.end) > 0 {
            self.end = end;
        }
        self.advance(&mut |_| ());
        Ok(false)
    }

    /// The chunk is cut as this packet says, which was checked before.
    #[inline]
    fn cut(&mut self, packet: Packet) {
        let at = self.slot(packet.chunk);
        if self.slots[at].packets == packet.packets {
            return;
        }
        self.slots[at].packets = packet.packets;
        self.slots[at].map = 0;
        // An end that it had carried comes again.
        self.hand_out(at, &mut |_| ());
    }

    /// Passes the whole chunks at the front; with each of them, its messages are complete.
    fn advance(&mut self, on_message: &mut impl FnMut(MessageEnd)) {
        while self.is_whole(self.cumulative) {
            let slot = self.slot(self.cumulative);
            self.hand_out(slot, on_message);
            self.whole[slot / 64] &= !(1 << (slot % 64));
            self.slots[slot] = Slot::EMPTY;
            self.cumulative = self.cumulative.plus(1);
        }
    }

    /// Hands out the messages that end in the chunk `last` if their chunks are whole. Those before `known`
    /// are, if any were looked at before.
    fn hand_out_if_complete(
        &mut self,
        last: ChunkNumber,
        known: ChunkNumber,
        on_message: &mut impl FnMut(MessageEnd),
    ) {
        let slot = self.slot(last);
        if last.ahead_of(self.cumulative) < 0 || self.slots[slot].ends == NONE {
            return;
        }
        let starts = self.slots[slot].starts;
        let mut from = if known == last { starts } else { known };
        if from.ahead_of(self.cumulative) < 0 {
            from = self.cumulative;
        }
        match self.first_missing(from, last) {
            None => self.hand_out(slot, on_message),
            Some(missing) => {
                // One message spans a chunk and the next. If a peer says otherwise, the others are
                // handed out when everything before them is whole.
                let missing = self.slot(missing);
                self.slots[missing].blocks.get_or_insert(last);
            }
        }
    }

    /// The first chunk from `from` up to `last` that is not whole.
    fn first_missing(&self, from: ChunkNumber, last: ChunkNumber) -> Option<ChunkNumber> {
        let mut chunk = from;
        while chunk.ahead_of(last) <= 0 {
            let slot = self.slot(chunk);
            let whole = (self.whole[slot / 64] >> (slot % 64)).trailing_ones();
            chunk = chunk.plus(whole);
            if (whole as usize) < 64 - slot % 64 {
                return (chunk.ahead_of(last) <= 0).then_some(chunk);
            }
        }
        None
    }

    /// Hands out the ends noted at a slot. Most have none.
    #[inline]
    fn hand_out(&mut self, slot: usize, on_message: &mut impl FnMut(MessageEnd)) {
        let first = std::mem::replace(&mut self.slots[slot].ends, NONE);
        if first != NONE {
            self.hand_out_from(first, on_message);
        }
    }

    fn hand_out_from(&mut self, first: u16, on_message: &mut impl FnMut(MessageEnd)) {
        let mut at = first;
        while let Some(noted) = self.ends.get_mut(usize::from(at)) {
            on_message(noted.end);
            let next = std::mem::replace(&mut noted.next, self.free_end);
            self.free_end = std::mem::replace(&mut at, next);
        }
    }

    /// Grows the ring until it reaches a chunk of the window.
    fn reach(&mut self, chunk: ChunkNumber) {
        let ahead = chunk.ahead_of(self.cumulative) as usize;
        if !self.reaches(ahead) {
            self.resize((ahead + 64).next_power_of_two().max(SLOTS_MIN));
        }
    }

    /// Gives the memory back that what has arrived does not need.
    pub fn shrink(&mut self) {
        self.resize(match self.span() as usize {
            0 => 0,
            chunks => (chunks + 63).next_power_of_two().max(SLOTS_MIN),
        });
        if self.slots.iter().all(|slot| slot.ends == NONE) {
            self.ends = Vec::new();
            self.free_end = NONE;
        }
        self.touched.shrink_to_fit();
    }

    /// Heap memory that the board occupies, bytes.
    pub fn heap_bytes(&self) -> usize {
        heap_bytes(&self.whole)
            + heap_bytes(&self.slots)
            + heap_bytes(&self.ends)
            + heap_bytes(&self.touched)
    }

    /// Moves the ring to `slots` slots, 0 or a power of two that holds what has arrived.
    fn resize(&mut self, slots: usize) {
        if slots == self.slots.len() {
            return;
        }
        let old_whole = std::mem::replace(&mut self.whole, vec![0; slots / 64]);
        let old_slots = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; slots]);
        let mut chunk = self.cumulative;
        while chunk.ahead_of(self.end) < 0 {
            let (old, new) = (
                chunk.0 as usize & (old_slots.len() - 1),
                chunk.0 as usize & (slots - 1),
            );
            self.slots[new] = old_slots[old];
            self.whole[new / 64] |= (old_whole[old / 64] >> (old % 64) & 1) << (new % 64);
            chunk = chunk.plus(1);
        }
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

    /// Puts a chunk of the window that is here in part into the next acknowledgement, where there is room.
    pub fn report_again(&mut self, chunk: ChunkNumber) {
        let ahead = chunk.ahead_of(self.cumulative);
        if ahead >= 0
            && self.reaches(ahead as usize)
            && !self.is_whole(chunk)
            && self.touched.len() < TOUCHED_MAX
            && !self.touched.contains(&chunk)
        {
            self.touched.push(chunk);
        }
    }

    /// Takes the partly received chunks that were touched since the last call.
    pub fn take_partials(&mut self, out: &mut [Partial]) -> usize {
        let mut filled = 0;
        for at in 0..self.touched.len() {
            let chunk = self.touched[at];
            if filled < out.len() && chunk.ahead_of(self.cumulative) >= 0 && !self.is_whole(chunk) {
                let slot = &self.slots[self.slot(chunk)];
                out[filled] = Partial {
                    chunk,
                    of: slot.packets,
                    packets: slot.map,
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

    fn board(window: u16) -> ReceiveBoard {
        ReceiveBoard::new(window, ChunkNumber(0), false)
    }

    fn packet(chunk: u32, index: u8, packets: u8) -> Packet {
        let chunk = ChunkNumber(chunk);
        Packet {
            chunk,
            index,
            packets,
        }
    }

    /// A packet arrives. Returns the immediates of the messages that are complete by it.
    fn arrive(board: &mut ReceiveBoard, packet: Packet) -> Vec<u32> {
        let mut complete = Vec::new();
        board.check(packet).expect("new and wanted");
        board.mark(packet, |end| {
            if let MessageEnd::Immediate { value, .. } = end {
                complete.push(value);
            }
        });
        complete
    }

    /// The packet that ends a message that began with the chunk `starts` arrives.
    fn arrive_end(board: &mut ReceiveBoard, at: Packet, starts: u32, immediate: u32) -> Vec<u32> {
        let key = Key(1);
        let value = immediate;
        board.note_end(
            at,
            ChunkNumber(starts),
            MessageEnd::Immediate { value, key },
        );
        arrive(board, at)
    }

    const NOTHING: [u32; 0] = [];

    #[test]
    fn what_is_missing_of_a_chunk_is_what_check_lets_through() {
        let mut board = board(64);
        assert_eq!(board.missing(packet(0, 0, 4)), 0b1111);
        arrive(&mut board, packet(0, 1, 4));
        assert_eq!(board.missing(packet(0, 0, 4)), 0b1101);
        // Cut anew, into more packets: what came of the fewer does not count.
        assert_eq!(board.missing(packet(0, 0, 5)), 0b1_1111);
        for (packets, missing) in [(4, 0b1101u64), (5, 0b1_1111)] {
            for index in 0..packets {
                let wanted = board.check(packet(0, index, packets)).is_ok();
                assert_eq!(wanted, missing >> index & 1 == 1, "{index} of {packets}");
            }
        }
    }

    #[test]
    fn a_message_completes_when_its_gap_closes_and_not_before() {
        let mut board = board(128);
        for chunk in [0, 1] {
            assert_eq!(arrive(&mut board, packet(chunk, 0, 1)), NOTHING);
        }
        assert_eq!(arrive_end(&mut board, packet(3, 0, 1), 1, 9), NOTHING);
        assert_eq!(arrive(&mut board, packet(2, 0, 1)), [9]);
        assert_eq!(board.cumulative(), ChunkNumber(4));
    }

    #[test]
    fn a_message_completes_before_an_earlier_one_when_its_own_chunks_are_whole() {
        let mut board = board(128);
        // Chunk 0 is missing. The message of the chunks 1 to 3 arrives in every order.
        for order in [
            [1, 2, 3],
            [1, 3, 2],
            [2, 1, 3],
            [2, 3, 1],
            [3, 1, 2],
            [3, 2, 1],
        ] {
            let mut board = board.clone();
            let complete = order.map(|chunk| match chunk {
                3 => arrive_end(&mut board, packet(3, 0, 1), 1, 7),
                _ => arrive(&mut board, packet(chunk, 0, 1)),
            });
            assert_eq!(complete, [vec![], vec![], vec![7]], "{order:?}");
        }
        // One that began in chunk 0 waits for it.
        assert_eq!(arrive_end(&mut board, packet(1, 0, 1), 0, 8), NOTHING);
        assert_eq!(arrive(&mut board, packet(0, 0, 1)), [8]);
    }

    #[test]
    fn in_order_messages_complete_by_the_numbers_of_their_chunks() {
        let mut board = ReceiveBoard::new(128, ChunkNumber(0), true);
        assert_eq!(arrive_end(&mut board, packet(2, 0, 1), 2, 3), NOTHING);
        assert_eq!(arrive_end(&mut board, packet(1, 0, 1), 1, 2), NOTHING);
        assert_eq!(arrive_end(&mut board, packet(0, 0, 1), 0, 1), [1, 2, 3]);
    }

    #[test]
    fn an_end_counts_whichever_packet_of_its_chunk_arrives_last() {
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let mut board = board(128);
            let complete = order.map(|index| match index {
                2 => arrive_end(&mut board, packet(0, 2, 3), 0, 5),
                _ => arrive(&mut board, packet(0, index, 3)),
            });
            assert_eq!(complete, [vec![], vec![], vec![5]], "{order:?}");
        }
    }

    #[test]
    fn several_messages_that_end_in_one_chunk_are_handed_out_in_the_order_of_their_packets() {
        let mut board = board(128);
        assert_eq!(arrive_end(&mut board, packet(1, 3, 4), 1, 4), NOTHING);
        assert_eq!(arrive_end(&mut board, packet(1, 0, 4), 0, 1), NOTHING);
        assert_eq!(arrive_end(&mut board, packet(1, 2, 4), 1, 3), NOTHING);
        assert_eq!(arrive_end(&mut board, packet(1, 1, 4), 1, 2), NOTHING);
        assert_eq!(arrive(&mut board, packet(0, 0, 1)), [1, 2, 3, 4]);
        // The places of the ends are used again.
        assert_eq!(arrive_end(&mut board, packet(2, 0, 1), 2, 5), [5]);
        assert_eq!(board.ends.len(), 4);
    }

    #[test]
    fn messages_that_claim_each_others_chunks_are_handed_out_once() {
        let mut board = board(128);
        // Every chunk claims to end a message that began with chunk 1, which is missing.
        for chunk in 2..100 {
            assert_eq!(
                arrive_end(&mut board, packet(chunk, 0, 1), 1, chunk),
                NOTHING
            );
        }
        assert_eq!(arrive(&mut board, packet(1, 0, 1)), [2]);
        assert_eq!(
            arrive(&mut board, packet(0, 0, 1)),
            (3..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_packet_that_others_of_its_chunk_have_overtaken_is_a_gap() {
        let mut board = board(128);
        let mut mark = |index| board.mark(packet(0, index, 5), |_| ());
        let marks = [0, 1, 3, 2, 4].map(&mut mark);
        use Marked::{Beginning, Gap, Whole};
        assert_eq!(marks, [Beginning, Beginning, Gap, Beginning, Whole]);
        assert_eq!(board.span(), 0);
        assert!(!board.has_part_before(ChunkNumber(4)));
        board.mark(packet(3, 0, 5), |_| ());
        assert_eq!(board.span(), 3);
        assert!(board.has_part_before(ChunkNumber(4)));
        assert!(!board.has_part_before(ChunkNumber(3)));
    }

    /// The chunks that the acknowledgement's map says are whole.
    fn mapped(board: &ReceiveBoard) -> Vec<ChunkNumber> {
        let mut map = [0u64; 16];
        let words = board.map(&mut map);
        let base = board.cumulative().minus(board.cumulative().0 % 64);
        (0..64 * words as u32)
            .filter(|i| map[*i as usize / 64] >> (i % 64) & 1 == 1)
            .map(|i| base.plus(i))
            .collect()
    }

    #[test]
    fn the_map_starts_at_a_multiple_of_64_and_survives_the_ring_and_the_wrap_of_the_numbers() {
        for first in [0, u32::MAX - 999, u32::MAX - 1_050] {
            let mut board = ReceiveBoard::new(128, ChunkNumber(first), false);
            let number = |n: u32| first.wrapping_add(n);
            for n in 0..1_000 {
                arrive(&mut board, packet(number(n), 0, 1));
            }
            arrive(&mut board, packet(number(1_001), 0, 1));
            arrive(&mut board, packet(number(1_100), 0, 1));
            let expected = [1_001, 1_100].map(|n| ChunkNumber(number(n)));
            assert_eq!(mapped(&board), expected, "from {first}");
        }
    }

    #[test]
    fn a_board_grows_as_far_as_a_chunk_lies_ahead_and_shrinks_when_all_is_whole() {
        let mut board = ReceiveBoard::new(960, ChunkNumber(u32::MAX - 50), false);
        let number = |n: u32| ChunkNumber(u32::MAX - 50).plus(n).0;
        assert_eq!((board.heap_bytes(), board.span()), (0, 0));
        assert_eq!(arrive(&mut board, packet(number(3), 0, 2)), NOTHING);
        assert_eq!(board.slots.len(), SLOTS_MIN);
        assert_eq!(
            arrive_end(&mut board, packet(number(64), 0, 1), number(64), 1),
            [1]
        );
        assert_eq!(board.slots.len(), SLOTS_MIN);
        assert_eq!(
            arrive_end(&mut board, packet(number(70), 0, 1), number(69), 2),
            NOTHING
        );
        assert_eq!(arrive(&mut board, packet(number(959), 0, 1)), NOTHING);
        assert_eq!(board.slots.len(), 1_024);
        assert_eq!(
            mapped(&board),
            [64, 70, 959].map(|n| ChunkNumber(number(n)))
        );
        assert_eq!(arrive(&mut board, packet(number(69), 0, 1)), [2]);
        assert_eq!(arrive(&mut board, packet(number(3), 1, 2)), NOTHING);
        for n in (0..959).filter(|n| ![3, 64, 69, 70].contains(n)) {
            arrive(&mut board, packet(number(n), 0, 1));
        }
        board.touched.clear();
        board.shrink();
        assert_eq!((board.heap_bytes(), board.span()), (0, 0));
        assert_eq!(
            board.check(packet(number(959), 0, 1)),
            Err(DropReason::Duplicate)
        );
    }

    #[test]
    fn what_was_received_or_lies_beyond_the_window_is_refused() {
        let mut board = board(64);
        arrive(&mut board, packet(1, 0, 2));
        let refused = |at| board.check(at).expect_err("refused");
        assert_eq!(refused(packet(1, 0, 2)), DropReason::Duplicate);
        assert_eq!(refused(packet(64, 0, 1)), DropReason::BeyondWindow);
        assert_eq!(refused(packet(u32::MAX, 0, 1)), DropReason::Duplicate);
    }

    #[test]
    fn a_chunk_that_is_cut_into_more_packets_begins_anew() {
        let mut board = board(64);
        let end = MessageEnd::Immediate {
            value: 7,
            key: Key(1),
        };
        // The last of two packets ends a message; then the chunk is cut into three.
        board.note_end(packet(0, 1, 2), ChunkNumber(0), end);
        arrive(&mut board, packet(0, 1, 2));
        assert_eq!(board.check(packet(0, 0, 3)), Ok(()));
        arrive(&mut board, packet(0, 0, 3));
        assert_eq!(
            board.check(packet(0, 0, 2)),
            Err(DropReason::Duplicate),
            "what is left of the first cut means nothing"
        );
        let mut partials = [Partial::default(); 4];
        assert_eq!(board.take_partials(&mut partials), 1);
        assert_eq!((partials[0].of, partials[0].packets), (3, 0b001));
        arrive(&mut board, packet(0, 1, 3));
        board.note_end(packet(0, 2, 3), ChunkNumber(0), end);
        let mut ends = Vec::new();
        board.mark(packet(0, 2, 3), |end| ends.push(end));
        assert_eq!(ends, [end], "once, with the last packet");
        assert_eq!(
            board.check(packet(0, 3, 4)),
            Err(DropReason::Duplicate),
            "it is whole"
        );
    }

    #[test]
    fn a_revoked_message_is_never_handed_out_and_what_comes_of_it_is_a_duplicate() {
        // Whole before, revoked, beside it; the ring grows for what never came, and the numbers wrap.
        for from in [0, u32::MAX - 2] {
            let number = |n: u32| ChunkNumber(from).plus(n).0;
            let mut board = ReceiveBoard::new(128, ChunkNumber(from), false);
            arrive(&mut board, packet(number(1), 0, 1));
            arrive(&mut board, packet(number(2), 1, 3));
            assert_eq!(
                arrive_end(&mut board, packet(number(3), 0, 1), number(1), 7),
                NOTHING
            );
            assert_eq!(
                arrive_end(&mut board, packet(number(100), 0, 1), number(99), 8),
                NOTHING
            );
            let revoke = |board: &mut ReceiveBoard, first, end| {
                let [first, end] = [first, end].map(|n| ChunkNumber(number(n)));
                board.revoke(first, end)
            };
            assert_eq!(revoke(&mut board, 1, 4), Ok(false));
            assert_eq!(revoke(&mut board, 1, 4), Ok(true));
            assert_eq!(revoke(&mut board, 4, 90), Ok(false));
            assert_eq!(revoke(&mut board, 4, 129), Err(DropReason::BeyondWindow));
            for (chunk, packets) in [(1, 1), (2, 3), (2, 4), (2, 64), (3, 1), (40, 5), (89, 64)] {
                for index in 0..packets {
                    let late = packet(number(chunk), index, packets);
                    assert_eq!(board.check(late), Err(DropReason::Duplicate), "{late:?}");
                    assert!(board.has(late));
                }
            }
            assert_eq!(board.check(packet(number(90), 0, 1)), Ok(()));
            // The acknowledgement goes on over them.
            assert_eq!(arrive(&mut board, packet(number(0), 0, 1)), NOTHING);
            assert_eq!(board.cumulative(), ChunkNumber(number(90)));
            assert_eq!(arrive(&mut board, packet(number(99), 0, 1)), [8]);
            for chunk in 90..99 {
                arrive(&mut board, packet(number(chunk), 0, 1));
            }
            assert_eq!(revoke(&mut board, 95, 101), Ok(true), "all of it is here");
            assert_eq!(board.cumulative(), ChunkNumber(number(101)));
        }
    }

    #[test]
    fn a_part_whose_acknowledgement_was_lost_is_told_of_again_when_it_comes_again() {
        let mut board = board(64);
        board.mark(packet(5, 0, 3), |_| {});
        let mut partials = [Partial::default(); 4];
        assert_eq!(board.take_partials(&mut partials), 1);
        assert_eq!(board.take_partials(&mut partials), 0);
        assert_eq!(board.check(packet(5, 0, 3)), Err(DropReason::Duplicate));
        board.report_again(ChunkNumber(5));
        assert_eq!(board.take_partials(&mut partials), 1);
        assert_eq!(
            (partials[0].chunk, partials[0].packets),
            (ChunkNumber(5), 0b001)
        );
        // What is whole takes no place from what is not.
        board.mark_map(packet(5, 2, 3), 0b110, |_| {});
        board.report_again(ChunkNumber(5));
        assert!(board.touched.is_empty());
    }
}
