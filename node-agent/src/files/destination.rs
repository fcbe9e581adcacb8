//! `Destination`: a job's files at one node, from the reservation to the names.
//!
//! A directory that is not there yet appears whole: it is assembled beside its place and renamed once,
//! when all of it is verified and on disk. In a directory that is there, files are written beside their
//! final names, and renamed one after the other when all of them are verified and on disk.
//! A restarted agent prepares the same job again and finds what it left; nothing else is
//! remembered anywhere, and what is found is hashed before it counts.
//!
//! Durability in bulk: up to 32 files are synced one by one (`fsync`), more of them by
//! one `syncfs` per file system; directories after the files in them. Measured
//! with 2,000 files of 1 KiB on a busy ext4: `fsync` each 12–17 s, from eight threads 0.9–1.2 s,
//! one `syncfs` 0.1–0.15 s. But `syncfs` also waits for what others have written there.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::claim::{JobLock, JobUid};
use super::copies::{self, CopyJob, NewCopy};
use super::digest::{Algorithm, Blocks, Digest, directory_digest};
use super::error::{FileError, Place};
use super::filling::Filling;
use super::gate::Gate;
use super::manifest::{Entry, EntryKind, Identity, Manifest, Shape};
use super::occupancy::{Claim, Occupancy, Stay};
use super::partial::{DestinationFile, Finish};
use super::read_record::ReadRecord;
use super::reservation::{self, Made, OpenDirectory, Origin, Reservation, Target};
use super::root::{Access, Root, RootPath};
use super::space::Taken;
use super::staging;

/// From how many files or directories on one `syncfs` is cheaper than an `fsync` each.
const BULK: usize = 33;

/// Files that are synced and renamed at a time: 16 times for a million files, whose paths would take some
/// 800 MB together.
const BATCH: usize = 1 << 16;

/// What happens to a file that stands under a final name already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// One with the same content stays as it is; another is replaced, and blocks that it shares
    /// with the source are not sent again.
    #[default]
    IfDifferent,
    /// One with the same content stays as it is; another is an error.
    Never,
    /// It is not looked at: the whole file is sent and replaces it. A job that is resumed then
    /// sends again also what it had finished.
    Always,
}

/// What becomes of the partial files of a job that ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partials {
    /// They stay for the next attempt.
    Keep,
    /// They are removed, with the directories that this attempt made and that are empty.
    Remove,
}

/// What a destination is made from.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// The root to write into.
    pub root: Arc<Root>,
    /// Where: for a directory, the directory that will hold its files; for a single file, its
    /// final path, or with a slash at the end the directory to put it into under its own name.
    pub path: RootPath,
    /// The job; the same for every attempt.
    pub job: JobUid,
    /// The TransferJob that the copy is recorded for once it is verified, and whose namespace's limit
    /// holds; nothing: no copy is recorded, and no namespace's limit holds.
    pub recorded_for: Option<CopyJob>,
    /// What will come.
    pub manifest: Arc<Manifest>,
    /// How it is verified.
    pub algorithm: Algorithm,
    /// What happens to files that are there already.
    pub overwrite: Overwrite,
    /// The digest that the whole must have, if the job says so.
    pub expect: Option<Digest>,
}

/// A job's files at this node. Holds the job's lock until it is completed, aborted or dropped;
/// dropping it leaves the partial files for the next attempt.
#[derive(Debug)]
pub struct Destination {
    config: DestinationConfig,
    /// Where the manifest is put.
    base: RootPath,
    /// Where the directory is assembled; nothing: file by file, at `base`.
    staging: Option<RootPath>,
    /// Where the files are until they are complete, parents first.
    directories: Vec<RootPath>,
    made: Made,
    /// One per entry of the manifest.
    slots: Mutex<Vec<Slot>>,
    gate: Arc<Gate>,
    taken: Arc<Taken>,
    /// Files of a directory that was there have got their names one after the other.
    file_by_file: AtomicBool,
    /// Nothing once it has ended.
    held: Mutex<Option<Held>>,
    /// No copy is removed here: nothing once nobody needs the files.
    stay: Mutex<Option<Stay>>,
}

