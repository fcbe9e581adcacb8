//! Memory of a device, such as a GPU.

use std::fmt;
use std::sync::Arc;

use weft_core::drops::DropReason;
use weft_core::memory::check_bounds;
use weft_core::wire::Atomic;

/// All memory of a device, which only the device's own routines copy to and from: this process may have no mapping of it.
///
/// The engine's workers call these methods while they receive and send: a worker does nothing else meanwhile. Several
/// workers may call at once. An address is the device's own, and its user has checked that it lies in memory that was
/// registered.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    /// Copies `bytes`, which lie in a received packet, to `address`. When it returns, a peer may be told that they are
    /// there, and the device sees them.
    ///
    /// # Errors
    /// [`DropReason::Bounds`] when the device refuses the copy.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DropReason>;

    /// Copies what lies at `address` to `out`, whose bytes go into packets.
    ///
    /// # Errors
    /// As [`DeviceMemory::write`].
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DropReason>;

    /// Changes the 8 bytes at `address`, a multiple of 8, while nothing else changes them. Returns what was there.
    ///
    /// # Errors
    /// [`DropReason::Key`] where the device has no atomics, as it has none unless it says how they are made: its memory is
    /// not open to them, whatever was asked when it was registered. [`DropReason::Bounds`] when the device refuses this one.
    fn atomic(&self, address: u64, atomic: Atomic) -> Result<u64, DropReason> {
        let _ = (address, atomic);
        Err(DropReason::Key)
    }
}

/// A part of a device's memory.
#[derive(Debug)]
pub(crate) struct DeviceRange {
    memory: Arc<dyn DeviceMemory>,
    address: u64,
    bytes: u64,
}

