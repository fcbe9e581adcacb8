//! UDP datagrams: the bytes of their headers, and how a packet's sender is written for the core.

use std::net::{IpAddr, SocketAddr};

use weft_core::units::{Host, Source};

/// Bytes of an IPv4 header without options (RFC 791), an IPv6 header (RFC 8200) and a UDP header (RFC 768).
pub(crate) const IPV4_BYTES: u16 = 20;
pub(crate) const IPV6_BYTES: u16 = 40;
pub(crate) const UDP_BYTES: u16 = 8;

/// Bytes that IP and UDP add to each datagram.
pub(crate) fn header_bytes(address: IpAddr) -> u16 {
    ip_bytes(address) + UDP_BYTES
}

/// Bytes that IP adds to each.
pub(crate) fn ip_bytes(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => IPV4_BYTES,
        IpAddr::V6(_) => IPV6_BYTES,
    }
}

/// What the core knows a sender by: the address, the sender's port, the index of ours.
pub(crate) fn source(from: SocketAddr, local: u16) -> Source {
    let mut bytes = [0; Source::BYTES];
    bytes[..16].copy_from_slice(&Host::from(from.ip()).0);
    bytes[16..18].copy_from_slice(&from.port().to_be_bytes());
    bytes[18..].copy_from_slice(&local.to_be_bytes());
    Source(bytes)
}

/// The sender's port.
pub(crate) fn port_of(source: Source) -> u16 {
    u16::from_be_bytes([source.0[16], source.0[17]])
}
