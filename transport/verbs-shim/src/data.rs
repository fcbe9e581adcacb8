//! The data path: what is posted and polled. It makes no system call but to wake an engine that sleeps.

use std::ffi::c_int;
use std::slice;
use std::sync::Mutex;

use weft_device::ring::{RingError, Wakeup};
use weft_device::work_request::{
    INLINE_MAX, Operation, Payload, ReceiveRequest, RemoteAddress, SGES_MAX, WorkRequest,
};

use crate::address_handles;
use crate::completion_queue::own_queue;
use crate::contexts::{lock, own_context};
use crate::outstanding::PolledEnd;
use crate::pair::{Receives, flag, own_pair};
use weft_verbs_abi::{CompletionQueue, QueuePair, RecvWr, SendWr, Sge, Wc};

/// The entries of a work request.
///
/// # Safety
/// There are as many as the program says (invariant 1).
unsafe fn sges<'s>(list: *const Sge, count: c_int) -> Option<&'s [Sge]> {
    match usize::try_from(count).ok()? {
        0 => Some(&[]),
        // SAFETY: as the caller says; both are two numbers of 32 bits behind one of 64.
        count if count <= SGES_MAX => Some(unsafe { slice::from_raw_parts(list, count) }),
        _ => None,
    }
}

/// Copies the bytes that entries name, for a work request that carries them itself. Their keys mean nothing.
///
/// # Safety
/// The program may read there (invariant 1).
pub(crate) unsafe fn gather(
    sges: impl Iterator<Item = (*const u8, usize)>,
    buffer: &mut [u8; INLINE_MAX],
) -> Option<&[u8]> {
    let mut filled = 0;
    for (from, length) in sges {
        let room = buffer.get_mut(filled..)?.get_mut(..length)?;
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy(from, room.as_mut_ptr(), length) };
        filled += length;
    }
    Some(&buffer[..filled])
}

fn operation(wr: &SendWr) -> Option<(Operation, Option<u32>)> {
    let remote = RemoteAddress {
        address: wr.wr[0],
        key: wr.wr[1] as u32,
    };
    let of_atomic = RemoteAddress {
        address: wr.wr[0],
        key: wr.wr[3] as u32,
    };
    Some(match wr.opcode {
        0 => (Operation::Write(remote), None),
        1 => (Operation::Write(remote), Some(wr.imm_data)),
        2 => (Operation::Send, None),
        3 => (Operation::Send, Some(wr.imm_data)),
        4 => (Operation::Read(remote), None),
        5 => (
            Operation::CompareSwap {
                remote: of_atomic,
                compare: wr.wr[1],
                swap: wr.wr[2],
            },
            None,
        ),
        6 => (
            Operation::FetchAdd {
                remote: of_atomic,
                add: wr.wr[1],
            },
            None,
        ),
        _ => return None,
    })
}

/// The number that verbs says where a ring takes no more.
pub(crate) fn error_of(error: RingError) -> c_int {
    match error {
        RingError::Full => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

pub(crate) unsafe extern "C" fn post_send(
    pair: *mut QueuePair,
    mut wr: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context) = unsafe { (own_pair(pair), own_context((*pair).context)) };
    // SAFETY: as before.
    let polled = context.polled.of_sends(unsafe { (*pair).qp_num });
    let mut error = if own.takes_sends() { 0 } else { libc::EINVAL };
    let mut sends = own.lock_sends();
    let sends = &mut *sends;
    let mut batch = sends.ring.begin();
    let before = batch.produced();
    while error == 0 && !wr.is_null() {
        if !sends.outstanding.has_room(polled, &batch) {
            error = libc::ENOMEM;
            break;
        }
        // SAFETY: a list of work requests (invariant 1).
        let (request, next) = unsafe { (&*wr, (*wr).next) };
        // SAFETY: as before.
        let list = unsafe { sges(request.sg_list, request.num_sge) };
        let mut inline;
        let payload = match list {
            // Only these need room here.
            Some(list) if request.send_flags & flag::INLINE != 0 => {
                let parts = list.iter().map(|sge| {
                    let from = std::ptr::with_exposed_provenance(sge.address as usize);
                    (from, sge.bytes as usize)
                });
                inline = [0; INLINE_MAX];
                // SAFETY: the program may read what it wants sent.
                let bytes = unsafe { gather(parts, &mut inline) };
                let bytes = bytes.filter(|bytes| bytes.len() <= own.sizes.inline_bytes as usize);
                bytes.map(Payload::Inline)
            }
            list => list
                .filter(|list| list.len() <= own.sizes.send_sges as usize)
                .map(Payload::Sges),
        };
        let operation = match own.is_of_datagrams() {
            // SAFETY: the program passes an address handle.
            true => unsafe { address_handles::operation(request) },
            false => operation(request),
        };
        let Some(((operation, immediate), payload)) = operation.zip(payload) else {
            error = libc::EINVAL;
            break;
        };
        let posted = WorkRequest {
            wr_id: request.wr_id,
            operation,
            immediate,
            signaled: own.is_all_signaled || request.send_flags & flag::SIGNALED != 0,
            fence: request.send_flags & flag::FENCE != 0,
            solicited: request.send_flags & flag::SOLICITED != 0,
            payload,
        };
        let appended = match sends.entry.set_work_request(&posted) {
            Ok(()) => batch.append(sends.entry.slots()).map_err(error_of),
            Err(_) => Err(libc::EINVAL),
        };
        match appended {
            Ok(()) => {
                sends.outstanding.add();
                wr = next;
            }
            Err(number) => error = number,
        }
    }
    let is_new = batch.produced() != before;
    batch.commit();
    if is_new {
        // SAFETY: it is one of ours.
        context.ring(unsafe { (*pair).qp_num });
    }
    if error != 0 && !bad.is_null() {
        // SAFETY: the program passes room for a pointer (invariant 1).
        unsafe { *bad = wr };
    }
    error
}

pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut QueuePair,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context) = unsafe { (own_pair(pair), own_context((*pair).context)) };
    let receives = own.receives.as_ref().filter(|_| own.takes_receives());
    let Some(receives) = receives else {
        if !bad.is_null() {
            // SAFETY: the program passes room for a pointer (invariant 1).
            unsafe { *bad = wr };
        }
        return libc::EINVAL;
    };
    // SAFETY: it is one of ours, and what it posts is as the program says (invariant 1).
    let (error, is_new) = unsafe {
        let polled = context.polled.of_receives((*pair).qp_num);
        post_receives(receives, own.sizes.receive_sges, polled, wr, bad)
    };
    if is_new {
        // SAFETY: it is one of ours.
        context.ring(unsafe { (*pair).qp_num });
    }
    error
}

