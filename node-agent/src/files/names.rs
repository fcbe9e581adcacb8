//! The names that are Weft's own in a root, and which job they belong to.
//!
//! A partial file `.weft-UID-HEX` is in the directory of the file that it becomes (HEX is half a BLAKE3 of
//! that file's name). A new directory is assembled in a directory of the same form. `.weft-UID.lock` in the
//! root's directory is the job's lock. `.weft-copies` has the records of copies.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::str::FromStr;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::error::FileError;

/// Hexadecimal digits of the final name's hash in a partial file's name.
pub(super) const HEX_DIGITS: usize = 32;

/// The directory of a root with the records of its copies.
pub(super) const COPIES: &str = ".weft-copies";

/// The mode of partial and lock files: nobody but the agent reads them.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Opens or makes a file of Weft's own. No link that has taken its place is followed, and no pipe waited for.
pub(super) fn open_own(directory: impl AsFd, name: &str, flags: OFlags) -> Result<File, Errno> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        fs::openat(&directory, name, flags, PRIVATE).map(File::from)
    };
    match open(flags) {
        // An earlier attempt gave a whole partial file its final mode, which may be read-only; publishing gives it that again.
        Err(Errno::ACCESS) if flags.contains(OFlags::RDWR) => {
            // Where there is none, the directory is closed.
            let file = open(OFlags::RDONLY).map_err(|_| Errno::ACCESS)?;
            fs::fchmod(&file, PRIVATE)?;
            open(flags)
        }
        opened => opened,
    }
}

/// The name of a job, unique in time: a Kubernetes UID, or any 1…64 letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobUid(String);

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
                text: text.to_owned(),
            })
        }
    }
}

/// A name that belongs to Weft.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnName {
    Partial { job: JobUid },
    Lock { job: JobUid },
    Copies,
}

impl OwnName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        if name == COPIES {
            return Some(OwnName::Copies);
        }
        let rest = name.strip_prefix(".weft-")?;
        if let Some(job) = rest.strip_suffix(".lock") {
            let job = job.parse().ok()?;
            return Some(OwnName::Lock { job });
        }
        let (job, hex) = rest.rsplit_once('-')?;
        let is_hex =
            hex.len() == HEX_DIGITS && hex.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let job = job.parse().ok()?;
        is_hex.then_some(OwnName::Partial { job })
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

pub(super) fn lock_name(job: &JobUid) -> String {
    format!(".weft-{job}.lock")
}

#[cfg(test)]
mod tests {
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
}
