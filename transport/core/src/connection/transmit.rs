//! The sending half: writes are cut into chunks, chunks are sent, acknowledged, or sent again.

mod completions;
mod losses;
mod posted;
mod readiness;
mod revocations;

use self::completions::Completions;
use self::losses::{Serving, TailProbe, answered_too_soon, highest_bit, missing};
use self::posted::Posted;
pub(super) use self::posted::Response;
use self::readiness::Readiness;
pub(super) use self::revocations::RevocationReason;
use self::revocations::Revocations;
use super::ack_request::{Outgoing, SinceAckRequest, WindowUse};
use super::in_flight::InFlight;
use super::keys::Keys;
use super::numbers::PacketNumbers;
use super::timer::{Timer, TimerTable};
use super::{Chunk, ConnectionConfig, Event, Settings, Stats};
use crate::congestion::{Backlog, Congestion, CongestionControl, Permit};
use crate::drops::DropReason;
use crate::path::{PathPolicy, PathSet, Policy};
use crate::recovery::{SendBoard, Sent, SentState, full_map};
use crate::units::{ChunkNumber, ConnectionId, Nanos, PathId, Rng, Time};
use crate::wire::{AckReader, CHUNK_PACKETS_MAX, DataHeader, Flags, OVERHEAD_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What [`SendHalf::poll_chunk`] must know of the connection.
pub(super) struct Out<'a> {
    pub(super) settings: &'a Settings,
    pub(super) room: u32,
    pub(super) policy: &'a mut Policy,
    pub(super) congestion: &'a mut Congestion,
    pub(super) rng: &'a mut Rng,
}

/// What goes next: packets of a chunk. A [`Chunk`] is long: it is made once, where it is handed out.
pub(crate) struct Departure {
    number: ChunkNumber,
    /// The packets.
    map: u64,
    /// How many they are.
    pub(crate) packets: u8,
    /// On the wire.
    pub(crate) bytes: u32,
    path: PathId,
    flags: Flags,
}

/// What an acknowledgement brought.
#[derive(Default)]
pub(super) struct Acked {
    /// Bytes that were in flight, headers included.
    pub(super) bytes: u64,
    /// The largest [`Sent::tx_in_flight`] of the chunks that it names; `None` where it names none.
    pub(super) tx_in_flight: Option<u32>,
    /// Packets of partly arrived chunks that are declared lost.
    pub(super) packets_lost: u64,
    /// A resend turned out not to have been needed.
    pub(super) spurious: bool,
}

impl Acked {
    fn note_sent(&mut self, sent: &Sent) {
        self.tx_in_flight = self.tx_in_flight.max(Some(sent.tx_in_flight));
    }
}

