//! What programs see of their queue pairs: data that arrives, completions in order, and errors as verbs has them.

mod program;
mod regions;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use program::{Done, Pair, Program, start, start_at, start_with, success};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_device::completion::Status;
use weft_device::control::{Answer, ErrorNumber, QueuePair, Request};
use weft_device::doorbell::{DOORBELL_WORDS, DeviceState, Doorbells};
use weft_device::event::{EVENT_BYTES, Event, EventType};
use weft_device::state::QueuePairType;
use weft_device::work_request::{Operation, Payload, RemoteAddress, WorkRequest};
use weft_device_server::{DeviceTotals, Devices, OpenError, Totals};
use weft_device_socket::packet;
use weft_engine::{Nanos, PortRange, Words};

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn failed(wr_id: u64, status: Status) -> Done {
    Done {
        status,
        ..success(wr_id, 0)
    }
}

#[test]
fn writes_sends_reads_and_atomics_move_bytes_and_complete_in_order() {
    move_bytes(Pair::new());
}

#[test]
fn two_programs_on_one_node_are_connected_too() {
    move_bytes(Pair::on_one_node());
}

fn move_bytes(mut pair: Pair) {
    let bytes = pattern(300_000, 3);
    pair.a.fill(0, &bytes);
    pair.b.fill(900_000, &7u64.to_le_bytes());
    let read_from = pattern(5_000, 9);
    pair.b.fill(500_000, &read_from);
    let receive = pair.b.sge(600_000, 1000);
    pair.b.receive(10, &[receive]);

    let [first, second] = [pair.a.sge(0, 200_000), pair.a.sge(200_000, 100_000)];
    let (to, from) = (pair.b.remote(0), pair.b.remote(500_000));
    let word = pair.b.remote(900_000);
    let write = Payload::Sges(&[first, second]);
    pair.a.post(1, Operation::Write(to), write);
    pair.a.post(2, Operation::Send, Payload::Inline(&[5; 200]));
    let into = pair.a.sge(400_000, 5_000);
    pair.a
        .post(3, Operation::Read(from), Payload::Sges(&[into]));
    let before = pair.a.sge(800_000, 8);
    let add = Operation::FetchAdd {
        remote: word,
        add: 5,
    };
    pair.a.post(4, add, Payload::Sges(&[before]));
    let swap = Operation::CompareSwap {
        remote: word,
        compare: 12,
        swap: 99,
    };
    let before_swap = pair.a.sge(800_008, 8);
    pair.a.post(5, swap, Payload::Sges(&[before_swap]));
    pair.a.post(6, Operation::Write(to), Payload::Sges(&[]));

    assert_eq!(pair.next_a(), success(1, 300_000));
    assert_eq!(pair.next_a(), success(2, 200));
    assert_eq!(pair.next_a(), success(3, 5_000));
    assert_eq!(pair.next_a(), success(4, 8));
    assert_eq!(pair.next_a(), success(5, 8));
    assert_eq!(pair.next_a(), success(6, 0));
    assert_eq!(pair.next_b(), success(10, 200));
    assert!(pair.b.look(0, 300_000) == bytes);
    assert_eq!(pair.b.look(600_000, 201), [&[5; 200][..], &[0]].concat());
    assert!(pair.a.look(400_000, 5_000) == read_from);
    let words = [7u64, 12].map(u64::to_le_bytes).concat();
    assert_eq!(pair.a.look(800_000, 16), words);
    assert_eq!(pair.b.look(900_000, 8), 99u64.to_le_bytes());
}

#[test]
fn what_is_posted_before_the_peer_is_ready_waits_for_it() {
    let mut pair = Pair::apart(256);
    let (a, b) = (pair.a.name(), pair.b.name());
    pair.a.init();
    pair.a.ready(b);
    pair.a.post(1, Operation::Send, Payload::Inline(b"early"));
    (0..100).for_each(|_| pair.turn());
    assert_eq!(pair.a.poll(), None);
    pair.b.init();
    let receive = pair.b.sge(0, 5);
    pair.b.receive(2, &[receive]);
    pair.b.ready(a);
    assert_eq!(pair.next_b(), success(2, 5));
    assert_eq!(pair.next_a(), success(1, 5));
    assert_eq!(pair.b.look(0, 5), b"early");
}

