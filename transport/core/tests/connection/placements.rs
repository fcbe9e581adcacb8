//! Payloads that another thread copies, or a link writes into place: acknowledged when that has ended, and placed
//! once.

use weft_core::congestion::CongestionKind;
use weft_core::connection::{Arrival, Connection, Event, Run};
use weft_core::drops::DropReason;
use weft_core::memory::{DomainId, Place, Ticket};
use weft_core::path::{PathSet, PathSetConfig};
use weft_core::received::{Offer, Received};
use weft_core::units::{PathId, Source};
use weft_core::wire::{
    DataHeader, Envelope, HEADER_BYTES, Integrity, KeyPhase, OVERHEAD_BYTES, TRAILER_BYTES,
    payload_crc,
};
use weft_crypto::AES_128_GCM;

use crate::pair::{End, KEY, Pair, Side, id, micros};

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
        reliable: false,
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
    let copies = std::mem::take(&mut memory.copies);
    let ticket = copies[0].0;
    for (ticket, ..) in copies {
        assert!(connection.placed(now, ticket, Ok(()), memory));
    }
    assert_eq!(connection.pending_placements(), 0);
    assert_eq!(connection.stats().packets_placed, 0);
    assert_eq!(connection.poll_event(), None);
    assert!(!connection.placed(now, ticket, Ok(()), memory));
}

#[test]
fn closing_is_confirmed_when_no_copy_is_under_way_any_more() {
    for fails_first in [false, true] {
        let (mut pair, _) = copying();
        pair.expect_drop(DropReason::UnknownConnection);
        let now = pair.now;
        let end = &mut pair.ends[1];
        if fails_first {
            let token = end.host.endpoint.connection(id(Side::B));
            let token = token.expect("the connection is open").config().reset_tokens[0];
            let reset = weft_core::wire::Reset {
                path: PathId(0),
                connection: id(Side::A),
                token,
            };
            let received = Received::Packets {
                from: Source([0; Source::BYTES]),
                ce: false,
                bytes: &mut reset.emit(),
                segment: weft_core::wire::Reset::BYTES,
            };
            let memory = &mut end.memory;
            end.host.endpoint.handle(now, received, memory);
            let failed = end.host.endpoint.poll_event();
            assert!(matches!(failed, Some((_, Event::Failed(_)))));
        }
        let endpoint = &mut end.host.endpoint;
        endpoint.close(id(Side::B));
        assert_eq!(
            (endpoint.poll_event(), endpoint.pending_placements()),
            (None, 4)
        );
        let copies = std::mem::take(&mut end.memory.copies);
        for (left, (ticket, ..)) in copies.into_iter().enumerate().rev() {
            assert_eq!(endpoint.poll_event(), None, "{left} more");
            assert!(endpoint.placed(now, ticket, Ok(()), &mut end.memory));
        }
        assert_eq!(endpoint.poll_event(), Some((id(Side::B), Event::Closed)));
        assert_eq!(endpoint.poll_event(), None);
    }
}

#[test]
fn an_endpoint_is_saved_when_no_copy_is_under_way() {
    let (mut pair, _) = copying();
    let now = pair.now;
    let end = &mut pair.ends[1].host;
    let next = weft_core::endpoint::Endpoint::new(end.endpoint.config().clone(), now);
    let old = std::mem::replace(&mut end.endpoint, next);
    let old = old.save().expect_err("copies are under way");
    pair.ends[1].host.endpoint = old;
    pair.end_copies(Side::B as usize, Ok(()));
    pair.memory_mut(Side::B).copies_later = false;
    pair.restart(Side::B);
    pair.run();
    assert_eq!(pair.events(Side::A).len(), 1);
}

