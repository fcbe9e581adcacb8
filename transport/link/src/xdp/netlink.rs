//! Questions to the kernel (netlink), and among them the next hop to a peer by its route and neighbour tables.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use super::packet::Mac;

// Of `linux/rtnetlink.h`, `linux/neighbour.h` and `linux/netlink.h`.
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const REQUEST: u16 = 1;
const MULTIPART: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const LINK_MTU: u16 = 4;
const LINK_INFO: u16 = 18;
const LINK_INFO_KIND: u16 = 1;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_SOURCE: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
/// A gateway of the other IP version: no next hop for this link.
const ROUTE_VIA: u16 = 18;
const ROUTE_UNICAST: u8 = 1;
const NEIGHBOUR_DESTINATION: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
/// Reachable, stale, delay, probe, no ARP or permanent: the kernel would send to it.
const NEIGHBOUR_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// `nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// `rtmsg` and `ndmsg`.
const ROUTE_BODY: usize = 12;

/// `ifinfomsg`.
const LINK_BODY: usize = 16;

/// What an interface is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) mtu: u32,
    pub(super) is_veth: bool,
}

/// A socket that asks the kernel, in the network namespace in which it was made.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open(protocol: SockProtocol) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// What the kernel says of an interface.
    pub(super) fn device(&mut self, interface: u32) -> Option<Device> {
        let mut body = [0; LINK_BODY];
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let answers = self.ask((GET_LINK, 0), &body, &[])?;
        device(answers.first()?)
    }

    /// The Ethernet address that packets from `here` to `peer` go to, where they leave by this interface and the kernel
    /// knows it.
    pub(super) fn next_hop(&mut self, interface: u32, here: IpAddr, peer: IpAddr) -> Option<Mac> {
        let next = self.route(interface, here, peer)?;
        let mut body = [0; ROUTE_BODY];
        body[0] = family(next);
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let answer = self.ask_of(GET_NEIGHBOUR, body, &[(NEIGHBOUR_DESTINATION, next)])?;
        neighbour(&answer)
    }

    fn route(&mut self, interface: u32, here: IpAddr, peer: IpAddr) -> Option<IpAddr> {
        let mut body = [0; ROUTE_BODY];
        let bits = if peer.is_ipv4() { 32 } else { 128 };
        body[..3].copy_from_slice(&[family(peer), bits, bits]);
        let addresses = [(ROUTE_DESTINATION, peer), (ROUTE_SOURCE, here)];
        let answer = self.ask_of(GET_ROUTE, body, &addresses)?;
        route(&answer, interface, peer)
    }

    fn ask_of(
        &mut self,
        kind: u16,
        body: [u8; ROUTE_BODY],
        addresses: &[(u16, IpAddr)],
    ) -> Option<Vec<u8>> {
        let bytes = |&(attribute, address): &(u16, IpAddr)| match address {
            IpAddr::V4(address) => (attribute, address.octets().to_vec()),
            IpAddr::V6(address) => (attribute, address.octets().to_vec()),
        };
        let attributes: Vec<_> = addresses.iter().map(bytes).collect();
        let answers = self.ask((kind, 0), &body, &attributes)?;
        answers.into_iter().next()
    }

    /// Asks, with these flags, and answers the messages that the kernel answers with.
    pub(super) fn ask(
        &mut self,
        (kind, flags): (u16, u16),
        body: &[u8],
        attributes: &[(u16, Vec<u8>)],
    ) -> Option<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = vec![0; HEADER];
        request.extend(body);
        for (attribute, value) in attributes {
            request.extend((4 + value.len() as u16).to_ne_bytes());
            request.extend(attribute.to_ne_bytes());
            request.extend(value);
            request.resize(request.len().next_multiple_of(4), 0);
        }
        let bytes = request.len() as u32;
        request[..4].copy_from_slice(&bytes.to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        let socket = self.socket.as_raw_fd();
        send(socket, &request, MsgFlags::empty()).ok()?;
        let (mut answers, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
        loop {
            // The kernel has answered within the call.
            let bytes = recv(socket, &mut buffer, MsgFlags::MSG_DONTWAIT).ok()?;
            let mut rest = &buffer[..bytes];
            while let Some(bytes) = number(rest, 0).map(u32::from_ne_bytes) {
                let message = rest.get(..bytes as usize).filter(|it| it.len() >= HEADER)?;
                rest = &rest[(bytes as usize).next_multiple_of(4).min(rest.len())..];
                if number(message, 8).map(u32::from_ne_bytes) != Some(self.sequence) {
                    continue;
                }
                if kind_of(message) == Some(DONE) {
                    return Some(answers);
                }
                answers.push(message.to_vec());
                if number(message, 6).map(u16::from_ne_bytes)? & MULTIPART == 0 {
                    return Some(answers);
                }
            }
        }
    }
}

fn device(answer: &[u8]) -> Option<Device> {
    if kind_of(answer)? != NEW_LINK {
        return None;
    }
    let mtu = attribute_behind(LINK_BODY, answer, LINK_MTU).and_then(|it| number(it, 0))?;
    let info = attribute_behind(LINK_BODY, answer, LINK_INFO);
    let kind = info.and_then(|info| attribute_in(info, LINK_INFO_KIND));
    Some(Device {
        mtu: u32::from_ne_bytes(mtu),
        is_veth: kind == Some(b"veth\0"),
    })
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => FAMILY_IPV4,
        IpAddr::V6(_) => FAMILY_IPV6,
    }
}

