//! Rings, as one thread uses both ends and as the other end misuses them. Not in `ring`, which the model compiles with
//! loom's primitives.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::ring::{Consumer, Counts, Full, Memory, Producer, RingError, SLOT_WORDS, Slot};
use crate::sync::{AtomicU64, Ordering};

fn words(slots: usize) -> Vec<AtomicU64> {
    (0..slots * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn only_a_power_of_two_of_whole_slots_is_a_ring() {
    let counts = Counts::new();
    for (words_given, fits) in [(0, false), (8, true), (24, false), (31, false), (32, true)] {
        let words: Vec<AtomicU64> = (0..words_given).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(Memory::new(&counts, &words).is_ok(), fits, "{words_given}");
    }
}

proptest! {
    /// Entries of one to five slots, pushed and taken in turns, also where the counts wrap around.
    #[test]
    fn entries_come_out_as_they_went_in(
        begin in prop::sample::select(vec![0, u32::MAX - 3]),
        turns in prop::collection::vec((1..=5usize, any::<bool>()), 1..80),
    ) {
        let (counts, words) = (Counts::new(), words(8));
        counts.filled.0.store(begin, Ordering::Relaxed);
        counts.emptied.0.store(begin, Ordering::Relaxed);
        let memory = Memory::new(&counts, &words).unwrap();
        let mut producer = Producer::new(memory, begin);
        let mut consumer = Consumer::new(memory, begin);
        let mut inside: VecDeque<Vec<Slot>> = VecDeque::new();
        let mut number = 0;
        for (slots, pushes) in turns {
            if pushes {
                number += 1;
                let entry = vec![[number; SLOT_WORDS]; slots];
                let used: usize = inside.iter().map(Vec::len).sum();
                match producer.push(&entry).unwrap() {
                    Ok(()) => inside.push_back(entry),
                    Err(Full) => prop_assert!(used + slots > 8),
                }
            } else if let Some(expected) = inside.pop_front() {
                let first = consumer.first().unwrap().unwrap();
                let mut found = Vec::new();
                consumer.rest(expected.len() as u32, &mut found).unwrap();
                found.insert(0, first);
                prop_assert_eq!(&found, &expected);
                consumer.release(expected.len() as u32);
            } else {
                prop_assert_eq!(consumer.first(), Ok(None));
            }
        }
    }

    /// The other end writes what it likes.
    #[test]
    fn wrong_counts_are_refused_and_never_read_past_the_ring(filled: u32, emptied: u32, entry: u32) {
        let (counts, words) = (Counts::new(), words(8));
        let memory = Memory::new(&counts, &words).unwrap();
        counts.filled.0.store(filled, Ordering::Relaxed);
        let mut consumer = Consumer::new(memory, 0);
        match consumer.first() {
            Ok(first) => {
                prop_assert!(filled <= 8);
                prop_assert_eq!(first.is_some(), filled > 0);
                let read = consumer.rest(entry, &mut Vec::new());
                prop_assert_eq!(read.is_ok(), (1..=filled).contains(&entry));
                consumer.release(entry);
                prop_assert!(consumer.emptied() <= filled);
            }
            Err(error) => prop_assert_eq!(error, RingError::Count { count: filled, slots: 8 }),
        }
        counts.emptied.0.store(emptied, Ordering::Relaxed);
        let mut producer = Producer::new(memory, 8);
        let pushed = producer.push(&[[1; SLOT_WORDS]]);
        prop_assert_eq!(pushed.is_err(), 8u32.wrapping_sub(emptied) > 8);
    }
}
