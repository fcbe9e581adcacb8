//! `ReadRecord`: what was read from a store for a job, block by block.
//!
//! A source that is a node tells the digest of each block, so that a destination knows which of its
//! blocks are right; a store does not. So whoever reads a store writes down the digest of each block
//! that it has written, and the version of the object that it is of. After a restart a block counts
//! that is on disk with the digest that is written here: the record is not believed, the bytes are
//! hashed again. What was torn by a crash matches nothing and is read again.
//!
//! The file has the name of a partial file of no file, beside the job's lock: it goes with them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;

use super::claim::{self, JobUid, PRIVATE};
use super::digest::BlockDigest;
use super::error::{FileError, Place, errno};
use super::root::Root;

/// No file is called so, and no partial file of one has this name's hash.
const NAME: &str = "/read";
/// Which version, which block, what digest.
const ENTRY_BYTES: usize = 16 + 4 + 32;

/// Names the version of an object.
pub type VersionId = [u8; 16];

/// The record of a job in a root, open for more.
#[derive(Debug)]
pub struct ReadRecord {
    file: File,
    place: Place,
    known: HashMap<(VersionId, u32), BlockDigest>,
}

impl ReadRecord {
    /// Reads what is there.
    pub(super) fn open(root: &Arc<Root>, job: &JobUid) -> Result<Self, FileError> {
        let name = claim::partial_name(job, NAME);
        let place = Place {
            root: root.name().into(),
            path: name.clone(),
        };
        let failed = |operation, cause| FileError::writing(place.clone(), operation, cause, 0);
        let flags = OFlags::CREATE
            | OFlags::RDWR
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let file = fs::openat(root.directory(), &name, flags, PRIVATE)
            .map_err(|cause| failed("open", cause))?;
        let mut file = File::from(file);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|error| failed("read", errno(&error)))?;
        let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            // Half an entry: the next one begins where it began.
            let whole = (bytes.len() - rest.len()) as u64;
            fs::ftruncate(&file, whole).map_err(|cause| failed("ftruncate", cause))?;
        }
        let known = entries.iter().map(|entry| {
            let part = |from: usize, to: usize| entry[from..to].iter().copied();
            let (mut id, mut block, mut digest) = ([0; 16], [0; 4], [0; 32]);
            id.iter_mut()
                .zip(part(0, 16))
                .for_each(|(to, from)| *to = from);
            block
                .iter_mut()
                .zip(part(16, 20))
                .for_each(|(to, from)| *to = from);
            digest
                .iter_mut()
                .zip(part(20, 52))
                .for_each(|(to, from)| *to = from);
            ((id, u32::from_le_bytes(block)), BlockDigest(digest))
        });
        Ok(ReadRecord {
            known: known.collect(),
            file,
            place,
        })
    }

    /// The digest that a block had when it was read.
    pub fn digest(&self, version: &VersionId, block: u32) -> Option<BlockDigest> {
        self.known.get(&(*version, block)).copied()
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
        self.file.write_all(&entry).map_err(|error| {
            let (place, cause) = (self.place.clone(), errno(&error));
            FileError::writing(place, "write", cause, ENTRY_BYTES as u64)
        })
    }

    /// Removes a job's record, if there is one.
    pub(super) fn remove(root: &Root, job: &JobUid) -> Result<(), FileError> {
        let name = claim::partial_name(job, NAME);
        match fs::unlinkat(root.directory(), &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => {
                let place = Place {
                    root: root.name().into(),
                    path: name,
                };
                Err(FileError::writing(place, "unlink", cause, 0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::root::Access;
    use super::*;

    #[test]
    fn what_was_written_down_is_read_again_and_half_an_entry_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let job: JobUid = "job".parse().unwrap();
        let mut record = ReadRecord::open(&root, &job).unwrap();
        record.add(&[1; 16], 0, &BlockDigest([7; 32])).unwrap();
        record.add(&[1; 16], 9, &BlockDigest([8; 32])).unwrap();
        record.file.write_all(&[5; 20]).unwrap();
        let mut again = ReadRecord::open(&root, &job).unwrap();
        assert_eq!(again.digest(&[1; 16], 9), Some(BlockDigest([8; 32])));
        // Of another version, or another block.
        assert_eq!(again.digest(&[2; 16], 9), None);
        assert_eq!(again.digest(&[1; 16], 1), None);
        again.add(&[2; 16], 1, &BlockDigest([9; 32])).unwrap();
        let last = ReadRecord::open(&root, &job).unwrap();
        assert_eq!(last.digest(&[2; 16], 1), Some(BlockDigest([9; 32])));
        assert_eq!(last.known.len(), 3);
        ReadRecord::remove(&root, &job).unwrap();
        ReadRecord::remove(&root, &job).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
