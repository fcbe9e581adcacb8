//! `Gate`: what a job holds as long as it may write, and the space that it has taken.
//!
//! Every write passes it, so that no byte is written once a destination has ended, also when
//! one of its files is still open.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::error::{FileError, Location};
use super::lock::JobLock;
use super::occupancy::PathGuard;
use super::reserved_space::ReservedSpace;

/// Open until the attempt ends.
#[derive(Debug)]
pub(super) struct Gate {
    /// Nothing once the attempt has ended.
    locks: RwLock<Option<WriteLocks>>,
    pub(super) space: ReservedSpace,
}

/// What a job holds for as long as it writes.
#[derive(Debug)]
pub(super) struct WriteLocks {
    pub(super) _writing: PathGuard,
    /// Last: given back after everything else.
    pub(super) _lock: JobLock,
}

/// The right to write; the attempt does not end while it is held.
pub(super) type Pass<'g> = RwLockReadGuard<'g, Option<WriteLocks>>;

impl Gate {
    pub(super) fn new(locks: WriteLocks, space: ReservedSpace) -> Self {
        Gate {
            locks: RwLock::new(Some(locks)),
            space,
        }
    }

    /// Lets a write to `location` through, unless the attempt has ended.
    pub(super) fn pass(&self, location: impl FnOnce() -> Location) -> Result<Pass<'_>, FileError> {
        let pass = self.locks.read().unwrap_or_else(PoisonError::into_inner);
        match *pass {
            Some(_) => Ok(pass),
            None => Err(FileError::AttemptEnded {
                location: location(),
            }),
        }
    }

    /// Waits for writes under way, lets no further one through, and gives back what the job held.
    pub(super) fn close(&self) {
        let locks = self
            .locks
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Not under the lock: that takes for ever on a file system that hangs.
        drop(locks);
    }
}
