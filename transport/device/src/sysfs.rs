//! What the kernel would say of a device in `/sys/class/infiniband`, for programs that read it there.
//!
//! The library answers `ibv_read_sysfs_file` by it, and `weft device run` makes files of it. It says no more than is true of
//! a device wherever its program runs: there is no PCI device, and whether a network interface has its address differs.

use std::net::Ipv6Addr;

/// The GUID of a device, in host byte order. Made from its name: a program sees its own devices only.
#[must_use]
pub fn guid(name: &str) -> u64 {
    // FNV-1a (draft-eastlake-fnv), with the bit of locally administered EUI-64s.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    u64::from_be_bytes([0x02, 0, 0, 0, 0, 0, 0, 0]) | hash >> 8
}

/// Numbers of 16 bits, as the kernel writes GUIDs and GIDs.
fn groups<const N: usize>(groups: [u16; N]) -> String {
    groups.map(|group| format!("{group:04x}")).join(":")
}

/// The files below a device's directory, each with its line.
#[must_use]
pub fn files(name: &str, gid: Ipv6Addr) -> Vec<(&'static str, String)> {
    let guid = guid(name);
    let guid = groups([48, 32, 16, 0].map(|shift| (guid >> shift) as u16));
    let gid = groups(gid.segments());
    let files = [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", name),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        // The true rate is that of the paths.
        ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ("ports/1/lid", "0x0"),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        // Connection management, and GIDs of IP addresses.
        ("ports/1/cap_mask", "0x04010000"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/pkeys/0", "0xffff"),
        ("ports/1/gids/0", &gid),
        ("ports/1/gid_attrs/types/0", "RoCE v2"),
    ];
    files
        .map(|(file, line)| (file, format!("{line}\n")))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_and_gids_are_written_as_the_kernel_does() {
        let files = files("weft0", Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0xa00, 1]));
        let line = |wanted: &str| {
            let found = files.iter().find(|(file, _)| *file == wanted);
            found.expect("it is there").1.as_str()
        };
        assert_eq!(
            line("ports/1/gids/0"),
            "0000:0000:0000:0000:0000:ffff:0a00:0001\n"
        );
        assert_eq!(line("node_guid").replace(':', "").len(), 17);
        assert!(line("node_guid").starts_with("02"));
    }

    #[test]
    fn devices_of_other_names_have_other_guids() {
        assert_ne!(guid("weft0"), guid("weft1"));
    }
}
