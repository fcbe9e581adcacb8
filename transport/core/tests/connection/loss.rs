//! Loss, delay and reordering: what is sent again, when, and where.

use weft_core::connection::{Event, Failure};
use weft_core::drops::DropReason;
use weft_core::units::Nanos;
use weft_core::wire::Flags;

use crate::pair::{Pair, Side, micros};
use weft_core::congestion::CongestionKind;

#[test]
fn a_write_without_faults_is_placed_and_completed_and_nothing_is_resent() {
    let mut pair = Pair::new();
    let token = pair.write(100_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..100_000], *pair.source(token));
    assert_eq!(pair.connection(Side::A).stats().packets_resent, 0);
    assert!(pair.connection(Side::A).is_idle());
    assert_eq!(
        (
            pair.connection(Side::A).outstanding(),
            pair.connection(Side::A).in_flight()
        ),
        (0, 0)
    );
}

#[test]
fn a_lost_last_chunk_is_resent_on_another_path() {
    let mut pair = Pair::new();
    pair.write(10_000);
    pair.start_trace();
    pair.drop_all(|p| p.is_chunk(2) && p.path.0 == 2);
    pair.run();
    let again: Vec<&str> = pair
        .trace()
        .lines()
        .filter(|l| l.contains("again"))
        .collect();
    assert_eq!(again.len(), 2, "{}", pair.trace());
    assert!(
        again.iter().all(|line| !line.ends_with("on 2")),
        "{}",
        pair.trace()
    );
    assert_eq!(pair.events(Side::A).len(), 1);
}

#[test]
fn only_the_missing_packet_of_a_chunk_is_resent() {
    let mut pair = Pair::new();
    let token = pair.write(40_000);
    pair.drop_next(|p| p.is_chunk(3) && p.header().packet == 1);
    pair.run();
    assert_eq!(pair.memory(Side::B).bytes[..40_000], *pair.source(token));
    assert_eq!(pair.connection(Side::A).stats().packets_resent, 1);
}

#[test]
fn a_gap_that_later_chunks_close_over_is_resent_before_the_timeout() {
    let mut pair = Pair::with(|setup| setup.rto_min = Nanos::from_millis(50));
    // Two rounds first, so that the round trip is known.
    pair.write(20_000);
    pair.run();
    pair.events(Side::A);
    let token = pair.write(80_000);
    pair.drop_next(|p| p.is_chunk(8) && p.header().packet == 0);
    pair.run_for(Nanos::from_millis(2));
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.connection(Side::A).stats().timeouts, 0);
}

#[test]
fn a_lost_acknowledgement_costs_no_resend_when_a_later_one_covers_it() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.write(20_000);
    pair.drop_next(|p| p.is_ack());
    pair.run_for(micros(20));
    pair.write_to(Side::A, 20_000, 20_000, None);
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 2);
    assert!(pair.trace().contains(" lost"), "{}", pair.trace());
    assert!(pair.stats(Side::B).acks_sent > 1);
    assert_eq!(pair.stats(Side::A).packets_resent, 0);
}

/// 16 paths in turn, the first of them slower by 20 ms; every path was measured.
fn one_slow_path(rto_min: Nanos) -> Pair {
    let mut pair = Pair::with(|setup| {
        setup.settings.paths = 16;
        setup.rto_min = rto_min;
    });
    pair.delay_all(Nanos::from_millis(20), |p| p.path.0 == 0 && p.is_data());
    for _ in 0..3 {
        pair.write(16 * 4_000);
        pair.run();
    }
    pair.expect_drop(DropReason::Duplicate);
    pair
}

#[test]
fn a_slow_path_does_not_hide_a_loss_on_a_fast_one() {
    let mut pair = one_slow_path(Nanos::from_millis(500));
    let before = pair.stats(Side::A);
    // One of the first 16 chunks goes on the slow path, and is under way until the end.
    pair.write(32 * 4_000);
    pair.faults_first(|p| p.is_chunk(48 + 20) && !p.header().flags.contains(Flags::RETRANSMITTED));
    pair.run_for(Nanos::from_millis(10));
    let stats = pair.stats(Side::A);
    assert_eq!(stats.chunks_resent - before.chunks_resent, 1);
    assert_eq!(stats.timeouts, before.timeouts);
    assert!(pair.connection(Side::A).outstanding() >= 16);
    pair.run();
}

#[test]
fn a_slow_path_does_not_put_off_a_timeout_on_a_fast_one() {
    let mut pair = one_slow_path(Nanos::from_millis(2));
    let before = pair.stats(Side::A);
    // One of 16 chunks goes on the slow path. The next chunk is lost.
    pair.write(16 * 4_000);
    pair.run_for(Nanos::from_millis(1));
    pair.write(4_000);
    let mut lost = 0;
    pair.faults_first(move |p| {
        lost += u32::from(p.is_chunk(64));
        p.is_chunk(64) && lost <= 4
    });
    pair.run_for(Nanos::from_millis(9));
    let stats = pair.stats(Side::A);
    assert_eq!(stats.timeouts - before.timeouts, 1);
    assert_eq!(stats.chunks_resent - before.chunks_resent, 1);
    assert!(pair.connection(Side::A).outstanding() > 0);
    pair.run();
}

