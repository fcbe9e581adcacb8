//! `Manifest`: what a source consists of, as the source's agent found it.
//!
//! Made by [`Manifest::scan`] at the source, fetched by every destination, and checked again there by
//! [`ManifestBuilder::finish`]: after that its paths stay below where they are put.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::claim;
use super::digest::{BLOCK_BYTES, MAX_FILE_BYTES};
use super::error::{FileError, Place};
use super::root::{Root, RootPath, special};

/// Most files and directories in one manifest: 1,000,000 files and the directories that they are in. An
/// entry takes 16 B beside its path, and 32 B more where it was listed.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Most bytes of all paths of one manifest: 128 for each entry. Places in them fit `u32`.
pub const MAX_PATHS_BYTES: usize = 128 << 20;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'m> {
    /// Path relative to the source directory; for a source that is one file, its name.
    pub path: &'m str,
    /// What it is.
    pub kind: EntryKind,
    /// Its permission bits, 0…0o777.
    pub mode: u32,
}

/// Which version of an object it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The entity tag, as the store says it; "" where it says none.
    pub etag: String,
    /// Last change, ns since 1970; 0 where the store does not say.
    pub modified_ns: i64,
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
    list: List,
    digest: [u8; 32],
    state: [u8; 32],
}

/// Up to a million entries: in few large pieces, not in one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List {
    shape: Shape,
    /// One after the other.
    paths: String,
    entries: Vec<Packed>,
    /// Of the files and directories, by entry; empty where they were not listed on this node.
    identities: Vec<State>,
    /// Of objects, by entry; empty where there are none.
    versions: Vec<ObjectVersion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    /// `DIRECTORY` at one.
    bytes: u64,
    /// Where its path begins.
    start: u32,
    /// Bytes of its path.
    len: u16,
    mode: u16,
}

/// An identity without the size, which of a file is in its entry, and of a directory says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    dev: u64,
    ino: u64,
    mtime_ns: i64,
    ctime_ns: i64,
}

impl From<Identity> for State {
    fn from(identity: Identity) -> Self {
        let Identity {
            dev,
            ino,
            mtime_ns,
            ctime_ns,
            ..
        } = identity;
        State {
            dev,
            ino,
            mtime_ns,
            ctime_ns,
        }
    }
}

/// No file is this long.
const DIRECTORY: u64 = u64::MAX;

impl List {
    fn path(&self, entry: &Packed) -> &str {
        let start = entry.start as usize;
        &self.paths[start..start + usize::from(entry.len)]
    }

    fn unpack(&self, entry: &Packed) -> Entry<'_> {
        Entry {
            path: self.path(entry),
            kind: match entry.bytes {
                DIRECTORY => EntryKind::Directory,
                bytes => EntryKind::File { bytes },
            },
            mode: entry.mode.into(),
        }
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> + ExactSizeIterator {
        self.entries.iter().map(|entry| self.unpack(entry))
    }
}

/// A manifest while its entries come.
#[derive(Debug)]
pub struct ManifestBuilder {
    list: List,
    /// Of the entity tags of all objects.
    tag_bytes: usize,
}

impl ManifestBuilder {
    /// Without entries yet.
    pub fn new(shape: Shape) -> Self {
        let list = List {
            shape,
            paths: String::new(),
            entries: Vec::new(),
            identities: Vec::new(),
            versions: Vec::new(),
        };
        ManifestBuilder { list, tag_bytes: 0 }
    }

    /// Adds an entry, in any order.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), FileError> {
        let list = &mut self.list;
        let start = list.paths.len();
        if list.entries.len() == MAX_ENTRIES || start + entry.path.len() > MAX_PATHS_BYTES {
            return Err(bad(entry.path, "is one of too many"));
        }
        if entry.mode & !MODE_BITS != 0 {
            return Err(bad(entry.path, "has mode bits beyond 0o777"));
        }
        let bytes = match entry.kind {
            EntryKind::Directory => DIRECTORY,
            EntryKind::File { bytes } if bytes > MAX_FILE_BYTES => {
                return Err(bad(entry.path, "is larger than 4 TiB"));
            }
            EntryKind::File { bytes } => bytes,
        };
        let len = u16::try_from(entry.path.len());
        list.entries.push(Packed {
            bytes,
            start: start as u32,
            len: len.map_err(|_| bad("", "has a path of more than 64 KiB"))?,
            mode: entry.mode as u16,
        });
        list.paths.push_str(entry.path);
        Ok(())
    }

    /// The same for an entry that was found on this node; all of them are then.
    pub(super) fn found(&mut self, entry: Entry<'_>, identity: Identity) -> Result<(), FileError> {
        self.add(entry)?;
        self.list.identities.push(identity.into());
        Ok(())
    }

    /// The same for an object; all files are objects then.
    pub fn object(&mut self, entry: Entry<'_>, version: ObjectVersion) -> Result<(), FileError> {
        self.tag_bytes += version.etag.len();
        if self.tag_bytes > MAX_PATHS_BYTES {
            return Err(bad(entry.path, "has one of too many entity tags"));
        }
        self.add(entry)?;
        // Directories before it have none.
        self.list
            .versions
            .resize_with(self.list.entries.len() - 1, ObjectVersion::default);
        self.list.versions.push(version);
        Ok(())
    }

    /// The manifest. Everything that a scan guarantees is checked.
    pub fn finish(mut self) -> Result<Manifest, FileError> {
        let list = &mut self.list;
        if !list.versions.is_empty() {
            list.versions
                .resize_with(list.entries.len(), ObjectVersion::default);
        }
        let by_path = |a: &Packed, b: &Packed| list.path(a).cmp(list.path(b));
        if !list.entries.is_sorted_by(|a, b| by_path(a, b).is_le()) {
            let mut order: Vec<u32> = (0..list.entries.len() as u32).collect();
            order.sort_unstable_by(|a, b| {
                by_path(&list.entries[*a as usize], &list.entries[*b as usize])
            });
            arrange(&mut list.identities, order.clone());
            arrange(&mut list.versions, order.clone());
            arrange(&mut list.entries, order);
        }
        list.paths.shrink_to_fit();
        list.entries.shrink_to_fit();
        list.identities.shrink_to_fit();
        let list = self.list;
        check(&list)?;
        let digest = digest(&list);
        let state = state(&digest, &list);
        Ok(Manifest {
            list,
            digest,
            state,
        })
    }
}

