//! The records of a root's verified copies, and what is done by them.
//!
//! The directory `.weft-copies` of a root has one file for each copy, a `CopyRecord`. A record is replaced
//! as a whole: a reader goes on with the one that it has opened.
//!
//! Destinations and sources record what they have verified, `Cancel` releases it ([`release`]), and
//! the copy watcher compares it with the files and removes what no job needs ([`reconcile`]).

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufRead as _, BufReader, BufWriter, Seek as _};
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;

pub use super::copy_record::{CopyHeader, CopyJob};
use super::copy_record::{CopyRecord, RecordedEntry, VERSION, record_name, write_line};
use super::digest::Digest;
use super::directory::{OpenDirectory, remove_empty};
use super::error::{FileError, Location, errno};
use super::file_state::{FileState, Fingerprint};
use super::manifest::{EntryKind, Manifest, Shape};
use super::names::{COPIES, HEX_DIGITS, open_own};
use super::path::RootPath;
use super::root::{Access, Root};

/// Jobs of one copy: the oldest one goes when there are more.
const JOBS_MAX: usize = 32;
/// The record that is being written; one at a time in a root.
const NEW: &str = "new";
/// Of the directory of the records.
const OWNER_ONLY: Mode = Mode::from_raw_mode(0o700);

/// What [`add`] records.
pub(super) struct NewCopy<'c> {
    pub(super) path: &'c RootPath,
    pub(super) manifest: &'c Manifest,
    pub(super) digest: &'c Digest,
    pub(super) removable: bool,
    pub(super) job: CopyJob,
}

/// Records a verified copy for a job. `verified` gives the state in which the file with that index in the
/// manifest was verified: a file that is in another one now is not recorded, and neither is the copy.
pub(super) fn add(
    root: &Root,
    new: NewCopy<'_>,
    verified: impl Fn(usize) -> Option<Fingerprint>,
) -> Result<(), FileError> {
    let mut copy = CopyHeader {
        version: VERSION,
        path: new.path.as_str().to_owned(),
        digest: new.digest.to_string(),
        bytes: new.manifest.bytes(),
        disk_bytes: Some(new.manifest.disk_bytes()),
        files: new.manifest.file_count().into(),
        removable: new.removable,
        jobs: vec![new.job],
        removing: false,
    };
    let _locked = root.lock_records();
    let records = Records::make(root)?;
    let name = record_name(&copy.path);
    let recorded = match records.read(&name) {
        Ok(Some(mut known)) if records.is_same(&known, &copy, new.manifest) => {
            let CopyHeader {
                jobs, removable, ..
            } = &mut known.copy;
            if copy.jobs.iter().all(|new| has(jobs, &new.uid)) {
                return Ok(());
            }
            jobs.extend(copy.jobs);
            let surplus = jobs.len().saturating_sub(JOBS_MAX);
            jobs.drain(..surplus);
            // A job that is not listed any more may need the files.
            *removable &= surplus == 0;
            records.rewrite(&mut known)
        }
        before => {
            if let Ok(Some(before)) = before {
                // The files of the job that was recorded before stay.
                copy.removable &= !records.shares_files(&before, &copy, new.manifest);
            }
            let written = records.replace(&name, |out| {
                write_line(out, &copy)?;
                let mut entries = entries(root, new.path, new.manifest, &verified);
                entries.try_for_each(|entry| write_line(out, &entry.map_err(io::Error::other)?))
            });
            written.map(drop)
        }
    };
    // On error the record is deleted: without this job in it, releasing the other jobs would remove files that this
    // job needs.
    if recorded.is_err() {
        let _ = fs::unlinkat(&records.directory, &name, AtFlags::empty());
    }
    recorded
}

/// Takes a job out of all records of a root, and removes the copies that no job is recorded for. While
/// an attempt is at work at a copy, the copy stays: [`reconcile`] removes it later.
pub fn release(root: &Root, job: &str) -> Result<(), FileError> {
    let mut result = Ok(());
    if let Some(records) = Records::open(root)? {
        for name in records.names()? {
            result = result.and(records.release(&name, job));
        }
    }
    result
}

