//! Staging directories: where a new directory is assembled, beside its location.
//!
//! A directory that is not there yet is assembled in `.weft-UID-HEX` beside it, with its files under
//! their final names, and is renamed once, when all of it is verified and on disk. The name is that of
//! a partial file of the directory's own name: it says which job it is of, and it is swept like one.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use super::error::FileError;
use super::file_state::FileState;
use super::manifest::{EntryKind, Manifest};
use super::path::RootPath;
use super::root::Root;

/// What the agent needs to remove what is in a directory, which may have its final mode already.
const WRITABLE: Mode = Mode::from_raw_mode(0o755);

/// Removes from a staging directory what earlier attempts made for other manifests.
pub(super) fn remove_unlisted(
    root: &Root,
    staging: &RootPath,
    manifest: &Manifest,
) -> Result<(), FileError> {
    remove_below(root, staging, &|path, found| {
        let below = path.as_str().get(staging.as_str().len() + 1..);
        let listed = below.and_then(|below| manifest.find(below));
        listed.is_some_and(|entry| match entry.kind {
            EntryKind::File { .. } => found == FileType::RegularFile,
            EntryKind::Directory => found == FileType::Directory,
            // Links are made last, and so are few where an attempt ended: they are made again.
            EntryKind::Link { .. } => false,
        })
    })
}

/// Removes a staging directory with all that is in it, if it is there.
pub(super) fn remove(root: &Root, staging: &RootPath) -> Result<(), FileError> {
    remove_below(root, staging, &|_, _| false)?;
    let Some((parent, name)) = staging.split() else {
        return Ok(());
    };
    let Some(parent) = OpenDirectory::new(root).found(&parent)? else {
        return Ok(());
    };
    match fs::unlinkat(&*parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(cause) => Err(FileError::writing(
            root.location(staging),
            "rmdir",
            cause,
            0,
        )),
    }
}

/// Removes what is in a directory, except for what `keeps` names, by path and type.
fn remove_below(
    root: &Root,
    directory: &RootPath,
    keeps: &dyn Fn(&RootPath, FileType) -> bool,
) -> Result<(), FileError> {
    let failed =
        |operation, cause| FileError::writing(root.location(directory), operation, cause, 0);
    let Some(opened) = OpenDirectory::new(root).found(directory)? else {
        return Ok(());
    };
    fs::fchmod(&*opened, WRITABLE).map_err(|cause| failed("fchmod", cause))?;
    let mut entries = Dir::read_from(&*opened).map_err(|cause| failed("getdents", cause))?;
    while let Some((path, stat)) =
        next_entry(&mut entries, &opened, directory).map_err(|cause| failed("getdents", cause))?
    {
        let is_directory = is_directory(&stat);
        let is_kept = keeps(&path, FileType::from_raw_mode(stat.st_mode));
        if is_directory {
            remove_below(root, &path, if is_kept { keeps } else { &|_, _| false })?;
        }
        if is_kept {
            continue;
        }
        let flags = match is_directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        match fs::unlinkat(&*opened, path.file_name().unwrap_or_default(), flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(failed("unlink", cause)),
        }
    }
    Ok(())
}

/// When anything in a directory was last written to.
pub(super) fn written_ns(root: &Root, directory: &RootPath) -> Result<i64, Errno> {
    let opened = root.open_directory(directory)?;
    let mut last = FileState::of(&fs::fstat(&opened)?).mtime_ns;
    let mut entries = Dir::read_from(&opened)?;
    while let Some((path, stat)) = next_entry(&mut entries, &opened, directory)? {
        let written = match is_directory(&stat) {
            true => written_ns(root, &path)?,
            false => FileState::of(&stat).mtime_ns,
        };
        last = last.max(written);
    }
    Ok(last)
}

/// The next that is in a directory. A name that no agent makes is passed over.
fn next_entry(
    entries: &mut Dir,
    opened: &OwnedFd,
    directory: &RootPath,
) -> Result<Option<(RootPath, Stat)>, Errno> {
    while let Some(found) = entries.read() {
        let found = found?;
        let name = found.file_name().to_str().unwrap_or_default();
        if matches!(name, "" | "." | "..") {
            continue;
        }
        let Ok(path) = directory.join(name) else {
            continue;
        };
        match fs::statat(opened, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => return Ok(Some((path, stat))),
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(None)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
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