/// What a job holds for as long as it writes.
#[derive(Debug)]
struct Held {
    /// Takes space where that is slow.
    _filling: Filling,
    /// Nobody removes its directories.
    claim: Claim,
    /// Last: given back after everything else.
    _lock: JobLock,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    /// The file while somebody has it open: two users of a file share its state.
    open: Weak<DestinationFile>,
}

impl Slot {
    /// Of a file that is finished.
    fn digest(&self) -> Option<Digest> {
        match self.stage {
            Stage::Directory | Stage::Waiting(_) => None,
            Stage::Finished(digest, _) | Stage::Published(digest, _) => Some(digest),
        }
    }
}

/// How far an entry is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// A directory: made by the reservation.
    Directory,
    /// Its blocks are still to come.
    Waiting(Origin),
    /// Whole and verified, not yet on disk for sure or not yet under its name.
    Finished(Digest, Finish),
    /// On disk and under its final name, in this state.
    Published(Digest, Identity),
}

impl Destination {
    /// Takes the job's lock, makes directories and partial files and takes space for everything.
    /// Every fault of a destination shows here, before any byte is sent; then nothing of it stays.
    pub fn prepare(config: DestinationConfig) -> Result<Self, FileError> {
        let root = &config.root;
        if root.access() != Access::ReadWrite {
            return Err(FileError::RootReadOnly {
                root: root.name().into(),
            });
        }
        root.in_place()?;
        if let Some(expected) = config.expect
            && expected.algorithm() != config.algorithm
        {
            let algorithm = config.algorithm;
            return Err(FileError::BadExpect {
                expected,
                algorithm,
            });
        }
        let base = reservation::base(&config)?;
        let lock = JobLock::take(root, &config.job)?;
        let stay = Occupancy::stay(root, &base);
        let beside = staging::beside(&config, &base)?;
        let is_new = matches!(root.open_at(&base, OFlags::PATH), Err(Errno::NOENT));
        let staging = beside.clone().filter(|_| is_new);
        // What no file can be made of shows before anything is made.
        reservation::targets(&config, &base, staging.as_ref())
            .try_for_each(|file| file.map(drop))?;
        let at = staging.as_ref().unwrap_or(&base);
        let directories = reservation::directories(&config.manifest, at)?;
        let claim = Occupancy::claim(root, &config.job, &base, staging.is_some())?;
        match (&staging, &beside) {
            (Some(staging), _) => staging::keep_only(&config, staging)?,
            // Somebody has made the directory since an earlier attempt.
            (None, Some(beside)) => staging::remove(root, beside)?,
            (None, None) => {}
        }
        let namespace = config.recorded_for.as_ref();
        let namespace = namespace.map(|job| job.namespace.clone());
        let taken = Arc::new(Taken::nothing(root, namespace));
        let mut made = Made::default();
        let reservation = Reservation {
            config: &config,
            base: &base,
            staging: staging.as_ref(),
            directories: &directories,
            taken: &taken,
        };
        let (origins, unfilled) = reservation::reserve(&reservation, &mut made)
            .inspect_err(|_| made.undo(&reservation))?;
        let mut origins = origins.into_iter();
        let slots = config.manifest.entries().map(|entry| {
            let stage = match entry.kind {
                EntryKind::Directory => Stage::Directory,
                EntryKind::File { .. } => {
                    Stage::Waiting(origins.next().expect("one origin per file of the manifest"))
                }
            };
            Slot {
                stage,
                open: Weak::new(),
            }
        });
        let slots = Mutex::new(slots.collect());
        let filling = Filling::start(unfilled, || root.place(&base))
            .inspect_err(|_| made.undo(&reservation))?;
        let gate = Arc::new(Gate::new(filling.shortage().clone()));
        let held = Held {
            _filling: filling,
            claim,
            _lock: lock,
        };
        Ok(Destination {
            base,
            staging,
            directories,
            made,
            slots,
            gate,
            taken,
            file_by_file: AtomicBool::new(false),
            held: Mutex::new(Some(held)),
            stay: Mutex::new(Some(stay)),
            config,
        })
    }

