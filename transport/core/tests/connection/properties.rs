//! Properties: what holds for any bytes and any faults.

use proptest::prelude::*;
use weft_core::connection::Stats;
use weft_core::drops::DropReason;
use weft_core::units::{ChunkNumber, PathId};
use weft_core::wire::{self, Ack, Echo, Partial};

use crate::pair::{Pair, Side, micros};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        // A test writes nothing into the source tree.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_refused_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 1..300), to_b: bool, sound_start: bool,
    ) {
        let mut pair = Pair::new();
        DropReason::ALL.iter().for_each(|&reason| pair.expect_drop(reason));
        let side = if to_b { Side::B } else { Side::A };
        let mut bytes = bytes;
        if sound_start && bytes.len() >= 8 {
            bytes[0] = wire::VERSION | bytes[0] & 0x10;
            bytes[4..8].copy_from_slice(&crate::pair::id(side).0.to_le_bytes());
        }
        prop_assert!(pair.inject(side, &bytes).is_err());
    }

    #[test]
    fn any_sealed_acknowledgement_is_taken_or_refused_and_the_transfer_ends(
        cumulative in 0u32..12, map in prop::collection::vec(any::<u64>(), 0..4),
        chunk in 0u32..12, of: u8, packets: u64, sent_at: u32, delay: u32, at in 0u64..200,
    ) {
        let mut pair = Pair::new();
        DropReason::ALL.iter().for_each(|&reason| pair.expect_drop(reason));
        pair.write(40_000);
        pair.run_for(micros(at));
        let partials = [Partial { chunk: ChunkNumber(chunk), of, packets }];
        let echoes = [Echo { path: PathId(7), ce: 1, packets: 1, largest: 0, sent_at, delay, number: 0 }];
        let cumulative = ChunkNumber(cumulative);
        let ack = Ack { cumulative, sent_at, map: &map, partials: &partials, echoes: &echoes };
        let ack = pair.sealed_ack(&ack, 100);
        let _ = pair.inject(Side::A, &ack);
        // A peer that lies about what it has may not hurt anyone but itself.
        pair.run();
        prop_assert_eq!(pair.connection(Side::A).outstanding(), 0);
    }

    #[test]
    fn whatever_is_lost_all_is_placed_once(
        losses in prop::collection::vec(0u32..120, 0..40), bytes in 1usize..60_000,
        before_the_wrap in 0u32..20, in_order: bool,
    ) {
        let mut pair = Pair::with(|setup| {
            setup.first_chunk = ChunkNumber(0).minus(before_the_wrap);
            setup.in_order = in_order;
        });
        pair.expect_drop(DropReason::Duplicate);
        let mut sent = 0u32;
        pair.drop_all(move |_| {
            sent += 1;
            losses.contains(&sent)
        });
        let token = pair.write_to(Side::A, bytes, 0, Some(1));
        pair.run();
        prop_assert_eq!(pair.events(Side::A).len(), 1);
        prop_assert_eq!(pair.events(Side::B).len(), 1);
        prop_assert_eq!(&pair.memory(Side::B).bytes[..bytes], &*pair.source(token));
        let placed = pair.connection(Side::B).stats().packets_placed;
        prop_assert_eq!(placed, bytes.div_ceil(1_000) as u64);
    }
}

#[test]
fn every_counter_is_added_to_its_own() {
    // Plain counters are saved as one small number each.
    let bytes: Vec<u8> = (1..=15).collect();
    let mut sum: Stats = postcard::from_bytes(&bytes).expect("fifteen counters");
    sum.add(&sum.clone());
    let doubled: Vec<u8> = bytes.iter().map(|count| 2 * count).collect();
    assert_eq!(postcard::to_allocvec(&sum).as_deref(), Ok(&doubled[..]));
}
