//! Many senders to one receiver: whole endpoints over a switch whose port to the receiver queues and drops.

use std::collections::BTreeMap;

use weft_core::congestion::{CongestionKind, ROUND_TRIP};
use weft_core::connection::{Event, Failure, Settings, Write};
use weft_core::drops::DropReason;
use weft_core::endpoint::{Endpoint, EndpointConfig, Local, Remote};
use weft_core::memory::{Access, DomainId, Memory, Place, Placed, Ticket};
use weft_core::path::PolicyKind;
use weft_core::units::{ChunkNumber, ConnectionId, Key, Nanos, Time};
use weft_core::wire::{Atomic, Integrity, Kind, Secret, VERSION, peek};
use weft_crypto::AES_128_GCM;
use weft_sim::host::{Datagrams, Environment, Host};

const SENDERS: usize = 15;
/// The host that all send to.
const RECEIVER: usize = SENDERS;
/// Every NIC's rate, and the switch's: 10 Gbit/s.
const BPS: u64 = 10_000_000_000;
/// From a NIC to the switch, and from there to a NIC.
const HOP: Nanos = Nanos::from_micros(8);
/// IPv4 and UDP.
const LINK_HEADER: u64 = 28;
/// What the switch's port to the receiver holds.
const QUEUE: u64 = 1 << 20;
const MESSAGE: u64 = 1 << 20;
/// Messages under way on each connection.
const MESSAGES: u64 = 2;

const EQDS: CongestionKind = CongestionKind::Eqds {
    receive_bps: BPS,
    round_trip: ROUND_TRIP,
};
/// One bandwidth-delay product.
const WINDOW: u64 = BPS / 8 * ROUND_TRIP.get() / 1_000_000_000;
/// What is granted at a time: a quarter of it, in whole packets.
const QUANTUM: u64 = WINDOW / 4 / 4_096 * 4_096;

/// A line that takes one packet after the other.
#[derive(Clone, Copy, Default)]
struct Line {
    busy_until: u64,
}

impl Line {
    fn backlog(&self, now: u64) -> u64 {
        self.busy_until.saturating_sub(now) * BPS / 8_000_000_000
    }

    /// When a packet of `bytes` bytes is through.
    fn send(&mut self, now: u64, bytes: usize) -> u64 {
        let nanos = (bytes as u64 + LINK_HEADER) * 8_000_000_000 / BPS;
        self.busy_until = self.busy_until.max(now) + nanos;
        self.busy_until
    }
}

/// What a host has around it in a turn.
#[derive(Default)]
struct Outgoing(Vec<Datagrams>);

impl Memory for Outgoing {
    fn place(
        &mut self,
        _: Ticket,
        _: DomainId,
        _: Key,
        _: u64,
        _: &[u8],
    ) -> Result<Placed, DropReason> {
        Ok(Placed::Now)
    }

    fn check(&mut self, _: &Place, _: Access) -> Result<(), DropReason> {
        Ok(())
    }

    fn atomic(&mut self, _: DomainId, _: Key, _: u64, _: Atomic) -> Result<u64, DropReason> {
        Err(DropReason::Key)
    }
}

impl Environment for Outgoing {
    fn reset_token(&self, _to: usize, _connection: ConnectionId) -> u64 {
        0
    }

    fn send(&mut self, datagrams: Datagrams) {
        self.0.push(datagrams);
    }
}

enum Step {
    /// A packet reaches the switch.
    Switch(Datagrams),
    /// It reaches its host.
    Host(Datagrams),
    /// A host's timer is due.
    Timer(usize),
}

struct Incast {
    now: u64,
    hosts: Vec<Host>,
    nics: Vec<Line>,
    port: Line,
    steps: BTreeMap<(u64, u64), Step>,
    /// When each host's timer is due.
    wakes: Vec<u64>,
    planned: u64,
    /// The longest queue of the port, bytes.
    longest: u64,
    dropped: u64,
    /// One in so many packets is lost on its way to the switch.
    loses: u64,
    requests: u64,
    credits: u64,
    keeps_busy: [bool; SENDERS],
    failures: Vec<(usize, Failure)>,
    tokens: u64,
}

fn id(host: usize, sender: usize) -> ConnectionId {
    ConnectionId((host as u32 + 1) << 16 | sender as u32)
}