/// Posts receives. The number of the error, or 0, and whether the ring has new ones.
///
/// # Safety
/// It is a list of work requests, and there is room for a pointer (invariant 1).
pub(crate) unsafe fn post_receives(
    receives: &Mutex<Receives>,
    sges_max: u32,
    polled: &PolledEnd,
    mut wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> (c_int, bool) {
    let mut error = 0;
    let mut receives = lock(receives);
    let receives = &mut *receives;
    let mut batch = receives.ring.begin();
    let before = batch.produced();
    while error == 0 && !wr.is_null() {
        let outstanding = receives.outstanding.as_mut();
        if outstanding.is_some_and(|it| !it.has_room(polled, &batch)) {
            error = libc::ENOMEM;
            break;
        }
        // SAFETY: as the caller says.
        let (request, next) = unsafe { (&*wr, (*wr).next) };
        // SAFETY: as before.
        let list = unsafe { sges(request.sg_list, request.num_sge) };
        let list = list.filter(|list| list.len() <= sges_max as usize);
        let posted = list.map(|sges| ReceiveRequest {
            wr_id: request.wr_id,
            sges,
        });
        let appended = match posted.map(|posted| receives.entry.set_receive(&posted)) {
            Some(Ok(())) => batch.append(receives.entry.slots()).map_err(error_of),
            _ => Err(libc::EINVAL),
        };
        match appended {
            Ok(()) => {
                if let Some(outstanding) = &mut receives.outstanding {
                    outstanding.add();
                }
                wr = next;
            }
            Err(number) => error = number,
        }
    }
    let is_new = batch.produced() != before;
    batch.commit();
    if error != 0 && !bad.is_null() {
        // SAFETY: as the caller says.
        unsafe { *bad = wr };
    }
    (error, is_new)
}

pub(crate) unsafe extern "C" fn req_notify_cq(
    queue: *mut CompletionQueue,
    only_solicited: c_int,
) -> c_int {
    let wakeup = match only_solicited {
        0 => Wakeup::Any,
        _ => Wakeup::Solicited,
    };
    // SAFETY: it is one of ours (invariant 1).
    lock(&unsafe { own_queue(queue) }.taken)
        .ring_mut()
        .arm(wakeup);
    0
}

pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut CompletionQueue,
    count: c_int,
    out: *mut Wc,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context) = unsafe { (own_queue(queue), own_context((*queue).context)) };
    let mut taken = lock(&own.taken);
    let mut polled = 0;
    while polled < count {
        match taken.next() {
            Ok(Some(wc)) => {
                // SAFETY: the program passes room for so many (invariant 1).
                unsafe { out.add(polled as usize).write(wc) };
                polled += 1;
            }
            Ok(None) => break,
            Err(_) => return -1,
        }
    }
    match polled == 0 && taken.found_nothing(context) {
        true => -1,
        false => polled,
    }
}
