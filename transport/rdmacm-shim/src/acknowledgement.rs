//! Events that a program has: each holds up the end of its id until it is acknowledged.

use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::{CmEvent, CmId};
use crate::errno::fail;

/// How many events of an id the program has.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    events: Mutex<u32>,
    acknowledged: Condvar,
}

impl Unacknowledged {
    pub(crate) fn begin(&self) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn end(&self) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        *events = events.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    /// Waits until the program has none.
    pub(crate) fn wait(&self) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        while *events > 0 {
            let waited = self.acknowledged.wait(events);
            events = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The id that an event belongs to.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) id: *mut CmId,
    pub(crate) events: Arc<Unacknowledged>,
}

// SAFETY: what threads change of an id lies behind locks or is an atomic.
unsafe impl Send for Owner {}

/// An event that a program has.
#[repr(C)]
pub(crate) struct OwnEvent {
    pub(crate) head: CmEvent,
    pub(crate) owner: Owner,
    /// The program reads it.
    pub(crate) private_data: Vec<u8>,
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    if event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: it is one of ours, and used no more (invariants 1 and 2).
    unsafe { Box::from_raw(event.cast::<OwnEvent>()) }
        .owner
        .events
        .end();
    0
}
