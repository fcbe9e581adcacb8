//! Work requests that are cancelled: once that is confirmed, no byte of them lands and their immediate never counts.

use std::collections::BTreeSet;

use weft_core::connection::{
    AtomicChange, CancelError, Event, Failure, Pages, SendMessage, WritePages,
};
use weft_core::drops::DropReason;
use weft_core::units::{ChunkNumber, Nanos, PathId};
use weft_core::wire::{
    Atomic, CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, DataHeader, Flags, Kind, Opcode, Refusal,
    Refused, Revoke,
};

use crate::pair::{KEY, Packet, Pair, Side, id, micros};

/// Ten windows of chunks.
const LONG: usize = 2_560_000;

pub(crate) fn cancel(pair: &mut Pair, token: u64) -> Result<(), CancelError> {
    pair.ends[0].host.endpoint.cancel(id(Side::A), token)
}

pub(crate) fn is(kind: Kind) -> impl Fn(&Packet) -> bool {
    move |packet| packet.kind == kind
}

/// What the user of B's memory writes there as soon as it is told that it may.
pub(crate) const REUSED: u8 = 0xee;

/// From here on B's memory is in other use.
fn reuse(pair: &mut Pair) {
    pair.memory_mut(Side::B).bytes.fill(REUSED);
}

fn is_untouched(pair: &Pair) -> bool {
    let bytes = &pair.memory(Side::B).bytes;
    bytes.iter().all(|&byte| byte == REUSED)
}

/// Runs until A has its event, and answers it.
fn next_event(pair: &mut Pair) -> Event {
    for _ in 0..100_000 {
        if let Some(&event) = pair.events(Side::A).first() {
            return event;
        }
        pair.run_for(micros(1));
    }
    panic!("nothing happens");
}

#[test]
fn what_was_not_sent_is_dropped_at_once_and_what_was_posted_behind_it_goes() {
    let mut pair = Pair::new();
    pair.set_chunks_per_turn(0);
    let dropped = pair.write_to(Side::A, 4_000, 0, Some(1));
    let other = pair.write_to(Side::A, 4_000, 0, Some(2));
    assert_eq!(cancel(&mut pair, dropped), Ok(()));
    assert_eq!(cancel(&mut pair, dropped), Err(CancelError::NotUnderWay));
    pair.set_chunks_per_turn(u32::MAX);
    pair.run();
    let events = [
        Event::Cancelled { token: dropped },
        Event::Completed { token: other },
    ];
    assert_eq!(pair.events(Side::A), events);
    let (value, key) = (2, KEY);
    assert_eq!(pair.events(Side::B), [Event::Immediate { value, key }]);
    assert_eq!(pair.stats(Side::A).chunks_sent, 1);
    assert!(!pair.wire.arrived.iter().any(is(Kind::Revoke)));
}

#[test]
fn a_write_that_is_under_way_is_revoked_and_the_answer_is_its_end() {
    for lost in [false, true] {
        let mut pair = Pair::with(|setup| setup.settings.window_chunks = 4);
        if lost {
            pair.drop_next(|packet| packet.is_chunk(2));
        }
        let token = pair.write_to(Side::A, 40_000, 0, Some(1));
        let other = pair.write_to(Side::A, 4_000, 100_000, Some(2));
        pair.run_for(micros(10));
        assert_eq!(pair.connection(Side::A).outstanding(), 4);
        pair.start_trace();
        assert_eq!(cancel(&mut pair, token), Ok(()));
        assert_eq!(
            cancel(&mut pair, token),
            Ok(()),
            "once more changes nothing"
        );
        let in_flight = pair.connection(Side::A).in_flight();
        assert_eq!(in_flight, 4 * 4 * 1_064, "until it is confirmed");
        pair.run();
        let events = [
            Event::Cancelled { token },
            Event::Completed { token: other },
        ];
        assert_eq!(pair.events(Side::A), events);
        let (value, key) = (2, KEY);
        assert_eq!(pair.events(Side::B), [Event::Immediate { value, key }]);
        // What is lost is not sent again, and the acknowledgement goes on over it. Whole is what was sent, not the message.
        let (acked, whole) = match lost {
            true => ("2 +3 2:1110", ""),
            false => ("4", " whole"),
        };
        let expected = [
            "10 A revoke 0 from 0 to 4 on 3",
            &format!("50 B ack {acked} on 3"),
            &format!("60 B revoked 0{whole} on 3"),
            "110 A data 4.0/4 asks on 0",
            "110 A data 4.1/4 asks on 0",
            "110 A data 4.2/4 asks on 0",
            "110 A data 4.3/4 last asks on 0",
            "160 B ack 5 on 0",
        ];
        let seen: Vec<&str> = pair.trace().lines().map(str::trim).collect();
        assert_eq!(seen, expected, "\n{}", pair.trace());
        let connection = pair.connection(Side::A);
        assert_eq!((connection.outstanding(), connection.in_flight()), (0, 0));
    }
}

