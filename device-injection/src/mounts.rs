//! What is mounted into a container's files.

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
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
/// What these mounts are called in the list of mounts.
const SOURCE: &str = "weft";

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
/// at `/sys/class/infiniband`, for it is not there. What an earlier call has laid there stays, too.
///
/// # Errors
/// The system's answer. Then nothing is mounted, and what an earlier call has mounted may be gone.
pub fn describe(root: &Root, devices: &[Description]) -> io::Result<()> {
    // The kernel takes no third overlay over two others, and a container may have any number of devices: there is one overlay.
    let own = match take_off(root)? {
        Some(own) => own,
        None => tmpfs()?,
    };
    write(&by_descriptor(&own), devices)?;
    let kernels = root.find(Path::new(CLASSES))?;
    // An overlay takes a layer only where it is mounted.
    attach(&own, &kernels)?;
    let lay = || {
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let layers = [by_descriptor(&own), kernels.by_descriptor()];
        let layers = layers.map(|layer| layer.display().to_string()).join(":");
        fsconfig_set_string(&overlay, "source", SOURCE)?;
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

/// A file system for the files of devices.
fn tmpfs() -> io::Result<OwnedFd> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&tmpfs, "source", SOURCE)?;
    fsconfig_set_string(&tmpfs, "mode", "755")?;
    fsconfig_create(&tmpfs)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(&tmpfs, flags, MountAttrFlags::empty())?)
}

/// Takes away what an earlier call has laid over the kernel's files. The file system with the files of devices, if there is one.
fn take_off(root: &Root) -> io::Result<Option<OwnedFd>> {
    let classes = Path::new(CLASSES);
    let overlay = root.find(classes)?;
    if !is_own_overlay(&overlay)? {
        return Ok(None);
    }
    unmount(overlay.by_descriptor(), UnmountFlags::DETACH)?;
    let own = root.find(classes)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, own.by_descriptor(), flags)?;
    unmount(own.by_descriptor(), UnmountFlags::DETACH)?;
    Ok(Some(tree))
}

/// Whether this module has mounted the overlay on which the file is. Only who mounts says what a mount's source is called.
fn is_own_overlay(file: &Found) -> io::Result<bool> {
    let descriptor = file.as_fd().as_raw_fd();
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{descriptor}"))?;
    let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let number = number.map(str::trim);
    // proc_pid_mountinfo(5): names have no spaces there.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let mut mounts = mounts.lines();
    let mount = mounts.find(|line| line.split(' ').next() == number);
    let what = mount.and_then(|mount| mount.split_once(" - "));
    Ok(what.is_some_and(|(_, what)| what.starts_with(&format!("overlay {SOURCE} "))))
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
