//! Completion channels: a program waits for completions instead of polling.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use weft_device::control::{Answer, ErrorNumber, Request};

use crate::completion_queue::{OwnQueue, own_queue};
use crate::contexts::{done, lock, not_made, own_context, set_errno};
use weft_verbs_abi::{CompletionChannel, CompletionQueue, Context};

/// A completion channel.
#[repr(C)]
pub(crate) struct OwnChannel {
    channel: CompletionChannel,
    pub(crate) handle: u32,
    /// Its descriptor is also in `channel`, for programs that poll it.
    socket: OwnedFd,
}

/// The block of a completion channel.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_channel<'c>(channel: *mut CompletionChannel) -> &'c OwnChannel {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*channel.cast::<OwnChannel>() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompletionChannel {
    // SAFETY: it is open (invariant 1).
    let asked = unsafe { own_context(context) }.ask_with(&Request::CreateChannel, None);
    let (handle, mut descriptors) = match asked {
        Ok((Answer::Created(handle), descriptors)) => (handle, descriptors),
        Ok(_) => return not_made(ErrorNumber::EngineGone),
        Err(error) => return not_made(error),
    };
    let Some(socket) = descriptors.pop() else {
        return not_made(ErrorNumber::EngineGone);
    };
    let made = OwnChannel {
        channel: CompletionChannel {
            context,
            fd: socket.as_raw_fd(),
            refcnt: 0,
        },
        handle,
        socket,
    };
    Box::into_raw(Box::new(made)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompletionChannel) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let request = Request::DestroyChannel(own_channel(channel).handle);
        let error = done((*channel).context, &request);
        if error == 0 {
            drop(Box::from_raw(channel.cast::<OwnChannel>()));
        }
        error
    }
}

/// `ibv_get_cq_event`: waits for an event, unless the program has made the descriptor non-blocking.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompletionChannel,
    queue: *mut *mut CompletionQueue,
    queue_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: it is one of ours, and its context is open (invariant 1).
    let (own, context) = unsafe { (own_channel(channel), own_context((*channel).context)) };
    loop {
        let mut handle = [0u8; 4];
        // SAFETY: four bytes of room.
        let read = unsafe {
            let room = handle.as_mut_ptr().cast();
            libc::recv(own.socket.as_raw_fd(), room, handle.len(), 0)
        };
        match read {
            4 => {}
            0 => {
                // The engine has ended.
                set_errno(libc::EIO);
                return -1;
            }
            // `errno` says why.
            _ => return -1,
        }
        let known = lock(&context.events.completion_queues);
        // An event of a queue that is gone meanwhile is none.
        if let Some(address) = known.get(&u32::from_ne_bytes(handle)) {
            let found: *mut OwnQueue = ptr::with_exposed_provenance_mut(*address);
            // SAFETY: it is not destroyed while it is in the table, which is locked; there is room for two pointers.
            unsafe {
                (*found).completion_events.add();
                *queue = found.cast();
                *queue_context = (*found.cast::<CompletionQueue>()).cq_context;
            }
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut CompletionQueue, count: c_uint) {
    // SAFETY: it is one of ours (invariant 1).
    unsafe { own_queue(queue) }
        .completion_events
        .acknowledge(count);
}