/// What there is to send again.
enum Resend {
    /// This.
    Chunk(Departure),
    /// Something that the window, the path or the pace does not let through now; nothing new goes before it.
    NotNow,
    /// Nothing.
    Nothing,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SendHalf {
    board: SendBoard,
    /// A slab: chunks name their message by its place here.
    posted: Vec<Option<Posted>>,
    free: Vec<u32>,
    /// What was posted and is not cut to its end, in order.
    queue: VecDeque<u32>,
    /// Responses that are not cut to their end, in order.
    responses: VecDeque<u32>,
    /// Responses cut to their end since a message of the queue was.
    responses_in_a_row: u8,
    /// Whether messages complete in the order of their chunks.
    in_order: bool,
    /// Messages of which every chunk is acknowledged, and not every chunk before them, each with its last chunk.
    whole: Vec<(ChunkNumber, u32)>,
    /// What was posted and is not reported, if in order.
    completions: Completions,
    /// Responses that the peer has not acknowledged.
    unacked_responses: usize,
    /// Responses that this end waits for.
    awaited: usize,
    /// The number of the next send.
    sends: u64,
    /// Chunks declared lost, in that order; entries acknowledged or revoked meanwhile are skipped.
    lost: VecDeque<ChunkNumber>,
    /// Messages that are revoked, and that the receiver has not confirmed.
    revocations: Revocations,
    /// The place of the last message that was looked for.
    #[serde(skip)]
    looked_at: usize,
    readiness: Readiness,
    in_flight: InFlight,
    /// The path chosen for the next chunk, which was not let through yet.
    chosen: Option<PathId>,
    /// The same for a chunk that is sent again.
    chosen_again: Option<(ChunkNumber, PathId)>,
    numbers: PacketNumbers,
    /// The newest transmission known to have arrived.
    newest_acked: u64,
    /// How often the retransmission timeout has doubled.
    backoff: u32,
    /// When the peer was last heard, or work began.
    heard: Time,
    /// How long the peer may yet acknowledge nothing new, once the stall timer, now stopped, runs.
    stall_left: Nanos,
    #[serde(skip)]
    serving: Serving,
    #[serde(skip)]
    tail_probe: TailProbe,
    /// What was sent since an answer was asked for.
    #[serde(skip)]
    since_ack_request: SinceAckRequest,
}

impl SendHalf {
    pub(super) fn new(config: &ConnectionConfig) -> SendHalf {
        SendHalf {
            board: SendBoard::new(config.settings.window_chunks, config.send_from),
            posted: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            responses: VecDeque::new(),
            responses_in_a_row: 0,
            in_order: config.in_order,
            whole: Vec::new(),
            completions: Completions::default(),
            unacked_responses: 0,
            awaited: 0,
            sends: 0,
            lost: VecDeque::new(),
            revocations: Revocations::default(),
            looked_at: 0,
            readiness: Readiness::Ready,
            in_flight: InFlight::new(config.settings.paths),
            chosen: None,
            chosen_again: None,
            numbers: PacketNumbers::new(config.first_packet.into()),
            newest_acked: 0,
            backoff: 0,
            heard: Time::ZERO,
            stall_left: config.stall_timeout,
            serving: Serving::OnTime,
            tail_probe: TailProbe::None,
            since_ack_request: SinceAckRequest::default(),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.board.outstanding()
    }

    pub(super) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Whether anything posted is not complete.
    pub(super) fn is_busy(&self) -> bool {
        self.has_messages() || self.awaits_response()
    }

    /// Whether any message is not acknowledged.
    pub(super) fn has_messages(&self) -> bool {
        self.free.len() < self.posted.len()
    }

    /// The number of the next data packet.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.next()
    }

    /// What waits to be sent; of what was never sent, not much more than `most` bytes.
    pub(super) fn backlog(&self, most: u64, settings: &Settings) -> Backlog {
        let lost = self
            .lost
            .iter()
            .filter(|&&number| self.board.is_lost(number));
        let lost = lost.map(|&number| {
            let sent = self.board.get(number);
            u64::from(wire_bytes(sent, sent.missing))
        });
        let mut backlog = Backlog {
            lost: lost.sum(),
            new: 0,
        };
        let messages = self.responses.iter().chain(&self.queue);
        for posted in messages.filter_map(|&at| self.posted[at as usize].as_ref()) {
            let left = posted.bytes - posted.cut;
            let packets = left.div_ceil(settings.packet_payload.into()).max(1);
            backlog.new += left + packets * OVERHEAD_BYTES as u64;
            if backlog.new >= most {
                break;
            }
        }
        backlog
    }

