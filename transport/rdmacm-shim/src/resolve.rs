//! Addresses, devices and options of an id.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;

use libc::sockaddr;

use crate::abi::CmId;
use crate::endpoint::{Event, Stage, kind};
use crate::errno::{fail, fail_with};
use crate::events::complete;
use crate::ids::own_id;
use crate::{addresses, devices};

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// Binds an id to an address, and to the device that the address belongs to.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn bind_id(id: *mut CmId, address: SocketAddr) -> io::Result<()> {
    // SAFETY: as the caller says.
    let own = unsafe { own_id(id) };
    let ip = address.ip().to_canonical();
    // libfabric binds an id to each address in turn and takes those that have a device: peers cannot reach a loopback one.
    let device = match ip.is_unspecified() || ip.is_loopback() {
        true => None,
        false => {
            let found = devices::of_address(ip);
            let missing = || io::Error::from_raw_os_error(libc::ENODEV);
            Some(found.ok_or_else(missing)?)
        }
    };
    let bound = own
        .channel()
        .with(own.token, |endpoint| endpoint.bind(address));
    let bound = bound.ok_or_else(invalid)??;
    // SAFETY: as the caller says; there is room for any address.
    unsafe { addresses::put(bound, &raw mut (*id).route.source) };
    if let Some(device) = device {
        own.set_device(device);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, address: *const sockaddr) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let bound = unsafe {
        let address = addresses::of(address);
        address.map_or_else(|| Err(invalid()), |address| bind_id(id, address))
    };
    match bound {
        Ok(()) => 0,
        Err(error) => fail_with(&error),
    }
}

/// The event of an address that was looked for.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn resolve(
    id: *mut CmId,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> io::Result<Event> {
    // SAFETY: as the caller says.
    let own = unsafe { own_id(id) };
    if let Some(source) = source {
        // SAFETY: as before.
        unsafe { bind_id(id, source)? };
    }
    let bound = own.channel().with(own.token, |endpoint| {
        if endpoint.stage != Stage::Idle {
            return Err(invalid());
        }
        endpoint.destination = Some(destination);
        let socket = endpoint.socket.as_ref();
        Ok(socket.and_then(|socket| socket.local_addr().ok()?.as_socket()))
    });
    let bound = bound.ok_or_else(invalid)??;
    let port = bound.map_or(0, |bound| bound.port());
    let source = match bound.filter(|bound| !bound.ip().is_unspecified()) {
        Some(bound) => bound.ip(),
        None => addresses::source_for(destination)?,
    };
    let Some(device) = devices::of_address(source.to_canonical()) else {
        return Ok(Event::new(kind::ADDRESS_ERROR, -libc::ENODEV));
    };
    own.set_device(device);
    // SAFETY: as before; there is room for any address.
    unsafe {
        let route = &raw mut (*id).route;
        addresses::put(SocketAddr::new(source, port), &raw mut (*route).source);
        addresses::put(destination, &raw mut (*route).destination);
        (*route).destination_gid = addresses::gid(destination.ip().to_canonical());
    }
    Ok(Event::new(kind::ADDRESS_RESOLVED, 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    source: *const sockaddr,
    destination: *const sockaddr,
    _: c_int,
) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        let from = addresses::of(source);
        let (Some(to), false) = (
            addresses::of(destination),
            from.is_none() && !source.is_null(),
        ) else {
            return fail(libc::EINVAL);
        };
        match resolve(id, from, to) {
            Ok(event) => {
                let own = own_id(id);
                own.channel().push(own.token, event);
                complete(id)
            }
            Err(error) => fail_with(&error),
        }
    }
}

/// IP finds the route: there is nothing to do but to say so.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, _: c_int) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let own = unsafe { own_id(id) };
    let channel = own.channel();
    let is_resolved = channel.with(own.token, |endpoint| endpoint.destination.is_some());
    if is_resolved != Some(true) || own.device.get().is_none() {
        return fail(libc::EINVAL);
    }
    channel.push(own.token, Event::new(kind::ROUTE_RESOLVED, 0));
    // SAFETY: as before.
    unsafe { complete(id) }
}

unsafe fn port_of(address: *const libc::sockaddr_storage) -> u16 {
    // SAFETY: as the caller says: it is an address, or all 0.
    let address = unsafe { addresses::of(address.cast()) };
    address.map_or(0, |address| address.port()).to_be()
}

/// In network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: as the program says (invariant 1).
    unsafe { port_of(&raw const (*id).route.source) }
}

/// In network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: as the program says (invariant 1).
    unsafe { port_of(&raw const (*id).route.destination) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: as the program says (invariant 1): there are so many bytes.
    let (own, byte, number) = unsafe {
        let byte = (length == 1).then(|| value.cast::<u8>().read());
        let number = (length == 4).then(|| value.cast::<c_int>().read_unaligned());
        (own_id(id), byte, number)
    };
    let done = own.channel().with(own.token, |endpoint| {
        match (level, name, byte, number) {
            // RDMA_OPTION_ID_TOS
            (0, 0, Some(class), _) => endpoint.traffic_class = class,
            // RDMA_OPTION_ID_REUSEADDR: a port is always free again when its listener is gone.
            (0, 1, _, Some(_)) => {}
            // RDMA_OPTION_ID_AFONLY
            (0, 2, _, Some(only)) => endpoint.is_v6_only = Some(only != 0),
            // RDMA_OPTION_ID_ACK_TIMEOUT
            (0, 3, Some(timeout), _) if timeout < 32 => endpoint.timeout = timeout,
            (0, 0..=3, ..) => return Err(libc::EINVAL),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    });
    match done {
        Some(Ok(())) => 0,
        Some(Err(number)) => fail(number),
        None => fail(libc::EINVAL),
    }
}
