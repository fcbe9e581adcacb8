//! Two inline engines over 127.0.0.1: what a user of the engine may rely on.

mod pair;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pair::{IS_RELIABLE, PATIENCE, Pair, bytes_of, pattern, region, remote, secret, start};
use weft_engine::{
    DomainId, DropReason, Event, Failure, LinkAddress, Nanos, PathReport, PathState, PortRange,
    Progress, Region, SIGNAL, Snapshot, Source, WriteRequest,
};

const DOMAIN: DomainId = DomainId(1);

impl Pair {
    /// Runs both inline workers until `done`.
    fn drive(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
            let busy = self.a.poll(Duration::ZERO) | self.b.poll(Duration::ZERO);
            if !busy {
                self.a.poll(Duration::from_micros(200));
            }
        }
    }

    /// Runs both until `a` or `b` has an event, and answers it.
    fn next_a(&mut self) -> Event {
        self.drive("an event at a", |pair| !pair.a.events.is_empty());
        self.a.events.try_recv().expect("it is there")
    }

    fn next_b(&mut self) -> Event {
        self.drive("an event at b", |pair| !pair.b.events.is_empty());
        // The acknowledgement, before the test looks at the bytes.
        self.b.poll(Duration::ZERO);
        self.b.events.try_recv().expect("it is there")
    }

    /// Runs both for some turns, for what must not happen.
    fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.a.poll(Duration::ZERO);
            self.b.poll(Duration::ZERO);
        }
    }
}

impl pair::Side {
    fn poll(&mut self, wait: Duration) -> bool {
        self.engine.poll(wait).expect("an inline engine polls")
    }
}

#[test]
fn writes_of_every_size_arrive_byte_exact() {
    let snapshot = write_every_size(Pair::new(|_| {}));
    assert_eq!(snapshot.link.local_packets, 0);
}

#[test]
fn engines_of_one_switch_reach_each_other_without_a_socket() {
    let switch = Arc::default();
    let pair = Pair::new(|config| config.local_switch = Some(Arc::clone(&switch)));
    let snapshot = write_every_size(pair);
    // Over TCP and shared memory it changes nothing.
    assert_eq!(snapshot.link.local_packets > 0, !IS_RELIABLE);
    assert_eq!(snapshot.link.sent_packets > 0, IS_RELIABLE);
}

/// What the receiver has counted.
fn write_every_size(mut pair: Pair) -> Snapshot {
    let payload = usize::from(pair.a.engine.settings().packet_payload);
    let sizes = [
        1,
        7,
        payload - 1,
        payload,
        payload + 1,
        44 * payload,
        44 * payload + 1,
        65_536,
        1 << 20,
        (1 << 20) + 65_536,
        8 << 20,
    ];
    for (round, &size) in sizes.iter().enumerate() {
        let offset = round * 3;
        let source = pattern(size, round as u64);
        let key = pair
            .b
            .engine
            .register(DOMAIN, region(size + offset + 5, 0xAA));
        let request = WriteRequest {
            key,
            offset: offset as u64,
            immediate: Some(round as u32),
            context: 77 + round as u64,
            ..pair.a.write(&source)
        };
        pair.a.engine.write(request).expect("it is open");
        let Event::Delivered {
            connection,
            immediate,
            key: into,
        } = pair.next_b()
        else {
            panic!("a delivery was expected")
        };
        assert_eq!(
            (connection, immediate, into),
            (pair.b.id, round as u32, key)
        );
        let region = pair.b.engine.take(key).expect("it is armed");
        let buffer = Region::into_box(region).expect("nobody else has it");
        assert!(
            buffer[..offset].iter().all(|&b| b == 0xAA),
            "bytes before the write changed"
        );
        assert!(
            buffer[offset..offset + size] == source[..],
            "{size} bytes differ"
        );
        assert!(
            buffer[offset + size..].iter().all(|&b| b == 0xAA),
            "bytes behind it changed"
        );
        let Event::Written {
            connection,
            context,
            source: back,
        } = pair.next_a()
        else {
            panic!("a completion was expected")
        };
        assert_eq!((connection, context), (pair.a.id, 77 + round as u64));
        assert!(matches!(back, Source::Bytes(back) if Arc::ptr_eq(&back, &source)));
        pair.b.engine.deregister(key);
    }
    let snapshot = pair.b.engine.snapshot();
    // Where this machine made an end wait, something was sent again that was not lost.
    let again = snapshot.drops.get(DropReason::Duplicate);
    assert_eq!(snapshot.drops.total(), again, "{:?}", snapshot.drops);
    assert_eq!(
        snapshot.stats().bytes_placed,
        sizes.iter().sum::<usize>() as u64
    );
    snapshot
}

