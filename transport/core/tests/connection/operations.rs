//! Sends, reads, atomics, pages: whatever the wire does, each is done once and whole.

use std::sync::Arc;

use proptest::prelude::*;
use weft_core::connection::{
    AtomicChange, Event, Failure, Pages, PostError, REQUESTS_MAX, Read, ReceiveBuffer, ReportWrite,
    SendMessage, WritePages,
};
use weft_core::drops::DropReason;
use weft_core::memory::Access;
use weft_core::units::{ChunkNumber, Key, Nanos, PathId, Source};
use weft_core::wire::{Atomic, DataHeader, Flags, Integrity, Kind, Opcode};
use weft_sim::pattern;

use crate::pair::{End, KEY, Packet, Pair, Side, micros};

/// What the message `token` holds.
fn content(token: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| pattern::slice(token, at, 1)[0])
        .collect()
}

fn send(pair: &mut Pair, token: u64, bytes: u64, immediate: Option<u32>) {
    let send = SendMessage {
        token,
        bytes,
        immediate,
    };
    pair.post(0, 0, send).expect("the connection is open");
}

fn report(pair: &mut Pair, token: u64, written: u64, immediate: u32) {
    let report = ReportWrite {
        token,
        written,
        immediate,
    };
    pair.post(0, 0, report).expect("the connection is open");
}

fn receive(pair: &mut Pair, token: u64, offset: u64, bytes: u64) {
    let buffer = ReceiveBuffer {
        token,
        key: KEY,
        offset,
        bytes,
    };
    pair.post_receive(1, 0, buffer)
        .expect("the connection is open");
}

fn read(pair: &mut Pair, token: u64, bytes: u64, offset: u64, to_offset: u64) {
    let read = Read {
        token,
        bytes,
        key: KEY,
        offset,
        to_key: KEY,
        to_offset,
    };
    pair.post(0, 0, read).expect("the connection is open");
}

fn change(pair: &mut Pair, token: u64, atomic: Atomic, offset: u64, to_offset: u64) {
    let change = AtomicChange {
        token,
        atomic,
        key: KEY,
        offset,
        to_key: KEY,
        to_offset,
    };
    pair.post(0, 0, change).expect("the connection is open");
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

fn is(kind: Kind) -> impl Fn(&Packet) -> bool {
    move |packet| packet.kind == kind
}

#[test]
fn sends_fill_the_receives_in_the_order_of_both_whatever_arrives_first() {
    let mut pair = Pair::new();
    receive(&mut pair, 70, 10_000, 5_000);
    receive(&mut pair, 71, 20_000, 100);
    receive(&mut pair, 72, 30_000, 100);
    pair.drop_next(is(Kind::Send));
    send(&mut pair, 1, 4_500, Some(9));
    send(&mut pair, 2, 100, None);
    send(&mut pair, 3, 0, Some(8));
    pair.run();
    let events = pair.events(Side::B);
    let received = |token, bytes, immediate| Event::Received {
        token,
        bytes,
        immediate,
        is_write: false,
    };
    let expected = [
        received(71, 100, None),
        received(72, 0, Some(8)),
        received(70, 4_500, Some(9)),
    ];
    assert_eq!(events, expected, "the lost one comes last");
    let memory = &pair.memory(Side::B).bytes;
    assert_eq!(memory[10_000..14_500], content(1, 4_500));
    assert_eq!(memory[20_000..20_100], content(2, 100));
    let mut completed = pair.events(Side::A);
    completed.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(completed, [1, 2, 3].map(|token| Event::Completed { token }));
}

#[test]
fn a_report_of_a_write_takes_a_receive_of_any_size_and_none_of_its_bytes() {
    let mut pair = Pair::new();
    receive(&mut pair, 70, 10_000, 0);
    receive(&mut pair, 71, 20_000, 100);
    report(&mut pair, 1, 1 << 31, 7);
    report(&mut pair, 2, 0, 8);
    pair.run();
    let received = |token, bytes, immediate| Event::Received {
        token,
        bytes,
        immediate: Some(immediate),
        is_write: true,
    };
    let expected = [received(70, 1 << 31, 7), received(71, 0, 8)];
    assert_eq!(pair.events(Side::B), expected);
    let completed = [1, 2].map(|token| Event::Completed { token });
    assert_eq!(pair.events(Side::A), completed);
    assert_eq!(pair.memory(Side::B).bytes[20_000..20_100], [0; 100]);
}

#[test]
fn a_peer_does_no_more_to_regions_than_the_connection_allows() {
    for in_order in [false, true] {
        for (allowed, asked) in [(Access::READ, 0), (Access::WRITE, 1), (Access::WRITE, 2)] {
            let mut pair = Pair::with(|setup| setup.in_order = in_order);
            pair.expect_drop(DropReason::Key);
            pair.set_access(Side::B, allowed);
            match asked {
                0 => drop(pair.write(100)),
                1 => read(&mut pair, 1, 100, 0, 1_000),
                _ => change(&mut pair, 1, Atomic::FetchAdd { add: 1 }, 0, 8),
            }
            pair.run();
            let failed = Event::Failed(Failure::KeyRefused);
            assert_eq!(pair.events(Side::A), [failed], "{asked}, {in_order}");
            assert_eq!(pair.memory(Side::B).bytes[..100], [0; 100]);
        }
    }
}

#[test]
fn a_send_waits_for_its_receive() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    send(&mut pair, 1, 3_000, None);
    pair.run_for(micros(5_000));
    assert_eq!(pair.events(Side::A), []);
    receive(&mut pair, 5, 0, 3_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 1 }]);
    assert_eq!(pair.memory(Side::B).bytes[..3_000], content(1, 3_000));
}