impl DeviceRange {
    pub(crate) fn new(
        memory: Arc<dyn DeviceMemory>,
        address: u64,
        bytes: u64,
    ) -> Result<Self, DropReason> {
        check_bounds(u64::MAX, address, bytes)?;
        Ok(Self {
            memory,
            address,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address_of(&self, offset: u64, length: usize) -> Result<u64, DropReason> {
        check_bounds(self.bytes, offset, length as u64)?;
        Ok(self.address + offset)
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DropReason> {
        self.memory.read(self.address_of(offset, out.len())?, out)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DropReason> {
        let address = self.address_of(offset, bytes.len())?;
        self.memory.write(address, bytes)
    }

    pub(crate) fn atomic(&self, offset: u64, atomic: Atomic) -> Result<u64, DropReason> {
        let address = self.address_of(offset, Atomic::BYTES as usize)?;
        match address.is_multiple_of(Atomic::BYTES) {
            true => self.memory.atomic(address, atomic),
            false => Err(DropReason::Bounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use weft_core::memory::{Access, DomainId, Memory, Placed, Ticket};
    use weft_core::units::{ConnectionId, Key};

    use super::*;
    use crate::{Part, Region, RegionTable};

    /// Where the device has its memory. No process has memory there, so an access to such an address fails.
    const BASE: u64 = 1 << 63;
    const DEVICE_BYTES: u64 = 1 << 20;
    const DOMAIN: DomainId = DomainId(1);
    const KEY: Key = Key(7 << 56);
    const TICKET: Ticket = Ticket {
        connection: ConnectionId(1),
        packet_number: 1,
    };

    /// A device whose memory is a file that nobody maps, and what its routines have copied.
    #[derive(Debug)]
    struct Accelerator {
        file: File,
        written: AtomicU64,
        read: AtomicU64,
        has_atomics: bool,
    }

    impl Accelerator {
        fn new(has_atomics: bool) -> Arc<Self> {
            let name = "accelerator";
            let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let file = File::from(file);
            file.set_len(DEVICE_BYTES).unwrap();
            Arc::new(Self {
                file,
                written: AtomicU64::new(0),
                read: AtomicU64::new(0),
                has_atomics,
            })
        }

        fn region(self: &Arc<Self>, at: u64, bytes: u64) -> Arc<Region> {
            let memory: Arc<dyn DeviceMemory> = self.clone();
            Region::of_device(memory, BASE + at, bytes).unwrap()
        }

        fn bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
            let mut out = vec![0; bytes];
            self.file.read_exact_at(&mut out, at).unwrap();
            out
        }
    }

    impl DeviceMemory for Accelerator {
        fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DropReason> {
            self.written
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let written = self.file.write_all_at(bytes, address - BASE);
            written.map_err(|_| DropReason::Bounds)
        }

        fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DropReason> {
            self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
            let read = self.file.read_exact_at(out, address - BASE);
            read.map_err(|_| DropReason::Bounds)
        }

        fn atomic(&self, address: u64, atomic: Atomic) -> Result<u64, DropReason> {
            let Atomic::FetchAdd { add } = atomic else {
                return Err(DropReason::Bounds);
            };
            if !self.has_atomics {
                return Err(DropReason::Key);
            }
            let mut word = [0; 8];
            self.read(address, &mut word)?;
            let before = u64::from_le_bytes(word);
            self.write(address, &before.wrapping_add(add).to_le_bytes())?;
            Ok(before)
        }
    }

    #[test]
    fn st3_an_address_of_the_device_is_none_of_this_process() {
        let own = File::open("/proc/self/mem").unwrap();
        let error = own.read_exact_at(&mut [0], BASE).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }

    #[test]
    fn st3_one_table_places_for_host_and_device_and_the_device_copies_for_itself() {
        let device = Accelerator::new(false);
        let host = Region::share(vec![0; 100]);
        let table = RegionTable::default();
        let of_host = Key(9 << 56);
        table.register(KEY, DOMAIN, Access::ALL, device.region(4096, 100));
        table.register(of_host, DOMAIN, Access::ALL, Arc::clone(&host));
        let mut reader = table.reader();
        let mut placing = reader.enter();
        for (key, bytes) in [(KEY, [7; 60]), (of_host, [5; 60])] {
            let placed = placing.place(TICKET, DOMAIN, key, 40, &bytes);
            assert_eq!(placed, Ok(Placed::Now));
            let beyond = placing.place(TICKET, DOMAIN, key, 41, &bytes);
            assert_eq!(beyond, Err(DropReason::Bounds));
        }
        assert_eq!(device.bytes(4096 + 40, 60), [7; 60]);
        assert_eq!(device.bytes(4096 + 100, 8), [0; 8]);
        assert_eq!(device.written.load(Ordering::Relaxed), 60);
        assert_eq!(device.read.load(Ordering::Relaxed), 0);
        let mut of_the_host = [0; 60];
        host.read(40, &mut of_the_host).unwrap();
        assert_eq!(of_the_host, [5; 60]);
    }

    #[test]
    fn st3_a_region_of_host_and_device_memory_goes_to_each_owner_its_part() {
        let device = Accelerator::new(false);
        let host = Region::share(vec![0; 8]);
        let part = |region: &Arc<Region>, offset| Part {
            region: Arc::clone(region),
            offset,
            bytes: 4,
        };
        let joined = Region::joined(vec![part(&host, 4), part(&device.region(0, 64), 32)]);
        assert!(joined.reads_may_fail());
        joined.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(device.bytes(30, 8), [0, 0, 5, 6, 7, 8, 0, 0]);
        let mut out = [0; 8];
        joined.read(0, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(device.written.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn st3_atomics_are_the_device_s_or_are_refused_as_memory_that_is_not_open_to_them() {
        let add = Atomic::FetchAdd { add: 5 };
        let with = Accelerator::new(true).region(8, 64);
        assert_eq!(with.atomic(8, add), Ok(0));
        assert_eq!(with.atomic(8, add), Ok(5));
        for offset in [4, 57, 64, u64::MAX] {
            assert_eq!(with.atomic(offset, add), Err(DropReason::Bounds));
        }
        let without = Accelerator::new(false).region(8, 64);
        assert_eq!(without.atomic(8, add), Err(DropReason::Key));
    }

    #[test]
    fn st3_what_the_device_refuses_is_out_of_bounds() {
        let device = Accelerator::new(false);
        let beyond = device.region(DEVICE_BYTES, 64);
        assert_eq!(beyond.read(0, &mut [0; 8]), Err(DropReason::Bounds));
        let memory: Arc<dyn DeviceMemory> = device.clone();
        assert!(Region::of_device(memory, u64::MAX - 4, 8).is_err());
    }
}
