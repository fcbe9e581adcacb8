//! The receiving half: packets are checked, placed and marked on the scoreboard.

mod control_window;
mod feedback;
mod order;
mod placement;
mod revoked;

use self::control_window::ControlWindow;
use self::feedback::PathMap;
use self::order::InOrder;
pub(super) use self::placement::Pending;
use self::revoked::RevokedMessages;
use super::pending_ack::PendingAck;
use super::receives::{PostedReceives, Requests, SharedReceives};
use super::transmit::Response;
use super::work::ReceiveBuffer;
use super::{Arrival, Event, Stats};
use crate::drops::DropReason;
use crate::memory::{Access, DomainId, Memory, Place, Placed, Ticket};
use crate::recovery::{Marked, MessageEnd, Packet, ReceiveBoard};
use crate::units::{Key, PathId, Time};
use crate::wire::{DataHeader, Echo, Flags, FollowingHeader, HEADER_BYTES, Opcode, Refusal, Seal};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// A duplicate this many packet numbers behind the newest is no answer to anything: it may be a
/// replay, whose age would be taken for a round-trip time.
const ECHO_NUMBERS: u64 = 4096;

/// A packet this many numbers behind the newest comes from an earlier turn of the 32-bit chunk
/// numbers, which uses at least twice as many: a replay that the scoreboard cannot know.
const STALE_NUMBERS: u64 = 1 << 31;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiveHalf {
    board: ReceiveBoard,
    /// Packets that are neither on the board nor wanted again. Not saved: they were never acknowledged,
    /// so they are sent again.
    #[serde(skip)]
    pending: Vec<Pending>,
    /// What arrived by path since the last acknowledgement, and when the newest did.
    #[serde(skip)]
    echoes: Vec<(Echo, Time)>,
    /// The paths that have an echo.
    #[serde(skip)]
    echoed: PathMap,
    pending_ack: PendingAck,
    /// What was refused since the last turn, and on which path it came.
    #[serde(skip)]
    refusals: Vec<(Refusal, PathId)>,
    newest_packet: u64,
    /// The newest packet of which an acknowledgement has told: what was sent before it and arrives later is
    /// overdue at the sender.
    #[serde(skip)]
    acked_packet: u64,
    controls: ControlWindow,
    /// What of the run that is being taken in was placed and is not marked yet.
    #[serde(skip)]
    placed: Option<PlacedRun>,
    /// In a write: the header of the packet that follows its last one, unless that is missing.
    #[serde(skip)]
    next: Option<FollowingHeader>,
    /// The user has too many events to take: ends of messages are refused as if no region were armed.
    #[serde(skip)]
    held: bool,
    /// Where sends of the peer go.
    receives: PostedReceives,
    /// Where responses of the peer go.
    requests: Requests,
    /// Responses to the peer's requests, to be handed on.
    #[serde(skip)]
    responses: Vec<Response>,
    /// Responses that the peer has not acknowledged.
    #[serde(skip)]
    unacked_responses: usize,
    /// A response has arrived for which this end has no place, or a packet that waited has none any more.
    #[serde(skip)]
    lacks_place: bool,
    /// What waits for its turn, where messages are placed in order.
    in_order: InOrder,
    /// What the peer may do to regions.
    access: Access,
    /// What the peer has revoked.
    revoked: RevokedMessages,
}

/// Whether a packet ends a message whose end is reported.
#[inline]
fn ends_message(header: &DataHeader) -> bool {
    match header.opcode {
        Opcode::Write => header.flags.contains(Flags::LAST.with(Flags::IMMEDIATE)),
        Opcode::Send | Opcode::Response => header.flags.contains(Flags::LAST),
        Opcode::Request => false,
    }
}

/// What the message says that a packet ends, of `bytes` bytes if it has no place of its own.
#[inline(always)]
fn end_of(header: &DataHeader, bytes: u64) -> MessageEnd {
    let value = header.immediate;
    match header.opcode {
        Opcode::Send => MessageEnd::Sent {
            number: header.key.0,
            bytes,
            immediate: header.flags.contains(Flags::IMMEDIATE).then_some(value),
            is_write: header.flags.contains(Flags::WRITTEN),
        },
        Opcode::Response => MessageEnd::Response {
            request: header.key.0,
        },
        Opcode::Write | Opcode::Request => MessageEnd::Immediate {
            value,
            key: header.key,
        },
    }
}

