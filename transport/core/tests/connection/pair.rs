//! Two ends of a connection and the wire between them, over virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rand_core::SeedableRng;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{
    Arrival, Connection, ConnectionConfig, Event, Failure, Run, Settings, Write,
};
use weft_core::drops::DropReason;
use weft_core::memory::{Memory, check_bounds};
use weft_core::path::{PathReport, PathSet, PathSetConfig, PathState, PolicyKind};
use weft_core::units::{ConnectionId, Key, Nanos, PathId, Rng, Time};
use weft_core::wire::{
    self, Ack, CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, DataHeader, HEADER_BYTES, Kind, Seal,
    Secret,
};

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
    pub(crate) stall_timeout: Nanos,
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
            },
            policy: PolicyKind::RoundRobin,
            rto_min: micros(250),
            congestion: CongestionKind::Fixed {
                bytes: 64 * 4 * 1_064,
            },
            stall_timeout: Nanos::from_secs(5),
            delay: micros(50),
        }
    }
}

/// A region that may be away, with its owner.
pub(crate) struct Region {
    pub(crate) bytes: Vec<u8>,
    pub(crate) armed: bool,
}

impl Memory for Region {
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        if key != KEY {
            return Err(DropReason::Key);
        }
        if !self.armed {
            return Err(DropReason::NotArmed);
        }
        check_bounds(self.bytes.len() as u64, offset, payload.len() as u64)?;
        self.bytes[offset as usize..][..payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
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

/// One end with what its worker holds.
pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) paths: PathSet,
    pub(crate) memory: Region,
    pub(crate) events: Vec<Event>,
    rng: Rng,
    sources: BTreeMap<u64, Vec<u8>>,
    next_token: u64,
}

/// Two ends and the wire between them.
pub(crate) struct Pair {
    pub(crate) now: Time,
    pub(crate) a: End,
    pub(crate) b: End,
    setup: Setup,
    wire: BTreeMap<(Time, u64), (Packet, bool)>,
    sent: u64,
    faults: Vec<Fault>,
    trace: Option<String>,
    expected: BTreeSet<&'static str>,
    /// The last packets that arrived, for replays.
    pub(crate) arrived: Vec<Packet>,
}

pub(crate) fn secret(side: Side) -> Secret {
    Secret([if side == Side::A { 0xa1 } else { 0xb2 }; 32])
}

pub(crate) fn id(side: Side) -> ConnectionId {
    ConnectionId(if side == Side::A { 0xaaaa } else { 0xbbbb })
}

fn end(setup: &Setup, side: Side) -> End {
    let config = ConnectionConfig {
        settings: setup.settings,
        local: id(side),
        remote: id(side.other()),
        send_secret: secret(side),
        receive_secret: secret(side.other()),
        congestion: setup.congestion,
        stall_timeout: setup.stall_timeout,
        reset_token: 0x7265_7365_7421,
    };
    End {
        connection: Connection::new(config, Time::ZERO),
        paths: PathSet::new(&path_set(setup)),
        memory: Region {
            bytes: vec![0; REGION_BYTES],
            armed: true,
        },
        events: Vec::new(),
        rng: Rng::seed_from_u64(1),
        sources: BTreeMap::new(),
        next_token: 0,
    }
}

