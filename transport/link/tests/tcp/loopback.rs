//! What is placed and what is not, the way of answers, and what becomes of paths.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use weft_core::units::{Nanos, PathId};
use weft_link::{Destination, Link, PathCondition, Sent};

use crate::pair::{End, HERE, PAYLOAD, address, drive, frame, packet, preamble};

/// An end at `port`, and a connection to it that says what an end at `port + 1` would.
fn connected(port: u16) -> (End, TcpStream) {
    let end = End::open(HERE[0], port);
    let mut raw = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    raw.write_all(&preamble(port, 0, port + 1))
        .expect("it is taken");
    (end, raw)
}

#[test]
fn a_long_payload_that_has_come_is_received_into_its_place_with_what_follows_it() {
    let (mut end, mut raw) = connected(17_020);
    // What has come when the end reads is the kernel's affair: until much was there at once.
    while end.arrivals.placed.len() < 4 {
        let first = end.link.counters().received_packets;
        assert!(first < 500, "nothing ever comes whole");
        let of = |number| (number - first) as usize * PAYLOAD;
        let packets: Vec<Vec<u8>> = (first..first + 5)
            .map(|number| {
                packet(
                    number,
                    of(number) as u64,
                    [PAYLOAD, 10][usize::from(number % 5 == 3)],
                )
            })
            .collect();
        let bytes: Vec<u8> = packets.iter().flat_map(|packet| frame(packet)).collect();
        end.arrivals.packets.clear();
        raw.write_all(&bytes).unwrap();
        drive(&mut [&mut end], "five packets", |ends| {
            ends[0].link.counters().received_packets == first + 5
        });
        // What was not placed came as packets, in order.
        let mut whole = end.arrivals.packets.iter();
        for (number, packet) in (first..).zip(&packets) {
            match end
                .arrivals
                .placed
                .iter()
                .any(|it| it.packet_number == number)
            {
                true => {
                    let there = &end.arrivals.memory[of(number)..][..PAYLOAD];
                    assert!(there == &packet[48..48 + PAYLOAD], "{number}");
                }
                false => assert!(whole.next().unwrap().1 == *packet, "{number}"),
            }
        }
    }
    let placed = end.arrivals.placed.len() * PAYLOAD;
    assert_eq!(end.link.counters().placed_bytes, placed as u64);
}

#[test]
fn what_is_not_wanted_is_passed_over_and_what_follows_is_not() {
    let (mut end, mut raw) = connected(17_022);
    end.arrivals.discards = true;
    let last = packet(9, 0, 40);
    for number in 0..8 {
        raw.write_all(&frame(&packet(number, 0, PAYLOAD))).unwrap();
    }
    raw.write_all(&frame(&last)).unwrap();
    drive(&mut [&mut end], "the last packet", |ends| {
        let packets = &ends[0].arrivals.packets;
        packets.last().is_some_and(|(_, packet)| *packet == last)
    });
    let arrivals = &end.arrivals;
    assert!(arrivals.placed.is_empty() && arrivals.packets.len() < 9);
}

