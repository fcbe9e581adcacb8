//! The end of a [`Destination`]: everything on disk and under its name.
//!
//! Durability in bulk: up to 32 files are synced one by one (`fsync`), more of them by
//! one `syncfs` per file system; directories after the files in them. Measured
//! with 2,000 files of 1 KiB on a busy ext4: `fsync` each 12–17 s, from eight threads 0.9–1.2 s,
//! one `syncfs` 0.1–0.15 s. But `syncfs` also waits for what others have written there.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::destination::Destination;
use super::destination_config::Overwrite;
use super::destination_file::PublishAction;
use super::digest::Digest;
use super::directory::OpenDirectory;
use super::error::FileError;
use super::file_state::{FileState, Fingerprint};
use super::file_target::FileTarget;
use super::manifest::{Entry, EntryKind, Shape};
use super::object_read_log::ObjectReadLog;
use super::path::RootPath;
use super::progress::Stage;
use super::staging;

/// From how many files or directories on one `syncfs` is cheaper than an `fsync` each.
const SYNCFS_MIN_FILES: usize = 33;

impl Destination {
    /// Puts everything on disk and under its name, with the modes of the directories; then the job has
    /// ended here. After it, and only after it, the destination is verified.
    pub fn publish(&self) -> Result<Digest, FileError> {
        let pass = self.gate.pass(|| self.placement.location())?;
        let location = self.placement.location();
        let Some(digest) = self.digest() else {
            let missing = self.progress().incomplete() as u64;
            return Err(FileError::BlocksMissing { location, missing });
        };
        if let Some(expected) = self.expected_digest()
            && expected != digest
        {
            return Err(FileError::ExpectMismatch {
                location,
                expected,
                found: digest,
            });
        }
        self.sync_files()?;
        self.rename_files()?;
        self.make_links()?;
        self.sync_and_name_directories()?;
        ObjectReadLog::remove(self.root(), &self.placement.config.job)?;
        drop(pass);
        self.gate.close();
        Ok(digest)
    }

    /// Whether files of a directory that was there got their names one after the other: for a moment some
    /// were old and some new.
    pub fn is_file_by_file(&self) -> bool {
        self.progress().file_by_file
    }

    fn sync_files(&self) -> Result<(), FileError> {
        let few: Vec<(u32, PublishAction)> =
            self.progress().finished().take(SYNCFS_MIN_FILES).collect();
        if few.len() == SYNCFS_MIN_FILES {
            return self.sync_file_systems(self.placement.directories());
        }
        for (index, action) in few {
            let (target, ..) = self.placement.file(index)?;
            let opened = match action {
                PublishAction::Rename => target.open_partial(OFlags::RDONLY)?,
                PublishAction::KeepExisting => target.open_final()?.0,
            };
            fs::fsync(&opened).map_err(|cause| target.failed("fsync", cause, 0))?;
        }
        Ok(())
    }

    /// Gives the files their names. Those of a directory that is assembled have them, and are published
    /// with it.
    fn rename_files(&self) -> Result<(), FileError> {
        let is_staged = self.placement.staging.is_some();
        let is_in_place = !is_staged && self.manifest().shape() == Shape::Directory;
        let mut open = OpenDirectory::new(self.root());
        for (index, ..) in self.manifest().files() {
            let (target, ..) = self.placement.file(index)?;
            let parent = open.at(&target.parent)?;
            // Under one lock: who opens the file in between would look for it by its old name.
            let mut progress = self.progress();
            let at = index as usize;
            let Stage::Finished(action) = progress.stages[at] else {
                continue;
            };
            if is_in_place && action == PublishAction::Rename {
                progress.file_by_file = true;
            }
            progress.fingerprints[at] =
                rename(&target, &parent, action, progress.fingerprints[at])?;
            if !is_staged {
                progress.stages[at] = Stage::Published;
            }
        }
        Ok(())
    }

    /// Makes the links, now that what they lead to is there.
    fn make_links(&self) -> Result<(), FileError> {
        let mut open = OpenDirectory::new(self.root());
        for link in self.placement.links() {
            let (index, target, text) = link?;
            let parent = open.at(&target.parent)?;
            let mut progress = self.progress();
            let at = index as usize;
            if progress.stages[at] == Stage::Published {
                continue;
            }
            if !target.has_link(&parent, text)? {
                target.make_link(&parent, text)?;
                rename(
                    &target,
                    &parent,
                    PublishAction::Rename,
                    progress.fingerprints[at],
                )?;
                progress.file_by_file |= self.placement.staging.is_none();
            }
            let made = fs::statat(&*parent, &target.name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|cause| target.failed("fstatat", cause, 0))?;
            progress.fingerprints[at] = FileState::of(&made).fingerprint();
            progress.stages[at] = Stage::Published;
        }
        Ok(())
    }