#[test]
fn a_tail_of_lost_chunks_is_mended_without_a_timeout() {
    let mut pair = Pair::with(|setup| setup.rto_min = Nanos::from_millis(50));
    pair.write(16_000);
    pair.run();
    let token = pair.write(40_000);
    // The last six of ten chunks, once each.
    pair.drop_all(|p| p.is_data() && p.header().chunk.0 >= 8);
    let began = pair.now;
    pair.run_for(micros(150));
    pair.heal();
    pair.run();
    assert_eq!(pair.events(Side::A)[1], Event::Completed { token });
    let stats = pair.stats(Side::A);
    assert_eq!((stats.timeouts, stats.tail_probes), (0, 1));
    let took = pair.now - began;
    assert!(took < Nanos::from_millis(1), "it took {took:?}");
    assert_eq!(stats.chunks_resent, 6);
}

#[test]
fn a_late_answer_brings_a_probe_and_shrinks_no_window() {
    let mut pair = Pair::with(|setup| {
        setup.congestion = CongestionKind::ECN_RTT;
        setup.rto_min = Nanos::from_millis(50);
    });
    pair.expect_drop(DropReason::Duplicate);
    pair.write(200_000);
    pair.run();
    let before = pair.connection(Side::A).window();
    pair.write(3_000);
    pair.delay_all(micros(400), |p| p.is_ack());
    pair.run();
    let stats = pair.stats(Side::A);
    assert_eq!((stats.tail_probes, stats.packets_resent), (1, 1));
    assert!(pair.connection(Side::A).window() >= before);
    assert!((0..4).all(|path| pair.path(path).lost_chunks == 0));
}

#[test]
fn a_probe_that_mends_a_loss_counts_it() {
    let mut pair = Pair::with(|setup| setup.rto_min = Nanos::from_millis(50));
    pair.write(16_000);
    pair.run();
    pair.drop_next(|p| p.is_data());
    pair.write(1_000);
    pair.run();
    assert_eq!(pair.path(0).lost_chunks, 1);
    assert_eq!(pair.stats(Side::A).tail_probes, 1);
}

#[test]
fn one_probe_is_sent_until_something_new_is_heard() {
    let mut pair = Pair::with(|setup| setup.rto_min = Nanos::from_millis(50));
    pair.write(16_000);
    pair.run();
    pair.drop_all(|_| true);
    pair.write(1_000);
    pair.run_for(Nanos::from_millis(40));
    assert_eq!(pair.stats(Side::A).tail_probes, 1);
    pair.heal();
    pair.run();
    pair.drop_next(|p| p.is_data());
    pair.write(1_000);
    pair.run();
    assert_eq!(pair.stats(Side::A).tail_probes, 2);
}

#[test]
fn a_spurious_timeout_restores_the_window() {
    let mut pair = Pair::with(|setup| setup.congestion = CongestionKind::ECN_RTT);
    pair.expect_drop(DropReason::Duplicate);
    pair.write(200_000);
    pair.run();
    let before = pair.connection(Side::A).window();
    // Nothing is lost, all is late: by more than any timeout.
    pair.delay_all(Nanos::from_millis(3), |p| p.is_data());
    pair.write(100_000);
    pair.run_for(Nanos::from_millis(3));
    assert!(
        pair.connection(Side::A).window() < before,
        "the silence shrank the window"
    );
    pair.run_for(micros(101));
    assert!(pair.connection(Side::A).stats().spurious > 0);
    assert!(
        pair.connection(Side::A).window() >= before,
        "the window came back"
    );
    pair.run();
}

#[test]
fn uc6_a_spurious_timeout_restores_swifts_window_and_ends_its_pause() {
    let mut pair = Pair::with(|setup| {
        setup.congestion = CongestionKind::Swift {
            base_target: Nanos::from_millis(10),
        }
    });
    pair.expect_drop(DropReason::Duplicate);
    pair.write(200_000);
    pair.run();
    let before = pair.connection(Side::A).window();
    pair.delay_all(Nanos::from_millis(3), |p| p.is_data());
    pair.write(100_000);
    pair.run_for(Nanos::from_millis(3));
    let shrunk = pair.connection(Side::A).window();
    assert!(shrunk < before, "the silence shrank the window");
    pair.run_for(micros(101));
    assert!(pair.connection(Side::A).stats().spurious > 0);
    let after = pair.connection(Side::A).window();
    assert!(after >= before, "{after} of {before}, {shrunk} meanwhile");
    pair.run();
}