#[test]
fn no_late_byte_lands_after_the_end_whatever_the_network_does_to_it() {
    // Lost, late or twice; the end of the message among it or not yet sent.
    for bytes in [100_000, LONG] {
        for (at, when) in [10u64, 40, 60, 120, 300].into_iter().enumerate() {
            for fault in 0..4 {
                let mut pair = Pair::new();
                pair.expect_drop(DropReason::Duplicate);
                let third = move |packet: &Packet| {
                    packet.is_data() && (packet.header().chunk.0 + at as u32).is_multiple_of(3)
                };
                match fault {
                    0 => pair.drop_all(third),
                    1 => pair.delay_all(micros(700), third),
                    2 => pair.delay_all(micros(400), |packet| packet.is_data()),
                    _ => pair.drop_all(|packet| packet.is_data()),
                }
                let token = pair.write_to(Side::A, bytes, 0, Some(7));
                pair.run_for(micros(when));
                if cancel(&mut pair, token) == Err(CancelError::NotUnderWay) {
                    continue;
                }
                assert_eq!(next_event(&mut pair), Event::Cancelled { token });
                reuse(&mut pair);
                pair.heal();
                pair.run();
                pair.run_for(micros(2_000));
                // An attacker replays all that it has recorded.
                for packet in pair.wire.arrived.clone() {
                    if packet.is_data() {
                        let again = pair.inject(Side::B, &packet.bytes);
                        assert_eq!(again, Err(DropReason::Duplicate));
                    }
                }
                for packet in pair.wire.lost.clone() {
                    let late = pair.inject(Side::B, &packet.bytes);
                    assert_eq!(late, Err(DropReason::Duplicate));
                }
                let what = format!("{bytes} B at {when} us, fault {fault}");
                assert!(is_untouched(&pair), "{what}");
                assert_eq!(pair.events(Side::B), [], "{what}");
                assert_eq!(pair.events(Side::A), [], "{what}");
                // Connection, key and window are as before.
                let next = pair.write_to(Side::A, 400_000, 0, Some(8));
                pair.run();
                assert_eq!(pair.events(Side::A), [Event::Completed { token: next }]);
                let (value, key) = (8, KEY);
                assert_eq!(pair.events(Side::B), [Event::Immediate { value, key }]);
                assert_eq!(pair.memory(Side::B).bytes[..400_000], pair.source(next));
            }
        }
    }
}