#[test]
fn a_send_longer_than_its_receive_ends_the_connection_and_leaves_what_lies_behind_it() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    pair.expect_drop(DropReason::Closed);
    receive(&mut pair, 5, 0, 2_999);
    send(&mut pair, 1, 3_000, None);
    pair.run_for(micros(5_000));
    assert_eq!(pair.failure(Side::A), Some(Failure::BoundsRefused));
    assert_eq!(pair.memory(Side::B).bytes[2_999], 0);
}

#[test]
fn a_read_ends_when_its_bytes_are_here_though_request_and_answer_are_lost() {
    for lose in [Kind::Request, Kind::Response, Kind::Ack] {
        let mut pair = Pair::new();
        for (at, byte) in pair.memory_mut(Side::B).bytes.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        pair.expect_drop(DropReason::Duplicate);
        pair.drop_next(is(lose));
        read(&mut pair, 4, 9_000, 777, 50_000);
        read(&mut pair, 5, 0, 777, 50_000);
        pair.run_for(micros(30));
        assert_eq!(pair.events(Side::A), [], "no answer can be here yet");
        pair.run();
        let mut completed = pair.events(Side::A);
        completed.sort_by_key(|event| format!("{event:?}"));
        assert_eq!(
            completed,
            [4, 5].map(|token| Event::Completed { token }),
            "{lose:?}"
        );
        assert_eq!(pair.events(Side::B), [], "{lose:?}");
        let (here, there) = (&pair.memory(Side::A).bytes, &pair.memory(Side::B).bytes);
        assert_eq!(here[50_000..59_000], there[777..9_777], "{lose:?}");
    }
}

