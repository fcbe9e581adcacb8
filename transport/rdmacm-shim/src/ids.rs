//! Ids and event channels: made, moved and destroyed.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weft_verbs_abi::QpInitAttr;

use crate::abi::{CmId, EventChannel};
use crate::acknowledgement::{Owner, Unacknowledged, rdma_ack_cm_event};
use crate::channel::{Channel, token};
use crate::devices::OpenDevice;
use crate::endpoint::{DATAGRAMS, Endpoint};
use crate::errno::{fail, fail_with};

/// `enum ibv_qp_type`.
pub(crate) const RC: c_int = 2;
pub(crate) const UD: c_int = 4;

/// `enum rdma_port_space`, but for datagrams.
pub(crate) const IPOIB: c_int = 0x0002;
pub(crate) const TCP: c_int = 0x0106;
pub(crate) const IB: c_int = 0x013f;

/// An event channel. A thread may still wait for an event when it is gone: the rest lives as long as that thread.
#[repr(C)]
struct OwnChannel {
    head: EventChannel,
    shared: Arc<Channel>,
}

/// An id.
#[repr(C)]
pub(crate) struct OwnId {
    head: UnsafeCell<CmId>,
    pub(crate) token: u64,
    events: Arc<Unacknowledged>,
    /// Its calls wait until they are done: it has a channel of its own.
    is_sync: AtomicBool,
    /// Its queue pair could not be connected: the program knows, so the end of the connection is no news.
    pub(crate) is_failed: AtomicBool,
    pub(crate) device: OnceLock<OpenDevice>,
    /// Of a listener: what the queue pairs of requests are made with.
    pub(crate) pair_attributes: Mutex<Option<PairAttributes>>,
}

/// Attributes of a queue pair to be made.
#[derive(Clone, Copy)]
pub(crate) struct PairAttributes(pub(crate) QpInitAttr);

// SAFETY: its pointers are the program's, who may use them by any thread.
unsafe impl Send for PairAttributes {}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The block of an id.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_id<'i>(id: *mut CmId) -> &'i OwnId {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*id.cast::<OwnId>() }
}

/// What an event channel shares with the threads that wait by it.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn shared(channel: *mut EventChannel) -> Arc<Channel> {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { Arc::clone(&(*channel.cast::<OwnChannel>()).shared) }
}

impl OwnId {
    /// A new id, which its channel does not know yet.
    pub(crate) fn make(
        channel: *mut EventChannel,
        context: *mut c_void,
        port_space: c_int,
        pair_type: c_int,
    ) -> *mut Self {
        // SAFETY: numbers and pointers may be 0.
        let mut head: CmId = unsafe { std::mem::zeroed() };
        head.channel = channel;
        head.context = context;
        head.ps = port_space;
        head.qp_type = pair_type;
        Box::into_raw(Box::new(Self {
            head: UnsafeCell::new(head),
            token: token(),
            events: Arc::default(),
            is_sync: AtomicBool::new(false),
            is_failed: AtomicBool::new(false),
            device: OnceLock::new(),
            pair_attributes: Mutex::new(None),
        }))
    }

    pub(crate) fn head(&self) -> *mut CmId {
        self.head.get()
    }

