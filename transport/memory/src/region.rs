//! A region: memory that threads and processes share.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use weft_core::drops::DropReason;
use weft_core::memory::check_bounds;
use weft_core::wire::Atomic;

use crate::address_space::Range;
use crate::copy::{copy_across, copy_in, copy_out, prefetch, receive};
use crate::device_memory::{DeviceMemory, DeviceRange};
use crate::window::Window;
use crate::word::change;

const _: () = assert!(
    cfg!(target_endian = "little"),
    "atomics are made on words as they lie in memory"
);

/// Memory that several threads, and with [`Region::memfd`] several processes, read and write at once.
///
/// Made from a `Box<[u8]>` or as a memfd. Neither touches its pages before they are used: `vec![0; n]`
/// asks the kernel for zero pages.
#[derive(Debug)]
pub struct Region(Memory);

#[derive(Debug)]
enum Memory {
    Private(Box<[AtomicU8]>),
    Memfd {
        map: MmapRaw,
        file: OwnedFd,
    },
    Borrowed(Borrowed),
    OfProcess(Range),
    /// Memory of another process that is mapped here as well.
    Window {
        window: Window,
        range: Range,
    },
    OfDevice(DeviceRange),
    Joined {
        parts: Vec<Part>,
        /// Where each part ends.
        ends: Vec<u64>,
    },
}

/// Bytes of this process that something else owns.
struct Borrowed {
    bytes: NonNull<[AtomicU8]>,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: who made it has promised that the bytes stay as long as the owner, and they are used as atomics only (invariant 1).
unsafe impl Send for Borrowed {}
// SAFETY: as before.
unsafe impl Sync for Borrowed {}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({:p}, {} bytes)", self.bytes, self.bytes.len())
    }
}

/// A part of a region that is joined of several.
#[derive(Debug)]
pub struct Part {
    /// Of what it is a part.
    pub region: Arc<Region>,
    /// Where in that it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Why a file was not taken as a region.
#[derive(Debug, thiserror::Error)]
pub enum MemfdError {
    /// A process that holds the file could make it shorter while it is mapped.
    #[error("the file is no memfd with F_SEAL_SHRINK: seal it before passing it on")]
    NotSealed,
    /// The file ends before the region does.
    #[error("the memfd has {has} bytes, the region needs {needs}")]
    TooShort {
        /// Bytes of the file.
        has: u64,
        /// Bytes of the region.
        needs: u64,
    },
    /// There is not so much memory, or not so many addresses.
    #[error("{bytes} bytes of memory cannot be had ({call}: {source}): ask for less")]
    TooMuch {
        /// How many were asked for.
        bytes: u64,
        /// The call that failed.
        call: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The kernel refused a call.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

fn failed<E: Into<std::io::Error>>(call: &'static str) -> impl FnOnce(E) -> MemfdError {
    move |source| MemfdError::System {
        call,
        source: source.into(),
    }
}

impl Region {
    /// Makes memory shared. [`Region::into_box`] is the way back.
    pub fn share(bytes: impl Into<Box<[u8]>>) -> Arc<Region> {
        let bytes = Box::into_raw(bytes.into()) as *mut [AtomicU8];
        // SAFETY: the box was owned, and an AtomicU8 has the layout of a u8.
        Arc::new(Region(Memory::Private(unsafe { Box::from_raw(bytes) })))
    }

    /// Memory of this process that `owner` keeps, such as a buffer that C or Python made. `owner` is dropped with the region.
    ///
    /// # Safety
    /// `length` bytes at `start` can be read and written until `owner` is dropped. Whoever reads or writes them otherwise
    /// meanwhile does it as another process would, with no reference of Rust to them.
    pub unsafe fn borrow(
        start: NonNull<u8>,
        length: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Region> {
        let bytes = NonNull::slice_from_raw_parts(start.cast::<AtomicU8>(), length);
        Arc::new(Region(Memory::Borrowed(Borrowed {
            bytes,
            _owner: owner,
        })))
    }

    /// A region of zeros that can be passed to another process: [`Region::file`] is a memfd whose size
    /// is sealed. `name` is shown in `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`MemfdError::TooMuch`], [`MemfdError::System`].
    pub fn memfd(name: &str, bytes: u64) -> Result<Region, MemfdError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
        rustix::fs::ftruncate(&file, bytes).map_err(|error| MemfdError::TooMuch {
            bytes,
            call: "ftruncate",
            source: error.into(),
        })?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("F_ADD_SEALS"))?;
        Region::from_memfd(file, bytes)
    }

    /// The first `bytes` bytes of a memfd that another process made.
    ///
    /// # Errors
    /// [`MemfdError::NotSealed`] unless F_SEAL_SHRINK is set: a page that is cut off while it is mapped
    /// ends this process by SIGBUS. [`MemfdError::TooShort`], [`MemfdError::TooMuch`], [`MemfdError::System`].
    pub fn from_memfd(file: OwnedFd, bytes: u64) -> Result<Region, MemfdError> {
        // Only a memfd answers; the seal is checked before the size, which cannot shrink from then on.
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| MemfdError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemfdError::NotSealed);
        }
        let has = rustix::fs::fstat(&file).map_err(failed("fstat"))?.st_size as u64;
        if has < bytes {
            return Err(MemfdError::TooShort { has, needs: bytes });
        }
        let map = MmapOptions::new()
            .len(bytes as usize)
            .map_raw(&file)
            .map_err(|source| MemfdError::TooMuch {
                bytes,
                call: "mmap",
                source,
            })?;
        Ok(Region(Memory::Memfd { map, file }))
    }

