//! `Occupancy`: which paths of a root are in use, so that nothing is removed there.
//!
//! One job writes at a path: the operator grants paths so, and this is the agent's own check. A job that is
//! given up removes the empty directories that it has made; another job may need them by now. A verified copy
//! that is to be removed may be what an attempt reads or writes now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{FileError, Location};
use super::names::JobUid;
use super::path::RootPath;

/// Owned by the root.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// Locked while a job begins to write, and while an empty directory is removed, which takes for ever on a
    /// file system that hangs: on threads that may block only.
    begin: Mutex<()>,
    /// Never locked during a system call.
    uses: Mutex<PathUses>,
}

#[derive(Debug, Default)]
struct PathUses {
    paths: BTreeMap<u64, (RootPath, PathUse)>,
    /// Names the next of these.
    next: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathUse {
    /// This job writes there: from before its first directory until its end.
    Writer(JobUid),
    /// An attempt writes or reads there.
    Attempt,
    /// A verified copy is being removed there.
    Removal,
    /// A verified copy is compared with its record, before a volume shows it.
    Volume,
}

/// A path is in use: as long as this is there.
#[derive(Debug)]
pub(super) struct PathGuard {
    occupancy: Arc<Occupancy>,
    number: u64,
}

impl Occupancy {
    /// Says that `job` writes at `path`, unless a copy is being removed there or another job writes there, at
    /// a path within it or around it. The caller calls [`Occupancy::begin_access`] first, so that no
    /// removal begins in between.
    pub(super) fn begin_write(
        self: &Arc<Self>,
        job: &JobUid,
        path: &RootPath,
        location: impl FnOnce() -> Location,
    ) -> Result<PathGuard, FileError> {
        if self.uses().overlaps(path, &PathUse::Removal) {
            return Err(FileError::BeingRemoved {
                location: location(),
            });
        }
        let _begin = lock(&self.begin);
        let mut uses = self.uses();
        if let Some(other) = uses.other_writer(job, path) {
            let job = other.to_string();
            return Err(FileError::DestinationBusy {
                location: location(),
                job,
            });
        }
        Ok(self.add(&mut uses, path, PathUse::Writer(job.clone())))
    }

    /// Says that an attempt writes or reads at `path`. When a removal has begun there, a reader then
    /// finds other files, or none.
    pub(super) fn begin_access(self: &Arc<Self>, path: &RootPath) -> PathGuard {
        self.add(&mut self.uses(), path, PathUse::Attempt)
    }

    /// Keeps jobs out of `path` while a copy is removed there; nothing where an attempt accesses it, or
    /// something within it or around it.
    pub(super) fn begin_removal(self: &Arc<Self>, path: &RootPath) -> Option<PathGuard> {
        let mut uses = self.uses();
        let is_free =
            !uses.overlaps(path, &PathUse::Attempt) && !uses.overlaps(path, &PathUse::Volume);
        is_free.then(|| self.add(&mut uses, path, PathUse::Removal))
    }

    /// Keeps removals out of `path` until a volume that shows the copy there is written down, and tells the next writer;
    /// nothing where a job writes or removes now.
    pub(super) fn begin_volume(self: &Arc<Self>, path: &RootPath) -> Option<PathGuard> {
        let mut uses = self.uses();
        let is_free = !uses.overlaps(path, &PathUse::Removal) && !uses.is_written(path);
        is_free.then(|| self.add(&mut uses, path, PathUse::Volume))
    }

    /// Whether a volume is about to show a copy at `path`, within it or around it. Once a writer has begun, none begins.
    pub(super) fn has_volume(&self, path: &RootPath) -> bool {
        self.uses().overlaps(path, &PathUse::Volume)
    }

    /// Runs `remove` on a directory that `job` has made, unless another job writes there.
    pub(super) fn unless_written<T>(
        &self,
        job: &JobUid,
        directory: &RootPath,
        remove: impl FnOnce() -> T,
    ) -> Option<T> {
        // The next writer finds the directory gone, or keeps it: it is not removed later.
        let _begin = lock(&self.begin);
        let is_free = self.uses().other_writer(job, directory).is_none();
        is_free.then(remove)
    }

    fn add(self: &Arc<Self>, uses: &mut PathUses, path: &RootPath, kind: PathUse) -> PathGuard {
        uses.next += 1;
        let number = uses.next;
        uses.paths.insert(number, (path.clone(), kind));
        PathGuard {
            occupancy: self.clone(),
            number,
        }
    }

    fn uses(&self) -> MutexGuard<'_, PathUses> {
        lock(&self.uses)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PathUses {
    fn overlaps(&self, path: &RootPath, kind: &PathUse) -> bool {
        let mut paths = self.paths.values();
        paths.any(|(other, known)| known == kind && other.overlaps(path))
    }

    /// Whether a job writes at `path`, within it or around it.
    fn is_written(&self, path: &RootPath) -> bool {
        let mut paths = self.paths.values();
        paths.any(|(at, kind)| matches!(kind, PathUse::Writer(_)) && at.overlaps(path))
    }

    /// Another job that writes at `path`, within it or around it.
    fn other_writer(&self, job: &JobUid, path: &RootPath) -> Option<&JobUid> {
        self.paths.values().find_map(|(at, kind)| match kind {
            PathUse::Writer(other) if other != job && at.overlaps(path) => Some(other),
            _ => None,
        })
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        self.occupancy.uses().paths.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_directory_that_is_not_removed_for_ever_holds_up_no_reader() {
        let occupancy = Arc::new(Occupancy::default());
        let (begins, begun) = channel();
        let (end, ended) = channel::<()>();
        let hung = std::thread::spawn({
            let occupancy = occupancy.clone();
            move || {
                let path = RootPath::parse("made").unwrap();
                occupancy.unless_written(&"a".parse().unwrap(), &path, || {
                    begins.send(()).unwrap();
                    ended.recv().unwrap();
                })
            }
        });
        begun.recv().unwrap();
        let model = RootPath::parse("model").unwrap();
        let open = occupancy.begin_access(&model);
        assert!(occupancy.begin_removal(&model).is_none());
        drop(open);
        assert!(occupancy.begin_removal(&model).is_some());
        end.send(()).unwrap();
        assert_eq!(hung.join().unwrap(), Some(()));
    }
}
