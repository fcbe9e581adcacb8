//! What has arrived is taken in; timers are served, and what there is to send is given.

use super::run::leading_piece;
use super::{Endpoint, PeerName, PendingReset, Slot, touch};
use crate::connection::{Arrival, Chunk, Departure, PathOwner, Run};
use crate::drops::DropReason;
use crate::memory::Memory;
use crate::received::{Offer, Received};
use crate::units::{ConnectionId, PathId, Source, Time};
use crate::wire::{CONTROL_BYTES_MAX, DataHeader, Envelope, Kind, Prefix, Reset};

/// Timers wait until everything that has arrived was taken in, but never for more turns than this.
const TURNS_WITHOUT_TIMERS_MAX: u32 = 16;

/// Something to send.
#[derive(Debug)]
pub enum Transmit<'a, P> {
    /// Packets of a chunk, on a path of this end. The caller gathers and seals them.
    Chunk {
        /// Whose it is.
        connection: ConnectionId,
        /// The NIC it goes to.
        peer: &'a P,
        /// The packets.
        chunk: Chunk,
    },
    /// A finished packet: the first `bytes` of the buffer.
    Control {
        /// The NIC it goes to.
        peer: &'a P,
        /// The path to send it on.
        path: PathId,
        /// Whose path that is.
        owner: PathOwner,
        /// Its length.
        bytes: usize,
    },
    /// A Reset, to which the caller adds the token.
    Reset(PendingReset),
}

impl<P: PeerName> Endpoint<P> {
    /// Takes in what has arrived together; it may be of several connections.
    pub fn handle(&mut self, now: Time, received: Received<'_>, memory: &mut impl Memory) {
        let (from, ce, bytes, segment) = match received {
            Received::Packets {
                from,
                ce,
                bytes,
                segment,
            } => (from, ce, bytes, segment),
            Received::Placed { ticket, result } => {
                self.placed(now, ticket, result, memory);
                return;
            }
        };
        if bytes.is_empty() {
            self.drops.count(DropReason::Truncated);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = leading_piece(rest, segment);
            let (bytes, behind) = rest.split_at_mut(piece);
            rest = behind;
            self.handle_piece(now, from, ce, bytes, segment, memory);
        }
    }