#[test]
fn a_revocation_or_an_answer_that_is_lost_is_sent_again_and_the_answer_stays_the_same() {
    for lost in [Kind::Revoke, Kind::Revoked] {
        for whole in [false, true] {
            let mut pair = Pair::new();
            pair.expect_drop(DropReason::Duplicate);
            if !whole {
                pair.drop_all(|packet| packet.is_chunk(1));
            }
            // A does not know what has arrived.
            pair.drop_all(|packet| packet.is_ack());
            let token = pair.write_to(Side::A, 12_000, 0, Some(3));
            pair.run_for(micros(60));
            for _ in 0..4 {
                pair.drop_next(is(lost));
            }
            assert_eq!(cancel(&mut pair, token), Ok(()));
            pair.run_for(Nanos::from_millis(200));
            let sent = pair.wire.lost.iter().filter(|packet| is(lost)(packet));
            assert_eq!(sent.count(), 4);
            pair.heal();
            pair.run();
            let (value, key) = (3, KEY);
            let (event, told) = match whole {
                true => (
                    Event::Completed { token },
                    vec![Event::Immediate { value, key }],
                ),
                false => (Event::Cancelled { token }, vec![]),
            };
            assert_eq!(pair.events(Side::A), [event], "{lost:?} {whole}");
            assert_eq!(pair.events(Side::B), told, "{lost:?} {whole}");
        }
    }
}

#[test]
fn an_unanswered_revocation_is_sent_less_and_less_often_until_the_connection_is_given_up() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(2));
    let token = pair.write(40_000);
    pair.drop_all(|packet| packet.from == Side::B);
    pair.run_for(micros(10));
    assert_eq!(cancel(&mut pair, token), Ok(()));
    pair.run_for(Nanos::from_millis(1_900));
    assert_eq!(pair.events(Side::A), []);
    let sent = pair.wire.arrived.iter().filter(|it| is(Kind::Revoke)(it));
    // 1, 2, 4 ... 64 ms, then every 64 ms.
    let sent = sent.count();
    assert!((30..=40).contains(&sent), "{sent}");
    pair.run_for(Nanos::from_secs(1));
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Stalled)]);
}

#[test]
fn a_peer_that_knows_no_revocations_fails_the_connection_whatever_else_it_acknowledges() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(2));
    let token = pair.write(40_000);
    pair.drop_all(is(Kind::Revoke));
    pair.run_for(micros(10));
    assert_eq!(cancel(&mut pair, token), Ok(()));
    for _ in 0..19 {
        let other = pair.write(4_000);
        pair.run_for(Nanos::from_millis(100));
        assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
    }
    pair.run_for(Nanos::from_millis(200));
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Stalled)]);
}

#[test]
fn what_is_posted_after_a_cancel_has_all_of_the_stall_timeout() {
    for bytes in [0, 4_000] {
        let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(2));
        pair.expect_drop(DropReason::NotArmed);
        pair.expect_drop(DropReason::Duplicate);
        pair.hold(Side::B, true);
        let token = pair.write_to(Side::A, bytes, 0, Some(1));
        pair.run_for(Nanos::from_millis(1_500));
        assert_eq!(cancel(&mut pair, token), Ok(()));
        assert_eq!(next_event(&mut pair), Event::Cancelled { token });
        let other = pair.write_to(Side::A, bytes, 0, Some(2));
        pair.run_for(Nanos::from_millis(1_500));
        assert_eq!(pair.events(Side::A), [], "{bytes} B");
        pair.hold(Side::B, false);
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
    }
}

#[test]
fn a_peer_that_confirms_a_cancel_has_not_stalled() {
    let mut pair = Pair::with(|setup| setup.stall_timeout = Nanos::from_secs(2));
    pair.expect_drop(DropReason::NotArmed);
    pair.expect_drop(DropReason::Duplicate);
    pair.hold(Side::B, true);
    let token = pair.write_to(Side::A, 4_000, 0, Some(1));
    let other = pair.write_to(Side::A, 4_000, 10_000, Some(2));
    pair.run_for(Nanos::from_millis(1_500));
    assert_eq!(cancel(&mut pair, token), Ok(()));
    pair.run_for(Nanos::from_millis(1_500));
    assert_eq!(pair.events(Side::A), [Event::Cancelled { token }]);
    pair.hold(Side::B, false);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
}

