//! Removes a verified copy, as long as it is what it was, and nothing else.

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::fingerprint::{Fingerprint, Found, Survey, survey};
use super::manifest::{EntryKind, Identity, Shape};
use super::root::{Access, Root, RootPath};

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is not there any more.
    Gone,
    /// Some of it has been removed or changed since: all of it stays.
    Changed,
    /// Other files lay there when it was verified, and it is too large to tell which are which: all of
    /// it stays.
    Mixed,
    /// Somebody writes or reads there, or within it, or around it: all of it stays.
    InUse,
}

/// Removes the copy at `path` that has this fingerprint: its own files, and its directories as far as
/// they are empty then. What others have put beside them stays. Meanwhile no job is prepared there.
pub fn remove(
    root: &Root,
    path: &RootPath,
    fingerprint: &Fingerprint,
) -> Result<Removed, FileError> {
    if root.access() != Access::ReadWrite {
        return Err(FileError::RootReadOnly {
            root: root.name().into(),
        });
    }
    root.in_place()?;
    let Some(_clearing) = root.occupancy().clear(path) else {
        return Ok(Removed::InUse);
    };
    let listed = match survey(root, path)? {
        Survey::Listed(listed) => listed,
        Survey::Nothing => return Ok(Removed::Gone),
        Survey::NoCopy => return Ok(Removed::Changed),
    };
    let own = match fingerprint.find(listed.entries()) {
        Found::Intact(own) => own,
        Found::Mixed => return Ok(Removed::Mixed),
        Found::Changed => return Ok(Removed::Changed),
        Found::Missing => return Ok(Removed::Gone),
    };
    // Sorted by path: what is in a directory comes after it.
    for entry in own.into_iter().rev() {
        let path = listed.path_of(path, entry)?;
        match entry.kind {
            EntryKind::File { .. } => unlink(root, &path, Some(&entry.identity))?,
            EntryKind::Directory => unlink(root, &path, None)?,
        }
    }
    if listed.shape() == Shape::Directory {
        unlink(root, path, None)?;
    }
    Ok(Removed::Gone)
}

/// Removes a file, if it is still this one, or a directory, if it is empty.
fn unlink(root: &Root, path: &RootPath, file: Option<&Identity>) -> Result<(), FileError> {
    let failed = |cause| FileError::writing(root.place(path), "unlinkat", cause, 0);
    // The root itself stays.
    let Some((parent, name)) = path.split() else {
        return Ok(());
    };
    let parent = match root.open_directory(&parent) {
        Err(Errno::NOENT) => return Ok(()),
        parent => parent.map_err(failed)?,
    };
    let flags = match file {
        None => AtFlags::REMOVEDIR,
        Some(listed) => {
            // Somebody may have put another one there since it was listed.
            let now = fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            match now.map(|stat| Identity::of(&stat)) {
                Ok(now) if listed.difference(&now).is_none() => AtFlags::empty(),
                Ok(_) | Err(Errno::NOENT) => return Ok(()),
                Err(cause) => return Err(failed(cause)),
            }
        }
    };
    match fs::unlinkat(&parent, name, flags) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        // Something is mounted there: a directory that stays, like one that is not empty.
        Err(Errno::BUSY) if file.is_none() => Ok(()),
        Err(cause) => Err(failed(cause)),
    }
}
