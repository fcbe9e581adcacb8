//! The window is conserved, recounted from the packets that pass.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use weft_core::connection::{ChunkSource, Connection};
use weft_core::units::{ChunkNumber, Nanos};
use weft_core::wire::{AckReader, Kind, PREFIX_BYTES, Revoke, Revoked, TRAILER_BYTES, peek};

use super::Checker;
use crate::observation::{Arrived, End, Observation};
use crate::scenario::Scenario;

/// What the wire's clock, which counts in 64 ns, may make of a round trip.
const CLOCK_ERROR: Nanos = Nanos::from_micros(1);

/// What one end has sent and not been told of, as the packets say. Chunks are counted from the connection's first.
#[derive(Default)]
struct Sender {
    /// The next new chunk's number.
    next: u32,
    /// Every chunk before this one is acknowledged.
    first: u32,
    /// Those behind it that are.
    acked: BTreeSet<u32>,
    /// Sent for the first time, so lately that nothing can be known of them: when, which chunk, bytes on the wire.
    recent: VecDeque<(u64, u32, u64)>,
    /// The messages of those that are not acknowledged, by chunk; of responses and requests none.
    messages: BTreeMap<u32, u64>,
    /// Chunks of cancelled messages, until the peer has confirmed it: no acknowledgement of them counts. And the bytes that
    /// are under way for certain.
    revoked: BTreeMap<u32, u64>,
    /// The chunks that it has revoked, as far as the peer knows, by the number of the revocation.
    revocations: BTreeMap<u64, Range<u32>>,
    /// Something was sent in this turn.
    sent: bool,
    /// It was sent for the first time.
    sent_new: bool,
}

impl Sender {
    fn is_acked(&self, chunk: u32) -> bool {
        chunk < self.first || self.acked.contains(&chunk)
    }

    fn acknowledge(&mut self, ack: &AckReader<'_>, first_chunk: ChunkNumber) {
        let count = |chunk: u32| chunk.wrapping_sub(first_chunk.0);
        if count(ack.cumulative().0) > self.next {
            // A replay under a key that is over: its body was not opened.
            return;
        }
        let mut acked = BTreeSet::new();
        acked.extend(self.first..count(ack.cumulative().0));
        let base = ack.cumulative().0 / 64 * 64;
        for (word, at) in ack.map().zip((0..).step_by(64)) {
            let of_word = (0..64).filter(|bit| word >> bit & 1 == 1);
            acked.extend(of_word.map(|bit| count(base.wrapping_add(at + bit))));
        }
        acked.retain(|chunk| !self.revoked.contains_key(chunk));
        self.acked.extend(acked);
        self.advance();
    }

    /// A message is cancelled: what was sent of it counts until the peer has confirmed that.
    fn cancel(&mut self, now: u64, message: u64, unknown_for: Nanos) {
        let of_it = |(_, of): &(&u32, &u64)| **of == message;
        let chunks = self.messages.iter().filter(of_it);
        let chunks: Vec<u32> = chunks.map(|(chunk, _)| *chunk).collect();
        for chunk in chunks {
            if !self.is_acked(chunk) {
                self.revoked.entry(chunk).or_default();
            }
        }
        let revoked = &mut self.revoked;
        self.recent.retain(|(at, chunk, bytes)| {
            let Some(under_way) = revoked.get_mut(chunk) else {
                return true;
            };
            // What was sent earlier may be taken for lost.
            if now - at < unknown_for.get() {
                *under_way = *bytes;
            }
            false
        });
    }

    /// A revocation has come to the peer.
    fn revoke(&mut self, revoke: &Revoke, first_chunk: ChunkNumber) {
        let count = |chunk: ChunkNumber| chunk.0.wrapping_sub(first_chunk.0);
        let chunks = count(revoke.first)..count(revoke.end);
        if chunks.end <= self.next {
            self.revocations.insert(revoke.number, chunks);
        }
    }

    /// The peer has confirmed a revocation.
    fn release(&mut self, revoked: &Revoked) {
        if let Some(chunks) = self.revocations.remove(&revoked.number) {
            self.revoked.retain(|chunk, _| !chunks.contains(chunk));
            self.acked.extend(chunks.start.max(self.first)..chunks.end);
            self.advance();
        }
    }

    fn advance(&mut self) {
        while self.acked.remove(&self.first) {
            self.first += 1;
        }
        self.acked = self.acked.split_off(&self.first);
        self.messages = self.messages.split_off(&self.first);
        let mut recent = std::mem::take(&mut self.recent);
        recent.retain(|(_, chunk, _)| !self.is_acked(*chunk));
        self.recent = recent;
    }
}

