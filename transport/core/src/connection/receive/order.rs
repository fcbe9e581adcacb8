//! Placement in order, for connections that deliver in order.
//!
//! A reliable connected queue pair executes its messages in order (InfiniBand Architecture Specification, volume 1,
//! section 9.5): a program that polls memory for the last byte of a message, or for a flag that is written after the
//! data, finds the data there. Packets take many paths and arrive in any order, so what ends a message waits here
//! until everything before it is placed: its last packet, or the whole request. The other packets are placed as they
//! come. Two messages that write to the same bytes, the second before the first is complete, may leave those of either.
//!
//! A packet that waits is acknowledged, or the sender would take it for lost. While a packet that no longer waits is
//! being copied, no acknowledgement is sent: the sender completes a message when all of it, and all before it, is placed.

use super::super::{Arrival, Event, Stats};
use super::{PlacedRun, ReceiveHalf, ends_message, place_of, report};
use crate::drops::DropReason;
use crate::memory::{Access, DomainId, Memory, Place, Placed, Ticket};
use crate::recovery::{Marked, MessageEnd};
use crate::units::{ChunkNumber, ConnectionId, Key, Time};
use crate::wire::{Atomic, DataHeader, Flags, HEADER_BYTES, Opcode, Request};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Payload that waits at most, bytes. More is dropped and sent again.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// What a packet that waits takes beside its payload.
const WAITING_PACKET_BYTES: usize = 128;

/// A packet that is here and waits for those before it.
#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    opcode: Opcode,
    connection: ConnectionId,
    packet_number: u64,
    /// How its chunk was cut.
    packets: u8,
    immediate: u32,
    key: Key,
    offset: u64,
    payload: Vec<u8>,
}

/// Something whose turn has come.
#[derive(Debug, Serialize, Deserialize)]
enum Due {
    Packet(Waiting),
    End(MessageEnd),
}

/// What waits for its turn.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct InOrder {
    /// By chunk, counted from the first of the connection, and packet.
    waiting: BTreeMap<(u64, u8), Waiting>,
    /// Of those, and of what is due.
    bytes: usize,
    /// Requests among them.
    requests: usize,
    /// Whole chunks that the board has passed.
    passed: u64,
    /// In order. Not empty only while a packet is copied, or meets a region that is not armed.
    due: VecDeque<Due>,
    /// The first of `due` is being copied.
    #[serde(skip)]
    copying: Option<Ticket>,
    /// The chunk that was refused for good last. Not saved: it comes again, and is refused again.
    #[serde(skip)]
    pub(super) refused: Option<ChunkNumber>,
}

impl Waiting {
    fn ticket(&self) -> Ticket {
        Ticket {
            connection: self.connection,
            packet_number: self.packet_number,
        }
    }

    fn bytes(&self) -> usize {
        self.payload.len() + WAITING_PACKET_BYTES
    }
}

impl InOrder {
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes
    }

    #[cold]
    pub(super) fn set_refused(&mut self, chunk: ChunkNumber) {
        self.refused = Some(chunk);
    }

    /// Requests that wait.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Whether nothing may be acknowledged.
    pub(super) fn is_placing(&self) -> bool {
        !self.due.is_empty()
    }

    /// Placements under way.
    pub(super) fn copying(&self) -> usize {
        usize::from(self.copying.is_some())
    }

    fn insert(&mut self, chunk: u64, packet: u8, waiting: Waiting) {
        // A chunk that was cut anew comes anew.
        let cut = waiting.packets;
        let of_chunk = self.waiting.range((chunk, 0)..=(chunk, u8::MAX));
        let other = of_chunk.filter(|(_, before)| before.packets != cut);
        let other: Vec<(u64, u8)> = other.map(|(at, _)| *at).collect();
        let removed = other.iter().map(|at| self.waiting.remove(at));
        for waiting in removed.flatten().collect::<Vec<_>>() {
            self.forget(&waiting);
        }
        self.bytes += waiting.bytes();
        self.requests += usize::from(waiting.opcode == Opcode::Request);
        self.waiting.insert((chunk, packet), waiting);
    }

    fn forget(&mut self, waiting: &Waiting) {
        self.bytes -= waiting.bytes();
        self.requests -= usize::from(waiting.opcode == Opcode::Request);
    }

    /// The board has passed so many chunks more: what waits in them is due, then the ends of messages.
    pub(super) fn pass(&mut self, chunks: u64, ends: Vec<MessageEnd>) {
        self.passed += chunks;
        let later = self.waiting.split_off(&(self.passed, 0));
        let due = std::mem::replace(&mut self.waiting, later);
        self.due.extend(due.into_values().map(Due::Packet));
        self.due.extend(ends.into_iter().map(Due::End));
    }
}

