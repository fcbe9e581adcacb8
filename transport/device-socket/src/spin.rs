//! Waiting without sleeping.

use std::thread;

/// So many turns take some 50 µs where nothing else runs, about as long as to sleep and to be woken in a virtual machine. They
/// are counted and not timed: with a clock the library would need `librt.so.1`, which not every container has.
const TURNS: usize = 64;

/// Tries until there is something, and yields the processor after each try. `None` after so many: then it is time to sleep.
pub fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..TURNS {
        if let Some(found) = attempt() {
            return Some(found);
        }
        thread::yield_now();
    }
    None
}