/// Packets of one chunk that came one after the other and were placed: they are marked together (decision 0005).
#[derive(Debug)]
struct PlacedRun {
    /// The last one's place.
    last: Packet,
    /// Its flags.
    flags: Flags,
    /// When it was sent, as it stood there.
    sent_at: u32,
    packet_number: u64,
    /// Which ones.
    map: u64,
    /// The packets of the chunk that may follow: they are missing.
    wanted: u64,
    /// How many they are.
    packets: u16,
    /// Payload.
    bytes: u64,
    /// The largest one, with header and trailer.
    largest: u16,
}

impl PlacedRun {
    /// One packet: its header, its payload, and its bytes in all.
    #[inline]
    fn of(header: &DataHeader, payload: u64, largest: u16) -> PlacedRun {
        PlacedRun {
            last: place_of(header),
            flags: header.flags,
            sent_at: header.sent_at,
            packet_number: header.packet_number,
            map: 1 << header.packet,
            wanted: 0,
            packets: 1,
            bytes: payload,
            largest,
        }
    }

    /// The last packet has so much payload, and so many bytes in all.
    #[inline]
    fn add(&mut self, payload: u64, bytes: u16) {
        self.map |= 1 << self.last.index;
        self.wanted &= !(1 << self.last.index);
        self.packets += 1;
        self.bytes += payload;
        self.largest = self.largest.max(bytes);
    }

    /// Whether this packet may follow.
    #[inline]
    fn wants(&self, header: &DataHeader) -> bool {
        self.last.chunk == header.chunk
            && self.last.packets == header.packets
            && self.wanted >> header.packet & 1 == 1
    }
}

impl ReceiveHalf {
    pub(super) fn new(board: ReceiveBoard) -> ReceiveHalf {
        ReceiveHalf {
            board,
            pending: Vec::new(),
            echoes: Vec::new(),
            echoed: PathMap::default(),
            pending_ack: PendingAck::Nothing,
            refusals: Vec::new(),
            newest_packet: 0,
            acked_packet: 0,
            controls: ControlWindow::default(),
            placed: None,
            next: None,
            held: false,
            receives: PostedReceives::default(),
            requests: Requests::default(),
            responses: Vec::new(),
            unacked_responses: 0,
            lacks_place: false,
            in_order: InOrder::default(),
            access: Access::ALL,
            revoked: RevokedMessages::default(),
        }
    }

    /// Posts a buffer for a send of the peer.
    pub(super) fn post(&mut self, buffer: ReceiveBuffer) {
        self.receives.post(buffer);
    }

    /// Takes buffers for sends of the peer from there.
    pub(super) fn share(&mut self, shared: Arc<dyn SharedReceives>) {
        self.receives.share(shared);
    }

    /// The shared buffers that it has taken go on elsewhere.
    pub(super) fn unshare(&mut self) {
        self.receives.unshare();
    }

    /// From here on the peer may do no more than this to regions.
    pub(super) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// The requests of this end.
    pub(super) fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Those of them that were cancelled and not answered.
    pub(super) fn cancelled_reads(&self) -> usize {
        self.requests.unwanted()
    }

    /// Reports the reads that were cancelled and of which nothing lands any more.
    pub(super) fn report_cancelled(&mut self, events: &mut VecDeque<Event>) {
        let pending = &self.pending;
        let lands = |number| {
            let mut headers = pending.iter().map(|pending| &pending.header);
            headers.any(|it| it.opcode == Opcode::Response && it.key == Key(number))
        };
        let cancelled = self.requests.take_cancelled(lands);
        events.extend(cancelled.map(|token| Event::Cancelled { token }));
    }

    /// Responses that the peer has not acknowledged.
    pub(super) fn set_unacked_responses(&mut self, responses: usize) {
        self.unacked_responses = responses;
    }

