//! Limits on a root's disk, and the bytes of the transfers under way.

use std::collections::BTreeMap;

/// What transfers may take of a root. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootLimits {
    /// Transfers leave so much of the root's file system free.
    pub min_free: MinFree,
    /// Bytes that the copies and transfers of one namespace may have in the root.
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

/// Bytes by namespace that transfers under way have reserved in a root. Owned by the root; locked from a check
/// until the space is reserved.
pub(super) type Space = BTreeMap<String, u64>;
