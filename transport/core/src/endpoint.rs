//! One NIC queue without I/O: which connection a packet belongs to, who sends next, timers, resets, the rate
//! cap. What quinn-proto's `Endpoint` and its driver's loop are together.
//!
//! The engine's workers, the simulator, the fuzz targets and the tests all drive this type, in turns. A turn
//! has two halves, and the types leave no other order:
//!
//! 1. [`Endpoint::receive`] begins a turn; [`Receiving::handle`] takes in everything that has arrived.
//! 2. [`Receiving::finish`] serves the timers that are due, which comes after receiving so that an answer that
//!    lies in the socket is never overtaken by a timeout; [`Sending::poll_transmit`] then gives what to send
//!    until it gives nothing more. Dropping [`Sending`] ends the turn.
//!
//! Between turns: [`Endpoint::post`], [`Endpoint::connect`] and the like, [`Endpoint::poll_event`] until there
//! is none, and [`Endpoint::poll_timeout`] for when the next turn is due. `now` never runs backwards. The
//! endpoint never opens a socket, reads a clock or touches payload; it knows nothing of the engine's users.

mod pacer;
mod rate_cap;
mod resets;
mod run;
mod schedule;

use crate::congestion::CongestionKind;
use crate::connection::{
    Arrival, Chunk, Connection, ConnectionConfig, Event, PathOwner, PostError, RestoreError, Run,
    Settings, Stats, Write,
};
use crate::drops::{DropReason, Drops};
use crate::memory::{DomainId, KeyHasher, Memory, Ticket};
use crate::path::{PathSet, PathSetConfig, PolicyKind};
use crate::received::Received;
use crate::units::{ChunkNumber, ConnectionId, Nanos, PathId, Rng, Source, Time};
use crate::wire::{CONTROL_BYTES_MAX, Cipher, Kind, Reset, Secret, peek};
use core::cmp::Reverse;
use core::hash::BuildHasherDefault;
use pacer::Pacer;
use rand_core::{Rng as _, SeedableRng};
use rate_cap::RateCap;
pub use resets::PendingReset;
use resets::Resets;
use run::leading_piece;
use schedule::Schedule;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

/// Timers wait until everything that has arrived was taken in, but never for more turns than this.
const TURNS_WITHOUT_TIMERS_MAX: u32 = 16;

#[expect(
    clippy::disallowed_types,
    reason = "looked up by id for every run; its hasher has no seed, and nothing depends on its order"
)]
type ById<T> = std::collections::HashMap<ConnectionId, T, BuildHasherDefault<KeyHasher>>;

/// What an endpoint is made with.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// What both ends of every connection share; valid.
    pub settings: Settings,
    /// Who chooses the path of each chunk.
    pub policy: PolicyKind,
    /// Who sets the window.
    pub congestion: CongestionKind,
    /// The floor of the retransmission timeout.
    pub rto_min: Nanos,
    /// A connection with something in flight that hears nothing for this long fails.
    pub stall_timeout: Nanos,
    /// Whether immediates are reported in the order of the messages that the peer wrote; otherwise each as
    /// soon as its own message is here.
    pub in_order: bool,
    /// The number of the first chunk in both directions of every connection, the same at both ends: 0, but
    /// in tests of the numbers' wrap.
    pub first_chunk: ChunkNumber,
    /// The most that is sent, bits per second with all headers. No limit when absent.
    pub rate_cap_bps: Option<u64>,
    /// What the link adds to each packet, for the rate cap: bytes of the IP and UDP headers, say.
    pub link_header_bytes: u32,
    /// Encrypts where both ends require it.
    pub cipher: &'static dyn Cipher,
    /// Of all draws.
    pub seed: u64,
}

