//! One connection between two NICs: writes go in, chunks come out; packets go in, acknowledgements
//! and events come out.
//!
//! Full duplex: each end may write to the other. The order of calls, per worker and turn:
//! [`Connection::handle_packets`] for everything that has arrived, then [`Connection::poll_event`],
//! [`Connection::handle_timeout`] when [`Connection::poll_timeout`] is due, then
//! [`Connection::poll_control`] and [`Connection::poll_chunk`] until they yield nothing. Receiving
//! comes before timers, so that an answer that lies in the socket is never overtaken by a timeout.
//! `now` never runs backwards within a connection.

use crate::congestion::{Congestion, CongestionControl};
use crate::drops::{DropReason, Drops};
use crate::memory::{Access, Memory, Ticket};
use crate::path::{PathPolicy, PathSet, Policy};
use crate::received::Offer;
use crate::recovery::ReceiveBoard;
use crate::units::{ChunkNumber, ConnectionId, Nanos, PathId, Rng, Time};
use crate::wire::{self, Cipher, DataHeader, Envelope, Integrity, Kind};
use std::collections::VecDeque;
use std::sync::Arc;

mod ack;
mod ack_request;
mod cancel;
mod chunk;
mod config;
mod credit;
mod event;
mod grants;
mod in_flight;
mod keys;
mod numbers;
mod pending_ack;
mod receive;
mod receives;
mod saved;
mod stats;
mod timeout;
mod timer;
mod transmit;
mod work;

pub use cancel::CancelError;
pub use chunk::{Chunk, ChunkSource};
pub use config::{ConnectionConfig, Settings, SettingsError};
pub use event::{Event, Failure};
pub use grants::Claim;
pub use receives::SharedReceives;
pub use saved::RestoreError;
pub use stats::Stats;
pub use work::{
    AtomicChange, Pages, PostError, REQUESTS_MAX, Read, ReceiveBuffer, ReportWrite, SendMessage,
    WorkRequest, Write, WritePages,
};

use grants::Grants;
use keys::{Keys, SavedKeys};
use numbers::PacketNumbers;
use receive::ReceiveHalf;
use timer::{Timer, TimerTable};
pub(crate) use transmit::Departure;
use transmit::SendHalf;

/// A connection on which nothing was sent or received for this long gives back the memory of its boards and
/// queues. Long against the gaps in a tenant's traffic, so that work that goes on allocates nothing.
pub const IDLE_AFTER: Nanos = Nanos::from_secs(1);

/// A peer that owes a response and sends nothing is asked so often whether it is there: it may be gone, and sends
/// nothing by itself that would say so.
const KEEP_ALIVE: Nanos = Nanos::from_millis(500);

/// Where and how a run of packets arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The path, as the link knows it (on UDP: from the ports).
    pub path: PathId,
    /// Whether the run bore Congestion Experienced (RFC 3168). GRO merges packets only when it is
    /// the same in all.
    pub ce: bool,
}

/// Packets received together: each `segment` bytes long, the last one maybe shorter.
#[derive(Debug)]
pub struct Run<'a> {
    /// The datagrams, one after the other. Encrypted ones are decrypted in place.
    pub bytes: &'a mut [u8],
    /// Bytes of each but the last.
    pub segment: usize,
}

/// Which end's numbering a path is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathOwner {
    /// A path of this end.
    Local,
    /// A path of the other end: what answers it goes back the way it came.
    Remote,
}

/// A control packet to be sent as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlPacket {
    /// The path to send it on.
    pub path: PathId,
    /// Whose path that is.
    pub owner: PathOwner,
    /// How many bytes of the buffer are the packet.
    pub bytes: usize,
}

