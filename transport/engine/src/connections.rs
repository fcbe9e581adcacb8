//! The connections of one worker: where packets belong, what has happened, when to look again.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use rand_core::SeedableRng;
use weft_core::connection::{
    self, Arrival, Chunk, Connection, ConnectionConfig, PostError, Run, Write,
};
use weft_core::drops::{DropReason, Drops};
use weft_core::memory::{DomainId, KeyHasher};
use weft_core::path::{PathSet, PathSetConfig};
use weft_core::units::{ConnectionId, Rng, Time};
use weft_core::wire::{Kind, Reset, Secret, peek};
use weft_link::{PortRange, ReceivedRun};

use crate::command::{Command, Outgoing};
use crate::config::EngineConfig;
use crate::engine::RemoteEnd;
use crate::event::{Event, Failure};
use crate::identity::reset_token;
use crate::piece::leading_piece;
use crate::regions::Regions;
use crate::resets::{PendingReset, Resets};
use crate::snapshot::{ConnectionSnapshot, PeerSnapshot, Snapshot};
use crate::turns::{Account, Turns};

type ById<T> = HashMap<ConnectionId, T, BuildHasherDefault<KeyHasher>>;

/// What a Reset names a connection by, and its id here: the peer's address, its id there, the first of
/// the peer's ports.
type NameAtPeer = (Ipv4Addr, ConnectionId, u16, ConnectionId);

/// Another NIC, and the paths to it.
struct Peer {
    owner: Arc<str>,
    address: Ipv4Addr,
    ports: PortRange,
    generation: u64,
    paths: PathSet,
    connections: usize,
}

/// A chunk that its port did not take whole.
#[derive(Clone, Copy)]
pub(crate) struct Stalled {
    pub(crate) chunk: Chunk,
    /// The first packet of it that is not sent.
    pub(crate) next: usize,
}

/// A connection that sends and receives.
pub(crate) struct Open {
    domain: DomainId,
    peer: usize,
    pub(crate) address: Ipv4Addr,
    pub(crate) ports: PortRange,
    remote: ConnectionId,
    core: Connection,
    /// By token, in which they were posted.
    writes: HashMap<u64, Outgoing, BuildHasherDefault<KeyHasher>>,
    /// Not taken by the core yet, in order.
    waiting: VecDeque<u64>,
    next_token: u64,
    events: Sender<Event>,
    pub(crate) account: Account,
    pub(crate) stalled: Option<Stalled>,
    /// It is in the list of those that owe an acknowledgement.
    owing: bool,
    /// The earliest entry for it in the timers.
    timer: Option<Time>,
    touched: bool,
}

enum End {
    Allocated {
        domain: DomainId,
        receive_secret: Secret,
    },
    Open(Box<Open>),
    /// Failed, and not closed by its user.
    Over {
        events: Sender<Event>,
    },
}

/// All of them, with what they share.
pub(crate) struct Connections {
    config: EngineConfig,
    ends: ById<End>,
    /// The open ones by what a Reset says: the peer's address, its id for the connection, and its
    /// first port, since several engines may run at one address.
    by_remote: BTreeSet<NameAtPeer>,
    peers: Vec<Option<Peer>>,
    pub(crate) regions: Regions,
    pub(crate) resets: Resets,
    pub(crate) turns: Turns,
    rng: Rng,
    /// Those with something to look at before the turn is over.
    touched: Vec<ConnectionId>,
    /// Those that owed an acknowledgement when their turn ended; they may have sent it since.
    owing: Vec<ConnectionId>,
    /// Entries may be older than what their connection now wants; never later.
    timers: BinaryHeap<Reverse<(Time, ConnectionId)>>,
    /// Dropped packets that were no live connection's.
    drops: Drops,
    ended: connection::Stats,
}

impl Connections {
    pub(crate) fn new(config: EngineConfig, worker: usize, commands: Receiver<Command>) -> Self {
        Self {
            rng: Rng::seed_from_u64(config.seed.wrapping_add(worker as u64)),
            config,
            ends: HashMap::default(),
            by_remote: BTreeSet::new(),
            peers: Vec::new(),
            regions: Regions::new(commands),
            resets: Resets::default(),
            turns: Turns::default(),
            touched: Vec::new(),
            owing: Vec::new(),
            timers: BinaryHeap::new(),
            drops: Drops::default(),
            ended: connection::Stats::default(),
        }
    }

