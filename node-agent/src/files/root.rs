//! Roots and the paths below them: the only way this crate opens a file.
//!
//! Everything is opened by `openat2(2)` below the root's directory, without following any link
//! (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`), so that no path, whoever
//! sent it and whatever happens to the directories meanwhile, leads out of the root. What has no
//! such call (rename, unlink, mkdir) names one component relative to a directory so opened.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::claim::COPIES;
use super::error::{FileError, Place};
use super::manifest::Identity;
use super::occupancy::Occupancy;
use super::space::{RootLimits, Space};

/// Bytes in the longest path (`PATH_MAX` less its NUL) and in the longest name (`NAME_MAX`).
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_BYTES: usize = 255;

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

/// A path below a root: relative, UTF-8, without "..", "." or NUL. The empty path is the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootPath {
    text: String,
    directory: bool,
}

impl RootPath {
    /// The root itself.
    pub const ROOT: RootPath = RootPath {
        text: String::new(),
        directory: true,
    };

    /// Checks and normalises a path: single slashes, no "." components; a slash at the end is
    /// remembered and says "a directory".
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let bad = |fault| FileError::BadPath {
            path: text.escape_default().to_string(),
            fault,
        };
        if text.starts_with('/') {
            return Err(bad("is absolute"));
        }
        if text.contains('\0') {
            return Err(bad("contains a NUL character"));
        }
        let mut clean = String::with_capacity(text.len());
        for name in text.split('/').filter(|name| !matches!(*name, "" | ".")) {
            if name == ".." {
                return Err(bad("contains \"..\""));
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(bad("contains a name of more than 255 bytes"));
            }
            if name == COPIES {
                return Err(bad(
                    "contains .weft-copies, where Weft keeps its own records",
                ));
            }
            if !clean.is_empty() {
                clean.push('/');
            }
            clean.push_str(name);
        }
        if clean.len() > MAX_PATH_BYTES {
            return Err(bad("has more than 4095 bytes"));
        }
        let directory = clean.is_empty() || text.ends_with('/') || text.ends_with("/.");
        Ok(RootPath {
            text: clean,
            directory,
        })
    }

    /// The path, normalised and without a slash at the end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it was written with a slash at the end (or is the root itself).
    pub fn names_directory(&self) -> bool {
        self.directory
    }

    /// Its last name; `None` for the root itself.
    pub fn file_name(&self) -> Option<&str> {
        self.split().map(|(_, name)| name)
    }

    /// The path `below` this one.
    pub fn join(&self, below: &str) -> Result<Self, FileError> {
        let below = RootPath::parse(below)?;
        match (self.text.is_empty(), below.text.is_empty()) {
            (true, _) => Ok(below),
            (false, true) => Ok(self.clone()),
            (false, false) => {
                let slash = if below.directory { "/" } else { "" };
                RootPath::parse(&format!("{}/{}{slash}", self.text, below.text))
            }
        }
    }

    /// Whether it is `other` or lies below it.
    pub(super) fn is_within(&self, other: &RootPath) -> bool {
        let rest = self.text.strip_prefix(&other.text);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || other.text.is_empty())
    }

    /// Whether one of the two lies within the other, or they are the same.
    pub(super) fn overlaps(&self, other: &RootPath) -> bool {
        self.is_within(other) || other.is_within(self)
    }

    /// Its directory and last name; `None` for the root itself.
    pub(super) fn split(&self) -> Option<(RootPath, &str)> {
        if self.text.is_empty() {
            return None;
        }
        let (parent, name) = self.text.rsplit_once('/').unwrap_or(("", &self.text));
        Some((
            RootPath {
                text: parent.into(),
                directory: true,
            },
            name,
        ))
    }

    /// What the kernel is given: it takes no empty path.
    fn to_open(&self) -> &str {
        if self.text.is_empty() {
            "."
        } else {
            &self.text
        }
    }
}

impl fmt::Display for RootPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_open())
    }
}

impl FromStr for RootPath {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        RootPath::parse(text)
    }
}

