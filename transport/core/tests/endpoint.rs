//! An endpoint among others: who sends how much, whom it answers, and what becomes of a chunk that the link
//! refuses. Two endpoints over virtual time; most tests see to it that several connections are open.

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Event, Failure, Settings, Write};
use weft_core::drops::DropReason;
use weft_core::endpoint::{Endpoint, Transmit};
use weft_core::memory::DomainId;
use weft_core::received::Received;
use weft_core::recovery::ACK_DELAY;
use weft_core::units::{Key, Nanos, PathId, Source, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, Integrity, Kind, OVERHEAD_BYTES, Reset, VERSION, peek};
use weft_sim::host::Datagrams;
use weft_sim::pair::{End, Pair, PairConfig, Wire, holds, id};

/// One way.
const DELAY: Nanos = Nanos::from_micros(50);
const PAYLOAD: u32 = 1_000;
const MEBIBYTE: u64 = 1 << 20;

/// Delays everything by the same time, and keeps what was sent.
#[derive(Debug, Default)]
struct Recorder {
    sent: Vec<(Time, Datagrams)>,
}

impl Recorder {
    /// What a host sent of a kind, with its number of packets.
    fn of(&self, from: usize, kind: Kind) -> impl Iterator<Item = (Time, &Datagrams, usize)> {
        let sent = self.sent.iter();
        let sent = sent.filter(move |(_, d)| {
            d.from == from && peek(&d.bytes).is_ok_and(|peek| peek.kind == kind)
        });
        sent.map(|(at, d)| (*at, d, d.bytes.len().div_ceil(d.segment)))
    }
}

impl Wire for Recorder {
    fn carry(
        &mut self,
        now: Time,
        datagrams: Datagrams,
        arrives: &mut impl FnMut(Time, Datagrams),
    ) {
        self.sent.push((now, datagrams.clone()));
        arrives(now + DELAY, datagrams);
    }
}

fn config() -> PairConfig {
    let packet = PAYLOAD + OVERHEAD_BYTES as u32;
    PairConfig::new(Settings {
        paths: 4,
        packet_payload: PAYLOAD as u16,
        chunk_bytes: 4 * packet,
        window_chunks: 64,
        wire_version: VERSION,
        integrity: Integrity::Sealed,
    })
}

fn pair() -> Pair<Recorder> {
    Pair::new(config(), Recorder::default())
}

fn write(pair: &mut Pair<Recorder>, number: u32, token: u64, bytes: u64) {
    let write = Write {
        token,
        bytes,
        key: pair.ends[1].memory.key,
        offset: 0,
        immediate: None,
    };
    let posted = pair.post(0, number, write);
    posted.expect("the connection is open");
}

fn acked(pair: &Pair<Recorder>, number: u32) -> u64 {
    let connection = pair.ends[0].host.endpoint.connection(id(0, number));
    connection.map_or(0, |connection| connection.stats().bytes_acked)
}

fn failures(pair: &Pair<Recorder>, host: usize) -> Vec<(u32, Failure)> {
    let failures = pair.ends[host].events.iter();
    let failures = failures.filter_map(|(connection, event)| match event {
        Event::Failed(failure) => Some((connection.0 & 0xffff, *failure)),
        _ => None,
    });
    failures.collect()
}

fn unknown(pair: &Pair<Recorder>, host: usize) -> u64 {
    let counters = pair.ends[host].host.endpoint.counters();
    counters.drops.get(DropReason::UnknownConnection)
}

#[test]
fn two_tenants_share_the_link_evenly_when_one_has_many_connections() {
    let mut config = config();
    config.endpoint.rate_cap_bps = Some(400_000_000);
    let mut pair = Pair::new(config, Recorder::default());
    for number in 0..9 {
        let tenant = DomainId(u32::from(number > 0));
        pair.connect(number, tenant);
        write(&mut pair, number, 1, 4 * MEBIBYTE);
    }
    pair.run_for(Nanos::from_millis(150));
    let [alone, others] = [acked(&pair, 0), (1..9).map(|n| acked(&pair, n)).sum()];
    let spread = alone.abs_diff(others) * 100 / others;
    assert!(spread <= 3, "{alone} B beside {others} B");
}

