//! Payloads that another thread copies: acknowledged when the copy has ended, and copied once.

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Arrival, Connection, Event, Run};
use weft_core::drops::DropReason;
use weft_core::memory::Ticket;
use weft_core::path::{PathSet, PathSetConfig};
use weft_core::units::PathId;
use weft_crypto::AES_128_GCM;

use crate::pair::{Pair, Side, micros};

/// One chunk of four packets has arrived at B, and their copies have begun.
fn copying() -> (Pair, u64) {
    let mut pair = Pair::new();
    pair.memory_mut(Side::B).copies_later = true;
    let token = pair.write_to(Side::A, 4_000, 0, Some(9));
    pair.run_for(micros(60));
    assert_eq!(pair.memory(Side::B).copies.len(), 4);
    assert_eq!(pair.connection(Side::B).pending_placements(), 4);
    (pair, token)
}

#[test]
fn a_packet_is_acknowledged_when_its_copy_has_ended_and_not_before() {
    let (mut pair, token) = copying();
    pair.run_for(micros(180));
    assert_eq!(pair.events(Side::A), []);
    assert_eq!(pair.events(Side::B), []);
    pair.end_copies(Side::B as usize, Ok(()));
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert!(matches!(
        pair.events(Side::B)[..],
        [Event::Immediate { value: 9, .. }]
    ));
    assert_eq!(pair.memory(Side::B).bytes[..4_000], pair.source(token));
    assert_eq!(pair.connection(Side::B).pending_placements(), 0);
    assert_eq!(pair.stats(Side::A).packets_resent, 0);
}

#[test]
fn a_packet_that_is_being_copied_is_not_copied_a_second_time() {
    let (mut pair, token) = copying();
    pair.expect_drop(DropReason::Duplicate);
    // Several retransmission timeouts.
    pair.run_for(micros(5_000));
    assert!(pair.stats(Side::A).packets_resent >= 4);
    assert_eq!(pair.memory(Side::B).copies_begun, 4);
    pair.end_copies(Side::B as usize, Ok(()));
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).copies_begun, 4);
}

#[test]
fn a_packet_whose_copy_failed_is_refused_and_sent_again() {
    let (mut pair, token) = copying();
    pair.expect_drop(DropReason::NotArmed);
    pair.end_copies(Side::B as usize, Err(DropReason::NotArmed));
    pair.memory_mut(Side::B).copies_later = false;
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..4_000], pair.source(token));
}

#[test]
fn packets_beyond_the_limit_of_copies_are_lost_and_sent_again() {
    // Twice as many packets fit into the window.
    let mut pair = Pair::with(|setup| {
        setup.settings.window_chunks = 128;
        setup.congestion = CongestionKind::Fixed {
            bytes: 128 * 4 * 1_064,
        };
    });
    pair.expect_drop(DropReason::PlacementsFull);
    pair.expect_drop(DropReason::Duplicate);
    pair.memory_mut(Side::B).copies_later = true;
    let tokens = [0, 1_000_000].map(|offset| pair.write_to(Side::A, 400_000, offset, None));
    let mut most = 0;
    while pair.stats(Side::A).bytes_acked < 800_000 {
        pair.run_for(micros(100));
        most = most.max(pair.connection(Side::B).pending_placements());
        pair.end_copies(Side::B as usize, Ok(()));
    }
    assert_eq!(most, 256);
    let drops = pair.connection(Side::B).drops();
    assert!(drops.get(DropReason::PlacementsFull) > 0);
    for (token, offset) in tokens.into_iter().zip([0, 1_000_000]) {
        assert_eq!(
            pair.memory(Side::B).bytes[offset..][..400_000],
            pair.source(token)
        );
    }
}

#[test]
fn a_closed_connection_counts_the_copies_that_may_still_land() {
    let (mut pair, _) = copying();
    let config = pair.connection(Side::B).config().clone();
    let data = pair.wire.arrived.iter().filter(|packet| packet.is_data());
    let packets: Vec<Vec<u8>> = data.map(|packet| packet.bytes.clone()).collect();
    let mut connection = Connection::new(config, &AES_128_GCM, pair.now);
    let mut paths = PathSet::new(&PathSetConfig {
        paths: 4,
        rto_min: micros(250),
        validated: true,
    });
    let now = pair.now;
    let memory = pair.memory_mut(Side::B);
    memory.copies.clear();
    for mut bytes in packets {
        let segment = bytes.len();
        let run = Run {
            bytes: &mut bytes,
            segment,
        };
        let arrival = Arrival {
            path: PathId(0),
            ce: false,
        };
        let taken = connection.handle_packets(now, &mut paths, arrival, run, memory);
        assert_eq!(taken, Ok(()));
    }
    connection.close();
    assert_eq!(connection.pending_placements(), 4);
    for (ticket, ..) in std::mem::take(&mut memory.copies) {
        assert!(connection.placed(now, ticket, Ok(())));
    }
    assert_eq!(connection.pending_placements(), 0);
    assert_eq!(connection.stats().packets_placed, 0);
    assert_eq!(connection.poll_event(), None);
    assert!(!connection.placed(now, Ticket(0), Ok(())));
}
