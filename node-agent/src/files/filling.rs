//! Taking space on tmpfs while the first blocks are on their way.
//!
//! On a disk `fallocate(2)` takes about a millisecond per GiB and is done before a destination
//! is prepared. On tmpfs it makes every page: 250 ms per GiB, which the writes that follow then
//! save. There, large files are filled by a thread of their own, ahead of the transfer, after the
//! free space was checked; should somebody else take that space meanwhile, writing says DiskFull.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rustix::fs::{self, FallocateFlags};
use rustix::io::Errno;

use super::error::{FileError, Place, errno};

/// Smaller files are not worth a thread: 16 ms on tmpfs.
const LARGE_BYTES: u64 = 64 << 20;

/// Bytes taken at once: about 1 ms, during which the file cannot be written.
const STEP_BYTES: u64 = 4 << 20;

/// `TMPFS_MAGIC` of statfs(2).
const TMPFS: u64 = 0x0102_1994;

/// A partial file whose space is still to be taken.
#[derive(Debug)]
pub(super) struct Unfilled {
    pub(super) file: File,
    pub(super) bytes: u64,
    /// What to say when there is none.
    pub(super) full: FileError,
}

/// Whether taking space for `file` is so slow that it is better done beside the transfer.
pub(super) fn is_slow(file: &impl std::os::fd::AsFd, bytes: u64) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between architectures"
    )]
    let is_tmpfs = || fs::fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS);
    bytes >= LARGE_BYTES && is_tmpfs()
}

/// Why space could not be taken, once that is known.
pub(super) type Shortage = Arc<OnceLock<FileError>>;

/// The thread that takes the space; stopped when dropped.
#[derive(Debug)]
pub(super) struct Filling {
    shortage: Shortage,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filling {
    /// Takes the space of these files, one after the other. Nothing to take: no thread. `place` is
    /// what they are for.
    pub(super) fn start(
        work: Vec<Unfilled>,
        place: impl FnOnce() -> Place,
    ) -> Result<Self, FileError> {
        let mut filling = Filling {
            shortage: Shortage::default(),
            stop: Arc::new(AtomicBool::new(false)),
            thread: None,
        };
        if work.is_empty() {
            return Ok(filling);
        }
        let (shortage, stop) = (filling.shortage.clone(), filling.stop.clone());
        let made = std::thread::Builder::new()
            .name("weft-filling".to_owned())
            .spawn(move || {
                for unfilled in work {
                    if !fill(&unfilled, &stop) {
                        shortage.get_or_init(|| unfilled.full);
                        return;
                    }
                }
            });
        let failed = |error: std::io::Error| FileError::NoThread {
            place: place(),
            cause: errno(&error),
        };
        filling.thread = Some(made.map_err(failed)?);
        Ok(filling)
    }

    /// Where a shortage will be told.
    pub(super) fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    #[cfg(test)]
    pub(super) fn wait(mut self) -> Option<FileError> {
        self.thread.take().unwrap().join().unwrap();
        self.shortage.get().cloned()
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there took no space; the writes find out by themselves.
            let _ = thread.join();
        }
    }
}

/// False when there is no space.
fn fill(unfilled: &Unfilled, stop: &AtomicBool) -> bool {
    let mut offset = 0;
    while offset < unfilled.bytes && !stop.load(Ordering::Relaxed) {
        let step = STEP_BYTES.min(unfilled.bytes - offset);
        match fs::fallocate(&unfilled.file, FallocateFlags::KEEP_SIZE, offset, step) {
            Ok(()) => offset += step,
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC) => return false,
            // Not to be had ahead of the writes, then.
            Err(_) => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::tests::alone::{Alone, alone, mount, this_test};
    use super::*;

    #[test]
    fn a_large_file_on_tmpfs_is_filled_beside_the_transfer_and_a_shortage_is_told() {
        let name =
            this_test!(a_large_file_on_tmpfs_is_filled_beside_the_transfer_and_a_shortage_is_told);
        alone(name, Alone::Mounts, || {
            let directory = tempfile::tempdir().unwrap();
            mount("tmpfs", "size=100m", directory.path());
            let start = |name: &str| {
                let file = File::create_new(directory.path().join(name)).unwrap();
                let bytes = 80 << 20;
                assert!(is_slow(&file, bytes) && !is_slow(&file, 1 << 20));
                file.set_len(bytes).unwrap();
                let place = Place {
                    root: "r".into(),
                    path: name.into(),
                };
                let full = FileError::DiskFull {
                    place,
                    needed: bytes,
                    available: 0,
                };
                let of = || unreachable!("there are threads");
                Filling::start(vec![Unfilled { file, bytes, full }], of).unwrap()
            };
            assert_eq!(start("a").wait(), None);
            let blocks = std::fs::metadata(directory.path().join("a"))
                .unwrap()
                .blocks();
            assert_eq!(blocks * 512, 80 << 20);
            assert_eq!(start("b").wait().unwrap().reason(), "DiskFull");
            drop(start("c"));
        });
    }
}
