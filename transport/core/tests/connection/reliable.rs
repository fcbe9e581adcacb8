//! A link that delivers what it takes: silence is no loss, and only what a broken path carried is sent again.

use weft_core::connection::Event;
use weft_core::drops::DropReason;
use weft_core::path::PathState;
use weft_core::units::{Nanos, PathId};

use crate::pair::{Pair, Side, micros};

/// A pair whose first write is acknowledged: until then one packet at a time is under way.
fn reliable() -> Pair {
    let mut pair = Pair::with(|setup| {
        setup.reliable = true;
        setup.rto_min = Nanos::from_secs(2);
    });
    pair.write(100);
    pair.run();
    pair.events(Side::A);
    pair
}

fn block(pair: &mut Pair, path: u8, is_blocked: bool) {
    let now = pair.now;
    let endpoint = &mut pair.ends[0].host.endpoint;
    endpoint.set_path_blocked(now, |&peer| peer == 1, PathId(path), is_blocked);
}

fn break_path(pair: &mut Pair, path: u8) {
    let now = pair.now;
    let endpoint = &mut pair.ends[0].host.endpoint;
    endpoint.break_path(now, |&peer| peer == 1, PathId(path));
}

#[test]
fn what_waits_for_a_second_on_a_reliable_path_is_sent_once_however_late() {
    let mut pair = reliable();
    // Four chunks in turn; what follows on the other paths overtakes those on path 1 by far.
    pair.delay_all(Nanos::from_secs(1), |packet| {
        packet.is_data() && packet.path.0 == 1
    });
    let token = pair.write(200_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    let stats = pair.stats(Side::A);
    assert_eq!(
        (stats.packets_resent, stats.timeouts, stats.tail_probes),
        (0, 0, 0)
    );
}

#[test]
fn the_chunks_of_a_broken_path_are_sent_again_on_others_and_no_other_chunk_is() {
    let mut pair = reliable();
    pair.drop_all(|packet| packet.from == Side::A && packet.path.0 == 1);
    let token = pair.write(200_000);
    pair.run_for(micros(1_000));
    assert_eq!(pair.events(Side::A), []);
    let lost = pair.path(1).sent_chunks;
    assert!(lost > 3, "{lost}");
    break_path(&mut pair, 1);
    pair.run_for(micros(1_000));
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    let stats = pair.stats(Side::A);
    assert_eq!((stats.chunks_resent, stats.timeouts), (lost, 0));
    assert_eq!(pair.path_state(1), PathState::Suspect);
    assert_eq!(pair.path(1).sent_chunks, lost);
    assert_eq!(pair.memory(Side::B).bytes[..200_000], pair.source(token));
}

#[test]
fn a_broken_path_is_used_again_once_it_has_answered_a_probe() {
    let mut pair = reliable();
    break_path(&mut pair, 1);
    pair.write(200_000);
    pair.run();
    assert_eq!(pair.path_state(1), PathState::Live);
}

#[test]
fn a_broken_path_is_probed_and_used_as_soon_as_the_link_takes_anything_there() {
    let mut pair = reliable();
    pair.drop_all(|packet| packet.is_data());
    pair.write(1_000);
    block(&mut pair, 1, true);
    break_path(&mut pair, 1);
    pair.run_for(Nanos::from_millis(10));
    assert_eq!(pair.path_state(1), PathState::Suspect);
    block(&mut pair, 1, false);
    pair.run_for(Nanos::from_millis(10));
    assert_eq!(pair.path_state(1), PathState::Live);
}

#[test]
fn no_chunk_goes_on_a_path_that_the_link_has_blocked_and_all_go_when_it_takes_them_again() {
    let mut pair = reliable();
    let sent = pair.path(1).sent_chunks;
    block(&mut pair, 1, true);
    let first = pair.write(200_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: first }]);
    assert_eq!(pair.path(1).sent_chunks, sent);
    for path in [0, 2, 3] {
        block(&mut pair, path, true);
    }
    let second = pair.write(10_000);
    pair.run_for(Nanos::from_millis(100));
    assert_eq!(pair.events(Side::A), []);
    assert_eq!(pair.connection(Side::A).in_flight(), 0);
    block(&mut pair, 1, false);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: second }]);
    assert!(pair.path(1).sent_chunks > sent);
}

#[test]
fn a_connection_that_waits_for_blocked_paths_only_fails_as_one_that_nobody_answers() {
    let mut pair = reliable();
    for path in 0..4 {
        block(&mut pair, path, true);
    }
    pair.write(10_000);
    pair.run_for(Nanos::from_secs(6));
    let failure = pair.failure(Side::A);
    assert_eq!(failure.map(|it| it.reason()), Some("Stalled"));
}

#[test]
fn the_first_packet_goes_alone_and_soon_again_until_the_peer_knows_the_connection() {
    let mut pair = Pair::with(|setup| {
        setup.reliable = true;
        setup.rto_min = Nanos::from_secs(2);
    });
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(|packet| packet.is_data());
    let token = pair.write(100_000);
    pair.run_for(Nanos::from_millis(30));
    assert_eq!(pair.wire.lost.len(), 2);
    pair.heal();
    pair.run_for(Nanos::from_millis(50));
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
}

#[test]
fn what_was_under_way_when_an_end_was_saved_is_sent_again_at_once_by_the_next() {
    let mut pair = reliable();
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(|packet| packet.is_data());
    let token = pair.write(100_000);
    pair.run_for(micros(500));
    pair.heal();
    pair.restart(Side::A);
    pair.run_for(Nanos::from_millis(5));
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..100_000], pair.source(token));
}
