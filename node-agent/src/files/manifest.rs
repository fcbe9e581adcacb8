//! `Manifest`: what a source consists of, as the source's agent found it.
//!
//! Made by [`Manifest::scan`] at the source, carried to every destination, and checked again
//! there by [`Manifest::from_entries`]: after that its paths stay below where they are put.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::claim;
use super::digest::{BLOCK_BYTES, MAX_FILE_BYTES};
use super::error::{FileError, Place};
use super::root::{Root, RootPath, special};

/// Most files and directories in one manifest: at about 150 B each it then takes 150 MB.
pub const MAX_ENTRIES: usize = 1_000_000;

/// Most blocks of all files of one manifest: 256 TiB. Message numbers then fit `u32` (a message has
/// a block or a digest at least), and their places in memory 2 GiB.
pub const MAX_BLOCKS: u64 = 1 << 28;

/// Deepest nesting of directories below the source.
pub const MAX_DEPTH: usize = 64;

/// The mode bits that are kept: read, write, execute for user, group and others. Never set-uid,
/// set-gid or sticky: a transfer must not hand out another user's rights.
pub(super) const MODE_BITS: u32 = 0o777;

/// What tells one state of a file from another without reading it. Of one node: other nodes have no
/// use for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Device number; not recorded with a copy.
    #[serde(skip)]
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of the content, ns since 1970.
    pub mtime_ns: i64,
    /// Last change of content or attributes, ns since 1970; cannot be set back by a user.
    pub ctime_ns: i64,
}

impl Identity {
    // The fields of `Stat` have other types on other architectures.
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between architectures"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        Identity {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            size: stat.st_size as u64,
            mtime_ns: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime_ns: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Says so when another file or directory stands there now.
    pub(super) fn replaced(&self, now: &Identity) -> Option<&'static str> {
        let same = (self.dev, self.ino) == (now.dev, now.ino);
        (!same).then_some("it was replaced by another one")
    }

    /// What differs, in words, if anything does.
    pub(super) fn difference(&self, now: &Identity) -> Option<&'static str> {
        if let Some(what) = self.replaced(now) {
            Some(what)
        } else if self.size != now.size {
            Some("its size changed")
        } else if self.mtime_ns != now.mtime_ns {
            Some("it was written to")
        } else if self.ctime_ns != now.ctime_ns {
            Some("its attributes or content changed")
        } else {
            None
        }
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A directory; every one is listed, empty or not.
    Directory,
}

/// One file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path relative to the source directory; for a source that is one file, its name.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Its permission bits, 0…0o777.
    pub mode: u32,
    /// Its state at the source.
    pub identity: Identity,
}

/// Whether a source is one file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One file.
    File,
    /// A directory with all that is below it.
    Directory,
}

/// A checked list of files and directories, sorted by the bytes of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    shape: Shape,
    entries: Vec<Entry>,
}

