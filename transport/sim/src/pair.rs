//! Two hosts and the wire between them, over virtual time, on one thread and without sockets.
//!
//! The core's tests put faults on the wire and trace what passes, the fuzz targets make packets up, and
//! `core-pair` counts what a chunk costs: with buffers that are used again nothing is allocated once it runs.

use std::collections::VecDeque;

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Event, PostError, ReceiveBuffer, Settings, WorkRequest};
use weft_core::drops::DropReason;
use weft_core::endpoint::{Endpoint, EndpointConfig, Local, Remote};
use weft_core::memory::{Access, DomainId, Memory, Place, Placed, Ticket, check_bounds};
use weft_core::path::PolicyKind;
use weft_core::units::{ChunkNumber, ConnectionId, Key, Nanos, Time};
use weft_core::wire::{Atomic, Secret};
use weft_crypto::AES_128_GCM;

use crate::host::{Datagrams, Environment, Host};
use crate::pattern;

/// Datagrams under way that there is room for from the start.
const UNDER_WAY: usize = 1_024;

/// What lies between two hosts.
pub trait Wire {
    /// Takes datagrams; hands on what arrives, each time with the moment of arrival.
    fn carry(&mut self, now: Time, datagrams: Datagrams, arrives: &mut impl FnMut(Time, Datagrams));

    /// What a write holds from `offset` on, as [`Environment::content`].
    fn content(&self, token: u64, offset: u64) -> &[u8] {
        pattern::from(token, offset)
    }

    /// An empty buffer for datagrams.
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes a buffer back.
    fn recycle(&mut self, bytes: Vec<u8>) {
        drop(bytes);
    }
}

/// A region that may be away, with its owner. Open to every domain.
#[derive(Clone, Debug)]
pub struct Region {
    /// What opens it.
    pub key: Key,
    /// What it holds.
    pub bytes: Vec<u8>,
    /// Whether it takes anything.
    pub armed: bool,
    /// Whether payload is kept, and copied when [`Pair::end_copies`] says so.
    pub copies_later: bool,
    /// Payloads that are kept, each with its place.
    pub copies: Vec<(Ticket, u64, Vec<u8>)>,
    /// Payloads that were ever kept.
    pub copies_begun: u64,
}

