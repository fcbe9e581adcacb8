//! Asynchronous events, as programs get and acknowledge them.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use weft_device::event::{EventType, ObjectType};
use weft_verbs_abi::{AsyncEvent, Context};

use crate::completion_queue::own_queue;
use crate::contexts::{lock, own_context, set_errno};
use crate::pair::own_pair;
use crate::shared_receives::own_shared;
use crate::unacknowledged::Unacknowledged;

/// The events of an object; none are counted of the device.
///
/// # Safety
/// It is one of ours, of this kind (invariant 1).
unsafe fn unacknowledged<'o>(of: ObjectType, object: *mut c_void) -> Option<&'o Unacknowledged> {
    // SAFETY: as the caller says.
    unsafe {
        match of {
            ObjectType::CompletionQueue => Some(&own_queue(object.cast()).events),
            ObjectType::QueuePair => Some(&own_pair(object.cast()).events),
            ObjectType::SharedReceiveQueue => Some(&own_shared(object.cast()).events),
            ObjectType::Device => None,
        }
    }
}

/// `ibv_get_async_event`: waits for an event, unless the program has made the descriptor non-blocking.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut Context, out: *mut AsyncEvent) -> c_int {
    // SAFETY: the context is open when the call begins (invariant 1). It may be closed while this waits.
    let events = Arc::clone(unsafe { &own_context(context).events });
    let (element, kind) = loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(error) => {
                set_errno(error.raw_os_error().unwrap_or(libc::EIO));
                return -1;
            }
        };
        let of = event.kind.object_type();
        // Not by the context, which may be closed by now.
        let known = lock(match of {
            ObjectType::CompletionQueue => &events.completion_queues,
            ObjectType::QueuePair => &events.queue_pairs,
            ObjectType::SharedReceiveQueue => &events.shared_receive_queues,
            ObjectType::Device => break (ptr::null_mut(), event.kind),
        });
        // An event of an object that is gone meanwhile is none.
        if let Some(address) = known.get(&event.object) {
            let element = ptr::with_exposed_provenance_mut(*address);
            // SAFETY: it is not destroyed while it is in the table, which is locked.
            if let Some(of_object) = unsafe { unacknowledged(of, element) } {
                of_object.add();
            }
            break (element, event.kind);
        }
    };
    // SAFETY: the program passes room for an event (invariant 1).
    unsafe {
        out.write(AsyncEvent {
            element,
            event_type: kind as c_int,
        });
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: the program passes an event that it has taken (invariant 1), so its object is not destroyed.
    let of = unsafe {
        let AsyncEvent {
            element,
            event_type,
        } = *event;
        EventType::from_number(event_type as u32)
            .and_then(|kind| unacknowledged(kind.object_type(), element))
    };
    if let Some(of) = of {
        of.acknowledge(1);
    }
}
