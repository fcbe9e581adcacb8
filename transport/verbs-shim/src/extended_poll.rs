//! How a program polls an extended completion queue: from `ibv_start_poll` to `ibv_end_poll` one thread reads the fields of
//! one completion after the other.

use std::ffi::c_int;
use std::sync::MutexGuard;

use crate::completion_queue::{OwnQueue, Taken, own_queue};
use crate::contexts::{lock, own_context};
use weft_verbs_abi::{CompletionQueueEx, CompletionQueueExOps, PollCqAttr, Wc};

/// `IBV_WC_STANDARD_FLAGS`: the fields that have a function.
pub(crate) const FIELDS: u64 = 0x7f;

/// The block of an extended completion queue.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn own<'q>(queue: *mut CompletionQueueEx) -> &'q OwnQueue {
    // SAFETY: as the caller says.
    unsafe { own_queue(queue.cast()) }
}

/// Takes the next completion for the program to read; ENOENT when there is none.
///
/// # Safety
/// It is one of ours, and its context is open (invariant 1).
unsafe fn next(queue: *mut CompletionQueueEx, mut taken: MutexGuard<'_, Taken>) -> c_int {
    // SAFETY: as the caller says.
    let context = unsafe { own_context((*queue).base.context) };
    let wc = match taken.next() {
        Ok(Some(wc)) => wc,
        Ok(None) if !taken.found_nothing(context) => return libc::ENOENT,
        Ok(None) | Err(_) => return libc::EIO,
    };
    // SAFETY: it is one of ours. Only the thread that polls reads these, by the header's definition.
    unsafe {
        (&raw mut (*queue).status).write(wc.status);
        (&raw mut (*queue).wr_id).write(wc.wr_id);
    }
    taken.current = Some(wc);
    0
}

unsafe extern "C" fn start_poll(queue: *mut CompletionQueueEx, attr: *const PollCqAttr) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let mut taken = lock(&own(queue).taken);
        // Another thread polls: as with a NIC, this one waits.
        while taken.current.is_some() {
            drop(taken);
            std::thread::yield_now();
            taken = lock(&own(queue).taken);
        }
        next(queue, taken)
    }
}

unsafe extern "C" fn next_poll(queue: *mut CompletionQueueEx) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe { next(queue, lock(&own(queue).taken)) }
}

unsafe extern "C" fn end_poll(queue: *mut CompletionQueueEx) {
    // SAFETY: as the program says (invariant 1).
    lock(unsafe { &own(queue).taken }).current = None;
}

/// Functions that read a field of the completion.
macro_rules! reads {
    ($($name:ident: $type:ty = $field:ident;)*) => {
        $(unsafe extern "C" fn $name(queue: *mut CompletionQueueEx) -> $type {
            // SAFETY: as the program says (invariant 1).
            let taken = lock(unsafe { &own(queue).taken });
            taken.current.as_ref().map_or(0, |wc: &Wc| wc.$field.into())
        })*
    };
}

reads! {
    read_opcode: c_int = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: u32 = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}

/// Of every extended queue, whatever fields it was made with.
pub(crate) fn functions() -> CompletionQueueExOps {
    CompletionQueueExOps {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        ..CompletionQueueExOps::default()
    }
}
