//! A worker of one NIC queue. It owns a link and an endpoint and moves packets between them; the endpoint decides
//! everything. Its thread runs it, or the caller who polls, or for a moment a caller who posts.

mod incoming;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crossbeam_channel::Receiver;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{
    CancelError, ChunkSource, Connection, Event, Failure, PathOwner, RestoreError,
};
use weft_core::drops::{DropReason, Drops};
use weft_core::endpoint::{
    Endpoint, EndpointConfig, PendingReset, Remote, SavedConnection as SavedState, Transmit,
};
use weft_core::memory::{Access, Memory, Place};
use weft_core::units::{ChunkNumber, ConnectionId, Nanos, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, Reset};
use weft_link::{
    AnyLink, Destination, Link, LinkAddress, PathChange, PathCondition, Poller, Refusal, Sent,
    SocketBuffers,
};
use weft_memory::{Region, TableReader};

use crate::clock::{Clock, thread_cpu};
use crate::command::{Command, Outgoing, Queue};
use crate::config::{EgressReport, EngineConfig};
use crate::doze::Doze;
use crate::ends::RemoteEnd;
use crate::error::EngineError;
use crate::identity::{ResetKeys, reset_token};
use crate::parts::Parts;
use crate::peer::PeerNic;
use crate::post::{ChunkBuffer, Payload};
use crate::saved::SavedConnection;
use crate::snapshot::{ConnectionSnapshot, PeerSnapshot, Snapshot};
use crate::users::Users;
use incoming::Incoming;

/// Commands served in one turn at most, so that receiving never waits long.
const COMMANDS_PER_TURN: usize = 256;

/// Receive calls in one turn at most: as many as there are ports, 8 runs of 64 KiB each.
const BATCHES_PER_TURN: usize = 16;

/// Chunks sent in one turn at most: some 80 µs, the time that an arrived packet waits for.
const CHUNKS_PER_TURN: u32 = 8;

/// Chunks sent by a thread that posts, at most: its own, and one that lay in the queue.
const CHUNKS_PER_POST: u32 = 2;

/// A longer message is left to the worker's thread. If the caller sent it, that thread would fall asleep before the
/// answer comes.
pub(crate) const SENT_BY_CALLER_BYTES_MAX: u64 = 8 << 10;

/// A worker's thread that finds a caller sending yields so often before it waits.
const YIELDS_MAX: usize = 64;

/// The floor of the retransmission timeout over a reliable link: the kernel resends, or nothing is lost, and the link says when a
/// connection is broken.
/// What else may be lost is what a peer drops by mistake.
const RELIABLE_RTO_MIN: Nanos = Nanos::from_secs(2);

/// While a port is readable the others are asked for in every so many turns.
const TURNS_WITHOUT_POLL_MAX: u32 = 4;

/// A link that shows what arrives by itself is asked what has become of its connections in every so many turns.
const TURNS_WITHOUT_POLL_OF_MEMORY_MAX: u32 = 256;

/// A link whose receive calls failed may hold something that the poller has told of already: it is tried
/// again after this.
const RETRY_AFTER: Nanos = Nanos::from_millis(1);

