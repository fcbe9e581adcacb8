//! One NIC queue without I/O: which connection a packet belongs to, who sends next, timers, resets, the rate
//! cap. What quinn-proto's `Endpoint` and its driver's loop are together.
//!
//! The engine's workers, the simulator, the fuzz targets and the tests all drive this type, in turns:
//! [`Endpoint::handle`] and [`Endpoint::offer`] for what has arrived, then [`Endpoint::send`], which serves the timers
//! that are due, and [`Sending::poll_transmit`] until it gives nothing more. Dropping [`Sending`] ends the turn.
//!
//! Between turns: [`Endpoint::post`], [`Endpoint::connect`] and the like, [`Endpoint::poll_event`] until there
//! is none, and [`Endpoint::poll_timeout`] for when the next turn is due. `now` never runs backwards. The
//! endpoint never opens a socket, reads a clock or touches payload; it knows nothing of the engine's users.

mod config;
mod pacer;
mod peers;
mod rate_cap;
mod resets;
mod run;
mod schedule;
mod timing_wheel;
mod turn;

use crate::connection::{
    CancelError, Chunk, Connection, ConnectionConfig, Event, Failure, PostError, ReceiveBuffer,
    RestoreError, SharedReceives, Stats, WorkRequest,
};
use crate::drops::{DropReason, Drops};
use crate::memory::{Access, KeyHasher, Memory, Ticket};
use crate::path::{PathSet, PathSetConfig};
use crate::units::{ConnectionId, PathId, Rng, Time};
pub use config::{EndpointConfig, Local, PeerName, Remote};
use core::hash::BuildHasherDefault;
use pacer::Pacer;
pub use peers::PeerTotals;
use peers::Peers;
use rand_core::{Rng as _, SeedableRng};
use rate_cap::RateCap;
pub use resets::PendingReset;
use resets::Resets;
use schedule::Schedule;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use timing_wheel::TimingWheel;
pub use turn::{Sending, Transmit};

#[expect(
    clippy::disallowed_types,
    reason = "looked up by id for every run; its hasher has no seed, and nothing depends on its order"
)]
type ById<T> = std::collections::HashMap<ConnectionId, T, BuildHasherDefault<KeyHasher>>;

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Index of its NIC.
    peer: u32,
    /// It is in the list of those to look at in this turn.
    touched: bool,
    /// It is in the list of those that owe an acknowledgement.
    ack_pending: bool,
    /// It is in the list of those with an event.
    eventful: bool,
    /// Its earliest entry among the timers.
    timer: Option<Time>,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// Its id is known to the peer; the peer is not known here.
    Allocated(Local),
    Open(Box<Open>),
    /// It is over, and its user has not closed it.
    Failed {
        /// As [`Endpoint::failed_request`].
        request: Option<u64>,
    },
}

/// What an endpoint has counted beside its connections' own counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// What the connections that are over had counted.
    pub ended: Stats,
    /// Packets that were not used: of connections that are over, and of none.
    pub drops: Drops,
    /// Resets handed out to be sent.
    pub resets_sent: u64,
    /// Resets not sent because there had been too many.
    pub resets_withheld: u64,
}

/// A connection on its way from one endpoint to the next. Its state holds its secrets.
pub struct SavedConnection<P> {
    /// Its id.
    pub id: ConnectionId,
    /// The NIC at the other end.
    pub peer: P,
    /// The life of the endpoint there.
    pub generation: u64,
    /// What [`Connection::save`] wrote.
    pub state: Vec<u8>,
}

/// Shows how much it is, never a secret.
impl<P: std::fmt::Debug> std::fmt::Debug for SavedConnection<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedConnection")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .field("state_bytes", &self.state.len())
            .finish_non_exhaustive()
    }
}

/// A connection that is over, with placements under way.
#[derive(Debug)]
struct Ending {
    connection: Connection,
    /// Its user has closed it, and waits until they have ended.
    closed: bool,
}