    /// Gives the directories their modes, puts them on disk and renames the one that was assembled.
    fn sync_and_name_directories(&self) -> Result<(), FileError> {
        let few = self.placement.directories().take(SYNCFS_MIN_FILES).count() < SYNCFS_MIN_FILES;
        // Deepest first: an outer one may forbid opening what is in it.
        for entry in self.manifest().entries().rev() {
            if entry.kind == EntryKind::Directory {
                self.finish_directory(entry, few)?;
            }
        }
        let Some(top) = self.placement.directories().next().transpose()? else {
            return Ok(());
        };
        match few {
            true => self.sync_directory(&top)?,
            false => self.sync_file_systems(std::iter::once(Ok(top.clone())))?,
        }
        // Those in which a directory was made or renamed.
        let made = self.made.iter().filter(|path| **path <= top);
        let named = self.placement.staging.iter().chain(made);
        let above: BTreeSet<RootPath> = named.filter_map(|path| Some(path.split()?.0)).collect();
        if let Some(staging) = &self.placement.staging {
            self.rename_whole(staging)?;
        }
        above.iter().try_for_each(|path| self.sync_directory(path))
    }

    /// Gives the assembled directory its name.
    fn rename_whole(&self, staging: &RootPath) -> Result<(), FileError> {
        let root = self.root();
        let (Some((parent, name)), Some(from)) = (self.placement.base.split(), staging.file_name())
        else {
            return Ok(());
        };
        let location = || self.placement.location();
        let parent = OpenDirectory::new(root).at(&parent)?;
        // Under one lock: who opens a file in between would look for it by its old name.
        let mut progress = self.progress();
        staging::rename(&parent, from, name, false).map_err(|cause| match cause {
            Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => FileError::DestinationExists {
                location: location(),
                found: "something that was made meanwhile",
                remedy: "remove it or choose another path",
            },
            // Somebody removed what was assembled.
            Errno::NOENT => FileError::DestinationChanged {
                location: location(),
            },
            cause => FileError::writing(location(), "rename", cause, 0),
        })?;
        for stage in &mut progress.stages {
            if let Stage::Finished(_) = stage {
                *stage = Stage::Published;
            }
        }
        Ok(())
    }

    fn sync_directory(&self, path: &RootPath) -> Result<(), FileError> {
        let root = self.root();
        let opened = OpenDirectory::new(root).at(path)?;
        fs::fsync(&*opened)
            .map_err(|cause| FileError::writing(root.location(path), "fsync", cause, 0))
    }

    /// One `syncfs` for each file system that one of the directories is on.
    fn sync_file_systems(
        &self,
        directories: impl Iterator<Item = Result<RootPath, FileError>>,
    ) -> Result<(), FileError> {
        let mut open = OpenDirectory::new(self.root());
        let mut synced = BTreeSet::new();
        for path in directories {
            let path = path?;
            let failed = |operation, cause| {
                FileError::writing(self.root().location(&path), operation, cause, 0)
            };
            let opened = open.at(&path)?;
            let stat = fs::fstat(&*opened).map_err(|cause| failed("fstat", cause))?;
            if synced.insert(FileState::of(&stat).dev) {
                fs::syncfs(&*opened).map_err(|cause| failed("syncfs", cause))?;
            }
        }
        Ok(())
    }

    /// Gives a directory its mode and, on request, syncs it: not to be opened again after that.
    fn finish_directory(&self, entry: Entry<'_>, sync: bool) -> Result<(), FileError> {
        let path = self.manifest().path_of(self.placement.assembled(), entry)?;
        let root = self.root();
        let failed =
            |operation, cause| FileError::writing(root.location(&path), operation, cause, 0);
        let opened = root
            .open_directory(&path)
            .map_err(|cause| failed("open", cause))?;
        fs::fchmod(&opened, Mode::from_raw_mode(entry.mode))
            .map_err(|cause| failed("fchmod", cause))?;
        if sync {
            fs::fsync(&opened).map_err(|cause| failed("fsync", cause))?;
        }
        Ok(())
    }
}

/// Renames a finished file to its final name. For [`PublishAction::KeepExisting`], removes the unused partial file, after a
/// check that the existing file has not changed since it was verified. Returns the file's state afterwards:
/// renaming is itself a change of attributes.
fn rename(
    target: &FileTarget,
    parent: &OwnedFd,
    action: PublishAction,
    checked: Fingerprint,
) -> Result<Fingerprint, FileError> {
    if action == PublishAction::KeepExisting {
        let named = fs::statat(parent, &target.name, AtFlags::SYMLINK_NOFOLLOW);
        if !named.is_ok_and(|stat| FileState::of(&stat).fingerprint() == checked) {
            return Err(target.changed());
        }
        target.remove_partial(parent)?;
        return Ok(checked);
    }
    // Set last: the sweep uses mtime as the age of an unfinished file.
    target.set_modified(parent);
    let replace = !matches!(target.overwrite, Overwrite::Never | Overwrite::InUse);
    let answer = match target.is_staged() {
        // It goes with its directory.
        true => Ok(()),
        false => staging::rename(parent, &target.partial, &target.name, replace),
    };
    match answer {
        Ok(()) => match fs::statat(parent, &target.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileState::of(&stat).fingerprint()),
            Err(Errno::NOENT) => Err(target.changed()),
            Err(cause) => Err(target.failed("stat", cause, 0)),
        },
        Err(Errno::EXIST) if !replace => {
            target.may_replace()?;
            Err(target.changed())
        }
        Err(Errno::ISDIR) => Err(FileError::DestinationExists {
            location: target.location(),
            found: "a directory that was made meanwhile",
            remedy: "remove it or choose another path",
        }),
        // Somebody removed the partial file.
        Err(Errno::NOENT) => Err(target.changed()),
        Err(cause) => Err(target.failed("rename", cause, 0)),
    }
}