#[test]
fn the_call_after_an_event_acknowledges_its_message() {
    let Pair { mut a, mut b } = Pair::new(|_| {});
    let signal = WriteRequest {
        immediate: Some(1),
        ..a.write(&pattern(0, 0))
    };
    a.engine.write(signal).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while b.events.is_empty() {
        assert!(Instant::now() < deadline, "no event");
        a.poll(Duration::ZERO);
        b.poll(Duration::ZERO);
    }
    for _ in 0..20 {
        a.poll(Duration::ZERO);
    }
    assert!(a.events.is_empty(), "it was acknowledged before its event");
    b.poll(Duration::ZERO);
    while a.events.is_empty() {
        assert!(Instant::now() < deadline, "no acknowledgement");
        a.poll(Duration::ZERO);
    }
}

#[test]
fn an_immediate_without_bytes_arrives_as_a_signal_in_both_directions() {
    let mut pair = Pair::new(|_| {});
    let nothing = pattern(0, 0);
    let signal = |side: &pair::Side, immediate| WriteRequest {
        immediate: Some(immediate),
        ..side.write(&nothing)
    };
    pair.a.engine.write(signal(&pair.a, 5)).unwrap();
    pair.b.engine.write(signal(&pair.b, 6)).unwrap();
    // The write's own completion and the peer's immediate come in either order.
    for (events, expected) in [
        ([pair.next_a(), pair.next_a()], 6),
        ([pair.next_b(), pair.next_b()], 5),
    ] {
        let signals: Vec<u32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Signal { immediate, .. } => Some(*immediate),
                _ => None,
            })
            .collect();
        assert_eq!(signals, [expected], "{events:?}");
        let is_written = |event: &&Event| matches!(event, Event::Written { .. });
        assert_eq!(events.iter().filter(is_written).count(), 1, "{events:?}");
    }
}

#[test]
fn the_immediate_counts_only_when_the_payload_is_there() {
    let mut pair = Pair::new(|config| config.paths = 256);
    for round in 0..50u32 {
        let source = pattern(300_000, round.into());
        let key = pair.b.engine.register(DOMAIN, region(source.len(), 0));
        pair.a
            .engine
            .write(WriteRequest {
                key,
                immediate: Some(round),
                ..pair.a.write(&source)
            })
            .unwrap();
        let Event::Delivered { immediate, .. } = pair.next_b() else {
            panic!("a delivery was expected")
        };
        assert_eq!(immediate, round);
        let region = pair.b.engine.deregister(key).expect("it is armed");
        assert!(bytes_of(&region) == source[..]);
        pair.next_a();
    }
}

