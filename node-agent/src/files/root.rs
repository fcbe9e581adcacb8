//! `Root`: a directory that jobs may name. Nothing in [`files`](super) opens a file in another way.
//!
//! Everything is opened by `openat2(2)` below the root's directory (`RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS`), so
//! that no path leads out of the root, whatever happens to the directories meanwhile. No link is followed
//! (`RESOLVE_NO_SYMLINKS`), except in a source whose links are followed. rename, unlink and mkdir have no such call:
//! they take one name, relative to a directory that was opened this way.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::{FileError, Location};
use super::file_state::FileState;
use super::occupancy::Occupancy;
use super::path::RootPath;
use super::root_volumes::RootVolumes;
use super::space::{RootLimits, Space};

/// Times a lookup is repeated when directories are renamed under it (openat2's EAGAIN).
const LOOKUP_TRIES: usize = 64;

/// What jobs may do in a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Be sources only.
    ReadOnly,
    /// Be sources and destinations.
    ReadWrite,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::ReadOnly => "ReadOnly",
            Access::ReadWrite => "ReadWrite",
        })
    }
}

/// A directory of the node that jobs may name, held open. Made from the agent's configuration.
#[derive(Debug)]
pub struct Root {
    name: String,
    path: PathBuf,
    access: Access,
    directory: OwnedFd,
    occupancy: Arc<Occupancy>,
    /// Never locked for longer than a look.
    limits: Mutex<RootLimits>,
    volumes: Mutex<Option<RootVolumes>>,
    space: Mutex<Space>,
    /// Locked while a record of a copy is replaced.
    records: Mutex<()>,
}