/// One run-to-completion loop.
pub(crate) struct Worker {
    index: usize,
    spin: Nanos,
    /// In what is sent.
    dscp: u8,
    clock: Clock,
    link: AnyLink,
    poller: Poller,
    doze: Arc<Doze>,
    commands: Receiver<Command>,
    endpoint: Endpoint<PeerNic>,
    users: Users,
    regions: TableReader<Region>,
    /// One packet's payload, out of its place, to be checked.
    scratch: Box<[u8]>,
    chunk: ChunkBuffer,
    reset_keys: ResetKeys,
    control: Box<[u8; CONTROL_BYTES_MAX]>,
    /// The time of the last look at the clock: a turn with nothing to do reads it once.
    now: Time,
    turns_without_poll: u32,
    /// The last call of the inline worker may have left something to send.
    has_work: bool,
    /// Messages without bytes whose key opened nothing.
    drops: Drops,
    /// The kernel refused a packet as too big, and it was logged.
    logged_too_big: bool,
    stopped: bool,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        config: &EngineConfig,
        reset_keys: ResetKeys,
        seed: u64,
        regions: TableReader<Region>,
        commands: Receiver<Command>,
    ) -> Result<Self, EngineError> {
        let workers = config.workers() as u16;
        let mut link = AnyLink::open(config.link(index))?;
        let wanted = SocketBuffers::default();
        if let Some(granted) = link.granted_buffers()
            && granted.receive < wanted.receive
        {
            tracing::warn!(
                granted = granted.receive,
                wanted = wanted.receive,
                "small socket buffers: grant CAP_NET_ADMIN or raise net.core.rmem_max and wmem_max"
            );
        }
        let failed =
            |call: &'static str| move |source: io::Error| EngineError::System { call, source };
        let poller = Poller::new(&mut link).map_err(failed("epoll_create"))?;
        let waiter = poller.waiter().map_err(failed("dup"))?;
        let doze = Doze::new(waiter, poller.waker().map_err(failed("eventfd"))?);
        let clock = Clock;
        let now = clock.now();
        let reliable = link.capabilities().reliable;
        let (congestion, rto_min) = match reliable {
            // The kernel controls congestion, or the room in memory does.
            true => {
                let bytes = u32::MAX;
                let rto_min = config.rto_min.max(RELIABLE_RTO_MIN);
                (CongestionKind::Fixed { bytes }, rto_min)
            }
            false => (config.congestion, config.rto_min),
        };
        let endpoint = Endpoint::new(
            EndpointConfig {
                settings: config.settings(),
                policy: config.policy,
                congestion,
                rto_min,
                stall_timeout: config.stall_timeout,
                first_chunk: ChunkNumber(0),
                peers_validated: false,
                reliable,
                rate_cap_bps: config.egress.cap_bps.map(|bps| bps / u64::from(workers)),
                link_header_bytes: link.address().header_bytes().into(),
                link_segment_bytes: link.address().segment_bytes(config.mtu),
                cipher: &weft_crypto::AES_128_GCM,
                seed,
            },
            now,
        );
        Ok(Self {
            index,
            spin: config.spin,
            dscp: config.egress.dscp,
            clock,
            link,
            poller,
            doze: Arc::new(doze),
            regions,
            scratch: vec![0; usize::from(config.datagram_bytes())].into(),
            chunk: ChunkBuffer::default(),
            commands,
            endpoint,
            users: Users::default(),
            reset_keys,
            control: Box::new([0; CONTROL_BYTES_MAX]),
            now,
            turns_without_poll: 0,
            has_work: true,
            drops: Drops::default(),
            logged_too_big: false,
            stopped: false,
        })
    }

    /// The queues of all workers of the engine, before any of them runs.
    pub(crate) fn join(&mut self, queues: Arc<[Queue]>) {
        self.users.join(queues);
    }

    pub(crate) fn doze(&self) -> Arc<Doze> {
        Arc::clone(&self.doze)
    }

    /// The thread's body. The lock is free while the thread waits and between two turns: then a caller may send what
    /// it posts itself.
    pub(crate) fn run(worker: &Mutex<Self>) {
        let (doze, guard) = {
            let worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            (worker.doze(), worker.abort_on_panic())
        };
        let mut idle_since: Option<Time> = None;
        loop {
            let mut awake = lock(worker, &doze);
            let turn = awake.turn();
            if awake.stopped {
                break;
            }
            let result = match turn {
                Ok(true) => {
                    idle_since = None;
                    continue;
                }
                Ok(false) => {
                    let now = awake.now;
                    if now - *idle_since.get_or_insert(now) < awake.spin {
                        drop(awake);
                        // The user of the last event may wait for this core.
                        std::thread::yield_now();
                        continue;
                    }
                    idle_since = None;
                    let Some(timeout) = awake.before_sleep(None) else {
                        continue;
                    };
                    drop(awake);
                    doze.wait(timeout)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                // Without readiness a worker can only hang in silence.
                panic!("waiting for the link failed: {error}");
            }
        }
        drop(guard);
    }

    fn abort_on_panic(&self) -> AbortOnPanic {
        AbortOnPanic {
            worker: self.index,
            address: self.link.address(),
        }
    }

    /// Whether a caller may send what it posts itself: nothing is to be done before it.
    pub(crate) fn takes_posts(&self) -> bool {
        // A Reset must wait for the commands that come before it.
        self.commands.is_empty() && !self.endpoint.has_resets() && self.link.can_send()
    }

    /// Posts a work request and sends it at once, on the thread that posts it: a small message waits for no other
    /// thread. The caller has asked [`Worker::takes_posts`] under the same lock.
    pub(crate) fn post_now(&mut self, id: ConnectionId, post: Outgoing) {
        let guard = self.abort_on_panic();
        self.now = self.clock.now();
        self.users.post(id, post, &mut self.endpoint);
        self.transmit(false, CHUNKS_PER_POST);
        if self.spin > Nanos::ZERO {
            // Now it is worth while to poll: the answer may be here soon.
            self.doze.wake();
        } else {
            let due = self.due();
            self.doze.wake_by(due);
        }
        drop(guard);
    }

    /// The inline worker: sends what the caller has asked for and what the last call has left to send, receives,
    /// and when there was nothing to do, receives once more after waiting for at most `wait`. When there is an
    /// event the caller has it at once, and what has arrived is acknowledged in the next call: the answer to a
    /// message leaves first.
    pub(crate) fn poll(&mut self, wait: Duration) -> io::Result<bool> {
        self.now = self.clock.now();
        // With nothing asked for and nothing left the second call sends what is due.
        let has_work = std::mem::replace(&mut self.has_work, false) || !self.commands.is_empty();
        let mut busy = has_work && self.send(false);
        busy |= self.receive()?;
        let mut reported = self.report();
        if !busy && !reported && !wait.is_zero() {
            if let Some(timeout) = self.before_sleep(Some(wait)) {
                self.doze.wait(timeout)?;
            }
            busy = self.receive()?;
            reported = self.report();
        }
        if reported {
            self.has_work = true;
            return Ok(true);
        }
        let sent = self.send(!self.link.is_readable());
        // Only the caller knows when the next call comes.
        if self.endpoint.flush_acks() {
            self.send(false);
        }
        // What one turn may not send the next one does.
        self.has_work = sent;
        Ok(busy | sent)
    }

    /// Serves all commands, and reports. Answers whether there was an event.
    pub(crate) fn settle(&mut self) -> bool {
        while self.serve_commands() {}
        self.report()
    }

    /// Ends the inline worker: its open connections, and what is under way on them. What has happened on them so far is
    /// reported.
    pub(crate) fn save(mut self) -> Vec<SavedConnection> {
        self.settle();
        // What is not saved is not sent again by its peer, where it has come.
        if self.endpoint.flush_acks() {
            self.send(false);
        }
        let mut posts = self.users.save();
        let saved = self.endpoint.save();
        let saved = saved.expect("every packet is placed when it is received");
        let saved = saved.into_iter().map(|saved| SavedConnection {
            id: saved.id,
            owner: saved.peer.owner,
            address: saved.peer.address,
            peer_incarnation: saved.generation,
            state: saved.state,
            posts: posts.remove(&saved.id).unwrap_or_default(),
        });
        saved.collect()
    }

    /// Takes a connection over, whose user is told by `parts`.
    pub(crate) fn restore(
        &mut self,
        saved: SavedConnection,
        parts: Arc<Parts>,
    ) -> Result<(), EngineError> {
        let SavedConnection { id, posts, .. } = saved;
        let peer = PeerNic {
            owner: saved.owner,
            here: self.link.address(),
            address: saved.address,
            route: self.link.peer(&saved.address)?,
        };
        let saved = SavedState {
            id,
            peer,
            generation: saved.peer_incarnation,
            state: saved.state,
        };
        let restored = self.endpoint.restore(self.clock.now(), saved);
        let restored = restored.map_err(|source| EngineError::NotRestored { id, source })?;
        self.users.add(id, parts);
        let mut posts = posts.into_iter();
        if restored == id && posts.all(|post| self.users.restore(id, post)) {
            let connection = self.endpoint.connection(id);
            let cancelled = connection.map_or(0, Connection::cancelled_reads);
            self.users.restore_cancelled(id, cancelled);
            return Ok(());
        }
        self.endpoint.close(restored);
        self.users.forget(id);
        let text = "it has another id, or a work request has no place".to_owned();
        let source = RestoreError::Damaged(text);
        Err(EngineError::NotRestored { id, source })
    }

    /// Has each write to an eventfd wake the worker, or no longer.
    pub(crate) fn set_waker(&self, eventfd: BorrowedFd<'_>, is_added: bool) -> io::Result<()> {
        match is_added {
            true => self.poller.add_waker(eventfd),
            false => self.poller.remove_waker(eventfd),
        }
    }

    /// One turn: what has arrived, events, commands, timers, what there is to send. Answers whether anything
    /// was done.
    fn turn(&mut self) -> io::Result<bool> {
        self.now = self.clock.now();
        let mut busy = self.receive()?;
        busy |= self.report();
        busy |= self.send(!self.link.is_readable());
        Ok(busy)
    }

    /// Serves commands. A Reset would end what has only begun, so before one is sent, every command in the queue is
    /// served.
    fn serve_commands(&mut self) -> bool {
        // Cheaper than a look at the queue that takes out what there is.
        if self.commands.is_empty() {
            return false;
        }
        let most = match self.endpoint.has_resets() {
            true => self.commands.len(),
            false => COMMANDS_PER_TURN,
        };
        let mut served = false;
        for _ in 0..most {
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            served = true;
            match command {
                Command::Allocate { id, local } => self.endpoint.allocate(id, local),
                Command::Connect { id, remote, parts } => {
                    if self.users.add(id, parts) {
                        self.connect(id, *remote);
                    }
                }
                Command::Post { id, post } => self.users.post(id, post, &mut self.endpoint),
                Command::Cancel {
                    id,
                    context,
                    answer,
                } => {
                    // Who asked may have gone.
                    let _ = answer.send(self.cancel(id, context));
                }
                Command::Receive { id, buffer } => {
                    // A connection that failed meanwhile has told its user.
                    let _ = self.endpoint.post_receive(id, buffer);
                }
                Command::SetAccess { id, access } => {
                    // As before.
                    let _ = self.endpoint.set_access(id, access);
                }
                Command::SetWaitsForReceiver { id, waits } => {
                    // As before.
                    let _ = self.endpoint.set_waits_for_receiver(id, waits);
                }
                Command::SetSurvivesRefusals { id, survives } => {
                    // As before.
                    let _ = self.endpoint.set_survives_refusals(id, survives);
                }
                Command::ShareReceives { id, shared } => {
                    // As before.
                    let _ = self.endpoint.share_receives(id, shared);
                }
                Command::End { id } => {
                    let landing = self.endpoint.close(id);
                    self.users.landing(id, landing);
                    self.users.end(id);
                }
                Command::Close { id } => {
                    let landing = self.endpoint.close(id);
                    self.users.landing(id, landing);
                    self.users.close(id);
                }
                Command::Egress { dscp, cap_bps } => {
                    self.endpoint.set_rate_cap(self.clock.now(), cap_bps);
                    if std::mem::replace(&mut self.dscp, dscp) != dscp
                        && let Err(error) = self.link.set_dscp(dscp)
                    {
                        tracing::error!("packets keep their code point: {error}");
                    }
                }
                Command::Snapshot { answer } => {
                    // Who asked may have gone.
                    let _ = answer.send(self.snapshot());
                }
                Command::Stop => self.stopped = true,
            }
        }
        served
    }

    /// Cancels what was posted before on a connection with this context.
    fn cancel(&mut self, id: ConnectionId, context: u64) -> Result<(), CancelError> {
        self.users.cancel(id, context, &mut self.endpoint)
    }

    /// The same for the caller of an inline worker: what was asked of it before comes first.
    pub(crate) fn cancel_now(&mut self, id: ConnectionId, context: u64) -> Result<(), CancelError> {
        while self.serve_commands() {}
        self.cancel(id, context)
    }

    fn connect(&mut self, id: ConnectionId, remote: RemoteEnd) {
        let Ok(route) = self.link.peer(&remote.address) else {
            // The handle has checked the address.
            return;
        };
        let here = self.link.address();
        let tokens = here.hosts().map(|host| reset_token(remote.reset_key, host));
        let access = remote.access;
        let remote = Remote {
            generation: remote.incarnation,
            id: remote.id,
            send_secret: remote.send_secret,
            reset_tokens: tokens.collect(),
            peer: PeerNic {
                owner: remote.owner,
                here,
                address: remote.address,
                route,
            },
        };
        self.endpoint.connect(self.clock.now(), id, remote);
        // It is open now.
        let _ = self.endpoint.set_access(id, access);
    }

    /// Takes in what has arrived. Answers whether anything has.
    fn receive(&mut self) -> io::Result<bool> {
        self.users.release(&mut self.endpoint);
        self.turns_without_poll += 1;
        let polls = match self.link.shows_arrivals() {
            true => self.turns_without_poll >= TURNS_WITHOUT_POLL_OF_MEMORY_MAX,
            false => !self.link.is_readable() || self.turns_without_poll >= TURNS_WITHOUT_POLL_MAX,
        };
        if polls {
            self.turns_without_poll = 0;
            self.poller.poll(&mut self.link)?;
        }
        if !self.link.is_readable() {
            return Ok(false);
        }
        let mut incoming = Incoming {
            now: self.now,
            endpoint: &mut self.endpoint,
            memory: self.regions.enter(),
            scratch: &mut self.scratch,
        };
        let mut busy = false;
        for _ in 0..BATCHES_PER_TURN {
            if !self.link.is_readable() {
                break;
            }
            busy |= self.link.receive(&mut incoming) > 0;
        }
        // Nothing is placed from here on: who deregisters a region waits no longer.
        drop(incoming);
        if busy {
            self.now = self.clock.now();
        }
        Ok(busy)
    }

    /// Serves commands, then the timers when everything that has arrived was taken in (`drained`), and sends.
    /// Answers whether it did any of it.
    fn send(&mut self, drained: bool) -> bool {
        let mut busy = self.serve_commands();
        busy |= self.link.flush(self.now);
        busy |= self.update_paths();
        busy | self.transmit(drained, CHUNKS_PER_TURN)
    }

    /// Sends what the endpoint has, `chunks` chunks at most. Answers whether there was anything.
    fn transmit(&mut self, drained: bool, chunks: u32) -> bool {
        let mut busy = false;
        let chunks = if self.link.can_send() { chunks } else { 0 };
        let mut sending = self.endpoint.send(self.now, drained, chunks);
        let (mut refused, mut failed) = (None, Vec::new());
        while let Some(transmit) = sending.poll_transmit(self.now, &mut self.control) {
            busy = true;
            match transmit {
                Transmit::Control {
                    peer,
                    path,
                    owner,
                    bytes,
                } => {
                    let to = match owner {
                        PathOwner::Local => Destination::Path(&peer.route, path),
                        PathOwner::Remote => Destination::Reverse(&peer.route, path),
                    };
                    self.link.send_control(to, &self.control[..bytes]);
                }
                Transmit::Reset(reset) => {
                    let datagram = seal_reset(&self.reset_keys, reset);
                    self.link
                        .send_control(Destination::Source(reset.to), &datagram);
                }
                Transmit::Chunk {
                    connection,
                    peer,
                    chunk,
                } => {
                    let payload = match &chunk.source {
                        ChunkSource::Posted { token } => match self.users.pieces(*token) {
                            Some(pieces) if pieces.reads_may_fail() => {
                                self.chunk.read_pieces(pieces, &chunk)
                            }
                            Some(pieces) => Ok(Payload::Pieces(pieces)),
                            None => Err(DropReason::Closed),
                        },
                        ChunkSource::Inline(bytes) => Ok(Payload::Bytes(bytes)),
                        ChunkSource::Region(place) => {
                            let entered = self.regions.enter();
                            self.chunk.read_region(place, &chunk, &entered)
                        }
                    };
                    let payload = match payload {
                        Ok(payload) => payload,
                        // The message has ended, or its region is with its owner: then the chunk is sent again.
                        Err(DropReason::Closed | DropReason::NotArmed) => continue,
                        Err(_) => {
                            let failure = match chunk.source {
                                ChunkSource::Region(_) => Failure::SourceClosed,
                                _ => Failure::SourceUnreadable,
                            };
                            failed.push((connection, chunk, failure));
                            continue;
                        }
                    };
                    let seal = |i, room: &mut [u8]| {
                        let sealed = payload.seal(&chunk, i, room);
                        sealed.expect(
                            "the handle has checked that the message lies within its pieces",
                        )
                    };
                    let (path, packets) = (chunk.path, chunk.packets());
                    let sent = self
                        .link
                        .send_chunk(self.now, &peer.route, path, packets, seal);
                    self.now = self.clock.now();
                    match sent {
                        Sent::Whole => {}
                        Sent::Kept => break,
                        Sent::Dropped(refusal) => refused = Some(refusal),
                    }
                }
            }
        }
        drop(sending);
        for (connection, chunk, failure) in failed {
            self.endpoint.fail_chunk(connection, &chunk, failure);
        }
        self.link.send_gathered();
        self.update_paths();
        self.report();
        if refused == Some(Refusal::TooBig) && !std::mem::replace(&mut self.logged_too_big, true) {
            tracing::error!(
                packet_bytes = self.link.capabilities().packet_bytes,
                "the device's MTU has become smaller than the engine's mtu: raise it or lower mtu"
            );
        }
        busy
    }

    /// Tells the endpoint what has become of paths. Answers whether anything has.
    fn update_paths(&mut self) -> bool {
        let mut any = false;
        while let Some(change) = self.link.poll_path() {
            any = true;
            let PathChange {
                to,
                path,
                condition,
            } = change;
            let is_peer = |peer: &PeerNic| peer.address == to;
            let is_blocked = matches!(condition, PathCondition::Blocked | PathCondition::Broken);
            self.endpoint
                .set_path_blocked(self.now, is_peer, path, is_blocked);
            if matches!(
                condition,
                PathCondition::Broken | PathCondition::Unreachable
            ) {
                tracing::debug!(address = %to, path = path.0, ?condition, "what is under way on a path is lost");
                self.endpoint.break_path(self.now, is_peer, path);
            }
        }
        any
    }

    /// Hands events to the users, before what has arrived is acknowledged: nobody waits for that as the users
    /// wait for the events. Answers whether there was any.
    fn report(&mut self) -> bool {
        let mut reported = false;
        while let Some((id, event)) = self.endpoint.poll_event() {
            // A message without bytes was never looked up: its key may open nothing.
            if let Event::Immediate { key, .. } = event
                && key != crate::SIGNAL
                && let Some(connection) = self.endpoint.connection(id)
            {
                let domain = connection.config().domain;
                let place = Place {
                    domain,
                    key,
                    offset: 0,
                    bytes: 0,
                };
                let opened = self.regions.enter().check(&place, Access::WRITE);
                if let Err(reason) = opened
                    && reason != DropReason::NotArmed
                {
                    self.drops.count(reason);
                    continue;
                }
            }
            self.users.report(id, event, &mut self.endpoint);
            reported = true;
        }
        self.users.count_answered(&self.endpoint);
        reported
    }

    /// Makes ready to sleep until the link, a command or a timer has something, for at most `limit`. Answers for how
    /// long, or `None` when there is something to do.
    fn before_sleep(&mut self, limit: Option<Duration>) -> Option<Option<Duration>> {
        if self.endpoint.flush_acks() {
            self.send(false);
        }
        let due = self.due();
        let until = due.map(|due| self.clock.until(due));
        let timeout = [until, limit].into_iter().flatten().min();
        if self.stopped || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return None;
        }
        // What ends the sleep is what the poller has to tell.
        self.turns_without_poll = TURNS_WITHOUT_POLL_OF_MEMORY_MAX;
        self.doze.prepare_to_sleep(due);
        if !self.commands.is_empty() || !self.link.prepare_to_sleep() {
            self.doze.cancel_sleep();
            return None;
        }
        Some(timeout)
    }

    /// When there is something to do although nothing arrives.
    fn due(&mut self) -> Option<Time> {
        let failed = self.link.is_readable();
        let retry = failed.then(|| self.clock.now() + RETRY_AFTER);
        let turn = self.endpoint.poll_timeout(self.link.can_send());
        let due = [turn, self.link.flush_at(), retry];
        due.into_iter().flatten().min()
    }

    pub(crate) fn take_egress_report(&mut self) -> EgressReport {
        let sent = self.link.counters();
        let config = self.endpoint.config();
        let headers = config.link_headers(sent.sent_packets, sent.sent_bytes);
        EgressReport {
            sent_bytes: sent.sent_bytes + headers,
            was_held_back: self.endpoint.take_held_back(),
        }
    }

    /// What it has counted.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (endpoint, link) = (&self.endpoint, &self.link);
        let counters = endpoint.counters();
        let mut snapshot = Snapshot {
            ended: counters.ended,
            drops: counters.drops,
            link: *link.counters(),
            buffers: link.granted_buffers().unwrap_or_default(),
            resets_sent: counters.resets_sent,
            resets_withheld: counters.resets_withheld,
            cpu: thread_cpu(),
            ..Snapshot::default()
        };
        snapshot.drops.add(&self.drops);
        for (connection, peer) in endpoint.connections() {
            snapshot.drops.add(connection.drops());
            let (id, part) = self.users.name(connection.id());
            snapshot.connections.push(ConnectionSnapshot {
                id,
                part,
                peer: peer.address,
                stats: *connection.stats(),
                drops: connection.drops().clone(),
                outstanding_chunks: connection.outstanding(),
                writes: self.users.posts(connection.id()),
            });
        }
        for (peer, paths) in endpoint.peers() {
            let of_peer = PeerSnapshot::new(&peer.here, peer.address, paths);
            snapshot.peers.push(of_peer);
        }
        let past = endpoint.past_peers();
        let past = past.map(|(peer, totals)| (peer.address, *totals));
        snapshot.past_peers.extend(past);
        snapshot
    }
}

