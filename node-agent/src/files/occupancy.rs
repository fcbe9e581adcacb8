//! Where in a root jobs have their files: no other job removes directories there.
//!
//! A job that is given up removes the empty directories that it has made. Another job may have
//! needed them since, and an empty directory may be all that its manifest says of a place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::claim::JobUid;
use super::root::{Root, RootPath};

/// Jobs that are complete and still remembered: as many as an agent answers for.
const COMPLETE_MAX: usize = 1024;

/// Owned by the root. A claim and a removal take turns.
#[derive(Debug, Default)]
pub(super) struct Occupancy(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Of jobs that are prepared or written now; a job has one at a time in a root.
    live: HashMap<JobUid, RootPath>,
    /// Of jobs that are complete, oldest first.
    complete: VecDeque<(JobUid, RootPath)>,
}

/// A job's place in a root, from before its first directory until its end; held on beyond that when
/// its files stand there.
#[derive(Debug)]
pub(super) struct Claim {
    root: Arc<Root>,
    job: JobUid,
}

impl Occupancy {
    /// Says that `job` will have its files at `base`.
    pub(super) fn claim(root: &Arc<Root>, job: &JobUid, base: &RootPath) -> Claim {
        let mut places = root.occupancy().lock();
        places.live.insert(job.clone(), base.clone());
        Claim {
            root: root.clone(),
            job: job.clone(),
        }
    }

    /// Runs `remove` on a directory that `job` has made, unless another job has its files in it or
    /// it is among them.
    pub(super) fn unless_anothers<T>(
        &self,
        job: &JobUid,
        directory: &RootPath,
        remove: impl FnOnce() -> T,
    ) -> Option<T> {
        let places = self.lock();
        let complete = places.complete.iter().map(|(job, base)| (job, base));
        let mut all = places.live.iter().chain(complete);
        let anothers = all.any(|(other, base)| {
            other != job && (base.is_within(directory) || directory.is_within(base))
        });
        // Under the lock: whoever claims the place next finds it gone, or finds it there for good.
        (!anothers).then(remove)
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        // Every change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The job is complete: what stands there is not to be touched.
    pub(super) fn complete(self) {
        let mut places = self.root.occupancy().lock();
        if let Some(base) = places.live.remove(&self.job) {
            places.complete.retain(|(job, _)| *job != self.job);
            places.complete.push_back((self.job.clone(), base));
            if places.complete.len() > COMPLETE_MAX {
                places.complete.pop_front();
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.root.occupancy().lock().live.remove(&self.job);
    }
}
