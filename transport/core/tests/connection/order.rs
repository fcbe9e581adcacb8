//! In-order connections: what a program sees in memory, and in which order it is told.

use weft_core::connection::{
    AtomicChange, Event, Failure, Read, ReceiveBuffer, ReportWrite, Write,
};
use weft_core::drops::DropReason;
use weft_core::units::{Key, Nanos};
use weft_core::wire::Atomic;

use crate::pair::{KEY, Pair, Side, micros};

/// Where a message of eight bytes lands.
const FLAG: usize = 50_000;

fn in_order() -> Pair {
    let mut pair = Pair::with(|setup| setup.in_order = true);
    pair.expect_drop(DropReason::Duplicate);
    pair
}

fn completed(pair: &mut Pair) -> Vec<u64> {
    let token = |event: Event| match event {
        Event::Completed { token } => Some(token),
        _ => None,
    };
    pair.events(Side::A).into_iter().filter_map(token).collect()
}

#[test]
fn a_flag_is_not_seen_before_the_data_that_was_written_before_it() {
    let mut pair = in_order();
    pair.drop_all(|p| p.is_chunk(0));
    let data = pair.write_to(Side::A, 4_000, 0, None);
    let flag = pair.write_to(Side::A, 8, FLAG as u64, None);
    pair.run_for(micros(200));
    assert_eq!(pair.memory(Side::B).bytes[FLAG..][..8], [0; 8]);
    assert_eq!(completed(&mut pair), [0u64; 0]);
    pair.heal();
    pair.run();
    assert_eq!(pair.memory(Side::B).bytes[..4_000], *pair.source(data));
    assert_eq!(pair.memory(Side::B).bytes[FLAG..][..8], *pair.source(flag));
    assert_eq!(completed(&mut pair), [data, flag]);
    // It was here, and not sent again: five packets were placed, and one chunk was sent twice.
    assert_eq!(pair.connection(Side::B).stats().packets_placed, 5);
}

#[test]
fn the_last_bytes_of_a_message_come_last() {
    let mut pair = in_order();
    pair.delay_next(Nanos::from_millis(1), |p| {
        p.is_chunk(0) && p.header().packet == 1
    });
    let token = pair.write_to(Side::A, 8_000, 0, None);
    pair.run_for(micros(200));
    let source = pair.source(token).to_vec();
    let bytes = &pair.memory(Side::B).bytes;
    assert_eq!(bytes[..1_000], source[..1_000], "the others need not wait");
    assert_eq!(bytes[7_900..8_000], [0; 100]);
    pair.run();
    assert_eq!(pair.memory(Side::B).bytes[..8_000], source[..]);
}

#[test]
fn a_write_is_reported_when_it_is_there() {
    let mut pair = in_order();
    let buffer = ReceiveBuffer {
        token: 70,
        key: KEY,
        offset: FLAG as u64,
        bytes: 0,
    };
    pair.post_receive(1, 0, buffer).expect("it is open");
    pair.drop_all(|p| p.is_chunk(0));
    let written = pair.write_to(Side::A, 4_000, 0, None);
    let report = ReportWrite {
        token: 900,
        written: 4_000,
        immediate: 9,
    };
    pair.post(0, 0, report).expect("the connection is open");
    pair.run_for(micros(200));
    assert_eq!(pair.events(Side::B), []);
    pair.heal();
    pair.run();
    let received = Event::Received {
        token: 70,
        bytes: 4_000,
        immediate: Some(9),
        is_write: true,
    };
    assert_eq!(pair.events(Side::B), [received]);
    assert_eq!(completed(&mut pair), [written, 900]);
}

#[test]
fn a_read_and_an_atomic_find_what_was_written_before_them() {
    let mut pair = in_order();
    pair.drop_all(|p| p.is_chunk(0));
    let written = pair.write_to(Side::A, 4_008, 0, None);
    let read = Read {
        token: 900,
        bytes: 4_000,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 10_000,
    };
    pair.post(0, 0, read).expect("the connection is open");
    let atomic = AtomicChange {
        token: 901,
        atomic: Atomic::FetchAdd { add: 1 },
        key: KEY,
        offset: 4_000,
        to_key: KEY,
        to_offset: 20_000,
    };
    pair.post(0, 0, atomic).expect("the connection is open");
    pair.run_for(micros(200));
    assert_eq!(completed(&mut pair), [0u64; 0]);
    pair.heal();
    pair.run();
    assert_eq!(completed(&mut pair), [written, 900, 901]);
    let source = pair.source(written).to_vec();
    let memory = &pair.memory(Side::A).bytes;
    assert!(memory[10_000..14_000] == source[..4_000]);
    let before = &source[4_000..];
    assert_eq!(memory[20_000..20_008], *before);
}

