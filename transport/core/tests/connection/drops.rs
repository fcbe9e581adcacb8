//! What an end refuses, and that every reason for it occurs.

use weft_core::connection::{Connection, Event, Failure};
use weft_core::drops::DropReason;
use weft_core::path::PathState;
use weft_core::units::{ChunkNumber, Key, Nanos, PathId, Time};
use weft_core::wire::{
    Ack, DataHeader, Echo, Flags, HEADER_BYTES, Kind, Refusal, Refused, Reset, VERSION, field,
};
use weft_crypto::AES_128_GCM;

use crate::pair::{KEY, Pair, REGION_BYTES, Side, id, micros};

/// A packet that B takes: chunk 0 of one packet, no message before it.
pub(crate) fn header() -> DataHeader {
    DataHeader {
        opcode: weft_core::wire::Opcode::Write,
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
        DropReason::Tag => {
            *pair = Pair::encrypted();
            pair.expect_drop(reason);
            let mut forged = pair.sealed_data(header(), b"payload");
            forged[HEADER_BYTES] ^= 1;
            pair.inject(Side::B, &forged)
        }
        DropReason::KeyPhase => {
            let mut other = good;
            other[field::prefix::INDEX_PHASE.start] |= 0x40;
            pair.inject(Side::B, &other)
        }
        DropReason::PlacementsFull => {
            pair.memory_mut(Side::B).copies_later = true;
            for packet in 0..256 {
                let next = DataHeader {
                    chunk: ChunkNumber(packet / 32),
                    packet: (packet % 32) as u8,
                    packets: 32,
                    packet_number: 1 + u64::from(packet),
                    ..header()
                };
                let next = pair.sealed_data(next, b"x");
                assert_eq!(pair.inject(Side::B, &next), Ok(()));
            }
            let chunk = ChunkNumber(8);
            let one_more = pair.sealed_data(DataHeader { chunk, ..header() }, b"x");
            pair.inject(Side::B, &one_more)
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
            pair.memory_mut(Side::B).armed = false;
            pair.inject(Side::B, &good)
        }
        DropReason::Closed => {
            let token = pair.connection(Side::B).config().reset_tokens[0];
            assert_eq!(pair.inject(Side::B, &reset(Side::A, token)), Ok(()));
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
        let drops = pair.drops(Side::A).chain(pair.drops(Side::B));
        let counted: u64 = drops.map(|(_, count)| count).sum();
        assert_eq!(counted, 1, "{}", reason.reason());
        if reason != DropReason::Duplicate {
            assert!(
                pair.memory(Side::B).bytes.iter().all(|&byte| byte == 0),
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
    pair.memory_mut(Side::B).bytes.fill(0xee);
    for packet in pair.wire.arrived.clone().iter().filter(|p| p.is_data()) {
        assert_eq!(
            pair.inject(Side::B, &packet.bytes),
            Err(DropReason::Duplicate)
        );
    }
    assert!(pair.memory(Side::B).bytes.iter().all(|&byte| byte == 0xee));
    pair.run();
}

#[test]
fn a_replayed_acknowledgement_is_dropped() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.write(4_000);
    pair.run();
    let acks: Vec<_> = pair
        .wire
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
    assert_eq!(pair.connection(Side::A).outstanding(), 1);
    assert!(!pair.connection(Side::A).is_idle());
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.connection(Side::A).outstanding(), 0);
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
        largest: 0,
        packets: 1,
        sent_at: Time::from_nanos(100_000).to_wire(),
        delay: 0,
        number: 0,
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
    assert_eq!((pair.path(2), pair.paths(Side::A).srtt()), (before, None));
}

/// The numbers that A has sent data under, and the first that it has left out.
fn left_out(pair: &Pair) -> u64 {
    let packets = pair.wire.arrived.iter().filter(|p| p.is_data());
    let numbers: Vec<_> = packets.map(|p| p.header().packet_number).collect();
    let gap = numbers.windows(2).find(|two| two[1] == two[0] + 2);
    gap.expect("a number in 512 is left out")[0] + 1
}

#[test]
fn who_acknowledges_a_packet_that_was_never_sent_is_not_believed_again() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::AckOfUnsent);
    pair.expect_drop(DropReason::Closed);
    pair.write(700_000);
    pair.run();
    let number = left_out(&pair) as u32;
    pair.write(1_000);
    pair.run_for(micros(10));
    let echo = Echo {
        packets: 1,
        number,
        ..Echo::default()
    };
    let ack = Ack {
        sent_at: 0,
        cumulative: ChunkNumber(0),
        map: &[],
        partials: &[],
        echoes: &[echo],
    };
    let ack = pair.sealed_ack(&ack, 1_000);
    assert_eq!(pair.inject(Side::A, &ack), Err(DropReason::AckOfUnsent));
    pair.run();
    assert_eq!(pair.failure(Side::A), Some(Failure::AckOfUnsent));
}

#[test]
fn who_never_names_a_packet_that_it_acknowledges_is_not_believed_for_long() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::AckOfUnsent);
    pair.expect_drop(DropReason::Closed);
    pair.drop_all(|p| p.is_data());
    let mut acked = 0;
    while pair.failure(Side::A).is_none() && acked < 1_000 {
        pair.write(1_000);
        pair.run_for(micros(10));
        acked += 1;
        let ack = Ack {
            sent_at: 0,
            cumulative: ChunkNumber(acked),
            map: &[],
            partials: &[],
            echoes: &[],
        };
        let ack = pair.sealed_ack(&ack, acked.into());
        let _ = pair.inject(Side::A, &ack);
    }
    assert_eq!(pair.failure(Side::A), Some(Failure::AckOfUnsent));
    assert_eq!(acked, 513);
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
    assert!(pair.memory(Side::B).bytes.iter().all(|&byte| byte == 0));
    pair.expect_drop(DropReason::KeyPhase);
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
    assert_eq!(pair.memory(Side::B).bytes[..20_000], *pair.source(token));
    assert_eq!(pair.connection(Side::A).stats().packets_resent, 1);
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
    let result = pair.inject_run(Side::B, &run, HEADER_BYTES + 4 + 16, false);
    assert_eq!(result, Err(DropReason::Checksum));
    assert_eq!(&pair.memory(Side::B).bytes[..10], b"abcd\0\0\0\0ij");
}

