//! Rings, as one thread uses both ends and as the other end misuses them. Not in `ring`, which the model compiles with
//! loom's primitives.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::doorbell::{DOORBELL_WORDS, DOORBELLS, DeviceState, Doorbells};
use crate::ring::{
    Consumer, Producer, RING_HEADER_WORDS, Ring, RingError, SLOT_WORDS, Slot, Wakeup,
};
use crate::sync::{AtomicU64, Ordering};

fn zeros(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// The memory of a ring of so many slots.
fn words(slots: usize) -> Vec<AtomicU64> {
    zeros(RING_HEADER_WORDS + slots * SLOT_WORDS)
}

/// What the other end writes.
fn set_counts(words: &[AtomicU64], produced: u32, consumed: u32) {
    words[0].store(produced.into(), Ordering::Relaxed);
    words[16].store(consumed.into(), Ordering::Relaxed);
}

#[test]
fn only_a_power_of_two_of_whole_slots_is_a_ring() {
    for (words, fits) in [(0, false), (8, true), (24, false), (31, false), (32, true)] {
        let memory = zeros(RING_HEADER_WORDS + words);
        assert_eq!(Ring::new(memory.as_slice()).is_ok(), fits, "{words}");
    }
    assert!(Ring::new(zeros(8).as_slice()).is_err());
}

proptest! {
    /// Entries of one to five slots, pushed and taken in turns, also where the counts wrap around.
    #[test]
    fn entries_come_out_as_they_went_in(
        begin in prop::sample::select(vec![0, u32::MAX - 3]),
        turns in prop::collection::vec((1..=5usize, any::<bool>()), 1..80),
    ) {
        let words = words(8);
        set_counts(&words, begin, begin);
        let memory = Ring::new(words.as_slice()).unwrap();
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
                let mut found = vec![first; expected.len()];
                consumer.read_rest(&mut found[1..]).unwrap();
                prop_assert_eq!(&found, &expected);
                consumer.consume(expected.len() as u32);
            } else {
                prop_assert_eq!(consumer.peek(), Ok(None));
            }
        }
    }

    /// The other end writes what it likes.
    #[test]
    fn wrong_counts_are_refused_and_never_read_past_the_ring(
        produced in prop_oneof![0..20u32, any::<u32>()],
        consumed in prop_oneof![0..20u32, any::<u32>()],
        entry in 1..20u32,
    ) {
        let words = words(8);
        let memory = Ring::new(words.as_slice()).unwrap();
        set_counts(&words, produced, 0);
        let mut consumer = Consumer::new(memory, 0);
        match consumer.peek() {
            Ok(first) => {
                prop_assert!(produced <= 8);
                prop_assert_eq!(first.is_some(), produced > 0);
                let read = consumer.read_rest(&mut vec![[0; SLOT_WORDS]; entry as usize - 1]);
                prop_assert_eq!(read.is_ok(), entry <= produced);
                consumer.consume(entry);
                prop_assert!(consumer.consumed() <= produced);
            }
            Err(error) => prop_assert_eq!(error, RingError::Count { count: produced, slots: 8 }),
        }
        set_counts(&words, produced, consumed);
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
    let words = words(2);
    let mut producer = Producer::new(Ring::new(words.as_slice()).unwrap(), 0);
    let error = producer.push(&[[0; SLOT_WORDS]; 3]).unwrap_err();
    assert_eq!(error, RingError::TooLong { entry: 3, slots: 2 });
}

