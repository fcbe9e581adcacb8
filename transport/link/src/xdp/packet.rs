//! Ethernet, IP and UDP headers: written in front of a packet, and checked on what has arrived. No system calls.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use crate::datagram::{IPV4_BYTES, IPV6_BYTES, UDP_BYTES, header_bytes};

/// Bytes of an Ethernet header without VLAN tag.
pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub(super) const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xDD];
/// The protocol number of UDP.
pub(super) const UDP: u8 = 17;
/// The first byte of an IPv4 header without options.
pub(super) const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
/// More fragments, and a fragment's offset.
pub(super) const FRAGMENT: [u8; 2] = [0x3F, 0xFF];

const DONT_FRAGMENT: [u8; 2] = [0x40, 0x00];
const HOP_LIMIT: u8 = 64;
const CONGESTION_EXPERIENCED: u8 = 0b11;
const IP: usize = ETHERNET_BYTES;
const IPV4_END: usize = IP + IPV4_BYTES as usize;
const IPV6_END: usize = IP + IPV6_BYTES as usize;
const UDP_HEADER: usize = UDP_BYTES as usize;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Bytes of all headers of a packet from or to `address`.
pub(super) fn headers_bytes(address: IpAddr) -> usize {
    ETHERNET_BYTES + usize::from(header_bytes(address))
}

/// What the headers of a packet say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headers {
    pub(super) from: (Mac, SocketAddr),
    pub(super) to: (Mac, SocketAddr),
    /// Differentiated services and ECN.
    pub(super) class: u8,
}

impl Headers {
    /// Writes the headers at the start of `packet`, whose payload stands behind them.
    pub(super) fn write(&self, packet: &mut [u8]) {
        let ((from_mac, from), (to_mac, to)) = (self.from, self.to);
        let ip_bytes = packet.len() - ETHERNET_BYTES;
        packet[..6].copy_from_slice(&to_mac);
        packet[6..12].copy_from_slice(&from_mac);
        let (udp, pseudo) = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet[12..14].copy_from_slice(&ETHERTYPE_IPV4);
                let header = &mut packet[IP..IPV4_END];
                header.fill(0);
                header[..2].copy_from_slice(&[IPV4_WITHOUT_OPTIONS, self.class]);
                header[2..4].copy_from_slice(&(ip_bytes as u16).to_be_bytes());
                header[6..8].copy_from_slice(&DONT_FRAGMENT);
                header[8..10].copy_from_slice(&[HOP_LIMIT, UDP]);
                header[12..16].copy_from_slice(&from.octets());
                header[16..20].copy_from_slice(&to.octets());
                let checksum = !fold(sum(header));
                header[10..12].copy_from_slice(&checksum.to_ne_bytes());
                // UDP needs no checksum over IPv4.
                (IPV4_END, None)
            }
            (from, to) => {
                packet[12..14].copy_from_slice(&ETHERTYPE_IPV6);
                let bytes = ip_bytes - usize::from(IPV6_BYTES);
                let header = &mut packet[IP..IPV6_END];
                header[..4].copy_from_slice(&[0x60 | self.class >> 4, self.class << 4, 0, 0]);
                header[4..6].copy_from_slice(&(bytes as u16).to_be_bytes());
                header[6..8].copy_from_slice(&[UDP, HOP_LIMIT]);
                header[8..24].copy_from_slice(&ipv6(from).octets());
                header[24..40].copy_from_slice(&ipv6(to).octets());
                let length = sum(&(bytes as u32).to_be_bytes()) + sum(&[0, UDP]);
                (IPV6_END, Some(sum(&header[8..40]) + length))
            }
        };
        let bytes = (packet.len() - udp) as u16;
        let header = &mut packet[udp..udp + UDP_HEADER];
        header[..2].copy_from_slice(&from.port().to_be_bytes());
        header[2..4].copy_from_slice(&to.port().to_be_bytes());
        header[4..6].copy_from_slice(&bytes.to_be_bytes());
        header[6..8].fill(0);
        if let Some(pseudo) = pseudo {
            // 0 would say that there is none.
            let checksum = match !fold(pseudo + sum(&packet[udp..])) {
                0 => u16::MAX,
                checksum => checksum,
            };
            packet[udp + 6..udp + 8].copy_from_slice(&checksum.to_ne_bytes());
        }
    }
}