#[test]
fn a_peer_that_was_restarted_ends_the_connection_and_not_the_cancel() {
    let mut pair = Pair::new();
    let token = pair.write(LONG);
    pair.run_for(micros(60));
    pair.lose_all(Side::B);
    pair.expect_drop(DropReason::UnknownConnection);
    pair.expect_drop(DropReason::Closed);
    assert_eq!(cancel(&mut pair, token), Ok(()));
    pair.run_for(micros(2_000));
    assert_eq!(
        pair.events(Side::A),
        [Event::Failed(Failure::PeerRestarted)]
    );
    assert_eq!(cancel(&mut pair, token), Err(CancelError::Closed));
}

#[test]
fn the_answer_waits_for_copies_under_way_and_what_they_bring_does_not_count() {
    let mut pair = Pair::new();
    pair.memory_mut(Side::B).copies_later = true;
    // The other one's copies are none of its business.
    let other = pair.write_to(Side::A, 4_000, 200_000, None);
    let token = pair.write_to(Side::A, 8_000, 0, Some(9));
    pair.run_for(micros(60));
    assert_eq!(pair.connection(Side::B).pending_placements(), 12);
    assert_eq!(cancel(&mut pair, token), Ok(()));
    pair.run_for(micros(5_000));
    assert_eq!(pair.events(Side::A), []);
    // The tickets of the write, all but one; then that one.
    pair.expect_drop(DropReason::Duplicate);
    let mut copies = std::mem::take(&mut pair.memory_mut(Side::B).copies);
    let last = copies.pop().expect("there are twelve");
    pair.memory_mut(Side::B).copies = copies;
    pair.end_copies(Side::B as usize, Ok(()));
    pair.run_for(micros(300));
    assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
    pair.memory_mut(Side::B).copies = vec![last];
    pair.end_copies(Side::B as usize, Ok(()));
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Cancelled { token }]);
    assert_eq!(pair.events(Side::B), []);
    assert_eq!(pair.connection(Side::B).pending_placements(), 0);
}

#[test]
fn a_cancel_goes_on_when_either_end_is_saved_and_restored_in_the_middle_of_it() {
    for side in [Side::A, Side::B] {
        for after in (0..=200).step_by(10) {
            let mut pair = Pair::new();
            pair.expect_drop(DropReason::Duplicate);
            pair.drop_all(|packet| packet.is_chunk(2));
            pair.drop_next(is(Kind::Revoked));
            let token = pair.write_to(Side::A, LONG, 0, Some(7));
            let other = pair.write_to(Side::A, 4_000, 0, Some(8));
            pair.run_for(micros(70));
            assert_eq!(cancel(&mut pair, token), Ok(()));
            pair.run_for(micros(after));
            pair.restart(side);
            pair.run();
            let events = [
                Event::Cancelled { token },
                Event::Completed { token: other },
            ];
            let told = pair.events(Side::A);
            let at = format!("{side:?} {after} us later: {told:?}");
            assert!(
                told.len() == 2 && events.iter().all(|event| told.contains(event)),
                "{at}"
            );
            let (value, key) = (8, KEY);
            assert_eq!(
                pair.events(Side::B),
                [Event::Immediate { value, key }],
                "{at}"
            );
            assert_eq!(pair.memory(Side::B).bytes[..4_000], pair.source(other));
        }
    }
}

