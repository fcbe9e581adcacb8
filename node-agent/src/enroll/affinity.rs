//! Where in the machine the data interface is, as sysfs says: pods and their other devices are placed near it.
//!
//! It only reads. What sysfs does not say is left out: many virtual machines have no NUMA nodes, and a tunnel has no PCI device.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Interfaces of interfaces: as a VLAN of a bond of two NICs, and one more.
const DEPTH_MAX: u32 = 4;

/// Where an interface is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Affinity {
    /// None also where it has NICs at several.
    pub(crate) numa_node: Option<u32>,
    /// The PCI root, as pci0000:17: devices with the same one reach each other below it. None where there is no PCI device,
    /// or several roots.
    pub(crate) pcie_root: Option<String>,
}

impl Affinity {
    /// Of an interface, by the sysfs that is mounted there.
    pub(crate) fn of(sysfs: &Path, interface: &str) -> Self {
        // Compared with real paths below.
        let Ok(sysfs) = sysfs.canonicalize() else {
            return Self::default();
        };
        let interface = sysfs.join("class/net").join(interface);
        let devices = devices(&interface, DEPTH_MAX);
        let below = |device: &PathBuf| {
            let path = device.strip_prefix(sysfs.join("devices")).ok()?;
            Some((device.clone(), path.to_owned()))
        };
        let found: Vec<(PathBuf, PathBuf)> = devices.iter().filter_map(below).collect();
        Self {
            numa_node: only(found.iter().filter_map(|(at, path)| numa_node(at, path))),
            pcie_root: only(found.iter().filter_map(|(_, path)| pcie_root(path))),
        }
    }
}

/// The devices that carry an interface: its own, or those of the interfaces below it, as of a bond or a VLAN.
fn devices(interface: &Path, depth: u32) -> Vec<PathBuf> {
    if let Ok(device) = interface.join("device").canonicalize() {
        return vec![device];
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Vec::new();
    };
    // It may be gone by now.
    let entries = fs::read_dir(interface).into_iter().flatten().flatten();
    let lower = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("lower_"));
    lower
        .flat_map(|entry| devices(&entry.path(), depth))
        .collect()
}

/// That of the first of the device and those above it of which the kernel says one: a virtio device has none of its own.
fn numa_node(device: &Path, below: &Path) -> Option<u32> {
    let above = device.ancestors().take(below.components().count());
    let said = above
        .filter_map(|directory| fs::read_to_string(directory.join("numa_node")).ok())
        .next()?;
    // -1 where it is not known.
    said.trim().parse().ok()
}

/// The part of the path that names it.
fn pcie_root(path: &Path) -> Option<String> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let is_root = |part: &&str| {
        let numbers = part.strip_prefix("pci");
        numbers.is_some_and(|numbers| numbers.contains(':'))
    };
    parts.find(is_root).map(str::to_owned)
}

/// The value that all have, if they have one.
fn only<T: Ord>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: BTreeSet<T> = values.collect();
    let first = values.pop_first();
    first.filter(|_| values.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A switch below the root at NUMA node 0 with a GPU and a NIC, a NIC of node 1, a virtio interface, one of which the kernel
    /// knows no node, and interfaces above them.
    fn sysfs() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let sysfs = home.path();
        let pci = |path: &str, numa_node: &str| {
            let device = sysfs.join("devices").join(path);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("numa_node"), numa_node).unwrap();
        };
        let interface = |device: &str, name: &str| {
            let device = sysfs.join("devices").join(device);
            let interface = device.join("net").join(name);
            fs::create_dir_all(&interface).unwrap();
            symlink(&device, interface.join("device")).unwrap();
            fs::create_dir_all(sysfs.join("class/net")).unwrap();
            symlink(&interface, sysfs.join("class/net").join(name)).unwrap();
        };
        let over = |name: &str, lower: &[&str]| {
            let interface = sysfs.join("devices/virtual/net").join(name);
            fs::create_dir_all(&interface).unwrap();
            for one in lower {
                let link = interface.join(format!("lower_{one}"));
                symlink(sysfs.join("class/net").join(one), link).unwrap();
            }
            symlink(&interface, sysfs.join("class/net").join(name)).unwrap();
        };
        let switch = "pci0000:17/0000:17:00.0/0000:18:00.0";
        for (port, device) in [
            ("0000:19:00.0", "0000:1a:00.0"),
            ("0000:19:01.0", "0000:1b:00.0"),
        ] {
            pci(&format!("{switch}/{port}/{device}"), "0\n");
        }
        // The GPU is 0000:1a:00.0.
        interface(&format!("{switch}/0000:19:01.0/0000:1b:00.0"), "rail0");
        pci("pci0000:85/0000:85:00.0/0000:86:00.0", "1\n");
        interface("pci0000:85/0000:85:00.0/0000:86:00.0", "rail1");
        pci("pci0000:00/0000:00:03.0", "-1\n");
        fs::create_dir_all(sysfs.join("devices/pci0000:00/0000:00:03.0/virtio0")).unwrap();
        interface("pci0000:00/0000:00:03.0/virtio0", "eth0");
        over("lo", &[]);
        over("bond0", &["rail0"]);
        over("bond0.100", &["bond0"]);
        over("bond1", &["rail0", "rail1"]);
        home
    }

    #[test]
    fn an_interface_is_at_the_numa_node_and_the_pci_root_of_its_nic() {
        let home = sysfs();
        let of = |name: &str| {
            let Affinity {
                numa_node,
                pcie_root,
            } = Affinity::of(home.path(), name);
            (numa_node, pcie_root)
        };
        let at = |node: u32, root: &str| (Some(node), Some(root.to_owned()));
        // Behind one switch, as the GPU.
        assert_eq!(of("rail0"), at(0, "pci0000:17"));
        assert_eq!(of("rail1"), at(1, "pci0000:85"));
        // The kernel says -1.
        assert_eq!(of("eth0"), (None, Some("pci0000:00".to_owned())));
        assert_eq!(of("bond0.100"), at(0, "pci0000:17"));
        for name in ["bond1", "lo", "gone"] {
            assert_eq!(of(name), (None, None), "{name}");
        }
    }

    #[test]
    fn a_virtio_interface_is_at_the_numa_node_of_its_pci_device() {
        let home = sysfs();
        let device = "devices/pci0000:00/0000:00:03.0/numa_node";
        fs::write(home.path().join(device), "3\n").unwrap();
        let found = Affinity::of(home.path(), "eth0");
        assert_eq!(found.numa_node, Some(3));
    }

    #[test]
    fn interfaces_over_each_other_in_a_loop_are_nowhere() {
        let home = sysfs();
        let loops = home.path().join("devices/virtual/net/bond9");
        fs::create_dir_all(&loops).unwrap();
        symlink(&loops, loops.join("lower_bond9")).unwrap();
        symlink(&loops, home.path().join("class/net/bond9")).unwrap();
        assert_eq!(Affinity::of(home.path(), "bond9"), Affinity::default());
    }
}