/// Puts at each place the item that was at `order` of it.
fn arrange<T>(items: &mut [T], mut order: Vec<u32>) {
    for first in 0..items.len() {
        let mut place = first;
        loop {
            let from = std::mem::replace(&mut order[place], place as u32) as usize;
            if from == place || from == first {
                break;
            }
            items.swap(place, from);
            place = from;
        }
    }
}

fn bad(path: &str, fault: &'static str) -> FileError {
    FileError::BadManifest {
        path: path.into(),
        fault,
    }
}

/// Whether it is what a scan makes: the paths stay below where they are put.
fn check(list: &List) -> Result<(), FileError> {
    let is_one_file = matches!(list.entries.as_slice(), [one] if one.bytes != DIRECTORY && !list.paths.contains('/'));
    if list.shape == Shape::File && !is_one_file {
        return Err(bad(
            "",
            "is not the single file that the manifest announces",
        ));
    }
    // Of the entry before, which mostly lies in the same directory.
    let (mut previous, mut around) = (None, String::new());
    let mut blocks = 0u64;
    for entry in list.entries() {
        let path = entry.path;
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
        let parent = parent.as_str();
        if parent != around {
            let found = list
                .entries
                .binary_search_by(|at| list.path(at).cmp(parent));
            if !parent.is_empty()
                && !found.is_ok_and(|index| list.entries[index].bytes == DIRECTORY)
            {
                return Err(bad(
                    path,
                    "lies in a directory that the manifest does not list",
                ));
            }
            parent.clone_into(&mut around);
        }
        if let EntryKind::File { bytes } = entry.kind {
            // No overflow: a file has at most MAX_FILE_BYTES.
            blocks += bytes.div_ceil(BLOCK_BYTES as u64);
        }
        if blocks > MAX_BLOCKS {
            return Err(FileError::TooManyBlocks { path: path.into() });
        }
    }
    Ok(())
}

/// Names a manifest to other agents: everything that they are told of it.
fn digest(list: &List) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[u8::from(list.shape == Shape::Directory)]);
    let none = ObjectVersion::default();
    for (index, packed) in list.entries.iter().enumerate() {
        let version = list.versions.get(index).unwrap_or(&none);
        for text in [list.path(packed), &version.etag] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&version.modified_ns.to_le_bytes());
        hasher.update(&packed.mode.to_le_bytes());
        hasher.update(&packed.bytes.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn state(digest: &[u8; 32], list: &List) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(digest);
    for (packed, identity) in list.entries.iter().zip(&list.identities) {
        hasher.update(&identity.dev.to_le_bytes());
        hasher.update(&identity.ino.to_le_bytes());
        // A directory's times change with every file that comes or goes beside the listed ones.
        if packed.bytes != DIRECTORY {
            hasher.update(&identity.mtime_ns.to_le_bytes());
            hasher.update(&identity.ctime_ns.to_le_bytes());
        }
    }
    *hasher.finalize().as_bytes()
}

impl Manifest {
    /// Lists the file or directory `path`. Weft's own partial files are left out; a link, device,
    /// pipe or socket anywhere in it is refused, as is what cannot be read.
    pub fn scan(root: &Root, path: &RootPath) -> Result<Self, FileError> {
        // What is being assembled there is no copy yet.
        if claim::is_within_reserved(path.as_str()) {
            return Err(FileError::ReservedName {
                place: root.place(path),
            });
        }
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
            return scan_directory(root, path)?.finish();
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
        let (kind, identity) = file_entry(&parent, name, &stat, place)?;
        let entry = Entry {
            path: name,
            kind,
            mode: stat.st_mode & MODE_BITS,
        };
        let mut only = ManifestBuilder::new(Shape::File);
        only.found(entry, identity)?;
        only.finish()
    }