    /// The open connection `id`, the paths to its peer, and the generator.
    pub(crate) fn open(&mut self, id: ConnectionId) -> Option<(&mut Open, &mut PathSet, &mut Rng)> {
        let Some(End::Open(open)) = self.ends.get_mut(&id) else {
            return None;
        };
        let peer = self.peers[open.peer].as_mut()?;
        Some((open, &mut peer.paths, &mut self.rng))
    }

    /// Queues `id` to send, behind the others.
    pub(crate) fn join_turns(&mut self, id: ConnectionId) {
        if let Some(End::Open(open)) = self.ends.get_mut(&id) {
            self.turns.join(id, &mut open.account);
        }
    }

    pub(crate) fn allocate(&mut self, id: ConnectionId, domain: DomainId, receive_secret: Secret) {
        self.ends.insert(
            id,
            End::Allocated {
                domain,
                receive_secret,
            },
        );
    }

    pub(crate) fn connect(
        &mut self,
        now: Time,
        id: ConnectionId,
        remote: RemoteEnd,
        events: Sender<Event>,
    ) {
        // The handle lets only an allocated end be connected, and once.
        let Some(End::Allocated {
            domain,
            receive_secret,
        }) = self.ends.remove(&id)
        else {
            return;
        };
        let peer = self.peer(&remote);
        let core = Connection::new(
            ConnectionConfig {
                settings: self.config.settings(),
                local: id,
                remote: remote.id,
                send_secret: remote.send_secret,
                receive_secret,
                congestion: self.config.congestion,
                stall_timeout: self.config.stall_timeout,
                reset_token: reset_token(remote.reset_key, self.config.address),
            },
            now,
        );
        let open = Open {
            domain,
            peer,
            address: remote.address,
            ports: remote.ports,
            remote: remote.id,
            core,
            writes: HashMap::default(),
            waiting: VecDeque::new(),
            next_token: 0,
            events,
            account: Account::default(),
            stalled: None,
            owing: false,
            timer: None,
            touched: false,
        };
        self.by_remote.insert(open.name_at_peer());
        self.ends.insert(id, End::Open(Box::new(open)));
    }

    /// The peer's place; one of another life of its engine ends what is left of the last.
    fn peer(&mut self, remote: &RemoteEnd) -> usize {
        let same = |peer: &Peer| {
            peer.owner == remote.owner
                && peer.address == remote.address
                && peer.ports == remote.ports
        };
        let known = self
            .peers
            .iter()
            .position(|peer| peer.as_ref().is_some_and(same));
        if let Some(known) = known {
            let restarted = self.peers[known].as_mut().is_some_and(|peer| {
                peer.connections += 1;
                std::mem::replace(&mut peer.generation, remote.generation) != remote.generation
            });
            if restarted {
                for id in self.ids_of_peer(known) {
                    self.fail(id, Failure::PeerRestarted);
                }
            }
            return known;
        }
        let paths = PathSet::new(&PathSetConfig {
            paths: self.config.paths,
            policy: self.config.policy,
            rto_min: self.config.rto_min,
        });
        let peer = Some(Peer {
            owner: Arc::clone(&remote.owner),
            address: remote.address,
            ports: remote.ports,
            generation: remote.generation,
            paths,
            connections: 1,
        });
        match self.peers.iter().position(Option::is_none) {
            Some(free) => {
                self.peers[free] = peer;
                free
            }
            None => {
                self.peers.push(peer);
                self.peers.len() - 1
            }
        }
    }

    fn ids_of_peer(&self, peer: usize) -> Vec<ConnectionId> {
        let of_peer = |end: &End| matches!(end, End::Open(open) if open.peer == peer);
        self.ends
            .iter()
            .filter(|(_, end)| of_peer(end))
            .map(|(&id, _)| id)
            .collect()
    }

    /// An outage to this peer is over: whoever waited for it may send.
    fn touch_peer(&mut self, peer: usize) {
        for (&id, end) in &mut self.ends {
            if let End::Open(open) = end
                && open.peer == peer
            {
                touch(&mut self.touched, id, open);
            }
        }
    }

