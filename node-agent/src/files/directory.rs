//! `OpenDirectory`: opens the directories of many files, one after the other; and how an empty one is removed.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::path::RootPath;
use super::root::Root;

/// The directory that was opened last: a manifest is sorted, so files of one directory follow
/// each other, and one descriptor is enough for any number of directories.
pub(super) struct OpenDirectory<'r> {
    root: &'r Root,
    last: Option<(RootPath, Rc<OwnedFd>)>,
}

impl<'r> OpenDirectory<'r> {
    pub(super) fn new(root: &'r Root) -> Self {
        OpenDirectory { root, last: None }
    }

    pub(super) fn root(&self) -> &'r Root {
        self.root
    }

    pub(super) fn at(&mut self, path: &RootPath) -> Result<Rc<OwnedFd>, FileError> {
        self.open(path).map_err(|cause| {
            self.root
                .symlink_on_the_way(path, cause)
                .unwrap_or_else(|| FileError::writing(self.root.location(path), "open", cause, 0))
        })
    }

    /// The directory, if there is one that something can have been made in.
    pub(super) fn found(&mut self, path: &RootPath) -> Result<Option<Rc<OwnedFd>>, FileError> {
        match self.open(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(cause) if is_no_directory(cause) => Ok(None),
            Err(cause) => {
                let location = self.root.location(path);
                Err(FileError::writing(location, "open", cause, 0))
            }
        }
    }

    fn open(&mut self, path: &RootPath) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((last, opened)) = &self.last
            && last.as_str() == path.as_str()
        {
            return Ok(opened.clone());
        }
        let opened = Rc::new(self.root.open_directory(path)?);
        self.last = Some((path.clone(), opened.clone()));
        Ok(opened)
    }
}

/// Removes a directory if it is empty. One that is gone, or that something else has replaced or is mounted on, is
/// passed over, and so is the root itself.
pub(super) fn remove_empty(root: &Root, path: &RootPath) -> Result<(), FileError> {
    let Some((parent, name)) = path.split() else {
        return Ok(());
    };
    let parent = root.open_directory(&parent);
    match parent.and_then(|parent| fs::unlinkat(parent, name, AtFlags::REMOVEDIR)) {
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(()),
        Err(cause) if is_no_directory(cause) => Ok(()),
        Err(cause) => Err(FileError::writing(root.location(path), "rmdir", cause, 0)),
    }
}

/// Whether the answer says that there is no such directory: nothing, or a file or link in its place.
pub(super) fn is_no_directory(cause: Errno) -> bool {
    matches!(
        cause,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV
    )
}
