//! A model of `ring` and `doorbell` under the interleavings and memory orders that the language allows (loom; of the
//! larger tests with at most two preemptions): the same files, compiled with loom's primitives.

use loom::sync::Arc;
use loom::thread;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the model does not use all of it"
)]
#[path = "doorbell.rs"]
mod doorbell;
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the model does not use all of it"
)]
#[path = "ring.rs"]
mod ring;

use doorbell::{DOORBELL_WORDS, Doorbells};
use ring::{Consumer, Producer, RING_HEADER_WORDS, Ring, SLOT_WORDS, Slot, Wakeup};

struct Shared {
    words: Vec<sync::AtomicU64>,
}

fn zeros(words: usize) -> Arc<Shared> {
    let words = (0..words).map(|_| sync::AtomicU64::new(0));
    Arc::new(Shared {
        words: words.collect(),
    })
}

fn shared(slots: usize) -> Arc<Shared> {
    zeros(RING_HEADER_WORDS + slots * SLOT_WORDS)
}

impl Shared {
    fn memory(&self) -> Ring<&[sync::AtomicU64]> {
        Ring::new(self.words.as_slice()).unwrap()
    }

    fn doorbells(&self) -> Doorbells<&[sync::AtomicU64]> {
        Doorbells::new(self.words.as_slice()).unwrap()
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
fn an_entry_of_two_slots_that_wraps_around_is_seen_whole() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = shared(2);
        let mut consumer = Consumer::new(shared.memory(), 0);
        let mut producer = Producer::new(shared.memory(), 0);
        producer.push(&[slot(1)]).unwrap();
        assert_eq!(consumer.peek().unwrap(), Some(slot(1)));
        consumer.consume(1);
        let producer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut producer = Producer::new(shared.memory(), 1);
                producer.push(&[slot(2), slot(3)]).unwrap();
            }
        });
        if let Some(first) = consumer.peek().unwrap() {
            let mut rest = [Slot::default()];
            consumer.read_rest(&mut rest).unwrap();
            assert_eq!([first, rest[0]], [slot(2), slot(3)]);
        }
        producer.join().unwrap();
    });
}

#[test]
fn an_engine_that_goes_to_sleep_is_woken_or_finds_the_entry_of_each_queue() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (page, ring) = (zeros(DOORBELL_WORDS), shared(2));
        let program = thread::spawn({
            let (page, ring) = (page.clone(), ring.clone());
            move || {
                let mut producer = Producer::new(ring.memory(), 0);
                let mut is_woken = false;
                for number in 1..=2 {
                    producer.push(&[slot(number)]).unwrap();
                    is_woken |= page.doorbells().ring(3);
                }
                is_woken
            }
        });
        let mut consumer = Consumer::new(ring.memory(), 0);
        let mut look = || {
            let mut found = 0;
            for queue in page.doorbells().take() {
                assert_eq!(queue, 3);
                while consumer.peek().unwrap().is_some() {
                    consumer.consume(1);
                    found += 1;
                }
            }
            found
        };
        let found = look();
        let sleeps = page.doorbells().prepare_to_sleep();
        let is_woken = program.join().unwrap();
        assert!(
            !sleeps || found == 2 || is_woken,
            "it sleeps beside an entry"
        );
        assert_eq!(found + look(), 2);
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