    /// The next chunk to send again. Not inlined: what is lost is rare, and the way of new chunks shorter without it.
    #[inline(never)]
    fn poll_resend(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        out: &mut Out<'_>,
        timers: &mut TimerTable,
        stats: &mut Stats,
    ) -> Resend {
        while let Some(&number) = self.lost.front() {
            if !self.board.is_lost(number) {
                self.lost.pop_front();
                continue;
            }
            let mut sent = *self.board.get(number);
            let payload = payload_max(paths, out.settings);
            if sent.payload > payload && sent.length > u32::from(payload) {
                let pages = self.pages_of(number);
                let payload =
                    pages.map_or(payload, |pages| pages.payload_again(sent.length, payload));
                sent = self.board.cut(number, payload);
            }
            if sent.missing == 0 {
                // Every packet arrived meanwhile, in parts: wait for the whole on its timer.
                let sent = self.board.resend(number, sent.path, now, 0);
                self.expect_answer(&sent, paths, timers);
                self.lost.pop_front();
                continue;
            }
            let bytes = wire_bytes(&sent, sent.missing);
            if !self.fits(bytes, out.room, out.congestion.window()) {
                return Resend::NotNow;
            }
            let by_path = self.in_flight.by_path();
            let path = match self.chosen_again.take() {
                Some((chunk, path)) if chunk == number && paths.is_candidate(path) => path,
                _ => {
                    let (before, sent_at) = (sent.path, sent.sent_at);
                    match paths.choose_again(out.policy, before, sent_at, now, by_path, out.rng) {
                        Some(path) => path,
                        None => return Resend::NotNow,
                    }
                }
            };
            let permit = out.congestion.may_resend(path, bytes, now);
            if !self.is_let_through(permit, now, out, timers) {
                self.chosen_again = Some((number, path));
                return Resend::NotNow;
            }
            self.lost.pop_front();
            let sent = self.board.resend(number, path, now, bytes);
            self.expect_answer(&sent, paths, timers);
            stats.chunks_sent += 1;
            stats.chunks_resent += 1;
            stats.packets_resent += u64::from(sent.missing.count_ones());
            let largest = largest_packet(&sent, sent.missing);
            self.note_sent(now, path, [bytes, largest], paths, out);
            self.since_ack_request = SinceAckRequest::default();
            return Resend::Chunk(Departure {
                number,
                map: sent.missing,
                packets: sent.missing.count_ones() as u8,
                bytes,
                path,
                flags: Flags::ACK_NOW.with(Flags::RETRANSMITTED),
            });
        }
        Resend::Nothing
    }

    /// What goes next; [`SendHalf::chunk`] makes a chunk of it.
    pub(super) fn poll_departure(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        out: &mut Out<'_>,
        timers: &mut TimerTable,
        stats: &mut Stats,
    ) -> Option<Departure> {
        timers.stop(Timer::Pacing);
        if self.board.oldest().is_none() {
            // What was heard before is no answer to what is sent now.
            self.heard = now;
        }
        if self.tail_probe == TailProbe::Due
            && let Some(departure) = self.poll_tail_probe(now, paths, out, stats)
        {
            return Some(departure);
        }
        // A peer may be told of the connection later than this end: a reliable link brings nothing back for it.
        let validated = paths.is_validated() && !self.is_unheard(paths);
        if !validated && self.in_flight.total() > 0 {
            return None;
        }
        if !self.lost.is_empty() {
            match self.poll_resend(now, paths, out, timers, stats) {
                Resend::Chunk(departure) => return Some(departure),
                Resend::NotNow => return None,
                Resend::Nothing => {}
            }
        }
        let full = out.settings.chunk_bytes;
        let chunk_bytes = out.congestion.chunk_bytes().min(full.into()) as u32;
        let at = self.next_message(chunk_bytes)?;
        let posted = self.posted[at as usize].as_ref()?;
        if !self.has_room(posted, chunk_bytes) {
            return None;
        }
        let most = match validated {
            true => CHUNK_PACKETS_MAX as u32,
            false => 1,
        };
        let per_chunk = (chunk_bytes / out.settings.packet_bytes()).clamp(1, most);
        let payload = payload_max(paths, out.settings);
        let (length, payload) =
            posted.next_chunk(per_chunk.into(), out.settings.packet_payload, payload);
        let packets = length.div_ceil(payload.into()).max(1) as u8;
        let bytes = length + u32::from(packets) * OVERHEAD_BYTES as u32;
        let window = out.congestion.window();
        if !self.fits(bytes, out.room, window) {
            return None;
        }
        let resumes_at = out.policy.resumes_at();
        if resumes_at > now {
            timers.set(Timer::Pacing, resumes_at);
            return None;
        }
        let path = match self.chosen.take() {
            Some(path) if paths.is_candidate(path) && out.policy.keeps(path) => path,
            _ => paths.choose(out.policy, now, self.in_flight.by_path(), out.rng)?,
        };
        let permit = out.congestion.may_send(path, bytes, now);
        if !self.is_let_through(permit, now, out, timers) {
            self.chosen = Some(path);
            return None;
        }
        let posted = self.posted[at as usize].as_mut()?;
        let (index, start) = (posted.chunks, posted.cut);
        posted.cut += u64::from(length);
        posted.chunks += 1;
        posted.outstanding += 1;
        posted.done = posted.cut == posted.bytes;
        if posted.done {
            let opcode = posted.opcode;
            self.end_message(opcode);
        }
        let largest = length.min(payload.into()) + OVERHEAD_BYTES as u32;
        self.note_sent(now, path, [bytes, largest], paths, out);
        let in_flight = self.in_flight.total();
        let ack_now = self.since_ack_request.wants_ack(Outgoing {
            bytes,
            waits: self.queue.is_empty() && self.responses.is_empty() || paths.is_unsure(path),
            in_flight: WindowUse {
                used: in_flight,
                window: out.congestion.window(),
            },
            outstanding: WindowUse {
                used: self.outstanding() as u64 + 1,
                window: out.settings.window_chunks.into(),
            },
        });
        let number = self.board.push(Sent {
            write: at,
            index,
            start,
            length,
            packets,
            payload,
            path,
            ack_now,
            sent_at: now,
            in_flight: bytes,
            tx_in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            ..Sent::default()
        });
        self.expect_answer(self.board.get(number), paths, timers);
        stats.chunks_sent += 1;
        Some(Departure {
            number,
            map: full_map(packets),
            packets,
            bytes,
            path,
            flags: match ack_now {
                true => Flags::ACK_NOW,
                false => Flags::NONE,
            },
        })
    }

