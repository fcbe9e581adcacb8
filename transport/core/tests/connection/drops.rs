//! What an end refuses, and that every reason for it occurs.

use weft_core::connection::{Connection, Event, Failure};
use weft_core::drops::DropReason;
use weft_core::path::PathState;
use weft_core::units::{ChunkNumber, Key, Nanos, PathId, Time};
use weft_core::wire::{
    Ack, DataHeader, Echo, Flags, HEADER_BYTES, Kind, Refusal, Refused, VERSION,
};

use crate::pair::{KEY, Pair, REGION_BYTES, Side, id, micros};

/// A packet that B takes: chunk 0 of one packet, no message before it.
fn header() -> DataHeader {
    DataHeader {
        path: PathId(0),
        packet: 0,
        packets: 1,
        connection: id(Side::B),
        packet_number: 0,
        sent_at: 0,
        chunk: ChunkNumber(0),
        chunk_index: 0,
        flags: Flags::LAST,
        immediate: 0,
        key: KEY,
        offset: 0,
    }
}

/// Has B (or A, for what only a sender can refuse) refuse something for this reason.
fn provoke(pair: &mut Pair, reason: DropReason) -> Result<(), DropReason> {
    let good = pair.sealed_data(header(), b"payload");
    match reason {
        DropReason::Truncated => pair.inject(Side::B, &good[..HEADER_BYTES]),
        DropReason::Version => {
            let mut other = good;
            other[0] = other[0] & 0xf0 | (VERSION + 1);
            pair.inject(Side::B, &other)
        }
        DropReason::Kind => {
            let mut reserved = good;
            reserved[0] |= 0xf0;
            pair.inject(Side::B, &reserved)
        }
        DropReason::Malformed => {
            let none = pair.sealed_data(
                DataHeader {
                    packets: 0,
                    ..header()
                },
                b"",
            );
            pair.inject(Side::B, &none)
        }
        DropReason::UnknownConnection => {
            let other = pair.sealed_data(
                DataHeader {
                    connection: id(Side::A),
                    ..header()
                },
                b"",
            );
            pair.inject(Side::B, &other)
        }
        DropReason::Seal => {
            let mut forged = good;
            forged[40] ^= 1;
            pair.inject(Side::B, &forged)
        }
        DropReason::Checksum => {
            let mut damaged = good;
            damaged[HEADER_BYTES] ^= 1;
            pair.inject(Side::B, &damaged)
        }
        DropReason::Duplicate => {
            assert_eq!(pair.inject(Side::B, &good), Ok(()));
            pair.inject(Side::B, &good)
        }
        DropReason::BeyondWindow => {
            let far = pair.sealed_data(
                DataHeader {
                    chunk: ChunkNumber(64),
                    ..header()
                },
                b"",
            );
            pair.inject(Side::B, &far)
        }
        DropReason::Key => {
            let other = pair.sealed_data(
                DataHeader {
                    key: Key(1),
                    ..header()
                },
                b"x",
            );
            pair.inject(Side::B, &other)
        }
        DropReason::Bounds => {
            let offset = REGION_BYTES as u64 - 1;
            let over = pair.sealed_data(DataHeader { offset, ..header() }, b"xy");
            pair.inject(Side::B, &over)
        }
        DropReason::NotArmed => {
            pair.b.memory.armed = false;
            pair.inject(Side::B, &good)
        }
        DropReason::Closed => {
            pair.b.connection.close();
            pair.inject(Side::B, &good)
        }
        DropReason::AckOfUnsent => {
            let cumulative = ChunkNumber(1);
            let ack = Ack {
                cumulative,
                sent_at: 0,
                map: &[],
                partials: &[],
                echoes: &[],
            };
            let ack = pair.sealed_ack(&ack, 0);
            pair.inject(Side::A, &ack)
        }
    }
}

#[test]
fn every_drop_reason_occurs_is_counted_and_places_nothing() {
    for &reason in DropReason::ALL {
        let mut pair = Pair::new();
        pair.expect_drop(reason);
        assert_eq!(provoke(&mut pair, reason), Err(reason));
        let counted = pair.a.connection.drops().get(reason) + pair.b.connection.drops().get(reason);
        assert_eq!(counted, 1, "{}", reason.reason());
        if reason != DropReason::Duplicate {
            assert!(
                pair.b.memory.bytes.iter().all(|&byte| byte == 0),
                "{}",
                reason.reason()
            );
        }
    }
}

