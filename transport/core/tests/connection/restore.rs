//! Save and restore: the connection outlives its program.

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Connection, Event, RestoreError};
use weft_core::drops::DropReason;
use weft_core::endpoint::Endpoint;
use weft_core::units::{Nanos, Time};
use weft_crypto::AES_128_GCM;

use weft_core::units::ChunkNumber;
use weft_core::wire::{Ack, Flags};

use crate::pair::{KEY, Pair, Side, micros};

/// Says that the first chunk is whole.
const WHOLE: Ack<'_> = Ack {
    cumulative: ChunkNumber(1),
    sent_at: 0,
    map: &[],
    partials: &[],
    echoes: &[],
};

#[test]
fn restore_continues_where_save_left() {
    for side in [Side::A, Side::B] {
        for after in [0, 60, 110, 160, 300] {
            let mut pair = Pair::new();
            // What was in flight may be asked for again by an end that has forgotten its round trip.
            pair.expect_drop(DropReason::Duplicate);
            let token = pair.write_to(Side::A, 400_000, 0, Some(5));
            pair.run_for(micros(after));
            pair.restart(side);
            pair.run();
            assert_eq!(
                pair.events(Side::A),
                [Event::Completed { token }],
                "{side:?} at {after}"
            );
            assert_eq!(pair.events(Side::B).len(), 1, "{side:?} at {after}");
            assert_eq!(pair.memory(Side::B).bytes[..400_000], *pair.source(token));
            assert_eq!(pair.connection(Side::B).stats().packets_placed, 400);
        }
    }
}

/// postcard does not describe itself: bytes of another layout would be read wrongly, not refused.
#[test]
fn the_layout_of_a_saved_connection_is_its_versions() {
    let mut pair = Pair::with(|setup| setup.congestion = CongestionKind::ECN_RTT);
    pair.write(400_000);
    pair.run_for(micros(60));
    assert!(pair.connection(Side::A).in_flight() > 0);
    let saved = pair.save(Side::A);
    let version = u16::from_le_bytes([saved[0], saved[1]]);
    let advice = "if a field was added, removed or moved, raise SAVED_VERSION too";
    assert_eq!((version, saved.len()), (21, 1_805), "{advice}");
}

#[test]
fn a_packet_received_before_save_is_a_duplicate_after_restore() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Duplicate);
    pair.write(4_000);
    pair.run();
    pair.restart(Side::B);
    for packet in pair.wire.arrived.clone().iter().filter(|p| p.is_data()) {
        assert_eq!(
            pair.inject(Side::B, &packet.bytes),
            Err(DropReason::Duplicate)
        );
    }
    pair.run();
}

#[test]
fn events_not_taken_before_save_come_after_restore() {
    let mut pair = Pair::new();
    let token = pair.write(1_000);
    pair.run_for(micros(60));
    // The acknowledgement is on its way. One that is handed over by hand leaves its event inside.
    let ack = pair.sealed_ack(&WHOLE, 100);
    pair.inject_untold(Side::A, &ack);
    pair.restart(Side::A);
    pair.run_for(Nanos::ZERO);
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    // The same for a message that has arrived.
    pair.drop_all(|p| p.is_data());
    pair.write_to(Side::A, 1_000, 0, Some(5));
    let header = weft_core::wire::DataHeader {
        opcode: weft_core::wire::Opcode::Write,
        path: weft_core::units::PathId(0),
        packet: 0,
        packets: 1,
        connection: crate::pair::id(Side::B),
        packet_number: pair.connection(Side::A).config().first_packet.into(),
        sent_at: 0,
        chunk: ChunkNumber(1),
        chunk_index: 0,
        flags: Flags::LAST.with(Flags::IMMEDIATE),
        immediate: 5,
        key: KEY,
        offset: 0,
    };
    let data = pair.sealed_data(header, &[7; 1_000]);
    pair.inject_untold(Side::B, &data);
    pair.restart(Side::B);
    pair.run_for(Nanos::ZERO);
    let (value, key) = (5, KEY);
    assert_eq!(pair.events(Side::B), [Event::Immediate { value, key }]);
    pair.heal();
    pair.expect_drop(DropReason::Duplicate);
    pair.run();
}

#[test]
fn packet_numbers_go_on_after_restore() {
    let mut pair = Pair::new();
    pair.write(4_000);
    pair.run();
    let last = |pair: &Pair| {
        let data = pair.wire.arrived.iter().filter(|p| p.is_data());
        data.map(|p| p.header().packet_number).max()
    };
    let before = last(&pair);
    pair.restart(Side::A);
    pair.wire.arrived.clear();
    pair.write(4_000);
    pair.run();
    let numbers = pair
        .wire
        .arrived
        .iter()
        .filter(|p| p.is_data())
        .map(|p| p.header().packet_number);
    assert!(numbers.into_iter().all(|number| Some(number) > before));
}

#[test]
fn what_is_no_saved_connection_is_refused_by_name() {
    let saved = Pair::new().save(Side::A);
    let mut newer = saved.clone();
    newer[0] += 1;
    let refused = |bytes: &[u8]| Connection::restore(bytes, &AES_128_GCM, Time::ZERO).map(|_| ());
    assert_eq!(
        refused(&newer),
        Err(RestoreError::Version(u16::from(saved[0]) + 1))
    );
    assert!(matches!(refused(&[]), Err(RestoreError::Damaged(_))));
    for length in 2..saved.len() {
        assert!(
            matches!(refused(&saved[..length]), Err(RestoreError::Damaged(_))),
            "{length}"
        );
    }
}

#[test]
fn a_connection_with_another_number_of_paths_is_refused_and_harms_nothing() {
    let mut pair = Pair::new();
    pair.write(20_000);
    pair.run_for(micros(60));
    let end = &mut pair.ends[0].host;
    let mut config = end.endpoint.config().clone();
    config.settings.paths = 2;
    let now = Time::from_nanos(1_000_000);
    let mut next = Endpoint::new(config, now);
    let before = std::mem::replace(&mut end.endpoint, Endpoint::new(next.config().clone(), now));
    for saved in before.save().expect("no placement is under way") {
        let refused = next.restore(now, saved).map(|_| ());
        let wrong = RestoreError::Paths { saved: 4, here: 2 };
        assert_eq!(refused, Err(wrong));
    }
    assert_eq!(next.connections().count(), 0);
}