    /// A packet of the newest chunk goes again, on another path: its answer tells what is lost. It is one
    /// packet beyond the window (RFC 9002, section 7.5), and waits for no permit.
    #[inline(never)]
    fn poll_tail_probe(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        out: &mut Out<'_>,
        stats: &mut Stats,
    ) -> Option<Departure> {
        let Some(number) = self.board.newest().filter(|_| self.lost.is_empty()) else {
            // There are losses to mend by now, and their answers tell as much.
            self.tail_probe = TailProbe::None;
            return None;
        };
        let sent = *self.board.get(number);
        let packet = highest_bit(missing(&sent));
        let bytes = wire_bytes(&sent, packet);
        if bytes > out.room {
            return None;
        }
        let by_path = self.in_flight.by_path();
        let path =
            paths.choose_again(out.policy, sent.path, sent.sent_at, now, by_path, out.rng)?;
        self.tail_probe = TailProbe::Sent {
            chunk: number,
            packet,
            sent_at: now,
            order: self.board.take_order(),
        };
        stats.tail_probes += 1;
        stats.packets_resent += 1;
        paths.on_sent(path, largest_packet(&sent, packet));
        out.congestion.on_sent(now, path, bytes);
        Some(Departure {
            number,
            map: packet,
            packets: 1,
            bytes,
            path,
            flags: Flags::ACK_NOW.with(Flags::RETRANSMITTED),
        })
    }

    /// Whether the link and the window have room for `bytes`; one chunk always may be under way.
    fn fits(&self, bytes: u32, room: u32, window: u64) -> bool {
        let in_flight = self.in_flight.total();
        bytes <= room && (in_flight == 0 || in_flight + u64::from(bytes) <= window)
    }

    /// Whether the congestion control lets a chunk through now. If not, a timer tells when.
    #[inline(always)]
    fn is_let_through(
        &self,
        permit: Permit,
        now: Time,
        out: &Out<'_>,
        timers: &mut TimerTable,
    ) -> bool {
        match permit {
            Permit::Yes => true,
            Permit::At(at) => {
                timers.set(Timer::Pacing, at);
                false
            }
            Permit::Credit => {
                if timers.get(Timer::Credit).is_none() {
                    timers.set(Timer::Credit, now + out.congestion.credit_wait());
                }
                false
            }
        }
    }

    /// A chunk leaves on `path`. `bytes`: of all its packets, and of the largest.
    #[inline(always)]
    fn note_sent(
        &mut self,
        now: Time,
        path: PathId,
        [bytes, largest]: [u32; 2],
        paths: &mut PathSet,
        out: &mut Out<'_>,
    ) {
        self.in_flight.add(path, bytes);
        paths.on_sent(path, largest);
        out.policy.on_sent(now, path, bytes);
        out.congestion.on_sent(now, path, bytes);
    }

