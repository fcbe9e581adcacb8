//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsFd;

use weft_device::control::{Answer, ErrorNumber, Outcome, Region, Request};
use weft_device_socket::shared_mapping;

use crate::contexts::{done, not_made, own_context, set_errno};
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

/// Makes a call about memory of this program. The file behind it goes with the call, if it is shared memory.
///
/// # Safety
/// The context is open.
unsafe fn ask_about(
    (address, length): (*mut c_void, usize),
    context: *mut Context,
    request: impl FnOnce(Option<u64>) -> Request,
) -> Outcome {
    let shared = shared_mapping::find(address.addr() as u64, length as u64);
    let request = request(shared.as_ref().map(|shared| shared.offset));
    let file = shared.as_ref().map(|shared| shared.file.as_fd());
    // SAFETY: as the caller promises.
    let context = unsafe { own_context(context) };
    context.ask_with(&request, file).map(|(answer, _)| answer)
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
    let region = |file_offset| {
        Request::RegisterRegion(Region {
            domain,
            address: addr.addr() as u64,
            bytes: length as u64,
            io_address,
            access,
            file_offset,
        })
    };
    // SAFETY: the context is open while its domain is there.
    match unsafe { ask_about((addr, length), context, region) } {
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

/// `ibv_rereg_mr`: the region keeps its keys. To another protection domain it cannot go.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    region: *mut MemoryRegion,
    flags: c_int,
    _: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // `enum ibv_rereg_mr_flags`, and of `enum ibv_rereg_mr_err_code` that the region is as it was.
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    const ERR_INPUT: c_int = -1;
    let is_nowhere = flags & TRANSLATION != 0 && (addr.is_null() || length == 0);
    let is_ignored = flags & ACCESS == 0 && access != 0;
    let is_nothing = flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0;
    if is_nothing || is_nowhere || is_ignored {
        set_errno(libc::EINVAL);
        return ERR_INPUT;
    }
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (context, key, before) = unsafe {
        (
            (*region).context,
            (*region).lkey,
            ((*region).addr, (*region).length),
        )
    };
    let memory = match flags & TRANSLATION {
        0 => before,
        _ => (addr, length),
    };
    let request = |file_offset| Request::ReregisterRegion {
        key,
        given: flags as u32,
        region: Region {
            domain: 0,
            address: addr.addr() as u64,
            bytes: length as u64,
            io_address: addr.addr() as u64,
            access: access as c_uint,
            file_offset,
        },
    };
    // SAFETY: as before.
    if let Err(error) = unsafe { ask_about(memory, context, request) } {
        set_errno(error.number());
        return ERR_INPUT;
    }
    if flags & TRANSLATION != 0 {
        // SAFETY: it is one of ours. Programs use a region that is being changed in no other thread.
        unsafe {
            (*region).addr = addr;
            (*region).length = length;
        }
    }
    0
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
