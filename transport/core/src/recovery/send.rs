//! What was sent and not yet acknowledged.

use super::{full_map, ring_slots};
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
    /// The path of its last transmission.
    pub path: PathId,
    /// Whether its last transmission asked for an answer at once; otherwise the peer may put it off.
    #[serde(skip)]
    pub asks: bool,
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
}

/// A slot's neighbours in the order of transmission.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Neighbours {
    older: u16,
    newer: u16,
}

const NONE: u16 = u16::MAX;

/// The sender's scoreboard: a ring of chunks, those in flight threaded in the order of their last
/// transmission.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendBoard {
    window: u16,
    slots: Vec<Sent>,
    threads: Vec<Neighbours>,
    /// One bit a slot: acknowledged, so that a map can be compared word by word.
    acked: Vec<u64>,
    first: ChunkNumber,
    next: ChunkNumber,
    oldest: u16,
    newest: u16,
    next_order: u64,
}

impl SendBoard {
    /// An empty board for `window` outstanding chunks.
    pub fn new(window: u16) -> SendBoard {
        let slots = ring_slots(window);
        SendBoard {
            window,
            slots: vec![Sent::default(); slots],
            threads: vec![
                Neighbours {
                    older: NONE,
                    newer: NONE
                };
                slots
            ],
            acked: vec![0; slots / 64],
            first: ChunkNumber::default(),
            next: ChunkNumber::default(),
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

    /// A chunk that the board holds.
    pub fn get(&self, chunk: ChunkNumber) -> &Sent {
        &self.slots[self.slot(chunk)]
    }

    /// Those of the map's word at `base` (a multiple of 64) that are not acknowledged yet.
    pub fn news(&self, base: ChunkNumber, word: u64) -> u64 {
        word & !self.acked[self.slot(base) / 64]
    }

    /// A new chunk is sent. The board has room. `state`, `order` and the threading are the board's.
    pub fn push(&mut self, sent: Sent) -> ChunkNumber {
        let chunk = self.next;
        let slot = self.slot(chunk);
        debug_assert!(self.has_room() && self.slots[slot].state == SentState::Free);
        self.slots[slot] = Sent {
            state: SentState::InFlight,
            transmissions: 1,
            ..sent
        };
        self.next = chunk.plus(1);
        self.thread(slot);
        chunk
    }

    /// A lost chunk's missing packets are sent again, and ask for an answer at once.
    pub fn resend(&mut self, chunk: ChunkNumber, path: PathId, now: Time, bytes: u32) {
        let slot = self.slot(chunk);
        let sent = &mut self.slots[slot];
        debug_assert_eq!(sent.state, SentState::Lost);
        sent.state = SentState::InFlight;
        sent.transmissions = sent.transmissions.saturating_add(1);
        sent.path = path;
        sent.sent_at = now;
        sent.in_flight = bytes;
        sent.asks = true;
        self.thread(slot);
    }

    /// A chunk in flight is taken for lost: `missing` of its packets are to be sent again.
    pub fn lose(&mut self, chunk: ChunkNumber, missing: u64) {
        let slot = self.slot(chunk);
        debug_assert_eq!(self.slots[slot].state, SentState::InFlight);
        self.unthread(slot);
        let sent = &mut self.slots[slot];
        sent.state = SentState::Lost;
        sent.missing = missing;
        sent.in_flight = 0;
    }

    /// Some packets of a chunk have arrived.
    pub fn note_arrived(&mut self, chunk: ChunkNumber, packets: u64) {
        let slot = self.slot(chunk);
        let sent = &mut self.slots[slot];
        sent.arrived |= packets & full_map(sent.packets);
        sent.missing &= !sent.arrived;
    }

    /// A chunk has arrived whole. Returns it as it stood, or `None` when that was known.
    pub fn ack(&mut self, chunk: ChunkNumber) -> Option<Sent> {
        let slot = self.slot(chunk);
        let before = self.slots[slot];
        match before.state {
            SentState::Free | SentState::Acked => return None,
            SentState::InFlight => self.unthread(slot),
            SentState::Lost => {}
        }
        self.slots[slot].state = SentState::Acked;
        self.acked[slot / 64] |= 1 << (slot % 64);
        Some(before)
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
    pub fn oldest(&self) -> Option<(ChunkNumber, &Sent)> {
        if self.oldest == NONE {
            return None;
        }
        let slot = usize::from(self.oldest);
        let behind = slot.wrapping_sub(self.first.0 as usize) & (self.slots.len() - 1);
        Some((self.first.plus(behind as u32), &self.slots[slot]))
    }

    /// Sets every transmission's moment to `now`: after a restore the old clock says nothing.
    pub fn rebase(&mut self, now: Time) {
        for sent in &mut self.slots {
            sent.sent_at = now;
        }
    }

    fn thread(&mut self, slot: usize) {
        let older = self.newest;
        self.threads[slot] = Neighbours { older, newer: NONE };
        self.slots[slot].order = self.next_order;
        self.next_order += 1;
        match older {
            NONE => self.oldest = slot as u16,
            _ => self.threads[usize::from(older)].newer = slot as u16,
        }
        self.newest = slot as u16;
    }

    fn unthread(&mut self, slot: usize) {
        let Neighbours { older, newer } = self.threads[slot];
        match older {
            NONE => self.oldest = newer,
            _ => self.threads[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.threads[usize::from(newer)].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(at: u64) -> Sent {
        Sent {
            packets: 2,
            sent_at: Time::from_nanos(at),
            ..Sent::default()
        }
    }

    #[test]
    fn the_order_of_transmissions_survives_losses_and_acknowledgements() {
        let mut board = SendBoard::new(64);
        for at in 0..5 {
            board.push(sent(at));
        }
        board.lose(ChunkNumber(0), 3);
        assert!(board.ack(ChunkNumber(1)).is_some());
        board.resend(ChunkNumber(0), PathId(1), Time::from_nanos(9), 100);
        let mut order = Vec::new();
        while let Some((chunk, _)) = board.oldest() {
            order.push(chunk.0);
            board.ack(chunk);
        }
        assert_eq!(order, [2, 3, 4, 0]);
        board.advance();
        assert_eq!((board.first(), board.outstanding()), (ChunkNumber(5), 0));
    }

    #[test]
    fn only_news_is_left_of_a_map() {
        let mut board = SendBoard::new(64);
        for at in 0..8 {
            board.push(sent(at));
        }
        board.ack(ChunkNumber(2));
        assert_eq!(board.news(ChunkNumber(0), 0b1110), 0b1010);
        assert!(board.ack(ChunkNumber(2)).is_none());
    }
}
