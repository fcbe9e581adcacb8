//! Shared memory: a path is a connection to another process of the node, made by the end that sends data on it. Packets go
//! through rings in memory that both processes have ([`ring`]); a payload is copied from there straight into its place.
//!
//! The kernel is asked to connect, to wake an end that sleeps, and to say that a peer is gone: that is told as a path that
//! breaks ([`PathCondition::Broken`]). An end that connects sends its path, its own address, the token of the other end and the
//! memory first; a connection without that token is closed at once. Acknowledgements go back on the connection that the data
//! came on.
//!
//! A path takes a chunk when the ring has room for the longest one, and is blocked otherwise. What is sent on a blocked path
//! nevertheless is kept.

mod connection;
mod handshake;
mod receive;
mod ring;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use slab::Slab;
use weft_core::units::{Nanos, PathId, Source, Time};
use weft_memory::Region;

use crate::address::{LinkAddress, LinkKind, LinkToken};
use crate::error::{LinkError, Refusal};
use crate::incoming::IncomingPaths;
use crate::link::{
    Capabilities, Counters, Destination, Handler, Link, PathChange, PathCondition, Sent,
};
use crate::outgoing::{Outgoing, OutgoingPaths, Way};
use crate::ports::PortRange;
use crate::preamble::Preamble;
use connection::{Connection, Role};
use ring::{BadRing, End, Producer, Wakeups};

/// The token of the socket that others connect to. The poller has the one above for itself.
const LISTENER: Token = Token(usize::MAX - 1);

/// Connections of other ends at most. Each is looked at in each turn, and has memory of its own.
const INCOMING_MAX: usize = 1_024;

/// A connection that nothing was sent or received on for so long is closed by the end that made it. The next chunk makes it
/// again.
const IDLE_MAX: Nanos = Nanos::from_secs(60);

/// What a link over shared memory is opened with.
#[derive(Debug, Clone)]
pub struct ShmConfig {
    /// An address of the node. It and the first port only name this end in the network namespace.
    pub address: IpAddr,
    /// The link is connected to at the first of these.
    pub ports: PortRange,
    /// What every peer sends first when it connects here.
    pub token: LinkToken,
    /// Paths to a peer, and from it: others are refused.
    pub paths: u16,
}

impl ShmConfig {
    fn address(&self) -> LinkAddress {
        LinkAddress::of(LinkKind::Shm, self.address, self.ports, self.token)
    }
}

/// Another process of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmPeer(LinkAddress);

/// The connections of one worker to other processes of the node. Owned by that worker.
pub struct ShmLink {
    config: ShmConfig,
    listener: OwnedFd,
    is_listener_readable: bool,
    /// Connections were taken in this turn: others wait for the next one.
    has_accepted: bool,
    /// By token.
    entries: Slab<Entry>,
    /// Those that are open, in the order in which they are read.
    slots: Vec<usize>,
    /// Whose turn it is among them.
    turn: usize,
    outgoing: OutgoingPaths,
    incoming: IncomingPaths,
    /// Of the last connection.
    generation: u16,
    /// Connections without a purpose so far, the oldest first.
    unfinished: VecDeque<usize>,
    /// Those whose path takes no chunk.
    blocked: Vec<usize>,
    /// Those into which something was put since peers were woken.
    published: Vec<usize>,
    /// The peers were told that this end sleeps.
    is_asleep: bool,
    /// Of a packet that is not read into its place.
    packet: Box<[u8]>,
    /// Of a packet while it is sealed.
    sealed: Box<[u8]>,
    changes: VecDeque<PathChange>,
    registry: Option<Registry>,
    /// As of the last call that told.
    now: Time,
    /// When to look for what has waited for too long.
    check_at: Option<Time>,
    counters: Counters,
}

/// What a slot has.
enum Entry {
    /// Another end has connected, and has not said what for.
    Unfinished {
        socket: OwnedFd,
        /// Until when it has to say; set in the first turn after.
        finish_by: Option<Time>,
    },
    Open(Box<Connection>),
    /// Nothing, for a moment.
    Closed,
}