#[test]
fn only_what_asks_for_a_completion_gets_one_and_immediates_come_with_sends() {
    let mut pair = Pair::new();
    for wr_id in 0..3 {
        pair.b.receive(wr_id, &[]);
        pair.a.post_request(&WorkRequest {
            wr_id,
            operation: Operation::Send,
            immediate: Some(wr_id as u32 + 70),
            signaled: wr_id == 2,
            fence: false,
            solicited: false,
            payload: Payload::Sges(&[]),
        });
    }
    for wr_id in 0..3 {
        let with_immediate = Done {
            immediate: Some(wr_id as u32 + 70),
            ..success(wr_id, 0)
        };
        assert_eq!(pair.next_b(), with_immediate);
    }
    assert_eq!(pair.next_a(), success(2, 0));
    assert_eq!(pair.a.poll(), None);
}

#[test]
fn more_reads_than_may_be_under_way_wait_for_their_turn() {
    let mut pair = Pair::new();
    pair.b.fill(0, &pattern(64 * 1000, 1));
    for wr_id in 0..64 {
        let at = wr_id as usize * 1000;
        let (from, into) = (pair.b.remote(at), pair.a.sge(at, 1000));
        pair.a
            .post(wr_id, Operation::Read(from), Payload::Sges(&[into]));
    }
    for wr_id in 0..64 {
        assert_eq!(pair.next_a(), success(wr_id, 1000));
    }
    assert!(pair.a.look(0, 64_000) == pattern(64_000, 1));
}

/// The second of three work requests is bad: the first succeeds, the third is flushed, and so is what comes later.
fn fails_with(pair: &mut Pair, bad: Operation, payload: Payload<'_>, status: Status) {
    let (good, to) = (pair.a.sge(0, 100), pair.b.remote(0));
    let waiting = pair.a.sge(0, 1);
    pair.a.receive(50, &[waiting]);
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[good]));
    pair.a.post(2, bad, payload);
    pair.a.post(3, Operation::Write(to), Payload::Sges(&[good]));
    assert_eq!(pair.next_a(), success(1, 100));
    let done = pair.next_a();
    assert_eq!((done.wr_id, done.status), (2, status));
    let mut flushed = [pair.next_a(), pair.next_a()];
    flushed.sort_by_key(|done| done.wr_id);
    let ids = flushed.map(|done| (done.wr_id, done.status));
    assert_eq!(ids, [(3, Status::Flushed), (50, Status::Flushed)]);
    pair.a.post(4, Operation::Write(to), Payload::Sges(&[good]));
    assert_eq!(pair.next_a(), failed(4, Status::Flushed));
}

#[test]
fn a_wrong_remote_key_is_remote_access() {
    let mut pair = Pair::new();
    let sge = pair.a.sge(0, 100);
    let to = RemoteAddress {
        key: pair.b.key ^ 1,
        ..pair.b.remote(0)
    };
    let payload = Payload::Sges(&[sge]);
    fails_with(
        &mut pair,
        Operation::Write(to),
        payload,
        Status::RemoteAccess,
    );
}

#[test]
fn a_queue_pair_allows_its_peer_no_more_than_it_says() {
    use program::access;

    for allowed in [access::REMOTE_WRITE, access::REMOTE_READ] {
        let mut pair = Pair::apart(256);
        pair.b.access = allowed;
        let mut pair = pair.connect();
        let (here, there) = (pair.a.sge(0, 8), pair.b.remote(0));
        let (write, read) = (Operation::Write(there), Operation::Read(there));
        let (may, may_not) = match allowed {
            access::REMOTE_WRITE => (write, read),
            _ => (read, write),
        };
        pair.a.post(1, may, Payload::Sges(&[here]));
        pair.a.post(2, may_not, Payload::Sges(&[here]));
        assert_eq!(pair.next_a(), success(1, 8));
        assert_eq!(pair.next_a(), failed(2, Status::RemoteAccess));
    }
}

#[test]
fn a_place_beyond_the_peer_s_region_is_remote_access() {
    let mut pair = Pair::new();
    let sge = pair.a.sge(0, 100);
    let to = pair.b.remote((1 << 20) - 99);
    let payload = Payload::Sges(&[sge]);
    fails_with(
        &mut pair,
        Operation::Write(to),
        payload,
        Status::RemoteAccess,
    );
}

