//! Receives that are bad, that come behind bad ones, and that a message for another program must not take.

#[expect(dead_code, reason = "much of it is for other tests")]
mod program;

use std::rc::Rc;
use std::time::Duration;

use program::{Done, Pair, Program, success};
use weft_device::completion::Status;
use weft_device::state::QueuePairType;
use weft_device::work_request::{Operation, Payload, Sge};

/// Of a region that is not there.
fn bad(good: Sge) -> Sge {
    Sge {
        local_key: good.local_key ^ 1,
        ..good
    }
}

/// Both ends begin anew.
fn connect_again(pair: &mut Pair) {
    let (a, b) = (pair.a.name(), pair.b.name());
    for (program, peer) in [(&mut pair.a, b), (&mut pair.b, a)] {
        program.reset();
        program.init();
        program.ready(peer);
    }
}

#[test]
fn receives_behind_a_bad_one_are_flushed_and_a_queue_pair_that_is_reset_receives_again() {
    for mut pair in [Pair::new(), Pair::of_unreliable()] {
        let good = pair.b.sge(0, 8);
        // All of them before the server looks.
        for (wr_id, sge) in (1..).zip([good, bad(good), good, good]) {
            pair.b.receive(wr_id, &[sge]);
        }
        let mut ends = [(); 4].map(|()| pair.next_b());
        ends.sort_unstable_by_key(|done| done.wr_id);
        let ends = ends.map(|done| (done.wr_id, done.status));
        let flushed = |wr_id| (wr_id, Status::Flushed);
        let of_bad = (2, Status::LocalProtection);
        assert_eq!(ends, [flushed(1), of_bad, flushed(3), flushed(4)]);
        // One that is posted later, too.
        pair.b.receive(5, &[good]);
        let late = Done {
            status: Status::Flushed,
            ..success(5, 0)
        };
        assert_eq!(pair.next_b(), late);

        connect_again(&mut pair);
        pair.b.receive(6, &[good]);
        pair.a
            .post(7, Operation::Send, Payload::Inline(b"received"));
        assert_eq!(pair.next_b(), success(6, 8));
        assert_eq!(pair.next_a(), success(7, 8));
        assert_eq!(pair.b.look(0, 8), b"received");
    }
}

#[test]
fn a_shared_queue_gives_the_receives_before_a_bad_one_and_none_behind_it() {
    let mut pair = Pair::sharing();
    let good = pair.b.sge(0, 8);
    for (wr_id, sge) in (1..).zip([good, bad(good), good]) {
        pair.b.receive(wr_id, &[sge]);
    }
    pair.a.post(4, Operation::Send, Payload::Inline(b"first"));
    pair.a.post(5, Operation::Send, Payload::Inline(b"second"));
    assert_eq!(pair.next_b(), success(1, 5));
    assert_eq!(pair.next_a(), success(4, 5));
    (0..1000).for_each(|_| pair.turn());
    assert_eq!(pair.a.poll(), None);
    assert_eq!(pair.b.poll(), None);
}

#[test]
fn a_message_for_a_program_that_has_gone_takes_no_receive_of_the_next_one() {
    let mut pair = Pair::sharing();
    let receive = pair.b.sge(0, 8);
    (1..=2).for_each(|wr_id| pair.b.receive(wr_id, &[receive]));
    pair.a.post(3, Operation::Send, Payload::Inline(b"first"));
    assert_eq!(pair.next_b(), success(1, 5));
    assert_eq!(pair.next_a(), success(3, 5));
    // This one has come, and nobody has looked, when the program ends.
    pair.a.post(4, Operation::Send, Payload::Inline(b"late"));
    for _ in 0..10 {
        let mut server = pair.a.devices.borrow_mut();
        let polled = server.poll(Duration::from_secs(1), Duration::ZERO);
        polled.expect("the engine runs");
    }
    let server = Rc::clone(&pair.b.devices);
    server.borrow_mut().close(pair.b.context);

    let gone = pair.b.context;
    let kind = (QueuePairType::ReliableConnected, true);
    // Names come round again.
    for _ in 0..255 {
        let other = Program::new(&server, 3, kind, 256);
        server.borrow_mut().close(other.context);
    }
    pair.b = Program::new(&server, 2, kind, 256);
    assert_eq!(pair.b.context, gone, "it has the name of the one before");
    // They are taken before the server looks at what has come.
    let receives = [0, 100].map(|at| pair.b.sge(at, 8));
    for (wr_id, receive) in (5..).zip(receives) {
        pair.b.receive(wr_id, &[receive]);
    }
    pair.turn();
    while pair.a.poll().is_some() {}
    connect_again(&mut pair);
    pair.a.post(7, Operation::Send, Payload::Inline(b"second"));
    pair.a.post(8, Operation::Send, Payload::Inline(b"third"));
    assert_eq!(pair.next_b(), success(5, 6));
    assert_eq!(pair.next_b(), success(6, 5));
    assert_eq!(pair.b.look(0, 6), b"second");
    assert_eq!(pair.b.look(100, 5), b"third");
}
