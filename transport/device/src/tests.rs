//! Rings, as one thread uses both ends and as the other end misuses them. Not in `ring`, which the model compiles with
//! loom's primitives.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::ring::{Consumer, Counts, Producer, RingError, RingMemory, SLOT_WORDS, Slot, Wakeup};
use crate::sync::{AtomicU64, Ordering};

fn words(slots: usize) -> Vec<AtomicU64> {
    (0..slots * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn only_a_power_of_two_of_whole_slots_is_a_ring() {
    let counts = Counts::new();
    for (words_given, fits) in [(0, false), (8, true), (24, false), (31, false), (32, true)] {
        let words: Vec<AtomicU64> = (0..words_given).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(
            RingMemory::new(&counts, &words).is_ok(),
            fits,
            "{words_given}"
        );
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
        counts.produced.0.store(begin, Ordering::Relaxed);
        counts.consumed.0.store(begin, Ordering::Relaxed);
        let memory = RingMemory::new(&counts, &words).unwrap();
        let mut producer = Producer::new(memory, begin);
        let mut consumer = Consumer::new(memory, begin);
        let mut inside: VecDeque<Vec<Slot>> = VecDeque::new();
        let mut number = 0;
        for (slots, pushes) in turns {
            if pushes {
                number += 1;
                let entry = vec![[number; SLOT_WORDS]; slots];
                let used: usize = inside.iter().map(Vec::len).sum();
                match producer.push(&entry) {
                    Ok(()) => inside.push_back(entry),
                    Err(error) => {
                        prop_assert_eq!(error, RingError::Full);
                        prop_assert!(used + slots > 8);
                    }
                }
            } else if let Some(expected) = inside.pop_front() {
                let first = consumer.peek().unwrap().unwrap();
                let mut found = Vec::new();
                consumer.read_rest(expected.len() as u32, &mut found).unwrap();
                found.insert(0, first);
                prop_assert_eq!(&found, &expected);
                consumer.consume(expected.len() as u32);
            } else {
                prop_assert_eq!(consumer.peek(), Ok(None));
            }
        }
    }

    /// The other end writes what it likes.
    #[test]
    fn wrong_counts_are_refused_and_never_read_past_the_ring(produced: u32, consumed: u32, entry: u32) {
        let (counts, words) = (Counts::new(), words(8));
        let memory = RingMemory::new(&counts, &words).unwrap();
        counts.produced.0.store(produced, Ordering::Relaxed);
        let mut consumer = Consumer::new(memory, 0);
        match consumer.peek() {
            Ok(first) => {
                prop_assert!(produced <= 8);
                prop_assert_eq!(first.is_some(), produced > 0);
                let read = consumer.read_rest(entry, &mut Vec::new());
                prop_assert_eq!(read.is_ok(), (1..=produced).contains(&entry));
                consumer.consume(entry);
                prop_assert!(consumer.consumed() <= produced);
            }
            Err(error) => prop_assert_eq!(error, RingError::Count { count: produced, slots: 8 }),
        }
        counts.consumed.0.store(consumed, Ordering::Relaxed);
        let mut producer = Producer::new(memory, 8);
        let pushed = producer.push(&[[1; SLOT_WORDS]]);
        let expected = match 8u32.wrapping_sub(consumed) {
            count @ 9.. => Err(RingError::Count { count, slots: 8 }),
            8 => Err(RingError::Full),
            _ => Ok(()),
        };
        prop_assert_eq!(pushed, expected);
    }
}

#[test]
fn an_entry_that_never_fits_is_no_full_ring() {
    let (counts, words) = (Counts::new(), words(2));
    let mut producer = Producer::new(RingMemory::new(&counts, &words).unwrap(), 0);
    let error = producer.push(&[[0; SLOT_WORDS]; 3]).unwrap_err();
    assert_eq!(error, RingError::TooLong { entry: 3, slots: 2 });
}

#[test]
fn a_consumer_that_waits_for_solicited_entries_is_woken_for_no_other_and_once() {
    let (counts, words) = (Counts::new(), words(2));
    let memory = RingMemory::new(&counts, &words).unwrap();
    let (mut producer, mut consumer) = (Producer::new(memory, 0), Consumer::new(memory, 0));
    assert!(!producer.take_wakeup(true));
    consumer.arm(Wakeup::Solicited);
    assert!(!producer.take_wakeup(false));
    assert!(producer.take_wakeup(true));
    assert!(!producer.take_wakeup(true));
    // A weaker request takes no stronger one back.
    consumer.arm(Wakeup::Any);
    consumer.arm(Wakeup::Solicited);
    assert!(producer.take_wakeup(false));
}
