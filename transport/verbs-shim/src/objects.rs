//! Protection domains, memory regions and completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

use weft_device::control::{Answer, ErrorNumber, Region, Request};
use weft_device::entry::Entry;
use weft_device::ring::Consumer;

use crate::channels::own_channel;
use crate::completion_queue::{OwnQueue, Taken, own_queue};
use crate::contexts::{done, lock, not_made, own_context};
use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::{CompletionChannel, CompletionQueue, Context, MemoryRegion, ProtectionDomain};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut ProtectionDomain {
    // SAFETY: it is open (invariant 1).
    match unsafe { own_context(context) }.ask(&Request::CreateDomain) {
        Ok(Answer::Created(handle)) => {
            Box::into_raw(Box::new(ProtectionDomain { context, handle }))
        }
        Ok(_) => not_made(ErrorNumber::EngineGone),
        Err(error) => not_made(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ProtectionDomain) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let error = done((*pd).context, &Request::DestroyDomain((*pd).handle));
        if error == 0 {
            drop(Box::from_raw(pd));
        }
        error
    }
}

unsafe fn register(
    pd: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    io_address: u64,
    access: c_uint,
) -> *mut MemoryRegion {
    // SAFETY: it is one of ours (invariant 1).
    let (context, domain) = unsafe { ((*pd).context, (*pd).handle) };
    let region = Region {
        domain,
        address: addr.addr() as u64,
        bytes: length as u64,
        io_address,
        access,
    };
    // SAFETY: the context is open while its domain is there.
    match unsafe { own_context(context) }.ask(&Request::RegisterRegion(region)) {
        Ok(Answer::Created(key)) => Box::into_raw(Box::new(MemoryRegion {
            context,
            pd,
            addr,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        })),
        Ok(_) => not_made(ErrorNumber::EngineGone),
        Err(error) => not_made(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut MemoryRegion {
    // SAFETY: as the program says (invariant 1).
    unsafe { register(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut MemoryRegion {
    // SAFETY: as the program says (invariant 1).
    unsafe { register(pd, addr, length, iova, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut MemoryRegion {
    // SAFETY: as the program says (invariant 1).
    unsafe { register(pd, addr, length, iova, access) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut MemoryRegion) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let error = done(
            (*region).context,
            &Request::DeregisterRegion((*region).lkey),
        );
        if error == 0 {
            drop(Box::from_raw(region));
        }
        error
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut CompletionChannel,
    vector: c_int,
) -> *mut CompletionQueue {
    let Ok(entries) = u32::try_from(entries) else {
        return not_made(ErrorNumber::InvalidArgument);
    };
    if vector != 0 {
        return not_made(ErrorNumber::InvalidArgument);
    }
    // SAFETY: it is open (invariant 1).
    let own = unsafe { own_context(context) };
    // SAFETY: it is null, or one of ours (invariant 1).
    let handle = (!channel.is_null()).then(|| unsafe { own_channel(channel) }.handle);
    let request = Request::CreateCompletionQueue {
        entries,
        channel: handle,
    };
    let (queue, entries, place) = match own.ask(&request) {
        Ok(Answer::CreatedQueue {
            queue,
            entries,
            ring,
        }) => (queue, entries, ring),
        Ok(_) => return not_made(ErrorNumber::EngineGone),
        Err(error) => return not_made(error),
    };
    let Some(ring) = own.client().ring(place) else {
        return not_made(ErrorNumber::EngineGone);
    };
    let made = OwnQueue {
        queue: CompletionQueue {
            context,
            channel,
            cq_context,
            handle: queue,
            cqe: entries as c_int,
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: 0,
            async_events_completed: 0,
        },
        extended: [0; 20],
        taken: Mutex::new(Taken {
            ring: Consumer::new(ring, 0),
            entry: Entry::new(),
            empty_polls: 0,
        }),
        completion_events: Unacknowledged::default(),
        events: Unacknowledged::default(),
    };
    let made = Box::into_raw(Box::new(made));
    lock(&own.completion_queues).insert(queue, made.expose_provenance());
    if !channel.is_null() {
        // SAFETY: it is one of ours. Programs make queues of a channel in one thread at a time.
        unsafe { (*channel).refcnt += 1 };
    }
    made.cast()
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
    let known = unsafe { &own_context(context).completion_queues };
    lock(known).remove(&handle);
    own.completion_events.wait();
    own.events.wait();
    if !channel.is_null() {
        // SAFETY: it is one of ours, and not destroyed while it has queues.
        unsafe { (*channel).refcnt -= 1 };
    }
    // SAFETY: it came from a box, and is used no more (invariants 1 and 2).
    drop(unsafe { Box::from_raw(queue.cast::<OwnQueue>()) });
    0
}
