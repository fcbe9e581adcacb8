//! `Destination`: a job's files at one node, from the reservation to their end. [`publish`](super::publish)
//! gives them their names.
//!
//! A directory that is not there yet appears whole: it is assembled beside its location and renamed once,
//! when all of it is verified and on disk. In a directory that is there, files are written beside their
//! final names, and renamed one after the other when all of them are verified and on disk.
//! A restarted agent prepares the same job again and finds what it left; nothing else is
//! remembered anywhere, and what is found is hashed before it counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::copies::{self, NewCopy};
use super::destination_config::{DestinationConfig, Overwrite};
use super::destination_file::{DestinationFile, PublishAction};
use super::digest::{BlockLayout, Digest, directory_digest};
use super::error::FileError;
use super::file_target::InitialContent;
use super::gate::{Gate, WriteLocks};
use super::lock::JobLock;
use super::manifest::{Manifest, Shape};
use super::namespace_directory;
use super::object_read_log::ObjectReadLog;
use super::occupancy::PathGuard;
use super::path::RootPath;
use super::placement::Placement;
use super::progress::{Progress, Stage};
use super::reservation;
use super::reserved_space::ReservedSpace;
use super::root::{Access, Root};

/// A job's files at this node. Holds the job's lock until it is completed, aborted or dropped;
/// dropping it leaves the partial files for the next attempt.
#[derive(Debug)]
pub struct Destination {
    pub(super) placement: Placement,
    /// Directories that its preparation has made, parents first.
    pub(super) made: Vec<RootPath>,
    progress: Mutex<Progress>,
    pub(super) gate: Arc<Gate>,
    /// While this is `Some`, no copy is removed at this path. `None` once nobody needs the files.
    path_guard: Mutex<Option<PathGuard>>,
}

impl Destination {
    /// Takes the job's lock, makes directories and partial files and reserves space, except for a file of the same
    /// size that is there already: its space is reserved when the first block comes that differs. Every other fault
    /// of a destination shows here, before any byte is sent; then nothing of it stays.
    pub fn prepare(mut config: DestinationConfig) -> Result<Self, FileError> {
        let root = config.root.clone();
        if root.access() != Access::ReadWrite {
            return Err(FileError::RootReadOnly {
                root: root.name().into(),
            });
        }
        root.check_not_replaced()?;
        if let Some(expected) = config.expect
            && expected.algorithm() != config.algorithm
        {
            return Err(FileError::BadExpect {
                expected,
                algorithm: config.algorithm,
            });
        }
        let base = config.base()?;
        if let Some(job) = &config.recorded_for {
            namespace_directory::write(&root, &base, job)?;
        }
        let lock = JobLock::take(&root, &config.job)?;
        let path_guard = root.occupancy().begin_access(&base);
        let writing = root
            .occupancy()
            .begin_write(&config.job, &base, || root.location(&base))?;
        // Looked at after the writer has begun: from now on no volume begins to show what it may replace.
        if root.is_mounted_by_pods(&base) {
            config.overwrite = Overwrite::InUse;
        }
        let placement = Placement::new(config, base)?;
        let config = &placement.config;
        let namespace = config.recorded_for.as_ref();
        let namespace = namespace.map(|job| job.namespace.clone());
        let space = ReservedSpace::new(&root, namespace);
        let (made, initial_contents) = reservation::reserve(&placement, &space)?;
        let locks = WriteLocks {
            _writing: writing,
            _lock: lock,
        };
        let progress = Progress::new(
            &config.manifest,
            config.algorithm,
            initial_contents.into_iter(),
        );
        Ok(Destination {
            placement,
            made,
            progress: Mutex::new(progress),
            gate: Arc::new(Gate::new(locks, space)),
            path_guard: Mutex::new(Some(path_guard)),
        })
    }

