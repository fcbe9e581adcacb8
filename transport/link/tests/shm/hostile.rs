//! Strangers, memory that could do harm, and peers that write what no peer would: they are counted, and disturb nobody.

use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, SealFlags};
use weft_core::units::Nanos;
use weft_link::{Destination, Link, Sent};

use crate::pair::{
    CONTROL_CONSUMED, DATA_RING, End, MEMORY_BYTES, PATHS, PAYLOAD, connect, connected, drive,
    is_closed, memfd, memfd_of, packet, poke, poke_packet, preamble, say,
};

/// A packet from another end still arrives.
fn assert_serves(end: &mut End, from: u16) {
    let before = end.arrivals.packets.len();
    let mut other = End::open(from);
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
    let mut end = End::open(18_100);
    let tcp = [b"WEFT\x01", &preamble(18_100, 0, 18_101)[5..]].concat();
    let said = [
        preamble(18_099, 0, 18_101),
        preamble(18_100, PATHS, 18_101),
        tcp,
        b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything there is\r\n\r\n".to_vec(),
        vec![0; 48],
        vec![0xff; 5_000],
        preamble(18_100, 0, 18_101)[..47].to_vec(),
    ];
    let mut strangers = 0;
    for said in said {
        let (stranger, file) = (connect(18_100), memfd());
        say(&stranger, &said, &[file.as_fd()]);
        drive(&mut [&mut end], "its end", |_| is_closed(&stranger));
        strangers += 1;
        assert_eq!(end.link.counters().strangers, strangers);
    }
    // One that hands over no memory, and one that ends before it has said anything.
    let stranger = connect(18_100);
    say(&stranger, &preamble(18_100, 0, 18_101), &[]);
    drop(connect(18_100));
    drive(&mut [&mut end], "their ends", |ends| {
        is_closed(&stranger) && ends[0].link.counters().strangers == strangers + 2
    });
    assert_eq!(end.arrivals.packets.len(), 0);
    assert_serves(&mut end, 18_101);
}

#[test]
fn memory_that_could_end_the_process_is_refused() {
    let mut end = End::open(18_104);
    let sealing = MemfdFlags::ALLOW_SEALING;
    let shrink = SealFlags::SHRINK;
    let path = std::env::temp_dir().join(format!("weft-shm-test-{}", std::process::id()));
    let on_disk = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    on_disk.set_len(MEMORY_BYTES).unwrap();
    let huge = sealing | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let (read, _write) = std::io::pipe().unwrap();
    let files = [
        memfd_of(sealing, MEMORY_BYTES, SealFlags::empty()),
        memfd_of(sealing, MEMORY_BYTES, SealFlags::GROW),
        memfd_of(MemfdFlags::empty(), MEMORY_BYTES, SealFlags::empty()),
        memfd_of(sealing, MEMORY_BYTES - 1, shrink),
        memfd_of(sealing, 0, shrink),
        memfd_of(sealing, MEMORY_BYTES, shrink | SealFlags::WRITE),
        // Pages that may run out.
        memfd_of(huge, 4 << 20, shrink),
        on_disk.into(),
        read.into(),
    ];
    for (at, file) in (1..).zip(files) {
        let stranger = connect(18_104);
        say(&stranger, &preamble(18_104, 0, 18_105), &[file.as_fd()]);
        drive(&mut [&mut end], "its end", |_| is_closed(&stranger));
        assert_eq!(end.link.counters().strangers, at);
    }
    assert_serves(&mut end, 18_105);
}

#[test]
fn files_beyond_the_one_that_is_asked_for_are_closed() {
    let mut end = End::open(18_108);
    let (peer, file) = (connect(18_108), memfd());
    let (mut read, write) = std::io::pipe().unwrap();
    let said = preamble(18_108, 0, 18_109);
    say(&peer, &said, &[file.as_fd(), write.as_fd()]);
    drop(write);
    poke_packet(&file, DATA_RING, &packet(1, 0, 10));
    drive(&mut [&mut end], "its packet", |ends| {
        ends[0].arrivals.packets.len() == 1
    });
    // Nobody has the other end of the pipe.
    assert_eq!(std::io::Read::read(&mut read, &mut [0]).unwrap(), 0);
}

