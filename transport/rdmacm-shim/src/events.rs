//! Events, as a program takes them.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{CmEvent, CmId, ConnParam, EventChannel, Param, UdParam};
use crate::acknowledgement::{OwnEvent, Owner};
use crate::channel::{Channel, Queued, What};
use crate::endpoint::{Endpoint, Event, INVALID_SERVICE, kind};
use crate::errno::fail;
use crate::ids::{OwnId, acknowledge_last, own_id, rdma_migrate_id, shared};
use crate::message::{End, Message};
use crate::{addresses, devices, queue_pairs};

/// What the peer has said, as a program reads it.
fn param(id: &OwnId, end: &End, private_data: &[u8]) -> Param {
    let private = match private_data {
        [] => ptr::null(),
        bytes => bytes.as_ptr(),
    };
    let private_data_len = private_data.len() as u8;
    match id.has_datagrams() {
        true => Param {
            ud: UdParam {
                private_data: private,
                private_data_len,
                ah_attr: queue_pairs::address_of(end.gid, 0),
                qp_num: end.queue_pair,
                qkey: end.q_key,
            },
        },
        false => Param {
            conn: ConnParam {
                private_data: private,
                private_data_len,
                // What the one begins, the other carries out.
                responder_resources: end.initiator_depth,
                initiator_depth: end.responder_resources,
                flow_control: end.flow_control,
                retry_count: end.retries,
                rnr_retry_count: end.receiver_not_ready_retries,
                srq: end.has_shared_receive_queue.into(),
                qp_num: end.queue_pair,
            },
        },
    }
}

fn event(owner: Owner, id: *mut CmId, listener: *mut CmId, event: Event) -> *mut CmEvent {
    let Event { kind, status, end } = event;
    let private_data = end.private_data.clone();
    // SAFETY: the id is there until its event is acknowledged (invariant 3).
    let param = param(unsafe { own_id(id) }, &end, &private_data);
    let head = CmEvent {
        id,
        listen_id: listener,
        event: kind,
        status,
        param,
    };
    let made = OwnEvent {
        head,
        owner,
        private_data,
    };
    Box::into_raw(Box::new(made)).cast()
}

/// Does what the library does before a program sees an event. `None`: the program does not see it.
fn prepare(channel: &Channel, queued: Queued) -> Option<*mut CmEvent> {
    let owner = queued.owner;
    let id = owner.id;
    // SAFETY: the event holds up the end of the id (invariant 3).
    let own = unsafe { own_id(id) };
    let mut told = match queued.what {
        What::Event(told) => told,
        What::Request { socket, end } => {
            // SAFETY: as before.
            let (port_space, is_sync) = unsafe { ((*id).ps as u16, own.is_sync()) };
            let port_space = match own.has_datagrams() {
                true => crate::endpoint::DATAGRAMS,
                false => port_space,
            };
            let endpoint = Endpoint::requested(port_space, socket, end.clone());
            let child = child_of(channel, id, endpoint)?;
            // SAFETY: it was just made.
            if is_sync && unsafe { rdma_migrate_id(child, ptr::null_mut()) } != 0 {
                // SAFETY: it was just made, and nobody has it.
                unsafe { crate::ids::rdma_destroy_id(child) };
                return None;
            }
            let told = Event {
                end,
                ..Event::new(kind::CONNECT_REQUEST, 0)
            };
            return Some(event(owner, child, id, told));
        }
    };
    // SAFETY: as before. The program makes and destroys its queue pair, but not while it connects.
    let has_pair = unsafe { !(*id).qp.is_null() };
    match told.kind {
        kind::CONNECT_RESPONSE if has_pair => {
            told.kind = kind::ESTABLISHED;
            // SAFETY: as before.
            if let Err(number) = unsafe { queue_pairs::establish(id) } {
                told.kind = kind::CONNECT_ERROR;
                told.status = -number;
                own.is_failed.store(true, Ordering::Relaxed);
            }
        }
        kind::REJECTED | kind::DISCONNECTED if own.is_failed.load(Ordering::Relaxed) => {
            return None;
        }
        // SAFETY: as before.
        kind::REJECTED => unsafe { queue_pairs::to_error(id) },
        _ => {}
    }
    Some(event(owner, id, ptr::null_mut(), told))
}

/// The id for a request to a listener. Where no device belongs to the address that it came by, it is refused.
fn child_of(channel: &Channel, listener: *mut CmId, mut endpoint: Endpoint) -> Option<*mut CmId> {
    let addresses = || {
        let socket = endpoint.socket.as_ref()?;
        let local = socket.local_addr().ok()?.as_socket()?;
        let remote = socket.peer_addr().ok()?.as_socket()?;
        let device = devices::of_address(local.ip().to_canonical())?;
        Some((local, remote, device))
    };
    let Some((local, remote, device)) = addresses() else {
        let message = Message::Reject {
            status: INVALID_SERVICE,
            private_data: Vec::new(),
        };
        // Whether it hears of it or not: its connection ends.
        let _ = endpoint.send_last(&message);
        return None;
    };
    // SAFETY: the listener is there until its event is acknowledged (invariant 3); the child was just made.
    unsafe {
        let of = &*listener;
        let made = OwnId::make(of.channel, of.context, of.ps, of.qp_type);
        let child = (*made).head();
        (*made).set_device(device);
        addresses::put(local, &raw mut (*child).route.source);
        addresses::put(remote, &raw mut (*child).route.destination);
        if let Some(peer) = &endpoint.peer {
            (*child).route.destination_gid = peer.gid;
        }
        channel.insert((*made).token, (*made).owner(), endpoint);
        Some(child)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    out: *mut *mut CmEvent,
) -> c_int {
    if channel.is_null() || out.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: it is one of ours (invariant 1).
    let channel = unsafe { shared(channel) };
    loop {
        let queued = match channel.next() {
            Ok(queued) => queued,
            Err(number) => return fail(number),
        };
        let events = Arc::clone(&queued.owner.events);
        match prepare(&channel, queued) {
            Some(event) => {
                // SAFETY: the program has room for a pointer (invariant 1).
                unsafe { *out = event };
                return 0;
            }
            None => events.end(),
        }
    }
}

/// Of an id whose calls wait: waits for the event of one, and says how the call has ended.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn complete(id: *mut CmId) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if !own_id(id).is_sync() {
            return 0;
        }
        acknowledge_last(id);
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*id).channel, &raw mut event) != 0 {
            return -1;
        }
        (*id).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => 0,
            (kind::REJECTED, _) => fail(libc::ECONNREFUSED),
            (_, status) => fail(status.saturating_abs()),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    let name = usize::try_from(event).ok().and_then(|at| NAMES.get(at));
    name.copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
