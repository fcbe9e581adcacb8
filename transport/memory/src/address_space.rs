//! Memory of another process, reached by a descriptor of its address space.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags, fstat, fstatfs, readlink, statx};
use weft_core::drops::DropReason;
use weft_core::memory::check_bounds;
use weft_core::wire::Atomic;

/// `PROC_SUPER_MAGIC` of statfs(2).
const PROC_MAGIC: u64 = 0x9fa0;

/// The memory of another process, which has passed its `/proc/self/mem`: the kernel takes the rights of who opened it, so
/// this process needs none. It stays that memory though the process runs another program; then nothing can be read.
#[derive(Debug, Clone)]
pub struct AddressSpace(Arc<Space>);

#[derive(Debug)]
struct Space {
    /// `/proc/PID/mem`.
    file: File,
    by_window: AtomicU64,
    by_file: AtomicU64,
}

/// How many bytes of a process's memory were copied each way, in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopiedBytes {
    /// By plain moves: the memory is mapped here as well ([`Window`](crate::Window)).
    pub by_window: u64,
    /// By the kernel, through the descriptor of the address space.
    pub by_address_space: u64,
}

impl std::ops::Add for CopiedBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            by_window: self.by_window + other.by_window,
            by_address_space: self.by_address_space + other.by_address_space,
        }
    }
}

/// Why a descriptor was not taken as an address space.
#[derive(Debug, thiserror::Error)]
pub enum AddressSpaceError {
    /// It is another file.
    #[error(
        "the descriptor is no /proc/PID/mem: open /proc/self/mem for reading and writing and pass that"
    )]
    OtherFile,
    /// The kernel refused a call.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl AddressSpace {
    /// Takes a descriptor over, which may be anything.
    ///
    /// # Errors
    /// [`AddressSpaceError::OtherFile`]: a pipe, or a file of a file system that somebody serves, could hold each access up
    /// for ever.
    pub fn new(file: OwnedFd) -> Result<Self, AddressSpaceError> {
        let failed = |call| {
            move |source: rustix::io::Errno| AddressSpaceError::System {
                call,
                source: source.into(),
            }
        };
        let is_of_proc = fstatfs(&file).map_err(failed("fstatfs"))?.f_type as u64 == PROC_MAGIC;
        let mode = fstat(&file).map_err(failed("fstat"))?.st_mode;
        let is_regular = FileType::from_raw_mode(mode) == FileType::RegularFile;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let path = readlink(link, Vec::new()).map_err(failed("readlink"))?;
        // Any file of /proc can be mounted where a path ends in this way.
        let file_status = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let is_mounted = file_status
            .map_err(failed("statx"))?
            .stx_attributes
            .contains(StatxAttributes::MOUNT_ROOT);
        let is_named = path.as_bytes().ends_with(b"/mem");
        if !is_of_proc || !is_regular || !is_named || is_mounted {
            return Err(AddressSpaceError::OtherFile);
        }
        Ok(Self(Arc::new(Space {
            file: file.into(),
            by_window: AtomicU64::new(0),
            by_file: AtomicU64::new(0),
        })))
    }

    /// How much of it was copied since it was taken.
    #[must_use]
    pub fn copied(&self) -> CopiedBytes {
        CopiedBytes {
            by_window: self.0.by_window.load(Ordering::Relaxed),
            by_address_space: self.0.by_file.load(Ordering::Relaxed),
        }
    }

    /// The descriptor, for a process that goes on with it.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.0.file.try_clone()?.into())
    }

    /// Its memory from `address` on, whose first byte has the offset `first_offset`.
    ///
    /// # Errors
    /// [`DropReason::Bounds`]: addresses or offsets go beyond the last there can be.
    pub fn range(&self, address: u64, bytes: u64, first_offset: u64) -> Result<Range, DropReason> {
        check_bounds(i64::MAX as u64, address, bytes)?;
        check_bounds(u64::MAX, first_offset, bytes)?;
        Ok(Range {
            space: self.clone(),
            address,
            bytes,
            first_offset,
        })
    }
}

/// A part of an address space.
#[derive(Debug, Clone)]
pub struct Range {
    space: AddressSpace,
    address: u64,
    bytes: u64,
    first_offset: u64,
}

impl Range {
    pub(crate) fn offsets(&self) -> std::ops::Range<u64> {
        self.first_offset..self.first_offset + self.bytes
    }

    /// How far behind the first byte `length` bytes at an offset begin.
    pub(crate) fn within(&self, offset: u64, length: usize) -> Result<u64, DropReason> {
        let within = offset.checked_sub(self.first_offset);
        let within = within.ok_or(DropReason::Bounds)?;
        check_bounds(self.bytes, within, length as u64)?;
        Ok(within)
    }

    /// The same for a word, which lies at a multiple of 8 in that process.
    pub(crate) fn word_within(&self, offset: u64) -> Result<u64, DropReason> {
        let within = self.within(offset, Atomic::BYTES as usize)?;
        match (self.address + within).is_multiple_of(Atomic::BYTES) {
            true => Ok(within),
            false => Err(DropReason::Bounds),
        }
    }