    /// The responses that are to be sent.
    pub(super) fn take_responses(&mut self) -> impl Iterator<Item = Response> {
        self.responses.drain(..)
    }

    /// Whether something has arrived for which this end has no place.
    pub(super) fn lacks_place(&self) -> bool {
        self.lacks_place
    }

    /// Whether nothing more of the peer is placed, on an in-order connection: its next chunk was refused for good.
    pub(super) fn is_stuck(&self) -> bool {
        self.in_order.refused == Some(self.board.cumulative())
    }

    /// Whether a packet is here, placed or waiting for its turn.
    pub(super) fn has(&self, header: &DataHeader) -> bool {
        self.board.has(place_of(header))
    }

    /// The newest data packet's number.
    pub(super) fn newest_packet(&self) -> u64 {
        self.newest_packet
    }

    /// When an acknowledgement that is owed is due.
    pub(super) fn ack_due(&self) -> Option<Time> {
        self.pending_ack
            .due()
            .filter(|_| !self.in_order.is_placing())
    }

    /// Gives the memory back that what has arrived does not need.
    pub(super) fn shrink(&mut self) {
        self.board.shrink();
        self.receives.shrink();
        self.responses.shrink_to_fit();
        self.pending.shrink_to_fit();
        self.echoes.shrink_to_fit();
        self.refusals.shrink_to_fit();
    }