#[test]
fn answers_go_back_on_the_connection_that_the_data_came_on_over_both_ip_versions() {
    for (here, port) in HERE.into_iter().zip([17_030, 17_032]) {
        let (mut a, mut b) = (End::open(here, port), End::open(here, port + 1));
        let (to_b, to_a) = (a.peer(&b), b.peer(&a));
        assert_eq!(a.send(&to_b, 7, &[packet(1, 0, 10)]), Sent::Whole);
        drive(&mut [&mut a, &mut b], "the data", |ends| {
            !ends[1].arrivals.packets.is_empty()
        });
        let source = b.arrivals.packets[0].0;
        assert!(a.link.address().holds(source));
        let answers = [vec![1; 16], vec![2; 200]];
        let ways = [
            Destination::Source(source),
            Destination::Reverse(&to_a, PathId(7)),
        ];
        for (way, answer) in ways.into_iter().zip(&answers) {
            b.link.send_control(way, answer);
        }
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
}

#[test]
fn a_path_that_breaks_is_told_of_and_made_again_by_what_is_sent_after_a_while() {
    let (mut a, mut b) = (End::open(HERE[0], 17_040), End::open(HERE[0], 17_041));
    let peer = a.peer(&b);
    a.send(&peer, 2, &[packet(1, 0, 10)]);
    drive(&mut [&mut a, &mut b], "the first", |ends| {
        ends[1].arrivals.packets.len() == 1
    });
    drop(b);
    let is_broken = |ends: &[&mut End]| ends[0].was_told(2, PathCondition::Broken);
    let is_ready = |ends: &[&mut End]| ends[0].was_told(2, PathCondition::Ready);
    drive(&mut [&mut a], "the end of the path", is_broken);
    // Nobody listens there: each attempt waits longer.
    let mut waits = Vec::new();
    for _ in 0..4 {
        a.changes.clear();
        let sent = a.send(&peer, 2, &[packet(2, 0, 10)]);
        assert!(matches!(sent, Sent::Dropped(_)), "it takes nothing yet");
        a.turn();
        assert!(a.was_told(2, PathCondition::Broken));
        let at = a.link.flush_at().unwrap();
        waits.push((at - a.now).get() / 1_000_000);
        (a.now, a.changes) = (at, Vec::new());
        drive(&mut [&mut a], "the path", is_ready);
        a.changes.clear();
        a.send(&peer, 2, &[packet(2, 0, 10)]);
        drive(&mut [&mut a], "the end of the attempt", is_broken);
    }
    assert_eq!(waits, [10, 20, 40, 80]);
    let mut b = End::open(HERE[0], 17_041);
    (a.now, a.changes) = (a.now + Nanos::from_secs(2), Vec::new());
    drive(&mut [&mut a], "the path", is_ready);
    a.send(&peer, 2, &[packet(3, 0, 10)]);
    drive(&mut [&mut a, &mut b], "a packet", |ends| {
        ends[1].arrivals.packets.len() == 1
    });
}

#[test]
fn who_sends_on_a_blocked_path_is_told_each_time_and_nothing_is_lost() {
    // Its backlog takes the connection.
    let slow = TcpListener::bind((Ipv4Addr::LOCALHOST, 17_052)).unwrap();
    let mut a = End::open(HERE[0], 17_051);
    let peer = a.link.peer(&address(17_052)).unwrap();
    let chunk = [packet(1, 0, PAYLOAD), packet(2, 0, PAYLOAD)];
    let mut chunks = 1;
    while a.send(&peer, 3, &chunk) != Sent::Kept {
        chunks += 1;
    }
    // Connections that share the link and have paths of their own know nothing of this.
    for _ in 0..2 {
        assert_eq!(a.send(&peer, 3, &chunk), Sent::Kept);
        chunks += 1;
    }
    let told: Vec<_> = std::iter::from_fn(|| a.link.poll_path()).collect();
    let conditions: Vec<_> = told.iter().map(|it| (it.path, it.condition)).collect();
    assert_eq!(conditions, [(PathId(3), PathCondition::Blocked); 3]);
    let (mut taken, _) = slow.accept().unwrap();
    taken.set_nonblocking(true).unwrap();
    let bytes: Vec<u8> = chunk.iter().flat_map(|packet| frame(packet)).collect();
    let (mut piece, mut received) = (vec![0; 1 << 20], 0);
    drive(&mut [&mut a], "all that was kept", |ends| {
        // Nothing has come, or a part.
        received += taken.read(&mut piece).unwrap_or(0);
        received == 48 + chunks * bytes.len() && ends[0].was_told(3, PathCondition::Ready)
    });
}

#[test]
fn an_idle_connection_is_closed_unnoticed_and_made_again() {
    // Its backlog takes the connection, and nobody ever reads.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 17_046)).unwrap();
    let mut a = End::open(HERE[0], 17_045);
    let peer = a.link.peer(&address(17_046)).unwrap();
    for _ in 0..2 {
        a.send(&peer, 0, &[packet(1, 0, 10)]);
        let (mut taken, _) = silent.accept().unwrap();
        taken.set_nonblocking(true).unwrap();
        let mut said = Vec::new();
        drive(&mut [&mut a], "all that was sent", |_| {
            // Nothing has come, or a part.
            let _ = taken.read_to_end(&mut said);
            said.len() == 48 + 4 + 74
        });
        a.changes.clear();
        a.now = a.now + Nanos::from_secs(61);
        a.turn();
        assert_eq!((a.changes.len(), a.link.counters().broken_paths), (0, 0));
        assert_eq!(taken.read(&mut [0]).unwrap(), 0);
    }
}
