//! `Leftover`: removes what a job that was given up has left at this node.

use std::sync::Arc;

use super::destination::Destination;
use super::destination_config::DestinationConfig;
use super::error::FileError;
use super::lock::JobLock;
use super::names::JobUid;
use super::object_read_log::ObjectReadLog;
use super::path::RootPath;
use super::reservation;
use super::root::{Access, Root};
use super::sweep;

/// What a job may have left here, through all its attempts, whether or not they could be prepared.
#[derive(Debug, Default)]
pub struct Leftover {
    /// At most one for each root.
    roots: Vec<InRoot>,
}

/// The same in one root.
#[derive(Debug)]
struct InRoot {
    root: Arc<Root>,
    /// Where its attempts put their files; `None`: unknown; an earlier agent process may have run
    /// attempts.
    bases: Option<Vec<RootPath>>,
    /// Directories that any attempt has made: a later one finds them and does not know that.
    made: Vec<RootPath>,
}

impl Leftover {
    /// Of a job of which nothing is known.
    #[must_use]
    pub fn anywhere(roots: &[Arc<Root>]) -> Self {
        let of = |root: &Arc<Root>| InRoot::new(root, None);
        Leftover {
            roots: roots.iter().map(of).collect(),
        }
    }

    /// Takes note of an attempt that is about to be prepared.
    pub fn note_attempt(&mut self, config: &DestinationConfig) {
        // A path or a manifest that no files can be made of leaves none.
        let Ok(base) = config.base() else {
            return;
        };
        let at = self.in_root(&config.root).unwrap_or_else(|| {
            self.roots.push(InRoot::new(&config.root, Some(Vec::new())));
            self.roots.len() - 1
        });
        if let Some(bases) = &mut self.roots[at].bases
            && !bases.contains(&base)
        {
            bases.push(base);
        }
    }

    /// Takes note of what the attempt has made now that it is prepared.
    pub fn add(&mut self, destination: &Destination) {
        if let Some(at) = self.in_root(destination.root()) {
            self.roots[at].made.extend(destination.made.iter().cloned());
        }
    }

    /// Nothing is left: the job's files are where they belong.
    pub fn forget(&mut self) {
        self.roots.clear();
    }

    /// Removes the partial files, and the directories that were made for the job and are empty.
    /// Makes nothing. Other directories stay: they may be the user's. Goes on where something
    /// cannot be removed; gives one fault for each root that it has to be called again for.
    pub fn remove_partials(&mut self, job: &JobUid) -> Vec<FileError> {
        let mut faults = Vec::new();
        self.roots.retain(|left| {
            let fault = left.remove_partials(job).err();
            let is_left = fault.is_some();
            faults.extend(fault);
            is_left
        });
        faults
    }

    fn in_root(&self, root: &Root) -> Option<usize> {
        let mut roots = self.roots.iter();
        // Another directory may have taken the name.
        roots.position(|known| std::ptr::eq(&*known.root, root))
    }
}

impl InRoot {
    fn new(root: &Arc<Root>, bases: Option<Vec<RootPath>>) -> Self {
        InRoot {
            root: root.clone(),
            bases,
            made: Vec::new(),
        }
    }

    fn remove_partials(&self, job: &JobUid) -> Result<(), FileError> {
        if self.root.access() != Access::ReadWrite {
            // Nothing is ever made in it.
            return Ok(());
        }
        let mut directories = Vec::new();
        match &self.bases {
            None => directories.push((RootPath::ROOT, true)),
            Some(bases) => {
                for base in bases {
                    // What becomes the file or directory itself is beside it.
                    directories.extend(base.split().map(|(parent, _)| (parent, false)));
                    directories.push((base.clone(), true));
                }
            }
        }
        let mut lock = None;
        let removed = sweep::remove_job(&self.root, job, directories, &mut lock)
            .and_then(|()| ObjectReadLog::remove(&self.root, job));
        if self.made.is_empty() {
            return removed;
        }
        if lock.is_none() {
            lock = Some(JobLock::take(&self.root, job)?);
        }
        let emptied = reservation::remove_directories(&self.root, job, &self.made);
        drop(lock);
        removed.and(emptied)
    }
}