impl Manifest {
    /// Lists the file or directory `path`. Weft's own partial files are left out; a link, device,
    /// pipe or socket anywhere in it is refused, as is what cannot be read.
    pub fn scan(root: &Root, path: &RootPath) -> Result<Self, FileError> {
        let opened = root.open_at(path, OFlags::PATH).map_err(|cause| {
            if cause == Errno::NOENT {
                return FileError::SourceMissing {
                    place: root.place(path),
                    missing: root.missing_part(path),
                };
            }
            root.symlink_on_the_way(path, cause)
                .unwrap_or_else(|| FileError::reading(root.place(path), cause))
        })?;
        let place = || root.place(path);
        let stat = fs::fstat(&opened).map_err(|cause| FileError::reading(place(), cause))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let entries = scan_directory(root, path)?;
            check_blocks(&entries)?;
            return Ok(Manifest {
                shape: Shape::Directory,
                entries,
            });
        }
        if path.names_directory() {
            return Err(FileError::NotARegularFile {
                place: place(),
                kind: special(&stat).unwrap_or("a file, and the path says directory by its slash"),
            });
        }
        // The root itself is a directory, so a file has a parent and a name.
        let (parent, name) = path
            .split()
            .ok_or_else(|| FileError::reading(place(), Errno::NOENT))?;
        let parent = root
            .open_directory(&parent)
            .map_err(|cause| FileError::reading(place(), cause))?;
        let entry = file_entry(&parent, name, name, &stat, place)?;
        Ok(Manifest {
            shape: Shape::File,
            entries: vec![entry],
        })
    }

    /// A manifest from entries that another node sent: everything that a scan guarantees is
    /// checked. They need not be sorted.
    pub fn from_entries(shape: Shape, mut entries: Vec<Entry>) -> Result<Self, FileError> {
        let bad = |path: &str, fault| FileError::BadManifest {
            path: path.into(),
            fault,
        };
        if entries.len() > MAX_ENTRIES {
            return Err(bad("", "is one of too many"));
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        if shape == Shape::File
            && !matches!(entries.as_slice(), [Entry { kind: EntryKind::File { .. }, path, .. }] if !path.contains('/'))
        {
            return Err(bad(
                "",
                "is not the single file that the manifest announces",
            ));
        }
        let mut directories = HashSet::new();
        let mut previous: Option<&str> = None;
        for entry in &entries {
            let path = entry.path.as_str();
            if previous == Some(path) {
                return Err(bad(path, "is there twice"));
            }
            previous = Some(path);
            let parsed = RootPath::parse(path).map_err(|error| match error {
                FileError::BadPath { fault, .. } => bad(path, fault),
                error => error,
            })?;
            let (parent, name) = parsed.split().ok_or_else(|| bad(path, "has no name"))?;
            if parsed.as_str() != path {
                return Err(bad(path, "is not written in its shortest form"));
            }
            if claim::is_reserved(name) {
                return Err(bad(path, "has a name of Weft's own files"));
            }
            if path.split('/').count() > MAX_DEPTH + 1 {
                return Err(bad(path, "lies too deep"));
            }
            // A directory sorts before what is below it.
            if !parent.as_str().is_empty() && !directories.contains(parent.as_str()) {
                return Err(bad(
                    path,
                    "lies in a directory that the manifest does not list",
                ));
            }
            if entry.mode & !MODE_BITS != 0 {
                return Err(bad(path, "has mode bits beyond 0o777"));
            }
            match entry.kind {
                EntryKind::Directory => {
                    directories.insert(path);
                }
                EntryKind::File { bytes } if bytes > MAX_FILE_BYTES => {
                    return Err(bad(path, "is larger than 4 TiB"));
                }
                EntryKind::File { .. } => {}
            }
        }
        drop(directories);
        check_blocks(&entries)?;
        Ok(Manifest { shape, entries })
    }

    /// Whether the source is one file or a directory.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// All files and directories. An entry's place in this list is its index everywhere.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The regular files with their index and size in bytes.
    pub fn files(&self) -> impl Iterator<Item = (u32, &Entry, u64)> {
        self.entries
            .iter()
            .zip(0..)
            .filter_map(|(entry, index)| match entry.kind {
                EntryKind::File { bytes } => Some((index, entry, bytes)),
                EntryKind::Directory => None,
            })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files()
            .fold(0u64, |sum, (_, _, bytes)| sum.saturating_add(bytes))
    }

    /// Number of regular files.
    pub fn file_count(&self) -> u32 {
        self.files().count() as u32
    }

    /// The path of an entry when the whole is put at `base` (for one file: `base` is the file).
    pub(super) fn path_of(&self, base: &RootPath, entry: &Entry) -> Result<RootPath, FileError> {
        match self.shape {
            Shape::File => Ok(base.clone()),
            Shape::Directory => base.join(&entry.path),
        }
    }
}

