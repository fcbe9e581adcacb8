//! `Source`: reading the blocks of a source and noticing when it is not what was announced.
//!
//! A file is compared with its manifest entry (device, inode, size, times) when it is opened and
//! again at the end, so that bytes of two states of a file are never sent as one. What that
//! cannot see: a write within the same tick of the kernel's clock as the scan (1–10 ms; since
//! Linux 6.13 the common file systems time a change exactly once somebody has looked), and
//! stores through a shared mapping that the kernel has not noticed yet. Digests are made of the
//! bytes that were read, so a destination always gets exactly what was read.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{self, Advice, FileType, OFlags};
use rustix::io::Errno;

use super::copies::{self, CopyJob, NewCopy};
use super::digest::{Algorithm, BLOCK_BYTES, BlockLayout, Digest};
use super::directory::is_no_directory;
use super::error::{FileError, errno};
use super::file_state::{FileState, Fingerprint};
use super::manifest::{Entry, EntryKind, Manifest};
use super::occupancy::PathGuard;
use super::path::RootPath;
use super::root::{Access, Root};

/// What is done with a link on the way to an entry.
#[derive(Clone, Copy)]
enum Links {
    /// It is followed, as the scan followed it. The caller compares the fingerprint, which proves that it is the
    /// file that the scan found.
    Followed,
    /// There is none.
    Refused,
}

/// What is at the path of an entry.
struct Found {
    opened: OwnedFd,
    fingerprint: Fingerprint,
    /// Of a file.
    modified_ns: i64,
}

/// A scanned source whose files can be opened. As long as it is there, no copy is removed there.
#[derive(Clone, Debug)]
pub struct Source {
    root: Arc<Root>,
    path: RootPath,
    manifest: Arc<Manifest>,
    _path_guard: Arc<PathGuard>,
}