    /// What will come.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.placement.config.manifest
    }

    /// Records the files, which are complete, as a verified copy, if the job is one to be recorded.
    pub fn record(&self, digest: &Digest) -> Result<(), FileError> {
        let Some(job) = self.placement.config.recorded_for.clone() else {
            return Ok(());
        };
        let new = NewCopy {
            path: &self.placement.base,
            manifest: self.manifest(),
            digest,
            removable: true,
            job,
        };
        let recorded = copies::add(self.root(), new, |index| {
            let progress = self.progress();
            (progress.stages[index] == Stage::Published).then(|| progress.fingerprints[index])
        });
        // From now on the record is counted.
        self.gate.space.release();
        recorded
    }

    /// The root that it is in.
    pub(super) fn root(&self) -> &Arc<Root> {
        &self.placement.config.root
    }

    /// What was read for this job, which has so many blocks, from a store, by this attempt or an earlier one.
    pub fn object_read_log(&self, blocks: u64) -> Result<ObjectReadLog, FileError> {
        let _pass = self.gate.pass(|| self.placement.location())?;
        ObjectReadLog::open(self.root(), &self.placement.config.job, blocks)
    }

    /// The digest that the whole must have, if the job says so.
    pub fn expected_digest(&self) -> Option<Digest> {
        self.placement.config.expect
    }

    /// Opens the file with that index in the manifest; a file that is open already is shared. A
    /// finished one is opened for reading only: it is hashed again, and every block is there.
    /// Each open file takes a descriptor.
    pub fn open(&self, index: u32) -> Result<Arc<DestinationFile>, FileError> {
        let (target, _, bytes) = self.placement.file(index)?;
        let blocks = BlockLayout::new(self.placement.config.algorithm, bytes);
        let mut progress = self.progress();
        if let Some(open) = progress.open_file(index) {
            return Ok(open);
        }
        let finished = progress.digest(index);
        let initial_content = match progress.stages[index as usize] {
            Stage::Incomplete(initial_content) => initial_content,
            Stage::Finished(PublishAction::Rename) => InitialContent::Finished,
            // No directory or link: it has been looked up as a file.
            Stage::Finished(PublishAction::KeepExisting)
            | Stage::Published
            | Stage::Directory
            | Stage::Link => InitialContent::Existing,
        };
        let file = Arc::new(DestinationFile::open(
            target,
            index,
            blocks,
            initial_content,
            self.gate.clone(),
        )?);
        if let Some(digest) = finished {
            drop(progress);
            file.confirm_all(&digest)?;
            return Ok(file);
        }
        if initial_content == InitialContent::Fresh {
            // The next one to open it may find blocks in it.
            progress.stages[index as usize] = Stage::Incomplete(InitialContent::Resumed);
        }
        progress.add_open(index, &file);
        Ok(file)
    }

    /// Takes the file as whole, if it is, and if it has the digest that the source sent.
    pub fn finish(&self, file: &DestinationFile, digest: &Digest) -> Result<(), FileError> {
        let index = file.index();
        let (target, entry, _) = self.placement.file(index)?;
        let _pass = self.gate.pass(|| target.location())?;
        let (action, state) = file.finish(digest, entry.mode)?;
        if let (Shape::File, Some(expected)) = (self.manifest().shape(), self.expected_digest())
            && expected != *digest
        {
            return Err(FileError::ExpectMismatch {
                location: target.location(),
                expected,
                found: *digest,
            });
        }
        let mut progress = self.progress();
        if let Stage::Incomplete(_) = progress.stages[index as usize] {
            progress.finish(index, action, digest, state);
        }
        Ok(())
    }

    /// The digest of a file, once it is finished.
    pub fn digest_of_file(&self, index: u32) -> Option<Digest> {
        self.progress().digest(index)
    }

    /// The digest of the whole, once every file is finished.
    pub fn digest(&self) -> Option<Digest> {
        let progress = self.progress();
        if progress.incomplete() > 0 {
            return None;
        }
        let manifest = self.manifest();
        let files = manifest.files();
        let mut digests =
            files.filter_map(|(index, entry, _)| Some((entry.path, progress.digest(index)?)));
        match manifest.shape() {
            Shape::File => digests.next().map(|(_, digest)| digest),
            Shape::Directory => Some(directory_digest(self.placement.config.algorithm, digests)),
        }
    }

    /// Ends the attempt without its files: when it returns, no byte lands any more and another attempt
    /// may begin. What is published stays, and so do partial files. After an end it does nothing.
    pub fn abort(&self) {
        self.gate.close();
    }

    /// Nobody writes or reads here for the attempt any more: copies may be removed here. After
    /// [`Destination::publish`] that may be much later, for what is complete is still passed on.
    pub fn release_path(&self) {
        self.gate.space.release();
        drop(lock(&self.path_guard).take());
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        // A stage is set in one assignment, after what it says is true.
        lock(&self.progress)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
