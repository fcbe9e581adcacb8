//! Open devices, and what they say of themselves.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_device::control::{Answer, ErrorNumber, Limits, Outcome, Request};
use weft_device::doorbell::{DeviceState, Doorbells};
use weft_device::ring::Ring;
use weft_device::space::RingPlace;
use weft_device_socket::Client;
use weft_memory::Words;

use crate::devices::{ibv_get_device_guid, put_text};
use crate::events::Events;
use crate::outstanding::PolledEnds;
use weft_verbs_abi::{Context, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, VerbsContext};

/// `enum ibv_mtu`: 4,096 bytes.
const MTU_4096: c_int = 5;
/// The only P_Key.
const PARTITION: u16 = 0xffff;

/// An open device.
#[repr(C)]
pub(crate) struct OwnContext {
    pub(crate) verbs: VerbsContext,
    /// The process that has opened it.
    pub(crate) process: u32,
    pub(crate) client: Client,
    /// Held while a thread makes a call, and for nothing else.
    pub(crate) calling: Mutex<()>,
    pub(crate) doorbells: Doorbells<Words>,
    /// Completion queues write into it.
    pub(crate) polled: Arc<PolledEnds>,
    /// Shared with threads that wait for an event, and may do so when this is gone.
    pub(crate) events: Arc<Events>,
}

/// The block of a context.
///
/// # Safety
/// The context is open (invariant 1).
pub(crate) unsafe fn own_context<'c>(context: *mut Context) -> &'c OwnContext {
    let before = offset_of!(OwnContext, verbs) + offset_of!(VerbsContext, context);
    // SAFETY: it is the last field of the first field of a block (invariant 2).
    unsafe { &*context.byte_sub(before).cast::<OwnContext>() }
}

/// Sets `errno`, and gives the number.
pub(crate) fn set_errno(number: c_int) -> c_int {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = number };
    number
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call whose answer says nothing; the number of its error, or 0.
///
/// # Safety
/// The context is open (invariant 1).
pub(crate) unsafe fn done(context: *mut Context, request: &Request) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { own_context(context) }.ask(request) {
        Ok(_) => 0,
        Err(error) => set_errno(error.number()),
    }
}

/// An object that was not made.
pub(crate) fn not_made<T>(error: ErrorNumber) -> *mut T {
    set_errno(error.number());
    ptr::null_mut()
}

impl OwnContext {
    /// Makes a call of the engine.
    pub(crate) fn ask(&self, request: &Request) -> Outcome {
        self.ask_with(request, None).map(|(answer, _)| answer)
    }

    /// The same, with a descriptor. Answers also the descriptors that come with the answer.
    pub(crate) fn ask_with(
        &self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Answer, Vec<OwnedFd>), ErrorNumber> {
        if self.is_of_parent() {
            return Err(ErrorNumber::EngineGone);
        }
        let _calling = lock(&self.calling);
        self.client.ask_with(request, file)
    }

    /// Whether a parent of this process has opened it. Asked before any lock: a thread that held it is not in the child.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// What the device can do.
    pub(crate) fn limits(&self) -> &Limits {
        self.client.limits()
    }

    /// A ring that the engine has made.
    pub(crate) fn ring_at(&self, place: RingPlace) -> Result<Ring<Words>, ErrorNumber> {
        self.client.ring(place).ok_or(ErrorNumber::EngineGone)
    }

    /// Has the engine make a queue: its number, how many entries it has room for, and its ring.
    pub(crate) fn make_queue(
        &self,
        request: &Request,
    ) -> Result<(u32, u32, Ring<Words>), ErrorNumber> {
        match self.ask(request)? {
            Answer::CreatedQueue {
                queue,
                entries,
                ring,
            } => Ok((queue, entries, self.ring_at(ring)?)),
            _ => Err(ErrorNumber::EngineGone),
        }
    }

    /// Says that a queue has new entries.
    pub(crate) fn ring(&self, queue: u32) {
        if self.doorbells.ring(queue) {
            self.client.wake();
        }
    }

