//! Two ends of a connection and the wire between them, over virtual time: a fault is one visible line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Connection, Event, Failure, Settings, Stats, Write};
use weft_core::drops::DropReason;
use weft_core::endpoint::Endpoint;
use weft_core::memory::{Access, DomainId};
use weft_core::path::{PathReport, PathSet, PathState, PolicyKind};
use weft_core::units::{ChunkNumber, ConnectionId, Key, Nanos, PathId, Time};
use weft_core::wire::{
    self, Ack, CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, Cipher, DataHeader, Envelope, Integrity,
    KeyPhase, Kind, OVERHEAD_BYTES, Seal, Secret,
};
use weft_crypto::AES_128_GCM;
use weft_sim::host::Datagrams;
pub(crate) use weft_sim::pair::End;
use weft_sim::pair::{self, PairConfig, Region, Wire};
use weft_sim::pattern;

/// The key of the region at each end.
pub(crate) const KEY: Key = Key(0x6b65_7921);
/// Its length.
pub(crate) const REGION_BYTES: usize = 4 << 20;

pub(crate) const fn micros(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// What a test sets before the two ends meet.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) settings: Settings,
    pub(crate) policy: PolicyKind,
    pub(crate) rto_min: Nanos,
    pub(crate) congestion: CongestionKind,
    pub(crate) cipher: &'static dyn Cipher,
    pub(crate) stall_timeout: Nanos,
    pub(crate) in_order: bool,
    /// The link says which paths break.
    pub(crate) reliable: bool,
    /// The first chunk's number, both ways.
    pub(crate) first_chunk: ChunkNumber,
    /// One way.
    pub(crate) delay: Nanos,
}

impl Default for Setup {
    /// Four paths in turn, chunks of four packets of 1,000 B, 50 us one way, a window that nothing
    /// here fills.
    fn default() -> Setup {
        Setup {
            settings: Settings {
                paths: 4,
                packet_payload: 1_000,
                chunk_bytes: 4 * 1_064,
                window_chunks: 64,
                wire_version: wire::VERSION,
                integrity: Integrity::Sealed,
            },
            policy: PolicyKind::RoundRobin,
            rto_min: micros(250),
            congestion: CongestionKind::Fixed {
                bytes: 64 * 4 * 1_064,
            },
            cipher: &AES_128_GCM,
            stall_timeout: Nanos::from_secs(5),
            in_order: false,
            reliable: false,
            first_chunk: ChunkNumber(0),
            delay: micros(50),
        }
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    fn of(host: usize) -> Side {
        if host == 0 { Side::A } else { Side::B }
    }

    pub(crate) fn other(self) -> Side {
        if self == Side::A { Side::B } else { Side::A }
    }
}

/// A datagram on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: Side,
    pub(crate) kind: Kind,
    pub(crate) path: PathId,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    fn datagrams(&self, ce: bool) -> Datagrams {
        Datagrams {
            from: self.from as usize,
            to: self.from.other() as usize,
            path: self.path,
            ce,
            segment: self.bytes.len(),
            bytes: self.bytes.clone(),
        }
    }

    pub(crate) fn is_data(&self) -> bool {
        self.kind == Kind::Data
    }

    pub(crate) fn is_ack(&self) -> bool {
        self.kind == Kind::Ack
    }

    /// The data header; only for data.
    pub(crate) fn header(&self) -> DataHeader {
        DataHeader::parse(&self.bytes).expect("a data packet has a data header")
    }

    /// What stands around its payload; only for data.
    pub(crate) fn envelope(&self) -> Envelope {
        let (header, trailer) = (self.bytes.first_chunk(), self.bytes.last_chunk());
        let whole = header.copied().zip(trailer.copied());
        let (header, trailer) = whole.expect("a data packet has both");
        Envelope { header, trailer }
    }

    pub(crate) fn is_chunk(&self, number: u32) -> bool {
        self.is_data() && self.header().chunk.0 == number
    }
}

/// What becomes of a packet.
enum Fate {
    Drop,
    Twice,
    Late(Nanos),
    Mark,
    Flip(usize),
}

struct Fault {
    applies: Box<dyn FnMut(&Packet) -> bool>,
    fate: Fate,
    once: bool,
}

/// Delays every packet by the same time, and does to it what the test says.
pub(crate) struct FaultyWire {
    delay: Nanos,
    faults: Vec<Fault>,
    trace: Option<String>,
    /// The packets that were not lost, for replays.
    pub(crate) arrived: Vec<Packet>,
    /// The others.
    pub(crate) lost: Vec<Packet>,
}

