//! What is mounted into a container's files.

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, unmount,
};
use weft_device::sysfs;

use crate::root::{Found, Root, by_descriptor};

/// Where the kernel describes devices of each kind.
pub const CLASSES: &str = "/sys/class";

/// Mounts a file of the node over a file of the container.
///
/// # Errors
/// The system's answer.
pub fn mount_over(file: &Path, over: &Found) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    attach(&open_tree(CWD, file, flags)?, over)
}

/// Mounts a tree that is mounted nowhere.
fn attach(tree: &OwnedFd, over: &Found) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", over, "", flags)?)
}

/// What the container's files say of a device.
#[derive(Debug, Clone)]
pub struct Description {
    /// As programs call it.
    pub name: String,
    /// Its GID.
    pub gid: Ipv6Addr,
    /// More files, below the device's directory, each with its line.
    pub files: Vec<(&'static str, String)>,
}

/// Lays files of devices over the kernel's, which stay visible: where the kernel has no InfiniBand, nothing can be mounted
/// at `/sys/class/infiniband`, for it is not there.
///
/// # Errors
/// The system's answer. Then nothing is mounted.
pub fn describe(root: &Root, devices: &[Description]) -> io::Result<()> {
    let kernels = root.find(Path::new(CLASSES))?;
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&tmpfs, "mode", "755")?;
    fsconfig_create(&tmpfs)?;
    let own = fsmount(
        &tmpfs,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    write(&by_descriptor(&own), devices)?;
    // An overlay takes a layer only where it is mounted.
    attach(&own, &kernels)?;
    let lay = || {
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let layers = [by_descriptor(&own), kernels.by_descriptor()];
        let layers = layers.map(|layer| layer.display().to_string()).join(":");
        fsconfig_set_string(&overlay, "lowerdir", &*layers)?;
        fsconfig_set_flag(&overlay, "ro")?;
        fsconfig_create(&overlay)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
        let laid = fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        attach(&laid, &root.find(Path::new(CLASSES))?)
    };
    lay().inspect_err(|_| {
        // The kernel's own is below.
        let _ = unmount(by_descriptor(&own), UnmountFlags::DETACH);
    })
}

fn write(classes: &Path, devices: &[Description]) -> io::Result<()> {
    for device in devices {
        let own = classes.join("infiniband").join(&device.name);
        let files = sysfs::files(&device.name, device.gid).into_iter();
        for (file, line) in files.chain(device.files.iter().cloned()) {
            let file = own.join(file);
            fs::create_dir_all(file.parent().unwrap_or(&own))?;
            fs::write(file, line)?;
        }
        // What the library calls the device's path.
        let own = classes.join("infiniband_verbs").join(&device.name);
        fs::create_dir_all(&own)?;
        fs::write(own.join("ibdev"), format!("{}\n", device.name))?;
    }
    Ok(())
}