#[test]
fn an_atomic_is_made_once_though_its_request_comes_twice_and_its_answer_is_lost() {
    for fault in 0..4 {
        let mut pair = Pair::new();
        pair.expect_drop(DropReason::Duplicate);
        match fault {
            0 => pair.double_next(is(Kind::Request)),
            1 => pair.drop_next(is(Kind::Ack)),
            2 => pair.drop_next(is(Kind::Response)),
            // The request is acknowledged after it was sent again.
            _ => pair.delay_next(micros(3_000), is(Kind::Ack)),
        }
        change(&mut pair, 1, Atomic::FetchAdd { add: 40 }, 64, 0);
        change(&mut pair, 2, Atomic::FetchAdd { add: 2 }, 64, 8);
        pair.run();
        let swap = Atomic::CompareSwap {
            compare: 42,
            swap: u64::MAX,
        };
        change(&mut pair, 3, swap, 64, 16);
        pair.run();
        assert_eq!(pair.events(Side::A).len(), 3, "fault {fault}");
        assert_eq!(
            word(&pair.memory(Side::B).bytes, 64),
            u64::MAX,
            "fault {fault}"
        );
        let here = &pair.memory(Side::A).bytes;
        let mut befores = [0, 8].map(|at| word(here, at));
        befores.sort_unstable();
        assert!(
            [[0, 40], [0, 2]].contains(&befores),
            "fault {fault}: {befores:?}"
        );
        assert_eq!(word(here, 16), 42, "fault {fault}");
    }
}

#[test]
fn a_response_is_kept_when_either_end_is_saved() {
    for side in [Side::A, Side::B] {
        let mut pair = Pair::new();
        pair.drop_all(is(Kind::Response));
        change(&mut pair, 1, Atomic::FetchAdd { add: 7 }, 0, 8);
        pair.run_for(micros(300));
        assert_eq!(word(&pair.memory(Side::B).bytes, 0), 7);
        pair.restart(side);
        pair.heal();
        pair.memory_mut(Side::B).bytes[0] = 99;
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token: 1 }]);
        assert_eq!(
            word(&pair.memory(Side::A).bytes, 8),
            0,
            "what stood there then"
        );
        assert_eq!(word(&pair.memory(Side::B).bytes, 0), 99, "not made again");
    }
}

#[test]
fn a_region_is_closed_as_soon_as_its_reader_is_complete_though_the_acknowledgement_is_lost() {
    let mut pair = Pair::new();
    read(&mut pair, 1, 3_000, 0, 10_000);
    pair.drop_all(|packet| packet.from == Side::A && packet.is_ack());
    pair.run_for(micros(200));
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 1 }]);
    // The reader has said so by other means.
    pair.memory_mut(Side::B).key = Key(0);
    pair.run_for(Nanos::from_millis(100));
    let stats = pair.stats(Side::B);
    assert!((stats.tail_probes, stats.timeouts) > (0, 0), "{stats:?}");
    pair.heal();
    pair.run();
    assert_eq!(pair.failure(Side::B), None);
    assert_eq!(pair.connection(Side::B).outstanding(), 0);
}

#[test]
fn a_region_that_is_closed_before_its_reader_is_complete_ends_the_connection() {
    for lost in [false, true] {
        let mut pair = Pair::new();
        pair.expect_drop(DropReason::UnknownConnection);
        pair.expect_drop(DropReason::Closed);
        let bytes = if lost { 3_000 } else { 2_000_000 };
        if lost {
            pair.drop_next(is(Kind::Response));
        }
        read(&mut pair, 1, bytes, 0, 0);
        pair.run_for(micros(120));
        pair.memory_mut(Side::B).key = Key(0);
        pair.run_for(Nanos::from_secs(30));
        let failure = match lost {
            // What was lost cannot be sent again.
            true => Failure::Stalled,
            false => Failure::SourceClosed,
        };
        assert_eq!(pair.failure(Side::B), Some(failure));
        assert_eq!(pair.events(Side::A).len(), 1);
        assert!(pair.failure(Side::A).is_some());
    }
}

#[test]
fn a_request_to_a_silent_peer_ends_by_the_stall_timeout() {
    let mut pair = Pair::new();
    read(&mut pair, 1, 100, 0, 0);
    pair.drop_all(is(Kind::Response));
    pair.run_for(micros(200));
    // The request is acknowledged; from now on nothing comes.
    pair.drop_all(|packet| packet.from == Side::B);
    pair.run_for(Nanos::from_secs(30));
    assert_eq!(pair.failure(Side::A), Some(Failure::Stalled));
}

