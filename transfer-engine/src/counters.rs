//! Counters of immediates.
//!
//! The engine's event of an immediate comes after all bytes of its message are placed, whatever order its packets took.
//! [`ImmCounters::add`] publishes that: who reads a count sees the payload of every message in it. Nothing here rests on
//! the order in which messages arrive. `model.rs` compiles this file with loom's primitives.

use std::collections::BTreeMap;

use super::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// Counters that messages may make: peers choose the immediates, and each costs some 100 bytes here.
pub(crate) const COUNTERS_MAX: usize = 1 << 20;

/// The count of one immediate, read without a lock.
#[derive(Debug, Clone)]
pub struct ImmCounter(Arc<AtomicU64>);

impl ImmCounter {
    /// Messages with this immediate whose payload is here whole, since the counter was made or freed.
    pub fn count(&self) -> u64 {
        // Pairs with the release in `add`: the payloads of the messages counted are visible.
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Counter {
    count: Arc<AtomicU64>,
    /// Counts that are waited for, and who waits.
    expected: Vec<(u64, u64)>,
}

/// The counters of an engine, by immediate.
#[derive(Debug)]
pub(crate) struct ImmCounters(Mutex<BTreeMap<u32, Counter>>);

impl ImmCounters {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts a message. Answers who has waited for this count: each of them is told once. `None` for a message that would
    /// make one counter too many: it is not counted.
    pub(crate) fn add(&self, immediate: u32) -> Option<Vec<u64>> {
        let mut counters = self.lock();
        if counters.len() >= COUNTERS_MAX && !counters.contains_key(&immediate) {
            return None;
        }
        let counter = entry(&mut counters, immediate);
        let count = counter.count.load(Ordering::Relaxed) + 1;
        counter.count.store(count, Ordering::Release);
        if counter.expected.is_empty() {
            return Some(Vec::new());
        }
        let reached = counter
            .expected
            .extract_if(.., |(expected, _)| *expected <= count);
        Some(reached.map(|(_, token)| token).collect())
    }

    pub(crate) fn counter(&self, immediate: u32) -> ImmCounter {
        ImmCounter(Arc::clone(&entry(&mut self.lock(), immediate).count))
    }

    /// [`Self::add`] returns `token` when the count is reached. Answers whether the count is reached already: then it does not.
    pub(crate) fn expect(&self, immediate: u32, expected: u64, token: u64) -> bool {
        let mut counters = self.lock();
        let counter = entry(&mut counters, immediate);
        let is_reached = counter.count.load(Ordering::Acquire) >= expected;
        if !is_reached {
            counter.expected.push((expected, token));
        }
        is_reached
    }

    /// Nobody waits by this token any more.
    pub(crate) fn forget(&self, immediate: u32, token: u64) {
        if let Some(counter) = self.lock().get_mut(&immediate) {
            counter.expected.retain(|(_, waiting)| *waiting != token);
        }
    }

    /// Ends a counter and answers its count: the next message with this immediate is the first one.
    pub(crate) fn free(&self, immediate: u32) -> u64 {
        let counter = self.lock().remove(&immediate);
        counter.map_or(0, |counter| counter.count.load(Ordering::Acquire))
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Counter>> {
        // No panic leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry(counters: &mut BTreeMap<u32, Counter>, immediate: u32) -> &mut Counter {
    counters.entry(immediate).or_insert_with(|| Counter {
        count: Arc::new(AtomicU64::new(0)),
        expected: Vec::new(),
    })
}
