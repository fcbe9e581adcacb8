//! What the sender is told: echoes, acknowledgements, refusals.

use super::super::pending_ack::PendingAck;
use super::super::{Arrival, ControlPacket, PathOwner};
use super::{PlacedRun, ReceiveHalf};
use crate::drops::DropReason;
use crate::path::PATHS_MAX;
use crate::recovery::DUPLICATE_THRESHOLD;
use crate::units::{ChunkNumber, ConnectionId, PathId, Time, WIRE_CLOCK_SHIFT};
use crate::wire::{
    ACK_ECHOES_MAX, ACK_MAP_WORDS_MAX, ACK_PARTIALS_MAX, Ack, DataHeader, Echo, Flags, Opcode,
    Partial, Probe, Refusal, Refused, Seal,
};

/// Refused chunks that wait to be told of at most: what a turn can receive, two batches of eight runs
/// from each of 16 ports. Others are told of when they come again.
const REFUSALS_MAX: usize = 256;

/// Some of the paths.
#[derive(Debug, Default)]
pub(super) struct PathMap([u64; PATHS_MAX as usize / 64]);

impl PathMap {
    /// Adds a path. Answers whether it was not among them.
    #[inline]
    pub(super) fn insert(&mut self, path: PathId) -> bool {
        let (word, bit) = (&mut self.0[usize::from(path.0 / 64)], 1 << (path.0 % 64));
        let before = std::mem::replace(word, *word | bit);
        before & bit == 0
    }
}

impl ReceiveHalf {
    #[inline(never)]
    pub(super) fn refuse(
        &mut self,
        path: PathId,
        opcode: Opcode,
        chunk: ChunkNumber,
        reason: DropReason,
    ) {
        if opcode == Opcode::Response
            && let DropReason::Key | DropReason::Bounds = reason
        {
            // Its place is this end's mistake: refused, it would look like the peer's.
            self.lacks_place = true;
            return;
        }
        if let DropReason::Key | DropReason::Bounds = reason {
            self.in_order.set_refused(chunk);
        }
        // The packets of a chunk come one after the other, and one of them is enough.
        let is_queued = self
            .refusals
            .last()
            .is_some_and(|(last, _)| last.chunk == chunk);
        if let Some(refused) = Refused::of(reason)
            && !is_queued
            && self.refusals.len() < REFUSALS_MAX
        {
            self.refusals.push((Refusal { refused, chunk }, path));
        }
    }

    /// Writes the next refusal. `before_ack`: only one that goes before the acknowledgement, by which
    /// the sender might otherwise take the chunk for overtaken. A final one goes behind it: what
    /// was placed is acknowledged before the connection fails.
    pub(in super::super) fn poll_refusal(
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
            owner: PathOwner::Remote,
            bytes: refusal.emit(out, seal, path, remote, number),
        })
    }

    /// Whether the sender waits for the answer to a chunk that is whole. It may take a chunk for lost once so
    /// many later ones are known to have arrived, and soon after it takes the one for lost that arrives after
    /// all; of a chunk that may have lost its end it should know what is here before it sends it again.
    pub(super) fn is_waited_for(&self, placed: &PlacedRun) -> bool {
        placed.flags.contains(Flags::ACK_NOW)
            || placed.packet_number < self.acked_packet
            || self.board.span() > DUPLICATE_THRESHOLD
            || self.board.has_part_before(placed.last.chunk)
    }

    /// A packet has arrived that is not placed now.
    #[inline(always)]
    pub(super) fn echo(&mut self, now: Time, arrival: Arrival, bytes: u16, header: &DataHeader) {
        let newest = [header.sent_at, header.packet_number as u32];
        self.echo_number(now, arrival, 1, bytes, newest);
    }

    /// Packets have arrived, the largest of `largest` bytes; the newest was sent at `sent_at` and has this `number`.
    pub(super) fn echo_number(
        &mut self,
        now: Time,
        arrival: Arrival,
        packets: u16,
        largest: u16,
        [sent_at, number]: [u32; 2],
    ) {
        let ce = if arrival.ce { packets } else { 0 };
        // A run arrives on one path: the newest entry is the likely one.
        let mut newest_first = self.echoes.iter_mut().rev();
        if !self.echoed.insert(arrival.path)
            && let Some((echo, at)) = newest_first.find(|(echo, _)| echo.path == arrival.path)
        {
            echo.ce = echo.ce.saturating_add(ce);
            echo.packets = echo.packets.saturating_add(packets);
            echo.largest = echo.largest.max(largest);
            echo.sent_at = sent_at;
            echo.number = number;
            *at = now;
        } else {
            let echo = Echo {
                path: arrival.path,
                ce,
                packets,
                largest,
                sent_at,
                delay: 0,
                number,
            };
            self.echoes.push((echo, now));
        }
    }

    pub(in super::super) fn handle_probe(
        &mut self,
        now: Time,
        arrival: Arrival,
        bytes: usize,
        number: u64,
        probe: Probe,
    ) {
        let largest = u16::try_from(bytes).unwrap_or(u16::MAX);
        self.echo_number(now, arrival, 1, largest, [probe.sent_at, number as u32]);
        self.pending_ack.arrived(now, arrival.path);
        self.pending_ack.at_once();
    }

    /// Writes the acknowledgement that is due, on the newest path.
    pub(in super::super) fn poll_ack(
        &mut self,
        now: Time,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        number: u64,
    ) -> Option<ControlPacket> {
        if self.in_order.is_placing() {
            return None;
        }
        let path = self.pending_ack.path_if_due(now)?;
        self.acked_packet = self.newest_packet;
        let mut map = [0u64; ACK_MAP_WORDS_MAX];
        let words = self.board.map(&mut map);
        let mut partials = [Partial::default(); ACK_PARTIALS_MAX];
        let partly = self.board.take_partials(&mut partials);
        let mut echoes = [Echo::default(); ACK_ECHOES_MAX];
        let count = self.echoes.len().min(ACK_ECHOES_MAX);
        for (slot, (echo, at)) in echoes.iter_mut().zip(self.echoes.drain(..count)) {
            let waited = (now - at).get() >> WIRE_CLOCK_SHIFT;
            *slot = Echo {
                delay: u32::try_from(waited).unwrap_or(u32::MAX),
                ..echo
            };
        }
        self.echoed = PathMap::default();
        for (echo, _) in &self.echoes {
            self.echoed.insert(echo.path);
        }
        if self.echoes.is_empty() {
            self.pending_ack = PendingAck::Nothing;
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
            owner: PathOwner::Remote,
            bytes: ack.emit(out, seal, path, remote, number),
        })
    }
}