#[test]
fn a_request_to_a_peer_that_was_restarted_fails_within_a_second() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::UnknownConnection);
    pair.drop_all(is(Kind::Response));
    read(&mut pair, 1, 100, 0, 0);
    pair.run_for(micros(100));
    pair.lose_all(Side::B);
    pair.run_for(Nanos::from_secs(1));
    assert_eq!(pair.failure(Side::A), Some(Failure::PeerRestarted));
}

#[test]
fn a_request_that_is_refused_for_the_stall_timeout_ends_the_connection() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.expect_drop(DropReason::UnknownConnection);
    pair.memory_mut(Side::B).armed = false;
    read(&mut pair, 1, 100, 0, 0);
    send(&mut pair, 2, 100, None);
    pair.run_for(Nanos::from_secs(30));
    assert_eq!(pair.failure(Side::A), Some(Failure::NotArmed));
}

#[test]
fn each_of_many_sends_is_taken_soon_after_its_receive_is_posted() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    for token in 0..50 {
        send(&mut pair, token, 100, None);
    }
    for token in 0..50u64 {
        pair.run_for(Nanos::from_millis(150));
        assert_eq!(
            pair.events(Side::B),
            [],
            "receive {token} is not posted yet"
        );
        receive(&mut pair, token, 100 * token, 100);
        pair.run_for(Nanos::from_millis(150));
        assert_eq!(pair.events(Side::B).len(), 1, "send {token} came");
    }
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 50);
    let resent = pair.stats(Side::A).packets_resent;
    assert!(resent <= 50 * 12, "{resent} packets were sent again");
}

#[test]
fn sends_go_soon_after_all_their_receives_are_posted() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    for token in 0..50 {
        send(&mut pair, token, 100, None);
    }
    pair.run_for(Nanos::from_millis(500));
    for token in 0..50u64 {
        receive(&mut pair, token, 100 * token, 100);
    }
    pair.run_for(Nanos::from_millis(70));
    assert_eq!(pair.events(Side::B).len(), 50);
}

#[test]
fn a_long_write_behind_a_refused_send_does_not_hold_up_a_response() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    send(&mut pair, 1, 10, None);
    pair.run_for(Nanos::from_millis(5));
    pair.write_to(Side::A, 400_000, 0, None);
    pair.run_for(Nanos::from_millis(5));
    let read = Read {
        token: 7,
        bytes: 5_000,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 0,
    };
    pair.post(1, 0, read).expect("the connection is open");
    pair.run_for(Nanos::from_millis(5));
    assert_eq!(pair.events(Side::B), [Event::Completed { token: 7 }]);
    receive(&mut pair, 9, 500_000, 10);
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 2);
}

#[test]
fn a_read_completes_while_its_user_takes_no_events() {
    let mut pair = Pair::new();
    pair.ends[0]
        .host
        .endpoint
        .hold(crate::pair::id(Side::A), true);
    read(&mut pair, 1, 3_000, 0, 0);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token: 1 }]);
}

#[test]
fn a_peer_cannot_end_a_send_while_a_part_of_it_is_being_written() {
    let mut pair = Pair::new();
    receive(&mut pair, 5, 0, 1_000);
    let packet = |chunk: u32, flags: Flags| DataHeader {
        opcode: Opcode::Send,
        path: PathId(0),
        packet: 0,
        packets: 1,
        connection: crate::pair::id(Side::B),
        packet_number: chunk.into(),
        sent_at: 0,
        chunk: ChunkNumber(chunk),
        chunk_index: 0,
        flags,
        immediate: 0,
        key: Key(0),
        offset: 0,
    };
    pair.memory_mut(Side::B).copies_later = true;
    let part = pair.sealed_data(packet(0, Flags::NONE), b"first");
    assert_eq!(pair.inject(Side::B, &part), Ok(()));
    pair.memory_mut(Side::B).copies_later = false;
    let end = pair.sealed_data(packet(1, Flags::LAST), b"second");
    assert_eq!(pair.inject(Side::B, &end), Ok(()));
    assert_eq!(pair.events(Side::B), []);
    pair.end_copies(Side::B as usize, Ok(()));
    assert_eq!(pair.events(Side::B), []);
}

