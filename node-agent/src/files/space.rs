//! Limits on a root's disk, and the bytes of the transfers under way.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use walkdir::WalkDir;

use super::error::{FileError, errno};
use super::names::is_reserved;
use super::root::Root;

/// What a file, link or directory takes at least, and in multiples: a block of most file systems. Its inode and
/// its name are not counted.
const BLOCK_BYTES: u64 = 4096;

/// What transfers may take of a root. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootLimits {
    /// Transfers leave so much of the root's file system free: of its bytes, and of its inodes if it is a part.
    pub min_free: MinFree,
    /// Bytes that the directory, the copies and the transfers of one namespace may have in the root.
    pub bytes_per_namespace: Option<u64>,
}

/// Space that stays free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinFree {
    /// So many bytes.
    Bytes(u64),
    /// A part of the file system.
    Percent(u8),
}

impl Default for MinFree {
    fn default() -> Self {
        MinFree::Bytes(0)
    }
}

impl MinFree {
    /// In bytes, of a file system of this size.
    pub(super) fn bytes_of(self, size: u64) -> u64 {
        match self {
            MinFree::Bytes(bytes) => bytes,
            MinFree::Percent(percent) => size / 100 * u64::from(percent),
        }
    }
}

/// Bytes of disk that a file with so many bytes of data takes.
pub(super) fn disk_bytes(data_bytes: u64) -> u64 {
    data_bytes.max(1).saturating_add(BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES
}

/// Bytes of disk that everything in the directory of a namespace takes, without the partial files of transfers.
pub(super) fn directory_bytes(root: &Root, namespace: &str) -> Result<u64, FileError> {
    let directory = format!("/proc/self/fd/{}/{namespace}", root.directory().as_raw_fd());
    let is_counted = |name: &std::ffi::OsStr| !name.to_str().is_some_and(is_reserved);
    let mut bytes = 0u64;
    let entries = WalkDir::new(directory).min_depth(1).into_iter();
    for entry in entries.filter_entry(|entry| is_counted(entry.file_name())) {
        match entry.and_then(|entry| entry.metadata()) {
            // The unit of st_blocks is 512 bytes (stat(2)).
            Ok(found) => bytes = bytes.saturating_add(disk_bytes(found.blocks() * 512)),
            Err(error) => match error.io_error() {
                // No directory yet, or removed meanwhile.
                Some(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Some(cause) => {
                    return Err(FileError::reading(
                        root.own_location(namespace),
                        errno(cause),
                    ));
                }
                // A loop of links, which are not followed.
                None => {}
            },
        }
    }
    Ok(bytes)
}

/// Bytes by namespace that transfers under way have reserved in a root. Owned by the root; locked from a check
/// until the space is reserved.
pub(super) type Space = BTreeMap<String, u64>;