#[test]
fn packets_for_a_taken_region_are_dropped_and_sent_again_once_it_is_armed() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(10_000, 3);
    let key = pair.b.engine.register(DOMAIN, region(source.len(), 0));
    let write = |pair: &Pair, immediate| {
        let request = WriteRequest {
            key,
            immediate: Some(immediate),
            ..pair.a.write(&source)
        };
        pair.a.engine.write(request).unwrap();
    };
    write(&pair, 1);
    assert!(matches!(pair.next_b(), Event::Delivered { .. }));
    assert!(pair.b.engine.take(key).is_some());
    assert!(matches!(pair.next_a(), Event::Written { .. }));
    write(&pair, 2);
    pair.drive("packets for the taken region", |pair| {
        pair.b.engine.snapshot().drops.get(DropReason::NotArmed) > 0
    });
    assert!(pair.b.events.is_empty() && pair.a.events.is_empty());
    let second = region(source.len(), 0);
    pair.b.engine.arm(key, second.clone());
    let event = pair.next_b();
    assert!(matches!(event, Event::Delivered { immediate: 2, .. }));
    assert!(bytes_of(&second) == source[..]);
    assert!(matches!(pair.next_a(), Event::Written { .. }));
    let snapshot = pair.a.engine.snapshot();
    assert!(snapshot.stats().chunks_resent > 0);
    let blamed = |path: &PathReport| path.state != PathState::Live || path.lost_chunks > 0;
    assert!(!snapshot.peers[0].paths.iter().any(blamed), "{snapshot:?}");
}

#[test]
fn many_messages_land_in_one_region_that_nobody_takes() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(3_000, 9);
    let shared = region(source.len(), 0);
    let key = pair.b.engine.register(DOMAIN, shared.clone());
    for part in 0..3 {
        let request = WriteRequest {
            source_offset: part * 1_000,
            bytes: 1_000,
            key,
            offset: part * 1_000,
            immediate: Some(part as u32),
            ..pair.a.write(&source)
        };
        pair.a.engine.write(request).unwrap();
    }
    let mut immediates: Vec<u32> = (0..3)
        .map(|_| match pair.next_b() {
            Event::Delivered { immediate, .. } => immediate,
            other => panic!("{other:?}"),
        })
        .collect();
    immediates.sort_unstable();
    assert_eq!(immediates, [0, 1, 2]);
    assert!(bytes_of(&shared) == source[..]);
    assert_eq!(pair.b.engine.snapshot().regions.armed, 1);
}

#[test]
fn a_write_out_of_a_region_sends_what_lies_there() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(300_000, 10);
    let (from, to) = (region(300_100, 0), region(300_000, 0));
    from.write(77, &source).unwrap();
    let key = pair.b.engine.register(DOMAIN, to.clone());
    let request = WriteRequest {
        source: from.into(),
        source_offset: 77,
        key,
        immediate: Some(1),
        ..pair.a.write(&source)
    };
    pair.a.engine.write(request).unwrap();
    assert!(matches!(pair.next_b(), Event::Delivered { .. }));
    assert!(bytes_of(&to) == source[..]);
}

#[test]
fn an_immediate_without_bytes_for_a_region_of_another_domain_is_not_delivered() {
    let mut pair = Pair::new(|_| {});
    let nothing = pattern(0, 0);
    let key = pair.b.engine.register(DomainId(2), region(10, 0));
    for (key, immediate) in [(key, 1), (weft_engine::Key(99), 2), (SIGNAL, 3)] {
        let request = WriteRequest {
            key,
            immediate: Some(immediate),
            ..pair.a.write(&nothing)
        };
        pair.a.engine.write(request).unwrap();
    }
    let event = pair.next_b();
    assert!(
        matches!(event, Event::Signal { immediate: 3, .. }),
        "{event:?}"
    );
    pair.drive("the refused immediates", |pair| {
        pair.b.engine.snapshot().drops.get(DropReason::Key) == 2
    });
    assert!(pair.b.events.is_empty());
}