/// Compares the files of all copies with their records. Returns the copies that are as they were
/// verified, ordered by path. Removes the record of a copy that has changed, and each copy that no job
/// is recorded for.
pub fn reconcile(root: &Root) -> Result<Vec<CopyHeader>, FileError> {
    let mut copies = Vec::new();
    if let Some(records) = Records::open(root)? {
        for name in records.names()? {
            copies.extend(records.reconcile(&name));
        }
    }
    copies.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(copies)
}

/// Bytes of the copies outside the directory of a namespace that are recorded for its jobs.
pub(super) fn bytes_outside(root: &Root, namespace: &str) -> Result<u64, FileError> {
    let Some(records) = Records::open(root)? else {
        return Ok(0);
    };
    let directory = RootPath::parse(namespace)?;
    let mut bytes = 0u64;
    for name in records.names()? {
        match records.read(&name) {
            Ok(Some(CopyRecord { copy, base, .. })) => {
                let mut jobs = copy.jobs.iter();
                if !base.is_within(&directory) && jobs.any(|job| job.namespace == namespace) {
                    bytes = bytes.saturating_add(copy.disk_bytes.unwrap_or(copy.bytes));
                }
            }
            // A broken record names no namespace.
            Ok(None) | Err(FileError::CopyRecordBroken { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn has(jobs: &[CopyJob], uid: &str) -> bool {
    jobs.iter().any(|job| job.uid == uid)
}

/// The entries of a copy with the states that they are in, if these are the verified ones: of a directory the
/// directory itself is the first.
fn entries<'m>(
    root: &'m Root,
    base: &'m RootPath,
    manifest: &'m Manifest,
    verified: &'m impl Fn(usize) -> Option<Fingerprint>,
) -> impl Iterator<Item = Result<RecordedEntry, FileError>> {
    let shape = manifest.shape();
    let top = (shape == Shape::Directory).then(|| {
        Ok(RecordedEntry {
            path: String::new(),
            file: None,
        })
    });
    let mut open = OpenDirectory::new(root);
    let below = manifest.entries().enumerate();
    top.into_iter().chain(below.map(move |(index, entry)| {
        let file = match entry.kind {
            EntryKind::File { .. } | EntryKind::Link { .. } => {
                let path = manifest.path_of(base, entry)?;
                let now = stat(&mut open, &path)?.map(|stat| FileState::of(&stat));
                let now = now.filter(|now| verified(index) == Some(now.fingerprint()));
                let changed = || {
                    // A source's link that was followed: no copy has such a one.
                    let link = root.symlink_on_the_way(&path, Errno::LOOP);
                    link.unwrap_or_else(|| FileError::DestinationChanged {
                        location: root.location(&path),
                    })
                };
                Some(now.ok_or_else(changed)?.recorded())
            }
            EntryKind::Directory => None,
        };
        let path = match shape {
            Shape::File => String::new(),
            Shape::Directory => entry.path.to_owned(),
        };
        Ok(RecordedEntry { path, file })
    }))
}

/// What is at `path`; nothing where nothing is.
fn stat(open: &mut OpenDirectory<'_>, path: &RootPath) -> Result<Option<Stat>, FileError> {
    let failed = |cause| FileError::reading(open.root().location(path), cause);
    let Some((parent, name)) = path.split() else {
        return fs::fstat(open.root().directory()).map(Some).map_err(failed);
    };
    let Some(parent) = open.found(&parent)? else {
        return Ok(None);
    };
    match fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(cause) => Err(FileError::reading(open.root().location(path), cause)),
    }
}

/// The records of a root.
pub(super) struct Records<'r> {
    root: &'r Root,
    directory: OwnedFd,
}

impl<'r> Records<'r> {
    /// Nothing where the root has none.
    pub(super) fn open(root: &'r Root) -> Result<Option<Self>, FileError> {
        if root.access() != Access::ReadWrite {
            return Ok(None);
        }
        let failed = |cause| FileError::writing(root.own_location(COPIES), "open", cause, 0);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match fs::openat(root.directory(), COPIES, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        };
        // A process that can write records can make the agent remove files.
        let stat = fs::fstat(&directory).map_err(failed)?;
        let others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
        if stat.st_uid != geteuid().as_raw() || others {
            return Err(FileError::DestinationExists {
                location: root.own_location(COPIES),
                found: "a directory that others than the agent can write to",
                remedy: "remove it",
            });
        }
        Ok(Some(Records { root, directory }))
    }

    /// The same, made where there is none.
    pub(super) fn make(root: &'r Root) -> Result<Self, FileError> {
        let failed = |cause| FileError::writing(root.own_location(COPIES), "mkdir", cause, 0);
        match fs::mkdirat(root.directory(), COPIES, OWNER_ONLY) {
            Ok(()) => fs::fsync(root.directory()).map_err(failed)?,
            Err(Errno::EXIST) => {}
            Err(cause) => return Err(failed(cause)),
        }
        Self::open(root)?.ok_or_else(|| failed(Errno::NOENT))
    }

    pub(super) fn location(&self, name: &str) -> Location {
        self.root.own_location(&format!("{COPIES}/{name}"))
    }

    pub(super) fn names(&self) -> Result<Vec<String>, FileError> {
        let failed = |cause| FileError::reading(self.root.own_location(COPIES), cause);
        let mut names = Vec::new();
        let mut entries = Dir::read_from(&self.directory).map_err(failed)?;
        while let Some(found) = entries.read() {
            let found = found.map_err(failed)?;
            let name = found.file_name().to_str().unwrap_or_default();
            if name.len() == HEX_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Nothing where there is none of that name.
    pub(super) fn read(&self, name: &str) -> Result<Option<CopyRecord>, FileError> {
        let Some(file) = self.open_file(name)? else {
            return Ok(None);
        };
        CopyRecord::read(name, file, self.location(name)).map(Some)
    }

    /// Replaces a file of the directory as a whole; its inode.
    pub(super) fn replace(
        &self,
        name: &str,
        content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<u64, FileError> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
        let write = || {
            let mut out = BufWriter::new(open_own(&self.directory, NEW, flags)?);
            content(&mut out)?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs::renameat(&self.directory, NEW, &self.directory, name)?;
            fs::fsync(&self.directory)?;
            Ok(FileState::of(&fs::fstat(&file)?).ino)
        };
        write().map_err(|error: io::Error| {
            // The unfinished record only takes space.
            let _ = fs::unlinkat(&self.directory, NEW, AtFlags::empty());
            match error.downcast() {
                // Of what was to be written.
                Ok(error) => error,
                Err(error) => FileError::writing(self.location(name), "write", errno(&error), 0),
            }
        })
    }

    /// Opens a file of the directory to read; nothing where there is none of that name.
    pub(super) fn open_file(&self, name: &str) -> Result<Option<File>, FileError> {
        match open_own(&self.directory, name, OFlags::RDONLY) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(FileError::reading(self.location(name), cause)),
        }
    }

    /// Replaces the first line of a record with what it says now.
    fn rewrite(&self, record: &mut CopyRecord) -> Result<(), FileError> {
        let CopyRecord {
            name, copy, file, ..
        } = &*record;
        record.inode = self.replace(name, |out| {
            write_line(out, copy)?;
            let mut old = BufReader::new(file);
            old.rewind()?;
            old.skip_until(b'\n')?;
            io::copy(&mut old, out).map(drop)
        })?;
        Ok(())
    }

    /// Whether the record has been neither replaced nor removed.
    fn is_current(&self, record: &CopyRecord) -> Result<bool, FileError> {
        match fs::statat(&self.directory, &record.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileState::of(&stat).ino == record.inode),
            Err(Errno::NOENT) => Ok(false),
            Err(cause) => Err(FileError::reading(self.location(&record.name), cause)),
        }
    }

    /// Removes the record, unless another one has replaced it. Returns whether it was there.
    fn forget(&self, record: &CopyRecord) -> Result<bool, FileError> {
        let _locked = self.root.lock_records();
        if !self.is_current(record)? {
            return Ok(false);
        }
        fs::unlinkat(&self.directory, &record.name, AtFlags::empty())
            .map(|()| true)
            .map_err(|cause| FileError::writing(self.location(&record.name), "unlink", cause, 0))
    }

    fn release(&self, name: &str, job: &str) -> Result<(), FileError> {
        let locked = self.root.lock_records();
        let mut record = match self.read(name) {
            Ok(Some(record)) => record,
            // A broken record names no job.
            Ok(None) | Err(FileError::CopyRecordBroken { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut released = Ok(());
        if has(&record.copy.jobs, job) {
            record.copy.jobs.retain(|known| known.uid != job);
            released = self.rewrite(&mut record);
        }
        drop(locked);
        if record.copy.jobs.is_empty() && self.try_remove(record) {
            // Also when the disk was too full to rewrite the record.
            return Ok(());
        }
        released
    }

    /// The first difference between the record and the files, in words, if there is one.
    pub(super) fn difference(&self, record: &CopyRecord) -> Result<Option<String>, FileError> {
        let mut open = OpenDirectory::new(self.root);
        let mut files = 0;
        for entry in record.entries()? {
            let (path, entry) = entry?;
            let now = stat(&mut open, &path)?;
            if let Some(what) = entry.difference(now.as_ref()) {
                return Ok(Some(format!("{path}: {what}")));
            }
            let is_file = |now: Stat| FileType::from_raw_mode(now.st_mode) == FileType::RegularFile;
            files += u64::from(now.is_some_and(is_file));
        }
        if files != record.copy.files {
            return Err(record.broken("it does not name as many files as it says"));
        }
        Ok(None)
    }

    /// The copy, if it is as it was verified, and some job is recorded for it.
    fn reconcile(&self, name: &str) -> Option<CopyHeader> {
        let record = match self.read(name) {
            Ok(record) => record?,
            Err(error) => {
                tracing::warn!(reason = error.reason(), "{error}");
                return None;
            }
        };
        if record.copy.jobs.is_empty() {
            self.try_remove(record);
            return None;
        }
        let location = self.root.location(&record.base);
        match self.difference(&record) {
            Ok(None) => return Some(record.copy),
            // Its file system may not be mounted yet.
            Ok(Some(_))
                if matches!(
                    stat(&mut OpenDirectory::new(self.root), &record.base),
                    Ok(None)
                ) => {}
            Ok(Some(what)) => match self.forget(&record) {
                Ok(true) => tracing::info!("the copy {location} is lost: {what}"),
                Ok(false) => {}
                Err(error) => tracing::warn!("the copy {location} is lost: {what}; {error}"),
            },
            Err(error @ FileError::CopyRecordBroken { .. }) => {
                tracing::warn!(reason = error.reason(), "{error}");
            }
            Err(error) => {
                tracing::warn!(
                    "the copy {location} cannot be checked, and counts as it was: {error}"
                );
                return Some(record.copy);
            }
        }
        None
    }

    /// Whether the record with this name may belong to a copy that contains this copy, or lies within it.
    fn may_be_of(&self, name: &str, record: &CopyRecord) -> Result<bool, FileError> {
        let around = [RootPath::ROOT, record.base.clone()].into_iter();
        let mut around = around.chain(record.base.ancestors());
        if around.any(|path| record_name(path.as_str()) == name) {
            return Ok(true);
        }
        for entry in record.entries()? {
            if record_name(entry?.0.as_str()) == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a record is of this copy, which was verified just now, and says what is there.
    fn is_same(&self, known: &CopyRecord, copy: &CopyHeader, manifest: &Manifest) -> bool {
        let known_copy = (&known.copy.path, &known.copy.digest, known.copy.removing);
        // A digest is of the files only. A directory's record names the directory itself, too.
        let entries = manifest.len() + usize::from(manifest.shape() == Shape::Directory);
        known_copy == (&copy.path, &copy.digest, false)
            && known.entries().is_ok_and(|mut known| {
                let names = |path: &str| path.is_empty() || manifest.find(path).is_some();
                let count = known.try_fold(0, |count, entry| {
                    let (_, entry) = entry.ok()?;
                    names(&entry.path).then_some(count + 1)
                });
                count == Some(entries)
            })
            && matches!(self.difference(known), Ok(None))
    }

    /// Whether the copy that was recorded at this path before is intact, is for another job, and has files
    /// that the new one has, too.
    fn shares_files(&self, before: &CopyRecord, copy: &CopyHeader, manifest: &Manifest) -> bool {
        let mut jobs = before.copy.jobs.iter();
        let has_other_job = jobs.any(|job| !has(&copy.jobs, &job.uid));
        if !has_other_job || !matches!(self.difference(before), Ok(None)) {
            return false;
        }
        let is_shared = |(_, entry): (RootPath, RecordedEntry)| {
            let new = match manifest.shape() {
                Shape::File => manifest.entry(0).filter(|_| entry.path.is_empty()),
                Shape::Directory => manifest.find(&entry.path),
            };
            entry.file.is_some() && new.is_some_and(|new| new.kind != EntryKind::Directory)
        };
        before
            .entries()
            .is_ok_and(|mut old| old.any(|entry| entry.is_ok_and(is_shared)))
    }

    /// Removes a copy that no job needs, if it can be. Returns whether the record is gone.
    fn try_remove(&self, record: CopyRecord) -> bool {
        let location = self.root.location(&record.base);
        self.remove(record).unwrap_or_else(|error| {
            tracing::warn!("the copy {location} is not removed yet: {error}");
            false
        })
    }

    /// Removes a copy that no job needs, and its record. The copy's own files go if nothing of the copy
    /// has changed, and then its empty directories. Other files stay, and files that other records
    /// name. While an attempt is at work there, nothing happens. Returns whether the record is gone.
    fn remove(&self, mut record: CopyRecord) -> Result<bool, FileError> {
        if !record.copy.removable {
            return self.forget(&record);
        }
        self.root.check_not_replaced()?;
        let Some(_removal) = self.root.occupancy().begin_removal(&record.base) else {
            return Ok(false);
        };
        let location = self.root.location(&record.base);
        if self.root.is_mounted_by_pods(&record.base) {
            tracing::debug!(
                reason = "PathInUse",
                "the copy {location} is not removed while pods have it mounted"
            );
            return Ok(false);
        }
        if !record.copy.removing {
            if let Some(what) = self.difference(&record)? {
                let gone = self.forget(&record)?;
                if gone {
                    tracing::warn!(
                        "the copy {location} is not removed, for it has changed: {what}"
                    );
                }
                return Ok(gone);
            }
            let _locked = self.root.lock_records();
            // Another attempt may have recorded its job just before it left.
            if !self.is_current(&record)? {
                return Ok(false);
            }
            // After a restart the agent goes on with the removal. Where the disk is full, the copy goes
            // without that note.
            record.copy.removing = true;
            let _ = self.rewrite(&mut record);
        }
        let named = self.named_by_others(&record)?;
        let mut open = OpenDirectory::new(self.root);
        let mut directories = Vec::new();
        for entry in record.entries()? {
            let (path, entry) = entry?;
            match entry.file {
                _ if named.contains(&path_hash(&path)) => {}
                Some(state) => unlink(&mut open, &path, &state)?,
                None => directories.push(path),
            }
        }
        for path in directories.iter().rev() {
            remove_empty(self.root, path)?;
        }
        let gone = self.forget(&record)?;
        tracing::info!("the copy {location} is removed");
        Ok(gone)
    }

    /// The hashes of the paths that other records name, as far as those copies overlap this one. Two
    /// paths with one hash only keep a file from being removed.
    fn named_by_others(&self, record: &CopyRecord) -> Result<HashSet<u64>, FileError> {
        let mut named = HashSet::new();
        for name in self.names()?.iter().filter(|name| **name != record.name) {
            let other = match self.read(name) {
                Ok(Some(other)) if other.base.overlaps(&record.base) => other,
                Ok(_) => continue,
                Err(FileError::CopyRecordBroken { .. }) if !self.may_be_of(name, record)? => {
                    continue;
                }
                // It may name these files: nothing is removed before it is mended or removed.
                Err(error) => return Err(error),
            };
            for entry in other.entries()? {
                named.insert(path_hash(&entry?.0));
            }
        }
        Ok(named)
    }
}

fn path_hash(path: &RootPath) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.as_str().hash(&mut hasher);
    hasher.finish()
}

/// Removes a file, if it is still in this state: another one may stand there since the comparison.
fn unlink(
    open: &mut OpenDirectory<'_>,
    path: &RootPath,
    state: &FileState,
) -> Result<(), FileError> {
    let now = stat(open, path)?.map(|now| FileState::of(&now).recorded());
    let Some((parent, name)) = path.split().filter(|_| now.as_ref() == Some(state)) else {
        return Ok(());
    };
    let Some(parent) = open.found(&parent)? else {
        return Ok(());
    };
    match fs::unlinkat(&*parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(cause) => {
            let location = open.root().location(path);
            Err(FileError::writing(location, "unlinkat", cause, 0))
        }
    }
}
