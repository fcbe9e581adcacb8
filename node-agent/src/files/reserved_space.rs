//! `ReservedSpace`: the space of one transfer, checked against the root's limits before its first byte; that of a
//! file that replaces one of the same size, before its first byte that differs.
//!
//! Transfers of a root reserve one after the other: a check counts what the check before it has allowed.
//! Where space is not allocated at once (large files on tmpfs, file systems without `fallocate(2)`), two
//! transfers that begin together can go below `min_free`.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use rustix::fs;
use walkdir::WalkDir;

use super::copies;
use super::error::{FileError, Location, errno};
use super::names::is_reserved;
use super::root::Root;
use super::space::{MinFree, Space, disk_bytes};

/// What one transfer has taken of its namespace's bytes. Given back when its copy is recorded, which is
/// counted instead, or when it is dropped.
#[derive(Debug)]
pub(super) struct ReservedSpace {
    root: Arc<Root>,
    /// Nothing: no namespace's limit holds for it.
    namespace: Option<String>,
    /// Changed while the root's [`Space`] is locked.
    bytes: AtomicU64,
}

/// What a transfer is about to take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Bytes of its new files, those included that earlier attempts have taken.
    pub(super) bytes: u64,
    /// Bytes to be taken now.
    pub(super) new_bytes: u64,
    /// Files to be made.
    pub(super) inodes: u64,
}

impl Demand {
    pub(super) fn add(&mut self, bytes: u64, new_bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.new_bytes = self.new_bytes.saturating_add(new_bytes);
    }
}

impl ReservedSpace {
    /// Nothing yet.
    pub(super) fn new(root: &Arc<Root>, namespace: Option<String>) -> Self {
        ReservedSpace {
            root: root.clone(),
            namespace,
            bytes: AtomicU64::new(0),
        }
    }

    /// Checks a demand for `location`, in whole, so that a transfer that cannot have its space takes none.
    /// The caller takes the space while it holds the answer.
    pub(super) fn reserve(
        &self,
        location: &Location,
        directory: &OwnedFd,
        demand: Demand,
    ) -> Result<MutexGuard<'_, Space>, FileError> {
        let limits = self.root.limits();
        let mut space = self.root.space();
        self.check_disk(location, directory, demand, limits.min_free)?;
        if let Some(namespace) = &self.namespace {
            if let Some(limit) = limits.bytes_per_namespace {
                let taken = space.get(namespace).copied().unwrap_or_default();
                self.check_namespace(location, namespace, demand.bytes, taken, limit)?;
            }
            *space.entry(namespace.clone()).or_default() += demand.bytes;
            self.bytes.fetch_add(demand.bytes, Ordering::Relaxed);
        }
        Ok(space)
    }

    /// Its files are complete, or gone.
    pub(super) fn release(&self) {
        let Some(namespace) = &self.namespace else {
            return;
        };
        // Where nothing is left to give back, nobody waits for the lock.
        if self.bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut space = self.root.space();
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if let Some(taken) = space.get_mut(namespace) {
            *taken = taken.saturating_sub(bytes);
            if *taken == 0 {
                space.remove(namespace);
            }
        }
    }

    fn check_namespace(
        &self,
        location: &Location,
        namespace: &str,
        needed: u64,
        taken: u64,
        limit: u64,
    ) -> Result<(), FileError> {
        if needed == 0 {
            return Ok(());
        }
        let directory = directory_bytes(&self.root, namespace)?;
        let found = copies::bytes_outside(&self.root, namespace)?.saturating_add(directory);
        if needed.saturating_add(taken).saturating_add(found) <= limit {
            return Ok(());
        }
        Err(FileError::NamespaceQuota {
            location: location.clone(),
            namespace: namespace.to_owned(),
            needed,
            found,
            taken,
            limit,
        })
    }

    fn check_disk(
        &self,
        location: &Location,
        directory: &OwnedFd,
        demand: Demand,
        min_free: MinFree,
    ) -> Result<(), FileError> {
        let (location, needed) = (location.clone(), demand.new_bytes);
        let free = match fs::fstatvfs(directory) {
            Ok(free) => free,
            Err(cause) => return Err(FileError::writing(location, "fstatvfs", cause, needed)),
        };
        // A total of 0 is how a file system says that it does not count.
        if free.f_blocks > 0 && needed > 0 {
            let available = free.f_bavail.saturating_mul(free.f_frsize);
            if needed > available {
                return Err(FileError::DiskFull {
                    location,
                    needed,
                    available,
                });
            }
            let min_free = min_free.bytes_of(free.f_blocks.saturating_mul(free.f_frsize));
            if available - needed < min_free {
                return Err(FileError::RootReserve {
                    location,
                    needed,
                    available,
                    min_free,
                });
            }
        }
        let kept_inodes = match min_free {
            MinFree::Percent(_) => min_free.bytes_of(free.f_files),
            MinFree::Bytes(_) => 0,
        };
        let available = free.f_favail.saturating_sub(kept_inodes);
        if free.f_files > 0 && demand.inodes > available {
            return Err(FileError::InodesExhausted {
                location,
                needed: demand.inodes,
                available,
            });
        }
        Ok(())
    }
}

/// Bytes of disk that everything in the directory of a namespace takes, without the partial files of transfers.
fn directory_bytes(root: &Root, namespace: &str) -> Result<u64, FileError> {
    let directory = format!("/proc/self/fd/{}/{namespace}", root.directory().as_raw_fd());
    let is_counted = |name: &OsStr| !name.to_str().is_some_and(is_reserved);
    let mut bytes = 0u64;
    let entries = WalkDir::new(directory).min_depth(1).into_iter();
    for entry in entries.filter_entry(|entry| is_counted(entry.file_name())) {
        match entry.and_then(|entry| entry.metadata()) {
            // The unit of st_blocks is 512 bytes (stat(2)).
            Ok(found) => bytes = bytes.saturating_add(disk_bytes(found.blocks() * 512)),
            Err(error) => match error.io_error() {
                // No directory yet, or removed meanwhile.
                Some(cause) if cause.kind() == ErrorKind::NotFound => {}
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

impl Drop for ReservedSpace {
    fn drop(&mut self) {
        self.release();
    }
}
