//! Memory that another process has shared already, mapped here as well: bytes get there by plain moves, without the kernel.
//!
//! The file is that process's. It may cut the file off or punch holes into it at any time, and an access to a page that is
//! not there would end this process by SIGBUS, or take memory in this process's name. So the mapping is one that gives no
//! page which the file has not (userfaultfd(2), `UFFD_FEATURE_SIGBUS`), and a signal handler puts a page of zeros in the
//! place of one that is missing until the copy is over, which then has failed. libwayland guards the buffers of its clients
//! in the same way (`wayland-shm.c`).

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use nix::sys::sysinfo::sysinfo;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;
use weft_core::wire::Atomic;

use crate::copy::{copy_in, copy_out};
use crate::map_cache::{BLOCK_BYTES, MapCache, Mapper};
use crate::missing_pages::{MissingPages, guarded};
use crate::word::change;

/// What memfds and files of a tmpfs say of their file system (statfs(2)). Nobody serves their pages, so no access waits for
/// somebody. Those of hugetlbfs are left out: the kernel reserves their pages for who maps them.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Files that are mapped for a device at a time. Each holds two descriptors.
const FILES_MAX: usize = 64;
/// What the windows of a device may take to know their blocks, bytes.
const BITS_BYTES_MAX: u64 = 16 << 20;
/// All files of all devices together take no more of this process's addresses: half of those that there are on x86-64.
const MAPPED_BYTES_MAX: u64 = 1 << 46;

static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Which file it is, of all files of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Of an open file.
    ///
    /// # Errors
    /// fstat(2)'s.
    pub fn of(file: impl std::os::fd::AsFd) -> io::Result<FileId> {
        let stat = fstat(file)?;
        Ok(FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// Why a file was not mapped. Its memory can be reached by the address space of its process.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// Accesses to other file systems may wait: one of FUSE for its server, one of NFS for the network.
    #[error("the file is no memfd, and in no tmpfs")]
    FileSystem,
    /// It is not open for reading and writing.
    #[error("the file is not open for reading and writing")]
    ReadOnly,
    /// The part lies beyond the end of the file.
    #[error("the file ends before the part of it that was named")]
    TooShort,
    /// As much is mapped as may be.
    #[error("as many files are mapped as may be, or as many bytes of them")]
    TooMany,
    /// The kernel refused a call.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> WindowError {
    move |source| WindowError::System {
        call,
        source: source.into(),
    }
}

/// A page is not in the file, or the mapping is of no use any more. What was read or written counts for nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageMissing;

/// The files that are mapped for one device. A program can name a file as long as it likes: the kernel keeps a page of
/// table for each block of it that was ever looked at, so the files may have as many bytes as this machine has memory.
#[derive(Debug)]
pub struct SharedFiles {
    bytes_max: u64,
    files: Vec<(FileId, Weak<SharedFile>)>,
}

impl Default for SharedFiles {
    fn default() -> Self {
        // A machine that does not say how much it has maps nothing.
        let memory = sysinfo().map_or(0, |system| system.ram_total());
        Self {
            bytes_max: memory,
            files: Vec::new(),
        }
    }
}

impl SharedFiles {
    /// Whether this is a file that can be mapped, if there is room for it.
    #[must_use]
    pub fn takes(file: &OwnedFd) -> bool {
        check(file).is_ok()
    }

    /// `bytes` bytes of a file from `start` on. The file may be anything that another process has passed.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn window(&mut self, file: OwnedFd, start: u64, bytes: u64) -> Result<Window, WindowError> {
        check(&file)?;
        let id = FileId::of(&file).map_err(failed("fstat"))?;
        let end = start.checked_add(bytes).ok_or(WindowError::TooShort)?;
        self.files.retain(|(_, file)| file.strong_count() > 0);
        let alive = || {
            self.files
                .iter()
                .filter_map(|(id, file)| Some((*id, file.upgrade()?)))
        };
        // One that has grown since is mapped once more.
        let known = alive().find(|(of, file)| *of == id && end <= file.bytes());
        let bits = alive()
            .map(|(_, file)| file.bits_bytes.load(Ordering::Relaxed))
            .sum();
        let mapped = alive().map(|(_, file)| file.bytes()).sum::<u64>();
        let shared = match known {
            Some((_, known)) => known,
            None if self.files.len() >= FILES_MAX => return Err(WindowError::TooMany),
            None => {
                let shared = SharedFile::new(file, self.bytes_max.saturating_sub(mapped))?;
                self.files.push((id, Arc::downgrade(&shared)));
                shared
            }
        };
        Window::new(shared, start, end, BITS_BYTES_MAX.saturating_sub(bits))
    }
}

