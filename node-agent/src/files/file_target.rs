//! `FileTarget`: where one file or link of a destination goes, and where its bytes are until then.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    self, AtFlags, FallocateFlags, FileType, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use super::destination_config::Overwrite;
use super::error::{FileError, Location};
use super::file_state::{FileState, allocated_bytes};
use super::names;
use super::path::RootPath;
use super::reserved_space::{Demand, ReservedSpace};
use super::root::{Root, special};
use super::space::disk_bytes;

/// Larger files are not allocated on tmpfs before their blocks come.
const LARGE_BYTES: u64 = 64 << 20;

/// `TMPFS_MAGIC` of statfs(2).
const TMPFS: u64 = 0x0102_1994;

/// Where one file goes: its final path, and its partial file beside it or in a staging directory.
#[derive(Clone, Debug)]
pub(super) struct FileTarget {
    pub(super) root: Arc<Root>,
    pub(super) path: RootPath,
    /// Where the partial file is.
    pub(super) parent: RootPath,
    pub(super) name: String,
    pub(super) partial: String,
    /// Bytes of its blocks that lie wholly in holes at the source.
    pub(super) hole_bytes: u64,
    /// When the source's file was last written to; 0 where that is not known.
    pub(super) modified_ns: i64,
    pub(super) overwrite: Overwrite,
}

/// Where a file's bytes are before the job writes any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitialContent {
    /// Nowhere: the partial file is new.
    Fresh,
    /// Some, or all, may be in the partial file of an earlier attempt. It may have its final mode already.
    Resumed,
    /// A file of the right size has the final name; the partial file is empty and takes only its own name.
    Existing,
    /// All of them are in the partial file, which has its final mode: it can be read only.
    Finished,
}

impl FileTarget {
    pub(super) fn is_staged(&self) -> bool {
        self.partial == self.name
    }

    /// Bytes of disk that a file of this size takes.
    pub(super) fn disk_bytes(&self, bytes: u64) -> u64 {
        disk_bytes(bytes.saturating_sub(self.hole_bytes))
    }

    pub(super) fn location(&self) -> Location {
        self.root.location(&self.path)
    }

    /// Somebody else wrote to it meanwhile, or removed it.
    pub(super) fn changed(&self) -> FileError {
        FileError::DestinationChanged {
            location: self.location(),
        }
    }

    /// What the system's answer means for this file.
    pub(super) fn failed(&self, operation: &'static str, cause: Errno, bytes: u64) -> FileError {
        self.root
            .symlink_on_the_way(&self.path, cause)
            .unwrap_or_else(|| FileError::writing(self.location(), operation, cause, bytes))
    }

    /// Opens the partial file. A finished one may not be writable any more.
    pub(super) fn open_partial(&self, access: OFlags) -> Result<File, FileError> {
        let parent = self
            .root
            .open_directory(&self.parent)
            .map_err(|cause| self.failed("open", cause, 0))?;
        names::open_own(&parent, &self.partial, access).map_err(|cause| match cause {
            // Somebody removed it.
            Errno::NOENT => self.changed(),
            cause => self.failed("open", cause, 0),
        })
    }

