//! The receiving half: scoreboard, echoes, acknowledgements.

use super::owed::Owed;
use super::{Arrival, ControlPacket, Event, Stats};
use crate::drops::DropReason;
use crate::memory::Memory;
use crate::recovery::{DUPLICATE_THRESHOLD, Marked, MessageEnd, ReceiveBoard};
use crate::units::{ChunkNumber, ConnectionId, PathId, Time, WIRE_CLOCK_SHIFT};
use crate::wire::{
    ACK_ECHOES_MAX, ACK_MAP_WORDS_MAX, ACK_PARTIALS_MAX, Ack, DataHeader, Echo, Flags,
    HEADER_BYTES, Partial, Probe, Refusal, Refused, Seal, TRAILER_BYTES, payload_crc,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A duplicate this many packet numbers behind the newest is no answer to anything: it may be a
/// replay, whose age would be taken for a round-trip time.
const ECHO_NUMBERS: u64 = 4096;

/// A packet this many numbers behind the newest comes from an earlier turn of the 32-bit chunk
/// numbers, which uses at least twice as many: a replay that the scoreboard cannot know.
const STALE_NUMBERS: u64 = 1 << 31;

/// Refused chunks that wait to be told of at most: what a turn can receive, two batches of eight runs
/// from each of 16 ports. Others are told of when they come again.
const REFUSALS_MAX: usize = 256;

/// Control packets may overtake each other by this many.
const CONTROL_WINDOW: u64 = 128;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Receive {
    board: ReceiveBoard,
    /// What arrived by path since the last acknowledgement, and when the newest did.
    #[serde(skip)]
    echoes: Vec<(Echo, Time)>,
    owed: Owed,
    /// What was refused since the last turn, and on which path it came.
    #[serde(skip)]
    refusals: Vec<(Refusal, PathId)>,
    newest_packet: u64,
    /// The newest packet of which an acknowledgement has told: what was sent before it and arrives later is
    /// overdue at the sender.
    #[serde(skip)]
    told: u64,
    /// The newest control packet's number, and which of those before it were seen.
    newest_control: u64,
    controls: u128,
}

impl Receive {
    pub(super) fn new(window: u16) -> Receive {
        Receive {
            board: ReceiveBoard::new(window),
            echoes: Vec::with_capacity(ACK_ECHOES_MAX),
            owed: Owed::Nothing,
            refusals: Vec::new(),
            newest_packet: 0,
            told: 0,
            newest_control: 0,
            controls: 0,
        }
    }

    /// When an acknowledgement that is owed is due.
    pub(super) fn ack_due(&self) -> Option<Time> {
        self.owed.due()
    }

    /// An acknowledgement that is owed is due at once.
    pub(super) fn hurry_ack(&mut self) {
        self.owed.at_once();
    }

    #[allow(clippy::too_many_arguments)] // the halves of the connection that it borrows
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        arrival: Arrival,
        packet: &[u8],
        seal: &Seal,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
        stats: &mut Stats,
    ) -> Result<(), DropReason> {
        let header = DataHeader::parse(packet)?;
        let (front, trailer) = packet
            .split_last_chunk::<TRAILER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let (head, payload) = front
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(DropReason::Truncated)?;
        let crc = seal.open(head, trailer)?;
        if header.packet_number.saturating_add(STALE_NUMBERS) < self.newest_packet {
            return Err(DropReason::Duplicate);
        }
        let wanted = self
            .board
            .check(header.chunk, header.packet, header.packets);
        if wanted == Err(DropReason::Duplicate) {
            // The peer does not know that we have it: tell it again.
            self.owed.arrived(now, arrival.path);
            self.owed.at_once();
            if header.packet_number.saturating_add(ECHO_NUMBERS) > self.newest_packet {
                self.echo(now, arrival, header.sent_at);
            }
        }
        wanted?;
        if payload_crc(payload) != crc {
            return Err(DropReason::Checksum);
        }
        let placed = match payload {
            [] => Ok(()),
            _ => memory.place(header.key, header.offset, payload),
        };
        // The path has carried it, whatever becomes of it.
        self.newest_packet = self.newest_packet.max(header.packet_number);
        self.echo(now, arrival, header.sent_at);
        self.owed.arrived(now, arrival.path);
        if arrival.ce {
            // Congestion is told of as soon as it is seen (RFC 9000, section 13.2.1).
            self.owed.at_once();
        }
        if let Err(reason) = placed {
            self.owed.at_once();
            self.refuse(arrival, header.chunk, reason);
            return Err(reason);
        }
        stats.packets_placed += 1;
        stats.bytes_placed += payload.len() as u64;
        match self.board.mark(header.chunk, header.packet, header.packets) {
            Marked::Whole => self.whole_chunk(&header, events),
            Marked::Beginning if self.board.span() <= 1 => {}
            // Something before it is missing, in the chunk or before.
            Marked::Beginning | Marked::Gap => self.owed.at_once(),
        }
        Ok(())
    }

    /// Everything that was received together is taken in.
    pub(super) fn run_ended(&mut self) {
        self.owed.run_ended();
    }

    fn refuse(&mut self, arrival: Arrival, chunk: ChunkNumber, reason: DropReason) {
        // The packets of a chunk come one after the other, and one of them is enough.
        let told = self
            .refusals
            .last()
            .is_some_and(|(last, _)| last.chunk == chunk);
        if let Some(refused) = Refused::of(reason)
            && !told
            && self.refusals.len() < REFUSALS_MAX
        {
            self.refusals
                .push((Refusal { refused, chunk }, arrival.path));
        }
    }

    /// Writes the next refusal. `before_ack`: only one that goes before the acknowledgement, by which
    /// the sender might otherwise take the chunk for overtaken. A final one goes behind it: what
    /// was placed is acknowledged before the connection fails.
    pub(super) fn poll_refusal(
        &mut self,
        before_ack: bool,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        number: u64,
    ) -> Option<ControlPacket> {
        let goes = |refused| !before_ack || refused == Refused::NotArmed;
        let at = self.refusals.iter().position(|(r, _)| goes(r.refused))?;
        let (refusal, path) = self.refusals.remove(at);
        Some(ControlPacket {
            path,
            bytes: refusal.emit(out, seal, path, remote, number),
        })
    }

    /// Whether the sender waits for the answer to a chunk that is whole. It may take a chunk for lost once so
    /// many later ones are known to have arrived, and soon after it takes the one for lost that arrives after
    /// all; of a chunk that may have lost its end it should know what is here before it sends it again.
    fn is_waited_for(&self, header: &DataHeader) -> bool {
        header.flags.contains(Flags::ACK_NOW)
            || header.packet_number < self.told
            || self.board.span() > DUPLICATE_THRESHOLD
            || self.board.has_part_before(header.chunk)
    }

    fn whole_chunk(&mut self, header: &DataHeader, events: &mut VecDeque<Event>) {
        if self.owed.due() != Some(Time::ZERO) && self.is_waited_for(header) {
            self.owed.at_once();
        }
        if header.flags.contains(Flags::LAST.with(Flags::IMMEDIATE)) {
            self.board.end_message(MessageEnd {
                first: header.chunk.minus(header.chunk_index),
                last: header.chunk,
                immediate: header.immediate,
                key: header.key,
            });
        }
        if self.board.waiting_messages() > 0 {
            let (owed, board) = (&mut self.owed, &mut self.board);
            board.complete(|end| {
                owed.at_once();
                events.push_back(Event::Immediate {
                    value: end.immediate,
                    key: end.key,
                });
            });
        }
    }

    fn echo(&mut self, now: Time, arrival: Arrival, sent_at: u32) {
        let ce = u16::from(arrival.ce);
        // A run arrives on one path: the newest entry is the likely one.
        let known = self
            .echoes
            .iter_mut()
            .rev()
            .find(|(echo, _)| echo.path == arrival.path);
        if let Some((echo, at)) = known {
            echo.ce = echo.ce.saturating_add(ce);
            echo.packets += 1;
            echo.sent_at = sent_at;
            *at = now;
        } else {
            let echo = Echo {
                path: arrival.path,
                ce,
                packets: 1,
                sent_at,
                delay: 0,
            };
            self.echoes.push((echo, now));
        }
    }

    pub(super) fn handle_probe(&mut self, now: Time, arrival: Arrival, probe: Probe) {
        self.echo(now, arrival, probe.sent_at);
        self.owed.arrived(now, arrival.path);
        self.owed.at_once();
    }

    /// Refuses a control packet that was seen before, or that is too old to tell.
    pub(super) fn check_control(&mut self, number: u64) -> Result<(), DropReason> {
        if number > self.newest_control {
            let by = number - self.newest_control;
            self.controls = if by >= CONTROL_WINDOW {
                0
            } else {
                self.controls << by
            };
            self.controls |= 1;
            self.newest_control = number;
            return Ok(());
        }
        let behind = self.newest_control - number;
        if behind >= CONTROL_WINDOW || self.controls >> behind & 1 == 1 {
            return Err(DropReason::Duplicate);
        }
        self.controls |= 1 << behind;
        Ok(())
    }

    /// Writes the acknowledgement that is due, on the newest path.
    pub(super) fn poll_ack(
        &mut self,
        now: Time,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        number: u64,
    ) -> Option<ControlPacket> {
        let path = self.owed.path_if_due(now)?;
        self.told = self.newest_packet;
        let mut map = [0u64; ACK_MAP_WORDS_MAX];
        let words = self.board.map(&mut map);
        let mut partials = [Partial::default(); ACK_PARTIALS_MAX];
        let partly = self.board.take_partials(&mut partials);
        let mut echoes = [Echo::default(); ACK_ECHOES_MAX];
        let count = self.echoes.len().min(ACK_ECHOES_MAX);
        for (slot, (echo, at)) in echoes.iter_mut().zip(self.echoes.drain(..count)) {
            let lay = (now - at).get() >> WIRE_CLOCK_SHIFT;
            *slot = Echo {
                delay: u32::try_from(lay).unwrap_or(u32::MAX),
                ..echo
            };
        }
        if self.echoes.is_empty() {
            self.owed = Owed::Nothing;
        }
        let ack = Ack {
            cumulative: self.board.cumulative(),
            sent_at: now.to_wire(),
            map: &map[..words],
            partials: &partials[..partly],
            echoes: &echoes[..count],
        };
        Some(ControlPacket {
            path,
            bytes: ack.emit(out, seal, path, remote, number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CONTROL_PACKET_NUMBERS;

    #[test]
    fn a_control_packet_is_taken_once_in_any_order() {
        let mut receive = Receive::new(64);
        let number = |n: u64| CONTROL_PACKET_NUMBERS + n;
        for n in [0, 5, 3, 200, 199] {
            assert_eq!(receive.check_control(number(n)), Ok(()), "{n}");
        }
        for n in [5, 3, 200, 199, 0, 72] {
            assert_eq!(
                receive.check_control(number(n)),
                Err(DropReason::Duplicate),
                "{n}"
            );
        }
        assert_eq!(receive.check_control(number(73)), Ok(()));
    }
}
