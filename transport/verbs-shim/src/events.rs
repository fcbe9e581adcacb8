//! Asynchronous events.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_device::event::{EVENT_BYTES, Event};

use crate::abi::{AsyncEvent, Context};
use crate::contexts::{lock, own_context, set_errno};

/// `enum ibv_event_type`.
const CQ_ERROR: c_int = 0;
const DEVICE_FATAL: c_int = 8;

/// The event socket of an open device.
pub(crate) struct Events {
    socket: OwnedFd,
    is_closed: AtomicBool,
    /// That the engine has ended was said.
    is_end_said: AtomicBool,
}

impl Events {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            is_closed: AtomicBool::new(false),
            is_end_said: AtomicBool::new(false),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The device is being closed: a thread that waits for an event stops waiting.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // SAFETY: it is a socket, and open.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// The next event. Without one `errno` says why.
    fn next(&self) -> Option<Event> {
        loop {
            let mut packet = [0u8; EVENT_BYTES];
            // SAFETY: so many bytes of room.
            let read = unsafe {
                let room = packet.as_mut_ptr().cast();
                libc::recv(self.socket.as_raw_fd(), room, packet.len(), 0)
            };
            match usize::try_from(read) {
                // The engine has ended.
                Ok(0)
                    if !self.is_closed.load(Ordering::Acquire)
                        && !self.is_end_said.swap(true, Ordering::Relaxed) =>
                {
                    return Some(Event::DeviceFatal);
                }
                Ok(0) => {
                    set_errno(libc::EIO);
                    return None;
                }
                // One of a later version is passed over.
                Ok(read) => {
                    if let Some(event) = Event::from_bytes(&packet[..read]) {
                        return Some(event);
                    }
                }
                Err(_) => return None,
            }
        }
    }
}

/// `ibv_get_async_event`: waits for an event, unless the program has made the descriptor non-blocking.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut Context, out: *mut AsyncEvent) -> c_int {
    // SAFETY: the context is open when the call begins (invariant 1). It may be closed while this waits.
    let events = Arc::clone(unsafe { &own_context(context).events });
    let Some(event) = events.next() else {
        return -1;
    };
    let (event_type, element) = match event {
        Event::CompletionQueueError(queue) => {
            // SAFETY: an event comes of an open context only (invariant 1).
            let known = lock(unsafe { &own_context(context).completion_queues });
            let address = known.get(&queue).copied();
            let element = address.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut);
            (CQ_ERROR, element)
        }
        Event::DeviceFatal => (DEVICE_FATAL, ptr::null_mut::<c_void>()),
    };
    // SAFETY: the program passes room for an event (invariant 1).
    unsafe {
        out.write(AsyncEvent {
            element,
            event_type,
        });
    }
    0
}

/// Events are not counted: an object may be destroyed while one of its events is being handled.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_: *mut AsyncEvent) {}