#[test]
fn packets_that_arrive_twice_are_placed_once() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.double_next(|p| p.is_chunk(0));
    pair.double_next(|p| p.is_chunk(4));
    pair.write(20_000);
    pair.run();
    assert_eq!(pair.connection(Side::B).stats().packets_placed, 20);
    assert_eq!(
        pair.connection(Side::B).drops().get(DropReason::Duplicate),
        2
    );
}

#[test]
fn a_chunk_that_overtakes_is_no_loss() {
    let mut pair = Pair::new();
    pair.write(20_000);
    pair.run();
    pair.delay_all(micros(20), |p| p.is_chunk(6));
    pair.write(60_000);
    pair.run();
    assert_eq!(pair.connection(Side::A).stats().chunks_resent, 0);
}

#[test]
fn a_peer_that_is_gone_fails_the_connection_after_the_stall_timeout() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(3));
    pair.drop_all(|_| true);
    pair.write(1_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Stalled)]);
    assert_eq!(pair.now.as_nanos() / 1_000_000, 3_000);
    assert_eq!(pair.failure(Side::A), Some(Failure::Stalled));
}

#[test]
fn a_sender_that_has_no_turn_has_not_stalled() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(3));
    pair.set_chunks_per_turn(0);
    let token = pair.write(100_000);
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.failure(Side::A), None);
    // A turn now and then, and all that was sent is answered between them.
    for _ in 0..3 {
        pair.set_chunks_per_turn(u32::MAX);
        pair.run_for(micros(10));
        pair.set_chunks_per_turn(0);
        pair.run_for(Nanos::from_secs(10));
        assert_eq!(pair.failure(Side::A), None);
    }
    pair.set_chunks_per_turn(u32::MAX);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
}

#[test]
fn the_time_without_a_turn_is_no_part_of_a_stall() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(3));
    pair.drop_all(|_| true);
    pair.write(1_000);
    pair.run_for(Nanos::from_secs(1));
    pair.heal();
    // A path answers a probe, and this end may not send what was lost.
    pair.set_chunks_per_turn(0);
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.failure(Side::A), None);
    pair.drop_all(|_| true);
    pair.set_chunks_per_turn(u32::MAX);
    let began = pair.now;
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Stalled)]);
    let waited = pair.now - began;
    assert!(waited < Nanos::from_secs(3), "{waited:?}");
}

#[test]
fn a_connection_whose_paths_are_all_suspended_stalls() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(3));
    pair.drop_all(|_| true);
    pair.write(1_000);
    pair.run_for(Nanos::from_secs(1));
    assert!(pair.paths(Side::A).is_down());
    pair.run();
    assert_eq!(pair.now.as_nanos() / 1_000_000, 3_000);
    assert_eq!(pair.failure(Side::A), Some(Failure::Stalled));
}

#[test]
fn a_silence_shorter_than_the_stall_timeout_fails_nothing() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(5));
    pair.drop_all(|_| true);
    let token = pair.write(50_000);
    pair.run_for(Nanos::from_secs(3));
    pair.heal();
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    pair.expect_drop(DropReason::Duplicate);
}

#[test]
fn the_window_is_never_exceeded_and_gives_everything_back() {
    let mut pair = Pair::with(|setup| {
        setup.settings.window_chunks = 8;
        setup.congestion = CongestionKind::Fixed {
            bytes: 16 * 4 * 1_064,
        };
    });
    pair.write(200_000);
    pair.drop_next(|p| p.is_chunk(5));
    let until = pair.now + Nanos::from_secs(1);
    while pair.step(until) {
        assert!(pair.connection(Side::A).outstanding() <= 8);
    }
    assert_eq!(
        (
            pair.connection(Side::A).outstanding(),
            pair.connection(Side::A).in_flight()
        ),
        (0, 0)
    );
    pair.expect_drop(DropReason::Duplicate);
}

#[test]
fn marks_shrink_the_window_and_no_packet_is_resent() {
    let mut pair = Pair::with(|setup| setup.congestion = CongestionKind::ECN_RTT);
    pair.write(1_000_000);
    pair.run();
    let before = pair.connection(Side::A).window();
    pair.mark_all(|p| p.is_data());
    pair.write(1_000_000);
    pair.run();
    assert!(pair.connection(Side::A).window() < before);
    assert_eq!(pair.connection(Side::A).stats().packets_resent, 0);
    assert!((0..4).any(|path| pair.path(path).ce_packets > 0));
}

#[test]
fn a_short_last_packet_is_resent_alone() {
    let mut pair = Pair::new();
    let token = pair.write(3_100);
    pair.drop_next(|p| p.is_chunk(0) && p.header().packet == 3);
    pair.run();
    assert_eq!(pair.memory(Side::B).bytes[..3_100], *pair.source(token));
    assert_eq!(pair.connection(Side::A).stats().packets_resent, 1);
}