    pub(crate) fn write(&mut self, id: ConnectionId, write: Outgoing) {
        // A connection that failed meanwhile has told its user so.
        let Some(End::Open(open)) = self.ends.get_mut(&id) else {
            return;
        };
        let token = open.next_token;
        open.next_token += 1;
        open.writes.insert(token, write);
        open.waiting.push_back(token);
        open.post_waiting();
        self.turns.join(id, &mut open.account);
        touch(&mut self.touched, id, open);
    }

    pub(crate) fn close(&mut self, id: ConnectionId) {
        let events = match self.ends.remove(&id) {
            Some(End::Open(open)) => self.retire(*open),
            Some(End::Over { events }) => events,
            Some(End::Allocated { .. }) | None => return,
        };
        // A user who has dropped the receiver does not want to know.
        let _ = events.send(Event::Closed { connection: id });
    }

    fn fail(&mut self, id: ConnectionId, failure: Failure) {
        match self.ends.remove(&id) {
            Some(End::Open(open)) => {
                tracing::warn!(
                    connection = %id, peer = %open.address, reason = failure.reason(),
                    "connection failed"
                );
                let events = self.retire(*open);
                let _ = events.send(Event::Failed {
                    connection: id,
                    failure,
                });
                self.ends.insert(id, End::Over { events });
            }
            Some(other) => {
                self.ends.insert(id, other);
            }
            None => {}
        }
    }

    /// Keeps what a connection had counted, and lets go of its peer.
    fn retire(&mut self, open: Open) -> Sender<Event> {
        self.drops.add(open.core.drops());
        self.ended.add(open.core.stats());
        self.by_remote.remove(&open.name_at_peer());
        if let Some(peer) = &mut self.peers[open.peer] {
            peer.connections -= 1;
            if peer.connections == 0 {
                self.peers[open.peer] = None;
            }
        }
        open.events
    }

    /// Takes a received run in. GRO merges by ports only, so several connections may share a run:
    /// it is handed on in pieces of one connection, path and kind each.
    pub(crate) fn arrive(&mut self, now: Time, run: ReceivedRun<'_>) {
        let mut rest = run.bytes;
        while !rest.is_empty() {
            let piece = leading_piece(rest, run.segment);
            let (bytes, behind) = rest.split_at(piece);
            rest = behind;
            self.arrive_piece(now, &run, bytes);
        }
    }

    fn arrive_piece(&mut self, now: Time, run: &ReceivedRun<'_>, bytes: &[u8]) {
        let packets = bytes.len().div_ceil(run.segment);
        let peek = match peek(bytes) {
            Ok(peek) => peek,
            Err(reason) => return self.count(reason, packets),
        };
        if peek.kind == Kind::Reset {
            return self.arrive_reset(run, bytes);
        }
        let id = peek.connection;
        match self.ends.get_mut(&id) {
            Some(End::Open(open)) => {
                let Some(peer) = &mut self.peers[open.peer] else {
                    return;
                };
                let arrival = Arrival {
                    path: peek.path,
                    ce: run.ce,
                };
                let run = Run {
                    bytes,
                    segment: run.segment,
                };
                let mut memory = self.regions.of(open.domain);
                let dark = peer.paths.is_dark();
                // The connection has counted what it dropped.
                let _ = open
                    .core
                    .handle_packets(now, &mut peer.paths, arrival, run, &mut memory);
                let lit = dark && !peer.paths.is_dark();
                touch(&mut self.touched, id, open);
                if lit {
                    let peer = open.peer;
                    self.touch_peer(peer);
                }
            }
            // The peer was quicker than the control channel: it will send again.
            Some(End::Allocated { .. }) => self.count(DropReason::UnknownConnection, packets),
            end => {
                let known = end.is_some();
                let reason = if known {
                    DropReason::Closed
                } else {
                    DropReason::UnknownConnection
                };
                self.count(reason, packets);
                let reset = PendingReset {
                    local: run.local,
                    to: run.from,
                    path: peek.path,
                    connection: id,
                };
                self.resets.answer(now, reset);
            }
        }
    }

