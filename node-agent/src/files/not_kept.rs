//! What copies of a source do not have, for the job's status. [`Manifest::scan`](super::Manifest::scan) notes it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{FileType, Stat, llistxattr};
use rustix::process::{getegid, geteuid};

/// Set-uid, set-gid and sticky.
const SPECIAL_MODE_BITS: u32 = 0o7000;
/// The security label that the system gives to every file of its own accord.
const SYSTEM_LABEL: &[u8] = b"security.selinux";
/// The names of a file's attributes rarely take more; a file with more has one to note.
const NAME_BYTES: usize = 1024;

/// Something of files or directories that copies do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotKept {
    /// The owner or the group: copies are the agent's.
    Owner,
    /// The set-uid, set-gid or sticky bit.
    SpecialModeBits,
    /// Extended attributes, among them ACLs and file capabilities.
    ExtendedAttributes,
    /// Several names of one file: copies are files of their own.
    HardLinks,
}

impl NotKept {
    /// As a job's status says it.
    pub fn name(self) -> &'static str {
        match self {
            NotKept::Owner => "Owner",
            NotKept::SpecialModeBits => "SpecialModeBits",
            NotKept::ExtendedAttributes => "ExtendedAttributes",
            NotKept::HardLinks => "HardLinks",
        }
    }
}

/// Adds what copies of a file or directory, the entry `name` of `parent`, will not have.
pub(super) fn note(found: &mut BTreeSet<NotKept>, parent: &OwnedFd, name: &str, stat: &Stat) {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if (stat.st_uid, stat.st_gid) != (geteuid().as_raw(), getegid().as_raw()) {
        found.insert(NotKept::Owner);
    }
    if stat.st_mode & SPECIAL_MODE_BITS != 0 {
        found.insert(NotKept::SpecialModeBits);
    }
    if is_file && stat.st_nlink > 1 {
        found.insert(NotKept::HardLinks);
    }
    // A system call for each file, until one has some.
    if !found.contains(&NotKept::ExtendedAttributes) && has_attributes(parent, name) {
        found.insert(NotKept::ExtendedAttributes);
    }
}

/// Whether an entry has extended attributes; one whose attributes cannot be listed counts as without.
fn has_attributes(parent: &OwnedFd, name: &str) -> bool {
    let path = format!("/proc/self/fd/{}/{name}", parent.as_raw_fd());
    let mut names = [0; NAME_BYTES];
    match llistxattr(path, &mut names[..]) {
        Ok(bytes) => names[..bytes]
            .split(|byte| *byte == 0)
            .any(|name| !name.is_empty() && name != SYSTEM_LABEL),
        Err(cause) => cause == rustix::io::Errno::RANGE,
    }
}