/// One NIC queue. See the module's text for the order of calls.
#[derive(Debug)]
pub struct Endpoint<P> {
    config: EndpointConfig,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_id: ById<u32>,
    /// The slot that was last looked up.
    last_found: u32,
    /// The open ones by what a Reset says: token, the peer's id, slot.
    by_token: BTreeSet<(u64, ConnectionId, u32)>,
    peers: Peers<P>,
    schedule: Schedule,
    /// Entries may be older than what their connection now wants; never later.
    timers: TimingWheel,
    resets: Resets,
    rate_cap: Option<RateCap>,
    pacer: Option<Pacer>,
    rng: Rng,
    /// Connections to look at in this turn.
    touched: Vec<u32>,
    /// Connections that owed an acknowledgement when their turn ended.
    pending_acks: Vec<u32>,
    /// Connections with an event.
    eventful: VecDeque<u32>,
    ending: Vec<Ending>,
    /// Connections whose end is to be confirmed.
    closed: VecDeque<ConnectionId>,
    turns_without_timers: u32,
    /// A write was posted since the last turn.
    posted: bool,
    ended: Stats,
    drops: Drops,
}

impl<P: PeerName> Endpoint<P> {
    /// An endpoint without connections.
    pub fn new(config: EndpointConfig, now: Time) -> Endpoint<P> {
        let mut rng = Rng::seed_from_u64(config.seed);
        Endpoint {
            slots: Vec::new(),
            free: Vec::new(),
            by_id: ById::default(),
            last_found: 0,
            by_token: BTreeSet::new(),
            peers: Peers::new(),
            schedule: Schedule::default(),
            timers: TimingWheel::new(now),
            resets: Resets::new(rng.next_u64()),
            rate_cap: config.rate_cap_bps.map(|bps| RateCap::new(bps, now)),
            pacer: Pacer::new(&config),
            rng,
            touched: Vec::new(),
            pending_acks: Vec::new(),
            eventful: VecDeque::new(),
            ending: Vec::new(),
            closed: VecDeque::new(),
            turns_without_timers: 0,
            posted: false,
            ended: Stats::default(),
            drops: Drops::default(),
            config,
        }
    }

    /// Limits what is sent from now on, in bits per second of datagrams with all headers; `None`: no limit.
    /// Connections keep their state; what is owed stays owed.
    pub fn set_rate_cap(&mut self, now: Time, bits_per_second: Option<u64>) {
        self.rate_cap = bits_per_second.map(|bps| match self.rate_cap.take() {
            None => RateCap::new(bps, now),
            Some(cap) => cap.with_rate(bps, now),
        });
    }

    /// Whether the limit had something wait since the last call.
    pub fn take_held_back(&mut self) -> bool {
        self.rate_cap.as_mut().is_some_and(RateCap::take_held_back)
    }

    /// What it was made with.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Knows `id`: packets that name it are dropped without a Reset until it is connected. An id that is in
    /// use stays what it is.
    pub fn allocate(&mut self, id: ConnectionId, local: Local) {
        if !self.by_id.contains_key(&id) {
            self.insert(id, Slot::Allocated(local));
        }
    }

    fn insert(&mut self, id: ConnectionId, entry: Slot) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                self.slots.len() as u32 - 1
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// Joins an allocated id to the other end. Does nothing for an id that is not allocated, or connected
    /// already. A peer of another generation than before ends what is left of its last life.
    pub fn connect(&mut self, now: Time, id: ConnectionId, remote: Remote<P>) {
        let Some(&slot) = self.by_id.get(&id) else {
            return;
        };
        let Slot::Allocated(local) = &self.slots[slot as usize] else {
            return;
        };
        let Local {
            domain,
            receive_secret,
            in_order,
        } = local.clone();
        let config = ConnectionConfig {
            settings: self.config.settings,
            local: id,
            remote: remote.id,
            domain,
            send_secret: remote.send_secret,
            receive_secret,
            policy: self.config.policy,
            congestion: self.config.congestion,
            stall_timeout: self.config.stall_timeout,
            waits_for_receiver: false,
            survives_refusals: false,
            reset_tokens: remote.reset_tokens,
            in_order,
            send_from: self.config.first_chunk,
            receive_from: self.config.first_chunk,
            first_packet: self.rng.next_u32(),
        };
        let peer = self.join_peer(remote.peer, remote.generation);
        self.open(slot, peer, Connection::new(config, self.config.cipher, now));
    }

    fn open(&mut self, slot: u32, peer: u32, connection: Connection) {
        let config = connection.config();
        for &token in &config.reset_tokens {
            self.by_token.insert((token, config.remote, slot));
        }
        self.schedule.add(slot, config.domain);
        self.slots[slot as usize] = Slot::Open(Box::new(Open {
            connection,
            peer,
            touched: false,
            ack_pending: false,
            eventful: false,
            timer: None,
        }));
        self.touch(slot);
    }

