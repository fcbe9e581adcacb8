//! The newer way to post: `ibv_wr_start`, one function for each part of a work request, `ibv_wr_complete`.

use std::ffi::{c_int, c_void};
use std::slice;

use weft_device::work_request::{INLINE_MAX, Operation, RemoteAddress, SGES_MAX};

use crate::address_handles::datagram;
use crate::contexts::own_context;
use crate::data::{error_of, gather};
use crate::pair::{Begun, OwnPair, own_pair};
use weft_verbs_abi::{AddressHandle, DataBuf, QpEx, QpExOps, Sge};

/// `enum ibv_qp_create_send_ops_flags`: write, write with immediate, send, send with immediate, read, compare-and-swap,
/// fetch-and-add.
pub(crate) const OPERATIONS: u64 = 0b111_1111;
/// Send, send with immediate.
pub(crate) const OPERATIONS_OF_DATAGRAMS: u64 = 0b1100;

pub(crate) fn functions() -> QpExOps {
    QpExOps {
        atomic_cmp_swp: Some(compare_swap),
        atomic_fetch_add: Some(fetch_add),
        rdma_read: Some(read),
        rdma_write: Some(write),
        rdma_write_imm: Some(write_imm),
        send: Some(send),
        send_imm: Some(send_imm),
        set_ud_addr: Some(set_ud_addr),
        set_inline_data: Some(set_inline_data),
        set_inline_data_list: Some(set_inline_data_list),
        set_sge: Some(set_sge),
        set_sge_list: Some(set_sge_list),
        start: Some(start),
        complete: Some(complete),
        abort: Some(abort),
        ..QpExOps::default()
    }
}

/// The block of a queue pair.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn own<'q>(pair: *mut QpEx) -> &'q OwnPair {
    // SAFETY: an extended queue pair begins with a plain one.
    unsafe { own_pair(pair.cast()) }
}

/// Begins a work request; `wr_id` and `wr_flags` are what the program has set.
///
/// # Safety
/// As [`own`].
unsafe fn begin(pair: *mut QpEx, operation: Operation, immediate: Option<u32>) {
    // SAFETY: as the caller says.
    let (own, wr_id, flags) = unsafe { (own(pair), (*pair).wr_id, (*pair).wr_flags) };
    let mut sends = own.lock_sends();
    sends.builder.finish(own.is_all_signaled);
    sends.builder.begun = Some(Begun {
        operation,
        immediate,
        wr_id,
        flags,
    });
}

unsafe extern "C" fn start(pair: *mut QpEx) {
    // SAFETY: one of ours (invariant 1).
    let own = unsafe { own(pair) };
    let mut sends = own.lock_sends();
    // Another thread posts: until it has ended that, this one waits (ibv_wr_post(3)).
    while sends.builder.is_started {
        drop(sends);
        std::thread::yield_now();
        sends = own.lock_sends();
    }
    sends.builder.clear();
    sends.builder.is_started = true;
    if !own.takes_sends() {
        sends.builder.error = libc::EINVAL;
    }
}

unsafe extern "C" fn abort(pair: *mut QpEx) {
    // SAFETY: one of ours (invariant 1).
    unsafe { own(pair) }.lock_sends().builder.clear();
}

unsafe extern "C" fn complete(pair: *mut QpEx) -> c_int {
    // SAFETY: one of ours, and its context is open (invariant 1).
    let (own, context, number) = unsafe {
        let base = &(*pair).base;
        (own(pair), own_context(base.context), base.qp_num)
    };
    let mut sends = own.lock_sends();
    let sends = &mut *sends;
    let builder = &mut sends.builder;
    builder.finish(own.is_all_signaled);
    let mut error = builder.error;
    if !builder.is_started {
        error = libc::EINVAL;
    }
    let mut batch = sends.ring.begin();
    let (polled, mut appended) = (context.polled.of_sends(number), 0);
    for entry in &builder.finished {
        if error == 0 && !sends.outstanding.has_room(|| polled, &batch) {
            error = libc::ENOMEM;
        }
        if error == 0 {
            match batch.append(entry.slots()) {
                Ok(()) => {
                    sends.outstanding.add();
                    appended += 1;
                }
                Err(full) => error = error_of(full),
            }
        }
    }
    let is_new = error == 0 && appended > 0;
    match is_new {
        true => batch.commit(),
        false => sends.outstanding.take_back(appended),
    }
    builder.clear();
    if is_new {
        context.ring(number);
    }
    error
}

