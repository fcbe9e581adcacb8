//! Liveness of paths, seen from the outside.

use weft_core::congestion::CongestionKind;
use weft_core::connection::Event;
use weft_core::drops::DropReason;
use weft_core::path::{PathState, PolicyKind};
use weft_core::units::{Nanos, PathId, Time};
use weft_core::wire::Kind;

use crate::pair::{Pair, Side, micros};

/// Writes so that the connection is busy for `span`.
fn keep_busy(pair: &mut Pair, span: Nanos, mut look: impl FnMut(&mut Pair) -> bool) -> bool {
    let until = pair.now + span;
    while pair.now < until {
        if pair.connection(Side::A).is_idle() {
            pair.write(4_000);
        }
        if look(pair) {
            return true;
        }
        if !pair.step(until) {
            return false;
        }
    }
    false
}

/// When probes were sent on path 1, in microseconds, as the trace tells it.
fn probes(pair: &Pair) -> Vec<u64> {
    let on_path = pair.trace().lines().filter(|l| l.contains("probe on 1"));
    on_path
        .filter_map(|l| l.split_whitespace().next()?.parse().ok())
        .collect()
}

#[test]
fn a_path_with_three_timeouts_is_suspended_and_probed_after_10_ms() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.drop_all(|p| p.path.0 == 1);
    let span = Nanos::from_millis(50);
    let gone = keep_busy(&mut pair, span, |pair| {
        pair.path_state(1) == PathState::Suspended
    });
    assert!(gone, "path 1 was never suspended");
    assert_eq!(pair.path(1).timeouts, 3);
    let suspended_at = pair.now.as_nanos() / 1_000;
    let before = probes(&pair).len();
    keep_busy(&mut pair, Nanos::from_millis(200), |_| false);
    // It was seen a packet's way after it happened, so to the nearest millisecond.
    let after: Vec<u64> = probes(&pair)[before..]
        .iter()
        .map(|at| (at - suspended_at + 500) / 1_000)
        .collect();
    // 10 ms, then the interval doubles: 20, 40, 80 ms on.
    assert_eq!(after, [10, 30, 70, 150]);
}

#[test]
fn no_chunk_goes_on_a_suspended_path() {
    let mut pair = Pair::new();
    pair.drop_all(|p| p.path.0 == 1);
    let suspended = |pair: &mut Pair| pair.path_state(1) == PathState::Suspended;
    assert!(keep_busy(&mut pair, Nanos::from_millis(50), suspended));
    let sent = pair.path(1).sent_chunks;
    keep_busy(&mut pair, Nanos::from_millis(100), |_| false);
    assert_eq!(pair.path(1).sent_chunks, sent);
    assert_eq!(pair.paths(Side::A).live(), 3);
}

#[test]
fn a_path_that_answers_a_probe_is_live_again() {
    let mut pair = Pair::new();
    pair.drop_all(|p| p.path.0 == 1);
    let suspended = |pair: &mut Pair| pair.path_state(1) == PathState::Suspended;
    assert!(keep_busy(&mut pair, Nanos::from_millis(50), suspended));
    pair.heal();
    let live = |pair: &mut Pair| pair.path_state(1) == PathState::Live;
    assert!(keep_busy(&mut pair, Nanos::from_millis(50), live));
    assert_eq!(pair.paths(Side::A).live(), 4);
}

#[test]
fn the_probe_interval_stops_growing_at_a_second() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.drop_all(|p| p.path.0 == 1);
    keep_busy(&mut pair, Nanos::from_secs(6), |_| false);
    let at = probes(&pair);
    let gaps: Vec<u64> = at.windows(2).map(|w| (w[1] - w[0]) / 1_000).collect();
    assert_eq!(gaps[gaps.len() - 3..], [1_000, 1_000, 1_000]);
}

#[test]
fn when_every_path_was_dead_one_answer_brings_all_of_them_back() {
    let mut pair = Pair::new();
    pair.drop_all(|_| true);
    pair.write(100_000);
    pair.run_for(Nanos::from_millis(500));
    assert_eq!(pair.paths(Side::A).live(), 0);
    pair.heal();
    let healed: Time = pair.now;
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 1);
    assert!(
        pair.now - healed < Nanos::from_millis(1_100),
        "{:?}",
        pair.now - healed
    );
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
}

