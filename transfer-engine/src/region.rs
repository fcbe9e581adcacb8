//! Registered memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use weft_engine::{Access, Region};

use crate::address::MrDescriptor;
use crate::error::TransferError;
use crate::lock::lock;
use crate::shared::Shared;

#[derive(Debug)]
struct Registered {
    region: Arc<Region>,
    descriptor: MrDescriptor,
    is_open: AtomicBool,
    /// Held while the engines close it: who closes it a second time waits.
    closing: Mutex<()>,
    shared: Weak<Shared>,
}

/// Registered memory. Clones share it; the last one that is dropped deregisters it. The engine keeps the bytes that it
/// sends until they are sent.
#[derive(Debug, Clone)]
pub struct MemoryRegion(Arc<Registered>);

impl MemoryRegion {
    pub(crate) fn new(region: Arc<Region>, descriptor: MrDescriptor, shared: Weak<Shared>) -> Self {
        Self(Arc::new(Registered {
            region,
            descriptor,
            is_open: AtomicBool::new(true),
            closing: Mutex::default(),
            shared,
        }))
    }

    /// Its name for peers.
    pub fn descriptor(&self) -> &MrDescriptor {
        &self.0.descriptor
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.0.descriptor.bytes
    }

    /// Where its bytes lie in this process, for a program in another language; `None` for memory of a device. The address is
    /// good while a clone of this exists.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        self.0.region.as_ptr()
    }

    /// Copies bytes out of it, or fails with [`TransferError::OutOfBounds`]. A copy may have parts of what peers write
    /// meanwhile.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), TransferError> {
        TransferError::check_range("source", self.bytes(), offset, out.len() as u64)?;
        let read = self.0.region.read(offset, out);
        read.map_err(|_| TransferError::NotRegistered { field: "source" })
    }

    /// Copies bytes into it, or fails with [`TransferError::OutOfBounds`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let field = "destination";
        TransferError::check_range(field, self.bytes(), offset, bytes.len() as u64)?;
        let written = self.0.region.write(offset, bytes);
        written.map_err(|_| TransferError::NotRegistered { field })
    }

    /// Closes it to peers and to later operations. No byte of a peer lands after this call, and the peers' operations on it
    /// fail.
    pub fn deregister(&self) {
        self.0.deregister();
    }

    /// Refuses a use by `shared` of `bytes` bytes at `offset`.
    pub(crate) fn check(
        &self,
        field: &'static str,
        shared: &Shared,
        offset: u64,
        bytes: u64,
    ) -> Result<&Arc<Region>, TransferError> {
        let is_here = std::ptr::eq(self.0.shared.as_ptr(), shared);
        if !is_here || !self.0.is_open.load(Ordering::Acquire) {
            return Err(TransferError::NotRegistered { field });
        }
        TransferError::check_range(field, self.bytes(), offset, bytes)?;
        Ok(&self.0.region)
    }
}

impl Registered {
    fn deregister(&self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        // A forked process has no worker that could answer.
        if shared.check_process().is_err() {
            return;
        }
        let _closing = lock(&self.closing);
        if self.is_open.swap(false, Ordering::AcqRel) {
            for engine in &shared.engines {
                engine.engine.deregister(self.descriptor.key);
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl MrDescriptor {
    /// Refuses what the peer would refuse.
    pub(crate) fn check(
        &self,
        field: &'static str,
        needs: Access,
        offset: u64,
        bytes: u64,
    ) -> Result<(), TransferError> {
        if !self.access.allows(needs) {
            return Err(TransferError::AccessDenied {
                field,
                has: self.access,
                needs,
            });
        }
        TransferError::check_range(field, self.bytes, offset, bytes)
    }
}
