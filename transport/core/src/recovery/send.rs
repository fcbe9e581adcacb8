//! What was sent and not yet acknowledged.

use super::{WINDOW_MAX, full_map, heap_bytes};
use crate::units::{ChunkNumber, PathId, Time};
use serde::{Deserialize, Serialize};

/// Where a sent chunk stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SentState {
    /// The slot holds no chunk.
    #[default]
    Free,
    /// On its way.
    InFlight,
    /// Taken for lost; waits to be sent again.
    Lost,
    /// Arrived whole; an earlier one has not.
    Acked,
    /// Never sent again: its message was cancelled, and the receiver has not confirmed it.
    Revoked,
}

/// One chunk, from its first transmission until everything before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Where it stands; written by the board.
    pub state: SentState,
    /// The write it belongs to, the caller's index.
    pub write: u32,
    /// Its place in the message.
    pub index: u32,
    /// Where in the write its payload starts, bytes.
    pub start: u64,
    /// Its payload, bytes.
    pub length: u32,
    /// Its packets.
    pub packets: u8,
    /// Payload of each of them but the last, bytes.
    pub payload: u16,
    /// The path of its last transmission.
    pub path: PathId,
    /// Whether its last transmission asked for an answer at once; otherwise the peer may put it off.
    #[serde(skip)]
    pub ack_now: bool,
    /// How often it was sent, saturating.
    pub transmissions: u8,
    /// The packets that arrived.
    pub arrived: u64,
    /// The packets to send again, when lost.
    pub missing: u64,
    /// When it was sent last.
    pub sent_at: Time,
    /// The place of its last transmission among all transmissions.
    pub order: u64,
    /// Bytes of its last transmission that count as in flight.
    pub in_flight: u32,
    /// Bytes of all chunks in flight when it was sent first, with its own (`tx_in_flight` in
    /// draft-ietf-ccwg-bbr).
    pub tx_in_flight: u32,
}

impl Sent {
    /// Whether it is neither acknowledged nor revoked.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, SentState::InFlight | SentState::Lost)
    }
}

/// A slot's neighbours in the order of transmission.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Neighbours {
    older: u16,
    newer: u16,
}

/// No slot: beyond what a window of [`WINDOW_MAX`] needs.
const NONE: u16 = u16::MAX;

impl Neighbours {
    const NONE: Neighbours = Neighbours {
        older: NONE,
        newer: NONE,
    };
}

/// Slots of a board that is first used: one word of the map of acknowledged chunks.
const SLOTS_MIN: usize = 64;

/// The sender's scoreboard: a ring of chunks, those in flight linked in the order of their last
/// transmission. The ring has no slots until the first chunk, doubles when it is full, up to the window, and
/// gives its memory back in [`SendBoard::shrink`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendBoard {
    window: u16,
    slots: Vec<Sent>,
    links: Vec<Neighbours>,
    /// One bit a slot: acknowledged, so that a map can be compared word by word.
    acked: Vec<u64>,
    first: ChunkNumber,
    next: ChunkNumber,
    oldest: u16,
    newest: u16,
    next_order: u64,
}

impl SendBoard {
    /// An empty board for `window` outstanding chunks; the first one sent has the number `first`.
    pub fn new(window: u16, first: ChunkNumber) -> SendBoard {
        SendBoard {
            window: window.clamp(1, WINDOW_MAX),
            slots: Vec::new(),
            links: Vec::new(),
            acked: Vec::new(),
            first,
            next: first,
            oldest: NONE,
            newest: NONE,
            next_order: 1,
        }
    }

    /// The oldest chunk not acknowledged.
    pub fn first(&self) -> ChunkNumber {
        self.first
    }

    /// The number of the next new chunk.
    pub fn next(&self) -> ChunkNumber {
        self.next
    }

    /// Chunks between the oldest not acknowledged and the newest.
    pub fn outstanding(&self) -> usize {
        self.next.ahead_of(self.first) as usize
    }

    /// The window of chunk numbers.
    pub fn window(&self) -> u16 {
        self.window
    }

    /// Whether the window of chunk numbers has room for one more.
    pub fn has_room(&self) -> bool {
        self.outstanding() < usize::from(self.window)
    }

    fn slot(&self, chunk: ChunkNumber) -> usize {
        chunk.0 as usize & (self.slots.len() - 1)
    }

    /// Whether `chunk` was sent and is still kept.
    pub fn holds(&self, chunk: ChunkNumber) -> bool {
        chunk.ahead_of(self.first) >= 0 && chunk.ahead_of(self.next) < 0
    }

    /// Whether the board holds `chunk` and it waits to be sent again.
    pub fn is_lost(&self, chunk: ChunkNumber) -> bool {
        self.holds(chunk) && self.get(chunk).state == SentState::Lost
    }