    pub(crate) fn channel(&self) -> Arc<Channel> {
        // SAFETY: an id has a channel (invariant 2).
        unsafe { shared((*self.head()).channel) }
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sync(&self) {
        self.is_sync.store(true, Ordering::Relaxed);
    }

    /// Whether it connects datagram queue pairs.
    pub(crate) fn has_datagrams(&self) -> bool {
        // SAFETY: it is there (invariant 2).
        unsafe { (*self.head()).qp_type == UD }
    }

    /// Ties it to a device, once.
    pub(crate) fn set_device(&self, device: OpenDevice) {
        const DEFAULT_PARTITION: u16 = 0xffff;
        if self.device.set(device).is_ok() {
            // SAFETY: it is there (invariant 2).
            unsafe {
                let head = &mut *self.head();
                head.verbs = device.context;
                head.pd = device.domain;
                head.port_num = 1;
                head.route.source_gid = device.gid;
                head.route.partition[0] = DEFAULT_PARTITION;
            }
        }
    }

    /// The owner of its events.
    pub(crate) fn owner(&self) -> Owner {
        Owner {
            id: self.head(),
            events: Arc::clone(&self.events),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    match Channel::new() {
        Ok(made) => {
            let head = EventChannel {
                fd: made.descriptor(),
            };
            let shared = Arc::new(made);
            Box::into_raw(Box::new(OwnChannel { head, shared })).cast()
        }
        Err(error) => {
            fail_with(&error);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: it is one of ours, and used no more (invariants 1 and 2).
    drop(unsafe { Box::from_raw(channel.cast::<OwnChannel>()) });
}

/// `rdma_create_id`, for queue pairs of a type. Without a channel the id gets one of its own.
pub(crate) unsafe fn create(
    channel: *mut EventChannel,
    out: *mut *mut CmId,
    context: *mut c_void,
    port_space: c_int,
    pair_type: c_int,
) -> c_int {
    let Ok(space) = u16::try_from(port_space) else {
        return fail(libc::EINVAL);
    };
    let is_sync = channel.is_null();
    let channel = match is_sync {
        true => rdma_create_event_channel(),
        false => channel,
    };
    if channel.is_null() {
        return -1;
    }
    let made = OwnId::make(channel, context, port_space, pair_type);
    // SAFETY: it was just made, and the program has room for a pointer (invariant 1).
    unsafe {
        if is_sync {
            (*made).set_sync();
        }
        let space = match pair_type {
            UD => DATAGRAMS,
            _ => space,
        };
        let endpoint = Endpoint::new(space);
        shared(channel).insert((*made).token, (*made).owner(), endpoint);
        *out = made.cast();
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    out: *mut *mut CmId,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    let datagrams = c_int::from(DATAGRAMS);
    let pair_type = match port_space {
        TCP | IB => RC,
        IPOIB => UD,
        space if space == datagrams => UD,
        _ => return fail(libc::EINVAL),
    };
    // SAFETY: as the program says (invariant 1).
    unsafe { create(channel, out, context, port_space, pair_type) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 to 3).
    unsafe {
        let own = own_id(id);
        own.channel().remove(own.token);
        acknowledge_last(id);
        own.events.wait();
        let own_channel = own.is_sync().then_some((*id).channel);
        drop(Box::from_raw(id.cast::<OwnId>()));
        if let Some(channel) = own_channel {
            rdma_destroy_event_channel(channel);
        }
    }
    0
}

/// Acknowledges the event of the last call that waited.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn acknowledge_last(id: *mut CmId) {
    // SAFETY: as the caller says. The event is one of ours, which nobody else acknowledges.
    unsafe {
        let event = (&raw mut (*id).event).replace(ptr::null_mut());
        if !event.is_null() {
            rdma_ack_cm_event(event);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(id: *mut CmId, to: *mut EventChannel) -> c_int {
    // SAFETY: it is one of ours (invariant 1).
    let own = unsafe { own_id(id) };
    let (was_sync, is_sync) = (own.is_sync(), to.is_null());
    if was_sync && is_sync {
        return fail(libc::EINVAL);
    }
    let to = match is_sync {
        true => rdma_create_event_channel(),
        false => to,
    };
    if to.is_null() {
        return -1;
    }
    // SAFETY: both channels are ours, as well as the id (invariant 1).
    unsafe {
        let from = (*id).channel;
        let moved = own.channel().move_to(&shared(to), own.token);
        acknowledge_last(id);
        (*id).channel = to;
        own.is_sync.store(is_sync, Ordering::Relaxed);
        // The program handles no event of the old channel any more when this is done.
        own.events.wait();
        if was_sync {
            rdma_destroy_event_channel(from);
        }
        match moved {
            Ok(()) => 0,
            Err(error) => fail_with(&error),
        }
    }
}