#[test]
fn a_peer_cannot_fill_the_memory_of_a_user_who_takes_no_events() {
    const SIGNALS: usize = 80_000;
    let mut pair = Pair::new(|_| {});
    let nothing = pattern(0, 0);
    let (mut posted, mut written) = (0, 0);
    let signal = |pair: &mut Pair, posted: &mut usize, written: &mut usize| {
        while *posted < SIGNALS && *posted - *written < 1_000 {
            let request = WriteRequest {
                key: SIGNAL,
                immediate: Some(*posted as u32),
                ..pair.a.write(&nothing)
            };
            pair.a.engine.write(request).unwrap();
            *posted += 1;
        }
        *written += pair.a.events.try_iter().count();
    };
    let refused = |pair: &Pair| pair.b.engine.snapshot().drops.get(DropReason::NotArmed);
    pair.drive("the bound", |pair| {
        signal(pair, &mut posted, &mut written);
        pair.b.events.len() > 65_000 && refused(pair) > 0
    });
    for _ in 0..1_000 {
        signal(&mut pair, &mut posted, &mut written);
        pair.turns(1);
    }
    // What was under way when the bound was reached came along.
    assert!(pair.b.events.len() < 67_000, "{}", pair.b.events.len());
    let mut signals = 0;
    pair.drive("the rest", |pair| {
        signal(pair, &mut posted, &mut written);
        signals += pair.b.events.try_iter().count();
        written == SIGNALS
    });
    signals += pair.b.events.try_iter().count();
    assert_eq!(signals, SIGNALS);
}

#[test]
fn a_region_of_another_domain_is_refused_and_the_writer_is_told() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(5_000, 4);
    let key = pair.b.engine.register(DomainId(2), region(source.len(), 0));
    pair.a
        .engine
        .write(WriteRequest {
            key,
            immediate: Some(1),
            ..pair.a.write(&source)
        })
        .unwrap();
    let event = pair.next_a();
    let Event::Failed { failure, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(failure.reason(), "KeyRefused");
    assert!(pair.b.engine.snapshot().drops.get(DropReason::Key) > 0);
    assert!(pair.b.events.is_empty());
    assert_eq!(pair.b.engine.snapshot().regions.armed, 1);
}

#[test]
fn a_write_beyond_its_region_changes_nothing_and_the_writer_is_told() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(100, 4);
    let key = pair.b.engine.register(DOMAIN, region(150, 0));
    let request = WriteRequest {
        key,
        offset: 51,
        immediate: Some(1),
        ..pair.a.write(&source)
    };
    pair.a.engine.write(request).unwrap();
    let event = pair.next_a();
    let Event::Failed { failure, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(failure.reason(), "BoundsRefused");
    assert!(pair.b.engine.snapshot().drops.get(DropReason::Bounds) > 0);
    assert_eq!(pair.a.engine.snapshot().stats().timeouts, 0);
}

#[test]
fn a_restarted_peer_is_known_within_one_round_trip() {
    let mut pair = Pair::new(|_| {});
    // The next life of b: same node key, same ports, no connections.
    let config = pair.b.engine.config().clone();
    let other = start(|_| {});
    drop(std::mem::replace(&mut pair.b.engine, other));
    pair.b.engine = weft_engine::Engine::start(config).unwrap();
    let source = pattern(100_000, 5);
    let begun = Instant::now();
    pair.a
        .engine
        .write(WriteRequest {
            immediate: Some(1),
            ..pair.a.write(&source)
        })
        .unwrap();
    let Event::Failed { failure, .. } = pair.next_a() else {
        panic!("a failure was expected")
    };
    assert_eq!(failure.reason(), "PeerRestarted");
    // The stall timeout is 20 s, and nothing was resent: the first packets' answer did it.
    assert!(begun.elapsed() < Duration::from_secs(10));
    let (a, b) = (pair.a.engine.snapshot(), pair.b.engine.snapshot());
    assert_eq!(a.stats().timeouts, 0);
    assert!(b.resets_sent > 0 && b.drops.get(DropReason::UnknownConnection) > 0);
}

