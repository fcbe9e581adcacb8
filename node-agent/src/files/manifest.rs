//! `Manifest`: what a source consists of, as the source's agent found it.
//!
//! Made by [`Manifest::scan`] at the source, fetched by every destination, and checked again there by
//! [`ManifestBuilder::finish`]: after that its paths stay below where they are put.

use std::collections::BTreeSet;

use super::digest::{BLOCK_BYTES, MAX_FILE_BYTES};
use super::error::FileError;
use super::file_state::Fingerprint;
use super::limits::{MAX_BLOCKS, MAX_DEPTH, MAX_ENTRIES, MAX_PATHS_BYTES};
use super::names;
use super::not_kept::NotKept;
use super::path::RootPath;
use super::space::disk_bytes;
use super::symlink::stays_within;

/// The mode bits that are kept: read, write, execute for user, group and others. Never set-uid,
/// set-gid or sticky: a transfer must not hand out another user's rights.
pub(super) const MODE_BITS: u32 = 0o777;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind<'m> {
    /// A regular file.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A directory; every one is listed, empty or not.
    Directory,
    /// A symbolic link that stays in the source directory.
    Link {
        /// Its text.
        link_text: &'m str,
    },
}

/// One file, directory or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'m> {
    /// Path relative to the source directory; for a source that is one file, its name.
    pub path: &'m str,
    /// What it is.
    pub kind: EntryKind<'m>,
    /// Its permission bits, 0…0o777; of a link 0, for it has none.
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

/// A checked list of files, directories and links, sorted by the bytes of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    list: List,
    digest: [u8; 32],
    fingerprint: [u8; 32],
}

/// Up to a million entries: in few large pieces, not in one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List {
    shape: Shape,
    /// One after the other, that of a link followed by its text.
    paths: String,
    entries: Vec<Packed>,
    /// The fingerprint of each file and directory, by entry; empty where they were not listed on this node.
    fingerprints: Vec<Fingerprint>,
    /// Bytes of the blocks of each file that lie wholly in holes, by entry; empty where no file has any.
    holes: Vec<u64>,
    /// When each file was last written to, ns since 1970, by entry; empty where no file says it.
    modified_ns: Vec<i64>,
    /// Of objects, by entry; empty where there are none.
    versions: Vec<ObjectVersion>,
    /// What copies do not have, where it was listed on this node.
    not_kept: BTreeSet<NotKept>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Packed {
    /// `DIRECTORY` or `LINK` at one.
    bytes: u64,
    /// Where its path begins.
    start: u32,
    /// Bytes of its path.
    len: u16,
    /// Of a link: bytes of its text.
    mode: u16,
}

/// No file is this long.
const DIRECTORY: u64 = u64::MAX;
/// Nor this long.
const LINK: u64 = u64::MAX - 1;

impl List {
    fn path(&self, entry: &Packed) -> &str {
        let start = entry.start as usize;
        &self.paths[start..start + usize::from(entry.len)]
    }