#[test]
fn a_peer_that_reads_before_it_is_ready_for_sends_is_answered_though_they_fill_the_window() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    for token in 0..200 {
        send(&mut pair, token, 10, None);
    }
    pair.run_for(Nanos::from_millis(20));
    for token in 0..4 {
        let read = Read {
            token,
            bytes: 5_000,
            key: KEY,
            offset: 0,
            to_key: KEY,
            to_offset: 0,
        };
        pair.post(1, 0, read).expect("the connection is open");
    }
    pair.run_for(Nanos::from_millis(200));
    assert_eq!(pair.events(Side::B).len(), 4);
}

fn is_response(packet: &Packet) -> bool {
    packet.kind == Kind::Response
}

#[test]
fn a_response_that_a_link_or_another_thread_cannot_place_says_so_too() {
    for copies in [true, false] {
        let mut pair = Pair::with(|setup| setup.settings.integrity = Integrity::Trusted);
        for reason in [DropReason::Key, DropReason::Closed, DropReason::Duplicate] {
            pair.expect_drop(reason);
        }
        pair.memory_mut(Side::A).copies_later = copies;
        if !copies {
            pair.drop_all(is_response);
        }
        read(&mut pair, 1, 3_000, 0, 0);
        pair.run_for(micros(200));
        let (now, lost) = (pair.now, std::mem::take(&mut pair.wire.lost));
        let response = lost.iter().find(|packet| is_response(packet));
        match response.map(Packet::envelope) {
            None => pair.end_copies(Side::A as usize, Err(DropReason::Key)),
            Some(envelope) => {
                let End { host, memory, .. } = &mut pair.ends[0];
                memory.key = Key(1);
                let from = Source([0; Source::BYTES]);
                host.endpoint.offer(now, from, &envelope, 500, memory);
            }
        }
        pair.run_for(micros(2_000));
        let failure = pair.failure(Side::A);
        assert_eq!(failure, Some(Failure::NoPlace), "{copies}");
    }
}

#[test]
fn a_read_to_a_place_that_is_not_there_names_the_place() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    pair.expect_drop(DropReason::Closed);
    let end = pair.memory(Side::A).bytes.len() as u64;
    read(&mut pair, 1, 3_000, 0, end - 1_500);
    pair.run_for(micros(2_000));
    assert_eq!(pair.failure(Side::A), Some(Failure::NoPlace));
}

#[test]
fn a_peer_that_reads_without_end_does_not_keep_a_write_from_beginning() {
    let mut pair = Pair::new();
    let reads = |token| Read {
        token,
        bytes: 20_000,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 100_000,
    };
    for token in 0..64 {
        pair.post(1, 0, reads(token))
            .expect("the connection is open");
    }
    pair.run_for(micros(40));
    let token = pair.write(50_000);
    let mut asked = 64;
    while pair.events(Side::A).is_empty() {
        for _ in 0..pair.events(Side::B).len() {
            pair.post(1, 0, reads(asked))
                .expect("the connection is open");
            asked += 1;
        }
        assert!(asked < 2_000, "write {token} has not ended");
        pair.run_for(micros(50));
    }
}

#[test]
fn a_read_beyond_the_region_is_refused() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    pair.expect_drop(DropReason::Closed);
    let end = pair.memory(Side::B).bytes.len() as u64;
    read(&mut pair, 1, 100, end - 99, 0);
    pair.run_for(micros(1_000));
    assert_eq!(pair.failure(Side::A), Some(Failure::BoundsRefused));
}