#[test]
fn a_length_that_no_packet_has_ends_its_connection_only() {
    let mut end = End::open(18_112);
    let lengths = [1, 15, PAYLOAD as u64 + 65, 2 << 20, 1 << 32, u64::MAX];
    for (at, length) in (1..).zip(lengths) {
        let (peer, file) = connected(18_112, 18_113);
        let good = packet(1, 0, 10);
        let next = poke_packet(&file, DATA_RING, &good);
        poke(&file, next, &length.to_le_bytes());
        drive(&mut [&mut end], "its end", |_| is_closed(&peer));
        assert_eq!(end.link.counters().bad_frames, at);
        assert_eq!(end.arrivals.packets.len() as u64, at);
        assert!(end.arrivals.packets[at as usize - 1].1 == good);
    }
    assert_serves(&mut end, 18_113);
}

#[test]
fn a_peer_that_says_to_have_consumed_what_was_never_sent_is_closed() {
    let mut end = End::open(18_116);
    for (at, count) in (1..).zip([1 << 20, 1 << 40, u64::MAX]) {
        let (peer, file) = connected(18_116, 18_117);
        poke_packet(&file, DATA_RING, &packet(1, 0, 10));
        drive(&mut [&mut end], "its packet", |ends| {
            ends[0].arrivals.packets.len() as u64 == at
        });
        let (source, _) = end.arrivals.packets[at as usize - 1];
        poke(&file, CONTROL_CONSUMED, &u64::to_le_bytes(count));
        // The count is read when room is short: nobody takes these.
        for _ in 0..100 {
            end.link
                .send_control(Destination::Source(source), &[7; 1_500]);
        }
        drive(&mut [&mut end], "its end", |_| is_closed(&peer));
        assert_eq!(end.link.counters().bad_frames, at);
    }
    assert_serves(&mut end, 18_117);
}

#[test]
fn who_says_nothing_has_three_seconds_and_many_who_do_make_room_for_one_who_speaks() {
    let mut end = End::open(18_120);
    let one = connect(18_120);
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
    let silent: Vec<_> = (0..100).map(|_| connect(18_120)).collect();
    drive(&mut [&mut end], "the oldest ones' ends", |ends| {
        ends[0].link.counters().strangers >= 37
    });
    assert!(is_closed(&silent[0]) && !is_closed(&silent[99]));
    assert_serves(&mut end, 18_121);
}

#[test]
fn a_flood_of_wake_ups_disturbs_nobody_and_hides_no_end() {
    let mut end = End::open(18_124);
    let (peer, file) = connected(18_124, 18_125);
    end.turn();
    for _ in 0..100 {
        // Until the socket is full.
        while std::io::Write::write(&mut &peer, &[1; 4_096]).is_ok() {}
        end.turn();
    }
    poke_packet(&file, DATA_RING, &packet(1, 0, 10));
    drop(peer);
    drive(&mut [&mut end], "its packet", |ends| {
        ends[0].arrivals.packets.len() == 1
    });
    // It has gone: an answer has no way.
    let source = end.arrivals.packets[0].0;
    end.turn();
    end.link.send_control(Destination::Source(source), &[1; 16]);
    assert_eq!(end.link.counters().unreachable, 1);
    assert_serves(&mut end, 18_126);
}

#[test]
fn memory_of_any_content_from_a_peer_panics_nothing() {
    let mut end = End::open(18_128);
    let mut state = 1u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..200 {
        let (peer, file) = connected(18_128, 18_129);
        let mut at = DATA_RING;
        for _ in 0..draw() % 6 {
            let length = 16 + draw() as usize % 33_000;
            let bytes: Vec<u8> = (0..length).map(|_| (draw() & 0x31) as u8).collect();
            at = poke_packet(&file, at, &bytes);
        }
        for _ in 0..draw() % 4 {
            let word = u64::from(draw() % 100_000) >> (draw() % 20);
            poke(&file, u64::from(draw() % 64) * 8, &word.to_le_bytes());
            poke(&file, at, &word.to_le_bytes());
        }
        for _ in 0..3 {
            end.turn();
            if let Some(&(source, _)) = end.arrivals.packets.last() {
                for _ in 0..10 {
                    end.link
                        .send_control(Destination::Source(source), &[7; 9_000]);
                }
            }
        }
        drop(peer);
        end.turn();
        assert_eq!(end.link.counters().strangers, 0);
    }
    assert_serves(&mut end, 18_129);
}