fn path_set(setup: &Setup) -> PathSetConfig {
    PathSetConfig {
        paths: setup.settings.paths,
        policy: setup.policy,
        rto_min: setup.rto_min,
    }
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(|_| ())
    }

    /// A pair that differs from the default in what `change` says.
    pub(crate) fn with(change: impl FnOnce(&mut Setup)) -> Pair {
        let mut setup = Setup::default();
        change(&mut setup);
        Pair {
            now: Time::ZERO,
            a: end(&setup, Side::A),
            b: end(&setup, Side::B),
            setup,
            wire: BTreeMap::new(),
            sent: 0,
            faults: Vec::new(),
            trace: None,
            expected: BTreeSet::new(),
            arrived: Vec::new(),
        }
    }

    pub(crate) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    // Faults: each is one line of a test.

    fn fault(&mut self, applies: impl FnMut(&Packet) -> bool + 'static, fate: Fate, once: bool) {
        self.faults.push(Fault {
            applies: Box::new(applies),
            fate,
            once,
        });
    }

    /// The next packet for which `applies` holds is lost.
    pub(crate) fn drop_next(&mut self, applies: impl FnMut(&Packet) -> bool + 'static) {
        self.fault(applies, Fate::Drop, true);
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
        self.faults.clear();
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
        let end = self.end(from);
        let token = end.next_token;
        end.next_token += 1;
        let source = (0..bytes)
            .map(|i| (i as u64 * 31 + i as u64 / 251 + token) as u8)
            .collect();
        end.sources.insert(token, source);
        let write = Write {
            token,
            bytes: bytes as u64,
            key: KEY,
            offset,
            immediate: imm,
        };
        end.connection
            .post_write(write)
            .expect("the queue has room");
        token
    }

    /// What was written under `token` at A.
    pub(crate) fn source(&self, token: u64) -> &[u8] {
        &self.a.sources[&token]
    }

    // Time.

    /// Runs until nothing is under way and both ends are idle.
    ///
    /// # Panics
    /// When that takes more than a minute.
    pub(crate) fn run(&mut self) {
        let limit = self.now + Nanos::from_secs(60);
        while self.step(limit) {}
        assert!(self.now < limit, "the pair is still busy after a minute");
    }

    /// Runs everything that happens in the next `span`.
    pub(crate) fn run_for(&mut self, span: Nanos) {
        let until = self.now + span;
        while self.step(until) {}
        self.now = until;
    }

    /// Does what comes next, if that is not after `until`.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        self.turn(Side::A);
        self.turn(Side::B);
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timers = [&self.a, &self.b].map(|end| end.connection.poll_timeout(&end.paths));
        let next = timers.into_iter().chain([arrival]).flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (packet, ce) = entry.remove();
            self.deliver(packet, ce);
        }
        for side in [Side::A, Side::B] {
            let now = self.now;
            let end = self.end(side);
            let due = end.connection.poll_timeout(&end.paths);
            if due.is_some_and(|at| at <= now) {
                end.connection.handle_timeout(now, &mut end.paths);
            }
        }
        true
    }

    /// Hands bytes to an end as if they had arrived on path 0.
    pub(crate) fn inject(&mut self, to: Side, bytes: &[u8]) -> Result<(), DropReason> {
        let now = self.now;
        let end = self.end(to);
        let result = end.connection.handle_packets(
            now,
            &mut end.paths,
            Arrival {
                path: PathId(0),
                ce: false,
            },
            Run {
                bytes,
                segment: bytes.len(),
            },
            &mut end.memory,
        );
        end.take_events();
        result
    }

    fn deliver(&mut self, packet: Packet, ce: bool) {
        let now = self.now;
        let path = packet.path;
        let end = self.end(packet.from.other());
        let run = Run {
            bytes: &packet.bytes,
            segment: packet.bytes.len(),
        };
        // What was dropped is looked at when the test ends.
        let _ = end.connection.handle_packets(
            now,
            &mut end.paths,
            Arrival { path, ce },
            run,
            &mut end.memory,
        );
        end.take_events();
        self.arrived.push(packet);
    }

    /// Everything that `side` has to send now.
    fn turn(&mut self, side: Side) {
        let now = self.now;
        let end = self.end(side);
        end.take_events();
        let mut out = Vec::new();
        let mut buffer = [0; CONTROL_BYTES_MAX];
        while let Some(control) = end
            .connection
            .poll_control(now, &mut end.paths, &mut buffer)
        {
            out.push((control.path, buffer[..control.bytes].to_vec()));
        }
        while let Some(chunk) =
            end.connection
                .poll_chunk(now, &mut end.paths, &mut end.rng, u32::MAX)
        {
            let source = &end.sources[&chunk.token];
            for i in 0..chunk.packets() {
                let range = chunk.payload(i);
                let payload = &source[range.start as usize..range.end as usize];
                let header = chunk.header(i);
                let trailer = chunk.trailer(&header, payload);
                out.push((chunk.path, [&header[..], payload, &trailer].concat()));
            }
        }
        for (path, bytes) in out {
            let kind = wire::peek(&bytes)
                .expect("what an end sends can be read")
                .kind;
            self.transmit(Packet {
                from: side,
                kind,
                path,
                bytes,
            });
        }
    }

    fn transmit(&mut self, mut packet: Packet) {
        let mut arrives = self.now + self.setup.delay;
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
        if self.trace.is_some() {
            let line = format!("{}{told}", self.line(&packet));
            let _ = writeln!(self.trace.get_or_insert_default(), "{line}");
        }
        for _ in 0..copies {
            self.sent += 1;
            self.wire.insert((arrives, self.sent), (packet.clone(), ce));
        }
    }

    // What a test looks at.

    /// From now on every packet sent is noted.
    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(String::new());
    }

    /// One line per packet sent: when (us), from whom, what, on which path.
    pub(crate) fn trace(&self) -> &str {
        self.trace.as_deref().expect("the test has started a trace")
    }

    fn line(&self, packet: &Packet) -> String {
        let at = self.now.as_nanos() / 1_000;
        let path = packet.path.0;
        let what = match packet.kind {
            Kind::Data => {
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
        };
        format!("{at:>6} {:?} {what} on {path}", packet.from)
    }

    /// The events at an end since the test last asked.
    pub(crate) fn events(&mut self, side: Side) -> Vec<Event> {
        let end = self.end(side);
        end.take_events();
        std::mem::take(&mut end.events)
    }

    /// The path as A sees it.
    pub(crate) fn path(&self, path: u8) -> PathReport {
        self.a
            .paths
            .report()
            .nth(path.into())
            .expect("the path exists")
    }

    pub(crate) fn path_state(&self, path: u8) -> PathState {
        self.path(path).state
    }

    /// Saves, drops and restores the connection at one end; `clock` is what a new process's clock
    /// would show, but one pair has one clock, so it is the pair's.
    pub(crate) fn restart(&mut self, side: Side) {
        let now = self.now;
        let paths = path_set(&self.setup);
        let end = self.end(side);
        let saved = end.connection.save();
        end.connection = Connection::restore(&saved, now).expect("what was saved is restored");
        end.paths = PathSet::new(&paths);
    }

    /// A sealed data packet from A, as only A can make it.
    pub(crate) fn sealed_data(&self, header: DataHeader, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        let trailer = Seal::new(&secret(Side::A)).trailer(&bytes, payload);
        [&bytes[..], payload, &trailer].concat()
    }

    /// A sealed acknowledgement from B.
    pub(crate) fn sealed_ack(&self, ack: &Ack<'_>, number: u64) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let seal = Seal::new(&secret(Side::B));
        let number = CONTROL_PACKET_NUMBERS + number;
        let length = ack.emit(&mut out, &seal, PathId(0), id(Side::A), number);
        out[..length].to_vec()
    }
}

impl Pair {
    /// A sealed refusal from B.
    pub(crate) fn sealed_refusal(&self, refusal: wire::Refusal, number: u64) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let seal = Seal::new(&secret(Side::B));
        let number = CONTROL_PACKET_NUMBERS + number;
        let length = refusal.emit(&mut out, &seal, PathId(0), id(Side::A), number);
        out[..length].to_vec()
    }
}

impl End {
    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            self.events.push(event);
        }
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.connection.failure()
    }
}

/// A drop that the test did not announce fails it.
impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (name, end) in [("A", &self.a), ("B", &self.b)] {
            for (reason, count) in end.connection.drops().iter() {
                let reason = reason.reason();
                assert!(
                    self.expected.contains(reason),
                    "{name} dropped {count} for {reason}"
                );
            }
        }
    }
}