/// The other end of a connection. `P` is the caller's name for the NIC there: the endpoint compares names and
/// hands them back. Connections to one NIC share its paths.
#[derive(Clone, Debug)]
pub struct Remote<P> {
    /// The NIC.
    pub peer: P,
    /// Tells the lives of the peer's endpoint apart: a new one ends the connections of the old.
    pub generation: u64,
    /// The peer's name for the connection.
    pub id: ConnectionId,
    /// Seals what is sent.
    pub send_secret: Secret,
    /// What a Reset from the peer must carry.
    pub reset_token: u64,
}

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

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Index of its NIC.
    peer: u32,
    /// It is in the list of those to look at in this turn.
    touched: bool,
    /// It is in the list of those that owe an acknowledgement.
    owing: bool,
    /// It is in the list of those with an event.
    eventful: bool,
    /// Its earliest entry among the timers.
    timer: Option<Time>,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// Its id is known to the peer; the peer is not known here.
    Allocated {
        domain: DomainId,
        receive_secret: Secret,
    },
    Open(Box<Open>),
    /// It is over, and its user has not closed it.
    Failed,
}

/// Another NIC.
#[derive(Debug)]
struct Peer<P> {
    name: P,
    generation: u64,
    paths: PathSet,
    connections: u32,
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

/// A connection on its way from one endpoint to the next.
#[derive(Debug)]
pub struct SavedConnection<P> {
    peer: P,
    generation: u64,
    state: Vec<u8>,
}

impl<P> SavedConnection<P> {
    /// What [`Connection::save`] wrote.
    pub fn state(&self) -> &[u8] {
        &self.state
    }
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
    peers: Vec<Option<Peer<P>>>,
    schedule: Schedule,
    /// Entries may be older than what their connection now wants; never later.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    resets: Resets,
    rate_cap: Option<RateCap>,
    pacer: Option<Pacer>,
    rng: Rng,
    /// Connections to look at in this turn.
    touched: Vec<u32>,
    /// Connections that owed an acknowledgement when their turn ended.
    owing: Vec<u32>,
    /// Connections with an event.
    eventful: VecDeque<u32>,
    turns_without_timers: u32,
    /// A write was posted since the last turn.
    posted: bool,
    ended: Stats,
    drops: Drops,
}

impl<P: Eq> Endpoint<P> {
    /// An endpoint without connections.
    pub fn new(config: EndpointConfig, now: Time) -> Endpoint<P> {
        let mut rng = Rng::seed_from_u64(config.seed);
        Endpoint {
            slots: Vec::new(),
            free: Vec::new(),
            by_id: ById::default(),
            last_found: 0,
            by_token: BTreeSet::new(),
            peers: Vec::new(),
            schedule: Schedule::default(),
            timers: BinaryHeap::new(),
            resets: Resets::new(rng.next_u64()),
            rate_cap: config.rate_cap_bps.map(|bps| RateCap::new(bps, now)),
            pacer: Pacer::new(&config),
            rng,
            touched: Vec::new(),
            owing: Vec::new(),
            eventful: VecDeque::new(),
            turns_without_timers: 0,
            posted: false,
            ended: Stats::default(),
            drops: Drops::default(),
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Knows `id`: packets that name it are dropped without a Reset until it is connected. An id that is in
    /// use stays what it is.
    pub fn allocate(&mut self, id: ConnectionId, domain: DomainId, receive_secret: Secret) {
        if self.by_id.contains_key(&id) {
            return;
        }
        self.insert(
            id,
            Slot::Allocated {
                domain,
                receive_secret,
            },
        );
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
        let Slot::Allocated {
            domain,
            receive_secret,
        } = &self.slots[slot as usize]
        else {
            return;
        };
        let (domain, receive_secret) = (*domain, receive_secret.clone());
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
            reset_token: remote.reset_token,
            in_order: self.config.in_order,
            send_from: self.config.first_chunk,
            receive_from: self.config.first_chunk,
        };
        let peer = self.join_peer(remote.peer, remote.generation);
        self.open(slot, peer, Connection::new(config, self.config.cipher, now));
    }

    fn open(&mut self, slot: u32, peer: u32, connection: Connection) {
        let config = connection.config();
        self.by_token
            .insert((config.reset_token, config.remote, slot));
        self.schedule.add(slot, config.domain);
        self.slots[slot as usize] = Slot::Open(Box::new(Open {
            connection,
            peer,
            touched: false,
            owing: false,
            eventful: false,
            timer: None,
        }));
        self.touch(slot);
    }

    /// The index of the NIC `name`, with one connection more.
    fn join_peer(&mut self, name: P, generation: u64) -> u32 {
        let same = |peer: &Option<Peer<P>>| peer.as_ref().is_some_and(|peer| peer.name == name);
        if let Some(index) = self.peers.iter().position(same) {
            let mut restarted = false;
            if let Some(peer) = &mut self.peers[index] {
                peer.connections += 1;
                restarted = std::mem::replace(&mut peer.generation, generation) != generation;
            }
            if restarted {
                self.for_each_of_peer(index as u32, |open| open.connection.handle_peer_restart());
            }
            return index as u32;
        }
        let peer = Some(Peer {
            name,
            generation,
            paths: PathSet::new(&PathSetConfig {
                paths: self.config.settings.paths,
                rto_min: self.config.rto_min,
            }),
            connections: 1,
        });
        match self.peers.iter().position(Option::is_none) {
            Some(free) => {
                self.peers[free] = peer;
                free as u32
            }
            None => {
                self.peers.push(peer);
                self.peers.len() as u32 - 1
            }
        }
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

    /// Posts a write; its end comes as [`Event::Completed`] or [`Event::Failed`].
    ///
    /// # Errors
    /// [`PostError::Closed`] when there is no such open connection, [`PostError::TooLong`].
    pub fn post(&mut self, id: ConnectionId, write: Write) -> Result<(), PostError> {
        let slot = *self.by_id.get(&id).ok_or(PostError::Closed)?;
        let Slot::Open(open) = &mut self.slots[slot as usize] else {
            return Err(PostError::Closed);
        };
        open.connection.post_write(write)?;
        self.posted = true;
        self.schedule.join(slot);
        self.touch(slot);
        Ok(())
    }

    /// Ends a connection at once: nothing of it is placed or sent any more, and none of its events follows.
    /// Answers whether it was open, or had failed.
    pub fn close(&mut self, id: ConnectionId) -> bool {
        let Some(slot) = self.by_id.remove(&id) else {
            return false;
        };
        if let Slot::Open(_) = self.slots[slot as usize] {
            self.retire(slot);
        }
        let before = std::mem::replace(&mut self.slots[slot as usize], Slot::Free);
        self.free.push(slot);
        matches!(before, Slot::Failed)
    }

    /// Keeps what an open connection had counted, and lets go of its NIC.
    fn retire(&mut self, slot: u32) {
        let Slot::Open(open) = std::mem::replace(&mut self.slots[slot as usize], Slot::Failed)
        else {
            return;
        };
        self.drops.add(open.connection.drops());
        self.ended.add(open.connection.stats());
        let config = open.connection.config();
        self.by_token
            .remove(&(config.reset_token, config.remote, slot));
        self.schedule.remove(slot);
        if let Some(pacer) = &mut self.pacer {
            pacer.remove(slot);
        }
        if let Some(peer) = &mut self.peers[open.peer as usize] {
            peer.connections -= 1;
            if peer.connections == 0 {
                self.peers[open.peer as usize] = None;
            }
        }
    }

    /// A payload that [`Memory::place`] kept ([`crate::memory::Placed::Pending`]) is placed, or could not be: only
    /// now its packet is acknowledged or refused. Answers whether a connection waited for it. A call between
    /// turns; it asks every connection.
    pub fn placed(&mut self, now: Time, ticket: Ticket, result: Result<(), DropReason>) -> bool {
        for slot in 0..self.slots.len() as u32 {
            if let Slot::Open(open) = &mut self.slots[slot as usize]
                && open.connection.placed(now, ticket, result)
            {
                self.touch(slot);
                return true;
            }
        }
        false
    }

    /// Begins a turn.
    pub fn receive(&mut self, now: Time) -> Receiving<'_, P> {
        self.resets.begin_turn();
        Receiving {
            endpoint: self,
            now,
        }
    }

    /// The next event, and whose it is. After [`Event::Failed`] nothing follows for that connection, which
    /// still has to be closed.
    pub fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
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
        while let Some(&Reverse((due, slot))) = self.timers.peek() {
            match &self.slots[slot as usize] {
                Slot::Open(open) if open.timer == Some(due) => return Some(due),
                // No connection waits for this entry any more.
                _ => self.timers.pop(),
            };
        }
        None
    }