#[test]
fn more_requests_than_may_be_under_way_are_refused() {
    let mut pair = Pair::new();
    for token in 0..REQUESTS_MAX as u64 {
        read(&mut pair, token, 8, 8 * token, 8 * token);
    }
    let one_more = Read {
        token: 0,
        bytes: 8,
        key: KEY,
        offset: 0,
        to_key: KEY,
        to_offset: 0,
    };
    assert_eq!(pair.post(0, 0, one_more), Err(PostError::TooManyRequests));
    pair.run();
    assert_eq!(pair.events(Side::A).len(), REQUESTS_MAX);
    read(&mut pair, 0, 8, 0, 0);
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 1);
}

#[test]
fn pages_go_to_their_places_and_share_chunks() {
    // Four packets of 1,000 B make a chunk: of 250 B each where pages are as long, so four pages; of three packets where
    // a page has three.
    for (bytes, chunks) in [(250u32, 10), (1_000, 10), (3_000, 40)] {
        let mut pair = Pair::new();
        let count = 40;
        let offsets: Vec<u64> = (0..count)
            .map(|page| (count - 1 - page) * 5_000 + 13)
            .collect();
        let write = WritePages {
            token: 3,
            key: KEY,
            pages: Pages {
                bytes,
                offsets: Arc::new(offsets.clone()),
            },
            immediate: Some(6),
        };
        pair.drop_next(is(Kind::Data));
        pair.post(0, 0, write).expect("the connection is open");
        pair.run();
        assert!(matches!(
            pair.events(Side::B)[..],
            [Event::Immediate { value: 6, .. }]
        ));
        let all = content(3, bytes as usize * offsets.len());
        let memory = &pair.memory(Side::B).bytes;
        for (page, &offset) in all.chunks(bytes as usize).zip(&offsets) {
            assert_eq!(
                memory[offset as usize..][..page.len()],
                *page,
                "{bytes} B at {offset}"
            );
        }
        let stats = pair.stats(Side::A);
        assert_eq!(
            stats.chunks_sent - stats.chunks_resent,
            chunks,
            "{count} pages of {bytes} B"
        );
    }
}

#[test]
fn pages_that_are_none_are_refused() {
    let mut pair = Pair::new();
    let mut post = |bytes, offsets: &[u64]| {
        let write = WritePages {
            token: 0,
            key: KEY,
            pages: Pages {
                bytes,
                offsets: Arc::new(offsets.to_vec()),
            },
            immediate: None,
        };
        pair.post(0, 0, write)
    };
    assert_eq!(post(0, &[1]), Err(PostError::NoPages));
    assert_eq!(post(1, &[]), Err(PostError::NoPages));
    assert_eq!(post(2, &[u64::MAX]), Err(PostError::TooLong));
}

/// What is asked, and its size in bytes.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Send(u64),
    Read(u64),
    Add(u64),
    Pages(u32),
    Report(u64),
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        (0u64..20_000).prop_map(Asked::Send),
        (0u64..20_000).prop_map(Asked::Read),
        (1u64..1_000).prop_map(Asked::Add),
        prop_oneof![
            Just(250u32),
            Just(500),
            Just(1_000),
            Just(1_333),
            Just(4_000)
        ]
        .prop_map(Asked::Pages),
        (0u64..=1 << 31).prop_map(Asked::Report),
    ]
}