/// The headers of one chunk of four packets that has reached B's link, and the lengths of their payloads.
fn offered() -> (Pair, Vec<(DataHeader, u32)>, u64) {
    let mut pair = Pair::with(|setup| setup.settings.integrity = Integrity::Trusted);
    pair.drop_all(|packet| packet.is_data());
    let token = pair.write_to(Side::A, 3_500, 0, Some(9));
    pair.run_for(micros(15));
    let headers = pair.wire.lost.iter().map(|packet| {
        let payload = packet.bytes.len() - OVERHEAD_BYTES;
        (packet.header(), payload as u32)
    });
    let headers: Vec<_> = headers.collect();
    assert_eq!(headers.len(), 4);
    pair.heal();
    (pair, headers, token)
}

fn offer(pair: &mut Pair, header: &DataHeader, bytes: u32) -> Offer {
    let mut envelope = Envelope {
        header: [0; HEADER_BYTES],
        trailer: [0; TRAILER_BYTES],
    };
    header.emit(KeyPhase::FIRST, &mut envelope.header);
    offer_envelope(pair, &envelope, bytes)
}

fn offer_envelope(pair: &mut Pair, envelope: &Envelope, bytes: u32) -> Offer {
    let now = pair.now;
    let End { host, memory, .. } = &mut pair.ends[1];
    host.endpoint
        .offer(now, Source([0; Source::BYTES]), envelope, bytes, memory)
}

fn placed(pair: &mut Pair, header: &DataHeader, result: Result<(), DropReason>) {
    let (now, ticket) = (pair.now, Ticket::of(header));
    let End { host, memory, .. } = &mut pair.ends[1];
    let received = Received::Placed { ticket, result };
    host.endpoint.handle(now, received, memory);
}

#[test]
fn what_a_link_writes_into_place_is_acknowledged_when_it_is_there_and_offered_once() {
    let (mut pair, headers, token) = offered();
    pair.expect_drop(DropReason::Duplicate);
    for (header, bytes) in &headers {
        let place = Place {
            domain: DomainId(0),
            key: KEY,
            offset: header.offset,
            bytes: (*bytes).into(),
        };
        let ticket = Ticket::of(header);
        let offered = Offer::Place {
            ticket,
            place,
            crc: None,
        };
        assert_eq!(offer(&mut pair, header, *bytes), offered);
        let again = DataHeader {
            packet_number: header.packet_number + 100,
            ..*header
        };
        assert_eq!(
            offer(&mut pair, &again, *bytes),
            Offer::Discard,
            "it is under way"
        );
    }
    assert_eq!(pair.connection(Side::B).pending_placements(), 4);
    let source = pair.source(token);
    for (header, bytes) in headers {
        assert_eq!(pair.events(Side::B), []);
        let (from, to) = (
            header.offset as usize,
            header.offset as usize + bytes as usize,
        );
        pair.memory_mut(Side::B).bytes[from..to].copy_from_slice(&source[from..to]);
        placed(&mut pair, &header, Ok(()));
    }
    pair.run_for(micros(100));
    assert!(matches!(
        pair.events(Side::B)[..],
        [Event::Immediate { value: 9, .. }]
    ));
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.stats(Side::A).packets_resent, 0);
}

#[test]
fn a_placement_that_a_link_gives_up_is_sent_again_and_one_whose_region_was_closed_is_refused() {
    for (reason, fails) in [(DropReason::Truncated, false), (DropReason::Key, true)] {
        let (mut pair, headers, token) = offered();
        for drop in [reason, DropReason::Duplicate, DropReason::Closed] {
            pair.expect_drop(drop);
        }
        for (header, bytes) in &headers {
            assert!(matches!(
                offer(&mut pair, header, *bytes),
                Offer::Place { .. }
            ));
        }
        for (header, _) in headers {
            placed(&mut pair, &header, Err(reason));
        }
        pair.run_for(micros(20_000));
        assert_eq!(pair.failure(Side::A).is_some(), fails, "{reason:?}");
        if !fails {
            assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
            assert_eq!(pair.memory(Side::B).bytes[..3_500], pair.source(token));
        }
    }
}