    /// Makes every acknowledgement that is owed due now: for a caller that is about to sleep, and is woken
    /// later than it asks for. Answers whether there is any; the next turn sends them.
    pub fn hurry_acks(&mut self) -> bool {
        let mut owing = std::mem::take(&mut self.owing);
        let mut hurried = false;
        for &slot in &owing {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            open.owing = false;
            if open.connection.owes_ack() {
                open.connection.hurry_ack();
                // Its timer was for this acknowledgement: nothing else is to be woken for it.
                open.timer = None;
                self.touch(slot);
                hurried = true;
            }
        }
        owing.clear();
        self.owing = owing;
        hurried
    }

    /// Whether packets have come for connections that are not known: their Resets go out in the next turn. A
    /// caller with commands in a queue serves them all before.
    pub fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// An open connection.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        match &self.slots[*self.by_id.get(&id)? as usize] {
            Slot::Open(open) => Some(&open.connection),
            Slot::Free | Slot::Allocated { .. } | Slot::Failed => None,
        }
    }

    /// The open connections, each with the NIC that it leads to.
    pub fn connections(&self) -> impl Iterator<Item = (&Connection, &P)> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(open) => {
                let peer = self.peers[open.peer as usize].as_ref()?;
                Some((&open.connection, &peer.name))
            }
            Slot::Free | Slot::Allocated { .. } | Slot::Failed => None,
        })
    }

    /// The NICs that connections lead to, each with its paths.
    pub fn peers(&self) -> impl Iterator<Item = (&P, &PathSet)> {
        let peers = self.peers.iter().flatten();
        peers.map(|peer| (&peer.name, &peer.paths))
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
    pub fn save(mut self) -> Vec<SavedConnection<P>>
    where
        P: Clone,
    {
        let slots = std::mem::take(&mut self.slots);
        let save = |slot| match slot {
            Slot::Open(open) => {
                let peer = self.peers[open.peer as usize].as_ref()?;
                Some(SavedConnection {
                    peer: peer.name.clone(),
                    generation: peer.generation,
                    state: open.connection.save(),
                })
            }
            Slot::Free | Slot::Allocated { .. } | Slot::Failed => None,
        };
        slots.into_iter().filter_map(save).collect()
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
        let connection = Connection::restore(&saved.state, self.config.cipher, now)?;
        let id = connection.id();
        self.close(id);
        let slot = self.insert(id, Slot::Failed);
        let peer = self.join_peer(saved.peer, saved.generation);
        self.open(slot, peer, connection);
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
                && let Some(peer) = &mut self.peers[open.peer as usize]
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

/// The first half of a turn: everything that has arrived is taken in.
#[derive(Debug)]
pub struct Receiving<'a, P> {
    endpoint: &'a mut Endpoint<P>,
    now: Time,
}

impl<'a, P: Eq> Receiving<'a, P> {
    /// Takes in what has arrived together; it may be of several connections.
    pub fn handle(&mut self, received: Received<'_>, memory: &mut impl Memory) {
        let Received::Packets {
            from,
            ce,
            bytes,
            segment,
        } = received
        else {
            return;
        };
        if bytes.is_empty() {
            self.endpoint.drops.count(DropReason::Truncated);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = leading_piece(rest, segment);
            let (bytes, behind) = rest.split_at_mut(piece);
            rest = behind;
            self.endpoint
                .handle_piece(self.now, from, ce, bytes, segment, memory);
        }
    }

    /// The endpoint, to be looked at.
    pub fn endpoint(&self) -> &Endpoint<P> {
        self.endpoint
    }

    /// Ends receiving. `drained` says that nothing that has arrived is left: timers are served then. `chunks` is
    /// how many may be sent in this turn: few, because an arrived packet waits for as long; none when the link
    /// takes none.
    pub fn finish(self, drained: bool, chunks: u32) -> Sending<'a, P> {
        let endpoint = self.endpoint;
        endpoint.turns_without_timers += 1;
        if drained || endpoint.turns_without_timers >= TURNS_WITHOUT_TIMERS_MAX {
            endpoint.turns_without_timers = 0;
            endpoint.serve_timers(self.now);
        }
        endpoint.grant_credit(self.now);
        let touched = endpoint.touched.len();
        for at in 0..touched {
            endpoint.begin_sending(at);
        }
        Sending {
            chunks_left: chunks,
            controls: 0..touched,
            chunk_first: core::mem::take(&mut endpoint.posted),
            endpoint,
        }
    }
}