impl Wire for FaultyWire {
    fn carry(
        &mut self,
        now: Time,
        datagrams: Datagrams,
        arrives: &mut impl FnMut(Time, Datagrams),
    ) {
        for bytes in datagrams.bytes.chunks(datagrams.segment) {
            let packet = Packet {
                from: Side::of(datagrams.from),
                kind: wire::peek(bytes)
                    .expect("what an end sends can be read")
                    .kind,
                path: datagrams.path,
                bytes: bytes.to_vec(),
            };
            self.transmit(now, packet, arrives);
        }
    }
}

impl FaultyWire {
    fn transmit(
        &mut self,
        now: Time,
        mut packet: Packet,
        deliver: &mut impl FnMut(Time, Datagrams),
    ) {
        let mut arrives = now + self.delay;
        let (mut ce, mut copies, mut told) = (false, 1, "");
        let hit = self
            .faults
            .iter_mut()
            .position(|fault| (fault.applies)(&packet));
        if let Some(at) = hit {
            match self.faults[at].fate {
                Fate::Drop => (copies, told) = (0, " lost"),
                Fate::Twice => (copies, told) = (2, " twice"),
                Fate::Late(by) => (arrives, told) = (arrives + by, " late"),
                Fate::Mark => (ce, told) = (true, " marked"),
                Fate::Flip(byte) => {
                    packet.bytes[byte] ^= 0x10;
                    told = " damaged";
                }
            }
            if self.faults[at].once {
                self.faults.remove(at);
            }
        }
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{}{told}", line(now, &packet));
        }
        if copies == 0 {
            self.lost.push(packet.clone());
        }
        for _ in 0..copies {
            deliver(arrives, packet.datagrams(ce));
            self.arrived.push(packet.clone());
        }
    }
}

/// The body of a control packet that is not encrypted.
fn body_of(packet: &Packet) -> &[u8] {
    &packet.bytes[wire::PREFIX_BYTES..packet.bytes.len() - wire::TRAILER_BYTES]
}

/// One line of a trace: when (us), from whom, what, on which path.
fn line(now: Time, packet: &Packet) -> String {
    let at = now.as_nanos() / 1_000;
    let path = packet.path.0;
    let what = match packet.kind {
        Kind::Data | Kind::Send | Kind::Request | Kind::Response => {
            let h = packet.header();
            let again = if h.flags.contains(wire::Flags::RETRANSMITTED) {
                " again"
            } else {
                ""
            };
            let last = if h.flags.contains(wire::Flags::LAST) {
                " last"
            } else {
                ""
            };
            let asks = if h.flags.contains(wire::Flags::ACK_NOW) {
                " asks"
            } else {
                ""
            };
            let (chunk, packet, packets) = (h.chunk.0, h.packet, h.packets);
            format!("data {chunk}.{packet}/{packets}{last}{again}{asks}")
        }
        Kind::Ack => {
            let body = &packet.bytes[wire::PREFIX_BYTES..][..];
            let body = &body[..body.len() - wire::TRAILER_BYTES];
            let ack = wire::AckReader::parse(body).expect("an end sends sound acks");
            let mut text = format!("ack {}", ack.cumulative().0);
            let base = ack.cumulative().0 / 64 * 64;
            for (w, word) in ack.map().enumerate() {
                for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                    let _ = write!(text, " +{}", base + 64 * w as u32 + bit);
                }
            }
            for partial in ack.partials() {
                let _ = write!(text, " {}:{:b}", partial.chunk.0, partial.packets);
            }
            text
        }
        Kind::Probe => "probe".to_owned(),
        Kind::Reset => "reset".to_owned(),
        Kind::Refusal => {
            let body = &packet.bytes[wire::PREFIX_BYTES..][..8];
            let refusal = wire::Refusal::parse(body).expect("an end sends sound refusals");
            format!("refuse {} {:?}", refusal.chunk.0, refusal.refused)
        }
        Kind::Revoke => {
            let revoke = wire::Revoke::parse(body_of(packet)).expect("an end sends sound ones");
            let (number, first, end) = (revoke.number, revoke.first.0, revoke.end.0);
            format!("revoke {number} from {first} to {end}")
        }
        Kind::Revoked => {
            let revoked = wire::Revoked::parse(body_of(packet)).expect("an end sends sound ones");
            let whole = if revoked.whole { " whole" } else { "" };
            format!("revoked {}{whole}", revoked.number)
        }
        other => panic!("no end sends a packet of kind {other:?}"),
    };
    format!("{at:>6} {:?} {what} on {path}", packet.from)
}

