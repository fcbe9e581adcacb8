//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Mutex;

use weft_device::control::{Answer, ErrorNumber, Request};
use weft_device::entry::Entry;
use weft_device::ring::Producer;

use crate::contexts::{done, not_made, own_context};
use crate::data;
use crate::pair::Receives;
use weft_verbs_abi::{ProtectionDomain, RecvWr, SharedReceives, SrqAttr, SrqInitAttr};

/// A shared receive queue of this library.
#[repr(C)]
pub(crate) struct OwnShared {
    shared: SharedReceives,
    receives: Mutex<Receives>,
    attr: SrqAttr,
}

/// The block of a shared receive queue.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn own_shared<'q>(shared: *mut SharedReceives) -> &'q OwnShared {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*shared.cast::<OwnShared>() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut ProtectionDomain,
    attr: *mut SrqInitAttr,
) -> *mut SharedReceives {
    // SAFETY: as the program says (invariant 1).
    let (pd, attr) = unsafe { (&*pd, &mut *attr) };
    // SAFETY: the context is open while its protection domain is there.
    let own = unsafe { own_context(pd.context) };
    let request = Request::CreateSharedReceiveQueue {
        domain: pd.handle,
        entries: attr.attr.max_wr,
        sges: attr.attr.max_sge,
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
    attr.attr.max_wr = entries;
    let made = OwnShared {
        shared: SharedReceives {
            context: pd.context,
            srq_context: attr.srq_context,
            pd: std::ptr::from_ref(pd).cast_mut(),
            handle: queue,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        },
        receives: Mutex::new(Receives {
            ring: Producer::new(ring, 0),
            entry: Entry::new(),
        }),
        attr: SrqAttr {
            srq_limit: 0,
            ..attr.attr
        },
    };
    Box::into_raw(Box::new(made)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(shared: *mut SharedReceives) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let request = Request::DestroySharedReceiveQueue((*shared).handle);
        let error = done((*shared).context, &request);
        if error == 0 {
            drop(Box::from_raw(shared.cast::<OwnShared>()));
        }
        error
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(shared: *mut SharedReceives, out: *mut SrqAttr) -> c_int {
    // SAFETY: it is one of ours, and the program passes room for the answer (invariant 1).
    unsafe { out.write(own_shared(shared).attr) };
    0
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    shared: *mut SharedReceives,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context, handle) = unsafe {
        let context = own_context((*shared).context);
        (own_shared(shared), context, (*shared).handle)
    };
    // SAFETY: as the program says (invariant 1).
    let (error, is_new) = unsafe { data::post_receives(&own.receives, own.attr.max_sge, wr, bad) };
    if is_new {
        context.ring(handle);
    }
    error
}
