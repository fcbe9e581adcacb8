//! What devices are known by in their fabric.

use std::net::Ipv4Addr;

use weft_device_server::Gid;

/// `fd`, "weft" and three zeros: a prefix of unique local addresses (RFC 4193).
const PREFIX: [u8; 8] = [0xfd, b'w', b'e', b'f', b't', 0, 0, 0];

/// The GID of a device of the node with this address, the number of which is drawn. It says where offers to the device go.
pub(crate) fn of_node(address: Ipv4Addr, number: [u8; 4]) -> Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&PREFIX);
    gid[8..12].copy_from_slice(&address.octets());
    gid[12..].copy_from_slice(&number);
    gid
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_gid_names_the_address_of_its_node() {
        let gid = of_node(Ipv4Addr::new(10, 20, 30, 40), [0xab, 0, 0, 1]);
        assert_eq!(
            Ipv6Addr::from(gid).to_string(),
            "fd77:6566:7400:0:a14:1e28:ab00:1"
        );
    }
}