#[test]
fn a_reset_from_a_node_with_another_key_is_not_believed() {
    let mut pair = Pair::new(|config| config.stall_timeout = Nanos::from_millis(300));
    let mut config = pair.b.engine.config().clone();
    config.node_key = secret(10);
    let other = start(|_| {});
    drop(std::mem::replace(&mut pair.b.engine, other));
    pair.b.engine = weft_engine::Engine::start(config).unwrap();
    let source = pattern(1_000, 5);
    pair.a
        .engine
        .write(WriteRequest {
            immediate: Some(1),
            ..pair.a.write(&source)
        })
        .unwrap();
    let Event::Failed { failure, .. } = pair.next_a() else {
        panic!("a failure was expected")
    };
    assert_eq!(failure.reason(), "Stalled");
    let drops = pair.a.engine.snapshot().drops;
    assert!(drops.get(DropReason::UnknownConnection) > 0);
}

#[test]
fn a_connection_to_a_newer_life_of_the_peer_ends_the_older_one() {
    let mut pair = Pair::new(|_| {});
    let config = pair.b.engine.config().clone();
    let other = start(|_| {});
    drop(std::mem::replace(&mut pair.b.engine, other));
    let b = weft_engine::Engine::start(config).unwrap();
    let (a_end, b_end) = (
        pair.a.engine.allocate(DOMAIN, secret(3)),
        b.allocate(DOMAIN, secret(4)),
    );
    pair.a
        .engine
        .connect(a_end.id, remote(&b_end, secret(4)), pair.a.sender.clone())
        .unwrap();
    pair.b.engine = b;
    let Event::Failed {
        connection,
        failure,
    } = pair.next_a()
    else {
        panic!("a failure was expected")
    };
    assert_eq!((connection, failure), (pair.a.id, Failure::PeerRestarted));
}

#[test]
fn packets_before_connect_wait_for_it_and_meet_no_reset() {
    let (a, b) = (start(|_| {}), start(|_| {}));
    let (a_end, b_end) = (a.allocate(DOMAIN, secret(1)), b.allocate(DOMAIN, secret(2)));
    let (sender, events) = crossbeam_channel::unbounded();
    a.connect(a_end.id, remote(&b_end, secret(2)), sender)
        .unwrap();
    let source = pattern(1000, 1);
    let b = b;
    a.write(WriteRequest {
        connection: a_end.id,
        source: source.into(),
        source_offset: 0,
        bytes: 1000,
        key: SIGNAL,
        offset: 0,
        immediate: Some(3),
        context: 0,
    })
    .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while b.snapshot().drops.get(DropReason::UnknownConnection) == 0 {
        assert!(Instant::now() < deadline);
        a.poll(Duration::ZERO).unwrap();
        b.poll(Duration::ZERO).unwrap();
    }
    assert_eq!(b.snapshot().resets_sent, 0);
    assert!(events.is_empty());
}

#[test]
fn close_is_confirmed_and_no_byte_lands_after_it() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(8 << 20, 6);
    let key = pair.b.engine.register(DOMAIN, region(source.len(), 0));
    pair.a
        .engine
        .write(WriteRequest {
            key,
            immediate: Some(1),
            ..pair.a.write(&source)
        })
        .unwrap();
    pair.drive("the first bytes", |pair| {
        pair.b.engine.snapshot().stats().bytes_placed > 0
    });
    pair.b.engine.close(pair.b.id);
    assert!(matches!(pair.next_b(), Event::Closed { connection } if connection == pair.b.id));
    let placed = pair.b.engine.snapshot().stats().bytes_placed;
    assert!(
        placed < source.len() as u64,
        "the whole write landed before the close"
    );
    pair.turns(200);
    assert_eq!(pair.b.engine.snapshot().stats().bytes_placed, placed);
    assert!(pair.b.events.is_empty());
    // The peer learns it at once: its packets meet no connection.
    let Event::Failed { failure, .. } = pair.next_a() else {
        panic!("a failure was expected")
    };
    assert_eq!(failure.reason(), "PeerRestarted");
    // What failed is closed like any other; afterwards its id is none.
    pair.a.engine.close(pair.a.id);
    assert!(matches!(pair.next_a(), Event::Closed { .. }));
    let error = pair.a.engine.write(pair.a.write(&source)).unwrap_err();
    assert_eq!(error.reason(), "UnknownConnection");
}