    /// Heap memory, bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.board.heap_bytes()
            + self.receives.heap_bytes()
            + self.in_order.heap_bytes()
            + self.revoked.heap_bytes()
            + self.responses.capacity() * size_of::<Response>()
            + self.pending.capacity() * size_of::<Pending>()
            + self.echoes.capacity() * size_of::<(Echo, Time)>()
            + self.refusals.capacity() * size_of::<(Refusal, PathId)>()
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// An acknowledgement that is owed is due at once.
    pub(super) fn flush_ack(&mut self) {
        self.pending_ack.at_once();
    }

    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "the halves of the connection that it borrows"
    )]
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        arrival: Arrival,
        packet: &mut [u8],
        seal: &Seal,
        domain: DomainId,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<(), DropReason> {
        let bytes = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        let opened = seal.open_data(packet)?;
        // Only what is always inlined takes the header as a whole: it is never stored, nor loaded again.
        let (header, payload) = (DataHeader::read(opened.header)?, opened.payload);
        self.check_wanted(now, arrival, &header, bytes, events, stats)?;
        opened.check_payload()?;
        if self.board.is_in_order() {
            if header.opcode == Opcode::Send {
                self.receives.take_shared(header.key.0);
            }
            if header.flags.contains(Flags::LAST) {
                // It reads the header again, so that this function need not store it.
                let (wire, out) = (opened.header, &mut *events);
                let kept = self.keep_if_early(
                    now, arrival, wire, payload, bytes, domain, memory, out, stats,
                );
                if let Some(result) = kept {
                    return result;
                }
            }
        }
        let placed = match header.opcode {
            Opcode::Write | Opcode::Send | Opcode::Response => {
                self.place(&header, payload, domain, memory)
            }
            Opcode::Request if header.packets != 1 || !header.flags.contains(Flags::LAST) => {
                Err(DropReason::Malformed)
            }
            Opcode::Request => {
                let place = Place {
                    domain,
                    key: header.key,
                    offset: header.offset,
                    bytes: 0,
                };
                self.take_request(header.immediate, place, payload, memory)
            }
        };
        // The path has carried it, whatever becomes of it.
        self.newest_packet = self.newest_packet.max(header.packet_number);
        match placed {
            Ok(Placed::Now) => {
                self.add_to_run(&header, opened.header, payload.len() as u64, bytes);
                if ends_message(&header) {
                    // What its message ends with goes to the board with it.
                    self.note_end(&header, payload.len() as u64);
                    self.mark_run(now, arrival, events, stats);
                }
                Ok(())
            }
            unplaced => {
                self.note_arrived(now, arrival, bytes, &header, events, stats);
                self.settle(arrival, header, payload.len(), unplaced)
            }
        }
    }

    /// A packet has arrived that another thread copies, or that has no place.
    fn settle(
        &mut self,
        arrival: Arrival,
        header: DataHeader,
        bytes: usize,
        placed: Result<Placed, DropReason>,
    ) -> Result<(), DropReason> {
        if let Err(reason) = placed {
            self.pending_ack.at_once();
            self.refuse(arrival.path, header.opcode, header.chunk, reason);
            return Err(reason);
        }
        self.pending.push(Pending {
            offered: false,
            header,
            path: arrival.path,
            bytes,
        });
        Ok(())
    }

    /// Whether a packet has the very header that follows the run's last one, in a write of which nothing is being
    /// copied: then it is wanted, and [`ReceiveHalf::handle_following`] takes it.
    #[inline(always)]
    pub(super) fn follows(&self, packet: &[u8]) -> bool {
        let Some(run) = &self.placed else {
            return false;
        };
        let (Some(next), Some(header)) = (&self.next, packet.first_chunk()) else {
            return false;
        };
        next.is(header) && run.wanted & (2 << run.last.index) != 0 && self.pending.is_empty()
    }

    /// Takes the packet that follows the run's last one: what its header says was checked with that one.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "the halves of the connection that it borrows"
    )]
    pub(super) fn handle_following(
        &mut self,
        now: Time,
        arrival: Arrival,
        packet: &mut [u8],
        seal: &Seal,
        domain: DomainId,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<(), DropReason> {
        let bytes = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        let (Some(run), Some(next)) = (&mut self.placed, &mut self.next) else {
            return Err(DropReason::Malformed);
        };
        let ticket = Ticket {
            connection: next.connection(),
            packet_number: next.packet_number(),
        };
        let opened = seal.open_data(packet)?;
        opened.check_payload()?;
        let placed = match opened.payload {
            [] => Ok(Placed::Now),
            payload => memory.place(ticket, domain, next.key(), next.offset(), payload),
        };
        let payload = opened.payload.len();
        self.newest_packet = self.newest_packet.max(ticket.packet_number);
        if let Ok(Placed::Now) = placed {
            next.advance(payload as u64);
            run.last.index += 1;
            run.packet_number += 1;
            run.add(payload as u64, bytes);
            return Ok(());
        }
        let header = DataHeader::read(opened.header)?;
        self.note_arrived(now, arrival, bytes, &header, events, stats);
        self.settle(arrival, header, payload, placed)
    }

    /// Refuses a packet that is here already, or is too old to tell.
    #[inline]
    fn check_wanted(
        &mut self,
        now: Time,
        arrival: Arrival,
        header: &DataHeader,
        bytes: u16,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<(), DropReason> {
        if header.packet_number.saturating_add(STALE_NUMBERS) < self.newest_packet {
            return Err(DropReason::Duplicate);
        }
        if self.placed.as_ref().is_some_and(|run| run.wants(header)) {
            return self.check_pending(header);
        }
        self.mark_run(now, arrival, events, stats);
        let wanted = self.board.check(place_of(header));
        if wanted == Err(DropReason::Duplicate) {
            // The peer does not know that we have it. An acknowledgement reports a part of a chunk once: if it is lost,
            // the peer sends the whole chunk again, and a full queue may let through only what is here already.
            self.board.report_again(header.chunk);
            self.pending_ack.arrived(now, arrival.path);
            self.pending_ack.at_once();
            if header.packet_number.saturating_add(ECHO_NUMBERS) > self.newest_packet {
                self.echo(now, arrival, bytes, header);
            }
        }
        wanted?;
        self.check_pending(header)
    }

    /// A packet is placed, and not marked yet.
    #[inline(always)]
    fn add_to_run(
        &mut self,
        header: &DataHeader,
        wire: &[u8; HEADER_BYTES],
        payload: u64,
        bytes: u16,
    ) {
        // Numbers that would wrap are none that follow.
        let last_number = header.packet_number.checked_add(header.packets.into());
        let has_next = header.opcode == Opcode::Write
            && header.packet + 1 < header.packets
            && last_number.is_some();
        self.next = has_next.then(|| FollowingHeader::after(wire, payload));
        let Some(run) = &mut self.placed else {
            let mut run = PlacedRun::of(header, payload, bytes);
            if header.packets > 1 {
                run.wanted = self.board.missing(run.last) & !run.map;
            }
            self.placed = Some(run);
            return;
        };
        run.last.index = header.packet;
        run.flags = header.flags;
        run.sent_at = header.sent_at;
        run.packet_number = header.packet_number;
        run.add(payload, bytes);
    }

    /// A packet that is placed ends a message that is reported.
    #[inline(always)]
    fn note_end(&mut self, header: &DataHeader, payload: u64) {
        let end = end_of(header, header.offset.saturating_add(payload));
        let starts = header.chunk.minus(header.chunk_index);
        self.board.note_end(place_of(header), starts, end);
    }

    /// A packet has arrived that is not placed.
    #[inline(always)]
    fn note_arrived(
        &mut self,
        now: Time,
        arrival: Arrival,
        bytes: u16,
        header: &DataHeader,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) {
        self.mark_run(now, arrival, events, stats);
        self.echo(now, arrival, bytes, header);
        self.pending_ack.arrived(now, arrival.path);
        if arrival.ce {
            self.pending_ack.at_once();
        }
    }

    /// What was placed of the run, if anything, has arrived.
    #[inline]
    pub(super) fn mark_run(
        &mut self,
        now: Time,
        arrival: Arrival,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) {
        if let Some(placed) = self.placed.take() {
            self.mark(now, arrival, &placed, events, stats);
        }
    }

    fn mark(
        &mut self,
        now: Time,
        arrival: Arrival,
        placed: &PlacedRun,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) {
        let newest = [placed.sent_at, placed.packet_number as u32];
        self.echo_number(now, arrival, placed.packets, placed.largest, newest);
        self.pending_ack.arrived(now, arrival.path);
        if arrival.ce {
            // Congestion is told of as soon as it is seen (RFC 9000, section 13.2.1).
            self.pending_ack.at_once();
        }
        self.mark_placed(placed, events, stats);
    }

    /// Packets are placed: they may be acknowledged.
    #[inline(always)]
    fn mark_placed(
        &mut self,
        placed: &PlacedRun,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Marked {
        stats.packets_placed += u64::from(placed.packets);
        stats.bytes_placed += placed.bytes;
        let at = placed.last;
        let out_of_order = placed.packets > 1 && self.board.span_with(at.chunk) > 1;
        let marked = if self.board.is_in_order() {
            self.mark_in_order(placed)
        } else {
            let (pending_ack, receives) = (&mut self.pending_ack, &mut self.receives);
            let (requests, pending) = (&mut self.requests, &self.pending);
            self.board.mark_map(at, placed.map, |end| {
                pending_ack.at_once();
                report(end, receives, requests, pending, events);
            })
        };
        match marked {
            Marked::Whole if self.pending_ack.due() == Some(Time::ZERO) => {}
            Marked::Whole if out_of_order || self.is_waited_for(placed) => {
                self.pending_ack.at_once();
            }
            Marked::Whole => {}
            Marked::Beginning if self.board.span() <= 1 => {}
            // Something before it is missing, in the chunk or before.
            Marked::Beginning | Marked::Gap => self.pending_ack.at_once(),
        }
        marked
    }

    /// Everything that was received together is taken in.
    pub(super) fn run_ended(
        &mut self,
        now: Time,
        arrival: Arrival,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) {
        self.mark_run(now, arrival, events, stats);
        self.pending_ack.run_ended();
    }

    /// Refuses a control packet that was seen before, or that is too old to tell.
    pub(super) fn check_control(&mut self, number: u64) -> Result<(), DropReason> {
        self.controls.check(number)
    }
}

/// A message is here whole.
#[inline(always)]
fn report(
    end: MessageEnd,
    receives: &mut PostedReceives,
    requests: &mut Requests,
    pending: &[Pending],
    events: &mut VecDeque<Event>,
) {
    // A peer that ends a message while a part of it is being written gets no answer: the buffer is not the user's yet.
    let is_written = |opcode, number| {
        let mut headers = pending.iter().map(|pending| &pending.header);
        headers.any(|header| header.opcode == opcode && header.key == Key(number))
    };
    match end {
        MessageEnd::Immediate { value, key } => {
            events.push_back(Event::Immediate { value, key });
        }
        MessageEnd::Sent {
            number,
            bytes,
            immediate,
            is_write,
        } if !is_written(Opcode::Send, number) => {
            let token = receives.complete(number);
            events.extend(token.map(|token| Event::Received {
                token,
                bytes,
                immediate,
                is_write,
            }));
        }
        MessageEnd::Response { request } if !is_written(Opcode::Response, request) => {
            let token = requests.complete(request);
            events.extend(token.map(|token| Event::Completed { token }));
        }
        MessageEnd::Sent { .. } | MessageEnd::Response { .. } => {}
    }
}

/// Where a packet belongs on the board.
#[inline]
fn place_of(header: &DataHeader) -> Packet {
    Packet {
        chunk: header.chunk,
        index: header.packet,
        packets: header.packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::PATHS_MAX;
    use crate::units::{ChunkNumber, ConnectionId};
    use crate::wire::Probe;
    use crate::wire::{CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, Secret};

    fn receive() -> ReceiveHalf {
        ReceiveHalf::new(ReceiveBoard::new(64, ChunkNumber(0), false))
    }

    #[test]
    fn a_path_has_one_echo_also_when_an_acknowledgement_has_no_room_for_it() {
        let (mut receive, seal) = (receive(), Seal::new(&Secret([1; 32])));
        let now = Time::from_nanos(1_000_000);
        let paths = |receive: &ReceiveHalf| -> Vec<u8> {
            let echoes = receive.echoes.iter();
            echoes.map(|(echo, _)| echo.path.0).collect()
        };
        let probe = |receive: &mut ReceiveHalf, path: u8| {
            let (path, ce, probe) = (PathId(path), false, Probe { sent_at: 0 });
            receive.handle_probe(now, Arrival { path, ce }, 100, 1, probe);
        };
        for path in (0..40).chain(0..40) {
            probe(&mut receive, path);
        }
        assert_eq!(paths(&receive), (0..40).collect::<Vec<_>>());
        let mut out = [0; CONTROL_BYTES_MAX];
        let sent = receive.poll_ack(now, &mut out, &seal, ConnectionId(1), 1);
        assert!(sent.is_some());
        // Those that are left are found again, those that are gone are not.
        for path in [35, 3, 3] {
            probe(&mut receive, path);
        }
        assert_eq!(paths(&receive), [32, 33, 34, 35, 36, 37, 38, 39, 3]);
    }

    #[test]
    fn a_control_packet_is_taken_once_in_any_order() {
        let mut receive = receive();
        let number = |n: u64| CONTROL_PACKET_NUMBERS + n;
        for n in [0, 5, 3, 1_000, 999] {
            assert_eq!(receive.check_control(number(n)), Ok(()), "{n}");
        }
        for n in [5, 3, 1_000, 999, 0, 40] {
            assert_eq!(
                receive.check_control(number(n)),
                Err(DropReason::Duplicate),
                "{n}"
            );
        }
        assert_eq!(receive.check_control(number(41)), Ok(()));
    }

    #[test]
    fn the_probes_of_all_paths_are_taken_in_whatever_order_the_ports_are_read() {
        let mut receive = receive();
        for round in 0..2 {
            // Numbers ascend by path; the receiver reads port by port, and a path's port is path modulo 16.
            let mut paths: Vec<u64> = (0..u64::from(PATHS_MAX)).collect();
            paths.sort_by_key(|path| std::cmp::Reverse(path % 16));
            for path in paths {
                let number = CONTROL_PACKET_NUMBERS + round * u64::from(PATHS_MAX) + path;
                assert_eq!(receive.check_control(number), Ok(()), "path {path}");
            }
        }
    }
}