#[test]
fn while_the_end_of_a_message_is_copied_nobody_is_told_that_it_is_there() {
    let mut pair = in_order();
    pair.memory_mut(Side::B).copies_later = true;
    let first = pair.write_to(Side::A, 800, 0, Some(1));
    let second = pair.write_to(Side::A, 800, 1_000, Some(2));
    // The second message waits for the copy of the first one, and then is copied itself.
    for _ in 0..2 {
        pair.run_for(micros(200));
        assert_eq!(pair.events(Side::B), []);
        assert_eq!(completed(&mut pair), [0u64; 0]);
        assert_eq!(pair.memory(Side::B).copies.len(), 1);
        pair.end_copies(1, Ok(()));
    }
    pair.run_for(micros(200));
    let told = [1, 2].map(|value| Event::Immediate { value, key: KEY });
    assert_eq!(pair.events(Side::B), told);
    assert_eq!(completed(&mut pair), [first, second]);
}

#[test]
fn a_request_that_the_peer_refuses_fails_after_all_before_it_are_complete_and_is_named() {
    let nowhere = Key(77);
    let write = Write {
        token: 900,
        bytes: 8,
        key: nowhere,
        offset: 0,
        immediate: None,
    };
    let read = Read {
        token: 900,
        bytes: 8,
        key: nowhere,
        offset: 0,
        to_key: KEY,
        to_offset: 10_000,
    };
    for is_read in [false, true] {
        let mut pair = in_order();
        pair.expect_drop(DropReason::Key);
        pair.drop_all(|p| p.is_chunk(0));
        let before = pair.write_to(Side::A, 4_000, 0, None);
        match is_read {
            false => pair.post(0, 0, write).expect("the connection is open"),
            true => pair.post(0, 0, read).expect("the connection is open"),
        }
        pair.write_to(Side::A, 8, FLAG as u64, None);
        pair.run_for(micros(200));
        assert_eq!(pair.events(Side::A), []);
        pair.heal();
        pair.run_for(Nanos::from_millis(100));
        let told = [
            Event::Completed { token: before },
            Event::Failed(Failure::KeyRefused),
        ];
        assert_eq!(pair.events(Side::A), told);
        assert_eq!(pair.failed_request(Side::A), Some(900));
        // What was posted behind it is not carried out.
        assert_eq!(pair.memory(Side::B).bytes[FLAG..][..8], [0; 8]);
    }
}

#[test]
fn two_ends_that_refuse_each_other_s_writes_do_not_wait_for_the_responses_behind_them() {
    let mut pair = in_order();
    pair.expect_drop(DropReason::Key);
    pair.expect_drop(DropReason::Closed);
    for host in [0, 1] {
        let write = Write {
            token: 901,
            bytes: 8,
            key: Key(77),
            offset: 0,
            immediate: None,
        };
        let read = Read {
            token: 900,
            bytes: 8,
            key: KEY,
            offset: 0,
            to_key: KEY,
            to_offset: 1_000,
        };
        // The response to each read is sent behind the write that the reader refuses.
        pair.post(host, 0, read).expect("the connection is open");
        pair.post(host, 0, write).expect("the connection is open");
    }
    pair.run_for(Nanos::from_millis(100));
    for side in [Side::A, Side::B] {
        let told = pair.events(side);
        assert!(matches!(told[..], [Event::Failed(_)]), "{side:?}: {told:?}");
    }
}

#[test]
fn a_write_that_is_refused_for_good_does_not_hold_up_those_that_the_peer_was_not_ready_for() {
    for held in 0..40 {
        let mut pair = in_order();
        pair.expect_drop(DropReason::NotArmed);
        pair.expect_drop(DropReason::Key);
        pair.expect_drop(DropReason::Closed);
        pair.hold(Side::B, true);
        let first = pair.write_to(Side::A, 8, 0, Some(1));
        let write = Write {
            token: 900,
            bytes: 8,
            key: Key(77),
            offset: 0,
            immediate: Some(2),
        };
        pair.post(0, 0, write).expect("the connection is open");
        pair.run_for(micros(500 * held));
        pair.hold(Side::B, false);
        pair.run_for(Nanos::from_millis(500));
        let told = [
            Event::Completed { token: first },
            Event::Failed(Failure::KeyRefused),
        ];
        assert_eq!(pair.events(Side::A), told, "{held}");
        assert_eq!(pair.failed_request(Side::A), Some(900), "{held}");
    }
}
