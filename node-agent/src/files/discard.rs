//! Removing what a job that was given up has left at its destination.

use rustix::fs::{self, AtFlags};

use super::claim::JobLock;
use super::destination::{Destination, DestinationConfig};
use super::error::FileError;
use super::reservation::{self, Made, OpenDirectory};

/// What a job may have left here, whether or not it could be prepared: kept from one attempt to the
/// next, since a later one no longer knows which directories an earlier one has made.
#[derive(Clone, Debug)]
pub struct Leftover {
    config: DestinationConfig,
    made: Made,
}

impl Leftover {
    /// Of an attempt that is about to be prepared, and of the one before it.
    pub fn new(config: DestinationConfig, earlier: Option<Leftover>) -> Self {
        let same = earlier.filter(|earlier| earlier.config.root.name() == config.root.name());
        Leftover {
            made: same.map_or_else(Made::default, |earlier| earlier.made),
            config,
        }
    }

    /// Takes note of what the attempt has made now that it is prepared.
    pub fn add(&mut self, destination: &Destination) {
        let directories = &destination.made().directories;
        self.made.directories.extend(directories.iter().cloned());
    }

    /// Removes the partial files, and the directories that were made for the job and are empty.
    /// Makes nothing. Other directories stay: they may be the user's.
    pub fn discard(&self) -> Result<(), FileError> {
        let root = &self.config.root;
        let mut lock = None;
        let mut held = || -> Result<(), FileError> {
            if lock.is_none() {
                // Nobody else may be resuming it.
                lock = Some(JobLock::take(root, &self.config.job)?);
            }
            Ok(())
        };
        let mut open = OpenDirectory::new(root);
        // A manifest that no files can be made of has left none.
        let files = reservation::targets(&self.config).map_or_else(|_| Vec::new(), |(_, f)| f);
        for (target, _) in files {
            // Nothing is left in a directory that is not there.
            let Ok(parent) = open.at(&target.parent) else {
                continue;
            };
            let look = fs::statat(&*parent, &target.partial, AtFlags::SYMLINK_NOFOLLOW);
            if look.is_err() {
                continue;
            }
            held()?;
            target.remove_partial(&parent)?;
        }
        if !self.made.directories.is_empty() {
            held()?;
            self.made.remove_directories(root);
        }
        Ok(())
    }
}