fn check_blocks(entries: &[Entry]) -> Result<(), FileError> {
    let mut blocks = 0u64;
    for entry in entries {
        if let EntryKind::File { bytes } = entry.kind {
            // No overflow: a file is checked to have at most MAX_FILE_BYTES.
            blocks += bytes.div_ceil(BLOCK_BYTES as u64);
        }
        if blocks > MAX_BLOCKS {
            return Err(FileError::TooManyBlocks {
                path: entry.path.clone(),
            });
        }
    }
    Ok(())
}

fn scan_directory(root: &Root, top: &RootPath) -> Result<Vec<Entry>, FileError> {
    let mut entries: Vec<Entry> = Vec::new();
    // Directories still to be listed, relative to the top, with their depth.
    let mut waiting = vec![(String::new(), 0usize)];
    while let Some((directory, depth)) = waiting.pop() {
        let path = top.join(&directory)?;
        let failed = |cause| {
            root.symlink_on_the_way(&path, cause)
                .unwrap_or_else(|| FileError::reading(root.place(&path), cause))
        };
        let opened = root.open_directory(&path).map_err(failed)?;
        let mut listing = Dir::read_from(&opened).map_err(failed)?;
        while let Some(found) = listing.read() {
            let found = found.map_err(failed)?;
            let bytes = found.file_name().to_bytes();
            if matches!(bytes, b"." | b"..") {
                continue;
            }
            let place = |name: &str| Place {
                root: root.name().into(),
                path: format!("{path}/{name}").trim_start_matches("./").into(),
            };
            let Ok(name) = std::str::from_utf8(bytes) else {
                let escaped = bytes.escape_ascii().to_string();
                return Err(FileError::NameNotUtf8 {
                    place: place(&escaped),
                });
            };
            if claim::is_reserved(name) {
                continue;
            }
            let relative = below(&directory, name);
            let stat = match fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => {
                    let what = "a file was removed from it";
                    return Err(FileError::SourceChanged {
                        place: root.place(&path),
                        what,
                    });
                }
                Err(cause) => return Err(FileError::reading(place(name), cause)),
            };
            if entries.len() == MAX_ENTRIES {
                return Err(FileError::TooManyFiles {
                    place: root.place(top),
                });
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                if depth == MAX_DEPTH {
                    return Err(FileError::TooDeep { place: place(name) });
                }
                entries.push(Entry {
                    path: relative.clone(),
                    kind: EntryKind::Directory,
                    mode: stat.st_mode & MODE_BITS,
                    identity: Identity::of(&stat),
                });
                waiting.push((relative, depth + 1));
            } else {
                entries.push(file_entry(&opened, name, &relative, &stat, || place(name))?);
            }
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// The entry of what is not a directory, if it can be sent.
fn file_entry(
    parent: &OwnedFd,
    name: &str,
    relative: &str,
    stat: &Stat,
    place: impl Fn() -> Place,
) -> Result<Entry, FileError> {
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        let target = fs::readlinkat(parent, name, Vec::new()).unwrap_or_default();
        let place = place();
        let link = place.path.clone();
        let target = target.as_bytes().escape_ascii().to_string();
        return Err(FileError::SymlinkRefused {
            place,
            link,
            target,
        });
    }
    if let Some(kind) = special(stat) {
        return Err(FileError::NotARegularFile {
            place: place(),
            kind,
        });
    }
    if claim::is_reserved(name) {
        return Err(FileError::ReservedName { place: place() });
    }
    let identity = Identity::of(stat);
    if identity.size > MAX_FILE_BYTES {
        return Err(FileError::FileTooLarge {
            place: place(),
            bytes: identity.size,
        });
    }
    fs::accessat(parent.as_fd(), name, fs::Access::READ_OK, AtFlags::EACCESS)
        .map_err(|cause| FileError::reading(place(), cause))?;
    Ok(Entry {
        path: relative.into(),
        kind: EntryKind::File {
            bytes: identity.size,
        },
        mode: stat.st_mode & MODE_BITS,
        identity,
    })
}

fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.into()
    } else {
        format!("{directory}/{name}")
    }
}