#[test]
fn a_wrong_local_key_is_local_protection() {
    let mut pair = Pair::new();
    let mut sge = pair.a.sge(0, 100);
    sge.local_key ^= 1;
    let to = pair.b.remote(0);
    let payload = Payload::Sges(&[sge]);
    fails_with(
        &mut pair,
        Operation::Write(to),
        payload,
        Status::LocalProtection,
    );
}

#[test]
fn memory_that_is_not_mapped_is_local_protection() {
    let mut pair = Pair::new();
    let region = weft_device::control::Region {
        domain: pair.a.domain,
        address: 4096,
        bytes: 4096,
        io_address: 4096,
        access: 0,
        file_offset: None,
    };
    let Ok(Answer::Created(local_key)) = pair.a.ask(Request::RegisterRegion(region)) else {
        panic!("what is reserved only may be registered");
    };
    let sge = weft_device::work_request::Sge {
        address: 4096,
        bytes: 100,
        local_key,
    };
    let to = pair.b.remote(0);
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), failed(1, Status::LocalProtection));
}

#[test]
fn a_send_that_is_longer_than_the_receive_is_a_remote_invalid_request() {
    let mut pair = Pair::new();
    let receive = pair.b.sge(0, 10);
    pair.b.receive(9, &[receive]);
    let payload = Payload::Inline(&[1; 11]);
    fails_with(
        &mut pair,
        Operation::Send,
        payload,
        Status::RemoteInvalidRequest,
    );
}

fn write_with_immediate(pair: &mut Pair, wr_id: u64, to: RemoteAddress, payload: Payload<'_>) {
    pair.a.post_request(&WorkRequest {
        wr_id,
        operation: Operation::Write(to),
        immediate: Some(7),
        signaled: true,
        fence: false,
        solicited: false,
        payload,
    });
}

fn written(wr_id: u64, bytes: u32) -> Done {
    Done {
        immediate: Some(7),
        is_written: true,
        ..success(wr_id, bytes)
    }
}

#[test]
fn a_write_with_an_immediate_takes_a_receive_in_its_turn() {
    let mut pair = Pair::new();
    let bytes = pattern(100_000, 4);
    pair.a.fill(0, &bytes);
    let (sge, to) = (pair.a.sge(0, bytes.len()), pair.b.remote(0));
    let receive = pair.b.sge(500_000, 100);
    (10..13).for_each(|wr_id| pair.b.receive(wr_id, &[receive]));
    write_with_immediate(&mut pair, 1, to, Payload::Sges(&[sge]));
    write_with_immediate(&mut pair, 2, to, Payload::Sges(&[]));
    pair.a.post(3, Operation::Send, Payload::Inline(b"after"));
    assert_eq!(pair.next_b(), written(10, 100_000));
    assert!(pair.b.look(0, bytes.len()) == bytes);
    assert_eq!(pair.next_b(), written(11, 0));
    assert_eq!(pair.next_b(), success(12, 5));
    assert_eq!(pair.next_a(), success(1, 100_000));
    assert_eq!(pair.next_a(), success(2, 0));
    assert_eq!(pair.next_a(), success(3, 5));
    assert_eq!(pair.b.look(500_000, 6), b"after\0");
}

#[test]
fn a_write_with_an_immediate_whose_place_is_refused_fails_once() {
    let mut pair = Pair::new();
    pair.b.receive(10, &[]);
    let (sge, nowhere) = (pair.a.sge(0, 8), RemoteAddress::default());
    write_with_immediate(&mut pair, 1, nowhere, Payload::Sges(&[sge]));
    pair.a.post(2, Operation::Send, Payload::Sges(&[]));
    assert_eq!(pair.next_a(), failed(1, Status::RemoteAccess));
    assert_eq!(pair.next_a(), failed(2, Status::Flushed));
}

