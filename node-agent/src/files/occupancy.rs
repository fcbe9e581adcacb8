//! Where in a root jobs have their files: no other job removes directories or a copy there.
//!
//! A job that is given up removes the empty directories that it has made. Another job may have
//! needed them since, and an empty directory may be all that its manifest says of a place. A
//! verified copy that is to be removed may be what another attempt writes, has found or reads now.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::claim::JobUid;
use super::error::FileError;
use super::root::{Root, RootPath};

/// Jobs that are complete and still remembered: as many as an agent answers for.
const COMPLETE_MAX: usize = 1024;

/// Owned by the root. A claim and a removal take turns.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// Locked while a directory is removed, which takes for ever on a file system that hangs: on threads
    /// that may block only.
    places: Mutex<Places>,
    /// Never locked for longer than a look.
    uses: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Places {
    /// Of jobs that are prepared or written now; a job has one at a time in a root.
    live: HashMap<JobUid, Place>,
    /// Of jobs that are complete, oldest first.
    complete: VecDeque<(JobUid, RootPath)>,
}

#[derive(Debug)]
struct Place {
    base: RootPath,
    /// It is assembled beside its place, where nobody may make it meanwhile.
    is_staged: bool,
}

#[derive(Debug, Default)]
struct Uses {
    /// What attempts have open now, to write or to read.
    open: BTreeMap<u64, RootPath>,
    /// Where verified copies are being removed now.
    cleared: BTreeMap<u64, RootPath>,
    /// Names the next of these.
    next: u64,
}

/// A job's place in a root, from before its first directory until its end; held on beyond that when
/// its files stand there.
#[derive(Debug)]
pub(super) struct Claim {
    root: Arc<Root>,
    job: JobUid,
}

/// Somebody writes or reads there: as long as it is there, no copy is removed there.
#[derive(Debug)]
pub(super) struct Stay {
    root: Arc<Root>,
    number: u64,
}

/// A verified copy is being removed there: as long as it is there, no job claims the place.
#[derive(Debug)]
pub(super) struct Clearing<'r> {
    occupancy: &'r Occupancy,
    number: u64,
}

impl Occupancy {
    /// Says that `job` will have its files at `base`, unless a copy is being removed there, or another job
    /// assembles a directory that is to hold it. The caller takes its [`Stay`] first, so that no
    /// removal begins in between.
    pub(super) fn claim(
        root: &Arc<Root>,
        job: &JobUid,
        base: &RootPath,
        is_staged: bool,
    ) -> Result<Claim, FileError> {
        if is_among(base, &root.occupancy().uses().cleared) {
            return Err(FileError::BeingRemoved {
                place: root.place(base),
            });
        }
        let mut places = root.occupancy().places();
        let mut live = places.live.iter();
        let within = live.find(|(other, place)| {
            *other != job && place.is_staged && place.base != *base && base.is_within(&place.base)
        });
        if let Some((other, _)) = within {
            return Err(FileError::DestinationBusy {
                place: root.place(base),
                job: other.clone(),
            });
        }
        let place = Place {
            base: base.clone(),
            is_staged,
        };
        places.live.insert(job.clone(), place);
        Ok(Claim {
            root: root.clone(),
            job: job.clone(),
        })
    }

    /// Says that somebody writes or reads at `place`. Of a removal that has begun, a reader notices
    /// that its files are others, or none.
    pub(super) fn stay(root: &Arc<Root>, place: &RootPath) -> Stay {
        let mut uses = root.occupancy().uses();
        let number = uses.number();
        uses.open.insert(number, place.clone());
        Stay {
            root: root.clone(),
            number,
        }
    }

    /// Keeps jobs out of `place` while a copy is removed there; nothing where somebody has it open,
    /// or something within it or around it.
    pub(super) fn clear(&self, place: &RootPath) -> Option<Clearing<'_>> {
        let mut uses = self.uses();
        if is_among(place, &uses.open) {
            return None;
        }
        let number = uses.number();
        uses.cleared.insert(number, place.clone());
        Some(Clearing {
            occupancy: self,
            number,
        })
    }

    /// Runs `remove` on a directory that `job` has made, unless another job has its files in it or
    /// it is among them.
    pub(super) fn unless_anothers<T>(
        &self,
        job: &JobUid,
        directory: &RootPath,
        remove: impl FnOnce() -> T,
    ) -> Option<T> {
        let places = self.places();
        let complete = places.complete.iter().map(|(job, base)| (job, base));
        let live = places.live.iter().map(|(job, place)| (job, &place.base));
        let mut all = live.chain(complete);
        let anothers = all.any(|(other, base)| other != job && base.overlaps(directory));
        // Under the lock: whoever claims the place next finds it gone, or finds it there for good.
        (!anothers).then(remove)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        // Every change is one call.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        // As above.
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uses {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Whether one of these places is `place`, lies within it or around it.
fn is_among(place: &RootPath, places: &BTreeMap<u64, RootPath>) -> bool {
    places.values().any(|other| other.overlaps(place))
}

impl Claim {
    /// The job is complete: what stands there is not to be touched.
    pub(super) fn complete(self) {
        let mut places = self.root.occupancy().places();
        if let Some(place) = places.live.remove(&self.job) {
            places.complete.retain(|(job, _)| *job != self.job);
            places.complete.push_back((self.job.clone(), place.base));
            if places.complete.len() > COMPLETE_MAX {
                places.complete.pop_front();
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.root.occupancy().places().live.remove(&self.job);
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.root.occupancy().uses().open.remove(&self.number);
    }
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        self.occupancy.uses().cleared.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::root::Access;
    use super::*;

    #[test]
    fn a_directory_that_is_not_removed_for_ever_holds_up_no_reader() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let (begins, begun) = channel();
        let (end, ended) = channel::<()>();
        let hung = std::thread::spawn({
            let root = root.clone();
            move || {
                let place = RootPath::parse("made").unwrap();
                let job = "a".parse().unwrap();
                root.occupancy().unless_anothers(&job, &place, || {
                    begins.send(()).unwrap();
                    ended.recv().unwrap();
                })
            }
        });
        begun.recv().unwrap();
        let model = RootPath::parse("model").unwrap();
        let stay = Occupancy::stay(&root, &model);
        assert!(root.occupancy().clear(&model).is_none());
        drop(stay);
        assert!(root.occupancy().clear(&model).is_some());
        end.send(()).unwrap();
        assert_eq!(hung.join().unwrap(), Some(()));
    }
}
