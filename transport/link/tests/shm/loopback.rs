//! What is placed and what is not, the way of answers, full rings, sleep, and what becomes of paths.

use weft_core::units::{Nanos, PathId};
use weft_link::{Destination, Link, LinkAddress, LinkKind, PathCondition, Sent};

use crate::pair::{End, HERE, PAYLOAD, drive, packet};

#[test]
fn payloads_are_copied_into_their_places_and_short_ones_and_control_packets_come_whole() {
    let (mut a, mut b) = (End::open(18_000), End::open(18_001));
    let peer = a.peer(&b);
    let long = [
        packet(1, 0, PAYLOAD),
        packet(2, PAYLOAD as u64, PAYLOAD - 1),
    ];
    let short = packet(3, 0, 10);
    assert_eq!(a.send(&peer, 0, &long), Sent::Whole);
    assert_eq!(a.send(&peer, 0, std::slice::from_ref(&short)), Sent::Whole);
    a.link
        .send_control(Destination::Path(&peer, PathId(0)), &[9; 100]);
    drive(&mut [&mut a, &mut b], "two packets", |ends| {
        ends[1].arrivals.packets.len() == 2
    });
    let came: Vec<&[u8]> = b.arrivals.packets.iter().map(|(_, it)| &it[..]).collect();
    assert_eq!(came, [&short[..], &[9; 100]]);
    let placed: Vec<u64> = b
        .arrivals
        .placed
        .iter()
        .map(|it| it.packet_number)
        .collect();
    assert_eq!(placed, [1, 2]);
    assert!(b.arrivals.memory[..PAYLOAD] == long[0][48..48 + PAYLOAD]);
    assert!(b.arrivals.memory[PAYLOAD..] == long[1][48..48 + PAYLOAD - 1]);
    let counters = b.link.counters();
    assert_eq!(
        (counters.placed_bytes, counters.received_packets),
        (2 * PAYLOAD as u64 - 1, 4)
    );
    assert_eq!(a.link.counters().sent_packets, 4);
}

#[test]
fn what_is_not_wanted_is_passed_over_and_what_follows_is_not() {
    let (mut a, mut b) = (End::open(18_004), End::open(18_005));
    b.arrivals.discards = true;
    let peer = a.peer(&b);
    for number in 0..3 {
        a.send(&peer, 0, &[packet(number, 0, PAYLOAD)]);
    }
    a.send(&peer, 0, &[packet(9, 0, 40)]);
    drive(&mut [&mut a, &mut b], "the last packet", |ends| {
        !ends[1].arrivals.packets.is_empty()
    });
    assert!(b.arrivals.packets[0].1 == packet(9, 0, 40) && b.arrivals.placed.is_empty());
}

#[test]
fn answers_go_back_on_the_connection_that_the_data_came_on() {
    let (mut a, mut b) = (End::open(18_008), End::open(18_009));
    let (to_b, to_a) = (a.peer(&b), b.peer(&a));
    assert_eq!(a.send(&to_b, 7, &[packet(1, 0, 10)]), Sent::Whole);
    drive(&mut [&mut a, &mut b], "the data", |ends| {
        !ends[1].arrivals.packets.is_empty()
    });
    let source = b.arrivals.packets[0].0;
    assert!(a.link.address().holds(source));
    let answers = [vec![1; 16], vec![2; 200]];
    b.link
        .send_control(Destination::Source(source), &answers[0]);
    let way = Destination::Reverse(&to_a, PathId(7));
    b.link.send_control(way, &answers[1]);
    drive(&mut [&mut a, &mut b], "the answers", |ends| {
        ends[0].arrivals.packets.len() == 2
    });
    let packets: Vec<&[u8]> = a.arrivals.packets.iter().map(|(_, it)| &it[..]).collect();
    assert_eq!(packets, answers);
    // On another path nothing has come from there.
    let way = Destination::Reverse(&to_a, PathId(8));
    b.link.send_control(way, &answers[1]);
    assert_eq!(b.link.counters().unreachable, 1);
}