/// Two ends with one connection.
pub(crate) struct Pair {
    inner: pair::Pair<FaultyWire>,
    setup: Setup,
    tokens: [u64; 2],
    /// How many of each end's events the test has taken.
    taken: [usize; 2],
    lengths: Vec<usize>,
    expected: BTreeSet<&'static str>,
}

impl Deref for Pair {
    type Target = pair::Pair<FaultyWire>;
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Pair {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

pub(crate) fn secret(side: Side) -> Secret {
    pair::secret(side as usize, 0)
}

pub(crate) fn id(side: Side) -> ConnectionId {
    pair::id(side as usize, 0)
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(|_| ())
    }

    /// A pair whose packets are encrypted.
    pub(crate) fn encrypted() -> Pair {
        Pair::with(|setup| setup.settings.integrity = Integrity::Aead)
    }

    /// A pair that differs from the default in what `change` says.
    pub(crate) fn with(change: impl FnOnce(&mut Setup)) -> Pair {
        let mut setup = Setup::default();
        change(&mut setup);
        let mut config = PairConfig::new(setup.settings);
        config.endpoint.policy = setup.policy;
        config.endpoint.rto_min = setup.rto_min;
        config.endpoint.congestion = setup.congestion;
        config.endpoint.stall_timeout = setup.stall_timeout;
        config.endpoint.cipher = setup.cipher;
        config.in_order = setup.in_order;
        config.endpoint.reliable = setup.reliable;
        config.endpoint.first_chunk = setup.first_chunk;
        (config.key, config.region_bytes) = (KEY, REGION_BYTES);
        let wire = FaultyWire {
            delay: setup.delay,
            faults: Vec::new(),
            trace: None,
            arrived: Vec::new(),
            lost: Vec::new(),
        };
        let mut inner = pair::Pair::new(config, wire);
        inner.connect(0, DomainId(0));
        Pair {
            inner,
            setup,
            tokens: [0; 2],
            taken: [0; 2],
            lengths: Vec::new(),
            expected: BTreeSet::new(),
        }
    }

    // Faults: each is one line of a test.

    fn fault(&mut self, applies: impl FnMut(&Packet) -> bool + 'static, fate: Fate, once: bool) {
        self.inner.wire.faults.push(Fault {
            applies: Box::new(applies),
            fate,
            once,
        });
    }

    /// The next packet for which `applies` holds is lost.
    pub(crate) fn drop_next(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Drop, true);
    }

    /// Every such packet is lost, before any fault that was said earlier.
    pub(crate) fn faults_first(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        let fault = Fault {
            applies: Box::new(applies),
            fate: Fate::Drop,
            once: false,
        };
        self.inner.wire.faults.insert(0, fault);
    }