#[test]
fn more_writes_than_the_core_queues_complete_all() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(64, 7);
    for context in 0..3000 {
        let request = WriteRequest {
            immediate: Some(1),
            bytes: 0,
            context,
            ..pair.a.write(&source)
        };
        pair.a.engine.write(request).unwrap();
    }
    let (mut signals, mut written) = (0, Vec::new());
    pair.drive("3000 signals and completions", |pair| {
        signals += pair.b.events.try_iter().count();
        written.extend(pair.a.events.try_iter().map(|event| match event {
            Event::Written { context, .. } => context,
            other => panic!("{other:?}"),
        }));
        signals == 3000 && written.len() == 3000
    });
    written.sort_unstable();
    assert!(written.iter().copied().eq(0..3000));
}

#[test]
fn connections_share_the_sender_fairly_with_a_cap_and_without() {
    for cap_bps in [None, Some(400_000_000)] {
        let mut pair = Pair::new(|config| config.egress.cap_bps = cap_bps);
        let source = pattern(4 << 20, 8);
        let mut keys = Vec::new();
        let mut ids = vec![pair.a.id];
        for byte in 10..13 {
            let (a, b) = (
                pair.a.engine.allocate(DOMAIN, secret(byte)),
                pair.b.engine.allocate(DOMAIN, secret(byte + 10)),
            );
            pair.a
                .engine
                .connect(a.id, remote(&b, secret(byte + 10)), pair.a.sender.clone())
                .unwrap();
            pair.b
                .engine
                .connect(b.id, remote(&a, secret(byte)), pair.b.sender.clone())
                .unwrap();
            ids.push(a.id);
        }
        for &connection in &ids {
            let key = pair.b.engine.register(DOMAIN, region(source.len(), 0));
            keys.push(key);
            let request = WriteRequest {
                connection,
                key,
                immediate: Some(1),
                ..pair.a.write(&source)
            };
            pair.a.engine.write(request).unwrap();
        }
        pair.drive("half of everything", |pair| {
            pair.a.engine.snapshot().stats().bytes_acked > 2 * source.len() as u64
        });
        let snapshot = pair.a.engine.snapshot();
        let acked = snapshot.connections.iter().map(|c| c.stats.bytes_acked);
        let (least, most) = (acked.clone().min().unwrap(), acked.max().unwrap());
        assert!(most <= 2 * least, "{least} to {most} bytes");
        for _ in 0..keys.len() {
            let Event::Delivered { key, .. } = pair.next_b() else {
                panic!("a delivery was expected")
            };
            let region = pair.b.engine.take(key).expect("each is delivered once");
            assert!(bytes_of(&region) == source[..]);
        }
    }
}

#[test]
fn writes_arrive_over_ipv6() {
    let mut pair = Pair::new(|config| {
        config.address = config.address.with_nic(Ipv6Addr::LOCALHOST.into());
    });
    let source = pattern(1 << 20, 3);
    let key = pair
        .b
        .engine
        .register(DOMAIN, pair::region(source.len(), 0));
    let request = WriteRequest {
        key,
        immediate: Some(7),
        ..pair.a.write(&source)
    };
    pair.a.engine.write(request).unwrap();
    let delivered = pair.next_b();
    assert!(matches!(delivered, Event::Delivered { immediate: 7, .. }));
    let region = pair.b.engine.take(key).expect("it is armed");
    assert!(bytes_of(&region) == source[..]);
}

