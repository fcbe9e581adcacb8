//! The data path: what is posted and polled. It makes no system call but to wake an engine that sleeps.

use std::ffi::c_int;
use std::slice;
use std::sync::Mutex;

use weft_device::ring::{Batch, RingError, Wakeup};
use weft_device::work_request::{
    AppendError, INLINE_MAX, Operation, PLAIN_SGES_MAX, Payload, PlainOperation, PlainRequest,
    ReceiveRequest, RemoteAddress, SGES_MAX, WorkRequest,
};
use weft_memory::Words;

use crate::address_handles;
use crate::completion_queue::own_queue;
use crate::contexts::{lock, own_context};
use crate::outstanding::PolledEnd;
use crate::pair::{OwnPair, Receives, flag, own_pair};
use weft_verbs_abi::{CompletionQueue, QueuePair, RecvWr, SendWr, Sge, Wc};

/// The entries of a work request, at most `max`.
///
/// # Safety
/// There are as many as the program says (invariant 1).
#[inline]
unsafe fn sges<'s>(list: *const Sge, count: c_int, max: u32) -> Option<&'s [Sge]> {
    // A negative number is more than any.
    match count as u32 {
        0 => Some(&[]),
        // SAFETY: as the caller says.
        count if count <= max => Some(unsafe { slice::from_raw_parts(list, count as usize) }),
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

/// The number that verbs says where a work request is not posted.
fn append_error_of(error: AppendError) -> c_int {
    match error {
        AppendError::Ring(error) => error_of(error),
        AppendError::Request(_) => libc::EINVAL,
    }
}

pub(crate) unsafe extern "C" fn post_send(
    pair: *mut QueuePair,
    mut wr: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context) = unsafe { (own_pair(pair), own_context((*pair).context)) };
    // SAFETY: it is one of ours.
    let number = unsafe { (*pair).qp_num };
    if !own.takes_sends() {
        // SAFETY: the program passes room for a pointer, or none (invariant 1).
        unsafe { set_bad(bad, wr) };
        return libc::EINVAL;
    }
    let mut error = 0;
    let mut sends = own.lock_sends();
    let sends = &mut *sends;
    let mut batch = sends.ring.begin();
    let before = batch.produced();
    while !wr.is_null() {
        let polled = || context.polled.of_sends(number);
        if !sends.outstanding.has_room(polled, &batch) {
            error = libc::ENOMEM;
            break;
        }
        // SAFETY: a list of work requests (invariant 1).
        let request = unsafe { &*wr };
        // SAFETY: as before.
        let posted = match unsafe { plain(own, request) } {
            Some(plain) => batch.append_plain(&plain).map_err(append_error_of),
            // SAFETY: as before.
            None => unsafe { append(own, request, &mut batch) },
        };
        if let Err(number) = posted {
            error = number;
            break;
        }
        sends.outstanding.add();
        wr = request.next;
    }
    let is_new = batch.produced() != before;
    batch.commit();
    if is_new {
        context.ring(number);
    }
    if error != 0 {
        // SAFETY: the program passes room for a pointer, or none (invariant 1).
        unsafe { set_bad(bad, wr) };
    }
    error
}

/// Names the work request that was not posted.
///
/// # Safety
/// There is room for a pointer, or none.
unsafe fn set_bad<W>(bad: *mut *mut W, wr: *mut W) {
    if !bad.is_null() {
        // SAFETY: as the caller says.
        unsafe { *bad = wr };
    }
}

/// A work request of the kind that programs post most.
///
/// # Safety
/// It is one of the program's (invariant 1).
#[inline(always)]
unsafe fn plain<'r>(own: &OwnPair, request: &'r SendWr) -> Option<PlainRequest<'r>> {
    let flags = request.send_flags;
    let most = own.sizes.send_sges;
    let is_longer = request.num_sge as u32 > PLAIN_SGES_MAX as u32;
    if own.is_of_datagrams() || flags & flag::INLINE != 0 || is_longer {
        return None;
    }
    let operation = match request.opcode {
        0 | 1 => PlainOperation::Write,
        2 | 3 => PlainOperation::Send,
        4 => PlainOperation::Read,
        _ => return None,
    };
    let has_immediate = request.opcode & 1 != 0;
    Some(PlainRequest {
        wr_id: request.wr_id,
        operation,
        remote: RemoteAddress {
            address: request.wr[0],
            key: request.wr[1] as u32,
        },
        immediate: has_immediate.then_some(request.imm_data),
        signaled: own.is_all_signaled || flags & flag::SIGNALED != 0,
        fence: flags & flag::FENCE != 0,
        solicited: flags & flag::SOLICITED != 0,
        // SAFETY: as the caller says.
        sges: unsafe { sges(request.sg_list, request.num_sge, most) }?,
    })
}

