//! Limits on a root's disk, and the bytes of the transfers under way.

use std::collections::BTreeMap;

/// What a file, link or directory takes at least, and in multiples: a block of most file systems. Its inode and
/// its name are not counted.
const BLOCK_BYTES: u64 = 4096;

/// What transfers may take of a root. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootLimits {
    /// Transfers leave so much of the root's file system free of its bytes; a percentage also applies to its inodes.
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

/// Bytes by namespace that transfers under way have reserved in a root. Owned by the root; locked from a check
/// until the space is reserved.
pub(super) type Space = BTreeMap<String, u64>;