#[test]
fn a_full_ring_blocks_its_path_keeps_what_is_sent_nevertheless_and_loses_nothing() {
    let (mut a, mut b) = (End::open(18_012), End::open(18_013));
    let peer = a.peer(&b);
    let mut chunks = 0;
    let mut send = |a: &mut End| {
        let at = chunks * 2;
        chunks += 1;
        let packets = [at, at + 1].map(|number| packet(number, number * PAYLOAD as u64, PAYLOAD));
        a.send(&peer, 3, &packets)
    };
    while send(&mut a) == Sent::Whole {}
    // Connections that share the link and have paths of their own know nothing of this.
    for _ in 0..30 {
        assert_eq!(send(&mut a), Sent::Kept);
    }
    let way = Destination::Path(&peer, PathId(3));
    a.link.send_control(way, &[1; 40]);
    let told: Vec<_> = std::iter::from_fn(|| a.link.poll_path()).collect();
    assert_eq!(told.len(), 31);
    assert!(
        told.iter()
            .all(|it| (it.path, it.condition) == (PathId(3), PathCondition::Blocked))
    );
    // Another path goes on.
    assert_eq!(a.send(&peer, 4, &[packet(0, 0, 10)]), Sent::Whole);
    drive(&mut [&mut a, &mut b], "all that was kept", |ends| {
        let is_all = ends[1].arrivals.placed.len() as u64 == 2 * chunks;
        is_all && ends[0].was_told(3, PathCondition::Ready)
    });
    for (number, ticket) in (0..).zip(&b.arrivals.placed) {
        assert_eq!(ticket.packet_number, number);
        let there = &b.arrivals.memory[number as usize * PAYLOAD..][..PAYLOAD];
        assert!(there == &packet(number, 0, PAYLOAD)[48..48 + PAYLOAD]);
    }
    // The control packet has found room, and the path was blocked once.
    assert_eq!(a.link.counters().blocked, 1);
    assert_eq!(b.arrivals.packets.len(), 2);
}

#[test]
fn a_path_that_fills_twice_before_it_is_looked_at_is_blocked_once() {
    let (mut a, mut b) = (End::open(17_276), End::open(17_277));
    let to_b = a.peer(&b);
    for _ in 0..2 {
        while a.send(&to_b, 0, &[packet(1, 0, PAYLOAD)]) == Sent::Whole {}
        // There is room again, and `a` has not seen it.
        b.turn();
    }
    a.turn();
    assert!(a.was_told(0, PathCondition::Ready));
    assert_eq!(a.send(&to_b, 0, &[packet(2, 0, PAYLOAD)]), Sent::Whole);
    let sent = a.link.counters().sent_packets;
    drive(&mut [&mut a, &mut b], "all packets", |ends| {
        ends[1].link.counters().received_packets == sent
    });
}

#[test]
fn an_end_that_sleeps_is_woken_by_a_packet_and_by_room_and_one_that_does_not_costs_no_call() {
    let (mut a, mut b) = (End::open(18_016), End::open(18_017));
    let to_b = a.peer(&b);
    let send = |a: &mut End| {
        let sent = a.send(&to_b, 0, &[packet(1, 0, PAYLOAD), packet(2, 0, PAYLOAD)]);
        a.link.send_gathered();
        sent
    };
    send(&mut a);
    drive(&mut [&mut a, &mut b], "the first", |ends| {
        ends[1].arrivals.placed.len() == 2
    });
    for count in 1..4 {
        b.arrivals.placed.clear();
        while !b.prepare_to_sleep() {
            b.turn();
        }
        send(&mut a);
        b.wait();
        b.turn();
        assert_eq!(b.arrivals.placed.len(), 2);
        assert_eq!(a.link.counters().send_calls, count);
        while send(&mut a) == Sent::Whole {}
        while !a.prepare_to_sleep() {
            a.turn();
        }
        b.turn();
        a.wait();
        a.changes.clear();
        a.turn();
        assert!(a.was_told(0, PathCondition::Ready));
        assert_eq!(b.link.counters().send_calls, count);
    }
}

#[test]
fn two_ends_that_sleep_whenever_they_can_miss_nothing() {
    let (mut a, mut b) = (End::open(18_018), End::open(18_019));
    let (to_b, rounds) = (a.peer(&b), 100);
    let chunk = [packet(1, 0, PAYLOAD), packet(2, 0, PAYLOAD)];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..rounds {
                while b.arrivals.packets.is_empty() {
                    b.turn();
                    if b.arrivals.packets.is_empty() && b.prepare_to_sleep() {
                        b.wait();
                    }
                }
                assert_eq!(b.arrivals.placed.drain(..).count(), 2 * 60);
                let (source, _) = b.arrivals.packets.remove(0);
                b.link.send_control(Destination::Source(source), &[3; 40]);
                b.link.send_gathered();
            }
            // The other end says when it has the last answer.
            while b.arrivals.packets.is_empty() {
                b.turn();
            }
        });
        for _ in 0..rounds {
            for _ in 0..60 {
                if a.send(&to_b, 0, &chunk) == Sent::Whole {
                    continue;
                }
                a.changes.clear();
                while !a.was_told(0, PathCondition::Ready) {
                    a.turn();
                    if !a.was_told(0, PathCondition::Ready) && a.prepare_to_sleep() {
                        a.wait();
                    }
                }
            }
            a.send(&to_b, 0, &[packet(3, 0, 10)]);
            while a.arrivals.packets.is_empty() {
                a.turn();
                if a.arrivals.packets.is_empty() && a.prepare_to_sleep() {
                    a.wait();
                }
            }
            a.arrivals.packets.clear();
        }
        a.send(&to_b, 0, &[packet(3, 0, 10)]);
    });
}