fn secret(host: usize, sender: usize) -> Secret {
    Secret([(16 * sender + usize::from(host == RECEIVER)) as u8; 32])
}

fn endpoint(index: usize, congestion: CongestionKind, now: Time) -> Endpoint<usize> {
    let config = EndpointConfig {
        peers_validated: true,
        reliable: false,
        settings: Settings {
            paths: 16,
            packet_payload: 4_032,
            chunk_bytes: 4 * 4_096,
            window_chunks: 256,
            wire_version: VERSION,
            integrity: Integrity::Sealed,
        },
        policy: PolicyKind::Oblivious,
        congestion,
        rto_min: Nanos::from_micros(250),
        stall_timeout: Nanos::from_millis(200),
        first_chunk: ChunkNumber(0),
        rate_cap_bps: None,
        link_header_bytes: LINK_HEADER as u32,
        link_segment_bytes: u32::MAX,
        cipher: &AES_128_GCM,
        seed: index as u64,
    };
    Endpoint::new(config, now)
}

impl Incast {
    fn new(senders: CongestionKind, receiver: CongestionKind, loses: u64) -> Incast {
        let kind = |index| if index == RECEIVER { receiver } else { senders };
        let host = |index| Host::new(index, endpoint(index, kind(index), Time::ZERO));
        let mut incast = Incast {
            now: 0,
            hosts: (0..=SENDERS).map(host).collect(),
            nics: vec![Line::default(); SENDERS + 1],
            port: Line::default(),
            steps: BTreeMap::new(),
            wakes: vec![u64::MAX; SENDERS + 1],
            planned: 0,
            longest: 0,
            dropped: 0,
            loses,
            requests: 0,
            credits: 0,
            keeps_busy: [false; SENDERS],
            failures: Vec::new(),
            tokens: 0,
        };
        for sender in 0..SENDERS {
            for (host, peer) in [(sender, RECEIVER), (RECEIVER, sender)] {
                let endpoint = &mut incast.hosts[host].endpoint;
                let local = Local {
                    domain: DomainId(1),
                    receive_secret: secret(peer, sender),
                    in_order: false,
                };
                endpoint.allocate(id(host, sender), local);
                let remote = Remote {
                    peer,
                    generation: 1,
                    id: id(peer, sender),
                    send_secret: secret(host, sender),
                    reset_tokens: Box::new([1]),
                };
                endpoint.connect(Time::ZERO, id(host, sender), remote);
            }
        }
        incast
    }

    /// Replaces a host's process.
    fn upgrade(&mut self, host: usize) {
        let now = Time::from_nanos(self.now);
        let congestion = self.hosts[host].endpoint.config().congestion;
        let next = endpoint(host, congestion, now);
        let old = std::mem::replace(&mut self.hosts[host].endpoint, next);
        for saved in old.save().expect("no placement is under way") {
            let restored = self.hosts[host].endpoint.restore(now, saved);
            restored.expect("what was saved is restored");
        }
        self.wake(host, self.now);
    }

    /// Keeps the connections of these senders busy from now on.
    fn begin(&mut self, senders: std::ops::Range<usize>) {
        for sender in senders {
            self.keeps_busy[sender] = true;
            for _ in 0..MESSAGES {
                self.write(sender, MESSAGE);
            }
            self.wake(sender, self.now);
        }
    }

    fn write(&mut self, sender: usize, bytes: u64) {
        self.tokens += 1;
        let write = Write {
            token: self.tokens,
            bytes,
            key: Key(1),
            offset: 0,
            immediate: None,
        };
        let endpoint = &mut self.hosts[sender].endpoint;
        endpoint
            .post(id(sender, sender), write)
            .expect("it is open");
    }

    fn plan(&mut self, at: u64, step: Step) {
        self.planned += 1;
        self.steps.insert((at, self.planned), step);
    }