#[test]
fn a_thousand_cancels_of_one_connection_at_once_are_confirmed_each() {
    let mut pair = Pair::with(|setup| {
        setup.settings.window_chunks = 960;
        setup.settings.chunk_bytes = 1_064;
    });
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(|packet| packet.is_data() && packet.header().chunk.0.is_multiple_of(2));
    let tokens: Vec<u64> = (0..1_000)
        .map(|at| pair.write_to(Side::A, 1_000, at * 1_000, Some(at as u32)))
        .collect();
    pair.run_for(micros(60));
    for &token in &tokens {
        assert_eq!(cancel(&mut pair, token), Ok(()));
    }
    let mut ends = Vec::new();
    for _ in 0..1_000 {
        ends.extend(pair.events(Side::A));
        if ends.len() == tokens.len() {
            break;
        }
        pair.run_for(micros(10));
    }
    reuse(&mut pair);
    pair.heal();
    pair.run();
    assert!(is_untouched(&pair));
    let told: Vec<u64> = ends
        .iter()
        .map(|event| match event {
            Event::Cancelled { token } | Event::Completed { token } => *token,
            other => panic!("unexpected: {other:?}"),
        })
        .collect();
    let mut each = told.clone();
    each.sort_unstable();
    assert_eq!(each, tokens);
    // An immediate counted at the peer if and only if its write completed.
    let completed = ends
        .iter()
        .filter(|it| matches!(it, Event::Completed { .. }));
    assert_eq!(pair.events(Side::B).len(), completed.count());
    let other = pair.write(4_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
}

#[test]
fn a_write_that_the_peer_is_not_ready_for_is_cancelled_and_the_others_wait_on() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.expect_drop(DropReason::Duplicate);
    pair.hold(Side::B, true);
    let token = pair.write_to(Side::A, 4_000, 0, Some(1));
    let other = pair.write_to(Side::A, 4_000, 10_000, Some(2));
    pair.run_for(micros(5_000));
    assert_eq!(cancel(&mut pair, token), Ok(()));
    assert_eq!(next_event(&mut pair), Event::Cancelled { token });
    pair.run_for(micros(20_000));
    pair.hold(Side::B, false);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
    let (value, key) = (2, KEY);
    assert_eq!(pair.events(Side::B), [Event::Immediate { value, key }]);
}

#[test]
fn chunks_of_a_cancelled_write_that_the_peer_refused_do_not_say_that_it_is_ready() {
    let mut pair = Pair::new();
    pair.drop_all(|packet| packet.is_data());
    // Chunks 0 to 3, and 4 to 11.
    let token = pair.write(16_000);
    let other = pair.write_to(Side::A, 32_000, 100_000, None);
    pair.run_for(micros(10));
    let mut numbers = 100..;
    let mut refuse = |pair: &mut Pair, chunk: u32| {
        let (refused, chunk) = (Refused::NotArmed, ChunkNumber(chunk));
        let number = numbers.next().expect("there are enough");
        let packet = pair.sealed_refusal(Refusal { refused, chunk }, number);
        assert_eq!(pair.inject(Side::A, &packet), Ok(()));
    };
    let sent_since = |pair: &Pair, before: usize| -> BTreeSet<u32> {
        let lost = pair.wire.lost[before..].iter();
        lost.map(|packet| packet.header().chunk.0).collect()
    };
    (0..12).for_each(|chunk| refuse(&mut pair, chunk));
    // One of them asks, and asks again when it was refused.
    for wait in [1_100, 2_100] {
        let before = pair.wire.lost.len();
        pair.run_for(micros(wait));
        assert_eq!(sent_since(&pair, before), BTreeSet::from([0]));
        if wait == 1_100 {
            refuse(&mut pair, 0);
        }
    }
    let before = pair.wire.lost.len();
    assert_eq!(cancel(&mut pair, token), Ok(()));
    pair.run_for(micros(110));
    assert_eq!(pair.events(Side::A), [Event::Cancelled { token }]);
    assert_eq!(sent_since(&pair, before), BTreeSet::from([4]));
    // The wait is twice as long as the last one.
    refuse(&mut pair, 4);
    let before = pair.wire.lost.len();
    pair.run_for(micros(3_900));
    assert_eq!(sent_since(&pair, before), BTreeSet::new());
    pair.heal();
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: other }]);
}

#[test]
fn pages_are_cancelled_as_any_write() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.delay_all(micros(300), |packet| packet.is_data());
    let pages = Pages {
        bytes: 4_096,
        offsets: std::sync::Arc::new((0..400).rev().map(|at| at * 8_192).collect()),
    };
    let (token, immediate) = (77, Some(5));
    let write = WritePages {
        token,
        key: KEY,
        pages,
        immediate,
    };
    pair.post(0, 0, write).expect("the connection is open");
    pair.run_for(micros(100));
    assert_eq!(cancel(&mut pair, token), Ok(()));
    assert_eq!(next_event(&mut pair), Event::Cancelled { token });
    reuse(&mut pair);
    pair.run_for(micros(2_000));
    assert!(is_untouched(&pair));
    assert_eq!(pair.events(Side::B), []);
}