    /// Memory of another process, which that process may unmap or change at any time. An access that fails is refused as
    /// one out of bounds.
    pub fn of_process(range: Range) -> Arc<Region> {
        Arc::new(Region(Memory::OfProcess(range)))
    }

    /// The same, where the process has mapped its memory from a file that is mapped here as well. An access to a page that
    /// the file has not goes by the address space.
    pub fn of_shared_file(window: Window, range: Range) -> Arc<Region> {
        Arc::new(Region(Memory::Window { window, range }))
    }

    /// `bytes` bytes from `address` on of a device's memory. The device's own routines copy to and from it; nothing else
    /// follows the address.
    ///
    /// # Errors
    /// [`DropReason::Bounds`]: addresses go beyond the last there can be.
    pub fn of_device(
        memory: Arc<dyn DeviceMemory>,
        address: u64,
        bytes: u64,
    ) -> Result<Arc<Region>, DropReason> {
        let range = DeviceRange::new(memory, address, bytes)?;
        Ok(Arc::new(Region(Memory::OfDevice(range))))
    }

    /// Parts of regions, one behind the other. It has no words for atomics.
    pub fn joined(parts: Vec<Part>) -> Arc<Region> {
        let mut end = 0u64;
        let ends = parts.iter().map(|part| {
            end = end.saturating_add(part.bytes);
            end
        });
        let ends = ends.collect();
        Arc::new(Region(Memory::Joined { parts, ends }))
    }

    /// Does something with each part that `length` bytes at `offset` of a joined region lie in: which bytes of them, and
    /// where they lie in the part's region.
    fn for_each_part(
        (parts, ends): (&[Part], &[u64]),
        offset: u64,
        length: usize,
        mut act: impl FnMut(&Region, std::ops::Range<usize>, u64) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        check_bounds(ends.last().copied().unwrap_or(0), offset, length as u64)?;
        let first = ends.partition_point(|end| *end <= offset);
        let mut done = 0;
        for (part, end) in parts.iter().zip(ends).skip(first) {
            if done == length {
                break;
            }
            let at = offset + done as u64;
            let take = (length - done).min((end - at) as usize);
            let within = part.offset + (at - (end - part.bytes));
            act(&part.region, done..done + take, within)?;
            done += take;
        }
        Ok(())
    }

