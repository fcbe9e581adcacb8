//! Protection domains, memory regions and completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use weft_device::control::{Answer, ErrorNumber, Region, Request};
use weft_device::entry::Entry;
use weft_device::ring::Consumer;
use weft_memory::Words;

use crate::abi::{CompletionQueue, Context, MemoryRegion, ProtectionDomain};
use crate::contexts::{own_context, set_errno};

/// Makes a call whose answer says nothing; the number of its error, or 0.
///
/// # Safety
/// The context is open (invariant 1).
pub(crate) unsafe fn done(context: *mut Context, request: &Request) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { own_context(context) }.ask(request) {
        Ok(_) => 0,
        Err(error) => set_errno(error.number()),
    }
}

/// An object that was not made.
pub(crate) fn not_made<T>(error: ErrorNumber) -> *mut T {
    set_errno(error.number());
    ptr::null_mut()
}

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

/// NCCL takes any other error for "supported".
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ProtectionDomain,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut MemoryRegion {
    not_made(ErrorNumber::NotSupported)
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

/// A completion queue. Room behind it: a program may take it for an extended one.
#[repr(C)]
pub(crate) struct OwnQueue {
    queue: CompletionQueue,
    extended: [usize; 20],
    pub(crate) taken: Mutex<Taken>,
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut c_void,
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
    let (queue, entries, place) = match own.ask(&Request::CreateCompletionQueue { entries }) {
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
    };
    Box::into_raw(Box::new(made)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut CompletionQueue) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let request = Request::DestroyCompletionQueue((*queue).handle);
        let error = done((*queue).context, &request);
        if error == 0 {
            drop(Box::from_raw(queue.cast::<OwnQueue>()));
        }
        error
    }
}