#[test]
fn receives_and_reads_of_several_entries_fill_one_after_the_other() {
    let mut pair = Pair::new();
    let bytes = pattern(10_000, 6);
    pair.a.fill(0, &bytes);
    let parts = |of: &Program, at: usize| {
        [
            of.sge(at, 100),
            of.sge(at + 50_000, 0),
            of.sge(at + 100_000, 8_000),
            of.sge(at + 200_000, 4_000),
        ]
    };
    let receive = parts(&pair.b, 0);
    pair.b.receive(9, &receive);
    let all = pair.a.sge(0, bytes.len());
    pair.a.post(1, Operation::Send, Payload::Sges(&[all]));
    assert_eq!(pair.next_b(), success(9, 10_000));
    assert_eq!(pair.next_a(), success(1, 10_000));
    let look = |of: &Program, at: usize| {
        let parts = [(0, 100), (100_000, 8_000), (200_000, 1_900)];
        parts
            .map(|(from, length)| of.look(at + from, length))
            .concat()
    };
    assert!(look(&pair.b, 0) == bytes);

    pair.b.fill(300_000, &pattern(12_100, 8));
    let from = pair.b.remote(300_000);
    let into = parts(&pair.a, 400_000);
    pair.a.post(2, Operation::Read(from), Payload::Sges(&into));
    assert_eq!(pair.next_a(), success(2, 12_100));
    assert!(look(&pair.a, 400_000) == pattern(12_100, 8)[..10_000]);
}

#[test]
fn several_entries_are_reached_no_more_when_the_region_of_one_is_deregistered() {
    let mut pair = Pair::new();
    let receive = [pair.b.sge(0, 10), pair.b.sge(100, 10)];
    pair.b.receive(9, &receive);
    (0..100).for_each(|_| pair.turn());
    let key = pair.b.key;
    let gone = pair.b.ask(Request::DeregisterRegion(key));
    assert_eq!(gone, Ok(Answer::Done));
    pair.a.post(1, Operation::Send, Payload::Inline(&[5; 20]));
    assert_eq!(pair.next_a(), failed(1, Status::RemoteOperation));
    assert_eq!(pair.b.look(0, 110), [0; 110]);
}

#[test]
fn shared_receives_are_taken_as_messages_come_and_outlive_a_queue_pair() {
    let mut pair = Pair::sharing();
    // More than may be outstanding: they are taken as others are filled.
    for wr_id in 0..32 {
        let receive = pair.b.sge(100 * wr_id as usize, 100);
        pair.b.receive(wr_id, &[receive]);
    }
    for wr_id in 0..30 {
        pair.a
            .post(wr_id, Operation::Send, Payload::Inline(&[wr_id as u8; 9]));
    }
    for wr_id in 0..30 {
        assert_eq!(pair.next_b(), success(wr_id, 9));
        assert_eq!(pair.next_a(), success(wr_id, 9));
        assert_eq!(pair.b.look(100 * wr_id as usize, 9), [wr_id as u8; 9]);
    }
    // One has taken the next receive, and nobody has looked, when the queue pair is reset: the receive is not lost.
    pair.a.post(30, Operation::Send, Payload::Inline(&[7]));
    for _ in 0..10 {
        let mut server = pair.a.devices.borrow_mut();
        let polled = server.poll(Duration::from_secs(1), Duration::ZERO);
        polled.expect("the engine runs");
    }
    pair.b.reset();
    assert_eq!(pair.next_a(), success(30, 1));
    pair.a.reset();
    let (a, b) = (pair.a.name(), pair.b.name());
    for (program, peer) in [(&mut pair.a, b), (&mut pair.b, a)] {
        program.init();
        program.ready(peer);
    }
    let to = pair.b.remote(0);
    write_with_immediate(&mut pair, 1, to, Payload::Inline(&[1; 5]));
    assert_eq!(pair.next_b(), written(30, 5));
    let queue = pair.b.receive_queue;
    let busy = pair.b.ask(Request::DestroySharedReceiveQueue(queue));
    assert_eq!(busy, Err(ErrorNumber::Busy));
}

#[test]
fn a_peer_that_never_answers_is_retry_exceeded() {
    let mut pair = Pair::apart(256);
    let b = pair.b.name();
    pair.a.init();
    pair.a.ready(b);
    pair.a.post(1, Operation::Send, Payload::Inline(&[1]));
    (0..10).for_each(|_| pair.turn());
    assert_eq!(pair.a.poll(), None);
    pair.later = Duration::from_secs(11);
    assert_eq!(pair.next_a(), failed(1, Status::RetryExceeded));
}