    fn run_until(&mut self, until: Nanos) {
        while let Some(entry) = self
            .steps
            .first_entry()
            .filter(|e| e.key().0 <= until.get())
        {
            self.now = entry.key().0;
            match entry.remove() {
                Step::Switch(packet) if packet.to == RECEIVER => {
                    let backlog = self.port.backlog(self.now);
                    if backlog + packet.bytes.len() as u64 > QUEUE {
                        self.dropped += 1;
                        continue;
                    }
                    let sent = self.port.send(self.now, packet.bytes.len());
                    self.longest = self.longest.max(self.port.backlog(self.now));
                    self.plan(sent + HOP.get(), Step::Host(packet));
                }
                Step::Switch(packet) => self.plan(self.now + HOP.get(), Step::Host(packet)),
                Step::Host(packet) => self.turn(packet.to, &mut [packet]),
                Step::Timer(host) if self.wakes[host] == self.now => self.turn(host, &mut []),
                // It was brought forward.
                Step::Timer(_) => {}
            }
        }
        self.now = until.get();
    }

    fn turn(&mut self, host: usize, arrived: &mut [Datagrams]) {
        let now = Time::from_nanos(self.now);
        let mut outgoing = Outgoing::default();
        self.hosts[host].exchange(now, arrived, &mut outgoing);
        for datagrams in outgoing.0 {
            for packet in datagrams.bytes.chunks(datagrams.segment) {
                let kind = peek(packet).expect("what was sent has a prefix").kind;
                self.requests += u64::from(kind == Kind::RequestToSend);
                self.credits += u64::from(kind == Kind::Credit);
                let sent = self.nics[host].send(self.now, packet.len());
                if self.loses > 0 && self.planned.is_multiple_of(self.loses) {
                    self.planned += 1;
                    continue;
                }
                let packet = Datagrams {
                    bytes: packet.to_vec(),
                    ..datagrams
                };
                self.plan(sent + HOP.get(), Step::Switch(packet));
            }
        }
        let mut completed = 0;
        self.hosts[host].take_events(|_, event| match event {
            Event::Completed { .. } => completed += 1,
            Event::Failed(failure) => self.failures.push((host, failure)),
            _ => {}
        });
        if host != RECEIVER && self.keeps_busy[host] {
            (0..completed).for_each(|_| self.write(host, MESSAGE));
        }
        if let Some(due) = self.hosts[host].endpoint.poll_timeout(true) {
            self.wake(host, due.as_nanos().max(self.now));
        }
    }

    fn wake(&mut self, host: usize, at: u64) {
        if self.wakes[host] <= self.now || at < self.wakes[host] {
            self.wakes[host] = at;
            self.plan(at, Step::Timer(host));
        }
    }

    /// Payload placed, by sender.
    fn placed(&self) -> Vec<u64> {
        let endpoint = &self.hosts[RECEIVER].endpoint;
        let placed = |sender| {
            let connection = endpoint.connection(id(RECEIVER, sender));
            connection.map_or(0, |connection| connection.stats().bytes_placed)
        };
        (0..SENDERS).map(placed).collect()
    }

    /// Runs from `from` to `until`; returns the payload that each sender delivered, and the longest queue.
    fn measure(&mut self, from: Nanos, until: Nanos) -> (Vec<u64>, u64) {
        self.run_until(from);
        let before = self.placed();
        self.longest = 0;
        self.run_until(until);
        let delivered = self.placed().into_iter().zip(before);
        (
            delivered.map(|(after, before)| after - before).collect(),
            self.longest,
        )
    }
}

/// Delivered in thousandths of what the link could carry, and least of most by sender.
fn goodput_and_fairness(delivered: &[u64], span: Nanos) -> (u64, u64) {
    let link = BPS / 8 * span.get() / 1_000_000_000;
    let (least, most) = (delivered.iter().min(), delivered.iter().max());
    let goodput = delivered.iter().sum::<u64>() * 1_000 / link;
    (
        goodput,
        least.unwrap_or(&0) * 1_000 / most.unwrap_or(&1).max(&1),
    )
}

