//! Which job writes what: the names of partial files, and the lock that says their job lives. Also the
//! other names that are Weft's own.
//!
//! A partial file `.weft-UID-HEX` stands in the directory of the file it will become and claims
//! its name (HEX is half a BLAKE3 of it). Its job holds `flock(2)` on `.weft-UID.lock` in the
//! root's directory for as long as it runs: one descriptor for any number of files, gone with
//! the process. A partial file whose job does not hold its lock is only something to resume.
//! Roots must therefore not lie within each other.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::{FileError, Place};
use super::root::{Root, RootPath};

/// How often a lock is tried: another job that looks whether it is held holds it for an instant.
const LOCK_TRIES: usize = 100;

/// Hexadecimal digits of the final name's hash in a partial file's name.
pub(super) const HEX_DIGITS: usize = 32;

/// The directory of a root with the records of its copies.
pub(super) const COPIES: &str = ".weft-copies";

/// The mode of partial and lock files: nobody but the agent reads them.
pub(super) const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// The name of a job, unique in time: a Kubernetes UID, or any 1…64 letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobUid(String);

impl JobUid {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobUid {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(JobUid(text.into()))
        } else {
            Err(FileError::BadJobUid {
                text: text.escape_default().to_string(),
            })
        }
    }
}

/// A name that belongs to Weft.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnName<'n> {
    Partial { job: JobUid, hex: &'n str },
    Lock { job: JobUid },
    Copies,
}

impl<'n> OwnName<'n> {
    pub(super) fn parse(name: &'n str) -> Option<Self> {
        if name == COPIES {
            return Some(OwnName::Copies);
        }
        let rest = name.strip_prefix(".weft-")?;
        if let Some(job) = rest.strip_suffix(".lock") {
            return Some(OwnName::Lock {
                job: job.parse().ok()?,
            });
        }
        let (job, hex) = rest.rsplit_once('-')?;
        let is_hex =
            hex.len() == HEX_DIGITS && hex.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex {
            Some(OwnName::Partial {
                job: job.parse().ok()?,
                hex,
            })
        } else {
            None
        }
    }
}

/// Whether a user's file may not have this name.
pub(super) fn is_reserved(name: &str) -> bool {
    OwnName::parse(name).is_some()
}

/// Whether a path leads to a name of Weft's own, or through a directory of such a name.
pub(super) fn is_within_reserved(path: &str) -> bool {
    path.split('/').any(is_reserved)
}

/// The name of `job`'s partial file that will become `name`.
pub(super) fn partial_name(job: &JobUid, name: &str) -> String {
    let hex = blake3::hash(name.as_bytes()).to_hex();
    format!(".weft-{job}-{}", &hex[..HEX_DIGITS])
}

fn lock_name(job: &JobUid) -> String {
    format!(".weft-{job}.lock")
}

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
        let place = || Place {
            root: root.name().into(),
            path: name.clone(),
        };
        let failed = |operation, cause| FileError::writing(place(), operation, cause, 0);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..LOCK_TRIES {
            let file = fs::openat(root.directory(), &name, flags, PRIVATE)
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
                        _file: File::from(file),
                    });
                }
                _ => {}
            }
        }
        Err(FileError::DestinationBusy {
            place: place(),
            job: job.clone(),
        })
    }

    /// Whether some process works on `job` in this root.
    pub(super) fn is_held(root: &Root, job: &JobUid) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = fs::openat(root.directory(), lock_name(job), flags, Mode::empty()) else {
            return false;
        };
        let probe = fs::flock(&file, FlockOperation::NonBlockingLockShared);
        matches!(probe, Err(Errno::WOULDBLOCK))
    }
}

impl Drop for JobLock {
    fn drop(&mut self) {
        // Before the lock is given back; a file that stays is no lock, only litter.
        let _ = fs::unlinkat(self.root.directory(), &self.name, AtFlags::empty());
    }
}

/// Fails when a living job other than `job` has a partial file in the directory for a name that
/// `job` has one for, too. Both jobs make their partial files first and look then, so at least
/// one of them sees the other.
pub(super) fn refuse_rivals(
    root: &Root,
    path: &RootPath,
    directory: impl AsFd,
    job: &JobUid,
) -> Result<(), FileError> {
    let failed = |cause| FileError::writing(root.place(path), "getdents", cause, 0);
    let mut listing = Dir::read_from(&directory).map_err(failed)?;
    while let Some(found) = listing.read() {
        let found = found.map_err(failed)?;
        let Ok(name) = found.file_name().to_str() else {
            continue;
        };
        let Some(OwnName::Partial { job: other, hex }) = OwnName::parse(name) else {
            continue;
        };
        let ours = format!(".weft-{job}-{hex}");
        if other != *job
            && fs::statat(&directory, &ours, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && JobLock::is_held(root, &other)
        {
            return Err(FileError::DestinationBusy {
                place: root.place(path),
                job: other,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::root::Access;
    use super::*;

    #[test]
    fn own_names_read_back_and_users_names_stay_theirs() {
        let job: JobUid = "3f0c8d3e-1111-4a5b-9c9d-0123456789ab".parse().unwrap();
        let partial = partial_name(&job, "model.safetensors");
        assert!(
            matches!(OwnName::parse(&partial), Some(OwnName::Partial { job: j, .. }) if j == job)
        );
        assert_eq!(
            OwnName::parse(&lock_name(&job)),
            Some(OwnName::Lock { job: job.clone() })
        );
        assert!(partial_name(&job, &"x".repeat(255)).len() <= 255);
        assert_eq!(OwnName::parse(COPIES), Some(OwnName::Copies));
        for name in [
            ".weft-notes",
            ".weft-a-b",
            "weft-a.lock",
            ".weft-.lock",
            ".weft--",
            ".weft-copies2",
            "a",
        ] {
            assert!(!is_reserved(name), "{name}");
        }
        for text in ["", "a/b", "a.b", "ü", &"x".repeat(65)] {
            assert_eq!(text.parse::<JobUid>().unwrap_err().reason(), "BadJobUid");
        }
    }

    #[test]
    fn a_job_is_locked_once_and_free_again_when_its_holder_goes() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let job: JobUid = "a".parse().unwrap();
        assert!(!JobLock::is_held(&root, &job));
        let lock = JobLock::take(&root, &job).unwrap();
        assert!(JobLock::is_held(&root, &job));
        assert_eq!(
            JobLock::take(&root, &job).unwrap_err().reason(),
            "DestinationBusy"
        );
        let _another = JobLock::take(&root, &"b".parse().unwrap()).unwrap();
        drop(lock);
        assert!(!JobLock::is_held(&root, &job));
        JobLock::take(&root, &job).unwrap();
    }
}