#[test]
fn what_is_sent_under_a_rate_cap_is_the_cap() {
    // Each packet with its headers, and packets that are cut to segments.
    for segment_bytes in [u32::MAX, 250] {
        let mut config = config();
        config.endpoint.rate_cap_bps = Some(80_000_000);
        config.endpoint.link_segment_bytes = segment_bytes;
        let mut pair = Pair::new(config, Recorder::default());
        pair.connect(0, DomainId(1));
        write(&mut pair, 0, 1, 4 * MEBIBYTE);
        pair.run_for(Nanos::from_millis(110));
        let link_headers = 28;
        let data = pair.wire.of(0, Kind::Data);
        let bytes: usize = data
            .map(|(_, datagrams, packets)| {
                let bytes = datagrams.bytes.len();
                bytes + packets.max(bytes.div_ceil(segment_bytes as usize)) * link_headers
            })
            .sum();
        // 10 MB/s for 110 ms and the 10 ms that a full bucket holds, to the nearest chunk.
        assert!(bytes.abs_diff(1_200_000) < 5_000, "{bytes} B");
    }
}

#[test]
fn a_restarted_peer_fails_the_connections_of_its_last_life() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    pair.connect(1, DomainId(2));
    write(&mut pair, 0, 1, 10_000);
    pair.run_for(Nanos::from_millis(10));
    pair.restart(1);
    pair.allocate(0, 2, DomainId(1));
    pair.allocate(1, 2, DomainId(1));
    pair.connect_end(1, 2, 1);
    pair.connect_end(0, 2, 2);
    write(&mut pair, 2, 2, 10_000);
    pair.run_for(Nanos::from_millis(10));
    let failed = [(0, Failure::PeerRestarted), (1, Failure::PeerRestarted)];
    assert_eq!(failures(&pair, 0), failed);
    assert_eq!(acked(&pair, 2), 10_000);
    assert_eq!(
        unknown(&pair, 1),
        0,
        "the old ones were told by the new one"
    );
}

#[test]
fn packets_for_an_allocated_id_get_no_reset() {
    let mut pair = pair();
    pair.allocate(0, 0, DomainId(1));
    pair.allocate(1, 0, DomainId(1));
    pair.connect_end(0, 0, 1);
    write(&mut pair, 0, 1, 10_000);
    pair.run_for(Nanos::from_micros(200));
    assert!(unknown(&pair, 1) > 0, "the peer was quicker");
    pair.connect_end(1, 0, 1);
    pair.run_for(Nanos::from_millis(50));
    assert_eq!(pair.wire.of(1, Kind::Reset).count(), 0);
    assert_eq!(failures(&pair, 0), []);
    assert_eq!(acked(&pair, 0), 10_000);
}

#[test]
fn a_reset_answers_the_packets_of_a_lost_connection_and_fails_it() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    pair.connect(1, DomainId(1));
    pair.restart(1);
    write(&mut pair, 0, 1, 1_000);
    pair.run_for(Nanos::from_millis(1));
    assert_eq!(pair.wire.of(1, Kind::Reset).count(), 1);
    assert_eq!(failures(&pair, 0), [(0, Failure::PeerRestarted)]);
}

#[test]
fn the_peer_of_a_connection_that_has_failed_is_told_though_its_user_has_not_closed_it() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    write(&mut pair, 0, 1, 1_000);
    pair.run_for(Nanos::from_millis(1));
    // Host 1 has nothing in flight: only its own wish to write finds the key refused.
    let refused = Write {
        token: 2,
        bytes: 8,
        key: Key(1),
        offset: 0,
        immediate: None,
    };
    pair.post(1, 0, refused).expect("the connection is open");
    pair.run_for(Nanos::from_millis(1));
    assert_eq!(failures(&pair, 1), [(0, Failure::KeyRefused)]);
    write(&mut pair, 0, 3, 1_000);
    pair.run_for(Nanos::from_millis(1));
    assert_eq!(failures(&pair, 0), [(0, Failure::PeerRestarted)]);
}