    /// The place of the NIC `name`. A new life of it ends the connections to the old one.
    fn join_peer(&mut self, name: P, generation: u64) -> u32 {
        let config = PathSetConfig {
            paths: self.config.settings.paths,
            rto_min: self.config.rto_min,
            validated: self.config.peers_validated,
            reliable: self.config.reliable,
        };
        let (peer, restarted) = self.peers.join(name, generation, &config);
        if restarted {
            self.for_each_of_peer(peer, |open| open.connection.handle_peer_restart());
        }
        peer
    }

    /// Does something to every connection to a NIC, and looks at each in this turn.
    fn for_each_of_peer(&mut self, peer: u32, mut change: impl FnMut(&mut Open)) {
        for slot in 0..self.slots.len() as u32 {
            if let Slot::Open(open) = &mut self.slots[slot as usize]
                && open.peer == peer
            {
                change(open);
                self.touch(slot);
            }
        }
    }

    /// The link takes no chunk on a path to the NICs that `is_peer` names from now on, or takes them again.
    pub fn set_path_blocked(
        &mut self,
        now: Time,
        is_peer: impl Fn(&P) -> bool,
        path: PathId,
        is_blocked: bool,
    ) {
        for place in self.peers.places_of(is_peer) {
            if let Some(peer) = self.peers.get_mut(place) {
                peer.paths.set_blocked(now, path, is_blocked);
            }
            if !is_blocked {
                self.for_each_of_peer(place, |_| ());
            }
        }
    }

    /// The link says that what was under way on a path to the NICs that `is_peer` names is lost: it is sent again, on
    /// other paths where there are any.
    pub fn break_path(&mut self, now: Time, is_peer: impl Fn(&P) -> bool, path: PathId) {
        for place in self.peers.places_of(is_peer) {
            if let Some(peer) = self.peers.get_mut(place) {
                peer.paths.on_broken(now, path);
            }
            for slot in 0..self.slots.len() as u32 {
                if let Slot::Open(open) = &mut self.slots[slot as usize]
                    && open.peer == place
                    && let Some(peer) = self.peers.get_mut(place)
                {
                    let paths = &mut peer.paths;
                    open.connection.handle_broken_path(now, path, paths);
                    self.touch(slot);
                }
            }
        }
    }

    /// Posts a work request; its end comes as [`Event::Completed`] or [`Event::Failed`].
    ///
    /// # Errors
    /// [`PostError`]: also when there is no such open connection.
    pub fn post(
        &mut self,
        id: ConnectionId,
        request: impl Into<WorkRequest>,
    ) -> Result<(), PostError> {
        let (slot, open) = self.open_connection(id)?;
        open.connection.post(request)?;
        self.posted = true;
        self.schedule.join(slot);
        self.touch(slot);
        Ok(())
    }

    /// Cancels a write or a read, as [`Connection::cancel`].
    ///
    /// # Errors
    /// [`CancelError`]: also when there is no such open connection.
    pub fn cancel(&mut self, id: ConnectionId, token: u64) -> Result<(), CancelError> {
        let open = self.open_connection(id);
        let (slot, open) = open.map_err(|_| CancelError::Closed)?;
        open.connection.cancel(token)?;
        self.schedule.join(slot);
        self.touch(slot);
        Ok(())
    }

    /// Posts a buffer for a send of the peer, as [`Connection::post_receive`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection.
    pub fn post_receive(
        &mut self,
        id: ConnectionId,
        buffer: ReceiveBuffer,
    ) -> Result<(), PostError> {
        let (_, open) = self.open_connection(id)?;
        open.connection.post_receive(buffer)
    }

    /// As [`Connection::set_access`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection.
    pub fn set_access(&mut self, id: ConnectionId, access: Access) -> Result<(), PostError> {
        let (_, open) = self.open_connection(id)?;
        open.connection.set_access(access);
        Ok(())
    }

    /// As [`Connection::set_waits_for_receiver`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection.
    pub fn set_waits_for_receiver(
        &mut self,
        id: ConnectionId,
        waits: bool,
    ) -> Result<(), PostError> {
        let (_, open) = self.open_connection(id)?;
        open.connection.set_waits_for_receiver(waits);
        Ok(())
    }

    /// As [`Connection::set_survives_refusals`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection.
    pub fn set_survives_refusals(
        &mut self,
        id: ConnectionId,
        survives: bool,
    ) -> Result<(), PostError> {
        let (_, open) = self.open_connection(id)?;
        open.connection.set_survives_refusals(survives);
        Ok(())
    }