#[test]
fn uc6_fifteen_senders_to_one_receiver_share_its_link_and_queue_little_with_credits() {
    let fixed = CongestionKind::Fixed { bytes: 256 << 10 };
    for (name, congestion) in [
        ("eqds", EQDS),
        ("ecn-rtt", CongestionKind::ECN_RTT),
        ("fixed", fixed),
    ] {
        let mut incast = Incast::new(congestion, congestion, 0);
        incast.begin(0..SENDERS);
        incast.run_until(Nanos::from_millis(1));
        let first = incast.longest;
        let (delivered, longest) = incast.measure(Nanos::from_millis(10), Nanos::from_millis(40));
        let (goodput, fairness) = goodput_and_fairness(&delivered, Nanos::from_millis(30));
        println!(
            "{name}: {first} B queued at first, then {longest} B; {} packets dropped; goodput {goodput}, \
             fairness {fairness} of 1,000; {} credits, {} requests",
            incast.dropped, incast.credits, incast.requests
        );
        if congestion == EQDS {
            assert!(
                first <= SENDERS as u64 * WINDOW,
                "the first windows: {first} B"
            );
            assert!(
                longest <= SENDERS as u64 * QUANTUM,
                "what credit the ends of messages leave: {longest} B"
            );
            assert_eq!(incast.dropped, 0);
            assert!(goodput >= 900 && fairness >= 800, "{goodput}, {fairness}");
        } else {
            assert!(longest * 10 >= QUEUE * 9, "{name}: {longest} B");
        }
    }
}

#[test]
fn uc6_requests_credits_and_data_may_be_lost() {
    let mut incast = Incast::new(EQDS, EQDS, 50);
    incast.begin(0..SENDERS);
    let (delivered, longest) = incast.measure(Nanos::from_millis(10), Nanos::from_millis(40));
    let (goodput, fairness) = goodput_and_fairness(&delivered, Nanos::from_millis(30));
    println!(
        "{longest} B queued, goodput {goodput}, fairness {fairness}, {} requests",
        incast.requests
    );
    assert!(longest <= SENDERS as u64 * WINDOW, "{longest} B");
    assert!(goodput >= 800 && fairness >= 800, "{goodput}, {fairness}");
}

#[test]
fn uc6_a_sender_alone_gets_the_whole_link_from_its_first_round_trip_on() {
    let mut incast = Incast::new(EQDS, EQDS, 0);
    incast.begin(0..1);
    let (delivered, longest) = incast.measure(Nanos::from_micros(100), Nanos::from_millis(5));
    let (goodput, _) = goodput_and_fairness(&delivered, Nanos::from_micros(4_900));
    assert!(goodput >= 900, "{goodput}");
    assert!(longest <= WINDOW, "{longest} B");
}

#[test]
fn uc6_an_idle_sender_is_given_the_credit_of_its_first_window_again() {
    let mut incast = Incast::new(EQDS, EQDS, 0);
    let deliver = |incast: &mut Incast| {
        let (before, begun) = (incast.placed()[0], incast.now);
        incast.write(0, WINDOW * 3 / 4);
        incast.wake(0, incast.now);
        let mut micros = begun / 1_000;
        while incast.placed()[0] < before + WINDOW * 3 / 4 {
            micros += 1;
            incast.run_until(Nanos::from_micros(micros));
            assert!(incast.now < begun + 1_000_000, "it is delivered");
        }
        incast.run_until(Nanos::new(incast.now + 300_000));
        micros * 1_000 - begun
    };
    let first = deliver(&mut incast);
    for _ in 0..5 {
        assert!(deliver(&mut incast) <= first + 1_000);
    }
    assert_eq!(incast.requests, 0, "it had credit");
    assert!(incast.credits > 0);
}

#[test]
fn uc6_both_ends_are_replaced_and_go_on_within_their_credit() {
    let mut incast = Incast::new(EQDS, EQDS, 0);
    incast.begin(0..SENDERS);
    for at in 1..10 {
        incast.run_until(Nanos::from_millis(at));
        incast.upgrade(if at % 2 == 0 { RECEIVER } else { at as usize });
    }
    let (delivered, longest) = incast.measure(Nanos::from_millis(20), Nanos::from_millis(50));
    let (goodput, fairness) = goodput_and_fairness(&delivered, Nanos::from_millis(30));
    assert!(goodput >= 900 && fairness >= 800, "{goodput}, {fairness}");
    assert!(longest <= SENDERS as u64 * WINDOW, "{longest} B");
}

#[test]
fn uc6_a_receiver_with_another_control_fails_the_connection_and_does_not_hang_it() {
    let mut incast = Incast::new(EQDS, CongestionKind::ECN_RTT, 0);
    incast.begin(0..1);
    incast.run_until(Nanos::from_millis(190));
    assert_eq!(incast.failures, []);
    assert!(
        incast.placed()[0] <= WINDOW,
        "one window is sent without credit"
    );
    incast.run_until(Nanos::from_millis(500));
    assert_eq!(incast.failures, [(0, Failure::NoCredit)]);
}