#[test]
fn a_peer_that_goes_is_told_of_at_once_and_what_it_had_sent_arrives() {
    let (mut a, mut b) = (End::open(18_020), End::open(18_021));
    let (to_b, to_a) = (a.peer(&b), b.peer(&a));
    a.send(&to_b, 2, &[packet(1, 0, 10)]);
    drive(&mut [&mut a, &mut b], "the first", |ends| {
        ends[1].arrivals.packets.len() == 1
    });
    b.send(&to_a, 1, &[packet(2, 0, PAYLOAD), packet(3, 0, 20)]);
    // It is taken, and its ring is read by and by.
    a.turn();
    b.send(&to_a, 1, &[packet(4, 0, 30)]);
    drop(b);
    drive(&mut [&mut a], "the end of the path", |ends| {
        ends[0].was_told(2, PathCondition::Broken)
    });
    let arrivals = &a.arrivals;
    assert_eq!((arrivals.placed.len(), arrivals.packets.len()), (1, 2));
    assert_eq!(a.link.counters().broken_paths, 1);
}

#[test]
fn a_path_that_breaks_is_made_again_by_what_is_sent_after_a_while() {
    let (mut a, b) = (End::open(18_024), End::open(18_025));
    let peer = a.peer(&b);
    drop(b);
    let is_ready = |ends: &[&mut End]| ends[0].was_told(2, PathCondition::Ready);
    // Nobody listens there: each attempt waits longer.
    let mut waits = Vec::new();
    for _ in 0..4 {
        let sent = a.send(&peer, 2, &[packet(2, 0, 10)]);
        assert!(matches!(sent, Sent::Dropped(_)), "nobody is there");
        a.turn();
        assert!(a.was_told(2, PathCondition::Broken));
        // Before its time nothing is tried.
        a.send(&peer, 2, &[packet(2, 0, 10)]);
        a.turn();
        let at = a.link.flush_at().unwrap();
        waits.push((at - a.now).get() / 1_000_000);
        (a.now, a.changes) = (at, Vec::new());
        drive(&mut [&mut a], "the path", is_ready);
        a.changes.clear();
    }
    assert_eq!(waits, [10, 20, 40, 80]);
    let mut b = End::open(18_025);
    a.send(&peer, 2, &[packet(3, 0, 10)]);
    drive(&mut [&mut a, &mut b], "a packet", |ends| {
        ends[1].arrivals.packets.len() == 1
    });
}

#[test]
fn an_idle_connection_is_closed_unnoticed_and_made_again() {
    let (mut a, mut b) = (End::open(18_028), End::open(18_029));
    let peer = a.peer(&b);
    for round in 1..3 {
        a.send(&peer, 0, &[packet(1, 0, 10)]);
        drive(&mut [&mut a, &mut b], "a packet", |ends| {
            ends[1].arrivals.packets.len() == round
        });
        let source = b.arrivals.packets[round - 1].0;
        a.now = a.now + Nanos::from_secs(61);
        a.turn();
        assert_eq!((a.changes.len(), a.link.counters().broken_paths), (0, 0));
        // The other end has seen that it is gone: an answer has no way.
        b.turn();
        b.link.send_control(Destination::Source(source), &[1; 16]);
        assert_eq!(b.link.counters().unreachable, round as u64);
    }
}

#[test]
fn a_name_is_one_end_s_and_an_address_of_another_link_is_refused() {
    use weft_link::{LinkToken, PortRange, ShmConfig, ShmLink};
    let a = End::open(18_032);
    let ports = PortRange {
        first: 18_032,
        count: 1,
    };
    let again = ShmLink::open(ShmConfig {
        address: HERE,
        ports,
        token: LinkToken(1),
        paths: 1,
    });
    let error = again.err().unwrap();
    assert_eq!(error.reason(), "PortTaken");
    assert!(error.to_string().contains("weft-shm/127.0.0.1/18032"));
    let tcp = LinkAddress::of(LinkKind::Tcp, HERE, ports, LinkToken(1));
    assert_eq!(a.link.peer(&tcp).unwrap_err().reason(), "OtherLink");
}