    fn arrive_reset(&mut self, run: &ReceivedRun<'_>, bytes: &[u8]) {
        for packet in bytes.chunks(run.segment) {
            let reset = match Reset::parse(packet) {
                Ok(reset) => reset,
                Err(reason) => {
                    self.count(reason, 1);
                    continue;
                }
            };
            let (address, port) = (*run.from.ip(), run.from.port());
            let of_id = |port, local| (address, reset.connection, port, ConnectionId(local));
            let named = self.by_remote.range(of_id(0, 0)..=of_id(port, u32::MAX));
            let mut known = false;
            // More than one only where a node has lied about its address: the token tells them apart.
            for &(.., id) in named {
                let Some(End::Open(open)) = self.ends.get_mut(&id) else {
                    continue;
                };
                if open.ports.holds(port) {
                    known = true;
                    // The connection checks the token, and counts a wrong one.
                    let _ = open.core.handle_reset(reset.token);
                    touch(&mut self.touched, id, open);
                }
            }
            if !known {
                self.count(DropReason::UnknownConnection, 1);
            }
        }
    }

    /// Whether packets have come of connections that are not known.
    pub(crate) fn has_strangers(&self) -> bool {
        !self.resets.is_empty()
    }

    /// The next Reset to send, but for connections that are known by now.
    pub(crate) fn next_reset(&mut self) -> Option<PendingReset> {
        let ends = &self.ends;
        let is_known =
            |id: &ConnectionId| matches!(ends.get(id), Some(End::Open(_) | End::Allocated { .. }));
        self.resets.next(|reset| is_known(&reset.connection))
    }

    fn count(&mut self, reason: DropReason, packets: usize) {
        for _ in 0..packets {
            self.drops.count(reason);
        }
    }

    /// Serves the timers that are due.
    pub(crate) fn serve_timers(&mut self, now: Time) -> bool {
        let mut served = false;
        while let Some(&Reverse((due, id))) = self.timers.peek() {
            if due > now {
                break;
            }
            self.timers.pop();
            let Some(End::Open(open)) = self.ends.get_mut(&id) else {
                continue;
            };
            if open.timer != Some(due) {
                continue;
            }
            open.timer = None;
            let Some(peer) = &mut self.peers[open.peer] else {
                continue;
            };
            if open
                .core
                .poll_timeout(&peer.paths)
                .is_some_and(|due| due <= now)
            {
                open.core.handle_timeout(now, &mut peer.paths);
                served = true;
            }
            touch(&mut self.touched, id, open);
        }
        served
    }

    /// When a timer is due next.
    pub(crate) fn next_timer(&mut self) -> Option<Time> {
        while let Some(&Reverse((due, id))) = self.timers.peek() {
            match self.ends.get(&id) {
                Some(End::Open(open)) if open.timer == Some(due) => return Some(due),
                // Nobody waits for this entry any more, so nobody is to be woken by it.
                _ => self.timers.pop(),
            };
        }
        None
    }

