//! Strangers, garbage, and peers that stop: they cost a bounded amount of memory, are counted, and disturb nobody.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use weft_core::units::Nanos;
use weft_link::{Destination, Link, Sent};

use crate::pair::{End, HERE, PATHS, PAYLOAD, drive, frame, packet, preamble};

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    stream.set_nonblocking(true).expect("a socket can");
    stream
}

/// Whether the other end has closed it.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// A packet from another end still arrives.
fn assert_serves(end: &mut End, from: u16) {
    let before = end.arrivals.packets.len();
    let mut other = End::open(HERE[0], from);
    let peer = other.peer(end);
    assert_eq!(other.send(&peer, 0, &[packet(1, 0, 10)]), Sent::Whole);
    drive(
        &mut [end, &mut other],
        "a packet of an honest peer",
        |ends| ends[0].arrivals.packets.len() == before + 1,
    );
}

#[test]
fn who_does_not_know_the_token_or_speaks_another_protocol_is_closed_at_once() {
    let mut end = End::open(HERE[0], 17_100);
    let said = [
        preamble(17_099, 0, 17_101),
        b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything there is\r\n\r\n".to_vec(),
        vec![0; 48],
        vec![0xff; 5_000],
    ];
    for (at, said) in (1..).zip(said) {
        let mut stranger = connect(17_100);
        stranger.write_all(&said).unwrap();
        drive(&mut [&mut end], "its end", |_| is_closed(&stranger));
        assert_eq!(end.link.counters().strangers, at);
    }
    // One that ends before it has said anything.
    drop(connect(17_100));
    drive(&mut [&mut end], "its end", |ends| {
        ends[0].link.counters().strangers == 5
    });
    assert_eq!(end.arrivals.packets.len(), 0);
    assert_serves(&mut end, 17_101);
}