    /// Looks whether the engine is still there.
    pub(crate) fn look_for_engine(&self) {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: one byte of room.
        let read = unsafe {
            let room = (&raw mut byte).cast();
            libc::recv(self.client.socket().as_raw_fd(), room, 1, flags)
        };
        if read == 0 {
            self.doorbells.set_state(DeviceState::EngineGone);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: it is open, and used no more from here on (invariant 1); the block came from a box.
    unsafe {
        let own = ptr::from_ref(own_context(context)).cast_mut();
        // A child that closes what its parent has open closes its own descriptors and no more.
        if !(*own).is_of_parent() {
            (*own).events.close();
        }
        drop(Box::from_raw(own));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut Context, out: *mut DeviceAttr) -> c_int {
    // SAFETY: it is open (invariant 1).
    let (limits, guid) = unsafe {
        (
            *own_context(context).limits(),
            ibv_get_device_guid((*context).device),
        )
    };
    let number = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let mut attr = DeviceAttr {
        fw_ver: [0; 64],
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        // As Linux' own software device: of no vendor.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: number(limits.queue_pairs),
        max_qp_wr: number(limits.work_requests),
        device_cap_flags: 0,
        max_sge: number(limits.sges),
        max_sge_rd: number(limits.sges),
        max_cq: number(limits.completion_queues),
        max_cqe: number(limits.completions),
        max_mr: number(limits.regions),
        max_pd: number(limits.domains),
        max_qp_rd_atom: limits.requests.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: number(limits.queue_pairs.saturating_mul(limits.requests.into())),
        max_qp_init_rd_atom: limits.requests.into(),
        max_ee_init_rd_atom: 0,
        // Among this device's own accesses.
        atomic_cap: 1,
        unsupported: [0; 8],
        max_ah: number(limits.address_handles),
        fast: [0; 2],
        max_srq: number(limits.queue_pairs),
        max_srq_wr: number(limits.work_requests),
        max_srq_sge: number(limits.sges),
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    };
    put_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    // SAFETY: the program passes room for it (invariant 1).
    unsafe { out.write(attr) };
    0
}

/// `ibv_query_device_ex`: a program may know a shorter structure than this library, or a longer one.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    _: *const c_void,
    out: *mut DeviceAttrEx,
    bytes: usize,
) -> c_int {
    if bytes < size_of::<DeviceAttr>() {
        return libc::EINVAL;
    }
    // SAFETY: the program passes room for so many bytes (invariant 1), which any values may have.
    unsafe {
        out.cast::<u8>().write_bytes(0, bytes);
        ibv_query_device(context, out.cast());
        if bytes >= size_of::<DeviceAttrEx>() {
            (&raw mut (*out).phys_port_cnt_ex).write(1);
        }
    }
    0
}

fn port() -> PortAttr {
    const ACTIVE: c_int = 4;
    const CONNECTION_MANAGEMENT: u32 = 1 << 16;
    const GIDS_OF_IP: u32 = 1 << 26;
    const LINK_UP: u8 = 5;
    const ETHERNET: u8 = 2;
    PortAttr {
        state: ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: 1,
        port_cap_flags: CONNECTION_MANAGEMENT | GIDS_OF_IP,
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // The true rate is that of the paths: this is 4 lanes of 25 Gbit/s.
        active_width: 2,
        active_speed: 32,
        phys_state: LINK_UP,
        link_layer: ETHERNET,
        flags: 0,
        port_cap_flags2: 0,
    }
}

pub(crate) unsafe extern "C" fn query_port(
    _: *mut Context,
    number: u8,
    out: *mut PortAttr,
    size: usize,
) -> c_int {
    if number != 1 {
        return libc::EINVAL;
    }
    let attr = port();
    let known = size.min(size_of::<PortAttr>());
    // SAFETY: the program passes `size` bytes (invariant 1); what a newer header has behind is 0.
    unsafe {
        ptr::write_bytes(out.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const attr).cast::<u8>(), out.cast(), known);
    }
    0
}

/// The structure of old programs ends before `port_cap_flags2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    number: u8,
    out: *mut PortAttr,
) -> c_int {
    let short = offset_of!(PortAttr, port_cap_flags2);
    // SAFETY: the program passes room for it (invariant 1).
    unsafe { query_port(context, number, out, short) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    number: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    if number != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the context is open, and there is room for a GID (invariant 1).
    unsafe { *out = own_context(context).client.gid() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    number: u32,
    index: u32,
    out: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    const ROCE_V2: u32 = 2;
    if number != 1 || index != 0 || flags != 0 || size < size_of::<GidEntry>() {
        return libc::EINVAL;
    }
    // SAFETY: the context is open, and there is room for an entry (invariant 1).
    unsafe {
        *out = GidEntry {
            gid: own_context(context).client.gid(),
            gid_index: 0,
            port_num: 1,
            gid_type: ROCE_V2,
            ndev_ifindex: 0,
        };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    out: *mut GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    if room == 0 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: as the program says (invariant 1).
    match unsafe { _ibv_query_gid_ex(context, 1, 0, out, flags, size) } {
        0 => 1,
        error => -(error as isize),
    }
}

/// Private: `enum ibv_gid_type_sysfs`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    _: *mut Context,
    number: u8,
    index: c_int,
    out: *mut c_int,
) -> c_int {
    const ROCE_V2: c_int = 1;
    if number != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: there is room for a number (invariant 1).
    unsafe { *out = ROCE_V2 };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _: *mut Context,
    number: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    if number != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: there is room for a number (invariant 1).
    unsafe { *out = PARTITION.to_be() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_: *mut Context, number: u8, pkey: u16) -> c_int {
    match number == 1 && u16::from_be(pkey) == PARTITION {
        true => 0,
        false => -1,
    }
}

/// Memory is not pinned, so a fork takes nothing away from a device.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    const UNNEEDED: c_int = 2;
    UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}