impl Entry {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unfinished { socket, .. } => Some(socket.as_fd()),
            Self::Open(connection) => Some(connection.fd()),
            Self::Closed => None,
        }
    }
}

impl ShmLink {
    /// Payload of the longest packet, bytes: two of them are a chunk of 64 KiB.
    pub const PAYLOAD_BYTES: usize = ring::PAYLOAD_BYTES;

    /// There is no network whose packets could have a code point.
    ///
    /// # Errors
    /// None: other links have some.
    pub fn set_dscp(&mut self, _: u8) -> Result<(), LinkError> {
        Ok(())
    }

    fn open(&self, slot: usize) -> Option<&Connection> {
        match self.entries.get(slot) {
            Some(Entry::Open(connection)) => Some(connection),
            _ => None,
        }
    }

    fn open_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        match self.entries.get_mut(slot) {
            Some(Entry::Open(connection)) => Some(connection),
            _ => None,
        }
    }

    fn opened(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|&slot| self.open(slot))
    }

    fn insert(&mut self, entry: Entry) -> io::Result<usize> {
        let vacant = self.entries.vacant_entry();
        let slot = vacant.key();
        if let Some((registry, fd)) = self.registry.as_ref().zip(entry.fd()) {
            watch(registry, fd, Token(slot))?;
        }
        vacant.insert(entry);
        Ok(slot)
    }

    fn next_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn check_by(&mut self, at: Time) {
        self.check_at = Some(self.check_at.map_or(at, |check_at| check_at.min(at)));
    }

    /// The connection of a path, made if there is none. `None`: its peer is not to be reached now.
    fn outgoing(&mut self, way: Way) -> Option<usize> {
        let failures = match self.outgoing.get(&way) {
            Outgoing::Open(slot) => return Some(slot),
            Outgoing::ToMake(failures) => failures,
            Outgoing::Broken => return None,
        };
        let made = self.connect(way, failures);
        if made.is_err() {
            self.set_broken(way, failures + 1);
        }
        made.ok()
    }

    fn connect(&mut self, way: Way, failures: u32) -> io::Result<usize> {
        let preamble = Preamble {
            token: way.0.token().ok_or(io::ErrorKind::InvalidInput)?,
            path: way.1,
            from: self.address(),
        };
        let (socket, memory): (_, Arc<Region>) = handshake::connect(&way.0, &preamble)?;
        let rings = ends(&memory)?;
        let user = rustix::process::geteuid().as_raw();
        let role = Role::Outgoing { failures };
        let mut connection = Connection::new(socket, way, role, user, rings, self.now);
        connection.generation = self.next_generation();
        if self.is_asleep {
            // A caller that posts has made it.
            connection.wakeups.want(Wakeups::PACKETS | Wakeups::ROOM);
            fence(Ordering::SeqCst);
        }
        let slot = self.insert(Entry::Open(Box::new(connection)))?;
        self.slots.push(slot);
        self.outgoing.open(way, slot);
        self.check_by(self.now + IDLE_MAX);
        Ok(slot)
    }

    /// Closes a connection. A path that it was of is broken.
    fn close(&mut self, slot: usize) {
        match self.remove(slot) {
            Some(Entry::Open(connection)) => match connection.role {
                Role::Outgoing { failures } => self.set_broken(connection.way, failures + 1),
                Role::Incoming => self.incoming.remove(&connection.way, slot),
            },
            Some(Entry::Unfinished { .. }) => self.unfinished.retain(|&other| other != slot),
            Some(Entry::Closed) | None => {}
        }
    }

    fn remove(&mut self, slot: usize) -> Option<Entry> {
        for slots in [&mut self.slots, &mut self.blocked, &mut self.published] {
            slots.retain(|&other| other != slot);
        }
        let entry = self.entries.try_remove(slot);
        // A forked process may have the socket, too: it ends here nevertheless.
        if let Some(fd) = entry.as_ref().and_then(Entry::fd) {
            if let Some(registry) = &self.registry {
                let _ = registry.deregister(&mut SourceFd(&fd.as_raw_fd()));
            }
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        entry
    }

    /// What a peer wrote is nothing that it could have written by the rules.
    fn close_bad(&mut self, slot: usize) {
        self.counters.bad_frames += 1;
        self.close(slot);
    }

    fn set_broken(&mut self, way: Way, failures: u32) {
        let ready_at = self.outgoing.set_broken(self.now, way, failures);
        self.changes
            .push_back(PathChange::new(way, PathCondition::Broken));
        self.counters.broken_paths += 1;
        self.check_by(ready_at);
    }

    /// Ends what has waited for too long, and finds out when to look again.
    fn check(&mut self) {
        let now = self.now;
        self.is_listener_readable = true;
        let mut next: Option<Time> = None;
        let mut due = |at: Time| {
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            at <= now
        };
        let mut over = Vec::new();
        for (slot, entry) in &mut self.entries {
            let is_over = match entry {
                Entry::Unfinished { finish_by, .. } => {
                    due(*finish_by.get_or_insert(now + handshake::HANDSHAKE_MAX))
                }
                Entry::Open(connection) => {
                    connection.role != Role::Incoming && due(connection.used_at + IDLE_MAX)
                }
                Entry::Closed => false,
            };
            if is_over {
                over.push(slot);
            }
        }
        self.outgoing.check(due, &mut self.changes);
        self.check_at = next;
        for slot in over {
            match self.open(slot) {
                None => self.refuse(slot),
                // Nothing is under way on it: nothing is lost.
                Some(it) if it.outbox.is_empty() && it.kept.is_empty() => {
                    let way = it.way;
                    self.outgoing.forget(&way);
                    self.remove(slot);
                }
                Some(_) => self.close(slot),
            }
        }
    }

    /// Sends what a blocked path keeps, and says when it takes chunks again. Answers whether anything has changed.
    fn unblock(&mut self, slot: usize) -> Result<bool, BadRing> {
        let Some(connection) = self.open_mut(slot) else {
            return Ok(false);
        };
        let mut changed = connection.put_kept()?;
        let (way, is_ready) = (connection.way, connection.takes_chunk()?);
        if is_ready {
            connection.is_blocked = false;
            self.blocked.retain(|&other| other != slot);
            self.changes
                .push_back(PathChange::new(way, PathCondition::Ready));
        }
        if changed {
            self.publish(slot);
        }
        changed |= is_ready;
        Ok(changed)
    }

    /// The peer is woken at the end of the turn, if it sleeps; at once if that is seen already.
    fn publish(&mut self, slot: usize) {
        let now = self.now;
        if let Some(connection) = self.open_mut(slot) {
            connection.used_at = now;
            let woken = connection.wake(Wakeups::PACKETS);
            let was_published = std::mem::replace(&mut connection.is_published, true);
            self.counters.send_calls += u64::from(woken);
            if !was_published {
                self.published.push(slot);
            }
        }
    }

    /// Puts a chunk into the ring of a connection, or keeps it.
    fn put_chunk(
        connection: &mut Connection,
        room: &mut [u8],
        packets: u32,
        mut seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Result<usize, BadRing> {
        let has_room = connection.takes_chunk()?;
        let mut bytes = 0;
        for packet in 0..packets {
            let length = seal(packet, room);
            match has_room {
                true => connection.outbox.put(&room[..length]),
                false => connection.kept.push_back(room[..length].into()),
            }
            bytes += length;
        }
        Ok(bytes)
    }
}

fn ends(memory: &Arc<Region>) -> io::Result<(ring::Producer, ring::Consumer, Wakeups)> {
    let ends = ring::ends(memory, End::Connector);
    ends.map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn watch(registry: &Registry, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
    registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)
}

impl Link for ShmLink {
    type Config = ShmConfig;
    type Peer = ShmPeer;

    fn open(config: ShmConfig) -> Result<Self, LinkError> {
        config.ports.check()?;
        Ok(Self {
            listener: handshake::listen(&config)?,
            config,
            is_listener_readable: true,
            has_accepted: false,
            entries: Slab::new(),
            slots: Vec::new(),
            turn: 0,
            outgoing: OutgoingPaths::default(),
            incoming: IncomingPaths::new(INCOMING_MAX, INCOMING_MAX),
            generation: 0,
            unfinished: VecDeque::new(),
            blocked: Vec::new(),
            published: Vec::new(),
            is_asleep: false,
            packet: vec![0; ring::PACKET_BYTES_MAX].into(),
            sealed: vec![0; ring::PACKET_BYTES_MAX].into(),
            changes: VecDeque::new(),
            registry: None,
            now: Time::ZERO,
            check_at: None,
            counters: Counters::default(),
        })
    }

    fn address(&self) -> LinkAddress {
        self.config.address()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            paths: self.address().paths_to(&self.address()),
            packet_bytes: ring::PACKET_BYTES_MAX,
            chunk_bytes: Producer::CHUNK_ROOM,
            // Control packets overtake chunks that wait for room.
            in_order: false,
            encrypts: false,
            places: true,
            reliable: true,
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn peer(&self, address: &LinkAddress) -> Result<ShmPeer, LinkError> {
        if address.kind() != LinkKind::Shm {
            return Err(LinkError::OtherLink {
                address: self.address().to_string(),
                peer: address.to_string(),
            });
        }
        address.check()?;
        Ok(ShmPeer(*address))
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        watch(registry, self.listener.as_fd(), LISTENER)?;
        for (slot, entry) in &self.entries {
            if let Some(fd) = entry.fd() {
                watch(registry, fd, Token(slot))?;
            }
        }
        self.registry = Some(registry.try_clone()?);
        Ok(())
    }

    fn handle_event(&mut self, event: &Event) {
        if event.token() == LISTENER {
            self.is_listener_readable = true;
            return;
        }
        let Token(slot) = event.token();
        self.finish(slot);
        if let Some(connection) = self.open_mut(slot) {
            connection.drain();
            connection.has_ended |= event.is_read_closed() || event.is_error();
        }
    }

    fn is_readable(&self) -> bool {
        self.is_listener_readable && !self.has_accepted
            || self.opened().any(Connection::is_readable)
    }

    fn shows_arrivals(&self) -> bool {
        true
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.has_accepted = false;
        self.is_asleep = true;
        for connection in self.opened() {
            let room = if connection.is_blocked {
                Wakeups::ROOM
            } else {
                0
            };
            connection.wakeups.want(Wakeups::PACKETS | room);
        }
        // What a peer does from here on it does before it looks whether this end sleeps, or this end sees it.
        fence(Ordering::SeqCst);
        let mut has_room = false;
        for &slot in &self.blocked {
            if let Some(Entry::Open(connection)) = self.entries.get_mut(slot) {
                has_room |= connection.takes_chunk() != Ok(false)
                    || !connection.kept.is_empty()
                        && connection.outbox.has_packet_room() != Ok(false);
            }
        }
        let is_done = self.published.is_empty() && self.changes.is_empty();
        is_done && !has_room && !self.is_readable()
    }

    fn receive(&mut self, handler: &mut impl Handler) -> usize {
        if self.is_listener_readable && !self.has_accepted {
            self.has_accepted = true;
            self.accept();
        }
        self.take_in(handler)
    }

    fn can_send(&self) -> bool {
        true
    }

    fn send_chunk(
        &mut self,
        now: Time,
        peer: &ShmPeer,
        path: PathId,
        packets: u32,
        seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent {
        self.now = now;
        let way = (peer.0, path);
        let slot = self.outgoing(way);
        let slot = slot.filter(|slot| self.open(*slot).is_some());
        let Some((slot, Some(Entry::Open(connection)))) =
            slot.map(|slot| (slot, self.entries.get_mut(slot)))
        else {
            self.counters.unreachable += 1;
            // Who did not know that the path is broken learns it.
            self.changes
                .push_back(PathChange::new(way, PathCondition::Broken));
            return Sent::Dropped(Refusal::Unreachable);
        };
        let put = Self::put_chunk(connection, &mut self.sealed, packets, seal);
        let Ok((bytes, takes_more)) = put.and_then(|bytes| Ok((bytes, connection.takes_chunk()?)))
        else {
            self.close_bad(slot);
            return Sent::Dropped(Refusal::Unreachable);
        };
        // Only `unblock` ends it: until then the connection is among the blocked ones.
        let was_blocked = connection.is_blocked;
        connection.is_blocked |= !takes_more;
        self.counters.sent_packets += u64::from(packets);
        self.counters.sent_bytes += bytes as u64;
        self.publish(slot);
        if takes_more {
            return Sent::Whole;
        }
        if !was_blocked {
            self.counters.blocked += 1;
            self.blocked.push(slot);
        }
        // Who did not know that the path takes nothing learns it: connections to another owner there, say.
        self.changes
            .push_back(PathChange::new(way, PathCondition::Blocked));
        Sent::Kept
    }

    fn send_gathered(&mut self) {
        if self.published.is_empty() {
            return;
        }
        // What was put there is seen by who goes to sleep after this, or this end sees that it sleeps.
        fence(Ordering::SeqCst);
        while let Some(slot) = self.published.pop() {
            if let Some(connection) = self.open_mut(slot) {
                connection.is_published = false;
                if connection.wake(Wakeups::PACKETS) {
                    self.counters.send_calls += 1;
                }
            }
        }
    }

    fn send_control(&mut self, destination: Destination<'_, ShmPeer>, packet: &[u8]) {
        let slot = match destination {
            Destination::Path(peer, path) => self.outgoing((peer.0, path)),
            Destination::Reverse(peer, path) => self.incoming.get(&(peer.0, path)),
            Destination::Source(from) => {
                // Another connection may have the slot by now.
                let slot = receive::slot_of(from);
                self.open_mut(slot)
                    .is_some_and(|it| source(it, slot) == from)
                    .then_some(slot)
            }
        };
        let Some((slot, connection)) = slot.and_then(|slot| Some((slot, self.open_mut(slot)?)))
        else {
            self.counters.unreachable += 1;
            return;
        };
        match connection.outbox.has_packet_room() {
            Ok(true) => {}
            Ok(false) => {
                self.counters.blocked += 1;
                return;
            }
            Err(BadRing) => return self.close_bad(slot),
        }
        connection.outbox.put(packet);
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += packet.len() as u64;
        self.publish(slot);
    }

    fn flush(&mut self, now: Time) -> bool {
        self.now = now;
        self.has_accepted = false;
        if std::mem::replace(&mut self.is_asleep, false) {
            for connection in self.opened() {
                connection.wakeups.want(0);
            }
        }
        let mut busy = false;
        for at in (0..self.blocked.len()).rev() {
            let slot = self.blocked[at];
            match self.unblock(slot) {
                Ok(changed) => busy |= changed,
                Err(BadRing) => self.close_bad(slot),
            }
        }
        self.send_gathered();
        if self.check_at.is_some_and(|at| at <= now) {
            self.check();
        }
        busy
    }

    fn flush_at(&self) -> Option<Time> {
        match self.changes.is_empty() && self.published.is_empty() {
            true => self.check_at,
            false => Some(Time::ZERO),
        }
    }

    fn poll_path(&mut self) -> Option<PathChange> {
        self.changes.pop_front()
    }
}

/// What the core knows a sender by: its address, and the connection that leads back. There are fewer than 2^16 connections, for
/// each has an open file.
fn source(connection: &Connection, slot: usize) -> Source {
    let mut bytes = [0; Source::BYTES];
    bytes[..16].copy_from_slice(&connection.way.0.host().0);
    bytes[16..18].copy_from_slice(&connection.generation.to_be_bytes());
    bytes[18..].copy_from_slice(&(slot as u16).to_be_bytes());
    Source(bytes)
}