impl Source {
    /// The file or directory `path` that `manifest` is a scan of.
    pub fn new(root: Arc<Root>, path: RootPath, manifest: Arc<Manifest>) -> Self {
        Source {
            _path_guard: Arc::new(root.occupancy().begin_access(&path)),
            root,
            path,
            manifest,
        }
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Opens the file with that index in the manifest.
    pub fn open(&self, index: u32) -> Result<SourceFile, FileError> {
        let (path, entry) = self.entry(index)?;
        let EntryKind::File { bytes } = entry.kind else {
            let location = self.root.location(&path);
            return Err(FileError::NotARegularFile {
                location,
                kind: "no file",
            });
        };
        // O_NONBLOCK: should a pipe have taken its place, the open must not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let found = self.open_entry(&path, entry, flags, Links::Followed)?;
        self.compare(index, &path, found.fingerprint)?;
        let file = File::from(found.opened);
        if bytes > BLOCK_BYTES as u64 {
            // A hint for read-ahead; where it is refused, reading works all the same.
            let _ = fs::fadvise(&file, 0, None, Advice::Sequential);
        }
        Ok(SourceFile {
            root: self.root.clone(),
            path,
            bytes,
            file,
        })
    }

    /// The manifest with the fingerprints that its files and directories have here; what lies beside them is left
    /// out.
    pub fn relist(&self) -> Result<Manifest, FileError> {
        let (mut fingerprints, mut modified_ns) = (Vec::new(), Vec::new());
        for index in 0..self.manifest.len() {
            let (path, entry) = self.entry(index as u32)?;
            // Every link of a copy is listed.
            let found = self.open_entry(&path, entry, OFlags::PATH, Links::Refused)?;
            fingerprints.push(found.fingerprint);
            modified_ns.push(found.modified_ns);
        }
        Ok(self.manifest.relisted(fingerprints, modified_ns))
    }

    /// Compares every file and directory with the manifest once more: after it, what was sent is
    /// what the manifest announced. Files that were added since the scan are no part of that.
    pub fn unchanged(&self) -> Result<(), FileError> {
        (0..self.manifest.len()).try_for_each(|index| self.entry_unchanged(index as u32))
    }

    /// Compares the file or directory with that index with the manifest.
    pub fn entry_unchanged(&self, index: u32) -> Result<(), FileError> {
        let (path, entry) = self.entry(index)?;
        let found = self.open_entry(&path, entry, OFlags::PATH, Links::Followed)?;
        self.compare(index, &path, found.fingerprint)
    }

    /// Records the files, which were read and have this digest, as a verified copy of a job. In a
    /// ReadOnly root nothing is recorded.
    pub fn record(&self, digest: &Digest, job: CopyJob) -> Result<(), FileError> {
        if self.root.access() != Access::ReadWrite {
            return Ok(());
        }
        let new = NewCopy {
            path: &self.path,
            manifest: &self.manifest,
            digest,
            removable: false,
            job,
        };
        copies::add(&self.root, new, |index| {
            self.manifest.listed_fingerprint(index)
        })
    }

    /// Opens what is at the path of an entry, which must be of its kind and size.
    fn open_entry(
        &self,
        path: &RootPath,
        entry: Entry<'_>,
        flags: OFlags,
        links: Links,
    ) -> Result<Found, FileError> {
        let flags = match entry.kind {
            // The link itself.
            EntryKind::Link { .. } => flags | OFlags::NOFOLLOW,
            EntryKind::File { .. } | EntryKind::Directory => flags,
        };
        let opened = match (self.root.open_at(path, flags), links) {
            (Err(Errno::LOOP), Links::Followed) => {
                self.root.follow_at(&RootPath::ROOT, path, flags)
            }
            (opened, _) => opened,
        };
        let opened = opened.map_err(|cause| self.failed(path, cause))?;
        let stat = fs::fstat(&opened).map_err(|cause| self.failed(path, cause))?;
        let now = FileState::of(&stat);
        match (entry.kind, FileType::from_raw_mode(stat.st_mode)) {
            (EntryKind::Directory, FileType::Directory) => Ok(Found {
                opened,
                fingerprint: now.directory_fingerprint(),
                modified_ns: 0,
            }),
            (EntryKind::File { bytes }, FileType::RegularFile) if now.size == bytes => Ok(Found {
                opened,
                fingerprint: now.fingerprint(),
                modified_ns: now.mtime_ns,
            }),
            (EntryKind::Link { link_text }, FileType::Symlink) => {
                let text = fs::readlinkat(&opened, "", Vec::new());
                let text = text.map_err(|cause| self.failed(path, cause))?;
                match text.as_bytes() == link_text.as_bytes() {
                    true => Ok(Found {
                        opened,
                        fingerprint: now.fingerprint(),
                        modified_ns: 0,
                    }),
                    false => Err(self.changed(path, "it is a link to another target")),
                }
            }
            (EntryKind::File { bytes }, FileType::RegularFile) if now.size < bytes => {
                Err(FileError::SourceTruncated {
                    location: self.root.location(path),
                    expected: bytes,
                    found: now.size,
                })
            }
            _ => Err(self.changed(path, "it has another size, or is no file any more")),
        }
    }

    /// Compares the fingerprint of an entry with the listed one.
    fn compare(&self, index: u32, path: &RootPath, now: Fingerprint) -> Result<(), FileError> {
        match self.manifest.listed_fingerprint(index as usize) == Some(now) {
            true => Ok(()),
            false => Err(self.changed(path, "it was written to or replaced")),
        }
    }

    fn changed(&self, path: &RootPath, what: &'static str) -> FileError {
        let location = self.root.location(path);
        FileError::SourceChanged { location, what }
    }

    fn entry(&self, index: u32) -> Result<(RootPath, Entry<'_>), FileError> {
        let entry = self.manifest.require_entry(index)?;
        Ok((self.manifest.path_of(&self.path, entry)?, entry))
    }

    /// After the scan a file that is gone is a change, not a wrong path.
    fn failed(&self, path: &RootPath, cause: Errno) -> FileError {
        match is_no_directory(cause) {
            true => self.changed(path, "it was removed or replaced by a link"),
            false => FileError::reading(self.root.location(path), cause),
        }
    }
}

/// An open file of a source. Reads at any offset from any thread.
#[derive(Debug)]
pub struct SourceFile {
    root: Arc<Root>,
    path: RootPath,
    bytes: u64,
    file: File,
}

impl SourceFile {
    /// How it is cut and hashed.
    pub fn blocks(&self, algorithm: Algorithm) -> BlockLayout {
        BlockLayout::new(algorithm, self.bytes)
    }

    /// Reads block `block` into the start of `buffer` and gives its length in bytes: always the
    /// whole block, or an error. `buffer` holds at least the block ([`BLOCK_BYTES`] do for any).
    ///
    /// # Panics
    ///
    /// When `buffer` is shorter than the block.
    pub fn read_block(&self, block: u32, buffer: &mut [u8]) -> Result<usize, FileError> {
        let range = BlockLayout::new(Algorithm::default(), self.bytes).range(block);
        let wanted = (range.end - range.start) as usize;
        let read = self.file.read_exact_at(&mut buffer[..wanted], range.start);
        read.map_err(|error| {
            let location = self.root.location(&self.path);
            match error.kind() {
                ErrorKind::UnexpectedEof => FileError::SourceTruncated {
                    location,
                    expected: self.bytes,
                    found: self.file.metadata().map_or(0, |now| now.len()),
                },
                _ => FileError::SourceUnreadable {
                    location,
                    cause: errno(&error),
                },
            }
        })?;
        Ok(wanted)
    }
}