    fn unpack(&self, entry: &Packed) -> Entry<'_> {
        let (kind, mode) = match entry.bytes {
            DIRECTORY => (EntryKind::Directory, entry.mode),
            LINK => {
                let text = &self.paths[entry.start as usize + usize::from(entry.len)..];
                let link_text = &text[..usize::from(entry.mode)];
                (EntryKind::Link { link_text }, 0)
            }
            bytes => (EntryKind::File { bytes }, entry.mode),
        };
        Entry {
            path: self.path(entry),
            kind,
            mode: mode.into(),
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
            fingerprints: Vec::new(),
            holes: Vec::new(),
            modified_ns: Vec::new(),
            versions: Vec::new(),
            not_kept: BTreeSet::new(),
        };
        ManifestBuilder { list, tag_bytes: 0 }
    }

    /// Adds an entry, in any order.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), FileError> {
        let list = &mut self.list;
        let start = list.paths.len();
        let text = match entry.kind {
            EntryKind::Link { link_text } => link_text,
            _ => "",
        };
        let bytes = start + entry.path.len() + text.len();
        if list.entries.len() == MAX_ENTRIES || bytes > MAX_PATHS_BYTES {
            return Err(bad(entry.path, "is one of too many"));
        }
        if entry.mode & !MODE_BITS != 0 {
            return Err(bad(entry.path, "has mode bits beyond 0o777"));
        }
        let bytes = match entry.kind {
            EntryKind::Directory => DIRECTORY,
            EntryKind::Link { .. } => LINK,
            EntryKind::File { bytes } if bytes > MAX_FILE_BYTES => {
                return Err(bad(entry.path, "is larger than 4 TiB"));
            }
            EntryKind::File { bytes } => bytes,
        };
        let short = |text: &str| {
            u16::try_from(text.len()).map_err(|_| bad("", "has a path of more than 64 KiB"))
        };
        list.entries.push(Packed {
            bytes,
            start: start as u32,
            len: short(entry.path)?,
            mode: match entry.kind {
                EntryKind::Link { .. } => short(text)?,
                _ => entry.mode as u16,
            },
        });
        list.paths.push_str(entry.path);
        list.paths.push_str(text);
        Ok(())
    }

    /// Says of the entry that was added last how many bytes of its blocks lie wholly in holes.
    pub fn set_hole_bytes(&mut self, bytes: u64) {
        set_last(&mut self.list.holes, self.list.entries.len(), bytes);
    }

    /// Says of the entry that was added last when it was written to, ns since 1970; 0 says nothing.
    pub fn set_modified_ns(&mut self, modified_ns: i64) {
        set_last(
            &mut self.list.modified_ns,
            self.list.entries.len(),
            modified_ns,
        );
    }

    /// Adds an entry that was found on this node; all entries are then.
    pub(super) fn add_listed(
        &mut self,
        entry: Entry<'_>,
        fingerprint: Fingerprint,
    ) -> Result<(), FileError> {
        self.add(entry)?;
        self.list.fingerprints.push(fingerprint);
        Ok(())
    }

    /// Says what copies will not have.
    pub(super) fn set_not_kept(&mut self, not_kept: BTreeSet<NotKept>) {
        self.list.not_kept = not_kept;
    }

    /// Adds an object; all files are objects then.
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
        fill(&mut list.holes, list.entries.len());
        fill(&mut list.modified_ns, list.entries.len());
        let by_path = |a: &Packed, b: &Packed| list.path(a).cmp(list.path(b));
        if !list.entries.is_sorted_by(|a, b| by_path(a, b).is_le()) {
            let mut order: Vec<u32> = (0..list.entries.len() as u32).collect();
            order.sort_unstable_by(|a, b| {
                by_path(&list.entries[*a as usize], &list.entries[*b as usize])
            });
            arrange(&mut list.fingerprints, &order);
            arrange(&mut list.holes, &order);
            arrange(&mut list.modified_ns, &order);
            arrange(&mut list.versions, &order);
            arrange(&mut list.entries, &order);
        }
        list.paths.shrink_to_fit();
        list.entries.shrink_to_fit();
        list.fingerprints.shrink_to_fit();
        let list = self.list;
        check(&list)?;
        let digest = digest(&list);
        let fingerprint = fingerprint(&digest, &list);
        Ok(Manifest {
            list,
            digest,
            fingerprint,
        })
    }
}

/// Sets the item of the last of so many entries. Earlier ones that have none get the default.
fn set_last<T: Copy + Default + PartialEq>(items: &mut Vec<T>, entries: usize, item: T) {
    if let (Some(before), true) = (entries.checked_sub(1), item != T::default()) {
        items.resize(before, T::default());
        items.push(item);
    }
}

/// Where some of so many entries have an item, the last ones get the default.
fn fill<T: Copy + Default>(items: &mut Vec<T>, entries: usize) {
    if !items.is_empty() {
        items.resize(entries, T::default());
        items.shrink_to_fit();
    }
}