impl Memory for Region {
    fn place(
        &mut self,
        ticket: Ticket,
        _domain: DomainId,
        key: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<Placed, DropReason> {
        self.find(key, offset, payload.len() as u64)?;
        if self.copies_later {
            self.copies_begun += 1;
            self.copies.push((ticket, offset, payload.to_vec()));
            return Ok(Placed::Pending);
        }
        self.bytes[offset as usize..][..payload.len()].copy_from_slice(payload);
        Ok(Placed::Now)
    }

    fn check(&mut self, place: &Place, _access: Access) -> Result<(), DropReason> {
        self.find(place.key, place.offset, place.bytes)
    }

    fn atomic(
        &mut self,
        _domain: DomainId,
        key: Key,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, DropReason> {
        self.find(key, offset, Atomic::BYTES)?;
        let word = self.bytes[offset as usize..].first_chunk_mut();
        let word = word.ok_or(DropReason::Bounds)?;
        let before = u64::from_le_bytes(*word);
        *word = atomic.apply(before).to_le_bytes();
        Ok(before)
    }
}

impl Region {
    fn find(&self, key: Key, offset: u64, bytes: u64) -> Result<(), DropReason> {
        if key != self.key {
            return Err(DropReason::Key);
        }
        if !self.armed {
            return Err(DropReason::NotArmed);
        }
        check_bounds(self.bytes.len() as u64, offset, bytes)
    }
}

/// One of the two hosts.
#[derive(Debug)]
pub struct End {
    /// Its endpoint.
    pub host: Host,
    /// What the other one may write to.
    pub memory: Region,
    /// The events that nobody has taken yet.
    pub events: Vec<(ConnectionId, Event)>,
    /// What a Reset from here carries.
    pub reset_token: u64,
    inbox: Vec<Datagrams>,
    /// Its worker is busy until then.
    busy_until: Time,
}

impl End {
    /// When its worker has something to do.
    fn due(&mut self, now: Time, link_takes_chunks: bool) -> Option<Time> {
        let due = match self.inbox.is_empty() {
            false => Some(now),
            true => self.host.endpoint.poll_timeout(link_takes_chunks),
        };
        due.map(|due| due.max(self.busy_until))
    }
}

/// What a pair is made with.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Of both endpoints; the second one's seed is the next.
    pub endpoint: EndpointConfig,
    /// Chunks that the link takes in one turn.
    pub chunks_per_turn: u32,
    /// How long a turn takes.
    pub turn: Nanos,
    /// The key of both regions.
    pub key: Key,
    /// Their length.
    pub region_bytes: usize,
    /// Whether the ends of messages are reported in order.
    pub in_order: bool,
}

impl PairConfig {
    /// A pair with these settings: paths in turn, a window that holds everything, turns that take no time.
    pub fn new(settings: Settings) -> PairConfig {
        PairConfig {
            endpoint: EndpointConfig {
                settings,
                policy: PolicyKind::RoundRobin,
                congestion: CongestionKind::Fixed {
                    bytes: u32::from(settings.window_chunks) * settings.chunk_bytes,
                },
                rto_min: Nanos::from_micros(250),
                stall_timeout: Nanos::from_secs(5),
                first_chunk: ChunkNumber(0),
                peers_validated: true,
                reliable: false,
                rate_cap_bps: None,
                link_header_bytes: 28,
                link_segment_bytes: u32::MAX,
                cipher: &AES_128_GCM,
                seed: 1,
            },
            chunks_per_turn: u32::MAX,
            turn: Nanos::ZERO,
            key: Key(0x6b65_7921),
            region_bytes: 4 << 20,
            in_order: false,
        }
    }
}

/// Two hosts and the wire between them.
#[derive(Debug)]
pub struct Pair<W> {
    /// The clock of both.
    pub now: Time,
    /// Host 0 and host 1.
    pub ends: [End; 2],
    /// What lies between them.
    pub wire: W,
    config: PairConfig,
    /// What is under way, in order of arrival.
    flights: VecDeque<(Time, Datagrams)>,
}

/// The id of a connection at a host, by its number in the pair.
pub fn id(host: usize, number: u32) -> ConnectionId {
    ConnectionId((host as u32 + 1) << 16 | number)
}

/// What a host seals with on a connection.
pub fn secret(host: usize, number: u32) -> Secret {
    Secret([(0xa0 + host as u8) ^ number as u8; 32])
}

impl<W: Wire> Pair<W> {
    /// Two hosts without a connection.
    pub fn new(config: PairConfig, wire: W) -> Pair<W> {
        let end = |index: usize| End {
            host: Host::new(index, endpoint(&config, index, Time::ZERO)),
            memory: Region {
                key: config.key,
                bytes: vec![0; config.region_bytes],
                armed: true,
                copies_later: false,
                copies: Vec::new(),
                copies_begun: 0,
            },
            events: Vec::new(),
            reset_token: 0x7265_7365_7421 + index as u64,
            inbox: Vec::with_capacity(UNDER_WAY),
            busy_until: Time::ZERO,
        };
        Pair {
            now: Time::ZERO,
            ends: [end(0), end(1)],
            wire,
            flights: VecDeque::with_capacity(UNDER_WAY),
            config,
        }
    }

    /// Makes connection `number` of tenant `domain` known to a host, which is how the other one may come first.
    pub fn allocate(&mut self, host: usize, number: u32, domain: DomainId) {
        let local = Local {
            domain,
            receive_secret: secret(1 - host, number),
            in_order: self.config.in_order,
        };
        let endpoint = &mut self.ends[host].host.endpoint;
        endpoint.allocate(id(host, number), local);
    }