/// The gateway of a route over an interface, or the peer itself.
fn route(answer: &[u8], interface: u32, peer: IpAddr) -> Option<IpAddr> {
    let is_route = kind_of(answer)? == NEW_ROUTE && *answer.get(HEADER + 7)? == ROUTE_UNICAST;
    let over = attribute(answer, ROUTE_INTERFACE).and_then(|it| number(it, 0));
    if !is_route || over.map(u32::from_ne_bytes) != Some(interface) {
        return None;
    }
    if attribute(answer, ROUTE_VIA).is_some() {
        return None;
    }
    match attribute(answer, ROUTE_GATEWAY) {
        None => Some(peer),
        Some(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes).map(|it| Ipv4Addr::from(it).into());
            let v6 = || <[u8; 16]>::try_from(bytes).map(|it| Ipv6Addr::from(it).into());
            v4.or_else(|_| v6()).ok()
        }
    }
}

/// The Ethernet address of a neighbour that the kernel would send to.
fn neighbour(answer: &[u8]) -> Option<Mac> {
    let state = u16::from_ne_bytes(number(answer, HEADER + 8)?);
    if kind_of(answer)? != NEW_NEIGHBOUR || state & NEIGHBOUR_VALID == 0 {
        return None;
    }
    attribute(answer, NEIGHBOUR_MAC)?.try_into().ok()
}

pub(super) fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(super) fn kind_of(answer: &[u8]) -> Option<u16> {
    number(answer, 4).map(u16::from_ne_bytes)
}

/// The attribute with this number of a route or neighbour.
fn attribute(answer: &[u8], wanted: u16) -> Option<&[u8]> {
    attribute_behind(ROUTE_BODY, answer, wanted)
}

/// The attribute with this number behind a body of so many bytes.
pub(super) fn attribute_behind(body: usize, answer: &[u8], wanted: u16) -> Option<&[u8]> {
    attribute_in(answer.get(HEADER + body..)?, wanted)
}

fn attribute_in(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let bytes = usize::from(u16::from_ne_bytes(number(rest, 0)?));
        let value = rest.get(4..bytes)?;
        if number(rest, 2).map(u16::from_ne_bytes) == Some(wanted) {
            return Some(value);
        }
        // They begin at multiples of four.
        rest = rest.get(bytes.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, body: [u8; 12], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut answer = vec![0; HEADER];
        answer[4..6].copy_from_slice(&kind.to_ne_bytes());
        answer.extend(body);
        for (name, value) in attributes {
            answer.extend((4 + value.len() as u16).to_ne_bytes());
            answer.extend(name.to_ne_bytes());
            answer.extend(*value);
            answer.resize(answer.len().next_multiple_of(4), 0);
        }
        let bytes = answer.len() as u32;
        answer[..4].copy_from_slice(&bytes.to_ne_bytes());
        answer
    }

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
    const GATEWAY: [u8; 4] = [10, 9, 0, 254];

    fn body(at: usize, value: u8) -> [u8; 12] {
        let mut body = [0; ROUTE_BODY];
        body[at] = value;
        body
    }

    #[test]
    fn a_route_leads_to_its_gateway_or_to_the_peer_over_this_interface_only() {
        let interface = 7u32.to_ne_bytes();
        let unicast = body(7, ROUTE_UNICAST);
        let direct = answer(
            NEW_ROUTE,
            unicast,
            &[(3, &[1]), (ROUTE_INTERFACE, &interface)],
        );
        assert_eq!(route(&direct, 7, PEER), Some(PEER));
        assert_eq!(route(&direct, 8, PEER), None);
        let attributes = [(ROUTE_GATEWAY, &GATEWAY[..]), (ROUTE_INTERFACE, &interface)];
        let routed = answer(NEW_ROUTE, unicast, &attributes);
        assert_eq!(route(&routed, 7, PEER), Some(GATEWAY.into()));
        let attributes = [(ROUTE_VIA, &[0; 18][..]), (ROUTE_INTERFACE, &interface)];
        let via = answer(NEW_ROUTE, unicast, &attributes);
        assert_eq!(route(&via, 7, PEER), None);
        let local = answer(NEW_ROUTE, body(7, 2), &[(ROUTE_INTERFACE, &interface)]);
        assert_eq!(route(&local, 7, PEER), None);
        for bytes in 0..direct.len() {
            assert_eq!(route(&direct[..bytes], 7, PEER), None);
        }
    }

    #[test]
    fn a_neighbour_counts_while_the_kernel_would_send_to_it() {
        let mac = [2, 0, 0, 0, 0, 9];
        let of = |state| answer(NEW_NEIGHBOUR, body(8, state), &[(NEIGHBOUR_MAC, &mac)]);
        for state in [0x02, 0x04, 0x08, 0x10, 0x80] {
            assert_eq!(neighbour(&of(state)), Some(mac));
        }
        // Incomplete and failed.
        for state in [0x01, 0x20, 0] {
            assert_eq!(neighbour(&of(state)), None);
        }
        let error = answer(2, body(8, 2), &[(NEIGHBOUR_MAC, &mac)]);
        assert_eq!(neighbour(&error), None);
    }
}