    /// The file to pass to another process, where there is one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Memory::Private(_)
            | Memory::Borrowed(_)
            | Memory::OfProcess(_)
            | Memory::Window { .. }
            | Memory::OfDevice(_)
            | Memory::Joined { .. } => None,
            Memory::Memfd { file, .. } => Some(file.as_fd()),
        }
    }

    /// Where its bytes lie, when they lie in this process in one piece. Whoever uses them there does it as another process would.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        self.is_direct().then(|| NonNull::from(self.bytes()).cast())
    }

    /// Bytes; of another process's memory, the offset at which it ends.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Memory::OfProcess(range) | Memory::Window { range, .. } => range.offsets().end,
            Memory::OfDevice(range) => range.bytes(),
            Memory::Joined { ends, .. } => ends.last().copied().unwrap_or(0),
            _ => self.bytes().len() as u64,
        }
    }

    /// Where the offsets begin: not at 0 in another process's memory.
    pub(crate) fn first_offset(&self) -> u64 {
        match &self.0 {
            Memory::OfProcess(range) | Memory::Window { range, .. } => range.offsets().start,
            _ => 0,
        }
    }

    /// Whether its bytes lie in another process or a device: then reading them may fail, and costs more than a copy.
    pub fn reads_may_fail(&self) -> bool {
        match &self.0 {
            Memory::OfProcess(_) | Memory::Window { .. } | Memory::OfDevice(_) => true,
            Memory::Joined { parts, .. } => parts.iter().any(|part| part.region.reads_may_fail()),
            Memory::Private(_) | Memory::Borrowed(_) | Memory::Memfd { .. } => false,
        }
    }

    /// Whether it is memory of another process that is mapped here as well.
    pub fn is_window(&self) -> bool {
        matches!(self.0, Memory::Window { .. })
    }

    /// The file of another process that is mapped here as well.
    pub fn window_file(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Memory::Window { window, .. } => Some(window.file()),
            _ => None,
        }
    }

    /// Where `bytes` bytes at an offset lie in the other process; none where they lie in no other one, or not in one place.
    pub fn address(&self, offset: u64, bytes: u64) -> Option<u64> {
        match &self.0 {
            Memory::OfProcess(range) | Memory::Window { range, .. } => {
                range.address_of(offset, usize::try_from(bytes).ok()?).ok()
            }
            _ => None,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes at `offset` out of the region. What is written there meanwhile may be
    /// seen in part.
    ///
    /// # Errors
    /// [`DropReason::Bounds`]; nothing was copied, but parts of a joined region may have been.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DropReason> {
        match &self.0 {
            Memory::OfProcess(range) => range.read(offset, out),
            Memory::OfDevice(range) => range.read(offset, out),
            Memory::Window { window, range } => {
                if window.read(range.within(offset, out.len())?, out).is_err() {
                    return range.read(offset, out);
                }
                range.count_window(out.len());
                Ok(())
            }
            Memory::Joined { parts, ends } => {
                Self::for_each_part((parts, ends), offset, out.len(), |region, bytes, at| {
                    region.read(at, &mut out[bytes])
                })
            }
            _ => {
                copy_out(self.cells(offset, out.len())?, out);
                Ok(())
            }
        }
    }

    /// Copies `bytes` to `offset` of the region.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DropReason> {
        match &self.0 {
            Memory::OfProcess(range) => range.write(offset, bytes),
            Memory::OfDevice(range) => range.write(offset, bytes),
            Memory::Window { window, range } => {
                let at = range.within(offset, bytes.len())?;
                if window.write(at, bytes).is_err() {
                    return range.write(offset, bytes);
                }
                range.count_window(bytes.len());
                Ok(())
            }
            Memory::Joined { parts, ends } => {
                Self::for_each_part((parts, ends), offset, bytes.len(), |region, part, at| {
                    region.write(at, &bytes[part])
                })
            }
            _ => {
                copy_in(self.cells(offset, bytes.len())?, bytes);
                Ok(())
            }
        }
    }

    /// Copies `bytes`, which others may change meanwhile, to `offset` of the region: what lies there then may be mixed.
    ///
    /// # Errors
    /// [`DropReason::Bounds`], also where the region is not [`Region::is_direct`].
    pub fn write_shared(&self, offset: u64, bytes: &[AtomicU8]) -> Result<(), DropReason> {
        copy_across(self.cells(offset, bytes.len())?, bytes);
        Ok(())
    }

    /// Whether [`Region::receive`] and [`Region::write_shared`] write to it: its bytes lie in this process, in one piece.
    pub fn is_direct(&self) -> bool {
        matches!(
            self.0,
            Memory::Private(_) | Memory::Borrowed(_) | Memory::Memfd { .. }
        )
    }

    /// Receives `length` bytes from a socket to `offset` of the region, as many as have come, and after them what follows to
    /// `ahead`. Answers how many it received in all, 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of the socket, [`std::io::ErrorKind::WouldBlock`] if nothing has come; [`std::io::ErrorKind::InvalidInput`] out
    /// of bounds, or where the region is not [`Region::is_direct`].
    pub fn receive(
        &self,
        offset: u64,
        length: usize,
        socket: BorrowedFd<'_>,
        ahead: &mut [u8],
    ) -> std::io::Result<usize> {
        let range = self.cells(offset, length);
        receive(
            range.map_err(|_| std::io::ErrorKind::InvalidInput)?,
            socket,
            ahead,
        )
    }

    /// Changes the 8 bytes at `offset`, little endian, while nothing else changes them. Returns what was there. In another
    /// process's memory that is not mapped here, only accesses of this region's holder count as something else: that
    /// process's own are not kept away (`IBV_ATOMIC_HCA`).
    ///
    /// # Errors
    /// [`DropReason::Bounds`] also when they do not lie at a multiple of 8 of the region and of memory;
    /// [`DropReason::Key`] in memory of a device without atomics. Nothing was changed.
    pub fn atomic(&self, offset: u64, atomic: Atomic) -> Result<u64, DropReason> {
        match &self.0 {
            Memory::OfProcess(range) => return range.atomic(offset, atomic),
            Memory::OfDevice(range) => return range.atomic(offset, atomic),
            Memory::Window { window, range } => {
                let at = range.word_within(offset)?;
                if let Ok(before) = window.atomic(at, atomic) {
                    return Ok(before);
                }
                // Reading makes the page, in its owner's name.
                range.read(offset, &mut [0; Atomic::BYTES as usize])?;
                let changed = window.atomic(at, atomic);
                return changed.or_else(|_| range.atomic(offset, atomic));
            }
            _ => {}
        }
        let bytes = self.cells(offset, Atomic::BYTES as usize)?;
        let word = bytes.as_ptr().cast::<AtomicU64>();
        if !offset.is_multiple_of(Atomic::BYTES) || !word.is_aligned() {
            return Err(DropReason::Bounds);
        }
        // SAFETY: the range has eight bytes, which live as long as `self` and are used as atomics only (invariant 1),
        // and the word is aligned. Copies beside it may see half of a change, as they may of any write.
        Ok(change(unsafe { &*word }, atomic))
    }

    /// The memory itself, when this was the only holder and no other process can hold it.
    ///
    /// # Errors
    /// Gives the region back otherwise.
    pub fn into_box(region: Arc<Region>) -> Result<Box<[u8]>, Arc<Region>> {
        match Arc::try_unwrap(region) {
            Ok(Region(Memory::Private(bytes))) => {
                let bytes = Box::into_raw(bytes) as *mut [u8];
                // SAFETY: the box came from `Box<[u8]>`'s allocator with this length, an AtomicU8 has
                // the layout of a u8, and the region was owned: nobody else reaches the bytes.
                Ok(unsafe { Box::from_raw(bytes) })
            }
            Ok(region) => Err(Arc::new(region)),
            Err(region) => Err(region),
        }
    }

    fn bytes(&self) -> &[AtomicU8] {
        match &self.0 {
            Memory::Private(bytes) => bytes,
            // SAFETY: who made it has promised that the bytes stay as long as the owner, which `self` keeps; all of this
            // process use them as atomics (invariant 1).
            Memory::Borrowed(borrowed) => unsafe { borrowed.bytes.as_ref() },
            Memory::OfProcess(_)
            | Memory::Window { .. }
            | Memory::OfDevice(_)
            | Memory::Joined { .. } => &[],
            Memory::Memfd { map, .. } => {
                let start = map.as_mut_ptr().cast::<AtomicU8>();
                // SAFETY: the mapping is readable and writable, lives as long as `self` and cannot
                // lose pages (invariant 3); all of this process use it as atomics (invariant 1).
                unsafe { std::slice::from_raw_parts(start, map.len()) }
            }
        }
    }

    /// `length` bytes at `offset`, as others may see and change them at any time.
    ///
    /// # Errors
    /// [`DropReason::Bounds`], also where the region is not [`Region::is_direct`].
    pub fn cells(&self, offset: u64, length: usize) -> Result<&[AtomicU8], DropReason> {
        let bytes = self.bytes();
        check_bounds(bytes.len() as u64, offset, length as u64)?;
        let at = offset as usize;
        Ok(&bytes[at..at + length])
    }
}