#[test]
fn a_reset_does_not_go_out_when_its_connection_has_become_known() {
    let mut pair = pair();
    pair.allocate(0, 0, DomainId(1));
    pair.connect_end(0, 0, 1);
    write(&mut pair, 0, 1, 1_000);
    pair.step(pair.now);
    let mut message = pair.wire.sent[0].1.clone();
    let received = Received::Packets {
        from: Source([0; Source::BYTES]),
        ce: false,
        bytes: &mut message.bytes,
        segment: message.segment,
    };
    let now = pair.now;
    let End { host, memory, .. } = &mut pair.ends[1];
    host.endpoint.handle(now, received, memory);
    assert!(host.endpoint.has_resets());
    // The command that makes the connection was in the caller's queue.
    pair.allocate(1, 0, DomainId(1));
    pair.connect_end(1, 0, 1);
    pair.run_for(Nanos::from_millis(50));
    assert_eq!(pair.wire.of(1, Kind::Reset).count(), 0);
    assert_eq!(acked(&pair, 0), 1_000);
}

#[test]
fn acknowledgements_are_hurried_before_a_worker_sleeps() {
    let mut config = config();
    config.endpoint.settings.paths = 1;
    let mut pair = Pair::new(config, Recorder::default());
    pair.connect(0, DomainId(1));
    // The path is measured, so that a chunk asks for no answer but the last of its write.
    write(&mut pair, 0, 1, 8_000);
    pair.run_for(Nanos::from_millis(1));
    write(&mut pair, 0, 2, 8_000);
    pair.step(pair.now + Nanos::from_micros(1));
    let mut first = pair.wire.sent[pair.wire.sent.len() - 2].1.clone();
    let endpoint = &mut pair.ends[1].host.endpoint;
    let received = Received::Packets {
        from: Source([0; Source::BYTES]),
        ce: false,
        segment: first.segment,
        bytes: &mut first.bytes,
    };
    let (now, memory) = (pair.now + DELAY, &mut pair.ends[1].memory);
    let mut acks = |endpoint: &mut Endpoint<usize>, received: Option<Received<'_>>| {
        if let Some(received) = received {
            endpoint.handle(now, received, memory);
        }
        let mut sending = endpoint.send(now, true, u32::MAX);
        let mut buffer = [0; CONTROL_BYTES_MAX];
        let mut acks = 0;
        while let Some(transmit) = sending.poll_transmit(now, &mut buffer) {
            acks += u32::from(matches!(transmit, Transmit::Control { .. }));
        }
        acks
    };
    assert_eq!(acks(endpoint, Some(received)), 0, "it is put off");
    assert_eq!(endpoint.poll_timeout(true), Some(now + ACK_DELAY));
    assert!(endpoint.flush_acks());
    assert_eq!(endpoint.poll_timeout(true), Some(Time::ZERO));
    assert_eq!(acks(endpoint, None), 1);
    assert!(!endpoint.flush_acks(), "nothing is owed any more");
}

#[test]
fn a_turn_that_ends_with_a_chunk_leaves_its_control_packets_to_the_next() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    write(&mut pair, 0, 1, 8);
    pair.step(pair.now);
    let mut message = pair.wire.sent[0].1.clone();
    let now = pair.now + DELAY;
    let answer = Write {
        token: 2,
        bytes: 8,
        key: pair.ends[0].memory.key,
        offset: 0,
        immediate: None,
    };
    let memory = &mut pair.ends[1].memory;
    let endpoint = &mut pair.ends[1].host.endpoint;
    let received = Received::Packets {
        from: Source([0; Source::BYTES]),
        ce: false,
        bytes: &mut message.bytes,
        segment: message.segment,
    };
    endpoint.handle(now, received, memory);
    drop(endpoint.send(now, true, 0));
    endpoint
        .post(id(1, 0), answer)
        .expect("the connection is open");
    assert!(endpoint.flush_acks());
    let mut buffer = [0; CONTROL_BYTES_MAX];
    // The link keeps the chunk that goes first: nothing more is asked for.
    let mut sending = endpoint.send(now, true, 8);
    let first = sending.poll_transmit(now, &mut buffer);
    assert!(matches!(first, Some(Transmit::Chunk { .. })), "{first:?}");
    drop(sending);
    assert_eq!(endpoint.poll_timeout(false), Some(Time::ZERO));
    let mut sending = endpoint.send(now, true, 0);
    let next = sending.poll_transmit(now, &mut buffer);
    assert!(matches!(next, Some(Transmit::Control { .. })), "{next:?}");
    while sending.poll_transmit(now, &mut buffer).is_some() {}
    drop(sending);
    assert!(endpoint.poll_timeout(false) > Some(now), "nothing is due");
}