    /// Opens the file under the final name to read.
    pub(super) fn open_final(&self) -> Result<(File, FileState), FileError> {
        let opened = self
            .root
            .open_at(&self.path, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|cause| match cause {
                Errno::NOENT => self.changed(),
                cause => self.failed("open", cause, 0),
            })?;
        let stat = fs::fstat(&opened).map_err(|cause| self.failed("fstat", cause, 0))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.changed());
        }
        Ok((File::from(opened), FileState::of(&stat)))
    }

    /// Fails when a file with another content must not be replaced.
    pub(super) fn may_replace(&self) -> Result<(), FileError> {
        match self.overwrite {
            Overwrite::Never => Err(FileError::DestinationExists {
                location: self.location(),
                found: "a file with another content",
                remedy: "remove it, choose another path, or set overwrite to IfDifferent",
            }),
            Overwrite::InUse => Err(FileError::PathInUse {
                location: self.location(),
            }),
            Overwrite::IfDifferent | Overwrite::Always => Ok(()),
        }
    }

    /// Makes the partial file and takes space for it.
    pub(super) fn reserve(&self, bytes: u64, space: &ReservedSpace) -> Result<(), FileError> {
        let parent = self
            .root
            .open_directory(&self.parent)
            .map_err(|cause| self.failed("open", cause, bytes))?;
        let data = self.disk_bytes(bytes);
        let demand = Demand {
            bytes: data,
            new_bytes: data,
            inodes: 0,
        };
        let _locked = space.reserve(&self.location(), &parent, demand)?;
        self.make_partial(&parent, bytes)
    }

    /// Makes the partial file, or finds it, gives it its size and allocates its space. On tmpfs that makes every
    /// page, 250 ms for each GiB: there only small files are allocated, and a large one may find the file system
    /// full when its blocks come. So may a file with holes, of which nothing is allocated: the manifest says how large
    /// the holes are, and not where.
    pub(super) fn make_partial(&self, parent: &OwnedFd, bytes: u64) -> Result<(), FileError> {
        let failed = |operation, cause| {
            let mut error = FileError::writing(self.location(), operation, cause, bytes);
            if let FileError::DiskFull { available, .. } = &mut error
                && let Ok(free) = fs::fstatvfs(parent)
            {
                *available = free.f_bavail.saturating_mul(free.f_frsize);
            }
            error
        };
        let file = names::open_own(parent, &self.partial, OFlags::CREATE | OFlags::RDWR)
            .map_err(|cause| failed("open", cause))?;
        let stat = fs::fstat(&file).map_err(|cause| failed("fstat", cause))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.changed());
        }
        if FileState::of(&stat).size != bytes {
            // An earlier attempt's of another size: its bytes are rehashed as they are.
            fs::ftruncate(&file, bytes).map_err(|cause| failed("ftruncate", cause))?;
        }
        if bytes == 0 || self.hole_bytes > 0 || (bytes >= LARGE_BYTES && is_tmpfs(&file)) {
            return Ok(());
        }
        loop {
            match fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                // Where it cannot be done, the check of free space before has to do.
                Ok(()) | Err(Errno::OPNOTSUPP) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(cause) => return Err(failed("fallocate", cause)),
            }
        }
    }

    /// Gives the partial file the time of the source's file. Where the file system has no such time, it keeps its own.
    pub(super) fn set_modified(&self, parent: &OwnedFd) {
        if self.modified_ns == 0 {
            return;
        }
        const SECOND_NS: i64 = 1_000_000_000;
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: self.modified_ns.div_euclid(SECOND_NS),
                tv_nsec: self.modified_ns.rem_euclid(SECOND_NS),
            },
        };
        let _ = fs::utimensat(parent, &self.partial, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// Removes the partial file, if there is one.
    pub(super) fn remove_partial(&self, parent: &OwnedFd) -> Result<(), FileError> {
        match fs::unlinkat(parent, &self.partial, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(self.failed("unlink", cause, 0)),
        }
    }

    /// What is there already, and how many bytes of disk the rest takes.
    pub(super) fn inspect(
        &self,
        parent: &OwnedFd,
        bytes: u64,
    ) -> Result<(InitialContent, u64), FileError> {
        let stat = |name: &str| match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(self.failed("fstatat", cause, bytes)),
        };
        let named = match self.is_staged() {
            true => None,
            false => stat(&self.name)?,
        };
        let same_size = match named {
            None => false,
            Some(found) => self.check_replaceable(&found, bytes)?,
        };
        let partial = stat(&self.partial)?;
        let whole = partial.is_some_and(|stat| bytes > 0 && FileState::of(&stat).size == bytes);
        let existing = match self.overwrite {
            Overwrite::Never | Overwrite::InUse => same_size,
            Overwrite::IfDifferent => same_size && !whole,
            Overwrite::Always => false,
        };
        if existing {
            return Ok((InitialContent::Existing, 0));
        }
        match partial {
            None => Ok((InitialContent::Fresh, self.disk_bytes(bytes))),
            Some(stat) => {
                let more = self
                    .disk_bytes(bytes)
                    .saturating_sub(allocated_bytes(&stat));
                Ok((InitialContent::Resumed, more))
            }
        }
    }

    /// Whether the link is there with this text; an error when something else is there that it may not replace.
    pub(super) fn has_link(&self, parent: &OwnedFd, text: &str) -> Result<bool, FileError> {
        let failed = |cause| self.failed("readlinkat", cause, 0);
        match fs::readlinkat(parent, &self.name, Vec::new()) {
            Ok(found) if found.as_bytes() == text.as_bytes() => Ok(true),
            Ok(_) => self.may_replace().map(|()| false),
            Err(Errno::NOENT) => Ok(false),
            // No link.
            Err(Errno::INVAL) => {
                let found = fs::statat(parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
                self.check_replaceable(&found.map_err(failed)?, 0)?;
                self.may_replace().map(|()| false)
            }
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Makes the link where its partial file would be.
    pub(super) fn make_link(&self, parent: &OwnedFd, text: &str) -> Result<(), FileError> {
        self.remove_partial(parent)?;
        fs::symlinkat(text, parent, &self.partial)
            .map_err(|cause| self.failed("symlinkat", cause, 0))
    }

    /// Fails if a file may not replace what has the final name. Otherwise returns whether the sizes are equal.
    fn check_replaceable(&self, found: &Stat, bytes: u64) -> Result<bool, FileError> {
        let exists = |found| FileError::DestinationExists {
            location: self.location(),
            found,
            remedy: "remove it or choose another path (to put a file into a directory, end its path with a slash)",
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(exists("a directory")),
            FileType::Symlink => return Err(self.failed("open", Errno::LOOP, bytes)),
            _ => return Err(exists(special(found).unwrap_or("something else"))),
        }
        let same_size = FileState::of(found).size == bytes;
        if !same_size {
            self.may_replace()?;
        }
        Ok(same_size)
    }
}

fn is_tmpfs(file: impl AsFd) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between architectures"
    )]
    fs::fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS)
}