    /// What will come.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.config.manifest
    }

    /// Records the files, which are complete, as a verified copy, if the job is one to be recorded.
    pub fn record(&self, digest: &Digest) -> Result<(), FileError> {
        let Some(job) = self.config.recorded_for.clone() else {
            return Ok(());
        };
        let new = NewCopy {
            path: &self.base,
            manifest: self.manifest(),
            digest,
            removable: true,
            job,
        };
        let recorded = copies::add(&self.config.root, new, |index| {
            match self.slots()[index].stage {
                Stage::Published(_, state) => state,
                // Not complete: no file is like this one.
                _ => Identity::default(),
            }
        });
        // From now on the record is counted.
        self.taken.give_back();
        recorded
    }

    /// The root that it is in.
    pub(super) fn root(&self) -> &Root {
        &self.config.root
    }

    /// What its preparation has made.
    pub(super) fn made(&self) -> &Made {
        &self.made
    }

    /// What was read for this job, which has so many blocks, from a store, by this attempt or an earlier one.
    pub fn read_record(&self, blocks: u64) -> Result<ReadRecord, FileError> {
        let _pass = self.gate.pass(|| self.place())?;
        ReadRecord::open(&self.config.root, &self.config.job, blocks)
    }

    /// The digest that the whole must have, if the job says so.
    pub fn expect(&self) -> Option<Digest> {
        self.config.expect
    }

    /// Opens the file with that index in the manifest; a file that is open already is shared. A
    /// finished one is opened for reading only: it is hashed again, and every block is there.
    /// Each open file takes a descriptor.
    pub fn open(&self, index: u32) -> Result<Arc<DestinationFile>, FileError> {
        let (target, entry, bytes) = self.file(index)?;
        let blocks = Blocks::new(self.config.algorithm, bytes);
        let mut slots = self.slots();
        let slot = &mut slots[index as usize];
        if let Some(open) = slot.open.upgrade() {
            return Ok(open);
        }
        let (origin, finished) = match slot.stage {
            Stage::Directory => return Err(not_a_file(entry)),
            Stage::Waiting(origin) => (origin, None),
            Stage::Finished(digest, Finish::Rename) => (Origin::Finished, Some(digest)),
            Stage::Finished(digest, Finish::Keep(_)) | Stage::Published(digest, _) => {
                (Origin::Existing, Some(digest))
            }
        };
        let file = Arc::new(DestinationFile::open(
            target,
            index,
            blocks,
            origin,
            self.gate.clone(),
            self.taken.clone(),
        )?);
        if let Some(digest) = finished {
            drop(slots);
            file.confirm_all(&digest)?;
            return Ok(file);
        }
        if origin == Origin::Fresh {
            // Whoever opens it after this one may find blocks in it.
            slot.stage = Stage::Waiting(Origin::Resumed);
        }
        slot.open = Arc::downgrade(&file);
        Ok(file)
    }

    /// Takes the file as whole, if it is, and if it has the digest that the source sent.
    pub fn finish(&self, file: &DestinationFile, digest: &Digest) -> Result<(), FileError> {
        let index = file.index();
        let (target, entry, _) = self.file(index)?;
        let _pass = self.gate.pass(|| target.place())?;
        let finish = file.check(digest)?;
        if let (Shape::File, Some(expected)) = (self.manifest().shape(), self.config.expect)
            && expected != *digest
        {
            let (place, found) = (target.place(), *digest);
            return Err(FileError::ExpectMismatch {
                place,
                expected,
                found,
            });
        }
        let finish = file.set_mode(entry.mode, finish)?;
        let slot = &mut self.slots()[index as usize];
        if let Stage::Waiting(_) = slot.stage {
            slot.stage = Stage::Finished(*digest, finish);
        }
        Ok(())
    }

    /// The digest of a file, once it is finished.
    pub fn digest_of_file(&self, index: u32) -> Option<Digest> {
        self.slots().get(index as usize)?.digest()
    }

    /// The digest of the whole, once every file is finished.
    pub fn digest(&self) -> Option<Digest> {
        self.digest_of(&self.slots())
    }

    /// Puts everything on disk and under its name, with the modes of the directories; then the job has
    /// ended here. After it, and only after it, the destination is verified.
    pub fn complete(&self) -> Result<Digest, FileError> {
        let pass = self.gate.pass(|| self.place())?;
        let place = self.place();
        let Some(digest) = self.digest() else {
            let is_missing = |slot: &&Slot| matches!(slot.stage, Stage::Waiting(_));
            let missing = self.slots().iter().filter(is_missing).count() as u64;
            return Err(FileError::BlocksMissing { place, missing });
        };
        if let Some(expected) = self.config.expect
            && expected != digest
        {
            return Err(FileError::ExpectMismatch {
                place,
                expected,
                found: digest,
            });
        }
        let is_in_place = self.staging.is_none() && self.manifest().shape() == Shape::Directory;
        let mut states = Vec::new();
        let mut next = 0;
        loop {
            let ready = self.ready(&mut next)?;
            if ready.is_empty() {
                break;
            }
            self.sync_files(&ready)?;
            let replaces = ready.iter().any(|file| file.finish == Finish::Rename);
            self.file_by_file
                .fetch_or(is_in_place && replaces, Ordering::Relaxed);
            let mut open = OpenDirectory::new(&self.config.root);
            for file in ready {
                let parent = open.at(&file.target.parent)?;
                // Under one lock: who opens the file in between would look for it by its old name.
                let mut slots = self.slots();
                let state = file.rename(&parent)?;
                match self.staging {
                    Some(_) => states.push((file.index, file.digest, state)),
                    None => slots[file.index as usize].stage = Stage::Published(file.digest, state),
                }
            }
        }
        let few = self.directories.len() < BULK;
        // Deepest first: an outer one may forbid looking into it.
        for entry in self.manifest().entries().rev() {
            if entry.kind == EntryKind::Directory {
                self.seal_directory(entry, few)?;
            }
        }
        let top = &self.directories[0];
        if few {
            self.sync_directories(std::iter::once(top))?;
        } else {
            self.sync_file_systems(std::iter::once(top))?;
        }
        // Those in which a directory was made or renamed.
        let made = self.made.directories.iter().filter(|path| *path <= top);
        let named = self.staging.iter().chain(made);
        let above: BTreeSet<RootPath> = named.filter_map(|path| Some(path.split()?.0)).collect();
        if let Some(staging) = &self.staging {
            self.rename_whole(staging, states)?;
        }
        self.sync_directories(above.iter())?;
        ReadRecord::remove(&self.config.root, &self.config.job)?;
        drop(pass);
        if let Some(held) = self.end() {
            held.claim.complete();
        }
        Ok(digest)
    }

    /// Whether files of a directory that was there got their names one after the other: for a moment some
    /// were old and some new.
    pub fn is_file_by_file(&self) -> bool {
        self.file_by_file.load(Ordering::Relaxed)
    }

    /// The next files that are finished, from this index on, which is moved behind them.
    fn ready(&self, next: &mut u32) -> Result<Vec<Ready>, FileError> {
        let mut ready = Vec::new();
        let slots = self.slots();
        for (index, slot) in (0..).zip(slots.iter()).skip(*next as usize) {
            if ready.len() == BATCH {
                break;
            }
            *next = index + 1;
            if let Stage::Finished(digest, finish) = slot.stage {
                ready.push(Ready {
                    index,
                    target: self.file(index)?.0,
                    digest,
                    finish,
                });
            }
        }
        drop(slots);
        // Neighbours in the manifest may be in other directories.
        ready.sort_by(|a, b| a.target.parent.cmp(&b.target.parent));
        Ok(ready)
    }

    /// Gives the assembled directory its name.
    fn rename_whole(
        &self,
        staging: &RootPath,
        states: Vec<(u32, Digest, Identity)>,
    ) -> Result<(), FileError> {
        let root = &self.config.root;
        let (Some((parent, name)), Some(from)) = (self.base.split(), staging.file_name()) else {
            return Ok(());
        };
        let parent = OpenDirectory::new(root).at(&parent)?;
        // Under one lock: who opens a file in between would look for it by its old name.
        let mut slots = self.slots();
        staging::rename(&parent, from, name, false).map_err(|cause| match cause {
            Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => FileError::DestinationExists {
                place: self.place(),
                found: "something that was made meanwhile",
                remedy: "remove it or choose another path",
            },
            // Somebody removed what was assembled.
            Errno::NOENT => FileError::DestinationChanged {
                place: self.place(),
            },
            cause => FileError::writing(self.place(), "rename", cause, 0),
        })?;
        for (index, digest, state) in states {
            slots[index as usize].stage = Stage::Published(digest, state);
        }
        Ok(())
    }

    /// Ends the job without its files: when it returns, no byte lands any more and another attempt
    /// may begin. What is published stays. After an end it does nothing.
    pub fn abort(&self, partials: Partials) -> Result<(), FileError> {
        // Writers first: the lock is given back at the end of this function.
        let Some(_held) = self.end() else {
            return Ok(());
        };
        if partials == Partials::Keep {
            return Ok(());
        }
        if let Some(staging) = &self.staging {
            staging::remove(&self.config.root, staging)?;
        } else {
            let mut open = OpenDirectory::new(&self.config.root);
            for (index, _, _) in self.manifest().files() {
                let target = self.file(index)?.0;
                target.remove_partial(&*open.at(&target.parent)?)?;
            }
        }
        ReadRecord::remove(&self.config.root, &self.config.job)?;
        self.made
            .remove_directories(&self.config.root, &self.config.job)
    }

    /// Nobody writes or reads here for the attempt any more: copies may be removed here. After
    /// [`Destination::complete`] that may be much later, for what is complete is still passed on.
    pub fn leave(&self) {
        self.taken.give_back();
        self.stay
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
    }

    /// Lets no further write through; what the job held is given back with the answer.
    fn end(&self) -> Option<Held> {
        self.gate.close();
        self.held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
    }

    /// The destination as a whole, for messages.
    fn place(&self) -> Place {
        self.config.root.place(&self.base)
    }

    fn digest_of(&self, slots: &[Slot]) -> Option<Digest> {
        if slots
            .iter()
            .any(|slot| matches!(slot.stage, Stage::Waiting(_)))
        {
            return None;
        }
        let entries = self.manifest().entries().zip(slots);
        let mut digests = entries.filter_map(|(entry, slot)| Some((entry.path, slot.digest()?)));
        match self.manifest().shape() {
            Shape::File => digests.next().map(|(_, digest)| digest),
            Shape::Directory => Some(directory_digest(self.config.algorithm, digests)),
        }
    }

    fn file(&self, index: u32) -> Result<(Target, Entry<'_>, u64), FileError> {
        let config = &self.config;
        let entry = config.manifest.named(index)?;
        let EntryKind::File { bytes } = entry.kind else {
            return Err(not_a_file(entry));
        };
        let target = reservation::target(config, &self.base, self.staging.as_ref(), entry)?;
        Ok((target, entry, bytes))
    }

    fn sync_files(&self, ready: &[Ready]) -> Result<(), FileError> {
        if ready.len() < BULK {
            for file in ready {
                let opened = match file.finish {
                    Finish::Rename => file.target.open_partial(OFlags::RDONLY)?,
                    Finish::Keep(_) => file.target.open_final()?.0,
                };
                fs::fsync(&opened).map_err(|cause| file.target.failed("fsync", cause, 0))?;
            }
            return Ok(());
        }
        self.sync_file_systems(ready.iter().map(|file| &file.target.parent))
    }

    fn sync_directories<'p>(
        &self,
        paths: impl ExactSizeIterator<Item = &'p RootPath>,
    ) -> Result<(), FileError> {
        if paths.len() >= BULK {
            return self.sync_file_systems(paths);
        }
        let mut open = OpenDirectory::new(&self.config.root);
        for path in paths {
            fs::fsync(&*open.at(path)?).map_err(|cause| {
                FileError::writing(self.config.root.place(path), "fsync", cause, 0)
            })?;
        }
        Ok(())
    }

    /// One `syncfs` for each file system that one of the directories is on.
    fn sync_file_systems<'p>(
        &self,
        directories: impl Iterator<Item = &'p RootPath>,
    ) -> Result<(), FileError> {
        let mut open = OpenDirectory::new(&self.config.root);
        let mut last: Option<&RootPath> = None;
        let mut synced = BTreeSet::new();
        for path in directories {
            if last == Some(path) {
                continue;
            }
            last = Some(path);
            let failed = |operation, cause| {
                FileError::writing(self.config.root.place(path), operation, cause, 0)
            };
            let opened = open.at(path)?;
            let stat = fs::fstat(&*opened).map_err(|cause| failed("fstat", cause))?;
            if synced.insert(Identity::of(&stat).dev) {
                fs::syncfs(&*opened).map_err(|cause| failed("syncfs", cause))?;
            }
        }
        Ok(())
    }

    /// Gives a directory its mode and, on request, syncs it: not to be opened again after that.
    fn seal_directory(&self, entry: Entry<'_>, sync: bool) -> Result<(), FileError> {
        let path = self.manifest().path_of(&self.directories[0], entry)?;
        let root = &self.config.root;
        let failed = |operation, cause| FileError::writing(root.place(&path), operation, cause, 0);
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

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        // A stage is set in one assignment, after what it says is true.
        self.slots
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A finished file on its way to its name.
struct Ready {
    index: u32,
    target: Target,
    digest: Digest,
    finish: Finish,
}

impl Ready {
    /// Gives the file its final name, or removes the claim of one that had it all along: if it is
    /// still the one that was checked, which may be long ago where it came early in a large job.
    /// Answers its state then: renaming is itself a change of attributes.
    fn rename(&self, parent: &OwnedFd) -> Result<Identity, FileError> {
        let target = &self.target;
        if let Finish::Keep(checked) = self.finish {
            let named = fs::statat(parent, &target.name, AtFlags::SYMLINK_NOFOLLOW);
            if !named.is_ok_and(|stat| Identity::of(&stat) == checked) {
                return Err(FileError::DestinationChanged {
                    place: target.place(),
                });
            }
            target.remove_partial(parent)?;
            return Ok(checked);
        }
        let replace = target.overwrite != Overwrite::Never;
        let answer = match target.is_staged() {
            // It goes with its directory.
            true => Ok(()),
            false => staging::rename(parent, &target.partial, &target.name, replace),
        };
        match answer {
            Ok(()) => match fs::statat(parent, &target.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Ok(Identity::of(&stat)),
                Err(Errno::NOENT) => Err(FileError::DestinationChanged {
                    place: target.place(),
                }),
                Err(cause) => Err(target.failed("stat", cause, 0)),
            },
            Err(Errno::EXIST) if target.overwrite == Overwrite::Never => {
                target.may_replace()?;
                Err(FileError::DestinationChanged {
                    place: target.place(),
                })
            }
            Err(Errno::ISDIR) => Err(FileError::DestinationExists {
                place: target.place(),
                found: "a directory that was made meanwhile",
                remedy: "remove it or choose another path",
            }),
            // Somebody removed the partial file.
            Err(Errno::NOENT) => Err(FileError::DestinationChanged {
                place: target.place(),
            }),
            Err(cause) => Err(target.failed("rename", cause, 0)),
        }
    }
}

fn not_a_file(entry: Entry<'_>) -> FileError {
    FileError::BadManifest {
        path: entry.path.into(),
        fault: "is a directory, not a file",
    }
}
