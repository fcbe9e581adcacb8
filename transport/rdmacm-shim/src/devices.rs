//! The devices, and which of them an address belongs to.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use weft_verbs_abi::{Context, Device, DeviceAttr, PortAttr, ProtectionDomain};

use crate::addresses;
use crate::verbs::{Verbs, verbs};

/// A device, which stays open until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct OpenDevice {
    device: *mut Device,
    pub(crate) context: *mut Context,
    /// The default protection domain of ids.
    pub(crate) domain: *mut ProtectionDomain,
    pub(crate) gid: [u8; 16],
    /// Reads and atomics at a time: those that it carries out, and those that it begins.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// `enum ibv_mtu`.
    pub(crate) path_mtu: u8,
}

// SAFETY: objects of verbs may be used by any thread, and what is here does not change.
unsafe impl Send for OpenDevice {}
// SAFETY: as before.
unsafe impl Sync for OpenDevice {}

static OPEN: Mutex<Vec<OpenDevice>> = Mutex::new(Vec::new());

fn open(verbs: &Verbs, device: *mut Device) -> Option<OpenDevice> {
    // SAFETY: it is a device of the list; the structures are numbers, and each call has room for its answer (invariant 4).
    unsafe {
        let context = (verbs.open_device)(device);
        if context.is_null() {
            return None;
        }
        let mut attr: DeviceAttr = std::mem::zeroed();
        let mut port: PortAttr = std::mem::zeroed();
        let mut gid = [0; 16];
        let answers = [
            (verbs.query_device)(context, &raw mut attr),
            (verbs.query_port)(context, 1, &raw mut port),
            (verbs.query_gid)(context, 1, 0, &raw mut gid),
        ];
        let domain = (verbs.alloc_pd)(context);
        if answers != [0; 3] || domain.is_null() {
            // What it has made goes with it.
            (verbs.close_device)(context);
            return None;
        }
        // 255 means "as many as possible" to programs.
        let at_most = |number: c_int| number.clamp(0, 254) as u8;
        Some(OpenDevice {
            device,
            context,
            domain,
            gid,
            responder_resources: at_most(attr.max_qp_rd_atom),
            initiator_depth: at_most(attr.max_qp_init_rd_atom),
            path_mtu: port.active_mtu.clamp(1, 5) as u8,
        })
    }
}

/// All devices that there are now. One that cannot be opened is left out.
fn all() -> Vec<OpenDevice> {
    let Some(verbs) = verbs() else {
        return Vec::new();
    };
    let mut known = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut count = 0;
    // SAFETY: there is room for a number (invariant 4).
    let list = unsafe { (verbs.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Vec::new();
    }
    let mut devices = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or_default() {
        // SAFETY: the list has so many devices.
        let device = unsafe { *list.add(at) };
        let found = known.iter().find(|open| open.device == device).copied();
        let found = found.or_else(|| {
            let opened = open(verbs, device)?;
            known.push(opened);
            Some(opened)
        });
        devices.extend(found);
    }
    // SAFETY: it came from verbs, and is used no more.
    unsafe { (verbs.free_device_list)(list) };
    devices
}

/// Which of devices with these GIDs an address of this machine belongs to: the one whose GID it is, or the only one.
fn choose(gids: &[[u8; 16]], address: IpAddr) -> Option<usize> {
    let wanted = addresses::gid(address);
    let only = (gids.len() == 1).then_some(0);
    gids.iter().position(|gid| *gid == wanted).or(only)
}

/// The device of an address of this machine.
pub(crate) fn of_address(address: IpAddr) -> Option<OpenDevice> {
    let devices = all();
    let gids: Vec<_> = devices.iter().map(|device| device.gid).collect();
    choose(&gids, address).map(|at| devices[at])
}

/// `rdma_get_devices`. The contexts stay open.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
    let devices = all();
    let mut list: Vec<*mut Context> = devices.iter().map(|device| device.context).collect();
    list.push(ptr::null_mut());
    // SAFETY: malloc may be called with any size; it has room for so many pointers.
    unsafe {
        let out = libc::malloc(size_of_val(list.as_slice())).cast::<*mut Context>();
        if !out.is_null() {
            ptr::copy_nonoverlapping(list.as_ptr(), out, list.len());
        }
        if !count.is_null() {
            *count = devices.len() as c_int;
        }
        out
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut c_void) {
    // SAFETY: it came from malloc (invariant 1).
    unsafe { libc::free(list) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_device_with_its_gid_or_to_the_only_one() {
        let gids = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| addresses::gid(ip.into()));
        assert_eq!(choose(&gids, IpAddr::from([10, 0, 0, 2])), Some(1));
        assert_eq!(choose(&gids, IpAddr::from([127, 0, 0, 1])), None);
        assert_eq!(choose(&gids[..1], IpAddr::from([127, 0, 0, 1])), Some(0));
        assert_eq!(choose(&[], IpAddr::from([127, 0, 0, 1])), None);
    }
}
