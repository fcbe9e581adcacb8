//! Reads that are cancelled: they end here, and what the peer still sends goes nowhere.

use weft_core::connection::{CancelError, Event, PostError, REQUESTS_MAX, Read};
use weft_core::drops::DropReason;
use weft_core::wire::Kind;
use weft_sim::pattern;

use crate::cancel::{REUSED, cancel, is};
use crate::pair::{KEY, Pair, Side, micros};

fn read(pair: &mut Pair, token: u64, bytes: u64) {
    let read = Read {
        token,
        bytes,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 1_000_000,
    };
    pair.post(0, 0, read).expect("the connection is open");
}

#[test]
fn a_read_is_cancelled_here_and_what_the_peer_still_sends_goes_nowhere() {
    for when in [0, 20, 60, 130, 300] {
        let mut pair = Pair::new();
        pair.memory_mut(Side::B).bytes[..2_000_000].copy_from_slice(&pattern_bytes(2_000_000));
        read(&mut pair, 5, 2_000_000);
        pair.run_for(micros(when));
        assert_eq!(cancel(&mut pair, 5), Ok(()));
        pair.run_for(micros(0));
        assert_eq!(
            pair.events(Side::A),
            [Event::Cancelled { token: 5 }],
            "{when}"
        );
        pair.memory_mut(Side::A).bytes.fill(REUSED);
        assert_eq!(cancel(&mut pair, 5), Err(CancelError::NotUnderWay));
        // Its name is free, and so is its place.
        read(&mut pair, 5, 1_000);
        pair.run();
        assert_eq!(
            pair.events(Side::A),
            [Event::Completed { token: 5 }],
            "{when}"
        );
        let bytes = &pair.memory(Side::A).bytes;
        assert_eq!(bytes[1_000_000..1_001_000], pattern_bytes(1_000), "{when}");
        let touched = bytes[1_001_000..].iter().any(|&byte| byte != REUSED);
        assert!(!touched, "{when}");
        let connection = pair.connection(Side::B);
        assert_eq!((connection.outstanding(), connection.in_flight()), (0, 0));
    }
}

#[test]
fn a_read_that_is_being_copied_is_cancelled_when_the_copy_has_ended() {
    let mut pair = Pair::new();
    pair.memory_mut(Side::A).copies_later = true;
    read(&mut pair, 5, 8_000);
    pair.run_for(micros(120));
    let copies = pair.memory(Side::A).copies.len();
    assert!(copies > 0);
    assert_eq!(cancel(&mut pair, 5), Ok(()));
    assert_eq!(cancel(&mut pair, 5), Ok(()), "once more changes nothing");
    pair.run_for(micros(1_000));
    assert_eq!(pair.events(Side::A), []);
    pair.expect_drop(DropReason::Duplicate);
    pair.end_copies(Side::A as usize, Ok(()));
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Cancelled { token: 5 }]);
    assert_eq!(pair.memory(Side::A).copies_begun, copies as u64);
}

#[test]
fn a_cancelled_read_is_under_way_until_its_response_has_ended() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(is(Kind::Response));
    let one_more = Read {
        token: 999,
        bytes: 2_000,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 0,
    };
    for token in 0..REQUESTS_MAX as u64 {
        read(&mut pair, token, 2_000);
        pair.run_for(micros(10));
        assert_eq!(cancel(&mut pair, token), Ok(()));
    }
    assert_eq!(pair.connection(Side::A).cancelled_reads(), REQUESTS_MAX);
    assert_eq!(pair.post(0, 0, one_more), Err(PostError::TooManyRequests));
    pair.heal();
    pair.run();
    let events = pair.events(Side::A);
    assert_eq!(events.len(), REQUESTS_MAX, "{events:?}");
    let are_cancelled = |event: &Event| matches!(event, Event::Cancelled { .. });
    assert!(events.iter().all(are_cancelled), "{events:?}");
    assert_eq!(pair.connection(Side::A).cancelled_reads(), 0);
    pair.post(0, 0, one_more).expect("there is room");
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 999 }]);
}

fn pattern_bytes(bytes: usize) -> Vec<u8> {
    let slices = (0..bytes).step_by(1_000);
    let slices = slices.map(|at| pattern::slice(1, at as u64, 1_000.min(bytes - at)));
    slices.flatten().copied().collect()
}
