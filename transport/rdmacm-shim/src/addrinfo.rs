//! `rdma_getaddrinfo`: names become addresses, as the system finds them.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use crate::abi::AddrInfo;
use crate::endpoint::DATAGRAMS;
use crate::errno::fail;
use crate::ids::{RC, UD};

/// `RAI_PASSIVE`: the address is one to listen at.
pub(crate) const PASSIVE: c_int = 1;
pub(crate) const NUMERIC_HOST: c_int = 2;
pub(crate) const STREAMS: c_int = 0x0106;

fn empty() -> AddrInfo {
    AddrInfo {
        flags: 0,
        family: 0,
        qp_type: 0,
        port_space: 0,
        source_len: 0,
        destination_len: 0,
        source: ptr::null_mut(),
        destination: ptr::null_mut(),
        source_name: ptr::null_mut(),
        destination_name: ptr::null_mut(),
        route_len: 0,
        route: ptr::null_mut(),
        connect_len: 0,
        connect: ptr::null_mut(),
        next: ptr::null_mut(),
    }
}

/// A copy that [`rdma_freeaddrinfo`] frees.
unsafe fn copy(address: *const sockaddr, length: socklen_t) -> (*mut sockaddr, socklen_t) {
    if address.is_null() || length == 0 {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: the address has so many bytes (invariant 1), and malloc may be called with any size.
    unsafe {
        let made = libc::malloc(length as usize);
        if made.is_null() {
            return (ptr::null_mut(), 0);
        }
        ptr::copy_nonoverlapping(address.cast::<u8>(), made.cast(), length as usize);
        (made.cast(), length)
    }
}

/// Asks the system.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &AddrInfo,
    out: &mut AddrInfo,
) -> c_int {
    let is_passive = hints.flags & PASSIVE != 0;
    // SAFETY: numbers and pointers may be 0.
    let mut wanted: addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_flags |= if is_passive { libc::AI_PASSIVE } else { 0 };
    wanted.ai_flags |= match hints.flags & NUMERIC_HOST {
        0 => 0,
        _ => libc::AI_NUMERICHOST,
    };
    wanted.ai_family = match hints.family {
        libc::AF_INET | libc::AF_INET6 => hints.family,
        _ => libc::AF_UNSPEC,
    };
    let is_datagram = hints.qp_type == UD || hints.port_space == c_int::from(DATAGRAMS);
    wanted.ai_socktype = match is_datagram {
        true => libc::SOCK_DGRAM,
        false => libc::SOCK_STREAM,
    };
    let mut found: *mut addrinfo = ptr::null_mut();
    // SAFETY: the program passes texts or null (invariant 1); what is found is freed once.
    unsafe {
        let error = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
        if error != 0 {
            return error;
        }
        let first = &*found;
        let given = |given: c_int, other: c_int| if given == 0 { other } else { given };
        out.family = first.ai_family;
        let (pair, space) = match is_datagram {
            true => (UD, c_int::from(DATAGRAMS)),
            false => (RC, STREAMS),
        };
        out.qp_type = given(hints.qp_type, pair);
        out.port_space = given(hints.port_space, space);
        let copied = copy(first.ai_addr, first.ai_addrlen);
        if is_passive {
            out.flags = PASSIVE;
            (out.source, out.source_len) = copied;
        } else {
            (out.destination, out.destination_len) = copied;
        }
        libc::freeaddrinfo(found);
        if copied.0.is_null() {
            return libc::EAI_MEMORY;
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    out: *mut *mut AddrInfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        return fail(libc::EINVAL);
    }
    let none = empty();
    // SAFETY: as the program says (invariant 1).
    unsafe {
        let hints = hints.as_ref().unwrap_or(&none);
        let mut made = Box::new(empty());
        if node.is_null() && service.is_null() {
            made.flags = hints.flags;
            made.family = hints.family;
            made.qp_type = hints.qp_type;
            made.port_space = hints.port_space;
            (made.destination, made.destination_len) =
                copy(hints.destination, hints.destination_len);
        } else {
            let error = look_up(node, service, hints, &mut made);
            if error != 0 {
                return error;
            }
        }
        if made.source.is_null() {
            (made.source, made.source_len) = copy(hints.source, hints.source_len);
        }
        *out = Box::into_raw(made);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(mut found: *mut AddrInfo) {
    while !found.is_null() {
        // SAFETY: rdma_getaddrinfo made it (invariant 1): a box, and addresses of malloc.
        unsafe {
            let one = Box::from_raw(found);
            libc::free(one.source.cast());
            libc::free(one.destination.cast());
            found = one.next;
        }
    }
}
