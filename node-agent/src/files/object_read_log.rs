//! `ObjectReadLog`: what was read from a store for a job, block by block.
//!
//! A source that is a node tells the digest of each block, so that a destination knows which of its
//! blocks are right; a store does not. So the agent that reads a store writes down the digest of each block
//! that it has written, and the version of the object that it is of. After a restart, a
//! block counts if its bytes on disk, hashed again, match the digest in this log. A block that a crash has torn
//! matches no digest and is read again.
//!
//! The log has a partial file's name, beside the job's lock, and is removed with the partial files.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write as _};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;

use super::digest::BlockDigest;
use super::error::{FileError, Location, errno};
use super::names::{self, JobUid};
use super::root::Root;

/// No file is called so, and no partial file of one has this name's hash.
const NAME: &str = "/read";
/// Which version, which block, what digest.
const ENTRY_BYTES: usize = 16 + 4 + 32;

/// Names the version of an object.
pub type VersionId = [u8; 16];

/// Bytes that are read at a time: 1024 entries.
const READ_BYTES: usize = 1024 * ENTRY_BYTES;
/// How often each block of a job may have been read again, after crashes or changes in the store. A longer log is
/// started again, so it cannot grow without bound.
const READS_MAX: u64 = 4;

/// The log of a job in a root, open for appending. Its content is not held in memory: it is as long as the job is
/// large.
#[derive(Debug)]
pub struct ObjectReadLog {
    file: File,
    location: Location,
}

impl ObjectReadLog {
    /// Of a job of so many blocks.
    pub(super) fn open(root: &Arc<Root>, job: &JobUid, blocks: u64) -> Result<Self, FileError> {
        let name = names::partial_name(job, NAME);
        let location = root.own_location(&name);
        let failed = |operation, cause| FileError::writing(location.clone(), operation, cause, 0);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::APPEND;
        let file = names::open_own(root.directory(), &name, flags)
            .map_err(|cause| failed("open", cause))?;
        let length = fs::fstat(&file).map_err(|cause| failed("fstat", cause))?;
        let length = u64::try_from(length.st_size).unwrap_or_default();
        let entry = ENTRY_BYTES as u64;
        let kept = match length / entry {
            entries if entries > blocks.saturating_mul(READS_MAX) => 0,
            // A half-written entry is cut off.
            entries => entries * entry,
        };
        if kept < length {
            fs::ftruncate(&file, kept).map_err(|cause| failed("ftruncate", cause))?;
        }
        Ok(ObjectReadLog { file, location })
    }

    /// Calls `visit` with each block that was read and its digest. It returns whether the store still has that version.
    /// If no entry is current, the log is emptied.
    pub fn read(
        &mut self,
        mut visit: impl FnMut(&VersionId, u32, BlockDigest) -> bool,
    ) -> Result<(), FileError> {
        let mut is_any_current = false;
        let failed = |error: &io::Error| self.failed("read", errno(error), 0);
        let mut entries = BufReader::with_capacity(READ_BYTES, &self.file);
        entries.rewind().map_err(|error| failed(&error))?;
        loop {
            let (mut id, mut block, mut digest) = ([0; 16], [0; 4], [0; 32]);
            let read = entries
                .read_exact(&mut id)
                .and_then(|()| entries.read_exact(&mut block))
                .and_then(|()| entries.read_exact(&mut digest));
            match read {
                Ok(()) => {
                    is_any_current |= visit(&id, u32::from_le_bytes(block), BlockDigest(digest));
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(failed(&error)),
            }
        }
        if !is_any_current {
            fs::ftruncate(&self.file, 0).map_err(|cause| self.failed("ftruncate", cause, 0))?;
        }
        Ok(())
    }

    fn failed(&self, operation: &'static str, cause: Errno, bytes: u64) -> FileError {
        FileError::writing(self.location.clone(), operation, cause, bytes)
    }

    /// Writes down a block that is written.
    pub fn add(
        &mut self,
        version: &VersionId,
        block: u32,
        digest: &BlockDigest,
    ) -> Result<(), FileError> {
        let mut entry = [0; ENTRY_BYTES];
        entry[..16].copy_from_slice(version);
        entry[16..20].copy_from_slice(&block.to_le_bytes());
        entry[20..].copy_from_slice(&digest.0);
        let written = self.file.write_all(&entry);
        written.map_err(|error| self.failed("write", errno(&error), ENTRY_BYTES as u64))
    }

    /// Removes a job's log, if there is one.
    pub(super) fn remove(root: &Root, job: &JobUid) -> Result<(), FileError> {
        let name = names::partial_name(job, NAME);
        match fs::unlinkat(root.directory(), &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => {
                let location = root.own_location(&name);
                Err(FileError::writing(location, "unlink", cause, 0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::root::Access;
    use super::*;

    /// All that a record says; `version` is the one that still is.
    fn all(record: &mut ObjectReadLog, version: u8) -> Vec<(u8, u32, u8)> {
        let mut all = Vec::new();
        let tell = |id: &VersionId, block, digest: BlockDigest| {
            all.push((id[0], block, digest.0[31]));
            id[0] == version
        };
        record.read(tell).unwrap();
        all
    }

    #[test]
    fn what_was_written_down_is_read_again_and_half_an_entry_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let job: JobUid = "job".parse().unwrap();
        let mut record = ObjectReadLog::open(&root, &job, 2).unwrap();
        record.add(&[1; 16], 0, &BlockDigest([7; 32])).unwrap();
        record.add(&[1; 16], 9, &BlockDigest([8; 32])).unwrap();
        record.file.write_all(&[5; 20]).unwrap();
        let mut again = ObjectReadLog::open(&root, &job, 2).unwrap();
        assert_eq!(all(&mut again, 1), [(1, 0, 7), (1, 9, 8)]);
        again.add(&[2; 16], 1, &BlockDigest([9; 32])).unwrap();
        let mut last = ObjectReadLog::open(&root, &job, 2).unwrap();
        assert_eq!(all(&mut last, 2), [(1, 0, 7), (1, 9, 8), (2, 1, 9)]);
        ObjectReadLog::remove(&root, &job).unwrap();
        ObjectReadLog::remove(&root, &job).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_log_of_other_versions_or_one_that_is_too_long_is_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let job: JobUid = "job".parse().unwrap();
        let blocks = (READ_BYTES / ENTRY_BYTES) as u32;
        let filled = || {
            let mut log = ObjectReadLog::open(&root, &job, blocks.into()).unwrap();
            for block in 0..=blocks {
                log.add(&[1; 16], block, &BlockDigest([7; 32])).unwrap();
            }
            log
        };
        let more = blocks as usize + 1;
        assert_eq!(all(&mut filled(), 2).len(), more);
        assert_eq!(all(&mut filled(), 1).len(), more);
        let reopened = |blocks| all(&mut ObjectReadLog::open(&root, &job, blocks).unwrap(), 1);
        assert_eq!(reopened(blocks.into()).len(), more);
        assert!(reopened(1).is_empty());
        assert!(reopened(blocks.into()).is_empty());
    }
}