#[test]
fn an_answer_leaves_before_the_acknowledgement_of_what_it_answers() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    write(&mut pair, 0, 1, 8);
    pair.step(pair.now);
    let mut message = pair.wire.sent[0].1.clone();
    let answer = Write {
        token: 2,
        bytes: 8,
        key: pair.ends[0].memory.key,
        offset: 0,
        immediate: None,
    };
    pair.post(1, 0, answer).expect("the connection is open");
    let now = pair.now + DELAY;
    let memory = &mut pair.ends[1].memory;
    let endpoint = &mut pair.ends[1].host.endpoint;
    let received = Received::Packets {
        from: Source([0; Source::BYTES]),
        ce: false,
        segment: message.segment,
        bytes: &mut message.bytes,
    };
    endpoint.handle(now, received, memory);
    let mut sending = endpoint.send(now, true, u32::MAX);
    let mut buffer = [0; CONTROL_BYTES_MAX];
    let mut chunks = Vec::new();
    while let Some(transmit) = sending.poll_transmit(now, &mut buffer) {
        chunks.push(matches!(transmit, Transmit::Chunk { .. }));
    }
    assert!(chunks[0] && chunks[1..].contains(&false), "{chunks:?}");
}

#[test]
fn a_link_that_takes_no_chunk_is_handed_none_and_makes_no_turn_due() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    let now = pair.now;
    write(&mut pair, 0, 1, 8_000);
    let endpoint = &mut pair.ends[0].host.endpoint;
    let sent = |endpoint: &mut Endpoint<usize>, chunks: u32| {
        let mut sending = endpoint.send(now, true, chunks);
        let mut buffer = [0; CONTROL_BYTES_MAX];
        let mut sent = 0;
        while let Some(transmit) = sending.poll_transmit(now, &mut buffer) {
            sent += u32::from(matches!(transmit, Transmit::Chunk { .. }));
        }
        sent
    };
    assert_eq!(sent(endpoint, 0), 0);
    assert_eq!(endpoint.poll_timeout(true), Some(Time::ZERO));
    assert_ne!(endpoint.poll_timeout(false), Some(Time::ZERO));
    assert_eq!(sent(endpoint, 1), 1);
    assert_eq!(sent(endpoint, u32::MAX), 1);
    assert_ne!(endpoint.poll_timeout(true), Some(Time::ZERO));
}

#[test]
fn a_run_with_packets_of_two_connections_reaches_both() {
    let mut pair = pair();
    for number in 0..2 {
        pair.connect(number, DomainId(number));
        write(&mut pair, number, u64::from(number), 4_000);
    }
    pair.step(pair.now);
    let sent: Vec<Datagrams> = pair.wire.sent.drain(..).map(|(_, d)| d).collect();
    assert_eq!(sent.len(), 2);
    let mut run = sent[0].clone();
    run.path = PathId(0);
    run.bytes.extend_from_slice(&sent[1].bytes);
    pair.inject(run);
    let placed = |number| {
        let connection = pair.ends[1].host.endpoint.connection(id(1, number));
        connection.map(|connection| connection.stats().packets_placed)
    };
    assert_eq!([placed(0), placed(1)], [Some(4), Some(4)]);
    assert!(holds(&pair.ends[1].memory.bytes, 0, 1, 4_000));
}

#[test]
fn packets_cut_short_are_not_read_as_one() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    write(&mut pair, 0, 1, 4_000);
    pair.step(pair.now);
    let (_, mut run) = pair.wire.sent.remove(0);
    // Two packets of it, each shorter than a prefix: neither names a connection.
    let (first, second) = (&run.bytes[..12], &run.bytes[run.segment..][..10]);
    run.bytes = [first, second].concat();
    run.segment = 12;
    pair.inject(run);
    let endpoint = &pair.ends[1].host.endpoint;
    assert_eq!(endpoint.counters().drops.get(DropReason::Truncated), 2);
    let connection = endpoint.connection(id(1, 0)).expect("it is open");
    assert_eq!(connection.drops().get(DropReason::Truncated), 0);
}

/// Host 1 is not there: nothing that is sent to it comes back.
#[derive(Debug, Default)]
struct Nobody(Vec<Datagrams>);

