//! The sending half: writes are cut into chunks, chunks are sent, acknowledged, or sent again.

mod losses;

use self::losses::missing;
use super::asks::{Next, Unasked, Use};
use super::keys::Keys;
use super::{Chunk, Event, PostError, Settings, Stats, Write};
use crate::drops::DropReason;
use crate::path::PathSet;
use crate::recovery::{SendBoard, Sent, SentState, full_map};
use crate::units::{ChunkNumber, ConnectionId, Key, Nanos, Rng, Time};
use crate::wire::{AckReader, CHUNK_INDEX_MAX, DataHeader, Flags, OVERHEAD_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Below this many full chunks in the window, chunks shrink so that the window still holds as many
/// (UCCL, section 3.3: a small chunk size when the window is small).
const CHUNKS_PER_WINDOW: u64 = 4;

/// What a receiver was not ready for is sent again after this, about a turn of the program that
/// gives buffers back; each time in a row after twice as long, up to the second value. (InfiniBand's
/// timers for "receiver not ready" range from 10 us to 655 ms.)
const PARKED_FOR: Nanos = Nanos::from_millis(1);
const PARKED_FOR_MAX: Nanos = Nanos::from_millis(64);

/// What [`Transmit::poll_chunk`] must know of the connection.
pub(super) struct Out<'a> {
    pub(super) settings: &'a Settings,
    pub(super) remote: ConnectionId,
    pub(super) keys: &'a mut Keys,
    pub(super) window: u64,
    pub(super) room: u32,
}

/// What an acknowledgement brought.
#[derive(Default)]
pub(super) struct Acked {
    /// Bytes that were in flight, headers included.
    pub(super) bytes: u64,
    /// Packets of partly arrived chunks that are taken for lost.
    pub(super) packets_lost: u64,
    /// A resend turned out not to have been needed.
    pub(super) spurious: bool,
}