    pub(crate) fn address_of(&self, offset: u64, length: usize) -> Result<u64, DropReason> {
        Ok(self.address + self.within(offset, length)?)
    }

    /// So many bytes of it were copied by a window.
    pub(crate) fn count_window(&self, bytes: usize) {
        let by_window = &self.space.0.by_window;
        by_window.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DropReason> {
        let address = self.address_of(offset, out.len())?;
        let Space { file, by_file, .. } = &*self.space.0;
        let read = file.read_exact_at(out, address);
        read.map_err(|_| DropReason::Bounds)?;
        by_file.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DropReason> {
        let address = self.address_of(offset, bytes.len())?;
        let Space { file, by_file, .. } = &*self.space.0;
        let written = file.write_all_at(bytes, address);
        written.map_err(|_| DropReason::Bounds)?;
        by_file.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn atomic(&self, offset: u64, atomic: Atomic) -> Result<u64, DropReason> {
        self.word_within(offset)?;
        let mut word = [0; Atomic::BYTES as usize];
        self.read(offset, &mut word)?;
        let before = u64::from_le_bytes(word);
        let after = match atomic {
            Atomic::FetchAdd { add } => before.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if compare == before => swap,
            Atomic::CompareSwap { .. } => return Ok(before),
        };
        self.write(offset, &after.to_le_bytes())?;
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use memmap2::MmapMut;

    use super::*;
    use crate::Region;

    fn own_memory() -> AddressSpace {
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).open("/proc/self/mem");
        AddressSpace::new(file.unwrap().into()).unwrap()
    }

    /// Two pages of this process, as another process would reach them from offset 0x1_0000 on.
    fn pages() -> (MmapMut, Arc<Region>) {
        let pages = MmapMut::map_anon(8192).unwrap();
        let address = pages.as_ptr() as u64;
        let range = own_memory().range(address, 8192, 0x1_0000).unwrap();
        (pages, Region::of_process(range))
    }

    #[test]
    fn bytes_go_to_the_offsets_that_the_owner_gave_and_to_no_others() {
        let (pages, region) = pages();
        region.write(0x1_0ffe, &[1, 2, 3]).unwrap();
        assert_eq!(pages[0xffd..0x1002], [0, 1, 2, 3, 0]);
        let mut out = [0; 3];
        region.read(0x1_0ffe, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3]);
        for offset in [0, 0xffff, 0x1_1ffe, 0x1_2000, u64::MAX] {
            assert_eq!(region.write(offset, &out), Err(DropReason::Bounds));
            assert_eq!(region.read(offset, &mut out), Err(DropReason::Bounds));
        }
    }

    #[test]
    fn words_are_changed_where_they_are_aligned_in_memory() {
        let (pages, region) = pages();
        let add = Atomic::FetchAdd { add: 5 };
        assert_eq!(region.atomic(0x1_0008, add), Ok(0));
        let swap = |compare| Atomic::CompareSwap { compare, swap: 9 };
        assert_eq!(region.atomic(0x1_0008, swap(4)), Ok(5));
        assert_eq!(region.atomic(0x1_0008, swap(5)), Ok(5));
        assert_eq!(pages[8..16], 9u64.to_le_bytes());
        assert_eq!(region.atomic(0x1_0004, add), Err(DropReason::Bounds));
    }

    #[test]
    fn memory_that_is_not_mapped_is_refused() {
        let nowhere = own_memory().range(4096, 8, 0).unwrap();
        let nowhere = Region::of_process(nowhere);
        assert_eq!(nowhere.read(0, &mut [0; 8]), Err(DropReason::Bounds));
        assert_eq!(nowhere.write(0, &[0; 8]), Err(DropReason::Bounds));
        assert!(own_memory().range(u64::MAX - 4, 8, 0).is_err());
        assert!(own_memory().range(0, 8, u64::MAX - 4).is_err());
    }

    #[test]
    fn descriptors_of_anything_else_are_refused() {
        let (pipe, _writer) = io::pipe().unwrap();
        let others = [
            OwnedFd::from(pipe),
            File::open("/proc/self/maps").unwrap().into(),
            File::open("/dev/null").unwrap().into(),
            File::open("/proc").unwrap().into(),
        ];
        for other in others {
            let error = AddressSpace::new(other).unwrap_err();
            assert!(matches!(error, AddressSpaceError::OtherFile), "{error}");
        }
    }

    #[test]
    fn another_file_of_proc_that_is_mounted_as_mem_is_refused() {
        let mount = "mount -t tmpfs none /tmp && touch /tmp/mem \
                     && mount --bind /proc/self/oom_score_adj /tmp/mem && echo mounted && read end";
        let mut child = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", mount])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut said).unwrap();
        assert_eq!(said, "mounted\n");
        let seen = format!("/proc/{}/root/tmp/mem", child.id());
        let error = AddressSpace::new(File::open(seen).unwrap().into()).unwrap_err();
        assert!(matches!(error, AddressSpaceError::OtherFile), "{error}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