#[test]
fn a_replayed_packet_is_dropped_before_placement() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.write(4_000);
    pair.run();
    pair.b.memory.bytes.fill(0xee);
    for packet in pair.arrived.clone().iter().filter(|p| p.is_data()) {
        assert_eq!(
            pair.inject(Side::B, &packet.bytes),
            Err(DropReason::Duplicate)
        );
    }
    assert!(pair.b.memory.bytes.iter().all(|&byte| byte == 0xee));
    pair.run();
}

#[test]
fn a_replayed_acknowledgement_is_dropped() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.write(4_000);
    pair.run();
    let acks: Vec<_> = pair
        .arrived
        .iter()
        .filter(|p| p.is_ack())
        .cloned()
        .collect();
    assert!(!acks.is_empty());
    for ack in acks {
        assert_eq!(pair.inject(Side::A, &ack.bytes), Err(DropReason::Duplicate));
    }
}

#[test]
fn an_acknowledgement_that_covers_unsent_chunks_acknowledges_nothing() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::AckOfUnsent);
    let token = pair.write(4_000);
    pair.run_for(Nanos::from_micros(10));
    // Chunk 0 was sent, chunk 1 was not.
    let cumulative = ChunkNumber(0);
    let ack = Ack {
        cumulative,
        sent_at: 0,
        map: &[0b11],
        partials: &[],
        echoes: &[],
    };
    let ack = pair.sealed_ack(&ack, 100);
    assert_eq!(pair.inject(Side::A, &ack), Err(DropReason::AckOfUnsent));
    assert_eq!(pair.events(Side::A), []);
    assert_eq!(pair.a.connection.outstanding(), 1);
    assert!(!pair.a.connection.is_idle());
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.a.connection.outstanding(), 0);
}

#[test]
fn an_acknowledgement_that_is_refused_measures_nothing() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::AckOfUnsent);
    pair.run_for(micros(500));
    pair.write(1_000);
    pair.run_for(micros(10));
    let echo = Echo {
        path: PathId(2),
        ce: 1,
        packets: 1,
        sent_at: Time::from_nanos(100_000).to_wire(),
        delay: 0,
    };
    let ack = Ack {
        sent_at: 0,
        cumulative: ChunkNumber(2),
        map: &[],
        partials: &[],
        echoes: &[echo],
    };
    let ack = pair.sealed_ack(&ack, 100);
    let before = pair.path(2);
    assert_eq!(pair.inject(Side::A, &ack), Err(DropReason::AckOfUnsent));
    assert_eq!((pair.path(2), pair.a.paths.srtt()), (before, None));
}

#[test]
fn a_forged_packet_is_dropped() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Seal);
    let sealed = pair.sealed_data(header(), b"payload");
    // Every bit of every field that the parser lets through, and of the seal.
    for bit in (1..HEADER_BYTES)
        .chain(sealed.len() - 16..sealed.len())
        .flat_map(|b| b * 8..b * 8 + 8)
    {
        let mut forged = sealed.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let result = pair.inject(Side::B, &forged);
        assert!(result.is_err(), "bit {bit} was not noticed");
    }
    assert!(pair.b.memory.bytes.iter().all(|&byte| byte == 0));
    pair.expect_drop(DropReason::Malformed);
    pair.expect_drop(DropReason::UnknownConnection);
}

#[test]
fn a_damaged_payload_is_dropped_and_sent_again() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Checksum);
    pair.flip_next(HEADER_BYTES + 100, |p| p.is_chunk(1));
    let token = pair.write(20_000);
    pair.run();
    assert_eq!(pair.b.memory.bytes[..20_000], *pair.source(token));
    assert_eq!(pair.a.connection.stats().packets_resent, 1);
}

#[test]
fn a_packet_of_another_version_is_dropped_and_named() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Version);
    let dropped = provoke(&mut pair, DropReason::Version).expect_err("it is dropped");
    assert_eq!(dropped.reason(), "Version");
    assert!(
        dropped
            .to_string()
            .contains("both ends must run the same version")
    );
}

#[test]
fn the_packets_after_a_bad_one_in_a_run_are_taken() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Checksum);
    let packets = 3;
    let packet = |packet| {
        let offset = u64::from(packet) * 4;
        DataHeader {
            packet,
            packets,
            offset,
            packet_number: packet.into(),
            ..header()
        }
    };
    let mut bad = pair.sealed_data(packet(1), b"efgh");
    bad[HEADER_BYTES] ^= 1;
    let run = [
        pair.sealed_data(packet(0), b"abcd"),
        bad,
        pair.sealed_data(packet(2), b"ij"),
    ]
    .concat();
    let now = Time::from_nanos(1);
    let end = &mut pair.b;
    let result = end.connection.handle_packets(
        now,
        &mut end.paths,
        weft_core::connection::Arrival {
            path: PathId(0),
            ce: false,
        },
        weft_core::connection::Run {
            bytes: &run,
            segment: HEADER_BYTES + 4 + 16,
        },
        &mut end.memory,
    );
    assert_eq!(result, Err(DropReason::Checksum));
    assert_eq!(&pair.b.memory.bytes[..10], b"abcd\0\0\0\0ij");
}