fn ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A datagram that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    /// The port here.
    pub(super) port: u16,
    /// Congestion Experienced is set.
    pub(super) ce: bool,
    /// Where in the packet its payload is.
    pub(super) payload: Range<usize>,
}

/// The datagram in a packet to this end. None if the kernel would not take the packet for one; UDP's checksum is not looked at.
pub(super) fn parse(packet: &[u8], mac: Mac, here: IpAddr) -> Option<Datagram> {
    if packet.get(..6)? != mac {
        return None;
    }
    let ethertype = packet.get(12..14)?;
    let (from, class, udp, end) = match here {
        IpAddr::V4(here) => {
            let header = packet.get(IP..IPV4_END)?;
            let bytes = usize::from(be16(header, 2));
            let is_whole = be16(header, 6) & u16::from_be_bytes(FRAGMENT) == 0;
            let is_right = ethertype == ETHERTYPE_IPV4
                && header[0] == IPV4_WITHOUT_OPTIONS
                && fold(sum(header)) == u16::MAX
                && is_whole
                && header[9] == UDP
                && header[16..20] == here.octets();
            if !is_right {
                return None;
            }
            let from = Ipv4Addr::from(<[u8; 4]>::try_from(&header[12..16]).ok()?);
            if from.is_broadcast() {
                return None;
            }
            (IpAddr::V4(from), header[1], IPV4_END, IP + bytes)
        }
        IpAddr::V6(here) => {
            let header = packet.get(IP..IPV6_END)?;
            let bytes = usize::from(be16(header, 4));
            let is_right = ethertype == ETHERTYPE_IPV6
                && header[0] >> 4 == 6
                && header[6] == UDP
                && header[24..40] == here.octets();
            if !is_right {
                return None;
            }
            let from = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?);
            let class = header[0] << 4 | header[1] >> 4;
            (IpAddr::V6(from), class, IPV6_END, IPV6_END + bytes)
        }
    };
    if from.is_unspecified() || from.is_multicast() || from.is_loopback() {
        return None;
    }
    // Ethernet pads short packets.
    let datagram = packet.get(udp..end)?;
    let header = datagram.get(..UDP_HEADER)?;
    let bytes = usize::from(be16(header, 4));
    if bytes < UDP_HEADER || bytes > datagram.len() {
        return None;
    }
    Some(Datagram {
        from: SocketAddr::new(from, be16(header, 0)),
        port: be16(header, 2),
        ce: class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED,
        payload: udp + UDP_HEADER..udp + bytes,
    })
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The sum of the 16-bit words (RFC 1071), in the machine's byte order.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.sum::<u64>() + u64::from(u32::from_ne_bytes(last))
}