impl<P: Eq> Endpoint<P> {
    fn handle_piece(
        &mut self,
        now: Time,
        from: Source,
        ce: bool,
        bytes: &mut [u8],
        segment: usize,
        memory: &mut impl Memory,
    ) {
        let peek = match peek(bytes) {
            Ok(peek) => peek,
            Err(reason) => return self.count(reason, bytes.len(), segment),
        };
        if peek.kind == Kind::Reset {
            return self.handle_resets(bytes, segment);
        }
        let slot = self.find(peek.connection);
        match slot.map(|slot| (slot, &mut self.slots[slot as usize])) {
            Some((slot, Slot::Open(open))) => {
                let Some(peer) = &mut self.peers[open.peer as usize] else {
                    return;
                };
                let arrival = Arrival {
                    path: peek.path,
                    ce,
                };
                let dark = peer.paths.is_dark();
                let run = Run { bytes, segment };
                // The connection has counted what it dropped.
                let _ = open
                    .connection
                    .handle_packets(now, &mut peer.paths, arrival, run, memory);
                if let Some(pacer) = &mut self.pacer {
                    pacer.update(now, slot, &open.connection);
                }
                let lit = dark && !peer.paths.is_dark();
                touch(&mut self.touched, &mut self.eventful, slot, open);
                if lit {
                    // The outage is over: what its probe has found out, the others wait for.
                    let peer = open.peer;
                    self.for_each_of_peer(peer, |_| ());
                }
            }
            // The peer was quicker than the control channel: it sends again.
            Some((_, Slot::Allocated { .. })) => {
                self.count(DropReason::UnknownConnection, bytes.len(), segment);
            }
            known => {
                let reason = match known {
                    Some(_) => DropReason::Closed,
                    None => DropReason::UnknownConnection,
                };
                self.count(reason, bytes.len(), segment);
                let reset = PendingReset {
                    to: from,
                    path: peek.path,
                    connection: peek.connection,
                };
                self.resets.answer(now, reset);
            }
        }
    }

