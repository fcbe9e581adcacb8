//! Ids with a queue pair, for programs whose calls wait.

use std::ffi::c_int;
use std::ptr;

use weft_verbs_abi::{ProtectionDomain, QpInitAttr};

use crate::abi::{AddrInfo, CmId};
use crate::addrinfo::PASSIVE;
use crate::endpoint::kind;
use crate::errno::{fail, fail_with};
use crate::events::rdma_get_cm_event;
use crate::ids::{self, PairAttributes, acknowledge_last, lock, own_id, rdma_destroy_id};
use crate::queue_pairs::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};

/// What Linux programs wait for an address by this call; here nothing waits.
const TIMEOUT_MS: c_int = 2000;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    out: *mut *mut CmId,
    found: *const AddrInfo,
    domain: *mut ProtectionDomain,
    attr: *mut QpInitAttr,
) -> c_int {
    let mut id = ptr::null_mut();
    // SAFETY: as the program says (invariant 1); the id was just made.
    unsafe {
        let found = &*found;
        let null = ptr::null_mut();
        if ids::create(
            null,
            &raw mut id,
            null.cast(),
            found.port_space,
            found.qp_type,
        ) != 0
        {
            return -1;
        }
        let done = match found.flags & PASSIVE {
            0 => connecting(id, found, domain, attr),
            _ => listening(id, found, domain, attr),
        };
        if done != 0 {
            let why = std::io::Error::last_os_error();
            rdma_destroy_ep(id);
            return fail_with(&why);
        }
        *out = id;
    }
    0
}

unsafe fn listening(
    id: *mut CmId,
    found: &AddrInfo,
    domain: *mut ProtectionDomain,
    attr: *const QpInitAttr,
) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if rdma_bind_addr(id, found.source) != 0 {
            return -1;
        }
        if !domain.is_null() {
            (*id).pd = domain;
        }
        if let Some(attr) = attr.as_ref() {
            let mut kept = *attr;
            kept.qp_type = found.qp_type;
            *lock(&own_id(id).pair_attributes) = Some(PairAttributes(kept));
        }
    }
    0
}

unsafe fn connecting(
    id: *mut CmId,
    found: &AddrInfo,
    domain: *mut ProtectionDomain,
    attr: *mut QpInitAttr,
) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if rdma_resolve_addr(id, found.source, found.destination, TIMEOUT_MS) != 0
            || rdma_resolve_route(id, TIMEOUT_MS) != 0
        {
            return -1;
        }
        if attr.is_null() {
            return 0;
        }
        (*attr).qp_type = found.qp_type;
        rdma_create_qp(id, domain, attr)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listener: *mut CmId, out: *mut *mut CmId) -> c_int {
    // SAFETY: as the program says (invariant 1); an event is one of ours until it is acknowledged.
    unsafe {
        let own = own_id(listener);
        if !own.is_sync() {
            return fail(libc::EINVAL);
        }
        acknowledge_last(listener);
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*listener).channel, &raw mut event) != 0 {
            return -1;
        }
        if (*event).event != kind::CONNECT_REQUEST {
            (*listener).event = event;
            return fail(libc::EINVAL);
        }
        let id = (*event).id;
        let attributes = *lock(&own.pair_attributes);
        if let Some(PairAttributes(mut attr)) = attributes
            && rdma_create_qp(id, (*listener).pd, &raw mut attr) != 0
        {
            (*listener).event = event;
            return -1;
        }
        (*id).event = event;
        *out = id;
    }
    0
}