    /// The chunk of which packets go: it takes their numbers.
    #[inline(always)]
    pub(super) fn chunk(
        &mut self,
        now: Time,
        departure: &Departure,
        remote: ConnectionId,
        keys: &mut Keys,
        rng: &mut Rng,
        stats: &mut Stats,
    ) -> Chunk {
        let &Departure {
            number,
            map,
            packets,
            bytes,
            path,
            mut flags,
        } = departure;
        let sent = self.board.get(number);
        let posted = self.posted[sent.write as usize].as_ref();
        let posted = posted.expect("a message is kept until its chunks are acknowledged");
        let mut immediate = 0;
        if sent.start + u64::from(sent.length) == posted.bytes {
            flags = flags.with(posted.end);
            immediate = posted.immediate;
        }
        let first = DataHeader {
            opcode: posted.opcode,
            path,
            packet: 0,
            packets: sent.packets,
            connection: remote,
            packet_number: self.numbers.next(),
            sent_at: now.to_wire(),
            chunk: number,
            chunk_index: sent.index,
            flags,
            immediate,
            key: posted.key,
            offset: posted.offset + sent.start,
        };
        let count = u64::from(packets);
        self.numbers.advance(count, rng);
        stats.packets_sent += count;
        let seal = keys.seal().clone();
        keys.count_sealed(count);
        Chunk {
            path,
            number,
            source: posted.source.clone(),
            first,
            map,
            packets,
            wire_bytes: bytes,
            start: sent.start,
            pages: posted.pages.clone(),
            length: sent.length,
            packet_payload: sent.payload,
            seal,
        }
    }

    /// The numbers of the data packets.
    pub(super) fn numbers(&self) -> &PacketNumbers {
        &self.numbers
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
        Ok(self.board.holds(chunk) && self.board.get(chunk).is_under_way())
    }

    /// Takes in an acknowledgement that [`SendHalf::check_ack`] has let through.
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        ack: &AckReader<'_>,
        paths: &mut PathSet,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Acked {
        let cumulative = ack.cumulative();
        self.heard = now;
        self.serving = Serving::OnTime;
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
            // Of one that was cut anew since, it says nothing.
            let same = |sent: &Sent| sent.packets == partial.of;
            if self.board.holds(partial.chunk) && same(self.board.get(partial.chunk)) {
                acked.note_sent(self.board.get(partial.chunk));
                acked.packets_lost +=
                    self.note_partial(now, partial.chunk, partial.packets, paths, stats);
            }
        }
        self.board.advance();
        if !self.whole.is_empty() {
            self.complete_in_order(events);
        }
        acked
    }

    fn ack_chunk(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        paths: &mut PathSet,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
        acked: &mut Acked,
    ) {
        let Some(state) = self.board.ack(chunk) else {
            return;
        };
        self.note_ready(chunk);
        if self.tail_probe != TailProbe::None {
            self.end_tail_probe(now, chunk, paths, acked);
        }
        let sent = self.board.get(chunk);
        self.in_flight.remove(sent.path, sent.in_flight);
        // A chunk that waited to be sent again, or whose resend was answered before it can have
        // arrived, was not lost.
        let spurious = state == SentState::Lost
            || sent.transmissions > 1
                && sent.arrived == 0
                && answered_too_soon(now, sent.sent_at, paths);
        if spurious {
            stats.spurious += 1;
            acked.spurious = true;
        } else {
            self.newest_acked = self.newest_acked.max(sent.order);
        }
        acked.bytes += u64::from(sent.in_flight.max(1));
        acked.note_sent(sent);
        stats.bytes_acked += u64::from(sent.length);
        let write = sent.write;
        let Some(posted) = self.posted[write as usize].as_mut() else {
            return;
        };
        posted.outstanding -= 1;
        if posted.done && posted.outstanding == 0 {
            match self.in_order {
                true => {
                    let last = chunk.minus(sent.index).plus(posted.chunks - 1);
                    self.whole.push((last, write));
                }
                false => {
                    let token = self.complete(write);
                    events.extend(token.map(|token| Event::Completed { token }));
                }
            }
        }
    }

