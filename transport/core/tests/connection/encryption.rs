//! Encrypted connections: what an attacker on the way can do, and how keys change.

use std::collections::BTreeSet;

use weft_core::connection::Event;
use weft_core::drops::DropReason;
use weft_core::units::{Nanos, PathId};
use weft_core::wire::{HEADER_BYTES, Integrity, OVERHEAD_BYTES, Probe, field};
use weft_crypto::Aes128Gcm;

use crate::drops::header;
use crate::pair::{Packet, Pair, Side, id, micros};

/// So few packets under one key that a short write uses several.
static SHORT_PHASES: Aes128Gcm = Aes128Gcm {
    key_phase_packets: 64,
};

fn with_short_phases() -> Pair {
    Pair::with(|setup| {
        setup.settings.integrity = Integrity::Aead;
        setup.cipher = &SHORT_PHASES;
    })
}

/// The two bits of a packet's key phase.
fn phase(packet: &Packet) -> u8 {
    packet.bytes[field::prefix::INDEX_PHASE.start] >> 6
}

#[test]
fn a_write_arrives_and_the_wire_shows_none_of_it() {
    for integrity in [Integrity::Sealed, Integrity::Aead] {
        let mut pair = Pair::with(|setup| setup.settings.integrity = integrity);
        let token = pair.write_to(Side::A, 20_000, 0, Some(5));
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
        assert_eq!(pair.memory(Side::B).bytes[..20_000], pair.source(token));
        let shown = pair
            .wire
            .arrived
            .iter()
            .filter(|p| p.is_data())
            .any(|packet| {
                let offset = packet.header().offset as usize;
                let payload = &packet.bytes[HEADER_BYTES..][..packet.bytes.len() - OVERHEAD_BYTES];
                payload[..] == pair.source(token)[offset..][..payload.len()]
            });
        assert_eq!(shown, integrity == Integrity::Sealed);
    }
}

#[test]
fn a_packet_with_any_bit_changed_is_dropped_and_places_nothing() {
    let mut pair = Pair::encrypted();
    let sealed = pair.sealed_data(header(), b"payload");
    for reason in [
        DropReason::Tag,
        DropReason::Version,
        DropReason::Kind,
        DropReason::Malformed,
        DropReason::KeyPhase,
        DropReason::UnknownConnection,
    ] {
        pair.expect_drop(reason);
    }
    for bit in 0..sealed.len() * 8 {
        let mut forged = sealed.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(pair.inject(Side::B, &forged).is_err(), "bit {bit}");
    }
    pair.expect_drop(DropReason::Truncated);
    for length in 1..sealed.len() {
        let cut = pair.inject(Side::B, &sealed[..length]);
        let expected = if length < OVERHEAD_BYTES {
            DropReason::Truncated
        } else {
            DropReason::Tag
        };
        assert_eq!(cut, Err(expected), "{length} B");
    }
    assert!(pair.memory(Side::B).bytes.iter().all(|&byte| byte == 0));
    assert_eq!(pair.inject(Side::B, &sealed), Ok(()));
    assert_eq!(&pair.memory(Side::B).bytes[..7], b"payload");
}

#[test]
fn a_replayed_packet_is_dropped_and_places_nothing() {
    let mut pair = Pair::encrypted();
    pair.expect_drop(DropReason::Duplicate);
    pair.write(20_000);
    pair.run();
    for side in [Side::A, Side::B] {
        pair.memory_mut(side).bytes.fill(0xee);
    }
    assert!(pair.wire.arrived.iter().any(Packet::is_ack));
    for packet in pair.wire.arrived.clone() {
        let replayed = pair.inject(packet.from.other(), &packet.bytes);
        assert_eq!(replayed, Err(DropReason::Duplicate));
    }
    for side in [Side::A, Side::B] {
        assert!(pair.memory(side).bytes.iter().all(|&byte| byte == 0xee));
    }
    pair.run();
}

#[test]
fn a_control_packet_of_anyone_else_is_dropped() {
    let mut pair = Pair::encrypted();
    pair.expect_drop(DropReason::Tag);
    let mut out = [0; Probe::BYTES];
    // Sealed with the keyed hash, and with the secret of the wrong direction.
    let other = Pair::new();
    for seal in [other.seal(Side::A), pair.seal(Side::B)] {
        Probe { sent_at: 0 }.emit(0, &mut out, &seal, PathId(0), id(Side::B), 1 << 63);
        assert_eq!(pair.inject(Side::B, &out), Err(DropReason::Tag));
    }
    Probe { sent_at: 0 }.emit(
        0,
        &mut out,
        &pair.seal(Side::A),
        PathId(0),
        id(Side::B),
        1 << 63,
    );
    assert_eq!(pair.inject(Side::B, &out), Ok(()));
}

#[test]
fn keys_change_while_data_flows_and_nothing_waits() {
    let times = [false, true].map(|short| {
        let mut pair = if short {
            with_short_phases()
        } else {
            Pair::encrypted()
        };
        let token = pair.write(2_000_000);
        pair.run();
        assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
        assert_eq!(pair.memory(Side::B).bytes[..2_000_000], pair.source(token));
        let stats = pair.stats(Side::A);
        assert_eq!((stats.timeouts, stats.packets_resent), (0, 0));
        for side in [Side::A, Side::B] {
            let packets = pair
                .wire
                .arrived
                .iter()
                .filter(|packet| packet.from == side);
            let phases: BTreeSet<u8> = packets.map(phase).collect();
            assert_eq!(phases.len(), if short { 4 } else { 1 }, "{side:?}");
        }
        pair.now
    });
    assert_eq!(times[0], times[1]);
}