#[test]
fn a_peer_that_does_not_exist_gets_an_offer_in_five_seconds_and_one_that_comes_late_is_connected_at_once()
 {
    let mut pair = Pair::apart(256);
    let (a, b) = (pair.a.name(), pair.b.name());
    pair.a.init();
    pair.a.ready(b);
    let [of_a, of_b] = [&pair.a, &pair.b].map(|program| Rc::clone(&program.devices));
    let mut sent = Vec::new();
    for tenth in 0..600 {
        let now = Duration::from_millis(100 * tenth);
        let polled = of_a.borrow_mut().poll(now, Duration::ZERO);
        polled.expect("the engine runs");
        for offer in of_a.borrow_mut().take_offers() {
            sent.push(100 * tenth);
            let mut of_b = of_b.borrow_mut();
            of_b.receive_offer("node".into(), &offer, now);
        }
    }
    assert_eq!(sent[..6], [0, 200, 600, 1400, 3000, 6200]);
    assert_eq!(sent.len(), 6 + 10, "{sent:?}");

    pair.later = Duration::from_secs(60);
    pair.b.now = pair.later;
    pair.b.init();
    pair.b.ready(a);
    let offers = of_b.borrow_mut().take_offers();
    assert_eq!(offers.len(), 1);
    let now = pair.later;
    of_a.borrow_mut()
        .receive_offer("node".into(), &offers[0], now);
    let answers = of_a.borrow_mut().take_offers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].answers, Some(offers[0].end.id));
    of_b.borrow_mut()
        .receive_offer("node".into(), &answers[0], now);
    assert!(of_b.borrow_mut().take_offers().is_empty());

    pair.b.receive(1, &[]);
    pair.a.post(2, Operation::Send, Payload::Inline(&[]));
    assert_eq!(pair.next_b(), success(1, 0));
    assert_eq!(pair.next_a(), success(2, 0));
}

#[test]
fn an_answer_that_is_lost_is_given_again_to_the_next_offer() {
    let mut pair = Pair::apart(256).connect();
    let [of_a, of_b] = [&pair.a, &pair.b].map(|program| Rc::clone(&program.devices));
    assert_eq!(of_a.borrow_mut().take_offers().len(), 1, "it is lost");
    for offer in of_b.borrow_mut().take_offers() {
        let mut of_a = of_a.borrow_mut();
        of_a.receive_offer("node".into(), &offer, Duration::ZERO);
    }
    assert_eq!(of_a.borrow_mut().take_offers().len(), 1, "it is lost");
    pair.b.receive(1, &[]);
    pair.a.post(2, Operation::Send, Payload::Inline(&[]));
    assert_eq!(pair.next_b(), success(1, 0));
    assert_eq!(pair.next_a(), success(2, 0));
}

fn state(of: &Program) -> DeviceState {
    let page = Words::new(&of.shared, 0, DOORBELL_WORDS).expect("the page is there");
    Doorbells::new(page).expect("a page").state()
}

fn next_event(of: &Program) -> Event {
    let mut buffer = [0; EVENT_BYTES];
    let (packet, _) = packet::receive(&of.events, &mut buffer).expect("it is told");
    Event::from_bytes(packet).expect("an event")
}

#[test]
fn a_completion_queue_that_overflows_fails_the_device_and_no_other() {
    let mut pair = Pair::apart(4);
    let (a, b) = (pair.a.name(), pair.b.name());
    for (program, peer) in [(&mut pair.a, b), (&mut pair.b, a)] {
        program.init();
        program.ready(peer);
    }
    let (sge, to) = (pair.a.sge(0, 8), pair.b.remote(0));
    for wr_id in 0..8 {
        pair.a
            .post(wr_id, Operation::Write(to), Payload::Sges(&[sge]));
    }
    while state(&pair.a) == DeviceState::Running {
        pair.turn();
    }
    assert_eq!(state(&pair.b), DeviceState::Running);
    assert_eq!(pair.a.poll(), Some(success(0, 8)));
    let kind = EventType::CompletionQueueError;
    let object = pair.a.queue;
    assert_eq!(next_event(&pair.a), Event { kind, object });
    assert_eq!(next_event(&pair.a), Event::DEVICE_FATAL);
}