/// Never more chunks outstanding than the receiver has room for, never more bytes under way than the congestion
/// window, those of cancelled messages included until the peer has confirmed it; none of either when idle.
pub(super) struct WindowConserved {
    window_chunks: u32,
    first_chunk: ChunkNumber,
    /// Nothing is known of what was sent less than this ago, so that it counts as under way.
    unknown_for: Nanos,
    senders: BTreeMap<End, Sender>,
}

impl WindowConserved {
    pub(super) fn new(scenario: &Scenario) -> WindowConserved {
        let round_trip = scenario.fabric.delay.get() * 2 - CLOCK_ERROR.get();
        WindowConserved {
            window_chunks: scenario.settings.window_chunks.into(),
            first_chunk: scenario.first_chunk,
            unknown_for: Nanos::new(round_trip).min(scenario.rto_min),
            senders: BTreeMap::new(),
        }
    }

    fn turned(&mut self, now: u64, end: End, connection: &Connection) -> Result<(), String> {
        let sender = self.senders.entry(end).or_default();
        if connection.is_idle() && sender.first != sender.next {
            return Err(format!(
                "{end:?} is idle and chunk {} of {} was never acknowledged",
                sender.first, sender.next
            ));
        }
        let sent_new = std::mem::take(&mut sender.sent_new);
        if !std::mem::take(&mut sender.sent) {
            return Ok(());
        }
        let old = |&mut (at, ..): &mut (u64, u32, u64)| now - at >= self.unknown_for.get();
        while sender.recent.pop_front_if(old).is_some() {}
        let mut under_way: u64 = sender.recent.iter().map(|(.., bytes)| bytes).sum();
        let mut chunks = sender.recent.len();
        if sent_new {
            // What is sent again may go beyond it: a tail-loss probe does.
            let revoked = sender.revoked.values().filter(|bytes| **bytes > 0);
            under_way += revoked.clone().sum::<u64>();
            chunks += revoked.count();
        }
        // One chunk may always be under way, whatever the window.
        if chunks > 1 && under_way > connection.window() {
            return Err(format!(
                "{end:?} has {under_way} B under way, the window is {} B",
                connection.window()
            ));
        }
        Ok(())
    }
}

impl Checker for WindowConserved {
    fn name(&self) -> &'static str {
        "window and inflight conserved"
    }

    fn observe(&mut self, now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Sent { writer, chunk } => {
                let sender = self.senders.entry(writer).or_default();
                sender.sent = true;
                // Of one that is sent again, an answer to what was sent before may come at any time.
                let count = chunk.number.0.wrapping_sub(self.first_chunk.0);
                if count == sender.next {
                    let recent = (now, count, chunk.wire_bytes());
                    sender.recent.push_back(recent);
                    sender.sent_new = true;
                    if let ChunkSource::Posted { token } = chunk.source {
                        sender.messages.insert(count, token);
                    }
                    sender.next += 1;
                }
                if sender.revoked.contains_key(&count) {
                    return Err(format!(
                        "{writer:?} sends chunk {count} of a message that is cancelled"
                    ));
                }
                let outstanding = sender.next - sender.first;
                if outstanding > self.window_chunks {
                    return Err(format!(
                        "{writer:?} has {outstanding} chunks outstanding, the window is {}",
                        self.window_chunks
                    ));
                }
            }
            Observation::Received { received } => {
                for &Arrived {
                    end,
                    tampered,
                    bytes,
                } in &received.packets
                {
                    let kind = peek(bytes).map(|peek| peek.kind);
                    let (Some(end), false, Ok(kind)) = (end, tampered, kind) else {
                        continue;
                    };
                    let Some(body) = bytes.get(PREFIX_BYTES..bytes.len() - TRAILER_BYTES) else {
                        continue;
                    };
                    let of = match kind {
                        Kind::Revoke => end.peer(),
                        _ => end,
                    };
                    let sender = self.senders.entry(of).or_default();
                    match kind {
                        Kind::Ack => {
                            if let Ok(ack) = AckReader::parse(body) {
                                sender.acknowledge(&ack, self.first_chunk);
                            }
                        }
                        Kind::Revoke => {
                            if let Ok(revoke) = Revoke::parse(body) {
                                sender.revoke(&revoke, self.first_chunk);
                            }
                        }
                        Kind::Revoked => {
                            if let Ok(revoked) = Revoked::parse(body) {
                                sender.release(&revoked);
                            }
                        }
                        _ => {}
                    }
                }
            }
            Observation::CancelAsked {
                message,
                result: Ok(()),
                ..
            } => {
                let sender = self.senders.entry(message.writer).or_default();
                sender.cancel(now, message.id, self.unknown_for);
            }
            Observation::Turned {
                end, connection, ..
            } => return self.turned(now, end, connection),
            _ => {}
        }
        Ok(())
    }
}