fn fold(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Mac = [2, 0, 0, 0, 0, 1];
    const FAR: Mac = [2, 0, 0, 0, 0, 2];
    const ENDS: [[&str; 2]; 2] = [
        ["10.9.0.1:4000", "10.9.0.2:5003"],
        ["[fd09::1]:4000", "[fd09::2]:5003"],
    ];

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn packet(ends: [&str; 2], class: u8, payload: &[u8]) -> Vec<u8> {
        let [from, to] = ends.map(end);
        let mut packet = vec![0xEE; headers_bytes(to.ip())];
        packet.extend(payload);
        let headers = Headers {
            from: (NEAR, from),
            to: (FAR, to),
            class,
        };
        headers.write(&mut packet);
        packet
    }

    fn take(packet: &[u8], ends: [&str; 2]) -> Option<Datagram> {
        parse(packet, FAR, end(ends[1]).ip())
    }

    #[test]
    fn what_is_written_is_parsed() {
        for ends in ENDS {
            for (class, payload) in [(0b10, &[7; 1400][..]), (0b1011_1011, &[1, 2, 3]), (0, &[])] {
                let packet = packet(ends, class, payload);
                let datagram = take(&packet, ends).unwrap();
                assert_eq!((datagram.from, datagram.port), (end(ends[0]), 5003));
                assert_eq!(datagram.ce, class & 0b11 == 0b11);
                assert_eq!(&packet[datagram.payload], payload);
            }
        }
    }

    #[test]
    fn a_header_has_the_bytes_of_the_standards() {
        let ipv4 = packet(ENDS[0], 0b10, b"abc");
        let expected = [
            &FAR[..],
            &NEAR,
            &[8, 0, 0x45, 2, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x26, 0xB8],
            &[
                10, 9, 0, 1, 10, 9, 0, 2, 0x0F, 0xA0, 0x13, 0x8B, 0, 11, 0, 0,
            ],
            b"abc",
        ];
        assert_eq!(ipv4, expected.concat());
    }

    #[test]
    fn the_checksum_over_ipv6_makes_all_words_add_up() {
        for payload in [&b"abc"[..], b"abcd", &[0xFF; 1399]] {
            let packet = packet(ENDS[1], 0b10, payload);
            let bytes = packet.len() - IPV6_END;
            let pseudo = sum(&packet[IP + 8..IPV6_END]);
            let pseudo = pseudo + sum(&(bytes as u32).to_be_bytes()) + sum(&[0, UDP]);
            assert_eq!(fold(pseudo + sum(&packet[IPV6_END..])), u16::MAX);
        }
    }

    #[test]
    fn padding_is_no_payload() {
        for ends in ENDS {
            let mut packet = packet(ends, 0, b"abc");
            packet.resize(128, 0);
            let datagram = take(&packet, ends).unwrap();
            assert_eq!(&packet[datagram.payload], b"abc");
        }
    }

    #[test]
    fn a_truncated_packet_is_none() {
        for ends in ENDS {
            let packet = packet(ends, 0, b"abc");
            for bytes in 0..packet.len() {
                assert_eq!(take(&packet[..bytes], ends), None, "{bytes}");
            }
        }
    }

    /// Writes the checksum of an IPv4 header anew.
    fn seal(packet: &mut [u8]) {
        packet[24..26].fill(0);
        let checksum = !fold(sum(&packet[IP..IPV4_END]));
        packet[24..26].copy_from_slice(&checksum.to_ne_bytes());
    }

    #[test]
    fn a_header_that_the_kernel_would_not_take_is_none() {
        // Where, and what is there.
        let ipv4: [(usize, &[u8]); 12] = [
            (0, &[0xFF; 6]),
            (12, &[0x81, 0]),
            (14, &[0x46]),
            (14, &[0x55]),
            (16, &[0, 27]),
            (16, &[0xFF, 0xFF]),
            (20, &[0x20, 0]),
            (20, &[0, 1]),
            (23, &[6]),
            (26, &[127, 0, 0, 1]),
            (30, &[10, 9, 0, 3]),
            (38, &[0, 7]),
        ];
        for (at, bytes) in ipv4 {
            let mut packet = packet(ENDS[0], 0, b"abc");
            packet[at..at + bytes.len()].copy_from_slice(bytes);
            seal(&mut packet);
            assert_eq!(take(&packet, ENDS[0]), None, "{at} {bytes:?}");
        }
        let mut damaged = packet(ENDS[0], 0, b"abc");
        damaged[24] ^= 1;
        assert_eq!(take(&damaged, ENDS[0]), None);
        let ipv6: [(usize, &[u8]); 9] = [
            (0, &FAR[..5]),
            (12, &[8, 0]),
            (14, &[0x40]),
            (18, &[0, 7]),
            (18, &[0xFF, 0xFF]),
            (20, &[44]),
            (22, &[0xFF, 2]),
            (53, &[9]),
            (58, &[0, 12]),
        ];
        for (at, bytes) in ipv6 {
            let mut packet = packet(ENDS[1], 0, b"abc");
            if at > 0 {
                packet[at..at + bytes.len()].copy_from_slice(bytes);
            } else {
                packet[0] ^= 1;
            }
            assert_eq!(take(&packet, ENDS[1]), None, "{at} {bytes:?}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        // A generator of bytes that are the same in each run.
        let mut state = 1u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for ends in ENDS {
            for _ in 0..20_000 {
                let mut packet = packet(ends, 0, b"abcdefgh");
                for _ in 0..1 + draw() % 4 {
                    let at = draw() as usize % packet.len();
                    packet[at] = draw() as u8;
                }
                packet.truncate(draw() as usize % 90);
                if let Some(datagram) = take(&packet, ends) {
                    assert!(packet.get(datagram.payload).is_some());
                }
            }
        }
    }
}