/// Where sends go, one behind the other.
const SENDS: u64 = 100_000;
/// Where pages go.
const PAGES: u64 = 500_000;
/// Where answers of reads go.
const READS: u64 = 900_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_done_once_whatever_is_lost_and_whoever_is_saved(
        all in prop::collection::vec(asked(), 1..12),
        losses in prop::collection::vec(1u32..9, 0..4),
        saved: Option<bool>,
        after in 20u64..800,
    ) {
        let mut pair = Pair::new();
        pair.expect_drop(DropReason::Duplicate);
        for (at, byte) in pair.memory_mut(Side::B).bytes[1_000..60_000].iter_mut().enumerate() {
            *byte = (at % 253) as u8;
        }
        for nth in losses {
            let mut left = nth;
            pair.drop_next(move |_| {
                left -= u32::from(left > 0);
                left == 0
            });
        }
        let (mut sum, mut sends) = (0u64, 0);
        for (token, &asked) in all.iter().enumerate() {
            let (at, token) = (token as u64, token as u64);
            match asked {
                Asked::Send(bytes) => {
                    receive(&mut pair, at, SENDS + 20_000 * sends, bytes);
                    send(&mut pair, token, bytes, Some(at as u32));
                    sends += 1;
                }
                Asked::Report(written) => {
                    receive(&mut pair, at, SENDS, 0);
                    report(&mut pair, token, written, at as u32);
                }
                Asked::Read(bytes) => read(&mut pair, token, bytes, 1_000 + at, READS + 20_000 * at),
                Asked::Add(add) => {
                    sum += add;
                    change(&mut pair, token, Atomic::FetchAdd { add }, 8, 16 + 8 * at);
                }
                Asked::Pages(bytes) => {
                    let place = |page: u64| PAGES + 30_000 * at + u64::from(bytes) * (6 - page);
                    let offsets = (0..7).map(place).collect();
                    let pages = Pages { bytes, offsets: Arc::new(offsets) };
                    let write = WritePages { token, key: KEY, pages, immediate: None };
                    pair.post(0, 0, write).expect("the connection is open");
                }
            }
        }
        pair.run_for(micros(after));
        if let Some(side) = saved {
            pair.restart(if side { Side::A } else { Side::B });
        }
        pair.run();
        let mut completed: Vec<u64> = Vec::new();
        for event in pair.events(Side::A) {
            let Event::Completed { token } = event else {
                panic!("{event:?}");
            };
            completed.push(token);
        }
        completed.sort_unstable();
        prop_assert_eq!(completed, (0..all.len() as u64).collect::<Vec<_>>());
        let (here, there) = (&pair.memory(Side::A).bytes, &pair.memory(Side::B).bytes);
        prop_assert_eq!(word(there, 8), sum);
        let (mut sends, mut received, mut changes) = (0, Vec::new(), Vec::new());
        for (at, &asked) in all.iter().enumerate() {
            match asked {
                Asked::Send(bytes) => {
                    let (token, immediate) = (at as u64, Some(at as u32));
                    received.push(Event::Received { token, bytes, immediate, is_write: false });
                    let place = SENDS as usize + 20_000 * sends;
                    let wanted = content(at as u64, bytes as usize);
                    prop_assert_eq!(&there[place..place + bytes as usize], &wanted[..]);
                    sends += 1;
                }
                Asked::Report(bytes) => {
                    let (token, immediate) = (at as u64, Some(at as u32));
                    received.push(Event::Received { token, bytes, immediate, is_write: true });
                }
                Asked::Read(bytes) => {
                    let (bytes, place) = (bytes as usize, READS as usize + 20_000 * at);
                    prop_assert_eq!(&here[place..place + bytes], &there[1_000 + at..][..bytes]);
                }
                Asked::Add(add) => changes.push((word(here, 16 + 8 * at), add)),
                Asked::Pages(bytes) => {
                    let wanted = content(at as u64, 7 * bytes as usize);
                    for (page, wanted) in wanted.chunks(bytes as usize).enumerate() {
                        let place = PAGES as usize + 30_000 * at + bytes as usize * (6 - page);
                        prop_assert_eq!(&there[place..place + wanted.len()], wanted);
                    }
                }
            }
        }
        // Each atomic has found what those before it left.
        changes.sort_unstable();
        let mut left = 0;
        for (before, add) in changes {
            prop_assert_eq!(before, left);
            left += add;
        }
        let mut events = pair.events(Side::B);
        events.sort_by_key(|event| match event {
            Event::Received { token, .. } => *token,
            _ => u64::MAX,
        });
        prop_assert_eq!(events, received);
    }
}