/// A file that can be mapped.
fn check(file: &OwnedFd) -> Result<(), WindowError> {
    let file_system = fstatfs(file).map_err(failed("fstatfs"))?.f_type as u64;
    let mode = fstat(file).map_err(failed("fstat"))?.st_mode;
    // Devices lie in a tmpfs, too.
    let is_regular = FileType::from_raw_mode(mode) == FileType::RegularFile;
    if !is_regular || file_system != TMPFS_MAGIC {
        return Err(WindowError::FileSystem);
    }
    let flags = fcntl_getfl(file).map_err(failed("fcntl"))?;
    match flags & OFlags::RWMODE == OFlags::RDWR && !flags.contains(OFlags::PATH) {
        true => Ok(()),
        false => Err(WindowError::ReadOnly),
    }
}

/// A file that another process has mapped as shared memory. All windows into it share one mapping.
#[derive(Debug)]
struct SharedFile {
    /// Not unmapped once it is broken.
    map: ManuallyDrop<MmapRaw>,
    file: File,
    /// What keeps the kernel from making pages.
    missing_pages: MissingPages,
    /// Locked for each access, so that none meets a page of zeros that stands for one that is missing.
    blocks: Mutex<Blocks>,
    /// What its windows take to know their blocks.
    bits_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Blocks {
    cache: MapCache,
    /// A page of zeros could not be taken away again: something else may lie in the mapping now.
    are_broken: bool,
}

/// Blocks of the mapping are mapped by filling this process's page table with the pages that the file has.
struct PageTable<'m>(&'m MmapRaw);

impl PageTable<'_> {
    fn range(&self, block: u64) -> (usize, usize) {
        let start = (block * BLOCK_BYTES) as usize;
        (
            start,
            self.0.len().saturating_sub(start).min(BLOCK_BYTES as usize),
        )
    }
}

impl Mapper for PageTable<'_> {
    fn map(&mut self, block: u64) {
        let (start, length) = self.range(block);
        // It ends early at a page that the file has not: the others are found one by one.
        let _ = self.0.advise_range(Advice::PopulateWrite, start, length);
    }

    fn unmap(&mut self, block: u64) {
        let (start, length) = self.range(block);
        // SAFETY: the mapping is of a file and shared, so its bytes stay in the file.
        let _ = unsafe {
            self.0
                .unchecked_advise_range(UncheckedAdvice::DontNeed, start, length)
        };
    }
}