    /// Begins to send. `drained` says that nothing that has arrived is left: timers are served then, so that an answer
    /// that lies in the socket is never overtaken by a timeout. `chunks` is how many may be sent: few, because an
    /// arrived packet waits for as long; none when the link takes none.
    pub fn send(&mut self, now: Time, drained: bool, chunks: u32) -> Sending<'_, P> {
        self.turns_without_timers += 1;
        if drained || self.turns_without_timers >= TURNS_WITHOUT_TIMERS_MAX {
            self.turns_without_timers = 0;
            self.serve_timers(now);
        }
        self.grant_credit(now);
        let touched = self.touched.len();
        for &slot in &self.touched {
            if let Slot::Open(_) = &self.slots[slot as usize] {
                self.schedule.join(slot);
            }
        }
        Sending {
            chunks_left: chunks,
            controls: 0..touched,
            chunk_first: core::mem::take(&mut self.posted),
            endpoint: self,
        }
    }

    /// Says where a link that places is to write a payload of `bytes` bytes between this header and trailer. Such a link
    /// hands everything else over as packets: what has no payload, requests, and control packets.
    pub fn offer(
        &mut self,
        now: Time,
        from: Source,
        envelope: &Envelope,
        bytes: u32,
        memory: &mut impl Memory,
    ) -> Offer {
        let header = match DataHeader::read(&envelope.header) {
            Ok(header) => header,
            Err(reason) => {
                self.drops.count(reason);
                return Offer::Discard;
            }
        };
        let slot = self.find(header.connection);
        match slot.map(|slot| (slot, &mut self.slots[slot as usize])) {
            Some((slot, Slot::Open(open))) => {
                let offer = open.connection.offer(now, envelope, bytes, memory);
                touch(&mut self.touched, &mut self.eventful, slot, open);
                offer
            }
            known => {
                let allocated = matches!(known, Some((_, Slot::Allocated(_))));
                let reason = match known {
                    Some(_) if !allocated => DropReason::Closed,
                    _ => DropReason::UnknownConnection,
                };
                self.drops.count(reason);
                if !allocated {
                    self.queue_reset(now, from, header.path, header.connection);
                }
                Offer::Discard
            }
        }
    }

    /// A packet names a connection that is not known here: a Reset goes back.
    fn queue_reset(&mut self, now: Time, to: Source, path: PathId, connection: ConnectionId) {
        let reset = PendingReset {
            to,
            path,
            connection,
        };
        self.resets.answer(now, reset);
    }

    #[inline]
    fn handle_piece(
        &mut self,
        now: Time,
        from: Source,
        ce: bool,
        bytes: &mut [u8],
        segment: usize,
        memory: &mut impl Memory,
    ) {
        // Of its first packet: packets that were cut short would else be read as one.
        let prefix = Prefix::of(&bytes[..segment.min(bytes.len())]);
        let read = prefix.and_then(|prefix| Ok((prefix, prefix.kind()?)));
        let (path, connection) = match read {
            Ok((_, Kind::Reset)) => return self.handle_resets(bytes, segment),
            Ok((prefix, _)) => (prefix.path(), prefix.connection()),
            Err(reason) => return self.count(reason, bytes.len(), segment),
        };
        let slot = self.find(connection);
        match slot.map(|slot| (slot, &mut self.slots[slot as usize])) {
            Some((slot, Slot::Open(open))) => {
                let Some(peer) = self.peers.get_mut(open.peer) else {
                    return;
                };
                let arrival = Arrival { path, ce };
                let before = peer.paths.capacity();
                let run = Run { bytes, segment };
                // The connection has counted what it dropped.
                let _ = open
                    .connection
                    .handle_packets(now, &mut peer.paths, arrival, run, memory);
                if let Some(pacer) = &mut self.pacer {
                    pacer.update(now, slot, &open.connection);
                }
                let freed = peer.paths.capacity() > before;
                touch(&mut self.touched, &mut self.eventful, slot, open);
                if freed {
                    // The other connections to that NIC wait for this.
                    let peer = open.peer;
                    self.for_each_of_peer(peer, |_| ());
                }
            }
            // The peer was quicker than the control channel: it sends again.
            Some((_, Slot::Allocated(_))) => {
                self.count(DropReason::UnknownConnection, bytes.len(), segment);
            }
            known => {
                let reason = match known {
                    Some(_) => DropReason::Closed,
                    None => DropReason::UnknownConnection,
                };
                self.count(reason, bytes.len(), segment);
                self.queue_reset(now, from, path, connection);
            }
        }
    }

    /// The slot of an id. Runs of one connection come one after the other: the last one is looked at first.
    #[inline]
    pub(super) fn find(&mut self, id: ConnectionId) -> Option<u32> {
        if let Some(Slot::Open(open)) = self.slots.get(self.last_found as usize)
            && open.connection.id() == id
        {
            return Some(self.last_found);
        }
        self.last_found = *self.by_id.get(&id)?;
        Some(self.last_found)
    }

    fn handle_resets(&mut self, bytes: &[u8], segment: usize) {
        for packet in bytes.chunks(segment) {
            let reset = match Reset::parse(packet) {
                Ok(reset) => reset,
                Err(reason) => {
                    self.drops.count(reason);
                    continue;
                }
            };
            let (token, remote) = (reset.token, reset.connection);
            let named = self
                .by_token
                .range((token, remote, 0)..=(token, remote, u32::MAX))
                .next();
            let Some(&(.., slot)) = named else {
                self.drops.count(DropReason::UnknownConnection);
                continue;
            };
            if let Slot::Open(open) = &mut self.slots[slot as usize] {
                let _ = open.connection.handle_reset(token);
            }
            self.touch(slot);
        }
    }

    fn count(&mut self, reason: DropReason, bytes: usize, segment: usize) {
        for _ in 0..bytes.div_ceil(segment) {
            self.drops.count(reason);
        }
    }

    fn serve_timers(&mut self, now: Time) {
        while let Some((due, slot)) = self.timers.pop_due(now) {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            if open.timer != Some(due) {
                continue;
            }
            open.timer = None;
            let Some(peer) = self.peers.get_mut(open.peer) else {
                continue;
            };
            let wants = open.connection.poll_timeout(&peer.paths);
            if wants.is_some_and(|due| due <= now) {
                open.connection.handle_timeout(now, &mut peer.paths);
            }
            touch(&mut self.touched, &mut self.eventful, slot, open);
        }
    }

    fn poll_control(
        &mut self,
        now: Time,
        slot: u32,
        buffer: &mut [u8],
    ) -> Option<(u32, PathId, PathOwner, usize)> {
        let Slot::Open(open) = &mut self.slots[slot as usize] else {
            return None;
        };
        let paths = &mut self.peers.get_mut(open.peer)?.paths;
        let packet = open
            .connection
            .poll_control(now, paths, &mut self.rng, buffer)?;
        // It goes whatever the cap says, and counts.
        if let Some(cap) = &mut self.rate_cap {
            let bytes = packet.bytes as u64;
            cap.charge_control(bytes + self.config.link_headers(1, bytes));
        }
        Some((open.peer, packet.path, packet.owner, packet.bytes))
    }

    /// The chunk that goes.
    #[inline]
    fn chunk(&mut self, now: Time, slot: u32, departure: &Departure) -> Option<Transmit<'_, P>> {
        let Slot::Open(open) = &mut self.slots[slot as usize] else {
            return None;
        };
        Some(Transmit::Chunk {
            connection: open.connection.id(),
            peer: &self.peers.get(open.peer)?.name,
            chunk: open.connection.chunk(now, departure, &mut self.rng),
        })
    }

    fn poll_reset(&mut self) -> Option<PendingReset> {
        let (by_id, slots) = (&self.by_id, &self.slots);
        self.resets.next(|id| {
            let slot = by_id.get(&id).map(|&slot| &slots[slot as usize]);
            matches!(slot, Some(Slot::Allocated(_) | Slot::Open(_)))
        })
    }

    /// Whose turn it is to send, and what goes.
    #[inline(always)]
    fn poll_departure(&mut self, now: Time) -> Option<(u32, Departure)> {
        while let Some(slot) = self.schedule.current() {
            if let Some(cap) = &mut self.rate_cap
                && !cap.may_send(now)
            {
                return None;
            }
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                self.schedule.leave();
                continue;
            };
            let peer = self.peers.get_mut(open.peer);
            let departure = peer.and_then(|peer| {
                open.connection
                    .poll_departure(now, &mut peer.paths, &mut self.rng, u32::MAX)
            });
            let Some(departure) = departure else {
                // It may have begun to wait for the peer: its timer is taken note of when the turn ends.
                touch(&mut self.touched, &mut self.eventful, slot, open);
                self.schedule.leave();
                continue;
            };
            if let Some(cap) = &mut self.rate_cap {
                let (packets, bytes) = (u64::from(departure.packets), u64::from(departure.bytes));
                cap.charge(bytes + self.config.link_headers(packets, bytes));
            }
            self.schedule.charge(slot, departure.bytes.into());
            touch(&mut self.touched, &mut self.eventful, slot, open);
            return Some((slot, departure));
        }
        None
    }

    /// Ends the turn: each connection that was looked at is looked at again when its timer is due.
    /// Those whose control packets nobody has asked for yet are looked at in the next turn.
    fn end_turn(&mut self, unasked: core::ops::Range<usize>) {
        let mut touched = std::mem::take(&mut self.touched);
        let left: Vec<u32> = touched[unasked].to_vec();
        for &slot in &touched {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            open.touched = false;
            if !open.ack_pending && open.connection.has_pending_ack() {
                open.ack_pending = true;
                self.pending_acks.push(slot);
            }
            let Some(peer) = self.peers.get(open.peer) else {
                continue;
            };
            let Some(due) = open.connection.poll_timeout(&peer.paths) else {
                continue;
            };
            // An earlier entry looks again when it is due; most never get that far.
            if open.timer.is_none_or(|timer| due < timer) {
                open.timer = Some(due);
                self.timers.push(due, slot);
            }
        }
        touched.clear();
        self.touched = touched;
        for slot in left {
            self.touch(slot);
        }
    }
}