    /// The slot of an id. Runs of one connection come one after the other: the last one is looked at first.
    #[inline]
    fn find(&mut self, id: ConnectionId) -> Option<u32> {
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
        while let Some(&Reverse((due, slot))) = self.timers.peek() {
            if due > now {
                break;
            }
            self.timers.pop();
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            if open.timer != Some(due) {
                continue;
            }
            open.timer = None;
            let Some(peer) = &mut self.peers[open.peer as usize] else {
                continue;
            };
            let wants = open.connection.poll_timeout(&peer.paths);
            if wants.is_some_and(|due| due <= now) {
                open.connection.handle_timeout(now, &mut peer.paths);
            }
            touch(&mut self.touched, &mut self.eventful, slot, open);
        }
    }

    /// A touched connection may have something to send.
    fn begin_sending(&mut self, at: usize) {
        let slot = self.touched[at];
        if let Slot::Open(_) = &self.slots[slot as usize] {
            self.schedule.join(slot);
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
        let paths = &mut self.peers[open.peer as usize].as_mut()?.paths;
        let packet = open.connection.poll_control(now, paths, buffer)?;
        Some((open.peer, packet.path, packet.owner, packet.bytes))
    }

    fn poll_chunk(&mut self, now: Time) -> Option<(u32, Chunk)> {
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
            let peer = self.peers[open.peer as usize].as_mut();
            let chunk = peer.and_then(|peer| {
                open.connection
                    .poll_chunk(now, &mut peer.paths, &mut self.rng, u32::MAX)
            });
            let Some(chunk) = chunk else {
                // It may have begun to wait for the peer: its timer is taken note of when the turn ends.
                touch(&mut self.touched, &mut self.eventful, slot, open);
                self.schedule.leave();
                continue;
            };
            let packets = u64::from(chunk.packets());
            let bytes = chunk.wire_bytes();
            if let Some(cap) = &mut self.rate_cap {
                cap.charge(bytes + packets * u64::from(self.config.link_header_bytes));
            }
            self.schedule.charge(bytes as i64);
            touch(&mut self.touched, &mut self.eventful, slot, open);
            return Some((slot, chunk));
        }
        None
    }