/// One end of a connection. See the module's text for the order of calls.
#[derive(Debug)]
pub struct Connection {
    config: ConnectionConfig,
    keys: Keys,
    transmit: SendHalf,
    receive: ReceiveHalf,
    policy: Policy,
    congestion: Congestion,
    /// What the peer may send, where this end grants credit.
    grants: Option<Grants>,
    events: VecDeque<Event>,
    controls: PacketNumbers,
    drops: Drops,
    stats: Stats,
    failed: Option<Failure>,
    timers: TimerTable,
    /// When something was last sent or received.
    active: Time,
    /// Echoes older than this are of before a restore.
    since: Time,
    /// Acknowledgements in a row that brought something new and no echo.
    unproven: u16,
    /// The path to ask on whether the peer is there.
    keep_alive: Option<PathId>,
}

impl Connection {
    /// A connection on which nothing was sent. `cipher` encrypts it if its settings say so.
    pub fn new(config: ConnectionConfig, cipher: &'static dyn Cipher, now: Time) -> Connection {
        Connection {
            keys: config.keys(cipher, SavedKeys::default()),
            transmit: SendHalf::new(&config),
            receive: ReceiveHalf::new(ReceiveBoard::new(
                config.settings.window_chunks,
                config.receive_from,
                config.in_order,
            )),
            policy: config.policy.build(config.congestion),
            congestion: config.congestion.build(config.settings.limits()),
            grants: config.credit_limits().map(Grants::new),
            events: VecDeque::new(),
            controls: PacketNumbers::new(
                wire::CONTROL_PACKET_NUMBERS + u64::from(config.first_packet.rotate_left(16)),
            ),
            drops: Drops::default(),
            stats: Stats::default(),
            failed: None,
            timers: TimerTable::default(),
            active: now,
            since: now,
            unproven: 0,
            keep_alive: None,
            config,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    /// Takes a work request in; its chunks come out of [`Connection::poll_chunk`]. The caller bounds how many it
    /// posts before they complete.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued.
    pub fn post(&mut self, request: impl Into<WorkRequest>) -> Result<(), PostError> {
        if self.failed.is_some() {
            return Err(PostError::Closed);
        }
        let request = request.into();
        request.check(&self.config.settings)?;
        let requests = self.receive.requests();
        if request.awaits_response() && requests.len() >= REQUESTS_MAX {
            return Err(PostError::TooManyRequests);
        }
        self.transmit.post(request, requests);
        Ok(())
    }

    /// Posts a buffer for a send of the peer; [`Event::Received`] names it when it is filled.
    ///
    /// # Errors
    /// [`PostError::Closed`].
    pub fn post_receive(&mut self, buffer: ReceiveBuffer) -> Result<(), PostError> {
        if self.failed.is_some() {
            return Err(PostError::Closed);
        }
        self.receive.post(buffer);
        Ok(())
    }

    /// From here on the peer may do no more than this to regions, whatever their own access says (verbs'
    /// `qp_access_flags`). At first it may do everything.
    pub fn set_access(&mut self, access: Access) {
        self.receive.set_access(access);
    }

    /// Whether the connection does not fail as long as the peer answers that it is not ready (verbs' `rnr_retry` 7). At first
    /// it fails after the stall timeout.
    pub fn set_waits_for_receiver(&mut self, waits: bool) {
        self.config.waits_for_receiver = waits;
    }

    /// Whether the connection goes on when the peer refuses a write, a read or an atomic for good, because of its key or its
    /// place: [`Event::Refused`] is its end then. At first the connection ends with it, and so it does on an in-order connection, and
    /// by a send.
    pub fn set_survives_refusals(&mut self, survives: bool) {
        self.config.survives_refusals = survives;
    }

    /// Sends of the peer that find no buffer posted take one of these. For an in-order connection.
    ///
    /// # Errors
    /// [`PostError::Closed`].
    pub fn share_receives(&mut self, shared: Arc<dyn SharedReceives>) -> Result<(), PostError> {
        if self.failed.is_some() {
            return Err(PostError::Closed);
        }
        self.receive.share(shared);
        Ok(())
    }

    /// The next chunk to send, of at most `room` bytes on the wire (headers included), if the
    /// window, the scoreboard and the paths let one through.
    pub fn poll_chunk(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        rng: &mut Rng,
        room: u32,
    ) -> Option<Chunk> {
        let departure = self.poll_departure(now, paths, rng, room)?;
        Some(self.chunk(now, &departure, rng))
    }

    /// What goes next; [`Connection::chunk`] makes a chunk of it.
    #[inline]
    pub(crate) fn poll_departure(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        rng: &mut Rng,
        room: u32,
    ) -> Option<Departure> {
        if self.keys.are_used_up() {
            // The peer has not followed to the next key for as long as this one may be used.
            self.fail(Failure::Stalled);
        }
        if self.failed.is_some() {
            return None;
        }
        let mut out = transmit::Out {
            settings: &self.config.settings,
            room,
            policy: &mut self.policy,
            congestion: &mut self.congestion,
            rng,
        };
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let departure = self
            .transmit
            .poll_departure(now, paths, &mut out, timers, stats);
        self.transmit.update_stall(now, paths, timers);
        if departure.is_some() {
            self.note_activity(now);
        }
        departure
    }

    #[inline(always)]
    pub(crate) fn chunk(&mut self, now: Time, departure: &Departure, rng: &mut Rng) -> Chunk {
        let (remote, keys, stats) = (self.config.remote, &mut self.keys, &mut self.stats);
        self.transmit
            .chunk(now, departure, remote, keys, rng, stats)
    }

    /// Something was sent or received: the connection is idle no sooner than [`IDLE_AFTER`] from now.
    fn note_activity(&mut self, now: Time) {
        self.active = now;
        if self.failed.is_none() && self.timers.get(Timer::Idle).is_none() {
            self.timers.set(Timer::Idle, now + IDLE_AFTER);
        }
    }

    /// Writes the next acknowledgement, refusal, revocation or its answer, credit, request to send or probe into `out`
    /// ([`wire::CONTROL_BYTES_MAX`] bytes).
    pub fn poll_control(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        rng: &mut Rng,
        out: &mut [u8],
    ) -> Option<ControlPacket> {
        if self.keys.are_used_up() {
            // The peer has not followed to the next key for as long as this one may be used.
            self.fail(Failure::Stalled);
        }
        if self.failed.is_some() {
            return None;
        }
        let packet = match self.write_control(now, paths, out) {
            Some(packet) => packet,
            None if self.grants.is_some() => self.write_credit(paths, out)?,
            None => return None,
        };
        self.controls.advance(1, rng);
        self.keys.count_sealed(1);
        Some(packet)
    }

    fn write_control(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        out: &mut [u8],
    ) -> Option<ControlPacket> {
        let (seal, remote, number) = (self.keys.seal(), self.config.remote, self.controls.next());
        let receive = &mut self.receive;
        if let Some(packet) = receive.poll_refusal(true, out, seal, remote, number) {
            return Some(packet);
        }
        if let Some(packet) = receive.poll_ack(now, out, seal, remote, number) {
            self.stats.acks_sent += 1;
            self.set_acknowledgement_timer();
            return Some(packet);
        }
        if let Some(packet) = receive.poll_refusal(false, out, seal, remote, number) {
            return Some(packet);
        }
        if receive.has_revocations()
            && let Some(packet) = receive.poll_revoked(out, seal, remote, number)
        {
            return Some(packet);
        }
        let timers = &mut self.timers;
        if self.transmit.is_revoking()
            && let Some((path, revoke)) = self.transmit.poll_revocation(now, paths, number, timers)
        {
            return Some(ControlPacket {
                path,
                owner: PathOwner::Local,
                bytes: revoke.emit(out, seal, path, remote, number),
            });
        }
        if !self.transmit.is_busy() {
            return None;
        }
        let probed = paths.poll_probe(now);
        let probed = probed.or_else(|| Some((self.policy.poll_probe()?, 0)));
        let probed = probed.or_else(|| Some((self.keep_alive.take()?, 0)));
        let (path, bytes) = probed?;
        self.stats.probes_sent += 1;
        let probe = wire::Probe {
            sent_at: now.to_wire(),
        };
        Some(ControlPacket {
            path,
            owner: PathOwner::Local,
            bytes: probe.emit(bytes.into(), out, seal, path, remote, number),
        })
    }

    /// Takes one received run in: every packet of it is checked, and its payload placed, before it
    /// may be acknowledged.
    ///
    /// # Errors
    /// The last packet's reason if any was dropped; all are counted in [`Connection::drops`].
    pub fn handle_packets(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        arrival: Arrival,
        run: Run<'_>,
        memory: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let Run { bytes, segment } = run;
        if bytes.is_empty() {
            self.drops.count(DropReason::Truncated);
            return Err(DropReason::Truncated);
        }
        let mut result = Ok(());
        let unacked = self.transmit.unacked_responses();
        self.receive.set_unacked_responses(unacked);
        let placed = self.stats.packets_placed;
        for packet in bytes.chunks_mut(segment.max(1)) {
            if let Err(reason) = self.handle_packet(now, paths, arrival, packet, memory) {
                self.count_drop(reason);
                result = Err(reason);
            }
        }
        let (events, stats) = (&mut self.events, &mut self.stats);
        self.receive.run_ended(now, arrival, events, stats);
        if self.receive.is_placing() {
            self.place_due(memory);
        }
        if let (Some(grants), Ok(())) = (&mut self.grants, result) {
            // Of packets that are sealed, so the path is one of the peer's.
            grants.note_path(arrival.path);
        }
        self.end_receiving(now, placed);
        result
    }

    /// Where messages are placed in order: places what has waited for its turn.
    #[cold]
    fn place_due(&mut self, memory: &mut impl Memory) {
        if self.failed.is_some() {
            return;
        }
        let mut reported = VecDeque::new();
        let domain = self.config.domain;
        self.receive.place_due(domain, memory, &mut reported);
        for event in reported {
            match event {
                // Of a read or an atomic, which may be answered before what was posted before it is complete.
                Event::Completed { token } => {
                    self.transmit.complete_request(token, &mut self.events);
                }
                event => self.events.push_back(event),
            }
        }
        if self.receive.lacks_place() {
            self.fail(Failure::NoPlace);
        }
    }

    #[cold]
    fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
        if self.receive.lacks_place() {
            self.fail(Failure::NoPlace);
        }
    }

    /// What one call has brought is taken in; so many packets were placed `before`.
    #[inline]
    fn end_receiving(&mut self, now: Time, before: u64) {
        self.serve_requests(now, before);
        self.set_acknowledgement_timer();
        self.note_activity(now);
    }

    /// Sends the responses to requests that have arrived. While one is waited for here, only a newly
    /// placed packet shows that the peer has not stalled (so many were placed `before`); repeated refusals do not.
    #[inline(always)]
    fn serve_requests(&mut self, now: Time, before: u64) {
        if self.failed.is_some() {
            return;
        }
        for response in self.receive.take_responses() {
            self.transmit.respond(response);
        }
        if !self.transmit.awaits_response() {
            return;
        }
        self.transmit.set_awaited(self.receive.requests().len());
        if self.stats.packets_placed > before && !self.transmit.is_refused() {
            let timeout = self.config.stall_timeout;
            self.transmit.restart_stall(timeout, &mut self.timers);
        }
        match self.transmit.awaits_response() {
            true => self.timers.set(Timer::KeepAlive, now + KEEP_ALIVE),
            false => self.timers.stop(Timer::KeepAlive),
        }
    }

    fn set_acknowledgement_timer(&mut self) {
        match self.receive.ack_due().filter(|_| self.failed.is_none()) {
            Some(due) => self.timers.set(Timer::Acknowledgement, due),
            None => self.timers.stop(Timer::Acknowledgement),
        }
    }

    fn handle_packet(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        arrival: Arrival,
        packet: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if self.failed.is_some() {
            return Err(DropReason::Closed);
        }
        let prefix = wire::Prefix::of(packet)?;
        let phase = prefix.phase();
        if self.receive.follows(packet) {
            let seal = self.keys.open_with(now, phase)?;
            let (domain, events) = (self.config.domain, &mut self.events);
            let stats = &mut self.stats;
            self.receive
                .handle_following(now, arrival, packet, seal, domain, memory, events, stats)?;
            self.keys.took(now, phase);
            return Ok(());
        }
        let kind = prefix.kind()?;
        if prefix.connection() != self.config.local {
            return Err(DropReason::UnknownConnection);
        }
        if u16::from(arrival.path.0) >= self.config.settings.paths {
            return Err(DropReason::Malformed);
        }
        let seal = self.keys.open_with(now, phase)?;
        match kind {
            Kind::Data | Kind::Send | Kind::Request | Kind::Response => {
                self.receive.handle_data(
                    now,
                    arrival,
                    packet,
                    seal,
                    self.config.domain,
                    memory,
                    &mut self.events,
                    &mut self.stats,
                )?;
            }
            Kind::Ack
            | Kind::Probe
            | Kind::Refusal
            | Kind::Revoke
            | Kind::Revoked
            | Kind::Credit
            | Kind::RequestToSend => {
                let control = wire::Control::open(seal, packet)?;
                // It may end the connection, after which nothing is reported.
                let (events, stats) = (&mut self.events, &mut self.stats);
                self.receive.mark_run(now, arrival, events, stats);
                self.handle_control(now, paths, arrival, &control)?;
            }
            Kind::Reset | Kind::Trimmed => return Err(DropReason::Kind),
        }
        self.keys.took(now, phase);
        Ok(())
    }

    /// A placement that was under way has ended: only now its packet is acknowledged, or refused. Answers whether it was
    /// one of this connection. A connection that is over only forgets it.
    pub fn placed(
        &mut self,
        now: Time,
        ticket: Ticket,
        result: Result<(), DropReason>,
        memory: &mut impl Memory,
    ) -> bool {
        let placed = self.stats.packets_placed;
        if self.receive.due_placed(ticket) {
            match result {
                Ok(()) => self.place_due(memory),
                // It was acknowledged, and nothing behind it may be placed.
                Err(_) => self.fail(Failure::NoPlace),
            }
            self.end_receiving(now, placed);
            return true;
        }
        let Some(ended) = self.receive.take_pending(ticket) else {
            return false;
        };
        if self.failed.is_some() {
            return true;
        }
        let (events, stats) = (&mut self.events, &mut self.stats);
        let result = self.receive.placed(now, &ended, result, events, stats);
        if let Err(reason) = result {
            self.count_drop(reason);
        }
        self.place_due(memory);
        self.end_receiving(now, placed);
        true
    }

    /// A link that writes payload into place asks where a packet's goes, once it has its header and trailer. What is
    /// offered a place is under way until [`Connection::placed`].
    pub fn offer(
        &mut self,
        now: Time,
        envelope: &Envelope,
        bytes: u32,
        memory: &mut impl Memory,
    ) -> Offer {
        match self.take_offer(now, envelope, bytes, memory) {
            Ok(offer) => offer,
            Err(reason) => {
                self.count_drop(reason);
                Offer::Discard
            }
        }
    }

    fn take_offer(
        &mut self,
        now: Time,
        envelope: &Envelope,
        bytes: u32,
        memory: &mut impl Memory,
    ) -> Result<Offer, DropReason> {
        if self.failed.is_some() {
            return Err(DropReason::Closed);
        }
        if self.config.settings.integrity == Integrity::Aead {
            // Nothing of it is authentic before all of it is there.
            return Ok(Offer::Whole);
        }
        let header = &DataHeader::read(&envelope.header)?;
        if header.connection != self.config.local {
            return Err(DropReason::UnknownConnection);
        }
        let phase = wire::Prefix::of(&envelope.header)?.phase();
        let crc = self.keys.open_with(now, phase)?.open_envelope(envelope)?;
        if u16::from(header.path.0) >= self.config.settings.paths {
            return Err(DropReason::Malformed);
        }
        let arrival = Arrival {
            path: header.path,
            ce: false,
        };
        let (events, stats) = (&mut self.events, &mut self.stats);
        let domain = self.config.domain;
        let placed = stats.packets_placed;
        let offer = self.receive.handle_offer(
            now, arrival, header, bytes, crc, domain, memory, events, stats,
        );
        self.end_receiving(now, placed);
        offer
    }

    /// Whether a packet with this header is here: placed, or on an in-order connection waiting for those before it.
    pub fn has(&self, header: &DataHeader) -> bool {
        self.receive.has(header)
    }

    /// Placements that are under way. While there are any, bytes still land, also of a connection that is
    /// over: a caller confirms its end, or saves it, when there are none.
    pub fn pending_placements(&self) -> usize {
        self.receive.pending()
    }

    fn handle_control(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        arrival: Arrival,
        control: &wire::Control<'_>,
    ) -> Result<(), DropReason> {
        self.receive.check_control(control.packet_number)?;
        match control.kind {
            Kind::Ack => {
                let ack = wire::AckReader::parse(control.body)?;
                self.stats.acks_received += 1;
                self.handle_ack(now, paths, &ack)
            }
            Kind::Probe => {
                let probe = wire::Probe::parse(control.body)?;
                let bytes = wire::PREFIX_BYTES + control.body.len() + wire::TRAILER_BYTES;
                let number = control.packet_number;
                self.receive
                    .handle_probe(now, arrival, bytes, number, probe);
                Ok(())
            }
            Kind::Refusal => {
                let refusal = wire::Refusal::parse(control.body)?;
                self.handle_refusal(now, refusal)
            }
            Kind::Revoke => {
                let revoke = wire::Revoke::parse(control.body)?;
                self.receive.handle_revoke(arrival.path, revoke)
            }
            Kind::Revoked => {
                let revoked = wire::Revoked::parse(control.body)?;
                self.handle_revoked(revoked);
                Ok(())
            }
            Kind::Credit if self.grants.is_some() => {
                let credit = wire::Credit::parse(control.body)?;
                self.handle_credit(credit);
                Ok(())
            }
            Kind::RequestToSend => {
                let arrived = self.arrivals();
                let grants = self.grants.as_mut().ok_or(DropReason::Kind)?;
                let request = wire::RequestToSend::parse(control.body)?;
                grants.handle_request(control.packet_number, request, arrived);
                Ok(())
            }
            _ => Err(DropReason::Kind),
        }
    }

    #[cold]
    fn handle_refusal(&mut self, now: Time, refusal: wire::Refusal) -> Result<(), DropReason> {
        let under_way = self.transmit.check_refusal(refusal.chunk)?;
        match refusal.refused {
            // Of a chunk that has arrived since: what was refused was a copy that was delayed somewhere.
            _ if !under_way => {}
            wire::Refused::Key => self.refuse(now, refusal.chunk, Failure::KeyRefused),
            wire::Refused::Bounds => self.refuse(now, refusal.chunk, Failure::BoundsRefused),
            wire::Refused::NotArmed => {
                let timers = &mut self.timers;
                if self.config.waits_for_receiver {
                    // It is there.
                    let timeout = self.config.stall_timeout;
                    self.transmit.restart_stall(timeout, timers);
                }
                self.transmit.handle_not_ready(now, refusal.chunk, timers);
            }
        }
        Ok(())
    }

    /// The peer has refused a chunk for good. On an in-order connection all that was posted before it completes first:
    /// until then the chunk waits, is sent again from time to time, and refused again. Responses that are still waited
    /// for when all else is complete never come if they are behind a chunk that this end has refused for good.
    fn refuse(&mut self, now: Time, chunk: ChunkNumber, failure: Failure) {
        let goes_on = self.config.survives_refusals && !self.config.in_order;
        if goes_on && self.transmit.end_refused(chunk, failure) {
            return;
        }
        let requests = self.receive.requests();
        let failed = self.transmit.refuse(chunk, failure, requests);
        let waits_in_vain = self.transmit.is_first(chunk) && self.receive.is_stuck();
        match failed.or(waits_in_vain.then_some(failure)) {
            Some(failure) => self.fail(failure),
            None => {
                let timers = &mut self.timers;
                self.transmit.handle_not_ready(now, chunk, timers);
            }
        }
    }

    /// As [`Endpoint::failed_request`](crate::endpoint::Endpoint::failed_request).
    pub(crate) fn failed_request(&self) -> Option<u64> {
        self.transmit.first_unreported()
    }

    /// The peer says that it does not know this connection. `token` proves that it is the peer.
    ///
    /// # Errors
    /// [`DropReason::Seal`] when the token is not the peer's.
    pub fn handle_reset(&mut self, token: u64) -> Result<(), DropReason> {
        if !self.config.reset_tokens.contains(&token) {
            self.drops.count(DropReason::Seal);
            return Err(DropReason::Seal);
        }
        self.fail(Failure::PeerRestarted);
        Ok(())
    }

    /// The peer has answered a newer connection from another life: it does not know this one any more.
    pub fn handle_peer_restart(&mut self) {
        self.fail(Failure::PeerRestarted);
    }

    /// Refuses the ends of messages that are to be reported, as if no region were armed, until called with `false`:
    /// its user has not taken the events that were reported. The peer tries again, less and less often.
    pub fn hold(&mut self, held: bool) {
        self.receive.hold(held);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends the connection at this end: nothing is sent or placed any more.
    pub fn close(&mut self) {
        self.failed.get_or_insert(Failure::Closed);
        self.timers = TimerTable::default();
    }

    /// The first failure counts: after its event, or after [`Connection::close`], there is no other.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.failed.is_none() {
            self.events.push_back(Event::Failed(failure));
            self.failed = Some(failure);
        }
        self.timers = TimerTable::default();
    }

