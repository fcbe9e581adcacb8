//! One connection between two NICs: writes go in, chunks come out; packets go in, acknowledgements
//! and events come out.
//!
//! Full duplex: each end may write to the other. The order of calls, per worker and turn:
//! [`Connection::handle_packets`] for everything that has arrived, then [`Connection::poll_event`],
//! [`Connection::handle_timeout`] when [`Connection::poll_timeout`] is due, then
//! [`Connection::poll_control`] and [`Connection::poll_chunk`] until they yield nothing. Receiving
//! comes before timers, so that an answer that lies in the socket is never overtaken by a timeout.
//! `now` never runs backwards within a connection.

use crate::congestion::{AckSample, Congestion, CongestionControl};
use crate::drops::{DropReason, Drops};
use crate::memory::{Memory, Ticket};
use crate::path::{PathPolicy, PathSample, PathSet, Policy};
use crate::recovery::ReceiveBoard;
use crate::units::{ConnectionId, Key, Nanos, OneWay, PathId, Rng, Time, WIRE_CLOCK_SHIFT};
use crate::wire::{self, Cipher, Kind};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

mod ack_request;
mod chunk;
mod config;
mod grants;
mod in_flight;
mod keys;
mod numbers;
mod pending_ack;

mod receive;
mod saved;
mod timer;
mod transmit;

pub use chunk::Chunk;
pub use config::{ConnectionConfig, Settings, SettingsError};
pub use grants::Claim;
pub use saved::RestoreError;

use grants::{Arrivals, Grants};
use keys::{Keys, SavedKeys};
use numbers::{NumberState, PacketNumbers};
use receive::Receive;
use timer::{Timer, TimerTable};
use transmit::Transmit;

/// A connection on which nothing was sent or received for this long gives back the memory of its boards and
/// queues. Long against the gaps in a tenant's traffic, so that work that goes on allocates nothing.
pub const IDLE_AFTER: Nanos = Nanos::from_secs(1);

/// A peer may bring something new without an echo so often in a row: after a restore, or where placing takes long.
/// One that acknowledges what it has not received cannot name its packets.
const UNPROVEN_MAX: u16 = 512;

/// A one-sided write to a region of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The caller's name for it: comes back in chunks and in the completion.
    pub token: u64,
    /// How many bytes; 0 is fine.
    pub bytes: u64,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region, bytes.
    pub offset: u64,
    /// Counts at the peer once all bytes are placed.
    pub immediate: Option<u32>,
}

/// Why a write was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The write needs more than 2^24 chunks, or its end overflows the offset.
    #[error("the write is too long for one message: split it")]
    TooLong,
    /// The connection has failed or was closed.
    #[error("the connection is closed: connect again")]
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Failure {
    /// Nothing was acknowledged for the stall timeout, on any path.
    #[error("the peer acknowledged nothing for the stall timeout, on any path")]
    Stalled,
    /// The peer does not know the connection: it was restarted.
    #[error("the peer does not know this connection: it was restarted; connect again")]
    PeerRestarted,
    /// Closed at this end.
    #[error("the connection was closed at this end")]
    Closed,
    /// The peer refused a write for good: its key.
    #[error(
        "the peer refused a write: no region of the connection's domain has its key, because it was \
         deregistered or the key is wrong"
    )]
    KeyRefused,
    /// The peer refused a write for good: its place.
    #[error("the peer refused a write: it does not lie within its region; check offset and length")]
    BoundsRefused,
    /// The peer refused a write for the stall timeout.
    #[error(
        "the peer's region was not armed for the stall timeout: its owner has not given the buffer back"
    )]
    NotArmed,
    /// The peer acknowledges what it has not received.
    #[error("the peer acknowledged packets that were never sent: it does not run this protocol")]
    AckOfUnsent,
    /// The peer has never granted credit.
    #[error(
        "the peer granted no credit for the stall timeout: its congestion control is another one; all nodes of a \
         fabric must have the same"
    )]
    NoCredit,
}