#[test]
fn after_an_outage_the_first_answer_ends_the_backoff() {
    let mut pair = Pair::with(|setup| {
        setup.settings.paths = 16;
        setup.delay = Nanos::from_millis(20);
        setup.rto_min = Nanos::from_millis(5);
        setup.congestion = CongestionKind::ECN_RTT;
        setup.stall_timeout = Nanos::from_secs(10);
    });
    for _ in 0..20 {
        pair.write(100_000);
    }
    pair.run_for(Nanos::from_millis(150));
    pair.drop_all(|_| true);
    pair.run_for(Nanos::from_secs(3));
    pair.heal();
    let (healed, acked) = (pair.now, pair.connection(Side::A).stats().bytes_acked);
    // A probe is sent every second at the latest. What went out during the outage fills the window
    // until it is declared lost.
    let until = healed + Nanos::from_millis(1_200);
    while pair.connection(Side::A).stats().bytes_acked == acked {
        assert!(
            pair.step(until),
            "nothing arrives: {}",
            pair.connection(Side::A).in_flight()
        );
    }
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
}

/// A pair with Hopper and four paths of 100 us that wrote for a while, and the path that it is on.
fn on_one_path(policy: &str, congestion: CongestionKind) -> (Pair, PathId) {
    let policy = policy.parse().expect("a policy");
    let mut pair = Pair::with(|setup| {
        setup.policy = policy;
        setup.congestion = congestion;
        setup.rto_min = Nanos::from_millis(100);
    });
    pair.write(100_000);
    pair.run();
    let used = |path: &u8| pair.path(*path).sent_chunks > 0;
    let path = (0..4).find(used).expect("it has written");
    (pair, PathId(path))
}

#[test]
fn probes_of_an_idle_path_do_not_hide_the_queue_of_the_path_in_use() {
    // It probes at every turn, and switches to none of what it probes.
    let policy = "hopper:th-probe=150,th-cong=65535";
    for (congestion, within) in [(CongestionKind::ECN_RTT, 100), (CongestionKind::SWIFT, 100)] {
        let (mut pair, _) = on_one_path(policy, congestion);
        pair.expect_drop(DropReason::Duplicate);
        pair.delay_all(Nanos::from_millis(5), |p| p.is_data());
        let before = pair.connection(Side::A).window();
        keep_busy_with(&mut pair, Nanos::from_millis(within), 200_000);
        let after = pair.connection(Side::A).window();
        assert!(pair.stats(Side::A).probes_sent > 2);
        assert!(after < before, "{congestion:?}: {after} of {before}");
    }
}

#[test]
fn probes_of_congested_paths_do_not_shrink_the_window() {
    let policy = "hopper:th-probe=1,th-cong=65535";
    let congestion = CongestionKind::Swift {
        base_target: Nanos::from_millis(1),
    };
    let (mut pair, _) = on_one_path(policy, congestion);
    // What was probed once without a queue has one.
    pair.delay_all(Nanos::from_millis(20), |p| p.kind == Kind::Probe);
    for _ in 0..100 {
        let before = pair.connection(Side::A).window();
        keep_busy_with(&mut pair, Nanos::from_millis(1), 200_000);
        let after = pair.connection(Side::A).window();
        assert!(after >= before, "{after} of {before}");
    }
    assert!(pair.stats(Side::A).probes_sent > 2);
}

/// Writes of `bytes`, one after the other, for `span`.
fn keep_busy_with(pair: &mut Pair, span: Nanos, bytes: usize) {
    let until = pair.now + span;
    while pair.now < until {
        if pair.connection(Side::A).is_idle() {
            pair.write(bytes);
        }
        if !pair.step(until) {
            return;
        }
    }
}