#[test]
fn a_program_that_scribbles_over_its_rings_fails_alone() {
    let mut pair = Pair::new();
    let ring = pair.a.send_ring;
    let words = Words::new(&pair.a.shared, ring.offset, ring.words()).expect("it is there");
    for word in words.iter() {
        word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    let (sge, to) = (pair.b.sge(0, 8), pair.a.remote(0));
    let receive = pair.a.sge(0, 8);
    // Its doorbell: the receive is flushed, as the send ring is of no use.
    pair.a.receive(1, &[receive]);
    assert_eq!(pair.next_a(), failed(1, Status::Flushed));
    // No completion says why.
    let kind = EventType::QueuePairFatal;
    let object = pair.a.number;
    assert_eq!(next_event(&pair.a), Event { kind, object });
    // The peer hears that the connection is gone, and its device works on.
    pair.b.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_b(), failed(2, Status::RetryExceeded));
    assert_eq!(state(&pair.b), DeviceState::Running);
}

#[test]
fn a_send_waits_without_end_for_a_receive_where_that_is_asked() {
    let stall = Nanos::from_millis(200);
    for (retries, outcome) in [
        (6, failed(1, Status::ReceiverNotReadyRetryExceeded)),
        (7, success(1, 8)),
    ] {
        let [a, b] = [(); 2].map(|()| Rc::new(RefCell::new(start_with(stall))));
        let mut pair = Pair::of(&a, &b);
        pair.a.retries = retries;
        let mut pair = pair.connect();
        let sge = pair.a.sge(0, 8);
        pair.a.post(1, Operation::Send, Payload::Sges(&[sge]));
        let begun = Instant::now();
        let mut done = None;
        while done.is_none() && begun.elapsed() < Duration::from_millis(3 * 200) {
            pair.turn();
            done = pair.a.poll();
        }
        if retries == 7 {
            assert_eq!(done, None);
            let receive = pair.b.sge(64, 8);
            pair.b.receive(2, &[receive]);
        }
        assert_eq!(done.unwrap_or_else(|| pair.next_a()), outcome);
    }
}

#[test]
fn a_program_that_scribbles_over_everything_while_it_runs_hurts_no_other() {
    let pair = Pair::new();
    let mut other = Pair::of(&pair.a.devices, &pair.b.devices).connect();
    let mut pair = pair;
    let count = (pair.a.shared.len() / 8) as usize;
    let words = Words::new(&pair.a.shared, 0, count).expect("it is there");
    let words: Vec<_> = words.iter().collect();
    // Of splitmix64 (Steele, Lea, Flood, 2014).
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for wr_id in 0..300 {
        for _ in 0..64 {
            let value = match draw() % 4 {
                0 => draw() % 8,
                1 => u64::MAX,
                _ => draw(),
            };
            // Half of them where doorbells and the first rings are.
            let among = if draw().is_multiple_of(2) {
                words.len()
            } else {
                1024
            };
            let at = (draw() % among as u64) as usize;
            words[at].store(value, std::sync::atomic::Ordering::Relaxed);
        }
        pair.turn();
        let (sge, to) = (other.a.sge(0, 8), other.b.remote(0));
        other
            .a
            .post(wr_id, Operation::Write(to), Payload::Sges(&[sge]));
        assert_eq!(other.next_a(), success(wr_id, 8));
    }
}

/// A peer whose program has ended may be gone before its close comes.
#[test]
fn a_peer_that_is_gone_is_no_event_of_a_queue_pair_that_has_sent_nothing() {
    let ports = PortRange {
        // Below those that the kernel gives to sockets without one.
        first: 16_000 + (std::process::id() % 180) as u16 * 16,
        count: 16,
    };
    let server = || start_at(ports, Nanos::from_secs(2)).expect("these ports are free");
    let a = Rc::new(RefCell::new(server()));
    let b = Rc::new(RefCell::new(start()));
    let mut pair = Pair::of(&a, &b).connect();
    let (here, there) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a
        .post(1, Operation::Write(there), Payload::Sges(&[here]));
    assert_eq!(pair.next_a(), success(1, 8));
    let receive = pair.b.sge(64, 8);
    pair.b.receive(2, &[receive]);
    // It is sent. Then a is replaced, and the new one does not know the connection that b acknowledges it on.
    pair.a
        .post(3, Operation::Write(there), Payload::Sges(&[here]));
    pair.turn_a();
    drop(a.replace(start()));
    drop(a.replace(server()));
    assert_eq!(pair.next_b(), failed(2, Status::Flushed));
    let mut events = [PollFd::new(&pair.b.events, PollFlags::IN)];
    let readable = poll(&mut events, Some(&Timespec::default()));
    assert_eq!(readable, Ok(0));
}

