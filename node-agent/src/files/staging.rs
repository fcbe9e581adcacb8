//! Staging directories: where a new directory is assembled, beside its place.
//!
//! A directory that is not there yet is assembled in `.weft-UID-HEX` beside it, with its files under
//! their final names, and is renamed once, when all of it is verified and on disk. The name is that of
//! a partial file of the directory's own name: it says which job it is of, and it is swept like one.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Dir, FileType, RenameFlags, Stat};
use rustix::io::Errno;

use super::claim;
use super::destination::DestinationConfig;
use super::error::FileError;
use super::manifest::{EntryKind, Identity, Shape};
use super::reservation::{WORKING_DIRECTORY, is_no_directory};
use super::root::{Root, RootPath};

/// Where a job assembles the directory `base`; nothing where it is no directory, or the root itself.
pub(super) fn beside(
    config: &DestinationConfig,
    base: &RootPath,
) -> Result<Option<RootPath>, FileError> {
    match (config.manifest.shape(), base.split()) {
        (Shape::Directory, Some((parent, name))) => parent
            .join(&claim::partial_name(&config.job, name))
            .map(Some),
        _ => Ok(None),
    }
}

/// Removes from a staging directory what earlier attempts made for other manifests.
pub(super) fn keep_only(config: &DestinationConfig, staging: &RootPath) -> Result<(), FileError> {
    let mut keep = HashMap::new();
    for entry in config.manifest.entries() {
        let is_directory = entry.kind == EntryKind::Directory;
        keep.insert(config.manifest.path_of(staging, entry)?, is_directory);
    }
    clear(&config.root, staging, &|path, is_directory| {
        keep.get(path) == Some(&is_directory)
    })
}

/// Removes a staging directory with all that is in it, if it is there.
pub(super) fn remove(root: &Root, staging: &RootPath) -> Result<(), FileError> {
    clear(root, staging, &|_, _| false)?;
    let Some((parent, name)) = staging.split() else {
        return Ok(());
    };
    let failed = |cause| FileError::writing(root.place(staging), "rmdir", cause, 0);
    match root.open_directory(&parent) {
        Ok(parent) => match fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(failed(cause)),
        },
        Err(cause) if is_no_directory(cause) => Ok(()),
        Err(cause) => Err(failed(cause)),
    }
}

/// Removes what is in a directory, except for what `keeps` names, by path and whether it is a directory.
fn clear(
    root: &Root,
    directory: &RootPath,
    keeps: &dyn Fn(&RootPath, bool) -> bool,
) -> Result<(), FileError> {
    let failed = |operation, cause| FileError::writing(root.place(directory), operation, cause, 0);
    let opened = match root.open_directory(directory) {
        Ok(opened) => opened,
        Err(cause) if is_no_directory(cause) => return Ok(()),
        Err(cause) => return Err(failed("open", cause)),
    };
    // It may have its final mode already.
    fs::fchmod(&opened, WORKING_DIRECTORY).map_err(|cause| failed("fchmod", cause))?;
    for (name, stat) in entries(&opened).map_err(|cause| failed("getdents", cause))? {
        let path = below(directory, &name);
        let is_directory = is_directory(&stat);
        let is_kept = path.as_ref().is_some_and(|path| keeps(path, is_directory));
        if let Some(path) = path.filter(|_| is_directory) {
            clear(root, &path, if is_kept { keeps } else { &|_, _| false })?;
        }
        if is_kept {
            continue;
        }
        let flags = match is_directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        match fs::unlinkat(&opened, &*name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(failed("unlink", cause)),
        }
    }
    Ok(())
}

/// When anything in a directory was last written to.
pub(super) fn written_ns(root: &Root, directory: &RootPath) -> Result<i64, Errno> {
    let opened = root.open_directory(directory)?;
    let mut last = Identity::of(&fs::fstat(&opened)?).mtime_ns;
    for (name, stat) in entries(&opened)? {
        let written = match below(directory, &name) {
            Some(path) if is_directory(&stat) => written_ns(root, &path)?,
            _ => Identity::of(&stat).mtime_ns,
        };
        last = last.max(written);
    }
    Ok(last)
}

/// What is in a directory.
fn entries(directory: &OwnedFd) -> Result<Vec<(CString, Stat)>, Errno> {
    let mut entries = Vec::new();
    let mut listing = Dir::read_from(directory)?;
    while let Some(found) = listing.read() {
        let found = found?;
        let name = found.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push((name.to_owned(), stat)),
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(entries)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Nothing for a name that no agent makes.
fn below(directory: &RootPath, name: &CStr) -> Option<RootPath> {
    directory.join(name.to_str().ok()?).ok()
}

/// Renames within a directory, with `replace` also onto a file that is there.
pub(super) fn rename(parent: &OwnedFd, from: &str, to: &str, replace: bool) -> Result<(), Errno> {
    let rename = |flags| fs::renameat_with(parent, from, parent, to, flags);
    if replace {
        return rename(RenameFlags::empty());
    }
    match rename(RenameFlags::NOREPLACE) {
        // A file system without NOREPLACE: look, then rename.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match fs::statat(parent, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => rename(RenameFlags::empty()),
                Err(cause) => Err(cause),
            }
        }
        answer => answer,
    }
}
