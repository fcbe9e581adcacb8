//! Addresses of sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use socket2::SockAddr;

/// The address that a program passes; none of another family than IPv4 and IPv6.
///
/// # Safety
/// It is null, or an address of C (invariant 1).
pub(crate) unsafe fn of(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the family says which structure it is; programs may have it at any place.
    unsafe {
        match c_int_of(ptr::read_unaligned(&raw const (*address).sa_family)) {
            libc::AF_INET => {
                let address = ptr::read_unaligned(address.cast::<sockaddr_in>());
                let ip = Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr));
                Some(SocketAddr::from((ip, u16::from_be(address.sin_port))))
            }
            libc::AF_INET6 => {
                let address = ptr::read_unaligned(address.cast::<sockaddr_in6>());
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                let (flow, scope) = (address.sin6_flowinfo, address.sin6_scope_id);
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

fn c_int_of(family: libc::sa_family_t) -> i32 {
    family.into()
}

/// Writes an address where a program reads it.
///
/// # Safety
/// There is room for it.
pub(crate) unsafe fn put(address: SocketAddr, out: *mut sockaddr_storage) {
    let address = SockAddr::from(address);
    // SAFETY: an address is no longer than the storage for one.
    unsafe {
        let bytes = address.as_ptr().cast::<u8>();
        ptr::copy_nonoverlapping(bytes, out.cast::<u8>(), address.len() as usize);
    }
}

/// The GID of RoCE v2 for an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address that this machine sends to another from. Nothing is sent.
pub(crate) fn source_for(destination: SocketAddr) -> io::Result<IpAddr> {
    let any = match destination {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // A port of no meaning: 0 is refused.
    socket.connect(SocketAddr::new(destination.ip(), 9))?;
    Ok(socket.local_addr()?.ip())
}