    /// Joins a host's end of a connection to the other end.
    pub fn connect_end(&mut self, host: usize, number: u32, generation: u64) {
        let remote = Remote {
            peer: 1 - host,
            generation,
            id: id(1 - host, number),
            send_secret: secret(host, number),
            reset_tokens: Box::new([self.ends[1 - host].reset_token]),
        };
        let endpoint = &mut self.ends[host].host.endpoint;
        endpoint.connect(self.now, id(host, number), remote);
    }

    /// Connects the two hosts, for tenant `domain`.
    pub fn connect(&mut self, number: u32, domain: DomainId) {
        for host in 0..2 {
            self.allocate(host, number, domain);
        }
        for host in 0..2 {
            self.connect_end(host, number, 1);
        }
    }

    /// Posts a work request of a host.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    pub fn post(
        &mut self,
        host: usize,
        number: u32,
        request: impl Into<WorkRequest>,
    ) -> Result<(), PostError> {
        let endpoint = &mut self.ends[host].host.endpoint;
        endpoint.post(id(host, number), request)
    }

    /// Posts a buffer for a send to a host.
    ///
    /// # Errors
    /// As [`Endpoint::post_receive`].
    pub fn post_receive(
        &mut self,
        host: usize,
        number: u32,
        buffer: ReceiveBuffer,
    ) -> Result<(), PostError> {
        let endpoint = &mut self.ends[host].host.endpoint;
        endpoint.post_receive(id(host, number), buffer)
    }

    /// Ends the copies that a host's region has kept, with this result.
    ///
    /// # Panics
    /// When no connection waited for one.
    pub fn end_copies(&mut self, host: usize, result: Result<(), DropReason>) {
        let End { host, memory, .. } = &mut self.ends[host];
        for (ticket, offset, payload) in std::mem::take(&mut memory.copies) {
            if result.is_ok() {
                memory.bytes[offset as usize..][..payload.len()].copy_from_slice(&payload);
            }
            let waited = host.endpoint.placed(self.now, ticket, result, memory);
            assert!(waited, "no connection waits for {ticket:?}");
        }
    }

    /// Replaces a host's process: its connections are saved, and taken over by the next endpoint.
    ///
    /// # Panics
    /// When placements are under way, or a saved connection is not restored.
    pub fn upgrade(&mut self, host: usize) {
        let next = endpoint(&self.config, host, self.now);
        let end = &mut self.ends[host].host;
        let old = std::mem::replace(&mut end.endpoint, next);
        for saved in old.save().expect("no placement is under way") {
            let restored = end.endpoint.restore(self.now, saved);
            restored.expect("what was saved is restored");
        }
    }

    /// A host loses everything that it knew.
    pub fn restart(&mut self, host: usize) {
        self.ends[host].host.endpoint = endpoint(&self.config, host, self.now);
    }

    /// How many chunks each link takes in one turn from now on.
    pub fn set_chunks_per_turn(&mut self, chunks: u32) {
        self.config.chunks_per_turn = chunks;
    }

    /// Whether nothing is under way and no connection has anything to do.
    pub fn is_quiet(&mut self) -> bool {
        self.turns();
        let over = |end: &End| {
            let mut connections = end.host.endpoint.connections();
            end.inbox.is_empty() && connections.all(|(connection, _)| connection.is_idle())
        };
        self.flights.is_empty() && self.ends.iter().all(over)
    }

    /// Does what is due now, and then what comes next, if that is not after `until`.
    pub fn step(&mut self, until: Time) -> bool {
        self.turns();
        let arrival = self.flights.front().map(|(at, _)| *at);
        let takes = self.config.chunks_per_turn > 0;
        let dues = [0, 1].map(|end| self.ends[end].due(self.now, takes));
        let next = dues.into_iter().chain([arrival]).flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some((_, datagrams)) = self.flights.pop_front_if(|(at, _)| *at <= self.now) {
            self.ends[datagrams.to].inbox.push(datagrams);
        }
        self.turns();
        true
    }

    /// Runs everything that happens in the next `span`.
    pub fn run_for(&mut self, span: Nanos) {
        let until = self.now + span;
        while self.step(until) {}
        self.now = until;
    }

