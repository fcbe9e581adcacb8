//! A datagram: how it goes between two servers, and the routing header that a program finds before its bytes.
//!
//! | bytes | |
//! |---|---|
//! | 0–3 | number of the queue pair that sends it |
//! | 4–7 | number of the queue pair that it is for |
//! | 8–11 | Q_Key |
//! | 12 … | payload |
//!
//! Numbers are little endian. An immediate travels beside the message.

/// The longest payload: what the library reports as the MTU of a device's port.
pub(crate) const PAYLOAD_MAX: usize = 4096;
/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 12;
/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_MAX;
/// What a receive has before the payload (InfiniBand Architecture Specification, volume 1, section 11.4.1.2).
pub(crate) const ROUTING_HEADER_BYTES: usize = 40;

/// The queue pairs that a datagram is from and for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the queue pair that sends it.
    pub(crate) source: u32,
    /// The number of the queue pair that it is for.
    pub(crate) destination: u32,
    /// It must be the destination's.
    pub(crate) q_key: u32,
}

impl Header {
    /// The beginning of a message, with room for its payload.
    pub(crate) fn begin(self, payload_bytes: usize) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER_BYTES + payload_bytes);
        for number in [self.source, self.destination, self.q_key] {
            message.extend_from_slice(&number.to_le_bytes());
        }
        message
    }

    /// The header and the payload of a message; none where it is too short or too long.
    pub(crate) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = message.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| {
            let bytes = header[at..at + 4].try_into();
            bytes.map(u32::from_le_bytes).unwrap_or_default()
        };
        let header = Self {
            source: number(0),
            destination: number(4),
            q_key: number(8),
        };
        (payload.len() <= PAYLOAD_MAX).then_some((header, payload))
    }
}

/// A datagram that has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'m> {
    /// The GID of the device that sent it.
    pub(crate) from: [u8; 16],
    /// The GID of the device that it is for.
    pub(crate) to: [u8; 16],
    pub(crate) header: Header,
    pub(crate) payload: &'m [u8],
    pub(crate) immediate: Option<u32>,
}

impl Datagram<'_> {
    /// The global routing header, as a NIC for RoCEv2 gives it: of IPv4 the last 20 bytes are the IP header, and the others
    /// are 0.
    pub(crate) fn routing_header(&self) -> [u8; ROUTING_HEADER_BYTES] {
        // UDP, base transport, datagram and immediate headers, the payload in whole words, and the invariant checksum
        // (InfiniBand Architecture Specification, volume 1, annex A17).
        let immediate = self.immediate.map_or(0, |_| 4);
        let payload = self.payload.len().next_multiple_of(4);
        let after_ip = (8 + 12 + 8 + immediate + payload + 4) as u16;
        match (ipv4(&self.from), ipv4(&self.to)) {
            (Some(from), Some(to)) => ipv4_header(from, to, after_ip),
            _ => ipv6_header(&self.from, &self.to, after_ip),
        }
    }
}

const HOP_LIMIT: u8 = 64;
const UDP: u8 = 17;

/// The IPv4 address that is mapped into a GID.
fn ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    let address = std::net::Ipv6Addr::from(*gid).to_ipv4_mapped();
    address.map(|address| address.octets())
}

/// RFC 791.
fn ipv4_header(from: [u8; 4], to: [u8; 4], after: u16) -> [u8; ROUTING_HEADER_BYTES] {
    const BYTES: usize = 20;
    let mut out = [0; ROUTING_HEADER_BYTES];
    let header = &mut out[ROUTING_HEADER_BYTES - BYTES..];
    // Version 4, five words.
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(BYTES as u16 + after).to_be_bytes());
    (header[8], header[9]) = (HOP_LIMIT, UDP);
    header[12..16].copy_from_slice(&from);
    header[16..20].copy_from_slice(&to);
    let checksum = checksum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    out
}

/// RFC 8200.
fn ipv6_header(from: &[u8; 16], to: &[u8; 16], after: u16) -> [u8; ROUTING_HEADER_BYTES] {
    let mut out = [0; ROUTING_HEADER_BYTES];
    out[0] = 6 << 4;
    out[4..6].copy_from_slice(&after.to_be_bytes());
    (out[6], out[7]) = (UDP, HOP_LIMIT);
    out[8..24].copy_from_slice(from);
    out[24..].copy_from_slice(to);
    out
}

/// RFC 1071. Of a header with its checksum it is 0.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        source: 0x1_0002,
        destination: 0x2_0003,
        q_key: 0x1111_1111,
    };

    fn mapped(last: u8) -> [u8; 16] {
        std::net::Ipv4Addr::new(10, 0, 0, last)
            .to_ipv6_mapped()
            .octets()
    }

    fn datagram(from: [u8; 16], to: [u8; 16]) -> Datagram<'static> {
        Datagram {
            from,
            to,
            header: HEADER,
            payload: &[1; 5],
            immediate: None,
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_any_other_length_is_none() {
        let mut message = HEADER.begin(3);
        message.extend_from_slice(b"abc");
        assert_eq!(Header::parse(&message), Some((HEADER, &b"abc"[..])));
        for end in 0..HEADER_BYTES {
            assert_eq!(Header::parse(&message[..end]), None);
        }
        assert!(Header::parse(&[0; MESSAGE_BYTES_MAX]).is_some());
        assert_eq!(Header::parse(&[0; MESSAGE_BYTES_MAX + 1]), None);
    }

    #[test]
    fn the_routing_header_of_ipv4_gids_is_an_ip_header_with_its_checksum() {
        let header = datagram(mapped(1), mapped(2)).routing_header();
        let (before, ip) = header.split_at(20);
        assert_eq!(before, [0; 20]);
        assert_eq!(checksum(ip), 0);
        // 20 IP, 8 UDP, 12 base, 8 datagram, 8 payload, 4 checksum.
        assert_eq!(ip[..4], [0x45, 0, 0, 60]);
        assert_eq!(ip[9], 17);
        assert_eq!(ip[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
    }

    #[test]
    fn the_routing_header_of_other_gids_is_an_ipv6_header() {
        let other = [0xfd; 16];
        let header = datagram(other, mapped(2)).routing_header();
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 40, 17, 64]);
        assert_eq!(header[8..24], other);
        assert_eq!(header[24..], mapped(2));
    }
}