/// Appends any work request.
///
/// # Safety
/// It is one of the program's (invariant 1).
#[inline(never)]
unsafe fn append(
    own: &OwnPair,
    request: &SendWr,
    batch: &mut Batch<'_, Words>,
) -> Result<(), c_int> {
    let is_inline = request.send_flags & flag::INLINE != 0;
    // Inline bytes may come from more places.
    let sges_max = match is_inline {
        true => SGES_MAX as u32,
        false => own.sizes.send_sges,
    };
    // SAFETY: as the caller says.
    let list = unsafe { sges(request.sg_list, request.num_sge, sges_max) };
    let list = list.ok_or(libc::EINVAL)?;
    let mut inline = [0; INLINE_MAX];
    let payload = match is_inline {
        true => {
            let parts = list.iter().map(|sge| {
                let from = std::ptr::with_exposed_provenance(sge.address as usize);
                (from, sge.bytes as usize)
            });
            // SAFETY: the program may read what it wants sent.
            let bytes = unsafe { gather(parts, &mut inline) };
            let bytes = bytes.filter(|bytes| bytes.len() <= own.sizes.inline_bytes as usize);
            Payload::Inline(bytes.ok_or(libc::EINVAL)?)
        }
        false => Payload::Sges(list),
    };
    let operation = match own.is_of_datagrams() {
        // SAFETY: the program passes an address handle.
        true => unsafe { address_handles::operation(request) },
        false => operation(request),
    };
    let (operation, immediate) = operation.ok_or(libc::EINVAL)?;
    let posted = WorkRequest {
        wr_id: request.wr_id,
        operation,
        immediate,
        signaled: own.is_all_signaled || request.send_flags & flag::SIGNALED != 0,
        fence: request.send_flags & flag::FENCE != 0,
        solicited: request.send_flags & flag::SOLICITED != 0,
        payload,
    };
    batch.append_work_request(&posted).map_err(append_error_of)
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
        // SAFETY: the program passes room for a pointer, or none (invariant 1).
        unsafe { set_bad(bad, wr) };
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
        if outstanding.is_some_and(|it| !it.has_room(|| polled, &batch)) {
            error = libc::ENOMEM;
            break;
        }
        // SAFETY: as the caller says.
        let (request, next) = unsafe { (&*wr, (*wr).next) };
        // SAFETY: as before.
        let list = unsafe { sges(request.sg_list, request.num_sge, sges_max) };
        let Some(sges) = list else {
            error = libc::EINVAL;
            break;
        };
        let posted = ReceiveRequest {
            wr_id: request.wr_id,
            sges,
        };
        match batch.append_receive(&posted) {
            Ok(()) => {
                if let Some(outstanding) = &mut receives.outstanding {
                    outstanding.add();
                }
                wr = next;
            }
            Err(refused) => error = append_error_of(refused),
        }
    }
    let is_new = batch.produced() != before;
    batch.commit();
    if error != 0 {
        // SAFETY: as the caller says.
        unsafe { set_bad(bad, wr) };
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
    // SAFETY: it is one of ours (invariant 1).
    let own = unsafe { own_queue(queue) };
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
    if polled == 0 {
        // SAFETY: its context is open (invariant 1).
        let context = unsafe { own_context((*queue).context) };
        if taken.found_nothing(context) {
            return -1;
        }
    }
    polled
}