    /// Hands datagrams to a host now, as if they had arrived.
    pub fn inject(&mut self, datagrams: Datagrams) {
        let to = datagrams.to;
        self.ends[to].inbox.push(datagrams);
        self.turn(to, true);
    }

    /// The same; the events stay inside the endpoint.
    pub fn inject_untold(&mut self, datagrams: Datagrams) {
        let to = datagrams.to;
        self.ends[to].inbox.push(datagrams);
        self.turn(to, false);
    }

    fn turns(&mut self) {
        for end in 0..2 {
            let takes = self.config.chunks_per_turn > 0;
            if self.ends[end]
                .due(self.now, takes)
                .is_some_and(|due| due <= self.now)
            {
                self.turn(end, true);
            }
        }
    }

    fn turn(&mut self, end: usize, tells: bool) {
        let Pair {
            now,
            ends,
            wire,
            flights,
            config,
        } = self;
        let End {
            host,
            memory,
            events,
            reset_token,
            inbox,
            busy_until,
        } = &mut ends[end];
        *busy_until = *now + config.turn;
        let mut surroundings = Surroundings {
            now: *now,
            memory,
            wire,
            flights,
            chunks: config.chunks_per_turn,
            reset_token: *reset_token,
        };
        host.exchange(*now, inbox, &mut surroundings);
        if tells {
            host.take_events(|id, event| events.push((id, event)));
        }
        for datagrams in inbox.drain(..) {
            wire.recycle(datagrams.bytes);
        }
    }
}

fn endpoint(config: &PairConfig, host: usize, now: Time) -> Endpoint<usize> {
    let seed = config.endpoint.seed + host as u64;
    let config = EndpointConfig {
        seed,
        ..config.endpoint.clone()
    };
    Endpoint::new(config, now)
}

/// What a host of a pair has around it.
struct Surroundings<'a, W> {
    now: Time,
    memory: &'a mut Region,
    wire: &'a mut W,
    flights: &'a mut VecDeque<(Time, Datagrams)>,
    chunks: u32,
    reset_token: u64,
}

impl<W> Memory for Surroundings<'_, W> {
    fn place(
        &mut self,
        ticket: Ticket,
        domain: DomainId,
        key: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<Placed, DropReason> {
        self.memory.place(ticket, domain, key, offset, payload)
    }

    fn check(&mut self, place: &Place, access: Access) -> Result<(), DropReason> {
        self.memory.check(place, access)
    }

    fn atomic(
        &mut self,
        domain: DomainId,
        key: Key,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, DropReason> {
        self.memory.atomic(domain, key, offset, atomic)
    }
}

impl<W: Wire> Environment for Surroundings<'_, W> {
    fn buffer(&mut self) -> Vec<u8> {
        self.wire.buffer()
    }

    fn content(&self, token: u64, offset: u64) -> &[u8] {
        self.wire.content(token, offset)
    }

    fn region(&self, key: Key, offset: u64) -> Option<&[u8]> {
        let found = key == self.memory.key;
        found.then(|| &self.memory.bytes[offset as usize..])
    }

    fn reset_token(&self, _to: usize, _connection: ConnectionId) -> u64 {
        self.reset_token
    }

    fn chunks(&self) -> u32 {
        self.chunks
    }

    fn send(&mut self, datagrams: Datagrams) {
        let flights = &mut *self.flights;
        self.wire.carry(self.now, datagrams, &mut |at, datagrams| {
            flights.push_back((at, datagrams));
            // Most arrive in the order in which they were sent.
            let mut last = flights.len() - 1;
            while last > 0 && flights[last - 1].0 > at {
                flights.swap(last - 1, last);
                last -= 1;
            }
        });
    }
}

/// Whether a region holds the first `bytes` bytes of the write `token` at `offset`.
pub fn holds(region: &[u8], offset: usize, token: u64, bytes: usize) -> bool {
    let step = pattern::LONGEST;
    (0..bytes).step_by(step).all(|at| {
        let length = step.min(bytes - at);
        region[offset + at..][..length] == *pattern::slice(token, at as u64, length)
    })
}