    /// The connections that owe an acknowledgement, which is due now; the caller rests each.
    pub(crate) fn take_owing(&mut self) -> Vec<ConnectionId> {
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|id| {
            let Some(End::Open(open)) = self.ends.get_mut(id) else {
                return false;
            };
            open.owing = false;
            let owes = open.core.owes_ack();
            if owes {
                open.core.hurry_ack();
                // Its own timer has served: nothing is woken by it.
                open.timer = None;
            }
            owes
        });
        owing
    }

    /// The connections with something to look at; the caller gives the list back empty.
    pub(crate) fn take_touched(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn give_back(&mut self, mut list: Vec<ConnectionId>) {
        list.clear();
        self.touched = list;
    }

    /// Tells the user what has happened on a touched connection, and queues it to send.
    pub(crate) fn tell(&mut self, id: ConnectionId) {
        loop {
            let Some(End::Open(open)) = self.ends.get_mut(&id) else {
                return;
            };
            let Some(event) = open.core.poll_event() else {
                open.post_waiting();
                if open.stalled.is_none() {
                    self.turns.join(id, &mut open.account);
                }
                return;
            };
            match event {
                connection::Event::Completed { token } => {
                    if let Some(write) = open.writes.remove(&token) {
                        let (context, source) = (write.context, write.source);
                        let _ = open.events.send(Event::Written {
                            connection: id,
                            context,
                            source,
                        });
                    }
                }
                connection::Event::Immediate {
                    value: immediate,
                    key,
                } => {
                    if key == crate::SIGNAL {
                        let _ = open.events.send(Event::Signal {
                            connection: id,
                            immediate,
                        });
                        continue;
                    }
                    match self.regions.table.take(open.domain, key) {
                        Ok(buffer) => {
                            let event = Event::Delivered {
                                connection: id,
                                immediate,
                                key,
                                buffer,
                            };
                            let _ = open.events.send(event);
                        }
                        // Two messages were written into one arming.
                        Err(DropReason::NotArmed) => self.fail(id, Failure::RegionOverrun { key }),
                        // It was deregistered meanwhile.
                        Err(reason) => self.drops.count(reason),
                    }
                }
                connection::Event::Failed(failure) => self.fail(id, failure.into()),
            }
        }
    }

    /// Ends the turn of a touched connection: it is looked at again when its timer is due.
    pub(crate) fn rest(&mut self, id: ConnectionId) {
        let Some(End::Open(open)) = self.ends.get_mut(&id) else {
            return;
        };
        open.touched = false;
        if !open.owing && open.core.owes_ack() {
            open.owing = true;
            self.owing.push(id);
        }
        let Some(peer) = &self.peers[open.peer] else {
            return;
        };
        let Some(due) = open.core.poll_timeout(&peer.paths) else {
            return;
        };
        // An earlier entry will look again when it is due; most never get that far.
        if open.timer.is_none_or(|timer| due < timer) {
            open.timer = Some(due);
            self.timers.push(Reverse((due, id)));
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            drops: self.drops.clone(),
            ended: self.ended,
            regions: self.regions.counts(),
            resets_sent: self.resets.sent(),
            resets_withheld: self.resets.withheld(),
            ..Snapshot::default()
        };
        for (&id, end) in &self.ends {
            let End::Open(open) = end else { continue };
            snapshot.drops.add(open.core.drops());
            snapshot.connections.push(ConnectionSnapshot {
                id,
                peer: open.address,
                stats: *open.core.stats(),
                drops: open.core.drops().clone(),
                outstanding_chunks: open.core.outstanding(),
                writes: open.writes.len(),
            });
        }
        for peer in self.peers.iter().flatten() {
            snapshot.peers.push(PeerSnapshot {
                address: peer.address,
                ports: peer.ports,
                live_paths: peer.paths.live(),
                paths: peer.paths.report().collect(),
            });
        }
        snapshot
    }
}

impl Open {
    /// The next chunk to send.
    pub(crate) fn poll_chunk(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        rng: &mut Rng,
    ) -> Option<Chunk> {
        // A chunk is one send whatever its size, so there is always room for one.
        self.core.poll_chunk(now, paths, rng, u32::MAX)
    }

    /// The next acknowledgement or probe, and on which path.
    pub(crate) fn poll_control(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        out: &mut [u8],
    ) -> Option<connection::ControlPacket> {
        self.core.poll_control(now, paths, out)
    }

    /// Its key among those that Resets are looked up by.
    fn name_at_peer(&self) -> NameAtPeer {
        (self.address, self.remote, self.ports.first, self.core.id())
    }

    /// What a chunk's packets carry, unless its write was completed meanwhile.
    pub(crate) fn source(&self, chunk: &Chunk) -> Option<&[u8]> {
        self.writes.get(&chunk.token).map(|write| &write.source[..])
    }

    /// Hands waiting writes to the core for as long as it takes them.
    fn post_waiting(&mut self) {
        while let Some(&token) = self.waiting.front() {
            let Some(write) = self.writes.get(&token) else {
                self.waiting.pop_front();
                continue;
            };
            let posted = self.core.post_write(Write {
                token,
                bytes: write.bytes,
                key: write.key,
                offset: write.offset,
                immediate: write.immediate,
            });
            match posted {
                Ok(()) => {
                    self.waiting.pop_front();
                }
                Err(PostError::QueueFull) => return,
                // Failed: its event is on the way. (The handle has checked the length.)
                Err(PostError::Closed | PostError::TooLong) => {
                    self.waiting.pop_front();
                }
            }
        }
    }
}

fn touch(touched: &mut Vec<ConnectionId>, id: ConnectionId, open: &mut Open) {
    if !open.touched {
        open.touched = true;
        touched.push(id);
    }
}

#[cfg(test)]
mod tests;