#[test]
fn keys_change_whichever_end_writes() {
    for writer in [Side::A, Side::B] {
        let mut pair = with_short_phases();
        pair.write_to(writer, 2_000_000, 0, None);
        pair.run();
        for side in [Side::A, Side::B] {
            let packets = pair
                .wire
                .arrived
                .iter()
                .filter(|packet| packet.from == side);
            let phases: BTreeSet<u8> = packets.map(phase).collect();
            assert_eq!(phases.len(), 4, "{writer:?} writes, {side:?}");
        }
    }
}

#[test]
fn no_nonce_is_used_twice_over_changes_of_keys_and_programs() {
    let mut pair = with_short_phases();
    pair.expect_drop(DropReason::Duplicate);
    pair.expect_drop(DropReason::KeyPhase);
    pair.drop_next(|p| p.is_chunk(3));
    let token = pair.write(300_000);
    for side in [Side::A, Side::B, Side::A] {
        pair.run_for(micros(130));
        pair.restart(side);
    }
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    let mut used = BTreeSet::new();
    for packet in &pair.wire.arrived {
        let number: [u8; 8] = packet.bytes[field::prefix::PACKET_NUMBER]
            .try_into()
            .expect("eight bytes");
        let nonce = (packet.from, u64::from_le_bytes(number));
        assert!(used.insert(nonce), "{nonce:?} was used twice");
    }
}

#[test]
fn a_packet_of_the_previous_key_is_taken_for_a_second_and_no_longer() {
    for (late, dropped) in [(Nanos::from_millis(2), 0), (Nanos::from_secs(2), 1)] {
        let mut pair = with_short_phases();
        pair.expect_drop(DropReason::KeyPhase);
        pair.expect_drop(DropReason::Duplicate);
        // The 60th packet is of the first key, and the 100th, which is sent at once, of the second.
        pair.delay_next(late, |p| p.is_chunk(14));
        let token = pair.write(100_000);
        pair.run();
        pair.run_for(Nanos::from_secs(3));
        assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
        let drops = pair.connection(Side::B).drops();
        assert_eq!(drops.get(DropReason::KeyPhase), dropped, "{late:?}");
    }
}

#[test]
fn packets_of_a_key_that_is_over_or_never_began_are_dropped() {
    let mut pair = with_short_phases();
    pair.expect_drop(DropReason::KeyPhase);
    pair.expect_drop(DropReason::Tag);
    pair.write(2_000_000);
    pair.run();
    // Previous, current and next key are tried; after a second the previous one is gone.
    for (tried, wait) in [(3, Nanos::from_secs(2)), (2, Nanos::ZERO)] {
        let results: Vec<_> = (0..4)
            .map(|phase| {
                let mut old = pair.sealed_data(header(), b"payload");
                old[field::prefix::INDEX_PHASE.start] = phase << 6;
                pair.inject(Side::B, &old)
            })
            .collect();
        let count = |reason| {
            results
                .iter()
                .filter(|result| **result == Err(reason))
                .count()
        };
        assert_eq!(count(DropReason::Tag), tried, "{results:?}");
        assert_eq!(count(DropReason::KeyPhase), 4 - tried, "{results:?}");
        pair.run_for(wait);
    }
}

#[test]
fn keys_change_once_and_no_further_while_the_peer_is_silent() {
    let mut pair = with_short_phases();
    pair.expect_drop(DropReason::Duplicate);
    pair.drop_all(|p| p.from == Side::B);
    pair.write(250_000);
    pair.run_for(Nanos::from_millis(500));
    let phases: BTreeSet<u8> = pair.wire.arrived.iter().map(phase).collect();
    assert_eq!(phases, BTreeSet::from([0, 1]));
    pair.heal();
    pair.run();
}

#[test]
fn ends_of_which_only_one_encrypts_understand_nothing_of_each_other() {
    let (sealed, mut encrypted) = (Pair::new(), Pair::encrypted());
    encrypted.expect_drop(DropReason::Tag);
    let packet = sealed.sealed_data(header(), b"payload");
    assert_eq!(encrypted.inject(Side::B, &packet), Err(DropReason::Tag));
    let mut sealed = sealed;
    sealed.expect_drop(DropReason::Seal);
    let packet = encrypted.sealed_data(header(), b"payload");
    assert_eq!(sealed.inject(Side::B, &packet), Err(DropReason::Seal));
}

#[test]
fn a_link_that_is_trusted_carries_what_it_is_given() {
    let mut pair = Pair::with(|setup| setup.settings.integrity = Integrity::Trusted);
    let token = pair.write(20_000);
    pair.run();
    assert_eq!(pair.events(Side::A), [Event::Completed { token }]);
    assert_eq!(pair.memory(Side::B).bytes[..20_000], pair.source(token));
    let trailers = pair
        .wire
        .arrived
        .iter()
        .map(|p| &p.bytes[p.bytes.len() - 16..]);
    assert!(trailers.into_iter().all(|trailer| trailer == [0; 16]));
}
