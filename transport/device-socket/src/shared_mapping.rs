//! Finds the file that this process has mapped as shared memory, so that the engine can map it as well.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, major, minor};

/// The file behind memory of this process.
#[derive(Debug)]
pub struct SharedMapping {
    /// The file, open for reading and writing.
    pub file: OwnedFd,
    /// Where in it the memory begins.
    pub offset: u64,
}

/// The file that lies behind all of these bytes of this process, if they are shared memory and the file can be opened: by a
/// descriptor that this process still has, or by its path.
#[must_use]
pub fn find(address: u64, bytes: u64) -> Option<SharedMapping> {
    let end = address.checked_add(bytes)?;
    let maps = fs::read("/proc/self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let mut mappings = maps.lines().filter_map(Mapping::parse);
    let mapping = mappings.find(|mapping| mapping.addresses.contains(&address))?;
    if !mapping.is_shared || end > mapping.addresses.end {
        return None;
    }
    let file = mapping.open_descriptor().or_else(|| mapping.open_path())?;
    Some(SharedMapping {
        file: file.into(),
        offset: mapping.offset + (address - mapping.addresses.start),
    })
}

/// A line of `/proc/PID/maps`, proc_pid_maps(5).
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'l> {
    addresses: Range<u64>,
    is_shared: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    path: &'l str,
}

impl Mapping<'_> {
    /// `None` also for memory without a file.
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok().filter(|inode| *inode != 0)?;
        Some(Mapping {
            addresses: hex(start)?..hex(end)?,
            is_shared: access.ends_with('s'),
            offset,
            device: (hex(major)? as u32, hex(minor)? as u32),
            inode,
            path: words.next().unwrap_or_default().trim_start(),
        })
    }

    fn open(&self, path: &Path) -> Option<File> {
        // What is there now may be a pipe.
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags(flags.bits() as i32);
        // Opening a device may have effects.
        let is_it = |found: fs::Metadata| found.is_file() && self.is(&found);
        if !fs::metadata(path).is_ok_and(is_it) {
            return None;
        }
        let file = how.open(path).ok()?;
        self.is(&file.metadata().ok()?).then_some(file)
    }

    fn is(&self, found: &fs::Metadata) -> bool {
        let device = (major(found.dev()), minor(found.dev()));
        device == self.device && found.ino() == self.inode
    }

    fn open_descriptor(&self) -> Option<File> {
        let descriptors = fs::read_dir("/proc/self/fd").ok()?;
        let mut paths = descriptors.filter_map(|entry| Some(entry.ok()?.path()));
        paths.find_map(|path| self.open(&path))
    }

    fn open_path(&self) -> Option<File> {
        self.open(Path::new(self.path))
    }
}

#[cfg(test)]
mod tests {
    use memmap2::{MmapMut, MmapOptions, MmapRaw};

    use super::*;

    const PAGE: u64 = 4096;

    fn address(map: &MmapRaw) -> u64 {
        map.as_ptr().addr() as u64
    }

    #[test]
    fn shared_memory_is_found_by_a_descriptor_that_is_open_and_by_a_path() {
        let memfd = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC);
        let memfd = File::from(memfd.unwrap());
        let path = format!("/dev/shm/weft-{}", std::process::id());
        let mut how = OpenOptions::new();
        let named = how
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        for (file, is_kept) in [(memfd, true), (named, false)] {
            file.set_len(4 * PAGE).unwrap();
            let inode = file.metadata().unwrap().ino();
            let map = MmapOptions::new()
                .offset(PAGE)
                .len(2 * PAGE as usize)
                .map_raw(&file);
            let map = map.unwrap();
            let kept = is_kept.then_some(file);
            let found = find(address(&map) + 10, 2 * PAGE - 10).unwrap();
            assert_eq!(found.offset, PAGE + 10);
            let found = File::from(found.file).metadata().unwrap();
            assert_eq!(found.ino(), inode);
            assert!(
                find(address(&map) + 10, 2 * PAGE - 9).is_none(),
                "it ends before"
            );
            drop(kept);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn private_memory_and_files_that_are_gone_are_not_found() {
        let anonymous = MmapMut::map_anon(PAGE as usize).unwrap();
        assert!(find(anonymous.as_ptr().addr() as u64, 8).is_none());
        assert!(find(0, 8).is_none());
        assert!(find(u64::MAX, 8).is_none());
        let memfd = rustix::fs::memfd_create("gone", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, PAGE).unwrap();
        let map = MmapOptions::new().map_raw(&memfd).unwrap();
        drop(memfd);
        assert!(find(address(&map), 8).is_none());
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "7f1c2d600000-7f1c2d800000 rw-s 00200000 00:01 1030   /memfd:a b (deleted)";
        let expected = Mapping {
            addresses: 0x7f1c_2d60_0000..0x7f1c_2d80_0000,
            is_shared: true,
            offset: 0x20_0000,
            device: (0, 1),
            inode: 1030,
            path: "/memfd:a b (deleted)",
        };
        assert_eq!(Mapping::parse(line), Some(expected));
        for line in ["", "7f1c-7f1d", "55d0-55d1 rw-p 00000000 00:00 0 [heap]"] {
            assert_eq!(Mapping::parse(line), None, "{line}");
        }
    }
}