/// Whole words of a region that processes share, as a ring or a doorbell page is.
#[derive(Debug, Clone)]
pub struct Words {
    /// Keeps the memory.
    _region: Arc<Region>,
    /// Looked up once: a ring reads a word for each operation.
    words: NonNull<[AtomicU64]>,
}

// SAFETY: it is shared memory that `_region` keeps, used as atomics only (invariant 1).
unsafe impl Send for Words {}
// SAFETY: as before.
unsafe impl Sync for Words {}

impl Words {
    /// `count` words from `offset` on.
    ///
    /// # Errors
    /// [`DropReason::Bounds`] when they do not lie within the region, at multiples of 8 of it and of memory.
    pub fn new(region: &Arc<Region>, offset: u64, count: usize) -> Result<Words, DropReason> {
        let length = count.checked_mul(size_of::<AtomicU64>());
        let bytes = region.cells(offset, length.ok_or(DropReason::Bounds)?)?;
        let first = NonNull::from(bytes).cast::<AtomicU64>();
        if !first.is_aligned() {
            return Err(DropReason::Bounds);
        }
        Ok(Words {
            _region: Arc::clone(region),
            words: NonNull::slice_from_raw_parts(first, count),
        })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `new` has checked that so many aligned words lie in the region, whose memory neither moves nor shrinks and
        // lives as long as `self` (invariant 3). They are used as atomics only (invariant 1).
        unsafe { self.words.as_ref() }
    }
}