    /// A chunk that the board holds.
    pub fn get(&self, chunk: ChunkNumber) -> &Sent {
        &self.slots[self.slot(chunk)]
    }

    /// Those of the map's word at `base` (a multiple of 64) that are not acknowledged yet. Bits of chunks
    /// that the board does not hold mean nothing.
    pub fn news(&self, base: ChunkNumber, word: u64) -> u64 {
        if self.slots.is_empty() {
            return 0;
        }
        word & !self.acked[self.slot(base) / 64]
    }

    /// A new chunk is sent. The board has room. `state`, `order` and the links are the board's.
    #[inline(always)]
    pub fn push(&mut self, sent: Sent) -> ChunkNumber {
        let chunk = self.next;
        debug_assert!(self.has_room());
        if self.outstanding() == self.slots.len() {
            self.resize((2 * self.slots.len()).max(SLOTS_MIN));
        }
        let slot = self.slot(chunk);
        let order = self.take_order();
        self.slots[slot] = Sent {
            state: SentState::InFlight,
            transmissions: 1,
            order,
            ..sent
        };
        self.next = chunk.plus(1);
        self.link(slot);
        chunk
    }

    /// A lost chunk's missing packets are sent again, and ask for an answer at once. Returns the chunk as
    /// it stands now.
    pub fn resend(&mut self, chunk: ChunkNumber, path: PathId, now: Time, bytes: u32) -> Sent {
        let slot = self.slot(chunk);
        let order = self.take_order();
        let sent = &mut self.slots[slot];
        debug_assert_eq!(sent.state, SentState::Lost);
        sent.state = SentState::InFlight;
        sent.transmissions = sent.transmissions.saturating_add(1);
        sent.path = path;
        sent.sent_at = now;
        sent.in_flight = bytes;
        sent.ack_now = true;
        sent.order = order;
        let sent = *sent;
        self.link(slot);
        sent
    }

    /// The next place among all transmissions. A transmission that belongs to no chunk's state, such as a
    /// tail-loss probe, takes one as well.
    pub fn take_order(&mut self) -> u64 {
        let order = self.next_order;
        self.next_order += 1;
        order
    }

    /// A chunk in flight is declared lost: `missing` of its packets are to be sent again.
    pub fn lose(&mut self, chunk: ChunkNumber, missing: u64) {
        let slot = self.slot(chunk);
        debug_assert_eq!(self.slots[slot].state, SentState::InFlight);
        self.unlink(slot);
        let sent = &mut self.slots[slot];
        sent.state = SentState::Lost;
        sent.missing = missing;
        sent.in_flight = 0;
    }

    /// A lost chunk is cut anew, into packets of at most `payload` bytes each, and into more of them than before: by
    /// their number the receiver tells the two apart. Returns the chunk as it stands now.
    pub fn cut(&mut self, chunk: ChunkNumber, payload: u16) -> Sent {
        let slot = self.slot(chunk);
        let sent = &mut self.slots[slot];
        debug_assert_eq!(sent.state, SentState::Lost);
        let more = u32::from(sent.packets) + 1;
        let payload = u32::from(payload).min(sent.length.div_ceil(more));
        sent.payload = payload as u16;
        sent.packets = sent.length.div_ceil(payload) as u8;
        sent.arrived = 0;
        sent.missing = full_map(sent.packets);
        *sent
    }

    /// Some packets of a chunk have arrived.
    pub fn note_arrived(&mut self, chunk: ChunkNumber, packets: u64) {
        let slot = self.slot(chunk);
        let sent = &mut self.slots[slot];
        sent.arrived |= packets & full_map(sent.packets);
        sent.missing &= !sent.arrived;
    }

    /// A chunk has arrived whole. Returns where it stood, or `None` when that was known.
    #[inline]
    pub fn ack(&mut self, chunk: ChunkNumber) -> Option<SentState> {
        let slot = self.slot(chunk);
        let before = self.slots[slot].state;
        match before {
            SentState::Free | SentState::Acked | SentState::Revoked => return None,
            SentState::InFlight => self.unlink(slot),
            SentState::Lost => {}
        }
        self.slots[slot].state = SentState::Acked;
        self.acked[slot / 64] |= 1 << (slot % 64);
        Some(before)
    }

    /// Revokes a chunk that is under way: it is not sent again, and no acknowledgement counts for it. Its bytes stay in
    /// flight. Answers whether it was under way.
    pub fn revoke(&mut self, chunk: ChunkNumber) -> bool {
        let slot = self.slot(chunk);
        match self.slots[slot].state {
            SentState::Free | SentState::Acked | SentState::Revoked => return false,
            SentState::InFlight => self.unlink(slot),
            SentState::Lost => {}
        }
        self.slots[slot].state = SentState::Revoked;
        true
    }

