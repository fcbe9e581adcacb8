//! Removing what jobs left that nobody will resume.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, Dir, FileType, Stat};

use super::claim::{JobLock, JobUid, OwnName};
use super::error::FileError;
use super::manifest::Identity;
use super::root::{Access, Root, RootPath};

/// Removes partial files and lock files of jobs that no process works on and that were last
/// written to at least `older_than` ago; gives their number. What cannot be read or removed is
/// passed over: it is another's, or tried again next time. Walks the whole root: call it from a
/// thread of its own, at start and every few hours.
pub fn sweep(root: &Root, older_than: Duration) -> Result<u32, FileError> {
    if root.access() != Access::ReadWrite {
        return Ok(0);
    }
    let abandoned = |own: &OwnName<'_>, stat: &Stat| {
        let (OwnName::Partial { job, .. } | OwnName::Lock { job }) = own;
        age(stat) >= older_than && !JobLock::is_held(root, job)
    };
    Ok(remove(root, abandoned))
}

/// Removes the partial files of one job, of which nothing is known but its name; gives their
/// number. Refused while some process works on it. Walks the whole root, too.
pub fn sweep_job(root: &Arc<Root>, job: &JobUid) -> Result<u32, FileError> {
    if root.access() != Access::ReadWrite {
        return Ok(0);
    }
    // Nobody else may be resuming it. Goes by itself.
    let _lock = JobLock::take(root, job)?;
    let is_its = |own: &OwnName<'_>, _: &Stat| matches!(own, OwnName::Partial { job: its, .. } if its == job);
    Ok(remove(root, is_its))
}

/// Removes what is Weft's own and to go.
fn remove(root: &Root, is_to_go: impl Fn(&OwnName<'_>, &Stat) -> bool) -> u32 {
    let mut removed = 0;
    let mut waiting = vec![RootPath::ROOT];
    while let Some(path) = waiting.pop() {
        let Ok(directory) = root.open_directory(&path) else {
            continue;
        };
        let Ok(mut listing) = Dir::read_from(&directory) else {
            continue;
        };
        while let Some(Ok(found)) = listing.read() {
            let Ok(name) = found.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let own = OwnName::parse(name);
            if own.is_none()
                && !matches!(found.file_type(), FileType::Directory | FileType::Unknown)
            {
                continue;
            }
            let Ok(stat) = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match (FileType::from_raw_mode(stat.st_mode), own) {
                (FileType::Directory, _) => waiting.extend(path.join(name)),
                (FileType::RegularFile, Some(own)) if is_to_go(&own, &stat) => {
                    let gone = fs::unlinkat(&directory, name, AtFlags::empty()).is_ok();
                    removed += u32::from(gone);
                }
                _ => {}
            }
        }
    }
    removed
}

/// Time since the file was written to; none for one from the future.
fn age(stat: &Stat) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let written = u64::try_from(Identity::of(stat).mtime_ns).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(written))
}