    /// Whether [`Connection::poll_event`] has an event.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Why it ended, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.failed
    }

    /// What was dropped.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Chunks sent and not acknowledged, counted from the oldest.
    pub fn outstanding(&self) -> usize {
        self.transmit.outstanding()
    }

    /// Bytes in flight, headers included.
    pub fn in_flight(&self) -> u64 {
        self.transmit.in_flight().total()
    }

    /// The congestion window, bytes.
    pub fn window(&self) -> u64 {
        self.congestion.window()
    }

    /// Whether every write is complete and nothing waits to be sent.
    pub fn is_idle(&self) -> bool {
        !self.is_sending() && !self.has_pending_ack()
    }

    /// Whether a message is not complete, or a response to the peer is not acknowledged.
    pub fn is_sending(&self) -> bool {
        self.transmit.is_busy()
    }

    /// Reads that were cancelled and whose responses are not here whole: each is one of the
    /// [`REQUESTS_MAX`] that may be under way until then.
    pub fn cancelled_reads(&self) -> usize {
        self.receive.cancelled_reads()
    }

    /// Whether something has arrived that no acknowledgement was sent for.
    pub fn has_pending_ack(&self) -> bool {
        self.failed.is_none() && self.receive.ack_due().is_some()
    }

    /// Lets [`Connection::poll_control`] send what is owed now and not when it is due: for a caller that
    /// is about to sleep, and is woken later than it asks for.
    pub fn flush_ack(&mut self) {
        self.receive.flush_ack();
        self.set_acknowledgement_timer();
    }

    /// Heap memory that the connection occupies, bytes; without what the cipher of an encrypted one keeps for
    /// each key.
    pub fn heap_bytes(&self) -> usize {
        self.transmit.heap_bytes()
            + self.receive.heap_bytes()
            + self.congestion.heap_bytes()
            + self.events.capacity() * size_of::<Event>()
            + self.keys.heap_bytes()
    }

    /// The connection's name at this end.
    pub fn id(&self) -> ConnectionId {
        self.config.local
    }
}