    /// Has a connection take buffers from there, as [`Connection::share_receives`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection.
    pub fn share_receives(
        &mut self,
        id: ConnectionId,
        shared: Arc<dyn SharedReceives>,
    ) -> Result<(), PostError> {
        let (_, open) = self.open_connection(id)?;
        open.connection.share_receives(shared)
    }

    fn open_connection(&mut self, id: ConnectionId) -> Result<(u32, &mut Open), PostError> {
        let slot = *self.by_id.get(&id).ok_or(PostError::Closed)?;
        match &mut self.slots[slot as usize] {
            Slot::Open(open) => Ok((slot, open)),
            Slot::Free | Slot::Allocated(_) | Slot::Failed { .. } => Err(PostError::Closed),
        }
    }

    /// Ends a connection at once: nothing of it is sent any more, nothing is placed but what is under way, and none of
    /// its events follows but [`Event::Closed`], when no placement is under way. Answers whether that one follows: it
    /// does not for an id that was never connected.
    pub fn close(&mut self, id: ConnectionId) -> bool {
        let Some(slot) = self.by_id.remove(&id) else {
            return false;
        };
        if let Slot::Open(_) = self.slots[slot as usize] {
            self.retire(slot);
        }
        let before = std::mem::replace(&mut self.slots[slot as usize], Slot::Free);
        self.free.push(slot);
        if !matches!(before, Slot::Failed { .. }) {
            return false;
        }
        let mut ending = self.ending.iter_mut();
        let unconfirmed = |ending: &&mut Ending| !ending.closed && ending.connection.id() == id;
        match ending.find(unconfirmed) {
            Some(ending) => ending.closed = true,
            None => self.closed.push_back(id),
        }
        true
    }

    /// Ends the connection of a chunk whose source is gone. But where the chunk was sent before, the peer may have it, and the
    /// region may be closed because the peer has said so: then nothing is sent, and the acknowledgement is awaited.
    pub fn fail_chunk(&mut self, id: ConnectionId, chunk: &Chunk, failure: Failure) {
        if !chunk.is_resent() {
            self.fail(id, failure);
        }
    }

    /// Ends an open connection for a reason that its caller found. The peer is told by a Reset.
    pub fn fail(&mut self, id: ConnectionId, failure: Failure) {
        if let Ok((slot, open)) = self.open_connection(id) {
            open.connection.fail(failure);
            self.touch(slot);
        }
    }

    /// Keeps what an open connection had counted, and lets go of its NIC.
    fn retire(&mut self, slot: u32) {
        let failed = Slot::Failed { request: None };
        let Slot::Open(open) = std::mem::replace(&mut self.slots[slot as usize], failed) else {
            return;
        };
        let mut connection = open.connection;
        let request = connection.failed_request();
        self.slots[slot as usize] = Slot::Failed { request };
        self.drops.add(connection.drops());
        self.ended.add(connection.stats());
        let config = connection.config();
        for &token in &config.reset_tokens {
            self.by_token.remove(&(token, config.remote, slot));
        }
        self.schedule.remove(slot);
        if let Some(pacer) = &mut self.pacer {
            pacer.remove(slot);
        }
        let bytes_acked = connection.stats().bytes_acked;
        self.peers.leave(open.peer, bytes_acked);
        if connection.pending_placements() > 0 {
            connection.close();
            let closed = false;
            self.ending.push(Ending { connection, closed });
        }
    }

    /// Has an open connection refuse what arrives, as [`Connection::hold`].
    pub fn hold(&mut self, id: ConnectionId, held: bool) {
        if let Some(&slot) = self.by_id.get(&id)
            && let Slot::Open(open) = &mut self.slots[slot as usize]
        {
            open.connection.hold(held);
        }
    }

    /// A placement that was under way has ended: only now its packet is acknowledged or refused. Answers whether a
    /// connection waited for it.
    pub fn placed(
        &mut self,
        now: Time,
        ticket: Ticket,
        result: Result<(), DropReason>,
        memory: &mut impl Memory,
    ) -> bool {
        if let Some(slot) = self.find(ticket.connection)
            && let Slot::Open(open) = &mut self.slots[slot as usize]
            && open.connection.placed(now, ticket, result, memory)
        {
            if let Some(pacer) = &mut self.pacer {
                pacer.update(now, slot, &open.connection);
            }
            self.schedule.join(slot);
            self.touch(slot);
            return true;
        }
        let mut ending = self.ending.iter_mut();
        let Some(at) =
            ending.position(|ending| ending.connection.placed(now, ticket, result, memory))
        else {
            return false;
        };
        if self.ending[at].connection.pending_placements() == 0 {
            let ending = self.ending.swap_remove(at);
            if ending.closed {
                self.closed.push_back(ending.connection.id());
            }
        }
        true
    }