impl SharedFile {
    /// Maps a file of `most` bytes at most.
    fn new(file: OwnedFd, most: u64) -> Result<Arc<SharedFile>, WindowError> {
        let bytes = fstat(&file).map_err(failed("fstat"))?.st_size as u64;
        match bytes {
            0 => return Err(WindowError::TooShort),
            _ if bytes > most => return Err(WindowError::TooMany),
            _ => {}
        }
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file);
        let map = map.map_err(failed("mmap"))?;
        let missing_pages = MissingPages::new().map_err(failed("userfaultfd"))?;
        let whole = map.len().next_multiple_of(page_size());
        let registered = missing_pages.register(map.as_mut_ptr(), whole);
        registered.map_err(failed("UFFDIO_REGISTER"))?;
        let order = Ordering::Relaxed;
        let counted = MAPPED_BYTES.fetch_update(order, order, |all| {
            let all = all.checked_add(bytes)?;
            (all <= MAPPED_BYTES_MAX).then_some(all)
        });
        counted.map_err(|_| WindowError::TooMany)?;
        Ok(Arc::new(SharedFile {
            map: ManuallyDrop::new(map),
            file: file.into(),
            missing_pages,
            blocks: Mutex::default(),
            bits_bytes: AtomicU64::new(0),
        }))
    }

    /// Bytes of the file when it was mapped.
    fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        // Nothing under this lock panics.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with bytes of the mapping, which lie within it.
    fn access<R>(
        &self,
        blocks: &mut Blocks,
        at: Range<usize>,
        act: impl FnOnce(&[AtomicU8]) -> R,
    ) -> Result<R, PageMissing> {
        let start = self.map.as_mut_ptr().cast::<AtomicU8>();
        // SAFETY: the caller's range lies in the mapping, which lives as long as `self`; all of this process use it as
        // atomics (invariant 1), and a page that is missing is replaced while it is accessed.
        let bytes = unsafe { std::slice::from_raw_parts(start.add(at.start), at.len()) };
        let (done, is_missing) = guarded(bytes.as_ptr_range(), || act(bytes));
        if !is_missing {
            return Ok(done);
        }
        blocks.are_broken = self.map_again(at).is_err();
        Err(PageMissing)
    }

    /// Maps the file again where a page of zeros may stand.
    #[cold]
    fn map_again(&self, at: Range<usize>) -> io::Result<()> {
        let start = at.start / page_size() * page_size();
        let length = at.end.next_multiple_of(page_size()) - start;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let pages = self.map.as_mut_ptr().wrapping_add(start);
        // SAFETY: these pages are of the mapping, which lives as long as `self`, and nobody accesses them: the lock is held.
        unsafe { mmap(pages.cast(), length, prot, flags, &self.file, start as u64) }?;
        self.missing_pages.register(pages, length)
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if self.lock().are_broken {
            return;
        }
        MAPPED_BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.map) };
    }
}

/// A part of a file that another process has mapped as shared memory, and has registered.
#[derive(Debug)]
pub struct Window {
    file: Arc<SharedFile>,
    /// Where in the file it begins.
    start: u64,
    bytes: u64,
    /// A bit for each block from that on in which it begins: whether this window has taken it. Under the file's lock.
    taken: Box<[AtomicU64]>,
}

impl Window {
    /// Nothing is mapped before it is used. `most`: bytes that it may take to know its blocks.
    fn new(file: Arc<SharedFile>, start: u64, end: u64, most: u64) -> Result<Window, WindowError> {
        if start == end || end > file.bytes() {
            return Err(WindowError::TooShort);
        }
        let blocks = (end - 1) / BLOCK_BYTES - start / BLOCK_BYTES + 1;
        let words = blocks.div_ceil(u64::BITS.into());
        let bytes = words * size_of::<AtomicU64>() as u64;
        if bytes > most {
            return Err(WindowError::TooMany);
        }
        file.bits_bytes.fetch_add(bytes, Ordering::Relaxed);
        let taken = std::iter::repeat_with(AtomicU64::default);
        Ok(Window {
            file,
            start,
            bytes: end - start,
            taken: taken.take(words as usize).collect(),
        })
    }

    /// Does something with `length` bytes of the window, which lie within it.
    fn access<R>(
        &self,
        at: u64,
        length: usize,
        act: impl FnOnce(&[AtomicU8]) -> R,
    ) -> Result<R, PageMissing> {
        let end = at + length as u64;
        debug_assert!(end <= self.bytes, "the caller has checked it");
        if length == 0 {
            return Ok(act(&[]));
        }
        let (first, start) = (self.start / BLOCK_BYTES, self.start + at);
        let mut blocks = self.file.lock();
        if blocks.are_broken {
            return Err(PageMissing);
        }
        for block in start / BLOCK_BYTES..=(self.start + end - 1) / BLOCK_BYTES {
            let (word, bit) = ((block - first) as usize / 64, 1 << ((block - first) % 64));
            let taken = self.taken[word].load(Ordering::Relaxed);
            if taken & bit == 0 {
                self.taken[word].store(taken | bit, Ordering::Relaxed);
                blocks.cache.take(block, &mut PageTable(&self.file.map));
            }
        }
        let start = start as usize;
        self.file.access(&mut blocks, start..start + length, act)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.file.as_fd()
    }