impl Wire for Nobody {
    fn carry(&mut self, _now: Time, datagrams: Datagrams, _: &mut impl FnMut(Time, Datagrams)) {
        self.0.push(datagrams);
    }
}

#[test]
fn an_address_that_nobody_has_answered_from_is_sent_one_packet_at_a_time() {
    let mut config = config();
    config.endpoint.peers_validated = false;
    let mut pair = Pair::new(config.clone(), Nobody::default());
    pair.connect(0, DomainId(1));
    let write = Write {
        token: 1,
        bytes: MEBIBYTE,
        key: pair.ends[1].memory.key,
        offset: 0,
        immediate: None,
    };
    pair.post(0, 0, write).expect("the connection is open");
    pair.run_for(Nanos::from_secs(6));
    // One packet, and again when it has timed out: after 1 ms, doubled up to 64 ms.
    let sent: usize = pair.wire.0.iter().map(|d| d.bytes.len()).sum();
    let packet = PAYLOAD as usize + OVERHEAD_BYTES;
    assert!((packet..100 * packet).contains(&sent), "{sent} B");

    let mut pair = Pair::new(config, Recorder::default());
    pair.connect(0, DomainId(1));
    self::write(&mut pair, 0, 1, MEBIBYTE);
    pair.run_for(DELAY);
    assert_eq!(pair.wire.of(0, Kind::Data).count(), 1);
    pair.run_for(DELAY.times(3));
    assert!(
        pair.wire.of(0, Kind::Data).count() > 64,
        "its answer opens the window"
    );
}

#[test]
fn a_reset_with_another_token_changes_nothing() {
    let mut pair = pair();
    pair.connect(0, DomainId(1));
    let reset = Reset {
        path: PathId(0),
        connection: id(1, 0),
        token: pair.ends[1].reset_token ^ 1,
    };
    pair.inject(Datagrams {
        from: 1,
        to: 0,
        path: PathId(0),
        ce: false,
        segment: Reset::BYTES,
        bytes: reset.emit().to_vec(),
    });
    assert_eq!((failures(&pair, 0), unknown(&pair, 0)), (vec![], 1));
}

/// Delays everything by a time that the test changes.
#[derive(Debug)]
struct Queueing {
    delay: Nanos,
    sent: Vec<Time>,
}

impl Wire for Queueing {
    fn carry(
        &mut self,
        now: Time,
        datagrams: Datagrams,
        arrives: &mut impl FnMut(Time, Datagrams),
    ) {
        if datagrams.from == 0 {
            self.sent.push(now);
        }
        arrives(now + self.delay, datagrams);
    }
}

#[test]
fn a_paced_connection_sends_when_its_pacer_lets_it_and_has_not_stalled() {
    let mut config = config();
    config.endpoint.congestion = CongestionKind::Swift {
        base_target: Nanos::from_micros(100),
    };
    config.endpoint.rto_min = Nanos::from_millis(5);
    config.endpoint.stall_timeout = Nanos::from_millis(50);
    let wire = Queueing {
        delay: DELAY,
        sent: Vec::new(),
    };
    let mut pair = Pair::new(config, wire);
    pair.connect(0, DomainId(0));
    let write = Write {
        token: 1,
        bytes: 400 * u64::from(PAYLOAD),
        key: pair.ends[1].memory.key,
        offset: 0,
        immediate: None,
    };
    pair.post(0, 0, write).expect("the connection is open");
    pair.run_for(Nanos::from_micros(500));
    // Round trips are far above the target from here on: the window falls below one packet.
    pair.wire.delay = Nanos::from_millis(1);
    pair.run_for(Nanos::from_millis(500));
    pair.wire.sent.clear();
    pair.run_for(Nanos::from_secs(2));
    let gaps: Vec<Nanos> = pair.wire.sent.windows(2).map(|w| w[1] - w[0]).collect();
    let longest = gaps.iter().max().copied();
    // A round trip of 2 ms over a hundredth of a packet.
    assert_eq!(longest, Some(Nanos::from_millis(200)), "{gaps:?}");
    let [sender, _] = &mut pair.ends;
    assert_eq!(
        sender.events,
        [],
        "the pauses are longer than the stall timeout"
    );
    let due = sender.host.endpoint.poll_timeout(true);
    assert!(
        due.is_some_and(|due| due > pair.now),
        "{due:?}: it waits for its moment"
    );
}