    /// The receiver has confirmed that nothing more of a chunk is placed. Answers which one it was, if it was revoked.
    pub fn release(&mut self, chunk: ChunkNumber) -> Option<Sent> {
        let slot = self.slot(chunk);
        let sent = self.slots[slot];
        if sent.state != SentState::Revoked {
            return None;
        }
        self.slots[slot].state = SentState::Acked;
        self.acked[slot / 64] |= 1 << (slot % 64);
        Some(sent)
    }

    /// The chunks that are under way, from the oldest number on.
    pub fn under_way(&self) -> impl Iterator<Item = (ChunkNumber, &Sent)> {
        let numbers = (0..self.outstanding()).map(|at| self.first.plus(at as u32));
        let sent = numbers.map(|chunk| (chunk, self.get(chunk)));
        sent.filter(|(_, sent)| sent.is_under_way())
    }

    /// Forgets the acknowledged chunks at the front.
    pub fn advance(&mut self) {
        while self.first != self.next {
            let slot = self.slot(self.first);
            if self.slots[slot].state != SentState::Acked {
                return;
            }
            self.slots[slot].state = SentState::Free;
            self.acked[slot / 64] &= !(1 << (slot % 64));
            self.first = self.first.plus(1);
        }
    }

    /// The chunk in flight whose last transmission is the oldest.
    pub fn oldest(&self) -> Option<ChunkNumber> {
        self.chunk_at(self.oldest)
    }

    /// The chunk in flight whose last transmission is the newest.
    pub fn newest(&self) -> Option<ChunkNumber> {
        self.chunk_at(self.newest)
    }

    /// The chunk in flight that was sent next after `chunk`, which is in flight.
    pub fn newer(&self, chunk: ChunkNumber) -> Option<ChunkNumber> {
        self.chunk_at(self.links[self.slot(chunk)].newer)
    }

    /// The chunks in flight, by the order of their last transmission.
    pub fn in_flight(&self) -> impl Iterator<Item = &Sent> {
        let chunks = std::iter::successors(self.oldest(), |&chunk| self.newer(chunk));
        chunks.map(|chunk| self.get(chunk))
    }

    /// Sets every transmission's moment to `now`, as after a restore.
    pub fn rebase(&mut self, now: Time) {
        for sent in &mut self.slots {
            sent.sent_at = now;
        }
    }

    /// Gives the memory back that the chunks now outstanding do not need.
    pub fn shrink(&mut self) {
        self.resize(match self.outstanding() {
            0 => 0,
            chunks => chunks.next_power_of_two().max(SLOTS_MIN),
        });
    }

    /// Heap memory that the board occupies, bytes.
    pub fn heap_bytes(&self) -> usize {
        heap_bytes(&self.slots) + heap_bytes(&self.links) + heap_bytes(&self.acked)
    }

    /// Moves the ring to `slots` slots, 0 or a power of two that holds what is outstanding.
    fn resize(&mut self, slots: usize) {
        if slots == self.slots.len() {
            return;
        }
        let mut resized = SendBoard {
            slots: vec![Sent::default(); slots],
            links: vec![Neighbours::NONE; slots],
            acked: vec![0; slots / 64],
            next: self.next,
            next_order: self.next_order,
            ..SendBoard::new(self.window, self.first)
        };
        let mut chunk = self.first;
        while chunk != self.next {
            let slot = resized.slot(chunk);
            resized.slots[slot] = *self.get(chunk);
            if self.get(chunk).state == SentState::Acked {
                resized.acked[slot / 64] |= 1 << (slot % 64);
            }
            chunk = chunk.plus(1);
        }
        let mut in_flight = self.oldest();
        while let Some(chunk) = in_flight {
            in_flight = self.newer(chunk);
            resized.link(resized.slot(chunk));
        }
        *self = resized;
    }

    /// The chunk in flight at `slot`.
    fn chunk_at(&self, slot: u16) -> Option<ChunkNumber> {
        if slot == NONE {
            return None;
        }
        let behind = usize::from(slot).wrapping_sub(self.first.0 as usize) & (self.slots.len() - 1);
        Some(self.first.plus(behind as u32))
    }

    /// Makes the chunk at `slot` the newest in flight.
    #[inline]
    fn link(&mut self, slot: usize) {
        let older = self.newest;
        self.links[slot] = Neighbours { older, newer: NONE };
        match older {
            NONE => self.oldest = slot as u16,
            _ => self.links[usize::from(older)].newer = slot as u16,
        }
        self.newest = slot as u16;
    }