#[test]
fn a_taken_port_range_is_refused_by_its_ports() {
    let first = start(|_| {});
    let (address, ports) = (first.config().address, first.config().address.ports());
    let at = |first, count| address.with_ports(PortRange { first, count });
    let mut config = first.config().clone();
    // Over TCP and shared memory one worker has the first port of its range.
    config.address = at(ports.first - if IS_RELIABLE { 0 } else { 8 }, 16);
    let error = weft_engine::Engine::start(config).err().unwrap();
    assert_eq!(error.reason(), "PortTaken");
    assert!(
        error.to_string().contains(&ports.first.to_string()),
        "{error}"
    );
    // Nothing is left behind: the free half can be had.
    let mut config = first.config().clone();
    config.address = at(ports.first - 8, 8);
    config.paths = 64;
    drop(weft_engine::Engine::start(config).unwrap());
}

#[test]
fn ends_that_are_set_up_differently_are_refused_by_the_difference() {
    let (a, b) = (start(|_| {}), start(|config| config.chunk_bytes = 16_384));
    let (a_end, b_end) = (a.allocate(DOMAIN, secret(1)), b.allocate(DOMAIN, secret(2)));
    let (sender, _events) = crossbeam_channel::unbounded();
    let error = a
        .connect(a_end.id, remote(&b_end, secret(2)), sender)
        .unwrap_err();
    assert_eq!(error.reason(), "SettingsDiffer");
    let text = error.to_string();
    assert!(
        text.contains("chunk_bytes") && text.contains(&a.settings().chunk_bytes.to_string()),
        "{text}"
    );
}

#[test]
fn wrong_calls_are_refused_at_once() {
    let (a, b) = (start(|_| {}), start(|_| {}));
    let (a_end, b_end) = (a.allocate(DOMAIN, secret(1)), b.allocate(DOMAIN, secret(2)));
    let (sender, _events) = crossbeam_channel::unbounded();
    let peer = remote(&b_end, secret(2));
    let request = WriteRequest {
        connection: a_end.id,
        source: pattern(10, 1).into(),
        source_offset: 0,
        bytes: 10,
        key: SIGNAL,
        offset: 0,
        immediate: None,
        context: 0,
    };
    let refused = |result: Result<(), weft_engine::EngineError>| result.unwrap_err().reason();
    assert_eq!(refused(a.write(request.clone())), "NotConnected");
    assert_eq!(
        refused(a.connect(b_end.id, peer.clone(), sender.clone())),
        "UnknownConnection"
    );
    let udp = LinkAddress::Udp {
        nics: b_end.address.nics(),
        ports: b_end.address.ports(),
    };
    // Over TCP and shared memory there are as many paths as are wanted.
    let (address, reason) = match IS_RELIABLE {
        false => (b_end.address.part(0, 8), "TooFewPairs"),
        true => (udp, "OtherLink"),
    };
    let elsewhere = weft_engine::RemoteEnd {
        address,
        ..peer.clone()
    };
    assert_eq!(
        refused(a.connect(a_end.id, elsewhere, sender.clone())),
        reason
    );
    a.connect(a_end.id, peer.clone(), sender.clone()).unwrap();
    assert_eq!(
        refused(a.connect(a_end.id, peer, sender)),
        "AlreadyConnected"
    );
    assert_eq!(
        refused(a.write(WriteRequest {
            bytes: 11,
            ..request.clone()
        })),
        "BeyondSource"
    );
    assert_eq!(
        refused(a.write(WriteRequest {
            source_offset: u64::MAX,
            ..request.clone()
        })),
        "BeyondSource"
    );
    assert_eq!(
        refused(a.write(WriteRequest {
            bytes: 0,
            ..request
        })),
        "EmptyWrite"
    );
    assert!(a.poll(Duration::ZERO).is_ok());
    let threads = start(|config| config.progress = Progress::Threads(1));
    assert_eq!(
        threads.poll(Duration::ZERO).unwrap_err().reason(),
        "NotInline"
    );
}