#[test]
fn a_consumer_that_waits_for_solicited_entries_is_woken_for_no_other_and_once() {
    let words = words(2);
    let memory = Ring::new(words.as_slice()).unwrap();
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

#[test]
fn a_producer_goes_on_in_another_ring_with_all_that_was_not_taken() {
    let [one, small, large] = [4, 1, 8].map(words);
    // The counts wrap around, and so do the slots.
    let begin = u32::MAX - 1;
    set_counts(&one, begin, begin);
    let [one, small, large] =
        [&one, &small, &large].map(|words| Ring::new(words.as_slice()).unwrap());
    let mut producer = Producer::new(one, begin);
    let mut consumer = Consumer::new(one, begin);
    for number in 1..=3 {
        producer.push(&[[number; SLOT_WORDS]]).unwrap();
    }
    assert_eq!(consumer.peek(), Ok(Some([1; SLOT_WORDS])));
    consumer.consume(1);
    consumer.arm(Wakeup::Solicited);
    assert_eq!(producer.pending(), Ok(2));
    assert_eq!(producer.move_to(small), Err(RingError::Full));
    assert_eq!(producer.move_to(large), Ok(()));
    assert!(producer.take_wakeup(true) && !producer.take_wakeup(true));
    let mut consumer = Consumer::new(large, 0);
    for number in 4..=9 {
        producer.push(&[[number; SLOT_WORDS]]).unwrap();
    }
    assert_eq!(producer.push(&[[10; SLOT_WORDS]]), Err(RingError::Full));
    for number in 2..=9 {
        assert_eq!(consumer.peek(), Ok(Some([number; SLOT_WORDS])));
        consumer.consume(1);
    }
    assert_eq!(consumer.peek(), Ok(None));
}

#[test]
fn a_batch_is_seen_when_it_is_committed_and_one_that_is_dropped_never() {
    let words = words(4);
    let memory = Ring::new(words.as_slice()).unwrap();
    let (mut producer, mut consumer) = (Producer::new(memory, 0), Consumer::new(memory, 0));
    let slot = |number| [number; SLOT_WORDS];
    producer.begin().append(&[slot(1), slot(1)]).unwrap();
    let mut batch = producer.begin();
    batch.append(&[slot(2)]).unwrap();
    batch.append(&[slot(3), slot(3)]).unwrap();
    assert_eq!(batch.produced(), 3);
    // What does not fit leaves the batch as it is.
    assert_eq!(batch.append(&[slot(4), slot(4)]), Err(RingError::Full));
    assert_eq!(consumer.peek(), Ok(None));
    batch.commit();
    for number in [2, 3, 3] {
        assert_eq!(consumer.peek(), Ok(Some(slot(number))));
        consumer.consume(1);
    }
    assert_eq!(consumer.peek(), Ok(None));
}

#[test]
fn a_doorbell_names_its_queue_once_and_wakes_an_engine_that_sleeps() {
    let words = zeros(DOORBELL_WORDS);
    assert!(Doorbells::new(zeros(8).as_slice()).is_err());
    let doorbells = Doorbells::new(words.as_slice()).unwrap();
    let taken = || doorbells.take().collect::<Vec<u32>>();
    for queue in [4095, 0, 63, 64, 63, DOORBELLS, u32::MAX] {
        assert!(!doorbells.ring(queue), "nobody sleeps");
    }
    assert!(!doorbells.prepare_to_sleep());
    assert_eq!(taken(), [0, 63, 64, 4095]);
    assert!(taken().is_empty());
    assert!(doorbells.prepare_to_sleep());
    assert!(doorbells.ring(7));
    assert!(!doorbells.ring(8), "one wake-up is enough");
    assert_eq!(taken(), [7, 8]);
    assert!(doorbells.prepare_to_sleep());
    doorbells.wake();
    assert!(!doorbells.ring(7));
    for state in [
        DeviceState::Running,
        DeviceState::Failed,
        DeviceState::EngineGone,
    ] {
        doorbells.set_state(state);
        assert_eq!(doorbells.state(), state);
    }
}

proptest! {
    /// The program writes any words to the page.
    #[test]
    fn an_engine_takes_only_queues_that_there_may_be(page in prop::collection::vec(any::<u64>(), DOORBELL_WORDS)) {
        let words: Vec<AtomicU64> = page.into_iter().map(AtomicU64::new).collect();
        let doorbells = Doorbells::new(words.as_slice()).unwrap();
        let taken: Vec<u32> = doorbells.take().collect();
        prop_assert!(taken.iter().all(|queue| *queue < DOORBELLS));
        prop_assert!(taken.is_sorted_by(|a, b| a < b));
    }
}
