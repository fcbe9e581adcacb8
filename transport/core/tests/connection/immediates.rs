//! Immediates: after their payload, once.

use weft_core::connection::Event;

use crate::pair::{KEY, Pair, Side, micros};
use weft_core::units::Nanos;

fn immediates(events: &[Event]) -> Vec<u32> {
    let value = |event: &Event| match event {
        Event::Immediate { value, key } => {
            assert_eq!(*key, KEY);
            Some(*value)
        }
        _ => None,
    };
    events.iter().filter_map(value).collect()
}

#[test]
fn an_immediate_counts_only_when_its_whole_message_is_placed() {
    let mut pair = Pair::new();
    pair.drop_all(|p| p.is_chunk(0) && p.header().packet == 0);
    let token = pair.write_to(Side::A, 20_000, 0, Some(7));
    pair.run_for(micros(300));
    assert_eq!(
        immediates(&pair.events(Side::B)),
        [0u32; 0],
        "its first packet is still missing"
    );
    pair.heal();
    pair.run();
    assert_eq!(immediates(&pair.events(Side::B)), [7]);
    assert_eq!(pair.memory(Side::B).bytes[..20_000], *pair.source(token));
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
}

#[test]
fn a_write_of_no_bytes_delivers_its_immediate() {
    let mut pair = Pair::new();
    let token = pair.write_to(Side::A, 0, 0, Some(42));
    pair.run();
    assert_eq!(immediates(&pair.events(Side::B)), [42]);
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
}

#[test]
fn an_immediate_does_not_wait_for_another_message() {
    let mut pair = Pair::new();
    pair.delay_next(Nanos::from_millis(1), |p| p.is_chunk(0));
    pair.write_to(Side::A, 4_000, 0, Some(1));
    pair.write_to(Side::A, 4_000, 8_000, Some(2));
    pair.run_for(micros(120));
    assert_eq!(
        immediates(&pair.events(Side::B)),
        [2],
        "the second message is whole"
    );
    pair.run();
    assert_eq!(immediates(&pair.events(Side::B)), [1]);
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
}

#[test]
fn in_order_an_immediate_waits_for_the_messages_before_it() {
    let mut pair = Pair::with(|setup| setup.in_order = true);
    pair.delay_next(Nanos::from_millis(1), |p| p.is_chunk(0));
    for value in [1, 2, 3] {
        pair.write_to(Side::A, 4_000, 0, Some(value));
    }
    pair.run_for(micros(120));
    assert_eq!(immediates(&pair.events(Side::B)), [0u32; 0]);
    pair.run();
    assert_eq!(immediates(&pair.events(Side::B)), [1, 2, 3]);
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
}

#[test]
fn an_immediate_counts_whichever_packet_comes_last() {
    for late in 0..4 {
        let mut pair = Pair::new();
        pair.expect_drop(weft_core::drops::DropReason::Duplicate);
        pair.delay_next(micros(90), move |p| {
            p.is_chunk(1) && p.header().packet == late
        });
        pair.write_to(Side::A, 8_000, 0, Some(6));
        pair.run_for(micros(100));
        assert_eq!(immediates(&pair.events(Side::B)), [0u32; 0], "{late}");
        pair.run();
        assert_eq!(immediates(&pair.events(Side::B)), [6], "{late}");
    }
}

#[test]
fn a_resent_message_delivers_its_immediate_once() {
    let mut pair = Pair::new();
    pair.expect_drop(weft_core::drops::DropReason::Duplicate);
    pair.drop_next(|p| p.is_ack());
    pair.drop_next(|p| p.is_ack());
    pair.write_to(Side::A, 4_000, 0, Some(9));
    pair.run();
    assert!(pair.connection(Side::A).stats().chunks_resent > 0);
    assert_eq!(immediates(&pair.events(Side::B)), [9]);
}

#[test]
fn both_ends_write_at_the_same_time() {
    let mut pair = Pair::new();
    pair.write_to(Side::A, 50_000, 0, Some(1));
    pair.write_to(Side::B, 70_000, 0, Some(2));
    pair.run();
    assert_eq!(immediates(&pair.events(Side::A)), [2]);
    assert_eq!(immediates(&pair.events(Side::B)), [1]);
}