    /// Placements that are under way. The endpoint is saved when there are none.
    pub fn pending_placements(&self) -> usize {
        let open = self.connections().map(|(connection, _)| connection);
        let all = open.chain(self.ending.iter().map(|ending| &ending.connection));
        all.map(Connection::pending_placements).sum()
    }

    /// The next event, and whose it is. After [`Event::Failed`] nothing follows for that connection, which
    /// still has to be closed.
    pub fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
        if let Some(id) = self.closed.pop_front() {
            return Some((id, Event::Closed));
        }
        loop {
            let &slot = self.eventful.front()?;
            if let Slot::Open(open) = &mut self.slots[slot as usize] {
                let id = open.connection.id();
                if let Some(event) = open.connection.poll_event() {
                    if let Event::Failed(_) = event {
                        self.retire(slot);
                    }
                    return Some((id, event));
                }
                open.eventful = false;
            }
            self.eventful.pop_front();
        }
    }

    /// When the next turn is due, if no packet arrives before: [`Time::ZERO`] for at once. While the link takes
    /// no chunk, chunks that could be sent are no reason for a turn.
    pub fn poll_timeout(&mut self, link_takes_chunks: bool) -> Option<Time> {
        if !self.resets.is_empty() || !self.touched.is_empty() {
            return Some(Time::ZERO);
        }
        let send = (link_takes_chunks && !self.schedule.is_empty()).then(|| {
            let cap = self.rate_cap.as_ref().and_then(RateCap::next);
            cap.unwrap_or(Time::ZERO)
        });
        let timer = self.next_timer();
        let grant = self.pacer.as_ref().and_then(Pacer::next);
        [send, timer, grant].into_iter().flatten().min()
    }

    fn next_timer(&mut self) -> Option<Time> {
        let slots = &self.slots;
        // Of others, no connection waits any more.
        self.timers.next(|due, slot| match &slots[slot as usize] {
            Slot::Open(open) => open.timer == Some(due),
            Slot::Free | Slot::Allocated(_) | Slot::Failed { .. } => false,
        })
    }

    /// Makes every acknowledgement that is owed due now: for a caller that is about to sleep, and is woken
    /// later than it asks for. Answers whether there is any; the next turn sends them.
    pub fn flush_acks(&mut self) -> bool {
        let mut pending = std::mem::take(&mut self.pending_acks);
        let mut any = false;
        for &slot in &pending {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            open.ack_pending = false;
            if open.connection.has_pending_ack() {
                open.connection.flush_ack();
                // Its timer was for this acknowledgement: nothing else is to be woken for it.
                open.timer = None;
                self.touch(slot);
                any = true;
            }
        }
        pending.clear();
        self.pending_acks = pending;
        any
    }

    /// Whether packets have come for connections that are not known: [`Endpoint::send`] gives their Resets. A caller with
    /// commands in a queue serves them all before: one of them may make the connection.
    pub fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// An open connection.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        match &self.slots[*self.by_id.get(&id)? as usize] {
            Slot::Open(open) => Some(&open.connection),
            Slot::Free | Slot::Allocated(_) | Slot::Failed { .. } => None,
        }
    }

    /// Of an in-order connection that has failed and is not closed: the token of the work request that failed, with all
    /// that was posted after it. What was posted before it is complete. `None` where nothing was under way.
    pub fn failed_request(&self, id: ConnectionId) -> Option<u64> {
        match &self.slots[*self.by_id.get(&id)? as usize] {
            Slot::Failed { request } => *request,
            Slot::Free | Slot::Allocated(_) | Slot::Open(_) => None,
        }
    }

    /// The open connections, each with the NIC that it leads to.
    pub fn connections(&self) -> impl Iterator<Item = (&Connection, &P)> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(open) => {
                let peer = self.peers.get(open.peer)?;
                Some((&open.connection, &peer.name))
            }
            Slot::Free | Slot::Allocated(_) | Slot::Failed { .. } => None,
        })
    }

    /// The NICs that connections lead to, each with its paths.
    pub fn peers(&self) -> impl Iterator<Item = (&P, &PathSet)> {
        let peers = self.peers.iter();
        peers.map(|peer| (&peer.name, &peer.paths))
    }

    /// What has ended with NICs, also with those to which no connection leads now; of the last 256 with which something has.
    pub fn past_peers(&self) -> impl Iterator<Item = (&P, &PeerTotals)> {
        self.peers.past()
    }

    /// What was counted beside the connections' own counters.
    pub fn counters(&self) -> Counters {
        Counters {
            ended: self.ended,
            drops: self.drops.clone(),
            resets_sent: self.resets.sent(),
            resets_withheld: self.resets.withheld(),
        }
    }

    /// Ends the endpoint and saves its open connections for the next one. Each holds its secrets.
    ///
    /// # Errors
    /// Gives the endpoint back while placements are under way: their bytes could land after the next endpoint has
    /// reported their message. No more are begun when it is given nothing to receive.
    #[expect(clippy::result_large_err, reason = "it is the endpoint that goes on")]
    pub fn save(mut self) -> Result<Vec<SavedConnection<P>>, Endpoint<P>>
    where
        P: Clone,
    {
        if self.pending_placements() > 0 {
            return Err(self);
        }
        let slots = std::mem::take(&mut self.slots);
        let save = |slot| match slot {
            Slot::Open(open) => {
                let peer = self.peers.get(open.peer)?;
                Some(SavedConnection {
                    id: open.connection.id(),
                    peer: peer.name.clone(),
                    generation: peer.generation,
                    state: open.connection.save(),
                })
            }
            Slot::Free | Slot::Allocated(_) | Slot::Failed { .. } => None,
        };
        Ok(slots.into_iter().filter_map(save).collect())
    }

    /// Takes a saved connection over. `now` is of the clock under which it was saved: the machine's, not the
    /// process's, for echoes of what was sent before may yet come. Answers its id.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(
        &mut self,
        now: Time,
        saved: SavedConnection<P>,
    ) -> Result<ConnectionId, RestoreError> {
        let mut connection = Connection::restore(&saved.state, self.config.cipher, now)?;
        // Connections to a peer share its paths.
        let [saved_paths, here] =
            [connection.config().settings, self.config.settings].map(|settings| settings.paths);
        if saved_paths != here {
            return Err(RestoreError::Paths {
                saved: saved_paths,
                here,
            });
        }
        let id = connection.id();
        if self.close(id) {
            // It goes on.
            self.closed.retain(|&closed| closed != id);
            for ending in &mut self.ending {
                ending.closed &= ending.connection.id() != id;
            }
        }
        let slot = self.insert(id, Slot::Failed { request: None });
        let place = self.join_peer(saved.peer, saved.generation);
        if self.config.reliable
            && let Some(peer) = self.peers.get_mut(place)
        {
            // What carried its chunks has ended with the endpoint before.
            connection.lose_all(now, &mut peer.paths);
        }
        self.open(slot, place, connection);
        // It may have been saved in the midst of anything.
        self.schedule.join(slot);
        if let (Some(pacer), Slot::Open(open)) = (&mut self.pacer, &self.slots[slot as usize]) {
            pacer.update(now, slot, &open.connection);
        }
        Ok(id)
    }

    /// A connection that could send although no turn, timer or packet would make it. There is none: for
    /// simulators to check. The chunk that shows it is lost.
    pub fn find_forgotten(&mut self, now: Time) -> Option<ConnectionId> {
        if !self.touched.is_empty() || !self.schedule.is_empty() {
            return None;
        }
        for slot in &mut self.slots {
            if let Slot::Open(open) = slot
                && open.timer.is_none_or(|due| due > now)
                && let Some(peer) = self.peers.get_mut(open.peer)
            {
                let chunk =
                    open.connection
                        .poll_chunk(now, &mut peer.paths, &mut self.rng, u32::MAX);
                if chunk.is_some() {
                    return Some(open.connection.id());
                }
            }
        }
        None
    }

    fn touch(&mut self, slot: u32) {
        if let Slot::Open(open) = &mut self.slots[slot as usize] {
            touch(&mut self.touched, &mut self.eventful, slot, open);
        }
    }
}

/// Looks at a connection in this turn, and takes note of its events.
#[inline]
fn touch(touched: &mut Vec<u32>, eventful: &mut VecDeque<u32>, slot: u32, open: &mut Open) {
    if !open.touched {
        open.touched = true;
        touched.push(slot);
    }
    if !open.eventful && open.connection.has_event() {
        open.eventful = true;
        eventful.push_back(slot);
    }
}
