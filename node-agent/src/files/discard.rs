//! Removing what a job that was given up has left at its destination.

use rustix::fs::{self, AtFlags};

use super::claim::JobLock;
use super::destination::DestinationConfig;
use super::error::FileError;
use super::reservation::{self, OpenDirectory};

/// Removes the partial files of a job, whether or not it could be prepared again: its destination
/// may be full by now, or taken. Makes nothing. Directories stay: they may be the user's.
pub fn discard(config: &DestinationConfig) -> Result<(), FileError> {
    // A manifest that no files can be made of has left none.
    let Ok((_, files)) = reservation::targets(config) else {
        return Ok(());
    };
    let mut lock = None;
    let mut open = OpenDirectory::new(&config.root);
    for (target, _) in files {
        // Nothing is left in a directory that is not there.
        let Ok(parent) = open.at(&target.parent) else {
            continue;
        };
        let look = fs::statat(&*parent, &target.partial, AtFlags::SYMLINK_NOFOLLOW);
        if look.is_err() {
            continue;
        }
        if lock.is_none() {
            // Nobody else may be resuming it.
            lock = Some(JobLock::take(&config.root, &config.job)?);
        }
        target.remove_partial(&parent)?;
    }
    Ok(())
}