    /// Every packet for which `applies` holds is lost, until [`Pair::heal`].
    pub(crate) fn drop_all(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Drop, false);
    }

    /// The next such packet arrives twice.
    pub(crate) fn double_next(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Twice, true);
    }

    /// The next such packet arrives this much later.
    pub(crate) fn delay_next(&mut self, by: Nanos, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Late(by), true);
    }

    /// Every such packet arrives this much later.
    pub(crate) fn delay_all(&mut self, by: Nanos, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Late(by), false);
    }

    /// Every such packet is marked congestion-experienced.
    pub(crate) fn mark_all(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Mark, false);
    }

    /// One bit of the byte at `at` of the next such packet is flipped.
    pub(crate) fn flip_next(&mut self, at: usize, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Flip(at), true);
    }

    /// No fault any more.
    pub(crate) fn heal(&mut self) {
        self.inner.wire.faults.clear();
    }

    /// Drops for this reason do not fail the test.
    pub(crate) fn expect_drop(&mut self, reason: DropReason) {
        self.expected.insert(reason.reason());
    }

    // Work.

    /// A writes `bytes` patterned bytes to the start of B's region. Returns the token.
    pub(crate) fn write(&mut self, bytes: usize) -> u64 {
        self.write_to(Side::A, bytes, 0, None)
    }

    pub(crate) fn write_to(
        &mut self,
        from: Side,
        bytes: usize,
        offset: u64,
        imm: Option<u32>,
    ) -> u64 {
        let token = self.tokens[from as usize];
        self.tokens[from as usize] += 1;
        if from == Side::A {
            self.lengths.push(bytes);
        }
        let write = Write {
            token,
            bytes: bytes as u64,
            key: KEY,
            offset,
            immediate: imm,
        };
        let posted = self.inner.post(from as usize, 0, write);
        posted.expect("the connection is open");
        token
    }

    /// What was written under `token` at A.
    pub(crate) fn source(&self, token: u64) -> Vec<u8> {
        let bytes = self.lengths[token as usize];
        let content = (0..bytes).map(|at| pattern::slice(token, at as u64, 1)[0]);
        content.collect()
    }

    /// Runs until nothing is under way and both ends are idle.
    ///
    /// # Panics
    /// When that takes more than a minute.
    pub(crate) fn run(&mut self) {
        let limit = self.now + Nanos::from_secs(60);
        while !self.inner.is_quiet() && self.step(limit) {}
        assert!(self.now < limit, "the pair is still busy after a minute");
    }

    /// Hands bytes to an end as if they had arrived on path 0. Answers why a packet of them was dropped.
    pub(crate) fn inject(&mut self, to: Side, bytes: &[u8]) -> Result<(), DropReason> {
        self.inject_run(to, bytes, bytes.len().max(1), false)
    }

    /// Hands bytes to an end, and leaves the events inside its endpoint.
    pub(crate) fn inject_untold(&mut self, to: Side, bytes: &[u8]) {
        self.inner.inject_untold(Datagrams {
            from: to.other() as usize,
            to: to as usize,
            path: PathId(0),
            ce: false,
            segment: bytes.len(),
            bytes: bytes.to_vec(),
        });
    }

    /// Hands datagrams of `segment` bytes to an end.
    pub(crate) fn inject_run(
        &mut self,
        to: Side,
        bytes: &[u8],
        segment: usize,
        ce: bool,
    ) -> Result<(), DropReason> {
        let before: Vec<u64> = self.drops(to).map(|(_, count)| count).collect();
        self.inner.inject(Datagrams {
            from: to.other() as usize,
            to: to as usize,
            path: PathId(0),
            ce,
            segment,
            bytes: bytes.to_vec(),
        });
        let mut after = self.drops(to).zip(before);
        let dropped = after.find(|((_, after), before)| after > before);
        dropped.map_or(Ok(()), |((reason, _), _)| Err(reason))
    }

    // What a test looks at.

    /// What an end has dropped, by reason.
    pub(crate) fn drops(&self, side: Side) -> impl Iterator<Item = (DropReason, u64)> {
        let endpoint = &self.ends[side as usize].host.endpoint;
        let mut drops = endpoint.counters().drops;
        for (connection, _) in endpoint.connections() {
            drops.add(connection.drops());
        }
        DropReason::ALL
            .iter()
            .map(move |&reason| (reason, drops.get(reason)))
    }

    /// The connection at an end; it has not failed.
    pub(crate) fn connection(&self, side: Side) -> &Connection {
        let endpoint = &self.ends[side as usize].host.endpoint;
        let connection = endpoint.connection(id(side));
        connection.expect("the connection is open")
    }

    /// Whether a side takes no ends of messages.
    pub(crate) fn hold(&mut self, side: Side, held: bool) {
        self.ends[side as usize].host.endpoint.hold(id(side), held);
    }

    /// What the peer of a side may do to regions.
    pub(crate) fn set_access(&mut self, side: Side, access: Access) {
        let endpoint = &mut self.ends[side as usize].host.endpoint;
        endpoint.set_access(id(side), access).expect("it is open");
    }

    /// A side's connection waits for its peer without end.
    pub(crate) fn set_waits_for_receiver(&mut self, side: Side) {
        let endpoint = &mut self.ends[side as usize].host.endpoint;
        let set = endpoint.set_waits_for_receiver(id(side), true);
        set.expect("it is open");
    }

    /// A side's connection goes on when its peer refuses a work request.
    pub(crate) fn set_survives_refusals(&mut self, side: Side) {
        let endpoint = &mut self.ends[side as usize].host.endpoint;
        let set = endpoint.set_survives_refusals(id(side), true);
        set.expect("it is open");
    }

    /// What an end names of its connection, which has failed.
    pub(crate) fn failed_request(&self, side: Side) -> Option<u64> {
        self.ends[side as usize]
            .host
            .endpoint
            .failed_request(id(side))
    }

    /// What an end has counted, whether its connection is open or over.
    pub(crate) fn stats(&self, side: Side) -> Stats {
        let endpoint = &self.ends[side as usize].host.endpoint;
        let mut stats = endpoint.counters().ended;
        for (connection, _) in endpoint.connections() {
            stats.add(connection.stats());
        }
        stats
    }

    /// An end's paths to the other end.
    pub(crate) fn paths(&self, side: Side) -> &PathSet {
        let mut peers = self.ends[side as usize].host.endpoint.peers();
        peers.next().expect("the connection is open").1
    }

    pub(crate) fn memory(&self, side: Side) -> &Region {
        &self.ends[side as usize].memory
    }

    pub(crate) fn memory_mut(&mut self, side: Side) -> &mut Region {
        &mut self.ends[side as usize].memory
    }

    /// From now on every packet sent is noted.
    pub(crate) fn start_trace(&mut self) {
        self.wire.trace = Some(String::new());
    }

    /// One line per packet sent.
    pub(crate) fn trace(&self) -> &str {
        let trace = self.wire.trace.as_deref();
        trace.expect("the test has started a trace")
    }

    /// The events at an end since the test last asked.
    pub(crate) fn events(&mut self, side: Side) -> Vec<Event> {
        let events = &self.inner.ends[side as usize].events;
        let new = &events[self.taken[side as usize]..];
        self.taken[side as usize] = events.len();
        new.iter().map(|(_, event)| *event).collect()
    }

    /// Why the connection at an end is over, if it is.
    pub(crate) fn failure(&self, side: Side) -> Option<Failure> {
        let mut events = self.ends[side as usize].events.iter();
        events.find_map(|(_, event)| match event {
            Event::Failed(failure) => Some(*failure),
            _ => None,
        })
    }

    /// The path as A sees it.
    pub(crate) fn path(&self, path: u8) -> PathReport {
        let mut report = self.paths(Side::A).report();
        report.nth(path.into()).expect("the path exists")
    }

    pub(crate) fn path_state(&self, path: u8) -> PathState {
        self.path(path).state
    }

    /// Saves the connection at one end and restores it in a new endpoint.
    pub(crate) fn restart(&mut self, side: Side) {
        self.upgrade(side as usize);
    }

    /// One end loses all that it knew.
    pub(crate) fn lose_all(&mut self, side: Side) {
        self.inner.restart(side as usize);
    }

    /// Ends the endpoint at one end; what its connection saves.
    pub(crate) fn save(&mut self, side: Side) -> Vec<u8> {
        let end = &mut self.inner.ends[side as usize].host;
        let next = Endpoint::new(end.endpoint.config().clone(), self.inner.now);
        let saved = std::mem::replace(&mut end.endpoint, next).save();
        let saved = saved.expect("no placement is under way");
        saved[0].state.clone()
    }

    /// What seals the packets of one end before keys change.
    pub(crate) fn seal(&self, from: Side) -> Seal {
        let Setup {
            settings, cipher, ..
        } = self.setup;
        Seal::with(settings.integrity, &secret(from), KeyPhase::FIRST, cipher)
    }

    /// A sealed data packet from A, as only A can make it.
    pub(crate) fn sealed_data(&self, header: DataHeader, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; payload.len() + OVERHEAD_BYTES];
        self.seal(Side::A).seal_data(&header, payload, &mut bytes);
        bytes
    }

    /// The number of B's first control packet.
    fn control_number(&self) -> u64 {
        let first = self.connection(Side::B).config().first_packet;
        CONTROL_PACKET_NUMBERS + u64::from(first.rotate_left(16))
    }

    /// A sealed acknowledgement from B.
    pub(crate) fn sealed_ack(&self, ack: &Ack<'_>, number: u64) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let number = self.control_number() + number;
        let length = ack.emit(
            &mut out,
            &self.seal(Side::B),
            PathId(0),
            id(Side::A),
            number,
        );
        out[..length].to_vec()
    }

    /// A sealed refusal from B.
    pub(crate) fn sealed_refusal(&self, refusal: wire::Refusal, number: u64) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let number = self.control_number() + number;
        let length = refusal.emit(
            &mut out,
            &self.seal(Side::B),
            PathId(0),
            id(Side::A),
            number,
        );
        out[..length].to_vec()
    }
}

/// A drop that the test did not announce fails it.
impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for side in [Side::A, Side::B] {
            for (reason, count) in self.drops(side) {
                let reason = reason.reason();
                assert!(
                    count == 0 || self.expected.contains(reason),
                    "{side:?} dropped {count} for {reason}"
                );
            }
        }
    }
}
