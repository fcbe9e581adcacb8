//! How much memory the datagrams take that the queue pairs of a device keep until receives are posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all queue pairs of a device may keep: as much as sixteen that are full. A device may have 16,384, and any device of
/// the fabric can send to them, so without this they would keep 64 GiB.
const ALL_KEPT_BYTES_MAX: usize = 64 << 20;

/// The bytes that are kept.
#[derive(Debug, Default)]
pub(crate) struct KeptBytes(Arc<AtomicUsize>);

/// The bytes of one datagram, which are kept until this is dropped.
pub(crate) struct KeptShare {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl KeptBytes {
    /// Counts so many more, if there is room. Only the device's own thread does that.
    pub(crate) fn take(&self, bytes: usize) -> Option<KeptShare> {
        let all = self.0.load(Ordering::Relaxed) + bytes;
        if all > ALL_KEPT_BYTES_MAX {
            return None;
        }
        self.0.store(all, Ordering::Relaxed);
        let all = Arc::clone(&self.0);
        Some(KeptShare { bytes, all })
    }
}

impl Drop for KeptShare {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
