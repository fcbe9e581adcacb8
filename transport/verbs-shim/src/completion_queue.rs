//! A completion queue of this library.

use std::sync::Mutex;

use weft_device::entry::Entry;
use weft_device::ring::Consumer;
use weft_memory::Words;

use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::CompletionQueue;

/// A completion queue. Room behind it: a program may take it for an extended one.
#[repr(C)]
pub(crate) struct OwnQueue {
    pub(crate) queue: CompletionQueue,
    pub(crate) extended: [usize; 20],
    pub(crate) taken: Mutex<Taken>,
    /// Events of its completion channel.
    pub(crate) completion_events: Unacknowledged,
    /// Asynchronous events.
    pub(crate) events: Unacknowledged,
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
