//! A model of `ring` under the interleavings and memory orders that the language allows (loom; of the larger test with
//! at most two preemptions): the same file, compiled with loom's primitives.

use loom::sync::Arc;
use loom::thread;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the model does not use all of it"
)]
#[path = "ring.rs"]
mod ring;

use ring::{Consumer, Counts, Producer, RingMemory, SLOT_WORDS, Slot, Wakeup};

struct Shared {
    counts: Counts,
    words: Vec<sync::AtomicU64>,
}

fn shared(slots: usize) -> Arc<Shared> {
    let words = (0..slots * SLOT_WORDS).map(|_| sync::AtomicU64::new(0));
    Arc::new(Shared {
        counts: Counts::new(),
        words: words.collect(),
    })
}

impl Shared {
    fn memory(&self) -> RingMemory<'_> {
        RingMemory::new(&self.counts, &self.words).unwrap()
    }
}

/// A slot whose words all depend on its number.
fn slot(number: u64) -> Slot {
    std::array::from_fn(|word| number * 100 + word as u64)
}

#[test]
fn an_entry_is_seen_whole_and_in_order_and_its_slots_are_not_filled_before_they_were_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        // One slot for two entries: the second one waits for the first to be read.
        let shared = shared(1);
        let producer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut producer = Producer::new(shared.memory(), 0);
                for number in 1..=2 {
                    while producer.push(&[slot(number)]).is_err() {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut consumer = Consumer::new(shared.memory(), 0);
        for number in 1..=2 {
            let found = loop {
                match consumer.peek().unwrap() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(found, slot(number));
            consumer.consume(1);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_consumer_that_goes_to_sleep_is_woken_or_finds_the_entry() {
    loom::model(|| {
        let shared = shared(2);
        let producer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut producer = Producer::new(shared.memory(), 0);
                producer.push(&[slot(1)]).unwrap();
                producer.take_wakeup(false)
            }
        });
        let mut consumer = Consumer::new(shared.memory(), 0);
        let sleeps = consumer.prepare_to_sleep().unwrap();
        let is_woken = producer.join().unwrap();
        assert!(!sleeps || is_woken, "it sleeps beside an entry");
    });
}

#[test]
fn an_armed_consumer_that_empties_the_ring_is_woken_for_what_comes_then() {
    loom::model(|| {
        let shared = shared(2);
        let mut producer = Producer::new(shared.memory(), 0);
        producer.push(&[slot(1)]).unwrap();
        let producer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut producer = Producer::new(shared.memory(), 1);
                producer.push(&[slot(2)]).unwrap();
                producer.take_wakeup(false)
            }
        });
        let mut consumer = Consumer::new(shared.memory(), 0);
        consumer.arm(Wakeup::Any);
        let mut found = 0;
        while consumer.peek().unwrap().is_some() {
            consumer.consume(1);
            found += 1;
        }
        let is_woken = producer.join().unwrap();
        assert!(found == 2 || is_woken, "it waits beside an entry");
    });
}