#[test]
fn a_reset_counts_only_with_the_peers_token() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Seal);
    pair.write(1_000);
    let token = pair.a.connection.config().reset_token;
    assert_eq!(
        pair.a.connection.handle_reset(token ^ 1),
        Err(DropReason::Seal)
    );
    assert_eq!(pair.events(Side::A), []);
    assert_eq!(pair.a.connection.handle_reset(token), Ok(()));
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Reset)]);
}

#[test]
fn a_write_out_of_bounds_fails_the_connection_and_says_why() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    let token = pair.write(4_000);
    pair.write_to(Side::A, 4_000, REGION_BYTES as u64 - 1_000, None);
    pair.start_trace();
    pair.run_for(Nanos::from_millis(1));
    assert!(
        pair.trace().contains("B refuse 1 Bounds"),
        "{}",
        pair.trace()
    );
    let expected = [
        Event::Completed { token },
        Event::Failed(Failure::BoundsRefused),
    ];
    assert_eq!(pair.events(Side::A), expected);
    assert_eq!(pair.a.connection.stats().timeouts, 0);
    assert_eq!(pair.a.paths.live(), 4);
}

#[test]
fn a_refusal_that_is_lost_comes_again() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    pair.expect_drop(DropReason::Closed);
    pair.drop_next(|p| p.kind == Kind::Refusal);
    pair.write_to(Side::A, 1_000, REGION_BYTES as u64, None);
    pair.run();
    assert_eq!(
        pair.events(Side::A),
        [Event::Failed(Failure::BoundsRefused)]
    );
}

#[test]
fn a_refusal_of_what_has_arrived_since_changes_nothing() {
    let mut pair = Pair::new();
    pair.write(4_000);
    pair.run();
    let refuse = |chunk| Refusal {
        refused: Refused::Key,
        chunk: ChunkNumber(chunk),
    };
    let late = pair.sealed_refusal(refuse(0), 100);
    assert_eq!(pair.inject(Side::A, &late), Ok(()));
    assert_eq!(pair.a.failure(), None);
    pair.expect_drop(DropReason::AckOfUnsent);
    let unsent = pair.sealed_refusal(refuse(1), 101);
    assert_eq!(pair.inject(Side::A, &unsent), Err(DropReason::AckOfUnsent));
    assert_eq!(pair.a.failure(), None);
}

#[test]
fn what_the_peer_is_not_ready_for_waits_and_no_path_is_blamed() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.b.memory.armed = false;
    let token = pair.write(40_000);
    pair.run_for(Nanos::from_millis(300));
    assert_eq!(pair.events(Side::A), []);
    let stats = *pair.a.connection.stats();
    assert_eq!(stats.timeouts, 0);
    // After 1, 2, 4 … 64 ms, then every 64 ms, one of them asks.
    assert_eq!((stats.chunks_sent, stats.chunks_resent), (10, 9));
    for path in 0..4 {
        let report = pair.path(path);
        assert_eq!((report.state, report.lost_chunks), (PathState::Live, 0));
    }
    pair.b.memory.armed = true;
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.b.memory.bytes[..40_000], *pair.source(token));
}

#[test]
fn a_region_that_is_never_armed_is_named_by_the_failure() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.b.memory.armed = false;
    pair.write(4_000);
    pair.run_for(Nanos::from_millis(100));
    // What waits is saved with the rest.
    pair.restart(Side::A);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::NotArmed)]);
}

#[test]
fn after_close_nothing_is_placed() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Closed);
    pair.write(100_000);
    pair.run_for(Nanos::from_micros(20));
    pair.b.connection.close();
    pair.run();
    assert!(pair.b.memory.bytes.iter().all(|&byte| byte == 0));
    assert_eq!(pair.b.failure(), Some(Failure::Closed));
    let saved = pair.b.connection.save();
    let restored = Connection::restore(&saved, pair.now).expect("what was saved is restored");
    assert_eq!(restored.failure(), Some(Failure::Closed));
}

#[test]
fn an_empty_datagram_is_dropped_and_counted() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Truncated);
    assert_eq!(pair.inject(Side::B, &[]), Err(DropReason::Truncated));
}
