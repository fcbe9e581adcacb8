//! How this crate locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No panic leaves what is locked here half changed. No code of Python runs under a lock: it might wait for it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
