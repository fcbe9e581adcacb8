//! `JobLock`: says that a process works on a job in a root.
//!
//! The job holds `flock(2)` on `.weft-UID.lock` in the root's directory for as long as it runs: one
//! descriptor for any number of files, gone with the process. A partial file whose job does not hold its
//! lock is only something to resume. Roots must therefore not lie within each other.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::names::{JobUid, lock_name, open_own};
use super::root::Root;

/// How often a lock is tried: another process that tests it holds it for an instant.
const LOCK_TRIES: usize = 100;

/// Held for as long as a job writes into a root; the lock file goes with it.
#[derive(Debug)]
pub(super) struct JobLock {
    root: Arc<Root>,
    name: String,
    /// The open lock file: closing it gives the lock back.
    _file: File,
}

impl JobLock {
    /// Takes the lock, or says that another process works on this very job.
    pub(super) fn take(root: &Arc<Root>, job: &JobUid) -> Result<Self, FileError> {
        let name = lock_name(job);
        let location = || root.own_location(&name);
        let failed = |operation, cause| FileError::writing(location(), operation, cause, 0);
        for _ in 0..LOCK_TRIES {
            let file = open_own(root.directory(), &name, OFlags::CREATE | OFlags::RDWR)
                .map_err(|cause| failed("open", cause))?;
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(cause) => return Err(failed("flock", cause)),
            }
            // Its last holder may have removed it between our open and our lock.
            let ours = fs::fstat(&file).map_err(|cause| failed("fstat", cause))?;
            match fs::statat(root.directory(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {
                    return Ok(JobLock {
                        root: root.clone(),
                        name,
                        _file: file,
                    });
                }
                _ => {}
            }
        }
        Err(FileError::JobBusy {
            location: location(),
            job: job.to_string(),
        })
    }
}

impl Drop for JobLock {
    fn drop(&mut self) {
        // Before the lock is given back; a file that stays is no lock, only litter.
        let _ = fs::unlinkat(self.root.directory(), &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::Access;
    use super::*;

    #[test]
    fn a_job_is_locked_once_and_free_again_when_its_holder_goes() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let job: JobUid = "a".parse().unwrap();
        let lock = JobLock::take(&root, &job).unwrap();
        assert_eq!(
            JobLock::take(&root, &job).unwrap_err().reason(),
            "DestinationBusy"
        );
        let _another = JobLock::take(&root, &"b".parse().unwrap()).unwrap();
        drop(lock);
        JobLock::take(&root, &job).unwrap();
    }
}
