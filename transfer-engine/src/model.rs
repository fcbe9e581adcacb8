//! A model of `counters` under every interleaving and every memory order that the language allows: the same file,
//! compiled with loom's primitives. A region's bytes are relaxed atomics, and so is the payload here.

use loom::sync::atomic::AtomicUsize;
use loom::thread;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the model does not use all of it, and exports nothing"
)]
#[path = "counters.rs"]
mod counters;

use counters::ImmCounters;
use sync::{Arc, AtomicU64, Ordering};

const IMMEDIATE: u32 = 7;

#[test]
fn a_count_is_visible_only_after_the_payloads_of_its_messages() {
    loom::model(|| {
        let counters = Arc::new(ImmCounters::new());
        let payloads = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let counter = counters.counter(IMMEDIATE);
        let writer = thread::spawn({
            let (counters, payloads) = (Arc::clone(&counters), Arc::clone(&payloads));
            move || {
                for payload in payloads.iter() {
                    payload.store(1, Ordering::Relaxed);
                    counters.add(IMMEDIATE);
                }
            }
        });
        // The messages count in the order in which they are whole, and the first n payloads are there with count n.
        let count = counter.count() as usize;
        for payload in &payloads[..count] {
            assert_eq!(payload.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
        assert_eq!(counter.count(), 2);
    });
}

#[test]
fn an_expectation_is_told_once_whether_it_comes_before_or_after_the_messages_of_two_threads() {
    loom::model(|| {
        let counters = Arc::new(ImmCounters::new());
        let payload = Arc::new(AtomicU64::new(0));
        let told = Arc::new(AtomicUsize::new(0));
        let writers = [1, 2].map(|bit| {
            let (counters, payload) = (Arc::clone(&counters), Arc::clone(&payload));
            let told = Arc::clone(&told);
            thread::spawn(move || {
                payload.fetch_add(bit, Ordering::Relaxed);
                for token in counters.add(IMMEDIATE).unwrap() {
                    assert_eq!(token, 99);
                    assert_eq!(payload.load(Ordering::Relaxed), 3);
                    told.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        if counters.expect(IMMEDIATE, 2, 99) {
            assert_eq!(payload.load(Ordering::Relaxed), 3);
            told.fetch_add(1, Ordering::Relaxed);
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert_eq!(counters.free(IMMEDIATE), 2);
    });
}
