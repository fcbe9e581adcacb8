//! The window is conserved, recounted from the packets that pass.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use weft_core::connection::Connection;
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
    /// The chunks that it has revoked, as far as the peer knows, by the number of the revocation.
    revocations: BTreeMap<u64, Range<u32>>,
    /// Something was sent in this turn.
    sent: bool,
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
        self.first = self.first.max(count(ack.cumulative().0));
        let base = ack.cumulative().0 / 64 * 64;
        for (word, at) in ack.map().zip((0..).step_by(64)) {
            let acked = (0..64).filter(|bit| word >> bit & 1 == 1);
            self.acked
                .extend(acked.map(|bit| count(base.wrapping_add(at + bit))));
        }
        self.advance();
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
            self.acked.extend(chunks.start.max(self.first)..chunks.end);
            self.advance();
        }
    }

    fn advance(&mut self) {
        while self.acked.remove(&self.first) {
            self.first += 1;
        }
        self.acked = self.acked.split_off(&self.first);
        let mut recent = std::mem::take(&mut self.recent);
        recent.retain(|(_, chunk, _)| !self.is_acked(*chunk));
        self.recent = recent;
    }
}

/// Never more chunks outstanding than the receiver has room for, never more bytes under way than the congestion
/// window; none of either when idle.
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
        if !std::mem::take(&mut sender.sent) {
            return Ok(());
        }
        let old = |&mut (at, ..): &mut (u64, u32, u64)| now - at >= self.unknown_for.get();
        while sender.recent.pop_front_if(old).is_some() {}
        let under_way: u64 = sender.recent.iter().map(|(.., bytes)| bytes).sum();
        // One chunk may always be under way, whatever the window.
        if sender.recent.len() > 1 && under_way > connection.window() {
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
                    sender.next += 1;
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
            Observation::Turned {
                end, connection, ..
            } => return self.turned(now, end, connection),
            _ => {}
        }
        Ok(())
    }
}
