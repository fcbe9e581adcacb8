//! Loss, delay and reordering: what is sent again, when, and where.

use weft_core::connection::{Event, Failure};
use weft_core::drops::DropReason;
use weft_core::units::Nanos;

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
    let mut pair = Pair::with(|setup| {
        setup.congestion = CongestionKind::Fixed {
            bytes: 2 * 4 * 1_064,
        };
    });
    pair.write(40_000);
    pair.drop_next(|p| p.is_ack());
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 1);
    assert!(pair.connection(Side::A).stats().packets_resent <= 8);
    pair.expect_drop(DropReason::Duplicate);
}

#[test]
fn a_spurious_timeout_restores_the_window() {
    let mut pair = Pair::with(|setup| setup.congestion = CongestionKind::EcnRtt);
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
    let mut pair = Pair::with(|setup| setup.congestion = CongestionKind::EcnRtt);
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