#[test]
fn memory_that_is_deregistered_is_reached_no_more_and_that_of_another_domain_never() {
    let mut pair = Pair::new();
    let (sge, to) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 8));
    let key = pair.b.key;
    let Ok(Answer::Created(other)) = pair.b.ask(Request::CreateDomain) else {
        panic!("a second domain");
    };
    assert_eq!(pair.b.ask(Request::DeregisterRegion(key)), Ok(Answer::Done));
    let region = weft_device::control::Region {
        domain: other,
        address: pair.b.address(0),
        bytes: 100,
        io_address: pair.b.address(0),
        access: program::ALL,
        file_offset: None,
    };
    let Ok(Answer::Created(key)) = pair.b.ask(Request::RegisterRegion(region)) else {
        panic!("a region of the second domain");
    };
    let to = RemoteAddress { key, ..to };
    pair.a.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), failed(2, Status::RemoteAccess));
}

#[test]
fn a_reset_queue_pair_is_connected_anew() {
    let mut pair = Pair::new();
    let (sge, to) = (pair.a.sge(0, 8), pair.b.remote(64));
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 8));
    let (a, b) = (pair.a.name(), pair.b.name());
    for (program, peer) in [(&mut pair.a, b), (&mut pair.b, a)] {
        program.reset();
        program.init();
        program.ready(peer);
    }
    pair.a.fill(0, &[4; 8]);
    pair.a.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(2, 8));
    assert_eq!(pair.b.look(64, 8), [4; 8]);
}

#[test]
fn datagrams_take_no_receives_from_a_shared_queue_and_unreliable_queue_pairs_read_nothing() {
    let mut pair = Pair::sharing();
    let a = &mut pair.a;
    let wanted = |kind, shared_receive_queue| {
        Request::CreateQueuePair(QueuePair {
            domain: a.domain,
            kind,
            send_completions: a.queue,
            receive_completions: a.queue,
            shared_receive_queue,
            sizes: program::SIZES,
        })
    };
    let shared = Some(a.receive_queue);
    let datagrams = wanted(QueuePairType::UnreliableDatagram, shared);
    let sharing = wanted(QueuePairType::UnreliableConnected, shared);
    assert_eq!(a.ask(datagrams), Err(ErrorNumber::NotSupported));
    assert!(a.ask(sharing).is_ok());

    let mut pair = Pair::of_unreliable();
    let (here, there) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a
        .post(1, Operation::Write(there), Payload::Sges(&[here]));
    pair.a
        .post(2, Operation::Read(there), Payload::Sges(&[here]));
    assert_eq!(pair.next_a(), success(1, 8));
    assert_eq!(pair.next_a(), failed(2, Status::LocalQueuePairOperation));
}

#[test]
fn a_program_that_ends_leaves_its_peer_a_completion_error_and_the_server_nothing() {
    let mut pair = Pair::new();
    let (sge, to) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 8));
    pair.b.devices.borrow_mut().close(pair.b.context);
    pair.a.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    // As long as a NIC would send it again: 8 times 67 ms.
    for _ in 0..1000 {
        pair.turn();
    }
    assert_eq!(pair.a.poll(), None);
    pair.later = Duration::from_millis(540);
    assert_eq!(pair.next_a(), failed(2, Status::RetryExceeded));
    let gone = pair.b.ask(Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::InvalidArgument));
}

#[test]
fn a_program_that_ends_with_its_last_message_has_acknowledged_it() {
    for is_destroyed in [false, true] {
        let mut pair = Pair::new();
        pair.b.receive(1, &[]);
        pair.a.post(2, Operation::Send, Payload::Sges(&[]));
        assert_eq!(pair.next_b(), success(1, 0));
        if is_destroyed {
            let number = pair.b.number;
            let destroyed = pair.b.ask(Request::DestroyQueuePair(number));
            assert_eq!(destroyed, Ok(Answer::Done));
        } else {
            pair.b.devices.borrow_mut().close(pair.b.context);
        }
        assert_eq!(pair.next_a(), success(2, 0));
    }
}

