//! Completion queues: made, resized and destroyed.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use weft_device::control::{Answer, ErrorNumber, Request};
use weft_device::ring::Consumer;

use crate::channels::own_channel;
use crate::completion_queue::{OwnQueue, Taken, own_queue};
use crate::contexts::{done, lock, not_made, own_context, set_errno};
use crate::extended_poll;
use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::{
    CompletionChannel, CompletionQueue, CompletionQueueEx, CompletionQueueExOps, Context,
    CqInitAttrEx,
};

/// What a program says of a queue that it wants.
struct Wanted {
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut CompletionChannel,
    vector: u32,
    ops: CompletionQueueExOps,
}

/// Makes a queue.
///
/// # Safety
/// The context is open, and the channel null or one of ours (invariant 1).
unsafe fn create(context: *mut Context, wanted: Wanted) -> *mut CompletionQueueEx {
    let channel = wanted.channel;
    if wanted.vector != 0 {
        return not_made(ErrorNumber::InvalidArgument);
    }
    // SAFETY: as the caller says.
    let own = unsafe { own_context(context) };
    // SAFETY: as the caller says.
    let handle = (!channel.is_null()).then(|| unsafe { own_channel(channel) }.handle);
    let request = Request::CreateCompletionQueue {
        entries: wanted.entries,
        channel: handle,
    };
    let (queue, entries, ring) = match own.make_queue(&request) {
        Ok(made) => made,
        Err(error) => return not_made(error),
    };
    let made = OwnQueue {
        queue: CompletionQueueEx {
            base: CompletionQueue {
                context,
                channel,
                cq_context: wanted.cq_context,
                handle: queue,
                cqe: entries as c_int,
                mutex: [0; 5],
                cond: [0; 6],
                comp_events_completed: 0,
                async_events_completed: 0,
            },
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            ops: wanted.ops,
        },
        taken: Mutex::new(Taken::new(
            Consumer::new(ring, 0),
            &own.polled,
            own.client.gid(),
        )),
        completion_events: Unacknowledged::default(),
        events: Unacknowledged::default(),
    };
    let made = Box::into_raw(Box::new(made));
    lock(&own.events.completion_queues).insert(queue, made.expose_provenance());
    if !channel.is_null() {
        // SAFETY: it is one of ours.
        unsafe { queues_of(channel) }.fetch_add(1, Ordering::Relaxed);
    }
    made.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut CompletionChannel,
    vector: c_int,
) -> *mut CompletionQueue {
    let (Ok(entries), Ok(vector)) = (u32::try_from(entries), u32::try_from(vector)) else {
        return not_made(ErrorNumber::InvalidArgument);
    };
    let wanted = Wanted {
        entries,
        cq_context,
        channel,
        vector,
        ops: CompletionQueueExOps::default(),
    };
    // SAFETY: as the program says (invariant 1).
    unsafe { create(context, wanted) }.cast()
}

/// `ibv_create_cq_ex`: it refuses what it has no function for, because programs do not look whether there is one.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    attr: *mut CqInitAttrEx,
) -> *mut CompletionQueueEx {
    const FLAGS: u32 = 1;
    const SINGLE_THREADED: u32 = 1;
    // SAFETY: as the program says (invariant 1).
    let attr = unsafe { &*attr };
    let has_flags = attr.comp_mask & FLAGS != 0 && attr.flags & !SINGLE_THREADED != 0;
    let has_other_fields = attr.wc_flags & !extended_poll::FIELDS != 0;
    if attr.comp_mask & !FLAGS != 0 || has_flags || has_other_fields {
        return not_made(ErrorNumber::NotSupported);
    }
    let wanted = Wanted {
        entries: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        vector: attr.comp_vector,
        ops: extended_poll::functions(),
    };
    // SAFETY: as the program says (invariant 1).
    unsafe { create(context, wanted) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(queue: *mut CompletionQueue, entries: c_int) -> c_int {
    let Ok(entries) = u32::try_from(entries) else {
        return set_errno(libc::EINVAL);
    };
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context, handle) = unsafe {
        let of = &*queue;
        (own_queue(queue), own_context(of.context), of.handle)
    };
    if context.is_of_parent() {
        return set_errno(libc::EIO);
    }
    // Nobody polls meanwhile.
    let mut taken = lock(&own.taken);
    let request = Request::ResizeCompletionQueue {
        queue: handle,
        entries,
    };
    let (entries, place) = match context.ask(&request) {
        Ok(Answer::CreatedQueue { entries, ring, .. }) => (entries, ring),
        Ok(_) => return set_errno(libc::EIO),
        Err(error) => return set_errno(error.number()),
    };
    let Ok(ring) = context.ring_at(place) else {
        return set_errno(libc::EIO);
    };
    *taken.ring_mut() = Consumer::new(ring, 0);
    // SAFETY: it is one of ours. Programs read the size without a lock, as of any library.
    unsafe { (&raw mut (*queue).cqe).write_volatile(entries as c_int) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut CompletionQueue) -> c_int {
    // SAFETY: it is one of ours (invariant 1).
    let (own, context, handle, channel) = unsafe {
        let of = &*queue;
        (own_queue(queue), of.context, of.handle, of.channel)
    };
    // SAFETY: the context is open while its queue is there.
    let error = unsafe { done(context, &Request::DestroyCompletionQueue(handle)) };
    if error != 0 {
        return error;
    }
    // SAFETY: as before.
    let known = unsafe { &own_context(context).events.completion_queues };
    lock(known).remove(&handle);
    own.completion_events.wait();
    own.events.wait();
    if !channel.is_null() {
        // SAFETY: it is one of ours, and not destroyed while it has queues.
        unsafe { queues_of(channel) }.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: it came from a box, and is used no more (invariants 1 and 2).
    drop(unsafe { Box::from_raw(queue.cast::<OwnQueue>()) });
    0
}

/// How many queues a channel has. Threads of a program may make and destroy them at the same time.
///
/// # Safety
/// It is one of ours, and not destroyed meanwhile.
unsafe fn queues_of<'c>(channel: *mut CompletionChannel) -> &'c AtomicI32 {
    // SAFETY: as the caller says; this library uses the field as an atomic only.
    unsafe { AtomicI32::from_ptr(&raw mut (*channel).refcnt) }
}
