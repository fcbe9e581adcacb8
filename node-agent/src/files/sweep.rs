//! Removing what jobs left that nobody will resume: partial files, staging directories, lock files.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::directory::is_no_directory;
use super::error::FileError;
use super::file_state::FileState;
use super::lock::JobLock;
use super::names::{JobUid, OwnName};
use super::path::RootPath;
use super::root::{Access, Root};
use super::staging;

/// Removes partial files, staging directories and lock files of jobs that no process works on and that
/// were last written to at least `older_than` ago; gives their number, lock files left out. What cannot be read or removed is
/// passed over: it is another's, or tried again next time. Walks the whole root: call it from a
/// thread of its own, at start and every few hours.
pub fn sweep(root: &Arc<Root>, older_than: Duration) -> Result<u32, FileError> {
    if root.access() != Access::ReadWrite {
        return Ok(0);
    }
    // The job's lock, kept until the next entry: the job cannot resume or rename the file while it is removed.
    let mut held = None;
    let is_abandoned = |own: &OwnName, age: &dyn Fn() -> Duration| {
        drop(held.take());
        Ok(match own {
            OwnName::Partial { job, .. } if age() >= older_than => {
                held = JobLock::take(root, job).ok();
                // The job may have written until it gave the lock back.
                held.is_some() && age() >= older_than
            }
            OwnName::Lock { job } if age() >= older_than => {
                // The file of a lock that nobody holds goes with ours.
                drop(JobLock::take(root, job));
                false
            }
            OwnName::Partial { .. } | OwnName::Lock { .. } | OwnName::Copies => false,
        })
    };
    Ok(remove(root, vec![(RootPath::ROOT, true)], is_abandoned)?.files)
}

/// Removes the partial files and staging directories of one job in these directories, and below those that
/// are marked so. Takes the job's lock into `lock` when it finds one; refused while another process works
/// on the job. Names the first file that could not be removed. A directory that is closed to the agent
/// is another's.
pub(super) fn remove_job(
    root: &Arc<Root>,
    job: &JobUid,
    directories: Vec<(RootPath, bool)>,
    lock: &mut Option<JobLock>,
) -> Result<(), FileError> {
    let removed = remove(root, directories, |own, _| {
        let is_of_job = matches!(own, OwnName::Partial { job: its, .. } if its == job);
        if is_of_job && lock.is_none() {
            *lock = Some(JobLock::take(root, job)?);
        }
        Ok(is_of_job)
    })?;
    removed.fault.map_or(Ok(()), Err)
}

/// What has become of a walk.
#[derive(Debug, Default)]
struct Removed {
    files: u32,
    /// The first thing that is still there, or that could not be examined.
    fault: Option<FileError>,
}

impl Removed {
    /// Something could not be examined.
    fn failed(&mut self, root: &Root, path: &RootPath, operation: &'static str, cause: Errno) {
        // What is gone, or closed to the agent, is another's.
        let gone = is_no_directory(cause);
        if !gone && !matches!(cause, Errno::ACCESS | Errno::PERM) {
            let fault = FileError::writing(root.location(path), operation, cause, 0);
            self.fault.get_or_insert(fault);
        }
    }
}

/// Removes what `should_remove` names of what is Weft's own in these directories, and below those that are marked so.
fn remove(
    root: &Root,
    mut waiting: Vec<(RootPath, bool)>,
    mut should_remove: impl FnMut(&OwnName, &dyn Fn() -> Duration) -> Result<bool, FileError>,
) -> Result<Removed, FileError> {
    let mut removed = Removed::default();
    while let Some((path, and_below)) = waiting.pop() {
        let directory = match root.open_directory(&path) {
            Ok(directory) => directory,
            Err(cause) => {
                removed.failed(root, &path, "open", cause);
                continue;
            }
        };
        let mut entries = match Dir::read_from(&directory) {
            Ok(entries) => entries,
            Err(cause) => {
                removed.failed(root, &path, "open", cause);
                continue;
            }
        };
        while let Some(found) = entries.read() {
            let found = match found {
                Ok(found) => found,
                Err(cause) => {
                    removed.failed(root, &path, "getdents", cause);
                    break;
                }
            };
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
            let stat = match fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(cause) => {
                    removed.failed(root, &path, "fstatat", cause);
                    continue;
                }
            };
            match (FileType::from_raw_mode(stat.st_mode), own) {
                (FileType::Directory, Some(OwnName::Copies)) => {}
                (FileType::Directory, Some(own @ OwnName::Partial { .. })) => {
                    let Ok(staging) = path.join(name) else {
                        continue;
                    };
                    // What cannot be examined is another's.
                    let age = || staging::written_ns(root, &staging).map_or(Duration::ZERO, age);
                    if should_remove(&own, &age)? {
                        match staging::remove(root, &staging) {
                            Ok(()) => removed.files += 1,
                            Err(fault) => drop(removed.fault.get_or_insert(fault)),
                        }
                    }
                }
                (FileType::Directory, _) if and_below => {
                    waiting.extend(path.join(name).map(|path| (path, true)));
                }
                (FileType::RegularFile | FileType::Symlink, Some(own))
                    if should_remove(&own, &|| age(FileState::of(&stat).mtime_ns))? =>
                {
                    match fs::unlinkat(&directory, name, AtFlags::empty()) {
                        Ok(()) => removed.files += 1,
                        Err(Errno::NOENT) => {}
                        Err(cause) => {
                            let file = path.join(name).unwrap_or_else(|_| path.clone());
                            let fault =
                                FileError::writing(root.location(&file), "unlink", cause, 0);
                            removed.fault.get_or_insert(fault);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    Ok(removed)
}

/// Time since then; none for what is from the future.
fn age(written_ns: i64) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let written = u64::try_from(written_ns).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(written))
}
