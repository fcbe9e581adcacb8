//! What is not there: multicast, and sockets over RDMA. Each call fails.

use std::ffi::{c_int, c_void};

use crate::abi::CmId;
use crate::errno::fail;

macro_rules! unsupported {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> isize {
            fail(libc::EOPNOTSUPP) as isize
        })*
    };
}

unsupported! {
    rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll
    rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
}

/// Vendor options of a connection: a device of ours has none, so none are sent. A peer is free to have none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut CmId, options: *const c_void) -> c_int {
    // SAFETY: it is one of ours (invariant 1).
    match options.is_null() || unsafe { !(*id).qp.is_null() } {
        true => fail(libc::EINVAL),
        false => 0,
    }
}

/// No options came from the peer.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut CmId, options: *mut [u32; 3]) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if options.is_null() || !(*id).qp.is_null() {
            return fail(libc::EINVAL);
        }
        options.write([0; 3]);
    }
    0
}