#[test]
fn an_answer_to_a_peer_that_is_gone_reaches_nobody_who_came_after_it() {
    let mut end = End::open(HERE[0], 17_103);
    let mut peer = connect(17_103);
    peer.write_all(&preamble(17_103, 0, 17_104)).unwrap();
    peer.write_all(&frame(&packet(1, 0, 10))).unwrap();
    drive(&mut [&mut end], "a packet", |ends| {
        ends[0].arrivals.packets.len() == 1
    });
    let from = end.arrivals.packets[0].0;
    end.link.send_control(Destination::Source(from), &[1; 16]);
    drive(&mut [&mut end], "the answer", |_| {
        peer.set_nonblocking(true).unwrap();
        peer.peek(&mut [0; 1]).is_ok()
    });
    drop(peer);
    let answer = |end: &mut End| {
        end.turn();
        end.link.send_control(Destination::Source(from), &[2; 16]);
        end.link.counters().unreachable
    };
    while answer(&mut end) == 0 {}
    // It takes the place that has become free.
    let stranger = connect(17_103);
    let before = answer(&mut end);
    for _ in 0..100 {
        answer(&mut end);
    }
    assert_eq!(answer(&mut end), before + 101);
    let read = (&stranger).read(&mut [0; 1]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_serves(&mut end, 17_105);
}

#[test]
fn who_says_that_it_is_at_another_ip_address_is_closed_and_takes_nobodys_place() {
    let mut end = End::open(HERE[0], 17_124);
    let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
    let mut honest = End::open(elsewhere.into(), 17_125);
    let to_end = honest.peer(&end);
    let mut said = preamble(17_124, 0, 17_125);
    said[16..32].copy_from_slice(&elsewhere.to_ipv6_mapped().octets());
    for round in 0..2 {
        honest.send(&to_end, 0, &[packet(round, 0, 10)]);
        let mut both = [&mut end, &mut honest];
        drive(&mut both, "a packet of the honest one", |ends| {
            ends[0].arrivals.packets.len() as u64 == round + 1
        });
        let mut stranger = connect(17_124);
        stranger.write_all(&said).unwrap();
        let mut both = [&mut end, &mut honest];
        drive(&mut both, "the stranger's end", |_| is_closed(&stranger));
        assert_eq!(end.link.counters().strangers, round + 1);
    }
    assert_eq!(honest.link.counters().broken_paths, 0);
}

#[test]
fn who_says_nothing_has_three_seconds_and_many_who_do_make_room_for_one_who_speaks() {
    let mut end = End::open(HERE[0], 17_104);
    let one = connect(17_104);
    for _ in 0..10 {
        end.turn();
    }
    assert!(!is_closed(&one));
    end.now = end.now + Nanos::from_millis(2_999);
    end.turn();
    assert!(!is_closed(&one));
    end.now = end.now + Nanos::from_millis(1);
    drive(&mut [&mut end], "its end", |_| is_closed(&one));
    assert_eq!(end.link.counters().strangers, 1);
    let silent: Vec<TcpStream> = (0..100).map(|_| connect(17_104)).collect();
    drive(&mut [&mut end], "the oldest ones' ends", |ends| {
        ends[0].link.counters().strangers >= 37
    });
    assert!(is_closed(&silent[0]) && !is_closed(&silent[99]));
    assert_serves(&mut end, 17_105);
}

#[test]
fn who_has_spoken_is_not_closed_to_make_room_for_others() {
    let mut end = End::open(HERE[0], 17_140);
    let mut peers: Vec<TcpStream> = (0..64).map(|_| connect(17_140)).collect();
    // Sixteen are taken in a turn.
    for _ in 0..5 {
        end.turn();
    }
    for (from, peer) in (17_141..).zip(&mut peers) {
        peer.write_all(&preamble(17_140, 0, from)).unwrap();
    }
    let silent: Vec<TcpStream> = (0..16).map(|_| connect(17_140)).collect();
    end.turn();
    assert_eq!(end.link.counters().strangers, 0);
    for peer in &mut peers {
        peer.write_all(&frame(&packet(1, 0, 10))).unwrap();
    }
    drive(&mut [&mut end], "a packet of each", |ends| {
        ends[0].arrivals.packets.len() == 64
    });
    assert!(!silent.iter().any(is_closed));
}

#[test]
fn a_length_that_no_packet_has_ends_its_connection_only() {
    let mut end = End::open(HERE[0], 17_108);
    for (at, length) in [0, 15, PAYLOAD as u32 + 65, u32::MAX]
        .into_iter()
        .enumerate()
    {
        let mut peer = connect(17_108);
        peer.write_all(&preamble(17_108, 0, 17_109)).unwrap();
        let good = packet(1, 0, 10);
        peer.write_all(&frame(&good)).unwrap();
        peer.write_all(&length.to_le_bytes()).unwrap();
        drive(&mut [&mut end], "its end", |_| is_closed(&peer));
        assert_eq!(end.link.counters().bad_frames, at as u64 + 1);
        assert_eq!(end.arrivals.packets.len(), at + 1);
        assert_eq!(end.arrivals.packets[at].1, good);
    }
    assert_serves(&mut end, 17_109);
}

#[test]
fn a_peer_that_stops_within_a_frame_holds_nobody_up_and_may_go_on_later() {
    let mut end = End::open(HERE[0], 17_112);
    let long = frame(&packet(1, 0, PAYLOAD));
    // Within the length, the trailer, the header, the payload, and before its last byte.
    let cuts = [2, 10, 40, 5_000, long.len() - 1];
    let mut peers = Vec::new();
    for (path, &cut) in (0..).zip(&cuts) {
        let mut peer = connect(17_112);
        peer.write_all(&preamble(17_112, path, 17_113)).unwrap();
        peer.write_all(&long[..cut]).unwrap();
        peers.push(peer);
    }
    assert_serves(&mut end, 17_114);
    assert_eq!(end.arrivals.placed.len(), 0);
    for (peer, &cut) in peers.iter_mut().zip(&cuts) {
        peer.write_all(&long[cut..]).unwrap();
    }
    drive(&mut [&mut end], "all of it", |ends| {
        let arrivals = &ends[0].arrivals;
        arrivals.packets.len() + arrivals.placed.len() == cuts.len() + 1
    });
    for (_, packet) in &end.arrivals.packets {
        assert!(packet.len() == 74 || frame(packet) == long);
    }
    let payload = &long[68..];
    assert!(end.arrivals.placed.is_empty() || end.arrivals.memory == *payload);
}

#[test]
fn who_leaves_a_frame_unfinished_is_closed_after_a_while_and_who_goes_on_is_not() {
    let mut end = End::open(HERE[0], 17_132);
    let (short, long) = (frame(&packet(1, 0, 10)), frame(&packet(2, 0, PAYLOAD)));
    let mut peers = [0, 1].map(|path| {
        let mut peer = connect(17_132);
        peer.write_all(&preamble(17_132, path, 17_133)).unwrap();
        peer.write_all(&short).unwrap();
        peer
    });
    let arrived =
        |count: u64| move |ends: &[&mut End]| ends[0].link.counters().received_packets == count;
    drive(&mut [&mut end], "the first frames", arrived(2));
    for peer in &mut peers {
        // They leave in one segment, and are read together.
        peer.write_all(&[&short[..], &long[..5_000]].concat())
            .unwrap();
    }
    drive(&mut [&mut end], "the second frames", arrived(4));
    // A link looks for what has waited for too long at the times that it names: from here on 20 s are left.
    end.now = end.link.flush_at().expect("it waits for the rest");
    end.turn();
    let [stops, goes_on] = &mut peers;
    goes_on.write_all(&long[5_000..]).unwrap();
    goes_on.write_all(&long[..5_000]).unwrap();
    drive(&mut [&mut end], "the third frame", arrived(5));
    end.now = end.now + Nanos::from_millis(19_999);
    end.turn();
    assert!(!is_closed(stops));
    end.now = end.now + Nanos::from_millis(1);
    drive(&mut [&mut end], "its end", |_| is_closed(stops));
    assert!(!is_closed(goes_on));
    goes_on.write_all(&long[5_000..]).unwrap();
    drive(&mut [&mut end], "the fourth frame", arrived(6));
    assert_eq!(end.link.counters().bad_frames, 1);
}

#[test]
fn a_path_that_the_link_does_not_have_is_refused() {
    let mut end = End::open(HERE[0], 17_136);
    let [last, beyond] = [PATHS - 1, PATHS].map(|path| {
        let mut peer = connect(17_136);
        peer.write_all(&preamble(17_136, path, 17_137)).unwrap();
        peer.write_all(&frame(&packet(1, 0, 10))).unwrap();
        peer
    });
    drive(&mut [&mut end], "its end, and a packet", |ends| {
        is_closed(&beyond) && ends[0].arrivals.packets.len() == 1
    });
    assert!(!is_closed(&last));
    assert_eq!(end.link.counters().strangers, 1);
}

#[test]
fn bytes_of_any_kind_from_a_peer_panic_nothing() {
    let mut end = End::open(HERE[0], 17_118);
    let mut state = 1u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for round in 0..200 {
        let mut peer = connect(17_118);
        peer.write_all(&preamble(17_118, 0, 17_119)).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..draw() % 6 {
            let length = 16 + draw() % 40_000;
            let said = match draw() % 4 {
                0 => draw(),
                _ => length,
            };
            bytes.extend(said.to_le_bytes());
            bytes.extend((0..length).map(|_| (draw() & 0x31) as u8));
        }
        bytes.truncate(bytes.len() - (draw() as usize % 100).min(bytes.len()));
        // The other end may have closed it already.
        let _ = peer.write_all(&bytes);
        for _ in 0..20 {
            end.turn();
        }
        drop(peer);
        end.turn();
        assert!(end.link.counters().strangers == 0, "{round}");
    }
    assert_serves(&mut end, 17_119);
}
