//! Mounts and unmounts.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind, mount_remount, move_mount,
    open_tree, unmount,
};

use crate::copy::OpenCopy;

/// Mounts a copy read-only at `target`, which is made.
///
/// A mount is seen by others as it was made: what is changed of it later, each of them would have to change. So it is made
/// read-only where nobody sees it, and then its copy is put at the target.
pub(crate) fn mount(copy: &OpenCopy, staging: &Path, target: &Path) -> io::Result<()> {
    let make = |path: &Path| match copy.is_directory {
        true => fs::create_dir_all(path),
        false => File::create(path).map(drop),
    };
    // Of a mount that was given up.
    remove(staging)?;
    make(staging)?;
    let staged = (|| {
        let copy = copy.file.as_raw_fd();
        mount_bind(format!("/proc/self/fd/{copy}"), staging)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(staging, flags, "")?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        io::Result::Ok(open_tree(CWD, staging, flags)?)
    })();
    remove(staging)?;
    let staged = staged?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    make(target)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&staged, "", CWD, target, flags)?)
}

/// Unmounts what is mounted at `target`, however often, and removes the mount point. Where nothing is, it does nothing.
pub(crate) fn remove(target: &Path) -> io::Result<()> {
    loop {
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(cause) => return Err(cause.into()),
        }
    }
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
