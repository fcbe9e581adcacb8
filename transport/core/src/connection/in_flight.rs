//! A connection's bytes in flight, in all and by path.

use crate::units::PathId;
use serde::{Deserialize, Serialize};

/// Headers included. A path has at most the window of a connection on it, which fits 32 bits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct InFlight {
    total: u64,
    by_path: Vec<u32>,
}

impl InFlight {
    pub(super) fn new(paths: u16) -> InFlight {
        InFlight {
            total: 0,
            by_path: vec![0; paths.into()],
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn by_path(&self) -> &[u32] {
        &self.by_path
    }

    /// Bytes in flight on `path`.
    pub(super) fn on(&self, path: PathId) -> u32 {
        self.by_path.get(usize::from(path.0)).copied().unwrap_or(0)
    }

    /// Heap memory, bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.by_path.capacity() * size_of::<u32>()
    }

    #[inline]
    pub(super) fn add(&mut self, path: PathId, bytes: u32) {
        self.total += u64::from(bytes);
        if let Some(on_path) = self.by_path.get_mut(usize::from(path.0)) {
            *on_path += bytes;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, path: PathId, bytes: u32) {
        self.total -= u64::from(bytes);
        if let Some(on_path) = self.by_path.get_mut(usize::from(path.0)) {
            *on_path -= bytes;
        }
    }
}