/// A Reset in the name of `from`, which claims not to know its end.
fn reset(from: Side, token: u64) -> Vec<u8> {
    let (path, connection) = (PathId(0), id(from));
    Reset {
        path,
        connection,
        token,
    }
    .emit()
    .to_vec()
}

#[test]
fn a_reset_counts_only_with_the_peers_token() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::UnknownConnection);
    pair.write(1_000);
    let token = pair.connection(Side::A).config().reset_tokens[0];
    assert_eq!(
        pair.inject(Side::A, &reset(Side::B, token ^ 1)),
        Err(DropReason::UnknownConnection)
    );
    assert_eq!(pair.events(Side::A), []);
    assert_eq!(pair.inject(Side::A, &reset(Side::B, token)), Ok(()));
    assert_eq!(
        pair.events(Side::A),
        [Event::Failed(Failure::PeerRestarted)]
    );
}

#[test]
fn after_the_first_failure_there_is_no_event() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Bounds);
    pair.expect_drop(DropReason::UnknownConnection);
    let token = pair.connection(Side::A).config().reset_tokens[0];
    pair.write_to(Side::A, 1_000, REGION_BYTES as u64, None);
    pair.run();
    assert_eq!(
        pair.inject(Side::A, &reset(Side::B, token)),
        Err(DropReason::UnknownConnection)
    );
    assert_eq!(
        pair.events(Side::A),
        [Event::Failed(Failure::BoundsRefused)]
    );
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
    assert_eq!(pair.stats(Side::A).timeouts, 0);
    assert!(!pair.trace().contains("probe"), "no path is blamed");
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
    assert_eq!(pair.failure(Side::A), None);
    pair.expect_drop(DropReason::AckOfUnsent);
    let unsent = pair.sealed_refusal(refuse(1), 101);
    assert_eq!(pair.inject(Side::A, &unsent), Err(DropReason::AckOfUnsent));
    assert_eq!(pair.failure(Side::A), None);
}

#[test]
fn what_the_peer_is_not_ready_for_waits_and_no_path_is_blamed() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.memory_mut(Side::B).armed = false;
    let token = pair.write(40_000);
    pair.run_for(Nanos::from_millis(300));
    assert_eq!(pair.events(Side::A), []);
    let stats = *pair.connection(Side::A).stats();
    assert_eq!(stats.timeouts, 0);
    // After 1, 2, 4 … 64 ms, then every 64 ms, one of them asks.
    assert_eq!((stats.chunks_sent, stats.chunks_resent), (19, 9));
    for path in 0..4 {
        let report = pair.path(path);
        assert_eq!((report.state, report.lost_chunks), (PathState::Live, 0));
    }
    pair.memory_mut(Side::B).armed = true;
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..40_000], *pair.source(token));
}

#[test]
fn a_region_that_is_never_armed_is_named_by_the_failure() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.memory_mut(Side::B).armed = false;
    pair.write(4_000);
    pair.run_for(Nanos::from_millis(100));
    // What waits is saved with the rest.
    pair.restart(Side::A);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::NotArmed)]);
}

#[test]
fn a_connection_that_waits_for_its_receiver_fails_only_without_answers() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::NotArmed);
    pair.set_waits_for_receiver(Side::A);
    let stall = pair.connection(Side::A).config().stall_timeout;
    pair.memory_mut(Side::B).armed = false;
    let token = pair.write(4_000);
    pair.run_for(stall.times(3));
    // It is saved with the rest.
    pair.restart(Side::A);
    // An ask that is lost changes nothing.
    for _ in 0..4 {
        pair.drop_next(|packet| packet.is_data());
        pair.run_for(stall);
    }
    assert_eq!(pair.events(Side::A), []);
    pair.memory_mut(Side::B).armed = true;
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);

    pair.memory_mut(Side::B).armed = false;
    pair.write(4_000);
    pair.run_for(stall.times(3));
    pair.drop_all(|_| true);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Failed(Failure::Stalled)]);
}

#[test]
fn after_close_nothing_is_placed_and_the_peer_is_told() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::UnknownConnection);
    pair.write(100_000);
    pair.run_for(Nanos::from_micros(20));
    pair.ends[1].host.endpoint.close(id(Side::B));
    pair.run();
    assert!(pair.memory(Side::B).bytes.iter().all(|&byte| byte == 0));
    assert_eq!(
        pair.events(Side::A),
        [Event::Failed(Failure::PeerRestarted)]
    );
}

#[test]
fn a_closed_connection_stays_closed_when_it_is_restored() {
    let config = Pair::new().connection(Side::A).config().clone();
    let mut connection = Connection::new(config, &AES_128_GCM, Time::ZERO);
    connection.close();
    let restored = Connection::restore(&connection.save(), &AES_128_GCM, Time::ZERO);
    let failure = restored.map(|connection| connection.failure());
    assert_eq!(failure, Ok(Some(Failure::Closed)));
}

#[test]
fn an_empty_datagram_is_dropped_and_counted() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Truncated);
    assert_eq!(pair.inject(Side::B, &[]), Err(DropReason::Truncated));
}
