//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};

use weft_device::control::{Answer, ErrorNumber, Region, Request};

use crate::contexts::{done, not_made, own_context};
use weft_verbs_abi::{Context, MemoryRegion, ProtectionDomain};

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