impl Root {
    /// Opens the directory. Its own path comes from the node's administrator and may contain
    /// links.
    pub fn open(name: &str, path: &Path, access: Access) -> Result<Self, FileError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory =
            fs::open(path, flags, Mode::empty()).map_err(|cause| FileError::RootMissing {
                root: name.into(),
                path: path.into(),
                cause,
            })?;
        Ok(Root {
            name: name.into(),
            path: path.into(),
            access,
            directory,
            occupancy: Arc::default(),
            limits: Mutex::default(),
            volumes: Mutex::default(),
            space: Mutex::default(),
            records: Mutex::default(),
        })
    }

    /// The name that jobs use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its path leads to another directory by now, which has been mounted over this one or put
    /// in its place.
    pub fn is_replaced(&self) -> bool {
        match (fs::stat(&self.path), fs::fstat(&self.directory)) {
            (Ok(path), Ok(open)) => !FileState::of(&open).is_same_file(&FileState::of(&path)),
            _ => false,
        }
    }

    /// Whether both are the same directory, with the same name and access.
    pub fn is_same(&self, other: &Root) -> bool {
        // Names first: another root may be on a file system that does not answer.
        if (&self.name, &self.path, self.access) != (&other.name, &other.path, other.access) {
            return false;
        }
        match (fs::fstat(&self.directory), fs::fstat(&other.directory)) {
            (Ok(one), Ok(two)) => FileState::of(&one).is_same_file(&FileState::of(&two)),
            _ => false,
        }
    }

    /// Refuses what would happen in a directory that nobody else sees any more.
    pub fn check_not_replaced(&self) -> Result<(), FileError> {
        if self.is_replaced() {
            return Err(FileError::RootReplaced {
                root: self.name.clone(),
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Sets what transfers that begin from now on may take of its disk.
    pub fn set_limits(&self, limits: RootLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// What transfers may take of its disk.
    pub(super) fn limits(&self) -> RootLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of its file system that are free, and that transfers leave free. `None` where that does not count, or fails.
    pub fn free_bytes(&self) -> Option<(u64, u64)> {
        let of_disk = fs::fstatvfs(&self.directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(of_disk.f_frsize);
        let min_free = self.limits().min_free.bytes_of(bytes(of_disk.f_blocks));
        (of_disk.f_blocks > 0).then_some((bytes(of_disk.f_bavail), min_free))
    }

    /// Sets how pods mount its copies.
    pub fn set_volumes(&self, volumes: Option<RootVolumes>) {
        *self.volumes.lock().unwrap_or_else(PoisonError::into_inner) = volumes;
    }

    /// How pods mount its copies; nothing where they do not.
    pub(super) fn volumes(&self) -> Option<RootVolumes> {
        let volumes = self.volumes.lock();
        volumes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether pods have mounted what is at `path`, within it or around it. What cannot be read may say so.
    pub(super) fn is_mounted_by_pods(&self, path: &RootPath) -> bool {
        let Some(volumes) = self.volumes() else {
            return false;
        };
        // First: a volume that is about to show it is written down before it ceases to be so.
        if self.occupancy.has_volume(path) {
            return true;
        }
        volumes.show(&self.name, path).unwrap_or_else(|error| {
            tracing::warn!(
                "{}: {error}: which copies pods have mounted is not known, so none is removed or replaced",
                volumes.in_use.display()
            );
            true
        })
    }

    /// What jobs may do in it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// `path` as messages name it.
    pub(super) fn location(&self, path: &RootPath) -> Location {
        self.own_location(path.as_str())
    }

    /// A file of Weft's own as messages name it.
    pub(super) fn own_location(&self, path: &str) -> Location {
        Location {
            root: self.name.clone(),
            path: path.into(),
        }
    }

    /// Which of its paths are in use.
    pub(super) fn occupancy(&self) -> &Arc<Occupancy> {
        &self.occupancy
    }

    /// What transfers have taken of its disk.
    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        // Every change is one assignment.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be held while a record of a copy is replaced.
    pub(super) fn lock_records(&self) -> MutexGuard<'_, ()> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root's directory itself.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Opens `path` below the root.
    pub(super) fn open_at(&self, path: &RootPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let links = ResolveFlags::NO_SYMLINKS;
        open_beneath(&self.directory, path.to_open(), flags, links)
    }

    /// Opens what `path` leads to when links are followed, none of them out of the directory `within`.
    pub(super) fn follow_at(
        &self,
        within: &RootPath,
        path: &RootPath,
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let below = path.below(within).ok_or(Errno::XDEV)?;
        let directory = self.open_directory(within)?;
        open_beneath(&directory, below.to_open(), flags, ResolveFlags::empty())
    }

    /// The path without links of what `path` leads to, and what is there, as [`Root::follow_at`] finds it.
    /// `XDEV` where a link leads out, and `ILSEQ` where the path is not UTF-8.
    pub(super) fn resolve(
        &self,
        within: &RootPath,
        path: &RootPath,
    ) -> Result<(RootPath, Stat), Errno> {
        let opened = self.follow_at(within, path, OFlags::PATH)?;
        let stat = fs::fstat(&opened)?;
        let real = kernel_path(&opened)?;
        let below = real.strip_prefix(kernel_path(&self.directory)?);
        let below = below.map_err(|_| Errno::XDEV)?;
        let below = below.to_str().ok_or(Errno::ILSEQ)?;
        // The directory of the records is in no path.
        let below = RootPath::parse(below).map_err(|_| Errno::XDEV)?;
        Ok((below, stat))
    }

    /// The text of the link `path`.
    pub(super) fn link_text(&self, path: &RootPath) -> Result<Vec<u8>, Errno> {
        let link = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(fs::readlinkat(link, "", Vec::new())?.into_bytes())
    }

    /// Opens the directory `path` for looking up names in it.
    pub(super) fn open_directory(&self, path: &RootPath) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The shortest part of `path`, from its beginning, that is not there.
    pub(super) fn missing_part(&self, path: &RootPath) -> String {
        let mut parts = path.ancestors();
        let is_missing =
            |part: &RootPath| self.open_at(part, OFlags::PATH).err() == Some(Errno::NOENT);
        let missing = parts.find(is_missing);
        missing.as_ref().unwrap_or(path).as_str().into()
    }

    /// When a lookup of `path` failed because of a link, the error that names the link.
    pub(super) fn symlink_on_the_way(&self, path: &RootPath, cause: Errno) -> Option<FileError> {
        if !matches!(cause, Errno::LOOP | Errno::XDEV | Errno::NOTDIR) {
            return None;
        }
        for link in path.ancestors().chain([path.clone()]) {
            let (parent, name) = link.split()?;
            let parent = self.open_directory(&parent).ok()?;
            let found = fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                let link_text = fs::readlinkat(&parent, name, Vec::new()).unwrap_or_default();
                return Some(FileError::SymlinkRefused {
                    location: self.location(path),
                    link: link.as_str().into(),
                    link_text: link_text.as_bytes().escape_ascii().to_string(),
                });
            }
        }
        None
    }
}

/// Opens a path beneath a directory.
fn open_beneath(
    directory: &OwnedFd,
    path: &str,
    flags: OFlags,
    links: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    // openat2 refuses what O_PATH would ignore.
    let no_terminal = if flags.contains(OFlags::PATH) {
        OFlags::empty()
    } else {
        OFlags::NOCTTY
    };
    let flags = flags | OFlags::CLOEXEC | no_terminal;
    let resolve = links | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..LOOKUP_TRIES {
        match fs::openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(cause @ (Errno::AGAIN | Errno::INTR)) => last = cause,
            answer => return answer,
        }
    }
    Err(last)
}

/// Where a file is that is open.
fn kernel_path(opened: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let path = fs::readlink(link, Vec::new())?.into_bytes();
    Ok(OsString::from_vec(path).into())
}

/// What a directory entry is, for messages; `None` for regular files and directories.
pub(super) fn special(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => None,
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a named pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        FileType::Unknown => Some("of a kind the kernel does not name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_root_names_its_directory_and_the_remedy() {
        let error = Root::open("models", Path::new("/no/such"), Access::ReadOnly).unwrap_err();
        assert_eq!(error.reason(), "RootMissing");
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