    /// The same with the state of its files and directories on this node, in the order of the entries.
    pub(super) fn with_identities(&self, identities: impl Iterator<Item = Identity>) -> Self {
        let List {
            shape,
            paths,
            entries,
            versions,
            ..
        } = self.list.clone();
        let list = List {
            shape,
            paths,
            entries,
            identities: identities.map(State::from).collect(),
            versions,
        };
        Manifest {
            state: state(&self.digest, &list),
            list,
            digest: self.digest,
        }
    }

    /// Names it to other agents; the same where the same is listed.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Differs from that of an earlier listing where a file was written to or replaced since.
    pub fn state(&self) -> &[u8; 32] {
        &self.state
    }

    /// Whether its files were listed on this node.
    pub fn is_listed_here(&self) -> bool {
        self.list.identities.len() == self.list.entries.len()
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        let List {
            paths,
            entries,
            identities,
            versions,
            ..
        } = &self.list;
        let etags: usize = versions.iter().map(|version| version.etag.len()).sum();
        paths.len()
            + etags
            + size_of_val(entries.as_slice())
            + size_of_val(identities.as_slice())
            + size_of_val(versions.as_slice())
    }

    /// Whether the source is one file or a directory.
    pub fn shape(&self) -> Shape {
        self.list.shape
    }

    /// Number of files and directories.
    pub fn len(&self) -> usize {
        self.list.entries.len()
    }

    /// Whether it lists nothing: an empty directory.
    pub fn is_empty(&self) -> bool {
        self.list.entries.is_empty()
    }

    /// All files and directories. An entry's place in this list is its index everywhere.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> + ExactSizeIterator {
        self.list.entries()
    }

    /// The entry with that index.
    pub fn entry(&self, index: usize) -> Option<Entry<'_>> {
        let entry = self.list.entries.get(index)?;
        Some(self.list.unpack(entry))
    }

    /// The state of an entry where it was listed, on this node.
    pub(super) fn identity(&self, index: usize) -> Identity {
        let (Some(state), Some(entry)) = (
            self.list.identities.get(index),
            self.list.entries.get(index),
        ) else {
            return Identity::default();
        };
        Identity {
            dev: state.dev,
            ino: state.ino,
            size: entry.bytes,
            mtime_ns: state.mtime_ns,
            ctime_ns: state.ctime_ns,
        }
    }

    /// Which version of an object an entry is, where it is one.
    pub fn version(&self, index: usize) -> Option<&ObjectVersion> {
        self.list.versions.get(index)
    }

    /// The regular files with their index and size in bytes.
    pub fn files(&self) -> impl Iterator<Item = (u32, Entry<'_>, u64)> {
        self.entries()
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

    /// The entry with this index, which comes from another agent.
    pub(super) fn named(&self, index: u32) -> Result<Entry<'_>, FileError> {
        self.entry(index as usize)
            .ok_or_else(|| FileError::BadManifest {
                path: index.to_string(),
                fault: "is an index past its end",
            })
    }

    /// The path of an entry when the whole is put at `base` (for one file: `base` is the file).
    pub(super) fn path_of(&self, base: &RootPath, entry: Entry<'_>) -> Result<RootPath, FileError> {
        match self.shape() {
            Shape::File => Ok(base.clone()),
            Shape::Directory => base.join(entry.path),
        }
    }
}

fn scan_directory(root: &Root, top: &RootPath) -> Result<ManifestBuilder, FileError> {
    let mut found = ManifestBuilder::new(Shape::Directory);
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
        while let Some(next) = listing.read() {
            let next = next.map_err(failed)?;
            let bytes = next.file_name().to_bytes();
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
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_directory && depth == MAX_DEPTH {
                return Err(FileError::TooDeep { place: place(name) });
            }
            let (kind, identity) = match is_directory {
                true => (EntryKind::Directory, Identity::of(&stat)),
                false => file_entry(&opened, name, &stat, || place(name))?,
            };
            let entry = Entry {
                path: &relative,
                kind,
                mode: stat.st_mode & MODE_BITS,
            };
            let added = found.found(entry, identity);
            added.map_err(|_| FileError::TooManyFiles {
                place: root.place(top),
            })?;
            if is_directory {
                waiting.push((relative, depth + 1));
            }
        }
    }
    Ok(found)
}

/// What is not a directory, if it can be sent.
fn file_entry(
    parent: &OwnedFd,
    name: &str,
    stat: &Stat,
    place: impl Fn() -> Place,
) -> Result<(EntryKind, Identity), FileError> {
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
    let bytes = identity.size;
    Ok((EntryKind::File { bytes }, identity))
}

fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.into()
    } else {
        format!("{directory}/{name}")
    }
}
