//! Removes a verified copy, as long as it is what it was.

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::manifest::{EntryKind, Manifest, Shape};
use super::root::{Access, Root, RootPath};

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is not there any more.
    Gone,
    /// Something has been added, removed or changed since: all of it stays.
    Changed,
}

/// Removes what lies at `path` if its fingerprint is this one. What others put beside the files while
/// they are removed stays, with its directories.
pub fn remove(root: &Root, path: &RootPath, fingerprint: &str) -> Result<Removed, FileError> {
    if root.access() != Access::ReadWrite {
        return Err(FileError::RootReadOnly {
            root: root.name().into(),
        });
    }
    let manifest = match Manifest::scan(root, path) {
        Ok(manifest) => manifest,
        Err(FileError::SourceMissing { .. }) => return Ok(Removed::Gone),
        Err(FileError::NotARegularFile { .. }) => return Ok(Removed::Changed),
        Err(error) => return Err(error),
    };
    if manifest.fingerprint() != fingerprint {
        return Ok(Removed::Changed);
    }
    if manifest.shape() == Shape::File {
        unlink(root, path, AtFlags::empty())?;
        return Ok(Removed::Gone);
    }
    // Sorted by path: what is in a directory comes after it.
    for entry in manifest.entries().iter().rev() {
        let flags = match entry.kind {
            EntryKind::File { .. } => AtFlags::empty(),
            EntryKind::Directory => AtFlags::REMOVEDIR,
        };
        unlink(root, &path.join(&entry.path)?, flags)?;
    }
    unlink(root, path, AtFlags::REMOVEDIR)?;
    Ok(Removed::Gone)
}

fn unlink(root: &Root, path: &RootPath, flags: AtFlags) -> Result<(), FileError> {
    let failed = |cause| FileError::writing(root.place(path), "unlinkat", cause, 0);
    // The root itself stays.
    let Some((parent, name)) = path.split() else {
        return Ok(());
    };
    let parent = match root.open_directory(&parent) {
        Err(Errno::NOENT) => return Ok(()),
        parent => parent.map_err(failed)?,
    };
    match fs::unlinkat(&parent, name, flags) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(cause) => Err(failed(cause)),
    }
}