/// A directory of the node that jobs may name, held open. Made from the agent's configuration.
#[derive(Debug)]
pub struct Root {
    name: String,
    path: PathBuf,
    access: Access,
    directory: OwnedFd,
    occupancy: Occupancy,
    /// Never locked for longer than a look.
    limits: Mutex<RootLimits>,
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
            occupancy: Occupancy::default(),
            limits: Mutex::default(),
            space: Mutex::default(),
            records: Mutex::default(),
        })
    }

    /// The name that jobs use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory on the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path leads to another directory by now, which has been mounted over this one or put
    /// in its place.
    pub fn is_elsewhere(&self) -> bool {
        match (fs::stat(&self.path), fs::fstat(&self.directory)) {
            (Ok(path), Ok(open)) => Identity::of(&open).replaced(&Identity::of(&path)).is_some(),
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
            (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
            _ => false,
        }
    }

    /// Refuses what would happen in a directory that nobody else sees any more.
    pub fn in_place(&self) -> Result<(), FileError> {
        if self.is_elsewhere() {
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

    /// What jobs may do in it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// `path` as messages name it.
    pub(super) fn place(&self, path: &RootPath) -> Place {
        path.at(&self.name)
    }

    /// Where jobs have their files.
    pub(super) fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// What transfers have taken of its disk.
    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        // Every change is one assignment.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be held while a record of a copy is replaced.
    pub(super) fn records(&self) -> MutexGuard<'_, ()> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root's directory itself.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Opens `path` below the root.
    pub(super) fn open_at(&self, path: &RootPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        // openat2 refuses what O_PATH would ignore.
        let no_terminal = if flags.contains(OFlags::PATH) {
            OFlags::empty()
        } else {
            OFlags::NOCTTY
        };
        let flags = flags | OFlags::CLOEXEC | no_terminal;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut last = Errno::AGAIN;
        for _ in 0..LOOKUP_TRIES {
            match fs::openat2(
                &self.directory,
                path.to_open(),
                flags,
                Mode::empty(),
                resolve,
            ) {
                Err(cause @ (Errno::AGAIN | Errno::INTR)) => last = cause,
                answer => return answer,
            }
        }
        Err(last)
    }

    /// Opens the directory `path` for looking up names in it.
    pub(super) fn open_directory(&self, path: &RootPath) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The shortest part of `path`, from its beginning, that is not there.
    pub(super) fn missing_part(&self, path: &RootPath) -> String {
        let ends = path.text.match_indices('/').map(|(at, _)| at);
        let mut parts = ends.map(|end| &path.text[..end]);
        let missing = |part: &&str| {
            let directory = RootPath {
                text: (*part).into(),
                directory: true,
            };
            self.open_at(&directory, OFlags::PATH).err() == Some(Errno::NOENT)
        };
        parts.find(missing).unwrap_or(&path.text).into()
    }

    /// When a lookup of `path` failed because of a link, the error that names the link.
    pub(super) fn symlink_on_the_way(&self, path: &RootPath, cause: Errno) -> Option<FileError> {
        if !matches!(cause, Errno::LOOP | Errno::XDEV | Errno::NOTDIR) {
            return None;
        }
        let mut end = 0;
        loop {
            end += path.text[end..].find('/').unwrap_or(path.text.len() - end);
            let link = &path.text[..end];
            let (parent, name) = RootPath {
                text: link.into(),
                directory: false,
            }
            .split()
            .map(|(parent, name)| (parent, name.to_owned()))?;
            let parent = self.open_directory(&parent).ok()?;
            let found = fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                let target = fs::readlinkat(&parent, &name, Vec::new()).unwrap_or_default();
                return Some(FileError::SymlinkRefused {
                    place: self.place(path),
                    link: link.into(),
                    target: target.as_bytes().escape_ascii().to_string(),
                });
            }
            if end == path.text.len() {
                return None;
            }
            end += 1;
        }
    }
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
    fn paths_are_normalised_and_what_could_leave_the_root_is_refused() {
        for (text, clean, directory) in [
            ("a", "a", false),
            ("a/b", "a/b", false),
            ("a//b/", "a/b", true),
            ("./a/./b", "a/b", false),
            ("", "", true),
            (".", "", true),
            ("..a/b..", "..a/b..", false),
            ("näme", "näme", false),
        ] {
            let path = RootPath::parse(text).unwrap();
            assert_eq!(
                (path.as_str(), path.names_directory()),
                (clean, directory),
                "{text:?}"
            );
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(2100);
        for text in [
            "..",
            "a/../b",
            "../a",
            "/",
            "/etc/passwd",
            "a\0b",
            "a/.weft-copies/b",
            &long,
            &deep,
        ] {
            let error = RootPath::parse(text).unwrap_err();
            assert_eq!(error.reason(), "BadPath", "{text:?}");
        }
    }

    #[test]
    fn joining_keeps_to_the_rules() {
        let base = RootPath::parse("m/x").unwrap();
        assert_eq!(base.join("a/b").unwrap().as_str(), "m/x/a/b");
        assert_eq!(base.join("").unwrap(), base);
        assert_eq!(RootPath::ROOT.join("a").unwrap().as_str(), "a");
        assert_eq!(base.join("../a").unwrap_err().reason(), "BadPath");
        assert_eq!(base.file_name(), Some("x"));
        assert_eq!(RootPath::ROOT.file_name(), None);
        let within = [("m/x", "m"), ("m/x", "m/x"), ("m", "")];
        let apart = [("m", "m/x"), ("mx", "m"), ("", "m")];
        let is_within = |(path, other): &(&str, &str)| {
            let [path, other] = [path, other].map(|text| RootPath::parse(text).unwrap());
            path.is_within(&other)
        };
        assert!(within.iter().all(is_within) && !apart.iter().any(is_within));
    }

    #[test]
    fn a_missing_root_names_its_directory_and_the_remedy() {
        let error = Root::open("models", Path::new("/no/such"), Access::ReadOnly).unwrap_err();
        assert_eq!(error.reason(), "RootMissing");
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