impl Failure {
    /// A stable label.
    pub const fn reason(self) -> &'static str {
        match self {
            Failure::Stalled => "Stalled",
            Failure::PeerRestarted => "PeerRestarted",
            Failure::Closed => "Closed",
            Failure::KeyRefused => "KeyRefused",
            Failure::BoundsRefused => "BoundsRefused",
            Failure::NotArmed => "NotArmed",
            Failure::AckOfUnsent => "AckOfUnsent",
            Failure::NoCredit => "NoCredit",
        }
    }
}

/// What the caller must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Every byte of a write was placed at the peer, and its immediate counted; where immediates go in
    /// order, it counts as soon as those before it have.
    Completed {
        /// As in [`Write::token`].
        token: u64,
    },
    /// A message of the peer with an immediate is here whole.
    Immediate {
        /// The immediate.
        value: u32,
        /// The key of the region that it went to.
        key: Key,
    },
    /// The connection is over. No event follows, nothing is placed any more.
    Failed(Failure),
}

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

/// Counters of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Chunks sent for the first time.
    pub chunks_sent: u64,
    /// Chunks of which something was sent again.
    pub chunks_resent: u64,
    /// Packets sent, resends included.
    pub packets_sent: u64,
    /// Packets sent again.
    pub packets_resent: u64,
    /// Payload bytes acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes placed.
    pub bytes_placed: u64,
    /// Packets placed.
    pub packets_placed: u64,
    /// Chunks of which only a part was lost.
    pub chunks_partly_lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Resends that were not needed.
    pub spurious: u64,
    /// Timers that were served so late that they were re-armed once.
    pub late_timers: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Acknowledgements received.
    pub acks_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Tail-loss probes sent: a packet of the newest chunk, sent again because nothing was heard.
    pub tail_probes: u64,
}

impl Stats {
    /// Adds another connection's counters to these.
    pub fn add(&mut self, other: &Stats) {
        // Taken apart whole, so that a new counter cannot be forgotten here.
        let Stats {
            chunks_sent,
            chunks_resent,
            packets_sent,
            packets_resent,
            bytes_acked,
            bytes_placed,
            packets_placed,
            chunks_partly_lost,
            timeouts,
            spurious,
            late_timers,
            acks_sent,
            acks_received,
            probes_sent,
            tail_probes,
        } = *other;
        self.chunks_sent += chunks_sent;
        self.chunks_resent += chunks_resent;
        self.packets_sent += packets_sent;
        self.packets_resent += packets_resent;
        self.bytes_acked += bytes_acked;
        self.bytes_placed += bytes_placed;
        self.packets_placed += packets_placed;
        self.chunks_partly_lost += chunks_partly_lost;
        self.timeouts += timeouts;
        self.spurious += spurious;
        self.late_timers += late_timers;
        self.acks_sent += acks_sent;
        self.acks_received += acks_received;
        self.probes_sent += probes_sent;
        self.tail_probes += tail_probes;
    }
}

/// One end of a connection. See the module's text for the order of calls.
#[derive(Debug)]
pub struct Connection {
    config: ConnectionConfig,
    keys: Keys,
    transmit: Transmit,
    receive: Receive,
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
}

/// What was known of an echo's path before its acknowledgement was taken in.
#[derive(Clone, Copy, Default)]
struct OnPath {
    /// Bytes of this connection.
    in_flight: u32,
    rtt: Option<Nanos>,
    /// The echo is a probe's answer.
    probe: bool,
}

impl OnPath {
    #[inline]
    fn sample(&self, echo: &wire::Echo, bytes: u32) -> PathSample {
        PathSample {
            path: echo.path,
            rtt: self.rtt,
            packets: echo.packets.into(),
            ce: echo.ce,
            bytes,
        }
    }
}

