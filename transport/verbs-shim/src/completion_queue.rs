//! A completion queue of this library.

use std::sync::{Condvar, Mutex};

use weft_device::entry::Entry;
use weft_device::ring::Consumer;
use weft_memory::Words;

use weft_verbs_abi::CompletionQueue;

/// A completion queue. Room behind it: a program may take it for an extended one.
#[repr(C)]
pub(crate) struct OwnQueue {
    pub(crate) queue: CompletionQueue,
    pub(crate) extended: [usize; 20],
    pub(crate) taken: Mutex<Taken>,
    /// Events that the program has taken and not acknowledged.
    pub(crate) events: Mutex<u32>,
    pub(crate) acknowledged: Condvar,
}

/// What only one thread does at a time.
pub(crate) struct Taken {
    pub(crate) ring: Consumer<Words>,
    pub(crate) entry: Entry,
    /// Polls since there was a completion.
    pub(crate) empty_polls: u32,
}

/// The block of a completion queue.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_queue<'q>(queue: *mut CompletionQueue) -> &'q OwnQueue {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*queue.cast::<OwnQueue>() }
}