/// What there is to send. Dropping it ends the turn.
#[derive(Debug)]
pub struct Sending<'a, P: PeerName> {
    endpoint: &'a mut Endpoint<P>,
    /// Of the touched connections, those whose control packets are still to be asked for.
    controls: core::ops::Range<usize>,
    chunks_left: u32,
    /// A chunk goes before the control packets.
    chunk_first: bool,
}

impl<P: PeerName> Sending<'_, P> {
    /// The next thing to send: acknowledgements and probes first, then Resets, then chunks in the order of the
    /// schedule. When a write was posted since the last turn, one chunk goes before all: somebody waits for the
    /// answer to a small message, and nobody for the message's acknowledgement. `None` when there is nothing
    /// more, or the turn has sent its share of chunks.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        buffer: &mut [u8; CONTROL_BYTES_MAX],
    ) -> Option<Transmit<'_, P>> {
        let mut chunk_first = core::mem::take(&mut self.chunk_first);
        loop {
            while !chunk_first && !self.controls.is_empty() {
                let slot = self.endpoint.touched[self.controls.start];
                let control = self.endpoint.poll_control(now, slot, buffer);
                if let Some((peer, path, owner, bytes)) = control {
                    let peer = &self.endpoint.peers.get(peer)?.name;
                    return Some(Transmit::Control {
                        peer,
                        path,
                        owner,
                        bytes,
                    });
                }
                self.controls.start += 1;
            }
            if !chunk_first
                && !self.endpoint.resets.is_empty()
                && let Some(reset) = self.endpoint.poll_reset()
            {
                return Some(Transmit::Reset(reset));
            }
            if let Some((slot, departure)) = self.poll_departure(now) {
                return self.endpoint.chunk(now, slot, &departure);
            }
            if !core::mem::take(&mut chunk_first) {
                return None;
            }
        }
    }

    #[inline]
    fn poll_departure(&mut self, now: Time) -> Option<(u32, Departure)> {
        if self.chunks_left == 0 {
            return None;
        }
        let found = self.endpoint.poll_departure(now)?;
        self.chunks_left -= 1;
        Some(found)
    }
}

impl<P: PeerName> Drop for Sending<'_, P> {
    fn drop(&mut self) {
        self.endpoint.end_turn(self.controls.clone());
    }
}