    /// Ends the turn: each connection that was looked at is looked at again when its timer is due.
    fn end_turn(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for &slot in &touched {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            open.touched = false;
            if !open.owing && open.connection.owes_ack() {
                open.owing = true;
                self.owing.push(slot);
            }
            let Some(peer) = &self.peers[open.peer as usize] else {
                continue;
            };
            let Some(due) = open.connection.poll_timeout(&peer.paths) else {
                continue;
            };
            // An earlier entry looks again when it is due; most never get that far.
            if open.timer.is_none_or(|timer| due < timer) {
                open.timer = Some(due);
                self.timers.push(Reverse((due, slot)));
            }
        }
        touched.clear();
        self.touched = touched;
    }
}

/// The second half of a turn: what there is to send. Dropping it ends the turn.
#[derive(Debug)]
pub struct Sending<'a, P: Eq> {
    endpoint: &'a mut Endpoint<P>,
    /// Of the touched connections, those whose control packets are still to be asked for.
    controls: core::ops::Range<usize>,
    chunks_left: u32,
    /// A chunk goes before the control packets.
    chunk_first: bool,
}

impl<P: Eq> Sending<'_, P> {
    /// The next thing to send: acknowledgements and probes first, then Resets, then chunks in the order of the
    /// schedule. When a write was posted since the last turn, one chunk goes before all: somebody waits for the
    /// answer to a small message, and nobody for the message's acknowledgement. `None` when there is nothing
    /// more, or the turn has sent its share of chunks.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        buffer: &mut [u8; CONTROL_BYTES_MAX],
    ) -> Option<Transmit<'_, P>> {
        if core::mem::take(&mut self.chunk_first)
            && let Some((slot, chunk)) = self.poll_chunk(now)
        {
            return self.transmit(slot, chunk);
        }
        let endpoint = &mut *self.endpoint;
        while !self.controls.is_empty() {
            let slot = endpoint.touched[self.controls.start];
            if let Some((peer, path, owner, bytes)) = endpoint.poll_control(now, slot, buffer) {
                let peer = &self.endpoint.peers[peer as usize].as_ref()?.name;
                return Some(Transmit::Control {
                    peer,
                    path,
                    owner,
                    bytes,
                });
            }
            self.controls.start += 1;
        }
        let by_id = &endpoint.by_id;
        if let Some(reset) = endpoint.resets.next(|id| by_id.contains_key(&id)) {
            return Some(Transmit::Reset(reset));
        }
        let (slot, chunk) = self.poll_chunk(now)?;
        self.transmit(slot, chunk)
    }

    fn poll_chunk(&mut self, now: Time) -> Option<(u32, Chunk)> {
        if self.chunks_left == 0 {
            return None;
        }
        let found = self.endpoint.poll_chunk(now)?;
        self.chunks_left -= 1;
        Some(found)
    }

    fn transmit(&self, slot: u32, chunk: Chunk) -> Option<Transmit<'_, P>> {
        let Slot::Open(open) = &self.endpoint.slots[slot as usize] else {
            return None;
        };
        Some(Transmit::Chunk {
            connection: open.connection.id(),
            peer: &self.endpoint.peers[open.peer as usize].as_ref()?.name,
            chunk,
        })
    }
}

impl<P: Eq> Drop for Sending<'_, P> {
    fn drop(&mut self) {
        self.endpoint.end_turn();
    }
}
