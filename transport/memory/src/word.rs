//! Atomics on words of memory.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_core::wire::Atomic;

/// Changes a word; returns what was there.
pub(crate) fn change(word: &AtomicU64, atomic: Atomic) -> u64 {
    match atomic {
        Atomic::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        Atomic::CompareSwap { compare, swap } => {
            let swapped = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
            let (Ok(before) | Err(before)) = swapped;
            before
        }
    }
}