/// A write that is not complete.
#[derive(Debug, Serialize, Deserialize)]
struct Posted {
    token: u64,
    bytes: u64,
    key: Key,
    offset: u64,
    immediate: Option<u32>,
    /// Bytes cut into chunks so far.
    cut: u64,
    /// Chunks cut so far.
    chunks: u32,
    /// Chunks not acknowledged.
    outstanding: u32,
    /// Whether its last chunk was cut.
    done: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Transmit {
    board: SendBoard,
    /// A slab: chunks name their write by its place here.
    posted: Vec<Option<Posted>>,
    free: Vec<u32>,
    /// Writes not cut to their end, in order.
    queue: VecDeque<u32>,
    /// Chunks taken for lost, in that order; entries acknowledged meanwhile are skipped.
    lost: VecDeque<ChunkNumber>,
    /// Chunks that the peer was not ready for; lost to the board, and put to the lost ones later.
    parked: VecDeque<ChunkNumber>,
    /// The one of them that is sent to ask whether the peer is ready now; the others wait for it.
    parked_probe: Option<ChunkNumber>,
    /// When the next one is, or last was.
    parked_until: Time,
    /// How long they waited.
    parked_for: Nanos,
    in_flight: u64,
    next_packet: u64,
    /// The newest transmission known to have arrived.
    newest_acked: u64,
    backoff: u32,
    /// When an acknowledgement last brought something new, or work began.
    progress: Time,
    heard: Time,
    /// A transmission whose timer was served late, and when it is due instead.
    rearmed: Option<(u64, Time)>,
    waiting: bool,
    /// What was sent since an answer was asked for.
    #[serde(skip)]
    unasked: Unasked,
}

impl Transmit {
    pub(super) fn new(window: u16) -> Transmit {
        Transmit {
            board: SendBoard::new(window),
            posted: Vec::with_capacity(64),
            free: Vec::with_capacity(64),
            queue: VecDeque::with_capacity(64),
            lost: VecDeque::with_capacity(window.into()),
            parked: VecDeque::new(),
            parked_probe: None,
            parked_until: Time::ZERO,
            parked_for: Nanos::ZERO,
            in_flight: 0,
            next_packet: 0,
            newest_acked: 0,
            backoff: 0,
            progress: Time::ZERO,
            heard: Time::ZERO,
            rearmed: None,
            waiting: false,
            unasked: Unasked::default(),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.board.outstanding()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether any write is not complete.
    pub(super) fn is_busy(&self) -> bool {
        self.free.len() < self.posted.len()
    }

    pub(super) fn post(&mut self, write: Write, settings: &Settings) -> Result<(), PostError> {
        let smallest = u64::from(settings.packet_payload);
        let chunks = write.bytes.div_ceil(smallest);
        if chunks > u64::from(CHUNK_INDEX_MAX) || write.offset.checked_add(write.bytes).is_none() {
            return Err(PostError::TooLong);
        }
        if !self.is_busy() {
            self.waiting = true;
        }
        let posted = Some(Posted {
            token: write.token,
            bytes: write.bytes,
            key: write.key,
            offset: write.offset,
            immediate: write.immediate,
            cut: 0,
            chunks: 0,
            outstanding: 0,
            done: false,
        });
        let at = match self.free.pop() {
            Some(at) => {
                self.posted[at as usize] = posted;
                at
            }
            None => {
                self.posted.push(posted);
                self.posted.len() as u32 - 1
            }
        };
        self.queue.push_back(at);
        Ok(())
    }

    pub(super) fn poll_chunk(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        rng: &mut Rng,
        out: &mut Out<'_>,
        stats: &mut Stats,
    ) -> Option<Chunk> {
        if self.waiting {
            // Work begins: the stall timer counts from here.
            self.waiting = false;
            self.progress = now;
            self.heard = now;
        }
        while let Some(&number) = self.lost.front() {
            let sent = *self.board.get(number);
            if !self.board.holds(number) || sent.state != SentState::Lost || sent.missing == 0 {
                if self.board.holds(number) && sent.state == SentState::Lost {
                    // Every packet arrived meanwhile, in parts: wait for the whole on its timer.
                    self.board.resend(number, sent.path, now, 0);
                }
                self.lost.pop_front();
                continue;
            }
            let bytes = wire_bytes(&sent, sent.missing, out.settings);
            if !self.fits(bytes, out) {
                return None;
            }
            let path = paths.choose_again(sent.path, sent.sent_at, rng)?;
            self.lost.pop_front();
            self.board.resend(number, path, now, bytes);
            self.in_flight += u64::from(bytes);
            stats.chunks_resent += 1;
            stats.packets_resent += u64::from(sent.missing.count_ones());
            paths.on_sent(path);
            let sent = Sent {
                path,
                asks: true,
                ..sent
            };
            self.unasked = Unasked::default();
            return self.chunk(now, number, &sent, sent.missing, out, stats);
        }
        if !self.board.has_room() {
            return None;
        }
        let &at = self.queue.front()?;
        let posted = self.posted[at as usize].as_mut()?;
        let payload = u64::from(out.settings.packet_payload);
        let full = u64::from(out.settings.chunk_packets());
        let per_chunk = (out.window / CHUNKS_PER_WINDOW / u64::from(out.settings.packet_bytes()))
            .clamp(1, full);
        let length = (posted.bytes - posted.cut).min(per_chunk * payload) as u32;
        let packets = u64::from(length).div_ceil(payload).max(1) as u8;
        let sent = Sent {
            write: at,
            index: posted.chunks,
            start: posted.cut,
            length,
            packets,
            sent_at: now,
            ..Sent::default()
        };
        let bytes = wire_bytes(&sent, full_map(packets), out.settings);
        let fits = bytes <= out.room
            && (self.in_flight == 0 || self.in_flight + u64::from(bytes) <= out.window);
        if !fits {
            return None;
        }
        let path = paths.choose(None, rng)?;
        posted.cut += u64::from(length);
        posted.chunks += 1;
        posted.outstanding += 1;
        posted.done = posted.cut == posted.bytes;
        if posted.done {
            self.queue.pop_front();
        }
        self.in_flight += u64::from(bytes);
        let asks = self.unasked.asks(Next {
            bytes,
            waits: self.queue.is_empty() || paths.is_unsure(path),
            in_flight: Use {
                used: self.in_flight,
                window: out.window,
            },
            outstanding: Use {
                used: self.outstanding() as u64 + 1,
                window: out.settings.window_chunks.into(),
            },
        });
        let sent = Sent {
            path,
            in_flight: bytes,
            asks,
            ..sent
        };
        let number = self.board.push(sent);
        stats.chunks_sent += 1;
        paths.on_sent(path);
        self.chunk(now, number, &sent, full_map(packets), out, stats)
    }

    fn fits(&self, bytes: u32, out: &Out<'_>) -> bool {
        bytes <= out.room
            && (self.in_flight == 0 || self.in_flight + u64::from(bytes) <= out.window)
    }

    fn chunk(
        &mut self,
        now: Time,
        number: ChunkNumber,
        sent: &Sent,
        map: u64,
        out: &mut Out<'_>,
        stats: &mut Stats,
    ) -> Option<Chunk> {
        let posted = self.posted[sent.write as usize].as_ref()?;
        let mut flags = if sent.asks {
            Flags::ACK_NOW
        } else {
            Flags::NONE
        };
        let mut immediate = 0;
        if sent.start + u64::from(sent.length) == posted.bytes {
            flags = flags.with(Flags::LAST);
            if let Some(value) = posted.immediate {
                flags = flags.with(Flags::IMMEDIATE);
                immediate = value;
            }
        }
        if self.board.get(number).transmissions > 1 {
            flags = flags.with(Flags::RETRANSMITTED);
        }
        let first = DataHeader {
            path: sent.path,
            packet: 0,
            packets: sent.packets,
            connection: out.remote,
            packet_number: self.next_packet,
            sent_at: now.to_wire(),
            chunk: number,
            chunk_index: sent.index,
            flags,
            immediate,
            key: posted.key,
            offset: posted.offset + sent.start,
        };
        let count = u64::from(map.count_ones());
        self.next_packet += count;
        stats.packets_sent += count;
        let seal = out.keys.seal().clone();
        out.keys.count_sealed(count);
        Some(Chunk {
            path: sent.path,
            number,
            token: posted.token,
            first,
            map,
            start: sent.start,
            length: sent.length,
            packet_payload: out.settings.packet_payload,
            seal,
        })
    }

    /// Refuses an acknowledgement of what was never sent, before anything of it counts: half of one
    /// would leave the board half advanced, or a round trip measured that never was.
    pub(super) fn check_ack(&self, ack: &AckReader<'_>) -> Result<(), DropReason> {
        let next = self.board.next();
        let unsent = |(base, word): (ChunkNumber, u64)| beyond(word, next.ahead_of(base)) != 0;
        if ack.cumulative().ahead_of(next) > 0 || words(ack).any(unsent) {
            return Err(DropReason::AckOfUnsent);
        }
        Ok(())
    }

    /// Whether a refused chunk is still under way. Refuses what names one that was never sent.
    pub(super) fn check_refusal(&self, chunk: ChunkNumber) -> Result<bool, DropReason> {
        if chunk.ahead_of(self.board.next()) >= 0 {
            return Err(DropReason::AckOfUnsent);
        }
        Ok(self.board.holds(chunk) && self.board.get(chunk).state != SentState::Acked)
    }

    /// The peer was not ready for a chunk that is under way: it is sent again after a while. No path
    /// and no queue is to blame, so neither learns of it.
    pub(super) fn park(&mut self, now: Time, chunk: ChunkNumber) {
        let sent = *self.board.get(chunk);
        if sent.state != SentState::InFlight {
            return;
        }
        let probed = self.parked_probe.take_if(|probe| *probe == chunk).is_some();
        if self.parked.is_empty() || probed {
            let in_a_row = now - self.parked_until < PARKED_FOR_MAX;
            self.parked_for = if in_a_row {
                self.parked_for.times(2).clamp(PARKED_FOR, PARKED_FOR_MAX)
            } else {
                PARKED_FOR
            };
            self.parked_until = now + self.parked_for;
        }
        self.in_flight -= u64::from(sent.in_flight);
        self.board.lose(chunk, missing(&sent));
        self.parked.push_back(chunk);
    }

    /// Of what has waited for long enough, one is sent again: a window of them, refused time and again,
    /// would fill the network for nothing. In turns, for they may be for different regions.
    pub(super) fn unpark(&mut self, now: Time) {
        if self.parked_probe.is_some() || self.parked_until > now {
            return;
        }
        while let Some(chunk) = self.parked.pop_front() {
            if self.board.holds(chunk) && self.board.get(chunk).state == SentState::Lost {
                self.lost.push_back(chunk);
                self.parked_probe = Some(chunk);
                return;
            }
        }
    }

    /// Whether the peer has said of late that it was not ready.
    pub(super) fn is_refused(&self, now: Time) -> bool {
        self.parked_for != Nanos::ZERO && now - self.parked_until < PARKED_FOR_MAX
    }

    /// Takes in an acknowledgement that [`Transmit::check_ack`] has let through.
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        ack: &AckReader<'_>,
        measured: bool,
        paths: &PathSet,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Acked {
        let cumulative = ack.cumulative();
        self.heard = now;
        self.rearmed = None;
        let mut acked = Acked::default();
        let mut chunk = self.board.first();
        while chunk != self.board.next() && chunk.ahead_of(cumulative) < 0 {
            self.ack_chunk(now, chunk, paths, events, stats, &mut acked);
            chunk = chunk.plus(1);
        }
        for (base, word) in words(ack) {
            let mut news = self.board.news(base, word);
            while news != 0 {
                let chunk = base.plus(news.trailing_zeros());
                news &= news - 1;
                if self.board.holds(chunk) {
                    self.ack_chunk(now, chunk, paths, events, stats, &mut acked);
                }
            }
        }
        for partial in ack.partials() {
            if self.board.holds(partial.chunk) {
                acked.packets_lost += self.note_partial(partial.chunk, partial.packets, stats);
            }
        }
        self.board.advance();
        if acked.bytes > 0 {
            self.progress = now;
        }
        // A measured round trip ends it (RFC 6298, section 5.7), a probe's too: after an outage what
        // went into the dark would otherwise be waited for many times longer than the outage took.
        if acked.bytes > 0 || measured {
            self.backoff = 0;
        }
        acked
    }

    fn ack_chunk(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        paths: &PathSet,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
        acked: &mut Acked,
    ) {
        let Some(sent) = self.board.ack(chunk) else {
            return;
        };
        if self.parked_probe == Some(chunk) {
            self.parked_probe = None;
            self.lost.extend(self.parked.drain(..));
        }
        self.in_flight -= u64::from(sent.in_flight);
        // A chunk that waited to be sent again, or whose resend was answered before it can have
        // arrived, was not lost (after Eifel, RFC 3522).
        let answered_too_soon = || {
            let half = paths.srtt().unwrap_or(Nanos::ZERO).get() / 2;
            (now - sent.sent_at).get() < half
        };
        let spurious = sent.state == SentState::Lost
            || sent.transmissions > 1 && sent.arrived == 0 && answered_too_soon();
        if spurious {
            stats.spurious += 1;
            acked.spurious = true;
        } else {
            self.newest_acked = self.newest_acked.max(sent.order);
        }
        acked.bytes += u64::from(sent.in_flight.max(1));
        stats.bytes_acked += u64::from(sent.length);
        let Some(posted) = self.posted[sent.write as usize].as_mut() else {
            return;
        };
        posted.outstanding -= 1;
        if posted.done && posted.outstanding == 0 {
            events.push_back(Event::Completed {
                token: posted.token,
            });
            self.posted[sent.write as usize] = None;
            self.free.push(sent.write);
        }
    }

    /// When the connection counts as stalled.
    pub(super) fn stalled_at(&self, timeout: Nanos) -> Option<Time> {
        (self.is_busy() && !self.waiting).then(|| self.progress + timeout)
    }

    /// After a restore the old clock says nothing.
    pub(super) fn rebase(&mut self, now: Time) {
        self.board.rebase(now);
        self.progress = now;
        self.heard = now;
        self.rearmed = None;
        self.parked_until = now;
    }
}

/// The words of an acknowledgement's map, each with the number of its first chunk.
fn words(ack: &AckReader<'_>) -> impl Iterator<Item = (ChunkNumber, u64)> {
    let base = ack.cumulative().minus(ack.cumulative().0 % 64);
    ack.map()
        .enumerate()
        .map(move |(w, word)| (base.plus(64 * w as u32), word))
}

/// The bits of `word` from bit `end` on.
fn beyond(word: u64, end: i32) -> u64 {
    match u32::try_from(end) {
        Err(_) | Ok(0) => word,
        Ok(end) => word.checked_shr(end).unwrap_or(0),
    }
}

/// Bytes on the wire of the packets in `map`.
fn wire_bytes(sent: &Sent, map: u64, settings: &Settings) -> u32 {
    let payload = u32::from(settings.packet_payload);
    let last = u32::from(sent.packets) - 1;
    let full = map.count_ones() * (payload + OVERHEAD_BYTES as u32);
    if map >> last & 1 == 1 {
        full - payload + (sent.length - last * payload)
    } else {
        full
    }
}
