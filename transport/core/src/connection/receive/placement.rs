//! Where payload goes, and placements that are under way: of a thread that copies, or of the link.

use super::super::chunk::ChunkSource;
use super::super::transmit::Response;
use super::super::work::REQUESTS_MAX;
use super::super::{Arrival, Event, Stats};
use super::{PlacedRun, ReceiveHalf, ends_message, place_of};
use crate::drops::DropReason;
use crate::memory::{Access, DomainId, Memory, Place, Placed, Ticket};
use crate::received::Offer;
use crate::recovery::Marked;
use crate::units::{Key, PathId, Time};
use crate::wire::{DataHeader, Flags, OVERHEAD_BYTES, Opcode, Request};
use std::collections::VecDeque;

/// Placements under way at most: four chunks of 64 packets. More would only lengthen the queue of the
/// thread that copies; packets beyond are lost, by which the sender slows down.
const PENDING_MAX: usize = 256;

/// The longest message of InfiniBand, which the report of a write may name.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// More requests of a peer are refused until it has acknowledged responses: twice what the peer has under way, for it
/// stops counting a request when the response arrives, before its acknowledgement is here.
const RESPONSES_MAX: usize = 2 * REQUESTS_MAX;

/// A packet whose payload another thread is copying, or the link is writing.
#[derive(Debug)]
pub(in super::super) struct Pending {
    /// The link writes it.
    pub(super) offered: bool,
    pub(super) header: DataHeader,
    pub(super) path: PathId,
    pub(super) bytes: usize,
}

impl ReceiveHalf {
    #[inline]
    pub(super) fn place(
        &self,
        header: &DataHeader,
        payload: &[u8],
        domain: DomainId,
        memory: &mut impl Memory,
    ) -> Result<Placed, DropReason> {
        let (key, offset) = match self.find_place(header, payload.len() as u64) {
            Ok(place) => place,
            Err(DropReason::Duplicate) if self.is_unwanted(header) => return Ok(Placed::Now),
            Err(reason) => return Err(reason),
        };
        match payload {
            [] => Ok(Placed::Now),
            _ => memory.place(Ticket::of(header), domain, key, offset, payload),
        }
    }

    /// Whether a packet that has no place any more is of a response: to a read that was cancelled. It is acknowledged and
    /// placed nowhere.
    fn is_unwanted(&self, header: &DataHeader) -> bool {
        header.opcode == Opcode::Response && !self.board.is_in_order()
    }

    /// The key and the offset of the place that a packet's payload goes to.
    #[inline]
    pub(super) fn find_place(
        &self,
        header: &DataHeader,
        bytes: u64,
    ) -> Result<(Key, u64), DropReason> {
        // Sends are bounded by what was posted for them, responses by what was asked for.
        if self.held && header.opcode == Opcode::Write && ends_message(header) {
            return Err(DropReason::NotArmed);
        }
        if bytes > 0 && self.pending.len() >= PENDING_MAX {
            return Err(DropReason::PlacementsFull);
        }
        match header.opcode {
            Opcode::Write if self.access.allows(Access::WRITE) => Ok((header.key, header.offset)),
            Opcode::Write => Err(DropReason::Key),
            Opcode::Send if header.flags.contains(Flags::WRITTEN) => {
                let is_whole = header.packets == 1 && header.flags.contains(Flags::LAST);
                match bytes == 0 && is_whole && header.offset <= MESSAGE_BYTES_MAX {
                    true => self.receives.place_of(header.key.0, 0, 0),
                    false => Err(DropReason::Malformed),
                }
            }
            opcode => {
                let last = header.flags.contains(Flags::LAST);
                self.chosen_place(opcode, header.key, header.offset, bytes, last)
            }
        }
    }

