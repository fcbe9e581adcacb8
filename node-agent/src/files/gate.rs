//! `Gate`: whether a job may still write.
//!
//! Every write passes it, so that no byte is written once a destination has ended, also when
//! one of its files is still open.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::error::{FileError, Place};

/// Open until the job ends.
#[derive(Debug, Default)]
pub(super) struct Gate {
    ended: RwLock<bool>,
}

/// The right to write; the job does not end while it is held.
pub(super) type Pass<'g> = RwLockReadGuard<'g, bool>;

impl Gate {
    /// Lets a write to `place` through, unless the job has ended.
    pub(super) fn pass(&self, place: impl FnOnce() -> Place) -> Result<Pass<'_>, FileError> {
        let pass = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        if *pass {
            Err(FileError::JobEnded { place: place() })
        } else {
            Ok(pass)
        }
    }

    /// Waits for writes under way, and lets no further one through.
    pub(super) fn close(&self) {
        *self.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}