    fn unlink(&mut self, slot: usize) {
        let Neighbours { older, newer } = self.links[slot];
        match older {
            NONE => self.oldest = newer,
            _ => self.links[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.links[usize::from(newer)].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers wrap after three chunks.
    const FIRST: ChunkNumber = ChunkNumber(u32::MAX - 2);

    fn number(at: u32) -> ChunkNumber {
        FIRST.plus(at)
    }

    fn in_flight(board: &SendBoard) -> Vec<u32> {
        let chunks = std::iter::successors(board.oldest(), |&chunk| board.newer(chunk));
        chunks.map(|chunk| chunk.ahead_of(FIRST) as u32).collect()
    }

    fn sent(at: u64) -> Sent {
        Sent {
            packets: 2,
            sent_at: Time::from_nanos(at),
            ..Sent::default()
        }
    }

    #[test]
    fn the_order_of_transmissions_survives_losses_and_acknowledgements() {
        let mut board = SendBoard::new(64, FIRST);
        for at in 0..5 {
            board.push(sent(at));
        }
        board.lose(number(0), 3);
        assert!(board.ack(number(1)).is_some());
        board.resend(number(0), PathId(1), Time::from_nanos(9), 100);
        assert_eq!(in_flight(&board), [2, 3, 4, 0]);
        for chunk in [2, 3, 4, 0] {
            board.ack(number(chunk));
        }
        board.advance();
        assert_eq!((board.first(), board.outstanding()), (number(5), 0));
    }

    #[test]
    fn a_revoked_chunk_holds_its_number_until_it_is_released_and_no_acknowledgement_counts_for_it()
    {
        let mut board = SendBoard::new(64, FIRST);
        for at in 0..5 {
            board.push(sent(at));
        }
        board.lose(number(1), 3);
        board.ack(number(2));
        let revoked = [0, 1, 2, 3].map(|at| board.revoke(number(at)));
        assert_eq!(revoked, [true, true, false, true]);
        assert!(!board.revoke(number(0)), "once");
        assert_eq!(in_flight(&board), [4]);
        let under_way: Vec<ChunkNumber> = board.under_way().map(|(chunk, _)| chunk).collect();
        assert_eq!(under_way, [number(4)]);
        for at in 0..4 {
            assert_eq!(board.ack(number(at)), None);
        }
        board.advance();
        assert_eq!(board.first(), number(0));
        for at in 5..64 {
            // The ring grows with it.
            board.push(sent(at));
        }
        assert!(!board.has_room());
        let released = [0, 1, 2, 3, 4].map(|at| board.release(number(at)).is_some());
        assert_eq!(released, [true, true, false, true, false]);
        board.advance();
        assert_eq!(board.first(), number(4));
    }

    #[test]
    fn only_news_is_left_of_a_map() {
        let mut board = SendBoard::new(64, FIRST);
        for at in 0..8 {
            board.push(sent(at));
        }
        // The numbers wrap after three chunks: the next word of the map begins there.
        board.ack(number(5));
        assert_eq!(board.news(number(3), 0b1110), 0b1010);
        assert!(board.ack(number(5)).is_none());
    }

    #[test]
    fn a_board_without_chunks_has_no_heap_and_grows_and_shrinks_with_what_is_outstanding() {
        let mut board = SendBoard::new(960, FIRST);
        assert_eq!(board.heap_bytes(), 0);
        assert_eq!(board.news(FIRST, u64::MAX), 0);
        for at in 0..200 {
            board.push(sent(at));
        }
        board.lose(number(10), 1);
        board.ack(number(20));
        for at in 200..960 {
            board.push(sent(at));
        }
        assert!(!board.has_room());
        let expected: Vec<u32> = (0..960).filter(|n| ![10, 20].contains(n)).collect();
        assert_eq!(in_flight(&board), expected);
        assert_eq!(board.get(number(700)).sent_at, Time::from_nanos(700));
        assert!(board.is_lost(number(10)));
        let full = board.heap_bytes();
        for at in 0..950 {
            board.ack(number(at));
        }
        board.advance();
        board.shrink();
        assert!(board.heap_bytes() < full / 8);
        assert_eq!(in_flight(&board), (950..960).collect::<Vec<_>>());
        for at in 950..960 {
            board.ack(number(at));
        }
        board.advance();
        board.shrink();
        assert_eq!(board.heap_bytes(), 0);
    }

    #[test]
    fn a_chunk_that_is_cut_anew_has_more_packets_than_before() {
        for length in [1_409, 2_000, 2_272, 3_000, 4_225, 5_680, 15_488] {
            let mut board = SendBoard::new(4, number(0));
            let packets = u32::div_ceil(length, 1_408) as u8;
            let chunk = board.push(Sent {
                length,
                packets,
                payload: 1_408,
                ..Sent::default()
            });
            board.lose(chunk, full_map(packets));
            let sent = board.cut(chunk, 1_136);
            assert!(sent.packets > packets && sent.payload <= 1_136, "{length}");
            let last = length - (u32::from(sent.packets) - 1) * u32::from(sent.payload);
            assert!((1..=u32::from(sent.payload)).contains(&last), "{length}");
        }
    }
}