    /// The same where this end has chosen the place.
    #[inline(never)]
    pub(super) fn chosen_place(
        &self,
        opcode: Opcode,
        number: Key,
        offset: u64,
        bytes: u64,
        last: bool,
    ) -> Result<(Key, u64), DropReason> {
        match opcode {
            Opcode::Send => self.receives.place_of(number.0, offset, bytes),
            Opcode::Response => self.requests.place_of(number.0, offset, bytes, last),
            Opcode::Write | Opcode::Request => Err(DropReason::Kind),
        }
    }

    /// Does what the peer asks for with request `number`, at `place`. It is done once: the packet is marked before
    /// the next one is looked at, and the response is kept until the peer has it.
    #[cold]
    pub(super) fn take_request(
        &mut self,
        number: u32,
        place: Place,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<Placed, DropReason> {
        self.check_responses()?;
        self.carry_out(number, place, payload, memory)
    }

    /// Refuses what the peer may not do on this connection, as if the key opened nothing.
    pub(super) fn check_access(&self, access: Access) -> Result<(), DropReason> {
        match self.access.allows(access) {
            true => Ok(()),
            false => Err(DropReason::Key),
        }
    }

    /// Refuses a request while the peer has not acknowledged enough responses.
    pub(super) fn check_responses(&self) -> Result<(), DropReason> {
        let under_way = self.unacked_responses + self.responses.len() + self.in_order.requests();
        match under_way < RESPONSES_MAX {
            true => Ok(()),
            false => Err(DropReason::NotArmed),
        }
    }

    pub(super) fn carry_out(
        &mut self,
        number: u32,
        place: Place,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<Placed, DropReason> {
        let request = Request::parse(payload)?;
        let bytes = request.response_bytes();
        let place = Place { bytes, ..place };
        let source = match request {
            Request::Read { .. } => {
                self.check_access(Access::READ)?;
                memory.check(&place, Access::READ)?;
                ChunkSource::Region(place)
            }
            Request::Atomic(atomic) => {
                self.check_access(Access::ATOMIC)?;
                let before = memory.atomic(place.domain, place.key, place.offset, atomic)?;
                ChunkSource::Inline(before.to_le_bytes().into())
            }
        };
        self.responses.push(Response {
            request: number.into(),
            source,
            bytes,
        });
        Ok(Placed::Now)
    }

    /// The link asks where to write a payload of `bytes` bytes. From here on its placement is under way.
    #[expect(
        clippy::too_many_arguments,
        reason = "the halves of the connection that it borrows"
    )]
    pub(in super::super) fn handle_offer(
        &mut self,
        now: Time,
        arrival: Arrival,
        header: &DataHeader,
        bytes: u32,
        crc: Option<u32>,
        domain: DomainId,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<Offer, DropReason> {
        let wire_bytes = wire_bytes(bytes as usize);
        self.check_wanted(now, arrival, header, wire_bytes, events, stats)?;
        if self.board.is_in_order() && header.opcode == Opcode::Send {
            self.receives.take_shared(header.key.0);
        }
        let has_to_wait = self.has_to_wait(header);
        if header.opcode == Opcode::Request || bytes == 0 || has_to_wait {
            // It has no place, or not yet.
            return Ok(Offer::Whole);
        }
        let found = self.find_place(header, bytes.into());
        if found == Err(DropReason::Duplicate) && self.is_unwanted(header) {
            self.take_unwanted(now, arrival, header, bytes, events, stats);
            return Ok(Offer::Discard);
        }
        let place = found.and_then(|found| {
            let (key, offset) = found;
            let place = Place {
                domain,
                key,
                offset,
                bytes: bytes.into(),
            };
            memory.check(&place, Access::WRITE)?;
            Ok(place)
        });
        match place {
            Ok(place) if !memory.is_direct(&place) => return Ok(Offer::Whole),
            Ok(_) => self.pending.push(Pending {
                offered: true,
                header: *header,
                path: arrival.path,
                bytes: bytes as usize,
            }),
            Err(reason) => {
                self.note_arrived(now, arrival, wire_bytes, header, events, stats);
                self.pending_ack.at_once();
                self.refuse(arrival.path, header.opcode, header.chunk, reason);
            }
        }
        let ticket = Ticket::of(header);
        place.map(|place| Offer::Place { ticket, place, crc })
    }

    /// A payload that a link offers and that is placed nowhere counts as arrived.
    #[cold]
    fn take_unwanted(
        &mut self,
        now: Time,
        arrival: Arrival,
        header: &DataHeader,
        bytes: u32,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) {
        let wire_bytes = wire_bytes(bytes as usize);
        self.newest_packet = self.newest_packet.max(header.packet_number);
        self.note_arrived(now, arrival, wire_bytes, header, events, stats);
        if ends_message(header) {
            self.note_end(header, bytes.into());
        }
        let placed = PlacedRun::of(header, bytes.into(), wire_bytes);
        if self.mark_placed(&placed, events, stats) == Marked::Whole {
            self.pending_ack.run_ended();
        }
    }

    /// Refuses a packet whose payload is being copied: a second copy of it could land after the first was
    /// acknowledged.
    #[inline]
    pub(super) fn check_pending(&self, packet: &DataHeader) -> Result<(), DropReason> {
        let mut pending = self.pending.iter();
        let same = |pending: &DataHeader| {
            // Of a chunk that was cut anew, what is being copied has to land first.
            let same_bytes = pending.packet == packet.packet || pending.packets != packet.packets;
            let same_ticket = pending.packet_number == packet.packet_number;
            same_ticket || pending.chunk == packet.chunk && same_bytes
        };
        match pending.any(|pending| same(&pending.header)) {
            true => Err(DropReason::Duplicate),
            false => Ok(()),
        }
    }

    /// Placements that are under way.
    pub(in super::super) fn pending(&self) -> usize {
        self.pending.len() + self.in_order.copying()
    }

    /// Takes a placement that has ended from those under way. `None` when it is none of them.
    pub(in super::super) fn take_pending(&mut self, ticket: Ticket) -> Option<Pending> {
        let mut pending = self.pending.iter();
        let at = pending.position(|pending| Ticket::of(&pending.header) == ticket)?;
        Some(self.pending.swap_remove(at))
    }

    /// A payload that was being written is placed, or its placement has failed.
    pub(in super::super) fn placed(
        &mut self,
        now: Time,
        ended: &Pending,
        result: Result<(), DropReason>,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<(), DropReason> {
        let header = &ended.header;
        if ended.offered {
            // Only now all of it has arrived.
            let (path, ce) = (ended.path, false);
            self.newest_packet = self.newest_packet.max(header.packet_number);
            self.echo(now, Arrival { path, ce }, wire_bytes(ended.bytes), header);
        }
        self.pending_ack.arrived(now, ended.path);
        self.report_cancelled(events);
        if self.revoked.placed(header.chunk) {
            // Its message was revoked while it was being written: the peer is told now.
            return Ok(());
        }
        // Packets that have come since may contradict it.
        let result = result.and_then(|()| self.board.check(place_of(header)));
        match result {
            // A chunk that is whole is answered as the run that brought it would be.
            Ok(()) => {
                if ends_message(header) {
                    self.note_end(header, ended.bytes as u64);
                }
                let placed = PlacedRun::of(header, ended.bytes as u64, 0);
                if self.mark_placed(&placed, events, stats) == Marked::Whole {
                    self.pending_ack.run_ended();
                }
            }
            Err(reason) => {
                self.pending_ack.at_once();
                self.refuse(ended.path, header.opcode, header.chunk, reason);
            }
        }
        result
    }
}

/// Bytes of a packet with so much payload, on the wire.
fn wire_bytes(payload: usize) -> u16 {
    u16::try_from(payload + OVERHEAD_BYTES).unwrap_or(u16::MAX)
}
