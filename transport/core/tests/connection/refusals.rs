//! Work requests that the peer refuses for good, on connections that go on: each ends alone.

use weft_core::connection::{AtomicChange, Event, Failure, REQUESTS_MAX, Read, SendMessage};
use weft_core::drops::DropReason;
use weft_core::memory::Access;
use weft_core::wire::{Atomic, Kind};

use crate::cancel::{cancel, is};
use crate::pair::{KEY, Pair, REGION_BYTES, Side, micros};

fn pair() -> Pair {
    let mut pair = Pair::new();
    pair.set_survives_refusals(Side::A);
    for reason in [DropReason::Bounds, DropReason::Key, DropReason::Duplicate] {
        pair.expect_drop(reason);
    }
    pair
}

fn read(token: u64) -> Read {
    Read {
        token,
        bytes: 100,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 0,
    }
}

#[test]
fn a_refused_write_ends_alone_whatever_is_lost() {
    for fault in 0..5 {
        let mut pair = pair();
        match fault {
            0 => {}
            1 => pair.drop_next(is(Kind::Refusal)),
            2 => pair.drop_next(is(Kind::Revoke)),
            3 => pair.drop_next(is(Kind::Revoked)),
            _ => pair
                .drop_all(|packet| packet.is_data() && packet.header().chunk.0.is_multiple_of(3)),
        }
        let before = pair.write_to(Side::A, 100_000, 0, Some(1));
        // Most of it has its place; what is beyond the region has none.
        let start = REGION_BYTES as u64 - 300_000;
        let refused = pair.write_to(Side::A, 300_001, start, Some(2));
        let after = pair.write_to(Side::A, 100_000, 100_000, Some(3));
        pair.run_for(micros(2_000));
        pair.heal();
        pair.run();
        let mut events = pair.events(Side::A);
        events.sort_by_key(|event| match event {
            Event::Completed { token } | Event::Refused { token, .. } => *token,
            other => panic!("{other:?}"),
        });
        let failure = Failure::BoundsRefused;
        let expected = [
            Event::Completed { token: before },
            Event::Refused {
                token: refused,
                failure,
            },
            Event::Completed { token: after },
        ];
        assert_eq!(events, expected, "fault {fault}");
        let told = pair.events(Side::B);
        let immediate = |value| Event::Immediate { value, key: KEY };
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.contains(&immediate(1)) && told.contains(&immediate(3)));
        // Its place is free, and window, paths and other places are as before.
        pair.memory_mut(Side::B).bytes[start as usize..].fill(0xee);
        let next = pair.write_to(Side::A, 1_000_000, 0, None);
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token: next }]);
        let place = &pair.memory(Side::B).bytes[start as usize..];
        assert!(place.iter().all(|&byte| byte == 0xee), "fault {fault}");
    }
}

#[test]
fn refused_reads_and_atomics_end_alone_and_leave_room_for_others() {
    let mut pair = pair();
    pair.set_access(Side::B, Access::WRITE);
    for token in 0..3 * REQUESTS_MAX as u64 {
        if token % 2 == 0 {
            pair.post(0, 0, read(token)).unwrap();
        } else {
            let change = AtomicChange {
                token,
                atomic: Atomic::FetchAdd { add: 1 },
                key: KEY,
                offset: 0,
                to_key: KEY,
                to_offset: 8,
            };
            pair.post(0, 0, change).unwrap();
        }
        pair.run();
        let failure = Failure::KeyRefused;
        assert_eq!(pair.events(Side::A), [Event::Refused { token, failure }]);
    }
    pair.set_access(Side::B, Access::ALL);
    pair.post(0, 0, read(900)).unwrap();
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 900 }]);
}

#[test]
fn what_is_refused_while_it_is_cancelled_has_one_end() {
    for when in (0..120).step_by(10) {
        let mut pair = pair();
        pair.set_access(Side::B, Access::WRITE);
        pair.post(0, 0, read(900)).unwrap();
        let write = pair.write_to(Side::A, 1_000, REGION_BYTES as u64, None);
        pair.run_for(micros(when));
        for token in [900, write] {
            // Of one that has ended it says so.
            let _ = cancel(&mut pair, token);
        }
        pair.run();
        let mut tokens: Vec<u64> = pair.events(Side::A).iter().map(token_of).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [write, 900], "after {when} us");
    }
}

fn token_of(event: &Event) -> u64 {
    match event {
        Event::Refused { token, .. } | Event::Cancelled { token } => *token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_is_not_forgotten_when_its_connection_is_saved() {
    for when in (0..200).step_by(10) {
        let mut pair = pair();
        pair.drop_next(is(Kind::Revoked));
        let token = pair.write_to(Side::A, 100_001, REGION_BYTES as u64 - 100_000, None);
        pair.run_for(micros(when));
        let mut events = pair.events(Side::A);
        pair.restart(Side::A);
        pair.run();
        events.extend(pair.events(Side::A));
        let failure = Failure::BoundsRefused;
        assert_eq!(
            events,
            [Event::Refused { token, failure }],
            "after {when} us"
        );
    }
}

#[test]
fn a_send_that_the_peer_refuses_ends_the_connection_all_the_same() {
    let mut pair = pair();
    pair.expect_drop(DropReason::Closed);
    pair.expect_drop(DropReason::NotArmed);
    let buffer = weft_core::connection::ReceiveBuffer {
        token: 5,
        key: KEY,
        offset: 0,
        bytes: 2_999,
    };
    pair.post_receive(1, 0, buffer).unwrap();
    let send = SendMessage {
        token: 1,
        bytes: 3_000,
        immediate: None,
    };
    pair.post(0, 0, send).unwrap();
    pair.run_for(micros(5_000));
    assert_eq!(pair.failure(Side::A), Some(Failure::BoundsRefused));
}