#[test]
fn sends_atomics_and_in_order_connections_refuse_to_cancel_and_go_on() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    let send = SendMessage {
        token: 1,
        bytes: 100,
        immediate: None,
    };
    let change = AtomicChange {
        token: 2,
        atomic: Atomic::FetchAdd { add: 1 },
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 8,
    };
    pair.post(0, 0, send).expect("the connection is open");
    pair.post(0, 0, change).expect("the connection is open");
    for token in [1, 2] {
        let refused = cancel(&mut pair, token);
        assert_eq!(refused, Err(CancelError::NotCancellable), "{token}");
    }
    assert_eq!(cancel(&mut pair, 3), Err(CancelError::NotUnderWay));
    pair.run_for(micros(1_000));
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 2 }]);

    let mut pair = Pair::with(|setup| setup.in_order = true);
    let token = pair.write(4_000);
    assert_eq!(cancel(&mut pair, token), Err(CancelError::InOrder));
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
}

#[test]
fn a_revocation_beyond_the_window_or_of_an_answer_that_the_peer_has_revokes_nothing() {
    let mut pair = Pair::new();
    for reason in [DropReason::BeyondWindow, DropReason::Duplicate] {
        pair.expect_drop(reason);
    }
    let sealed = |pair: &Pair, packet: u64, revoke: Revoke| {
        let first = pair.connection(Side::A).config().first_packet;
        let number = CONTROL_PACKET_NUMBERS + u64::from(first.rotate_left(16)) + 100 + packet;
        let mut out = [0; CONTROL_BYTES_MAX];
        let (seal, to) = (pair.seal(Side::A), id(Side::B));
        let length = revoke.emit(&mut out, &seal, PathId(0), to, number);
        out[..length].to_vec()
    };
    let revoke = |first, end, number, oldest| Revoke {
        first: ChunkNumber(first),
        end: ChunkNumber(end),
        number,
        oldest,
    };
    // The window is of 64 chunks.
    let tried = [
        (revoke(0, 65, 0, 0), Err(DropReason::BeyondWindow)),
        (
            revoke(1 << 30, (1 << 30) + 1, 0, 0),
            Err(DropReason::BeyondWindow),
        ),
        (revoke(40, 44, 6, 5), Ok(())),
        (revoke(0, 20, 4, 4), Err(DropReason::Duplicate)),
        // It is answered as before, whatever it names.
        (revoke(0, 20, 6, 5), Ok(())),
    ];
    for (packet, (revoke, result)) in (0..).zip(tried) {
        let bytes = sealed(&pair, packet, revoke);
        assert_eq!(pair.inject(Side::B, &bytes), result, "{revoke:?}");
        assert_eq!(
            pair.inject(Side::B, &bytes),
            Err(DropReason::Duplicate),
            "a replay"
        );
    }
    // Only what was named in turn and within the window is revoked.
    for (chunk, result) in [
        (0, Ok(())),
        (39, Ok(())),
        (40, Err(DropReason::Duplicate)),
        (43, Err(DropReason::Duplicate)),
        (44, Ok(())),
    ] {
        let header = DataHeader {
            opcode: Opcode::Write,
            path: PathId(0),
            packet: 0,
            packets: 1,
            connection: id(Side::B),
            packet_number: 1_000 + u64::from(chunk),
            sent_at: 0,
            chunk: ChunkNumber(chunk),
            chunk_index: 0,
            flags: Flags::LAST,
            immediate: 0,
            key: KEY,
            offset: 0,
        };
        let bytes = pair.sealed_data(header, &[1; 100]);
        assert_eq!(pair.inject(Side::B, &bytes), result, "{chunk}");
    }
}
