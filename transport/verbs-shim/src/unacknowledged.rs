//! Events that a program has taken and not acknowledged.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::contexts::lock;

/// The events of one object. As verbs has it, the object is not destroyed before all are acknowledged: the thread that
/// handles one may use it.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    acknowledged: Condvar,
}

impl Unacknowledged {
    /// The program takes one.
    pub(crate) fn add(&self) {
        *lock(&self.count) += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(events);
        self.acknowledged.notify_all();
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            let waited = self.acknowledged.wait(count);
            count = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