impl ReceiveHalf {
    /// Whether a packet has to wait for others. What was placed before it is on the board.
    #[inline]
    pub(super) fn has_to_wait(&self, header: &DataHeader) -> bool {
        let is_next = self.board.cumulative() == header.chunk
            && self.board.missing(place_of(header)) == 1 << header.packet
            && self.in_order.waiting.is_empty()
            && self.in_order.due.is_empty();
        self.board.is_in_order() && header.flags.contains(Flags::LAST) && !is_next
    }

    /// Keeps a packet that ends a message if it has to wait for others; nothing if it need not.
    #[expect(
        clippy::too_many_arguments,
        reason = "the halves of the connection that it borrows"
    )]
    #[inline(never)]
    pub(super) fn keep_if_early(
        &mut self,
        now: Time,
        arrival: Arrival,
        wire: &[u8; HEADER_BYTES],
        payload: &[u8],
        bytes: u16,
        domain: DomainId,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Option<Result<(), DropReason>> {
        let header = DataHeader::read(wire).ok()?;
        self.mark_run(now, arrival, events, stats);
        if !self.has_to_wait(&header) {
            return None;
        }
        self.newest_packet = self.newest_packet.max(header.packet_number);
        if let Err(reason) = self.keep_waiting(&header, payload, domain, memory) {
            self.note_arrived(now, arrival, bytes, &header, events, stats);
            return Some(self.settle(arrival, header, payload.len(), Err(reason)));
        }
        if ends_message(&header) {
            self.note_end(&header, payload.len() as u64);
        }
        self.placed = Some(PlacedRun::of(&header, payload.len() as u64, bytes));
        self.mark_run(now, arrival, events, stats);
        Some(Ok(()))
    }

    /// Keeps a packet until its turn comes.
    ///
    /// # Errors
    /// It could not be placed now either, or too much waits.
    fn keep_waiting(
        &mut self,
        header: &DataHeader,
        payload: &[u8],
        domain: DomainId,
        memory: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let place = |key, offset, bytes| Place {
            domain,
            key,
            offset,
            bytes,
        };
        match header.opcode {
            Opcode::Request => {
                let request = Request::parse(payload)?;
                self.check_responses()?;
                let access = match request {
                    Request::Read { .. } => Access::READ,
                    Request::Atomic(_) if !header.offset.is_multiple_of(Atomic::BYTES) => {
                        return Err(DropReason::Bounds);
                    }
                    Request::Atomic(_) => Access::ATOMIC,
                };
                self.check_access(access)?;
                let bytes = request.response_bytes();
                memory.check(&place(header.key, header.offset, bytes), access)?;
            }
            Opcode::Write | Opcode::Send | Opcode::Response => {
                let bytes = payload.len() as u64;
                let (key, offset) = self.find_place(header, bytes)?;
                if bytes > 0 {
                    memory.check(&place(key, offset, bytes), Access::WRITE)?;
                }
            }
        }
        if self.in_order.bytes + payload.len() + WAITING_PACKET_BYTES > WAITING_BYTES_MAX {
            return Err(DropReason::PlacementsFull);
        }
        let ahead = header.chunk.ahead_of(self.board.cumulative());
        let chunk = self.in_order.passed + u64::try_from(ahead).unwrap_or(0);
        let waiting = Waiting {
            opcode: header.opcode,
            connection: header.connection,
            packet_number: header.packet_number,
            packets: header.packets,
            immediate: header.immediate,
            key: header.key,
            offset: header.offset,
            payload: payload.to_vec(),
        };
        self.in_order.insert(chunk, header.packet, waiting);
        Ok(())
    }

    /// Packets are here: what waited for them is due, and then what ends by it.
    #[inline(never)]
    pub(super) fn mark_in_order(&mut self, placed: &PlacedRun) -> Marked {
        let from = self.board.cumulative();
        let mut ends = Vec::new();
        let marked = self
            .board
            .mark_map(placed.last, placed.map, |end| ends.push(end));
        if !ends.is_empty() {
            self.pending_ack.at_once();
        }
        let chunks = self.board.cumulative().ahead_of(from);
        let chunks = u64::try_from(chunks).unwrap_or(0);
        if chunks > 0 {
            self.in_order.pass(chunks, ends);
        }
        marked
    }

    /// Whether something is due.
    pub(in super::super) fn is_placing(&self) -> bool {
        self.in_order.is_placing()
    }

    /// Places what is due, and reports the messages that end by it.
    pub(in super::super) fn place_due(
        &mut self,
        domain: DomainId,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) {
        while self.in_order.copying.is_none()
            && let Some(due) = self.in_order.due.pop_front()
        {
            let waiting = match due {
                Due::End(end) => {
                    let (receives, requests) = (&mut self.receives, &mut self.requests);
                    report(end, receives, requests, &self.pending, events);
                    continue;
                }
                Due::Packet(waiting) => waiting,
            };
            match self.place_waiting(&waiting, domain, memory) {
                Ok(Placed::Now) => self.in_order.forget(&waiting),
                Ok(Placed::Pending) => {
                    self.in_order.copying = Some(waiting.ticket());
                    self.in_order.due.push_front(Due::Packet(waiting));
                }
                // It was when the packet came. The sender asks again, and then it is placed.
                Err(DropReason::NotArmed) => {
                    self.in_order.due.push_front(Due::Packet(waiting));
                    return;
                }
                Err(_) => {
                    self.lacks_place = true;
                    return;
                }
            }
        }
    }

    fn place_waiting(
        &mut self,
        waiting: &Waiting,
        domain: DomainId,
        memory: &mut impl Memory,
    ) -> Result<Placed, DropReason> {
        let Waiting {
            opcode,
            key,
            offset,
            payload,
            ..
        } = waiting;
        let bytes = payload.len() as u64;
        let (key, offset) = match opcode {
            Opcode::Request => {
                let place = Place {
                    domain,
                    key: *key,
                    offset: *offset,
                    bytes: 0,
                };
                return self.carry_out(waiting.immediate, place, payload, memory);
            }
            Opcode::Write => (*key, *offset),
            // It may report a write: then the offset is that one's length.
            Opcode::Send if bytes == 0 => self.receives.place_of(key.0, 0, 0)?,
            Opcode::Send | Opcode::Response => {
                self.chosen_place(*opcode, *key, *offset, bytes, true)?
            }
        };
        match &payload[..] {
            [] => Ok(Placed::Now),
            payload => memory.place(waiting.ticket(), domain, key, offset, payload),
        }
    }

    /// The copy that what is due waits for has ended. Answers whether it was that one.
    pub(in super::super) fn due_placed(&mut self, ticket: Ticket) -> bool {
        if self.in_order.copying != Some(ticket) {
            return false;
        }
        self.in_order.copying = None;
        if let Some(Due::Packet(waiting)) = self.in_order.due.pop_front() {
            self.in_order.forget(&waiting);
        }
        true
    }
}
