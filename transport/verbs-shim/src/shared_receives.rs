//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Mutex;

use weft_device::control::{Answer, Request};
use weft_device::ring::Producer;

use crate::contexts::{done, lock, not_made, own_context, set_errno};
use crate::data;
use crate::pair::Receives;
use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::{ProtectionDomain, RecvWr, SharedReceives, SrqAttr, SrqInitAttr};

/// A shared receive queue of this library.
#[repr(C)]
pub(crate) struct OwnShared {
    shared: SharedReceives,
    receives: Mutex<Receives>,
    attr: SrqAttr,
    pub(crate) events: Unacknowledged,
}

/// The block of a shared receive queue.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_shared<'q>(shared: *mut SharedReceives) -> &'q OwnShared {
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
    let (queue, entries, ring) = match own.make_queue(&request) {
        Ok(made) => made,
        Err(error) => return not_made(error),
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
            outstanding: None,
        }),
        attr: SrqAttr {
            srq_limit: 0,
            ..attr.attr
        },
        events: Unacknowledged::default(),
    };
    let made = Box::into_raw(Box::new(made));
    lock(&own.events.shared_receive_queues).insert(queue, made.expose_provenance());
    made.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(shared: *mut SharedReceives) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let (context, queue) = ((*shared).context, (*shared).handle);
        let error = done(context, &Request::DestroySharedReceiveQueue(queue));
        if error == 0 {
            lock(&own_context(context).events.shared_receive_queues).remove(&queue);
            own_shared(shared).events.wait();
            drop(Box::from_raw(shared.cast::<OwnShared>()));
        }
        error
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(shared: *mut SharedReceives, out: *mut SrqAttr) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context, queue) = unsafe {
        let context = own_context((*shared).context);
        (own_shared(shared), context, (*shared).handle)
    };
    let limit = match context.ask(&Request::QuerySharedReceiveQueue(queue)) {
        Ok(Answer::ReceiveLimit(limit)) => limit,
        Ok(_) => return set_errno(libc::EIO),
        Err(error) => return set_errno(error.number()),
    };
    let attr = SrqAttr {
        srq_limit: limit,
        ..own.attr
    };
    // SAFETY: the program passes room for the answer (invariant 1).
    unsafe { out.write(attr) };
    0
}

/// `ibv_modify_srq`: it may set the limit. The size stays, and `device_cap_flags` says so.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    shared: *mut SharedReceives,
    attr: *const SrqAttr,
    mask: c_int,
) -> c_int {
    // `enum ibv_srq_attr_mask`.
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 2;
    if mask & !(MAX_WR | LIMIT) != 0 {
        return set_errno(libc::EINVAL);
    }
    if mask & MAX_WR != 0 {
        return set_errno(libc::EOPNOTSUPP);
    }
    if mask == 0 {
        return 0;
    }
    // SAFETY: as the program says (invariant 1).
    let (context, queue, limit) =
        unsafe { ((*shared).context, (*shared).handle, (*attr).srq_limit) };
    let request = Request::ModifySharedReceiveQueue { queue, limit };
    // SAFETY: the context is open while its queue is there.
    unsafe { done(context, &request) }
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
    let (error, is_new) = unsafe {
        let polled = context.polled.of_receives(handle);
        data::post_receives(&own.receives, own.attr.max_sge, polled, wr, bad)
    };
    if is_new {
        context.ring(handle);
    }
    error
}