#[test]
fn a_device_is_open_so_often_and_so_are_all_devices_of_a_node() {
    let mut totals = Totals::DEFAULT;
    (totals.device.opens, totals.node.opens) = (2, 3);
    let mut devices = program::start().with_totals(totals);
    let open = |devices: &mut Devices, last| {
        let opened = devices.open(&program::device(last), program::own_memory());
        opened.map(|opened| opened.context)
    };
    let first = open(&mut devices, 1).expect("the first");
    open(&mut devices, 1).expect("the second");
    let refused = open(&mut devices, 1).expect_err("a third of the device");
    assert!(
        matches!(refused, OpenError::TooManyOfDevice(2)),
        "{refused}"
    );
    assert_eq!(refused.error_number(), ErrorNumber::OutOfMemory);
    open(&mut devices, 2).expect("another device");
    let refused = open(&mut devices, 3).expect_err("a fourth of the node");
    assert!(matches!(refused, OpenError::TooManyOfNode(3)), "{refused}");
    devices.close(first);
    open(&mut devices, 1).expect("there is room again");
}

#[test]
fn all_opens_of_a_device_have_so_many_objects_together_and_another_device_has_its_own() {
    let mut totals = Totals::DEFAULT;
    totals.device = DeviceTotals {
        queue_pairs: 3,
        completion_queues: 3,
        channels: 1,
        regions: 3,
        ..totals.device
    };
    totals.node.queue_pairs = 5;
    let devices = Rc::new(RefCell::new(program::start().with_totals(totals)));
    // Each has one of everything but channels.
    let [mut a, mut b] = [(); 2].map(|()| Program::new(&devices, 1, program::RELIABLE, 4));
    let mut other = Program::new(&devices, 2, program::RELIABLE, 4);
    let requests = |of: &Program| {
        let region = weft_device::control::Region {
            domain: of.domain,
            address: of.address(0),
            bytes: 1,
            io_address: of.address(0),
            access: program::ALL,
            file_offset: None,
        };
        let queue_pair = QueuePair {
            domain: of.domain,
            kind: QueuePairType::ReliableConnected,
            send_completions: of.queue,
            receive_completions: of.queue,
            shared_receive_queue: None,
            sizes: program::SIZES,
        };
        let channel = None;
        [
            Request::CreateCompletionQueue {
                entries: 4,
                channel,
            },
            Request::CreateChannel,
            Request::RegisterRegion(region),
            Request::CreateQueuePair(queue_pair),
        ]
    };
    let of_a = requests(&a).map(|request| a.ask(request).expect("a third"));
    for request in requests(&b) {
        let refused = b.ask(request);
        assert_eq!(refused, Err(ErrorNumber::OutOfMemory), "{request:?}");
    }
    for request in requests(&other) {
        other.ask(request).expect("of another device");
    }
    // Now the node has as many queue pairs as it may have, and the other device has two of three.
    let [.., queue_pair] = requests(&other);
    assert_eq!(other.ask(queue_pair), Err(ErrorNumber::OutOfMemory));
    let Answer::CreatedQueuePair { queue_pair, .. } = of_a[3] else {
        panic!("{of_a:?}");
    };
    let destroyed = a.ask(Request::DestroyQueuePair(queue_pair));
    assert_eq!(destroyed, Ok(Answer::Done));
    let [.., queue_pair] = requests(&b);
    b.ask(queue_pair).expect("there is room again");
}

#[test]
fn a_device_makes_no_more_rings_than_it_has_memory_for() {
    let mut totals = Totals::DEFAULT;
    totals.device.ring_bytes = 2000;
    let mut devices = program::start().with_totals(totals);
    let [a, b] = [(); 2].map(|()| {
        let opened = devices.open(&program::device(1), program::own_memory());
        opened.expect("it opens").context
    });
    let mut create = |context| {
        let (entries, channel) = (16, None);
        let request = Request::CreateCompletionQueue { entries, channel };
        devices.handle(context, &request, None, Duration::ZERO)
    };
    // 16 slots of 64 bytes, and the ring's header.
    create(a).expect("the first");
    create(b).expect("it begins below the limit");
    assert_eq!(create(a), Err(ErrorNumber::OutOfMemory));
}