    /// Blocks of the file that are mapped.
    #[cfg(test)]
    fn mapped_blocks(&self) -> usize {
        self.file.lock().cache.blocks()
    }

    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), PageMissing> {
        self.access(at, out.len(), |bytes| copy_out(bytes, out))
    }

    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), PageMissing> {
        self.access(at, from.len(), |bytes| copy_in(bytes, from))
    }

    pub(crate) fn atomic(&self, at: u64, atomic: Atomic) -> Result<u64, PageMissing> {
        if !(self.start + at).is_multiple_of(Atomic::BYTES) {
            // The program has said something else of where it has mapped the file.
            return Err(PageMissing);
        }
        self.access(at, Atomic::BYTES as usize, |bytes| {
            let word = NonNull::from(bytes).cast::<AtomicU64>();
            // SAFETY: these are eight bytes, aligned as the file's begin at a page, used as atomics only (invariant 1), and the lock is held.
            change(unsafe { word.as_ref() }, atomic)
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let bytes = size_of_val::<[AtomicU64]>(&self.taken) as u64;
        self.file.bits_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut blocks = self.file.lock();
        if blocks.are_broken {
            return;
        }
        let first = self.start / BLOCK_BYTES;
        for (word, taken) in (0..).step_by(64).zip(&mut self.taken) {
            let bits = *taken.get_mut();
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                let mapper = &mut PageTable(&self.file.map);
                blocks.cache.release(first + word + bit, mapper);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use nix::sys::signal::Signal;

    use memmap2::MmapMut;
    use weft_core::drops::DropReason;

    use super::*;
    use crate::{AddressSpace, Region};

    const PAGE: u64 = 4096;

    /// A memfd of so many bytes, all holes.
    fn memfd(bytes: u64) -> File {
        let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(bytes).unwrap();
        file
    }

    fn window_of(files: &mut SharedFiles, file: &File, start: u64, bytes: u64) -> Window {
        let file = file.as_fd().try_clone_to_owned().unwrap();
        files.window(file, start, bytes).unwrap()
    }

    fn window(file: &File, start: u64, bytes: u64) -> Window {
        window_of(&mut SharedFiles::default(), file, start, bytes)
    }

    fn own_memory() -> AddressSpace {
        let mut how = OpenOptions::new();
        let memory = how.read(true).write(true).open("/proc/self/mem").unwrap();
        AddressSpace::new(memory.into()).unwrap()
    }

    fn mapped(file: &File, bytes: u64) -> (MmapRaw, Arc<Region>) {
        mapped_in(&own_memory(), file, bytes)
    }

    /// Memory that this process has mapped from the file, all of it, as another process would reach it.
    fn mapped_in(space: &AddressSpace, file: &File, bytes: u64) -> (MmapRaw, Arc<Region>) {
        let map = MmapOptions::new()
            .len(bytes as usize)
            .map_raw(file)
            .unwrap();
        let range = space.range(map.as_ptr().addr() as u64, bytes, 0).unwrap();
        let window = window(file, 0, bytes);
        (map, Region::of_shared_file(window, range))
    }

    #[test]
    fn bytes_of_a_window_are_the_files() {
        let file = memfd(4 * PAGE);
        file.write_all_at(&[7; 4 * PAGE as usize], 0).unwrap();
        let window = window(&file, PAGE, 2 * PAGE);
        window.write(PAGE - 1, &[1, 2]).unwrap();
        let mut there = [0; 4];
        file.read_exact_at(&mut there, 2 * PAGE - 2).unwrap();
        assert_eq!(there, [7, 1, 2, 7]);
        let mut here = [0; 4];
        window.read(PAGE - 2, &mut here).unwrap();
        assert_eq!(here, there);
        file.write_all_at(&5u64.to_le_bytes(), PAGE + 8).unwrap();
        assert_eq!(window.atomic(8, Atomic::FetchAdd { add: 3 }), Ok(5));
        let (compare, swap) = (8, 1);
        assert_eq!(
            window.atomic(8, Atomic::CompareSwap { compare, swap }),
            Ok(8)
        );
        assert_eq!(
            window.atomic(8, Atomic::CompareSwap { compare, swap }),
            Ok(1)
        );
        assert_eq!(
            window.atomic(12, Atomic::FetchAdd { add: 3 }),
            Err(PageMissing)
        );
    }

    #[test]
    fn st2_blocks_are_mapped_when_they_are_used_and_unmapped_with_the_last_window_that_did() {
        let file = memfd(4 * BLOCK_BYTES);
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            4 * BLOCK_BYTES,
        )
        .unwrap();
        let mut files = SharedFiles::default();
        let one = window_of(&mut files, &file, 0, 4 * BLOCK_BYTES);
        let other = window_of(&mut files, &file, BLOCK_BYTES + 5, BLOCK_BYTES);
        assert_eq!(other.mapped_blocks(), 0);
        one.write(0, &[1]).unwrap();
        one.write(BLOCK_BYTES - 1, &[1, 2]).unwrap();
        assert_eq!(other.mapped_blocks(), 2);
        let mut out = [0; 2];
        other.read(BLOCK_BYTES - 6, &mut out).unwrap();
        assert_eq!(one.mapped_blocks(), 3);
        drop(one);
        assert_eq!(other.mapped_blocks(), 2);
        drop(other);
        let third = window_of(&mut files, &file, 0, 8);
        assert_eq!(third.mapped_blocks(), 0);
    }

    #[test]
    fn no_bytes_are_read_and_written_at_the_very_end() {
        // As many blocks as a whole number of words has bits.
        let file = memfd(64 * BLOCK_BYTES);
        let window = window(&file, 0, 64 * BLOCK_BYTES);
        assert_eq!(window.read(64 * BLOCK_BYTES, &mut []), Ok(()));
        assert_eq!(window.write(64 * BLOCK_BYTES, &[]), Ok(()));
    }

    #[test]
    fn a_page_that_the_file_has_not_is_not_made() {
        let file = memfd(2 * BLOCK_BYTES);
        let window = window(&file, 0, 2 * BLOCK_BYTES);
        let made = || file.metadata().unwrap().blocks();
        assert_eq!(window.write(0, &[1; 100_000]), Err(PageMissing));
        assert_eq!(window.read(BLOCK_BYTES, &mut [0; 8]), Err(PageMissing));
        assert_eq!(
            window.atomic(0, Atomic::FetchAdd { add: 1 }),
            Err(PageMissing)
        );
        assert_eq!(made(), 0);
        // Its owner makes it.
        file.write_all_at(&[9], 10).unwrap();
        let mut out = [0; 2];
        window.read(10, &mut out).unwrap();
        assert_eq!(out, [9, 0]);
        window.write(11, &[8]).unwrap();
        file.read_exact_at(&mut out, 10).unwrap();
        assert_eq!(out, [9, 8]);
        assert_eq!(made(), PAGE / 512);
    }

    #[test]
    fn what_is_missing_in_the_file_is_reached_by_the_address_space() {
        let file = memfd(2 * PAGE);
        let (_map, region) = mapped(&file, 2 * PAGE);
        let bytes: Vec<u8> = (0..2 * PAGE).map(|at| at as u8).collect();
        region.write(0, &bytes).unwrap();
        let mut out = vec![0; bytes.len()];
        file.read_exact_at(&mut out, 0).unwrap();
        assert_eq!(out, bytes);
        // A hole in the second page, and a copy across both.
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, PAGE, PAGE).unwrap();
        region.read(0, &mut out).unwrap();
        assert_eq!(out[..PAGE as usize], bytes[..PAGE as usize]);
        assert_eq!(out[PAGE as usize..], [0; PAGE as usize]);
        assert_eq!(region.atomic(PAGE, Atomic::FetchAdd { add: 4 }), Ok(0));
        assert_eq!(region.atomic(PAGE, Atomic::FetchAdd { add: 4 }), Ok(4));
    }

    #[test]
    fn bytes_are_counted_by_the_way_that_they_have_gone() {
        let (file, space) = (memfd(PAGE), own_memory());
        let (_map, region) = mapped_in(&space, &file, PAGE);
        let copied = || {
            let copied = space.copied();
            (copied.by_window, copied.by_address_space)
        };
        region.write(0, &[1; 100]).unwrap();
        assert_eq!(copied(), (0, 100), "the page was not there");
        region.read(0, &mut [0; 30]).unwrap();
        region.write(0, &[1; 3]).unwrap();
        assert_eq!(copied(), (33, 100));
        region.read(PAGE, &mut [0; 8]).unwrap_err();
        assert_eq!(copied(), (33, 100), "what is refused was not copied");
    }

    #[test]
    fn a_file_that_is_cut_off_fails_accesses_and_nothing_else() {
        let file = memfd(2 * PAGE);
        let (_map, region) = mapped(&file, 2 * PAGE);
        region.write(0, &[3; 2 * PAGE as usize]).unwrap();
        file.set_len(PAGE).unwrap();
        assert_eq!(region.write(PAGE - 1, &[1, 2]), Err(DropReason::Bounds));
        assert_eq!(region.read(PAGE, &mut [0; 8]), Err(DropReason::Bounds));
        let mut out = [0; 8];
        region.read(8, &mut out).unwrap();
        assert_eq!(out, [3; 8]);
    }

    #[test]
    fn files_that_cannot_be_mapped_safely_are_refused() {
        let refused = |file: OwnedFd, start, bytes| {
            let mut files = SharedFiles::default();
            files.window(file, start, bytes).unwrap_err()
        };
        let (pipe, _writer) = io::pipe().unwrap();
        let open = |path| OwnedFd::from(File::open(path).unwrap());
        for other in [pipe.into(), open("/proc/self/maps"), open("/dev/zero")] {
            let error = refused(other, 0, 1);
            assert!(matches!(error, WindowError::FileSystem), "{error}");
        }
        let file = memfd(PAGE);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let read_only = refused(File::open(path).unwrap().into(), 0, 1);
        assert!(matches!(read_only, WindowError::ReadOnly), "{read_only}");
        let empty = refused(memfd(0).into(), 0, 1);
        assert!(matches!(empty, WindowError::TooShort), "{empty}");
        let copy = || file.as_fd().try_clone_to_owned().unwrap();
        for (start, bytes) in [(0, PAGE + 1), (PAGE, 1), (0, 0), (u64::MAX, 2)] {
            let error = refused(copy(), start, bytes);
            assert!(
                matches!(error, WindowError::TooShort),
                "{start} {bytes}: {error}"
            );
        }
    }

    #[test]
    fn a_device_maps_no_more_than_this_machine_could_hold_and_so_many_files() {
        let mut files = SharedFiles::default();
        let memory = files.bytes_max;
        let too_many =
            |window: Result<Window, WindowError>| matches!(window, Err(WindowError::TooMany));
        assert!(too_many(files.window(memfd(memory + PAGE).into(), 0, 1)));
        let large = memfd(memory - PAGE);
        let windows = [window_of(&mut files, &large, 0, memory - PAGE)];
        assert!(too_many(files.window(memfd(2 * PAGE).into(), 0, 1)));
        drop(windows);
        // A file that grows is another one each time.
        let growing = memfd(PAGE);
        let mut windows = Vec::new();
        for pages in 1..=FILES_MAX as u64 {
            growing.set_len(pages * PAGE).unwrap();
            windows.push(window_of(&mut files, &growing, 0, pages * PAGE));
        }
        assert!(too_many(files.window(memfd(PAGE).into(), 0, 1)));
        drop(windows);
        window_of(&mut files, &growing, 0, 1);
    }

    /// Set where this test runs once more, in a process of its own.
    const ALONE: &str = "WEFT_TEST_ALONE";

    #[test]
    fn faults_elsewhere_end_the_process_as_they_did() {
        if std::env::var_os(ALONE).is_some() {
            let file = memfd(PAGE);
            drop(window(&file, 0, 1));
            // SAFETY: the bytes are this process's, and accessed once.
            let mut map = unsafe { MmapMut::map_mut(&file) }.unwrap();
            file.set_len(0).unwrap();
            map[0] = 1;
            return;
        }
        let name = "window::tests::faults_elsewhere_end_the_process_as_they_did";
        let mut test = Command::new(std::env::current_exe().unwrap());
        let test = test.args(["--exact", name]).env(ALONE, "");
        let ended = test.output().unwrap();
        assert_eq!(
            ended.status.signal(),
            Some(Signal::SIGBUS as i32),
            "{ended:?}"
        );
    }
}