/// Puts at each position the item that was at `order` of it.
fn arrange<T: Default>(items: &mut Vec<T>, order: &[u32]) {
    if !items.is_empty() {
        let item = |at: &u32| std::mem::take(&mut items[*at as usize]);
        *items = order.iter().map(item).collect();
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
    let is_one_file =
        matches!(list.entries.as_slice(), [one] if one.bytes < LINK && !list.paths.contains('/'));
    if list.shape == Shape::File && !is_one_file {
        return Err(bad(
            "",
            "is not the single file that the manifest announces",
        ));
    }
    // Of the entry before, which mostly lies in the same directory.
    let (mut previous, mut around) = (None, String::new());
    let mut blocks = 0u64;
    for (index, entry) in list.entries().enumerate() {
        let path = entry.path;
        let most = match entry.kind {
            EntryKind::File { bytes } => bytes,
            EntryKind::Directory | EntryKind::Link { .. } => 0,
        };
        if list.holes.get(index).is_some_and(|holes| *holes > most) {
            return Err(bad(path, "has more bytes in holes than it has"));
        }
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
        if names::is_reserved(name) {
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
        match entry.kind {
            // No overflow: a file has at most MAX_FILE_BYTES.
            EntryKind::File { bytes } => blocks += bytes.div_ceil(BLOCK_BYTES as u64),
            EntryKind::Directory => {}
            EntryKind::Link { link_text } if stays_within(path, link_text) => {}
            EntryKind::Link { .. } => return Err(bad(path, "is a link out of the copy")),
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
        // The length of the text is hashed already: of a link, `packed.mode` holds it.
        if let EntryKind::Link { link_text } = list.unpack(packed).kind {
            hasher.update(link_text.as_bytes());
        }
    }
    // A manifest without holes keeps the digest of earlier releases, which did not know holes.
    for holes in &list.holes {
        hasher.update(&holes.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn fingerprint(digest: &[u8; 32], list: &List) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(digest);
    for fingerprint in &list.fingerprints {
        hasher.update(&fingerprint.0.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl Manifest {
    /// The same with the fingerprints and times that its entries have on this node, in their order.
    pub(super) fn relisted(&self, fingerprints: Vec<Fingerprint>, modified_ns: Vec<i64>) -> Self {
        let mut listed = self.clone();
        listed.list.fingerprints = fingerprints;
        listed.list.modified_ns = modified_ns;
        listed.fingerprint = fingerprint(&listed.digest, &listed.list);
        listed
    }

    /// The same under the fingerprint of the listing that another agent sent. The digest has no times; the
    /// fingerprint tells two listings with equal digests apart.
    #[must_use]
    pub fn received_as(mut self, fingerprint: &[u8]) -> Self {
        self.fingerprint = fingerprint.try_into().unwrap_or(self.fingerprint);
        self
    }

    /// Names it to other agents; the same where the same is listed, but for times.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Differs from that of an earlier listing where a file was written to or replaced since.
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// Whether its files were listed on this node.
    pub fn is_listed_here(&self) -> bool {
        self.list.fingerprints.len() == self.list.entries.len()
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        let list = &self.list;
        let etags: usize = list.versions.iter().map(|version| version.etag.len()).sum();
        list.paths.len()
            + etags
            + size_of_val(list.entries.as_slice())
            + size_of_val(list.fingerprints.as_slice())
            + size_of_val(list.holes.as_slice())
            + size_of_val(list.modified_ns.as_slice())
            + size_of_val(list.versions.as_slice())
    }

    /// Whether the source is one file or a directory.
    pub fn shape(&self) -> Shape {
        self.list.shape
    }

    /// Number of files, directories and links.
    pub fn len(&self) -> usize {
        self.list.entries.len()
    }

    /// Whether it lists nothing: an empty directory.
    pub fn is_empty(&self) -> bool {
        self.list.entries.is_empty()
    }

    /// All files, directories and links. An entry's position in this list is its index everywhere.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> + ExactSizeIterator {
        self.list.entries()
    }

    /// The entry with that index.
    pub fn entry(&self, index: usize) -> Option<Entry<'_>> {
        let entry = self.list.entries.get(index)?;
        Some(self.list.unpack(entry))
    }

    /// The entry with this path.
    pub(super) fn find(&self, path: &str) -> Option<Entry<'_>> {
        let found = self
            .list
            .entries
            .binary_search_by(|entry| self.list.path(entry).cmp(path));
        self.entry(found.ok()?)
    }

    /// What copies do not have of the source, if it was listed on this node.
    pub fn not_kept(&self) -> impl Iterator<Item = NotKept> {
        self.list.not_kept.iter().copied()
    }

    /// The fingerprint of an entry where it was listed on this node.
    pub(super) fn listed_fingerprint(&self, index: usize) -> Option<Fingerprint> {
        self.list.fingerprints.get(index).copied()
    }

    /// Bytes of the blocks of a file that lie wholly in holes: they take no space.
    pub fn hole_bytes(&self, index: usize) -> u64 {
        self.list.holes.get(index).copied().unwrap_or_default()
    }

    /// When a file was last written to, ns since 1970; 0 where that is not known.
    pub fn modified_ns(&self, index: usize) -> i64 {
        self.list
            .modified_ns
            .get(index)
            .copied()
            .unwrap_or_default()
    }

    /// Bytes of disk that files, links and directories take, without holes.
    pub fn disk_bytes(&self) -> u64 {
        let data_bytes = self
            .entries()
            .enumerate()
            .map(|(index, entry)| match entry.kind {
                EntryKind::File { bytes } => bytes.saturating_sub(self.hole_bytes(index)),
                EntryKind::Directory | EntryKind::Link { .. } => 0,
            });
        data_bytes.map(disk_bytes).sum()
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
                EntryKind::Directory | EntryKind::Link { .. } => None,
            })
    }

    /// The links with their index and text.
    pub(super) fn links(&self) -> impl Iterator<Item = (u32, Entry<'_>, &str)> {
        self.entries()
            .zip(0..)
            .filter_map(|(entry, index)| match entry.kind {
                EntryKind::Link { link_text } => Some((index, entry, link_text)),
                EntryKind::File { .. } | EntryKind::Directory => None,
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
    pub(super) fn require_entry(&self, index: u32) -> Result<Entry<'_>, FileError> {
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