unsafe extern "C" fn write(pair: *mut QpEx, key: u32, address: u64) {
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, Operation::Write(RemoteAddress { address, key }), None) };
}

unsafe extern "C" fn write_imm(pair: *mut QpEx, key: u32, address: u64, immediate: u32) {
    let operation = Operation::Write(RemoteAddress { address, key });
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, operation, Some(immediate)) };
}

unsafe extern "C" fn read(pair: *mut QpEx, key: u32, address: u64) {
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, Operation::Read(RemoteAddress { address, key }), None) };
}

unsafe extern "C" fn send(pair: *mut QpEx) {
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, Operation::Send, None) };
}

unsafe extern "C" fn send_imm(pair: *mut QpEx, immediate: u32) {
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, Operation::Send, Some(immediate)) };
}

unsafe extern "C" fn compare_swap(
    pair: *mut QpEx,
    key: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let remote = RemoteAddress { address, key };
    let operation = Operation::CompareSwap {
        remote,
        compare,
        swap,
    };
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, operation, None) };
}

unsafe extern "C" fn fetch_add(pair: *mut QpEx, key: u32, address: u64, add: u64) {
    let remote = RemoteAddress { address, key };
    // SAFETY: one of ours (invariant 1).
    unsafe { begin(pair, Operation::FetchAdd { remote, add }, None) };
}

unsafe extern "C" fn set_ud_addr(
    pair: *mut QpEx,
    to: *mut AddressHandle,
    queue_pair: u32,
    q_key: u32,
) {
    // SAFETY: one of ours (invariant 1).
    let own = unsafe { own(pair) };
    let mut sends = own.lock_sends();
    match &mut sends.builder.begun {
        Some(begun) if own.is_of_datagrams() && !to.is_null() => {
            // SAFETY: one of ours (invariant 1).
            begun.operation = unsafe { datagram(to, queue_pair, q_key) };
        }
        _ => sends.builder.error = libc::EINVAL,
    }
}

unsafe extern "C" fn set_sge(pair: *mut QpEx, local_key: u32, address: u64, bytes: u32) {
    let sge = Sge {
        address,
        bytes,
        local_key,
    };
    // SAFETY: one of ours (invariant 1).
    unsafe { set_sge_list(pair, 1, &raw const sge) };
}

unsafe extern "C" fn set_sge_list(pair: *mut QpEx, count: usize, list: *const Sge) {
    // SAFETY: one of ours (invariant 1).
    let own = unsafe { own(pair) };
    let mut sends = own.lock_sends();
    if count > SGES_MAX || count > own.sizes.send_sges as usize {
        sends.builder.error = libc::EINVAL;
    } else if count > 0 {
        // SAFETY: there are as many as the program says (invariant 1).
        let list = unsafe { slice::from_raw_parts(list, count) };
        sends.builder.sges.clear();
        sends.builder.sges.extend_from_slice(list);
    }
}

/// # Safety
/// The program may read there (invariant 1).
unsafe fn set_inline(pair: *mut QpEx, parts: impl Iterator<Item = (*const u8, usize)>) {
    // SAFETY: one of ours (invariant 1).
    let own = unsafe { own(pair) };
    let mut buffer = [0; INLINE_MAX];
    // SAFETY: as the caller says.
    let bytes = unsafe { gather(parts, &mut buffer) };
    let bytes = bytes.filter(|bytes| bytes.len() <= own.sizes.inline_bytes as usize);
    let mut sends = own.lock_sends();
    match bytes {
        Some(bytes) => sends.builder.inline = Some(bytes.to_vec()),
        None => sends.builder.error = libc::EINVAL,
    }
}

unsafe extern "C" fn set_inline_data(pair: *mut QpEx, from: *const c_void, length: usize) {
    // SAFETY: as the program says (invariant 1).
    unsafe { set_inline(pair, std::iter::once((from.cast(), length))) };
}

unsafe extern "C" fn set_inline_data_list(pair: *mut QpEx, count: usize, list: *const DataBuf) {
    let list = match count {
        0 => &[],
        // SAFETY: there are as many as the program says (invariant 1).
        count => unsafe { slice::from_raw_parts(list, count) },
    };
    let parts = list.iter().map(|part| (part.addr.cast(), part.length));
    // SAFETY: as the program says (invariant 1).
    unsafe { set_inline(pair, parts) };
}