/// The bytes that the processor is asked for begin at least so far behind the start of those that are read: a short
/// packet's checksum takes less time than they do to come.
const PREFETCH_AHEAD: usize = 4096;

/// For a packet with so many bytes nothing is asked for.
const PREFETCH_BYTES_MAX: usize = 16 << 10;

/// Where the bytes of a write lie.
#[derive(Debug, Clone)]
pub enum Source {
    /// Memory that nobody changes while it is shared.
    Bytes(Arc<Box<[u8]>>),
    /// Memory that may change: each packet carries what is there when it is sent.
    Region(Arc<Region>),
}

impl Source {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Region(region) => region.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes at `offset`.
    ///
    /// # Errors
    /// [`DropReason::Bounds`]; nothing was copied.
    pub fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<(), DropReason> {
        match self {
            Source::Bytes(bytes) => {
                check_bounds(bytes.len() as u64, offset, out.len() as u64)?;
                out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
                Ok(())
            }
            Source::Region(region) => region.read(offset, out),
        }
    }

    /// `length` bytes at `offset` where they lie; `None` where others may change them, and they have to be copied.
    ///
    /// # Errors
    /// [`DropReason::Bounds`].
    pub fn in_place(&self, offset: u64, length: usize) -> Result<Option<&[u8]>, DropReason> {
        check_bounds(self.len(), offset, length as u64)?;
        let Source::Bytes(bytes) = self else {
            return Ok(None);
        };
        let (read, behind) = bytes[offset as usize..].split_at(length);
        // Most likely they are read soon, and no cache holds them: they come while these are checksummed. Long ones are copied
        // at the speed of memory anyway, and would only wait for what is asked for ahead.
        if length < PREFETCH_BYTES_MAX {
            let ahead = PREFETCH_AHEAD.saturating_sub(length).min(behind.len());
            prefetch(&behind[ahead..behind.len().min(ahead + length)]);
        }
        Ok(Some(read))
    }
}

impl From<Arc<Box<[u8]>>> for Source {
    fn from(bytes: Arc<Box<[u8]>>) -> Source {
        Source::Bytes(bytes)
    }
}

impl From<Arc<Region>> for Source {
    fn from(region: Arc<Region>) -> Source {
        Source::Region(region)
    }
}

#[cfg(test)]
mod tests;