    /// The peer was heard, with something new or at least a round trip measured: that ends the backoff
    /// (RFC 6298, section 5.7). A probe's does, too: after an outage what went into the dark would
    /// otherwise be waited for many times longer than the outage took.
    pub(super) fn end_backoff(&mut self, paths: &PathSet, timers: &mut TimerTable) {
        if std::mem::take(&mut self.backoff) > 0 {
            self.set_retransmission(paths, timers);
        }
    }

    /// The stall timer runs while something waits for the peer: chunks that it has not answered, a receiver
    /// that is not ready, credit, responses, or paths of which none answers. What waits for this end alone, for its turn,
    /// its share of the rate, its window or its pacer, has not stalled; but a pacer that the peer's silence has slowed
    /// down waits for the peer.
    pub(super) fn update_stall(&mut self, now: Time, paths: &PathSet, timers: &mut TimerTable) {
        let waits = match timers.get(Timer::Pacing) {
            Some(_) => self.backoff > 0,
            None => !matches!(self.readiness, Readiness::Ready),
        };
        let lacks = || timers.get(Timer::Credit).is_some() || paths.is_down() || paths.is_blocked();
        let waits = waits || self.board.oldest().is_some() || self.has_messages() && lacks();
        let waits = waits || self.awaits_response();
        match timers.get(Timer::Stall) {
            None if waits => timers.set(Timer::Stall, now + self.stall_left),
            Some(at) if !waits => {
                self.stall_left = at - now;
                timers.stop(Timer::Stall);
            }
            _ => {}
        }
    }

    /// The peer has acknowledged something new.
    pub(super) fn restart_stall(&mut self, timeout: Nanos, timers: &mut TimerTable) {
        self.stall_left = timeout;
        timers.stop(Timer::Stall);
    }

    /// After a restore no time counts in which the connection was saved: every timer is looked at anew.
    pub(super) fn rebase(&mut self, now: Time, stall_timeout: Nanos, timers: &mut TimerTable) {
        self.board.rebase(now);
        self.heard = now;
        self.stall_left = stall_timeout;
        for timer in [Timer::Retransmission, Timer::Loss, Timer::ReceiverNotReady] {
            timers.set(timer, now);
        }
    }

    /// Gives the memory back that the work now under way does not need.
    pub(super) fn shrink(&mut self) {
        self.board.shrink();
        if !self.has_messages() {
            self.posted = Vec::new();
            self.free = Vec::new();
        }
        self.queue.shrink_to_fit();
        self.responses.shrink_to_fit();
        self.lost.shrink_to_fit();
    }

    /// Heap memory, bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.board.heap_bytes()
            + self.whole.capacity() * size_of::<(ChunkNumber, u32)>()
            + self.completions.heap_bytes()
            + self.revocations.heap_bytes()
            + self.posted.capacity() * size_of::<Option<Posted>>()
            + (self.free.capacity() + self.queue.capacity() + self.responses.capacity())
                * size_of::<u32>()
            + self.lost.capacity() * size_of::<ChunkNumber>()
            + self.in_flight.heap_bytes()
            + self.readiness.heap_bytes()
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

/// Payload of a packet that is cut now, bytes at most.
fn payload_max(paths: &PathSet, settings: &Settings) -> u16 {
    let narrow = paths.packet_bytes_max();
    let payload = narrow.map_or(u16::MAX, |bytes| bytes - OVERHEAD_BYTES as u16);
    settings.packet_payload.min(payload)
}

/// Bytes of the largest packet among those of a chunk that `map` names.
fn largest_packet(sent: &Sent, map: u64) -> u32 {
    let last = u32::from(sent.packets) - 1;
    if map & !(1 << last) != 0 {
        u32::from(sent.payload) + OVERHEAD_BYTES as u32
    } else {
        wire_bytes(sent, map)
    }
}

/// Bytes on the wire of the packets in `map`.
pub(super) fn wire_bytes(sent: &Sent, map: u64) -> u32 {
    let payload = u32::from(sent.payload);
    let last = u32::from(sent.packets) - 1;
    let full = map.count_ones() * (payload + OVERHEAD_BYTES as u32);
    if map >> last & 1 == 1 {
        full - payload + (sent.length - last * payload)
    } else {
        full
    }
}