impl Connection {
    /// A connection on which nothing was sent. `cipher` encrypts it if its settings say so.
    pub fn new(config: ConnectionConfig, cipher: &'static dyn Cipher, now: Time) -> Connection {
        Connection {
            keys: config.keys(cipher, SavedKeys::default()),
            transmit: Transmit::new(&config),
            receive: Receive::new(ReceiveBoard::new(
                config.settings.window_chunks,
                config.receive_from,
                config.in_order,
            )),
            policy: config.policy.build(),
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
            config,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    /// Takes a write in; its chunks come out of [`Connection::poll_chunk`]. The caller bounds how many it posts
    /// before they complete.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued.
    pub fn post_write(&mut self, write: Write) -> Result<(), PostError> {
        if self.failed.is_some() {
            return Err(PostError::Closed);
        }
        self.transmit.post(write, &self.config.settings)
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
        if self.keys.are_used_up() {
            // The peer has not followed to the next key for as long as this one may be used.
            self.fail(Failure::Stalled);
        }
        if self.failed.is_some() {
            return None;
        }
        let mut out = transmit::Out {
            settings: &self.config.settings,
            remote: self.config.remote,
            keys: &mut self.keys,
            room,
            policy: &mut self.policy,
            congestion: &mut self.congestion,
            rng,
        };
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let chunk = self
            .transmit
            .poll_chunk(now, paths, &mut out, timers, stats);
        self.transmit.update_stall(now, paths, timers);
        if chunk.is_some() {
            self.note_activity(now);
        }
        chunk
    }

    /// Something was sent or received: the connection is idle no sooner than [`IDLE_AFTER`] from now.
    fn note_activity(&mut self, now: Time) {
        self.active = now;
        if self.failed.is_none() && self.timers.get(Timer::Idle).is_none() {
            self.timers.set(Timer::Idle, now + IDLE_AFTER);
        }
    }

    /// Writes the next acknowledgement, refusal, credit, request to send or probe into `out`
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
        if !self.transmit.is_busy() {
            return None;
        }
        let suspect = paths.poll_probe(now);
        let (path, bytes) = suspect.or_else(|| Some((self.policy.poll_probe()?, 0)))?;
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

    /// Writes the credit that the peer is owed, or the request for what this end lacks.
    #[inline(never)]
    fn write_credit(&mut self, paths: &PathSet, out: &mut [u8]) -> Option<ControlPacket> {
        let (seal, remote, number) = (self.keys.seal(), self.config.remote, self.controls.next());
        let grants = self.grants.as_mut()?;
        if let Some((path, bytes)) = grants.poll_credit(out, seal, remote, number) {
            return Some(ControlPacket {
                path,
                owner: PathOwner::Remote,
                bytes,
            });
        }
        if !self.transmit.is_busy() {
            return None;
        }
        let (packets, settings) = (self.transmit.next_number(), &self.config.settings);
        let backlog = |most| self.transmit.backlog(most, settings);
        let request = self.congestion.poll_request(packets, backlog)?;
        // Each on another path: one that carries nothing does not hold the next up.
        let path = paths.for_control(number);
        Some(ControlPacket {
            path,
            owner: PathOwner::Local,
            bytes: request.emit(out, seal, path, remote, number),
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
        for packet in bytes.chunks_mut(segment.max(1)) {
            if let Err(reason) = self.handle_packet(now, paths, arrival, packet, memory) {
                self.drops.count(reason);
                result = Err(reason);
            }
        }
        let (events, stats) = (&mut self.events, &mut self.stats);
        self.receive.run_ended(now, arrival, events, stats);
        if let (Some(grants), Ok(())) = (&mut self.grants, result) {
            // Of packets that are sealed, so the path is one of the peer's.
            grants.note_path(arrival.path);
        }
        self.set_acknowledgement_timer();
        self.note_activity(now);
        result
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
        // Taken apart at once: kept whole, the prefix is stored and loaded again in another width,
        // and every packet waits for that.
        let (kind, phase) = match wire::peek(packet) {
            Ok(peek) if peek.connection == self.config.local => (peek.kind, peek.phase),
            Ok(_) => return Err(DropReason::UnknownConnection),
            Err(reason) => return Err(reason),
        };
        if u16::from(arrival.path.0) >= self.config.settings.paths {
            return Err(DropReason::Malformed);
        }
        let seal = self.keys.open_with(now, phase)?;
        match kind {
            Kind::Data => self.receive.handle_data(
                now,
                arrival,
                packet,
                seal,
                self.config.domain,
                memory,
                &mut self.events,
                &mut self.stats,
            )?,
            Kind::Ack | Kind::Probe | Kind::Refusal | Kind::Credit | Kind::RequestToSend => {
                let control = wire::Control::open(seal, packet)?;
                // It may end the connection, after which nothing is reported.
                let (events, stats) = (&mut self.events, &mut self.stats);
                self.receive.mark_run(now, arrival, events, stats);
                self.handle_control(now, paths, arrival, &control)?;
            }
            Kind::Read
            | Kind::Reset
            | Kind::Revoke
            | Kind::Revoked
            | Kind::Send
            | Kind::Trimmed => return Err(DropReason::Kind),
        }
        self.keys.took(now, phase);
        Ok(())
    }

    /// A payload that [`Memory::place`] kept is placed, or its placement failed: only now the packet is
    /// acknowledged, or refused. Answers whether the ticket was of this connection. A connection that
    /// is over only forgets it.
    pub fn placed(&mut self, now: Time, ticket: Ticket, result: Result<(), DropReason>) -> bool {
        let Some(ended) = self.receive.end_pending(ticket) else {
            return false;
        };
        if self.failed.is_some() {
            return true;
        }
        let (events, stats) = (&mut self.events, &mut self.stats);
        let receive = &mut self.receive;
        if let Err(reason) = receive.handle_placed(now, &ended, result, events, stats) {
            self.drops.count(reason);
        }
        self.set_acknowledgement_timer();
        self.note_activity(now);
        true
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

    fn handle_refusal(&mut self, now: Time, refusal: wire::Refusal) -> Result<(), DropReason> {
        let under_way = self.transmit.check_refusal(refusal.chunk)?;
        match refusal.refused {
            // Of a chunk that has arrived since: what was refused was a copy that delay somewhere.
            _ if !under_way => {}
            wire::Refused::Key => self.fail(Failure::KeyRefused),
            wire::Refused::Bounds => self.fail(Failure::BoundsRefused),
            wire::Refused::NotArmed => {
                let timers = &mut self.timers;
                self.transmit.handle_not_ready(now, refusal.chunk, timers);
            }
        }
        Ok(())
    }

    /// Refuses echoes of packets that were never sent. Who names a number that was left out has not received what
    /// it acknowledges, and nor has who never names one.
    fn check_echoes(
        &mut self,
        paths: &mut PathSet,
        ack: &wire::AckReader<'_>,
    ) -> Result<(), DropReason> {
        let mut proven = false;
        for number in ack.echoed_numbers() {
            // Data's, or a probe's: the lower halves of both kinds may meet.
            let data = self.transmit.numbers().state_of(number);
            match data {
                NumberState::Sent => proven = true,
                NumberState::Skipped | NumberState::Unsent => {
                    match (data, self.controls.state_of(number)) {
                        (_, NumberState::Sent) => proven = true,
                        (NumberState::Unsent, NumberState::Unsent) => {
                            return Err(DropReason::AckOfUnsent);
                        }
                        _ => return self.fail_unproven(),
                    }
                }
            }
        }
        if proven {
            self.unproven = 0;
            paths.validate();
        } else if self.unproven >= UNPROVEN_MAX {
            return self.fail_unproven();
        }
        Ok(())
    }

    #[cold]
    fn fail_unproven(&mut self) -> Result<(), DropReason> {
        self.fail(Failure::AckOfUnsent);
        Err(DropReason::AckOfUnsent)
    }

    fn handle_credit(&mut self, credit: wire::Credit) {
        if !self.congestion.on_credit(credit.bytes) {
            return;
        }
        self.timers.stop(Timer::Credit);
        if self.transmit.outstanding() == 0 {
            // The peer is there, and others go first.
            let timeout = self.config.stall_timeout;
            self.transmit.restart_stall(timeout, &mut self.timers);
        }
    }

    fn arrivals(&self) -> Arrivals {
        Arrivals::new(&self.stats, self.receive.newest_packet())
    }

    /// Why the peer may be granted more credit, if it may: for the endpoint's pacer.
    pub fn credit_claim(&self) -> Option<Claim> {
        let grants = self.grants.as_ref().filter(|_| self.failed.is_none())?;
        grants.claim(self.arrivals())
    }

    /// Whether the peer wants more credit than was granted.
    pub fn is_credit_asked(&self) -> bool {
        self.grants.as_ref().is_some_and(Grants::is_asked)
    }

    /// Bytes granted to the peer that it has not used.
    pub fn unused_credit(&self) -> u64 {
        let grants = self.grants.as_ref();
        grants.map_or(0, |grants| grants.unused(self.arrivals()))
    }

    /// Grants the peer one quantum of credit; [`Connection::poll_control`] tells it.
    pub fn grant_credit(&mut self) {
        if let Some(grants) = &mut self.grants {
            grants.grant();
        }
    }

    fn handle_ack(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        ack: &wire::AckReader<'_>,
    ) -> Result<(), DropReason> {
        self.transmit.check_ack(ack)?;
        self.check_echoes(paths, ack)?;
        let mut sample = AckSample {
            in_flight: self.transmit.in_flight().total(),
            ..Default::default()
        };
        let since = self.since;
        let mut before = [OnPath::default(); wire::ACK_ECHOES_MAX];
        let mut heard = false;
        for (echo, before) in ack.echoes().zip(&mut before) {
            if !paths.contains(echo.path) {
                continue;
            }
            let age = now.since_wire(echo.sent_at);
            let delay = Nanos::new(u64::from(echo.delay) << WIRE_CLOCK_SHIFT);
            let known = age <= now - since && delay <= age;
            let rtt = known.then(|| paths.bounded(echo.path, Nanos::new(age.get() - delay.get())));
            let in_flight = self.transmit.in_flight().on(echo.path);
            // A probe's answer tells the path, and its policy, how the path is. It tells nothing of the queues that
            // this connection's window fills: from an idle path it would hide them, from a path that others fill it
            // would shrink the window for what this connection does not add to. It is known by its number: that
            // nothing is in flight on the path does not make it one. Data is answered then, too, when its chunk was
            // acknowledged by an acknowledgement that overtook this one or had no room for this echo, when it was
            // declared lost and was only late, or when it was a tail-loss probe; and its round trip counts, for it
            // was in the queues that this connection has filled.
            let probe = self.transmit.numbers().state_of(echo.number) == NumberState::Unsent;
            *before = OnPath {
                in_flight,
                rtt,
                probe,
            };
            paths.on_answer(now, &before.sample(&echo, 0), echo.largest);
            heard |= rtt.is_some();
            if probe {
                continue;
            }
            sample.packets += u64::from(echo.packets);
            sample.ce += u64::from(echo.ce);
            if let Some(rtt) = rtt {
                let arrived = ack.sent_at().wrapping_sub(echo.delay);
                let one_way = OneWay::new(echo.sent_at, arrived);
                sample.rtt = Some(sample.rtt.map_or(rtt, |lowest| lowest.min(rtt)));
                sample.one_way = Some(sample.one_way.map_or(one_way, |lowest| lowest.min(one_way)));
            }
        }
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let out = self
            .transmit
            .handle_ack(now, ack, paths, &mut self.events, stats);
        let new = out.bytes > 0;
        if new && ack.echoed_numbers().next().is_none() {
            self.unproven = self.unproven.saturating_add(1);
        }
        if new || heard {
            self.transmit.end_backoff(paths, timers);
        }
        for (echo, before) in ack.echoes().zip(before) {
            if !paths.contains(echo.path) {
                continue;
            }
            let in_flight = self.transmit.in_flight();
            let view = paths.view(now, in_flight.by_path());
            let gone = before.in_flight.saturating_sub(in_flight.on(echo.path));
            let on_path = before.sample(&echo, gone);
            if before.in_flight == 0 {
                self.policy.on_probe_answer(&view, &on_path);
            } else {
                self.policy.on_ack(&view, &on_path);
            }
            if !before.probe {
                self.congestion
                    .on_path_sample(now, &on_path, sample.in_flight);
            }
        }
        sample.bytes = out.bytes;
        self.congestion.on_ack(now, &sample);
        if out.spurious {
            self.congestion.on_spurious_timeout(now);
        }
        let policy = &mut self.policy;
        let lost = out.packets_lost
            + self
                .transmit
                .detect_losses(now, paths, policy, timers, stats);
        if lost > 0 {
            self.congestion.on_loss(now, lost);
        }
        self.transmit.reset_timers(now, new, paths, timers);
        if new {
            let timeout = self.config.stall_timeout;
            self.transmit.restart_stall(timeout, timers);
        }
        self.transmit.update_stall(now, paths, timers);
        Ok(())
    }

    /// The peer says that it does not know this connection. `token` proves that it is the peer.
    ///
    /// # Errors
    /// [`DropReason::Seal`] when the token is not the peer's.
    pub fn handle_reset(&mut self, token: u64) -> Result<(), DropReason> {
        if token != self.config.reset_token {
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

    /// Serves the timers that are due.
    pub fn handle_timeout(&mut self, now: Time, paths: &mut PathSet) {
        for timer in Timer::ALL {
            if self.timers.take_expired(timer, now) {
                self.serve(timer, now, paths);
            }
        }
        if self.failed.is_none() {
            self.transmit.update_stall(now, paths, &mut self.timers);
        }
    }

    fn serve(&mut self, timer: Timer, now: Time, paths: &mut PathSet) {
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let policy = &mut self.policy;
        match timer {
            Timer::Stall if self.transmit.is_refused() => self.fail(Failure::NotArmed),
            Timer::Stall
                if timers.get(Timer::Credit).is_some()
                    && !self.congestion.was_granted()
                    && stats.acks_received > 0 =>
            {
                self.fail(Failure::NoCredit);
            }
            Timer::Stall => self.fail(Failure::Stalled),
            Timer::Loss => {
                let lost = self
                    .transmit
                    .detect_losses(now, paths, policy, timers, stats);
                if lost > 0 {
                    self.congestion.on_loss(now, lost);
                }
            }
            Timer::Retransmission => {
                let timeout = self
                    .transmit
                    .handle_retransmission(now, paths, policy, timers, stats);
                // First of the silence: what it takes is given back if it was spurious, and with it what the
                // losses would take.
                if timeout.silence {
                    self.congestion.on_timeout(now);
                }
                if timeout.packets_lost > 0 {
                    self.congestion.on_loss(now, timeout.packets_lost);
                }
            }
            Timer::TailProbe => self.transmit.handle_tail_probe(),
            Timer::ReceiverNotReady => self.transmit.ask_receiver(),
            Timer::Credit if !self.transmit.is_busy() => {}
            Timer::Credit => {
                self.congestion.on_credit_timeout();
                timers.set(Timer::Credit, now + self.congestion.credit_wait());
            }
            // The caller asks for a chunk after each call.
            Timer::Pacing => {}
            Timer::Acknowledgement => self.flush_ack(),
            Timer::Idle => self.handle_idle(now),
        }
    }

    fn handle_idle(&mut self, now: Time) {
        let due = self.active + IDLE_AFTER;
        if due > now {
            self.timers.set(Timer::Idle, due);
            return;
        }
        self.transmit.shrink();
        self.receive.shrink();
        self.events.shrink_to_fit();
    }

    /// Refuses the ends of messages that are to be reported, as if no region were armed, until called with `false`:
    /// its user has not taken the events that were reported. The peer tries again, less and less often.
    pub fn hold(&mut self, held: bool) {
        self.receive.hold(held);
    }

    /// When [`Connection::handle_timeout`] (or, for a probe or an acknowledgement,
    /// [`Connection::poll_control`]) has something to do next.
    pub fn poll_timeout(&self, paths: &PathSet) -> Option<Time> {
        let timer = self.timers.next();
        if self.failed.is_some() || !self.transmit.is_busy() {
            return timer;
        }
        let probe = paths.poll_timeout();
        timer.into_iter().chain(probe).min()
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
    fn fail(&mut self, failure: Failure) {
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
        !self.transmit.is_busy() && !self.has_pending_ack()
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