#[test]
fn closing_waits_for_a_placement_of_the_link() {
    let (mut pair, headers, _) = offered();
    pair.expect_drop(DropReason::UnknownConnection);
    let (header, bytes) = headers[0];
    assert!(matches!(
        offer(&mut pair, &header, bytes),
        Offer::Place { .. }
    ));
    pair.ends[1].host.endpoint.close(id(Side::B));
    assert_eq!(pair.ends[1].host.endpoint.poll_event(), None);
    assert_eq!(offer(&mut pair, &headers[1].0, bytes), Offer::Discard);
    placed(&mut pair, &header, Ok(()));
    let event = pair.ends[1].host.endpoint.poll_event();
    assert_eq!(event, Some((id(Side::B), Event::Closed)));
}

#[test]
fn a_header_that_nothing_authenticates_is_offered_no_place() {
    let mut pair = Pair::new();
    pair.expect_drop(DropReason::Seal);
    pair.write(3_500);
    pair.run();
    let header = DataHeader {
        chunk: weft_core::units::ChunkNumber(1),
        ..pair.wire.arrived[0].header()
    };
    assert_eq!(offer(&mut pair, &header, 500), Offer::Discard);
}

#[test]
fn a_sealed_packet_is_offered_a_place_with_the_checksum_of_its_payload() {
    let mut pair = Pair::new();
    for reason in [
        DropReason::Seal,
        DropReason::Checksum,
        DropReason::Malformed,
        DropReason::KeyPhase,
        DropReason::UnknownConnection,
    ] {
        pair.expect_drop(reason);
    }
    pair.drop_all(|packet| packet.is_data());
    let token = pair.write_to(Side::A, 1_000, 0, Some(9));
    pair.run_for(micros(15));
    let packet = pair.wire.lost[0].clone();
    let envelope = packet.envelope();
    let payload = &packet.bytes[HEADER_BYTES..][..1_000];
    // Of all of it, no bit may be changed.
    for at in 1..HEADER_BYTES {
        let mut changed = envelope;
        changed.header[at] ^= 1;
        assert_eq!(offer_envelope(&mut pair, &changed, 1_000), Offer::Discard);
    }
    let mut changed = envelope;
    changed.trailer[8] ^= 1;
    assert_eq!(offer_envelope(&mut pair, &changed, 1_000), Offer::Discard);
    let expected = Some(payload_crc(payload));
    let offered = offer_envelope(&mut pair, &envelope, 1_000);
    assert!(matches!(offered, Offer::Place { crc, .. } if crc == expected));
    // What came was damaged: it is not reported, and comes again.
    placed(&mut pair, &packet.header(), Err(DropReason::Checksum));
    assert_eq!(pair.events(Side::B), []);
    pair.heal();
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..1_000], pair.source(token));
}

#[test]
fn a_link_hands_over_whole_what_is_encrypted_or_has_to_wait_for_its_turn() {
    let mut encrypted = Pair::encrypted();
    encrypted.drop_all(|packet| packet.is_data());
    encrypted.write(1_000);
    encrypted.run_for(micros(15));
    let envelope = encrypted.wire.lost[0].envelope();
    assert_eq!(
        offer_envelope(&mut encrypted, &envelope, 1_000),
        Offer::Whole
    );
    let mut in_order = Pair::with(|setup| setup.in_order = true);
    in_order.drop_all(|packet| packet.is_data());
    in_order.write(1_000);
    in_order.write(1_000);
    in_order.run_for(micros(15));
    let envelopes = [0, 1].map(|at| in_order.wire.lost[at].envelope());
    let second = offer_envelope(&mut in_order, &envelopes[1], 1_000);
    assert_eq!(second, Offer::Whole);
    let first = offer_envelope(&mut in_order, &envelopes[0], 1_000);
    assert!(matches!(first, Offer::Place { .. }));
}
