//! Removing what a job that was given up has left at this node.

use std::sync::Arc;

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::claim::{JobLock, JobUid};
use super::destination::{Destination, DestinationConfig};
use super::error::FileError;
use super::manifest::Manifest;
use super::read_record::ReadRecord;
use super::reservation::{self, Made, OpenDirectory};
use super::root::{Access, Root};
use super::{staging, sweep};

/// What a job may have left here, through all its attempts, whether or not they could be prepared.
/// It is owed to a wish to discard, however late and however often that comes.
#[derive(Debug, Default)]
pub struct Leftover {
    /// At most one for each root.
    roots: Vec<InRoot>,
}

/// The same in one root.
#[derive(Debug)]
struct InRoot {
    root: Arc<Root>,
    partials: Where,
    /// Directories that any attempt has made: a later one finds them and does not know that.
    made: Made,
}

/// Where partial files may be.
#[derive(Debug)]
enum Where {
    /// Beside the files of these preparations, which go to the same place under the same names.
    At(DestinationConfig),
    /// In any directory: attempts differ, or some were before this agent's time.
    Anywhere,
}

impl Leftover {
    /// Of a job of which nothing is known.
    #[must_use]
    pub fn anywhere(roots: &[Arc<Root>]) -> Self {
        let of = |root: &Arc<Root>| InRoot {
            root: root.clone(),
            partials: Where::Anywhere,
            made: Made::default(),
        };
        Leftover {
            roots: roots.iter().map(of).collect(),
        }
    }

    /// Takes note of an attempt that is about to be prepared.
    pub fn expect(&mut self, config: DestinationConfig) {
        match self.in_root(&config.root) {
            Some(known) => known.partials.expect(config),
            None => self.roots.push(InRoot {
                root: config.root.clone(),
                partials: Where::At(config),
                made: Made::default(),
            }),
        }
    }

    /// Takes note of what the attempt has made now that it is prepared.
    pub fn add(&mut self, destination: &Destination) {
        if let Some(known) = self.in_root(destination.root()) {
            let directories = &destination.made().directories;
            known.made.directories.extend(directories.iter().cloned());
        }
    }

    /// Nothing is owed any more: the job's files are where they belong.
    pub fn forget(&mut self) {
        self.roots.clear();
    }

    /// Removes the partial files, and the directories that were made for the job and are empty.
    /// Makes nothing. Other directories stay: they may be the user's. Goes on where something
    /// cannot be removed; gives one fault for each root that it has to be called again for.
    pub fn discard(&mut self, job: &JobUid) -> Vec<FileError> {
        let mut faults = Vec::new();
        self.roots.retain(|left| {
            let fault = left.discard(job).err();
            let owed = fault.is_some();
            faults.extend(fault);
            owed
        });
        faults
    }

    fn in_root(&mut self, root: &Root) -> Option<&mut InRoot> {
        let mut roots = self.roots.iter_mut();
        // Another directory may have taken the name.
        roots.find(|known| std::ptr::eq(&*known.root, root))
    }
}

impl Where {
    fn expect(&mut self, config: DestinationConfig) {
        if let Where::At(known) = self {
            let same = known.path == config.path && have_same_names(known, &config);
            *self = if same {
                Where::At(config)
            } else {
                Where::Anywhere
            };
        }
    }
}

fn have_same_names(a: &DestinationConfig, b: &DestinationConfig) -> bool {
    fn names(manifest: &Manifest) -> impl Iterator<Item = &str> {
        manifest.files().map(|(_, entry, _)| entry.path)
    }
    a.manifest.shape() == b.manifest.shape() && names(&a.manifest).eq(names(&b.manifest))
}

impl InRoot {
    fn discard(&self, job: &JobUid) -> Result<(), FileError> {
        if self.root.access() != Access::ReadWrite {
            // Nothing is ever made in it.
            return Ok(());
        }
        let mut lock = Lock::new(&self.root, job);
        let removed = match &self.partials {
            Where::Anywhere => sweep::remove_job(&mut lock).map(drop),
            Where::At(config) => remove_at(config, &mut lock),
        };
        if self.made.directories.is_empty() {
            return removed;
        }
        lock.hold()?;
        removed.and(self.made.remove_directories(&self.root, job))
    }
}

/// The job's lock, taken when it is needed: nobody else may be resuming it.
pub(super) struct Lock<'a> {
    pub(super) root: &'a Arc<Root>,
    pub(super) job: &'a JobUid,
    held: Option<JobLock>,
}

impl<'a> Lock<'a> {
    pub(super) fn new(root: &'a Arc<Root>, job: &'a JobUid) -> Self {
        Lock {
            root,
            job,
            held: None,
        }
    }

    pub(super) fn hold(&mut self) -> Result<(), FileError> {
        if self.held.is_none() {
            self.held = Some(JobLock::take(self.root, self.job)?);
        }
        Ok(())
    }
}

/// Removes the partial files of one preparation; names the first that could not be.
fn remove_at(config: &DestinationConfig, lock: &mut Lock<'_>) -> Result<(), FileError> {
    let mut open = OpenDirectory::new(lock.root);
    let mut result = Ok(());
    // A path or a manifest that no files can be made of has left none.
    let Ok(base) = reservation::base(config) else {
        return Ok(());
    };
    if let Ok(Some(staging)) = staging::beside(config, &base) {
        match lock.root.open_directory(&staging) {
            Ok(_) => {
                lock.hold()?;
                result = staging::remove(lock.root, &staging);
            }
            Err(cause) if reservation::is_no_directory(cause) => {}
            Err(cause) => {
                let place = lock.root.place(&staging);
                result = Err(FileError::writing(place, "open", cause, 0));
            }
        }
    }
    for (target, _) in reservation::targets(config, &base, None).flatten() {
        let parent = match open.found(&target.parent) {
            Ok(Some(parent)) => parent,
            Ok(None) => continue,
            Err(fault) => {
                result = result.and(Err(fault));
                continue;
            }
        };
        match fs::statat(&*parent, &target.partial, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            Err(cause) => result = result.and(Err(target.failed("fstatat", cause, 0))),
            Ok(_) => {
                lock.hold()?;
                result = result.and(target.remove_partial(&parent));
            }
        }
    }
    result.and(ReadRecord::remove(lock.root, lock.job))
}