#[test]
fn hp3_a_connection_that_writes_a_chunk_at_a_time_leaves_a_congested_path() {
    // A millisecond is congestion where much less may queue.
    let congestion = CongestionKind::EcnRtt {
        target_queueing: micros(50),
    };
    let (mut pair, path) = on_one_path("hopper", congestion);
    pair.expect_drop(DropReason::Duplicate);
    pair.delay_all(Nanos::from_millis(1), move |p| {
        p.is_data() && p.path == path
    });
    for _ in 0..10 {
        pair.write(1_000);
        pair.run();
        // Longer than a round trip: no epoch has two of these.
        pair.now = pair.now + Nanos::from_millis(2);
    }
    let began = pair.now;
    pair.write(1_000);
    pair.run();
    let took = pair.now - began;
    assert!(took < Nanos::from_millis(1), "{took:?}");
}

#[test]
fn uc6_swift_keeps_its_window_over_paths_of_unequal_length() {
    let mut pair = Pair::with(|setup| {
        setup.policy = PolicyKind::Oblivious;
        setup.congestion = CongestionKind::Swift {
            base_target: micros(25),
        };
    });
    // Eight times what a large window may queue.
    pair.delay_all(micros(200), |p| p.from == Side::A && p.path.0 == 1);
    pair.expect_drop(DropReason::Duplicate);
    pair.write(2_000_000);
    pair.run();
    let window = pair.connection(Side::A).window();
    assert!(window >= 20 * 1_064, "{window} B");
}

#[test]
fn a_path_that_drops_long_packets_is_given_no_data_though_short_ones_pass() {
    let mut pair = Pair::new();
    for _ in 0..4 {
        pair.write(16_000);
        pair.run();
    }
    pair.drop_all(|p| p.path.0 == 1 && p.bytes.len() > 600);
    let began = pair.now;
    // The last packet of each chunk is short, and passes.
    for _ in 0..40 {
        pair.write(15_500);
        pair.write(100);
        pair.run();
    }
    let took = pair.now - began;
    assert_eq!(pair.path_state(1), PathState::Suspended);
    // A round trip of 100 us each, and what the first losses cost.
    assert!(took < Nanos::from_millis(40), "{took:?}");
    assert!(pair.path(1).lost_chunks <= 4, "{:?}", pair.path(1));
    pair.heal();
    keep_busy(&mut pair, Nanos::from_secs(3), |pair| {
        pair.path_state(1) == PathState::Live
    });
    assert_eq!(pair.path_state(1), PathState::Live);
}

#[test]
fn what_no_path_carries_in_long_packets_is_cut_into_short_ones() {
    let mut pair = Pair::with(|setup| {
        setup.settings.packet_payload = 4_000;
        setup.settings.chunk_bytes = 4 * 4_064;
    });
    pair.write(100_000);
    pair.run();
    // The MTU of the whole fabric falls while a message is under way.
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(|p| p.bytes.len() > 1_500);
    let began = pair.now;
    for _ in 0..4 {
        let token = pair.write_to(Side::A, 100_000, 0, Some(9));
        pair.run();
        assert!(pair.events(Side::A).contains(&Event::Completed { token }));
    }
    let took = pair.now - began;
    assert!(took < Nanos::from_millis(50), "{took:?}");
    assert!((0..4).all(|path| pair.path_state(path) == PathState::Narrow));
    let immediates = |event: &Event| matches!(event, Event::Immediate { .. });
    assert_eq!(
        pair.events(Side::B).into_iter().filter(immediates).count(),
        4
    );
    // It is mended: long packets are used again.
    pair.heal();
    keep_busy(&mut pair, Nanos::from_secs(3), |pair| {
        (0..4).all(|path| pair.path_state(path) == PathState::Live)
    });
    assert!((0..4).all(|path| pair.path_state(path) == PathState::Live));
}

#[test]
fn a_message_of_two_packets_arrives_whole_where_only_its_short_one_came_through() {
    for bytes in [1_409, 2_000, 2_272, 3_000] {
        let mut pair = Pair::with(|setup| {
            setup.settings.packet_payload = 1_408;
            setup.settings.chunk_bytes = 4 * 1_472;
        });
        pair.expect_drop(DropReason::Duplicate);
        pair.drop_all(|p| p.bytes.len() > 1_400);
        let token = pair.write_to(Side::A, bytes, 0, Some(1));
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
        let source = pair.source(token);
        assert_eq!(pair.memory(Side::B).bytes[..bytes], source, "{bytes} B");
    }
}