/// The lock, for the worker's thread. While it waits, callers queue what they post: one that posts without pause
/// would otherwise keep the thread from receiving.
fn lock<'a>(worker: &'a Mutex<Worker>, doze: &Doze) -> MutexGuard<'a, Worker> {
    for _ in 0..YIELDS_MAX {
        match worker.try_lock() {
            Ok(worker) => {
                doze.set_waiting(false);
                return worker;
            }
            Err(TryLockError::WouldBlock) => {
                doze.set_waiting(true);
                std::thread::yield_now();
            }
            // A panic has ended the process.
            Err(TryLockError::Poisoned(worker)) => return worker.into_inner(),
        }
    }
    let locked = worker.lock().unwrap_or_else(PoisonError::into_inner);
    doze.set_waiting(false);
    locked
}

fn seal_reset(keys: &ResetKeys, reset: PendingReset) -> [u8; Reset::BYTES] {
    Reset {
        path: reset.path,
        connection: reset.connection,
        token: reset_token(keys.of(reset.connection), reset.to.host()),
    }
    .emit()
}

/// A worker that died would leave its connections silent for ever: the process goes with it, and its
/// supervisor starts it again.
struct AbortOnPanic {
    worker: usize,
    address: LinkAddress,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                worker = self.worker, address = %self.address,
                "a worker of the engine has panicked: the process ends"
            );
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
