//! GIDs that name their node: `fd77:6566:7400:0:ADDRESS:NUMBER`, the node's IPv4 address on the data network and 32 bits that
//! tell its devices apart. An engine makes them, and an agent reads where an offer to one goes.

use std::net::Ipv4Addr;

/// `fd`, "weft" and three zeros: a prefix of unique local addresses (RFC 4193).
const PREFIX: [u8; 8] = [0xfd, b'w', b'e', b'f', b't', 0, 0, 0];

/// The GID of a device of the node with this address.
#[must_use]
pub fn of_node(address: Ipv4Addr, number: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&PREFIX);
    gid[8..12].copy_from_slice(&address.octets());
    gid[12..].copy_from_slice(&number);
    gid
}

/// The address of the node that a GID names; none of another GID.
#[must_use]
pub fn address(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    let [a, b, c, d, ..] = *gid.strip_prefix(&PREFIX)? else {
        return None;
    };
    Some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_gid_names_the_address_of_its_node() {
        let node = Ipv4Addr::new(10, 20, 30, 40);
        let gid = of_node(node, [0xab, 0, 0, 1]);
        let text = Ipv6Addr::from(gid).to_string();
        assert_eq!(text, "fd77:6566:7400:0:a14:1e28:ab00:1");
        assert_eq!(address(&gid), Some(node));
        assert_eq!(address(&node.to_ipv6_mapped().octets()), None);
    }
}
