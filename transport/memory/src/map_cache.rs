//! Which blocks of memory are mapped for a device, and how many use each: the Map Cache of PVDMA ("Alibaba Stellar",
//! section 5).
//!
//! Memory is registered without a look at it, so registering takes as long for a terabyte as for a page. A block is
//! mapped when it is used first, stays mapped for all who use it, and is unmapped with the last of them.
//!
//! A block that is mapped is not looked at again, so what lies at its addresses must not change while it is used. Pages
//! that come and go by themselves, as a doorbell page does, therefore need addresses that no block covers: else a block
//! that covers one goes on leading there when the page is gone and its address is used for something else (the paper's
//! Figure 5).

use std::collections::BTreeMap;

/// Bytes of a block (section 5: the memory granularity of PVDMA).
pub const BLOCK_BYTES: u64 = 2 << 20;

/// What blocks are mapped in: the page table of a process, or an IOMMU. A block's number is its address divided by
/// [`BLOCK_BYTES`].
pub trait Mapper {
    /// Maps a block as its addresses are now.
    fn map(&mut self, block: u64);

    /// Unmaps a block.
    fn unmap(&mut self, block: u64);
}

/// The blocks that are mapped.
#[derive(Debug, Default)]
pub struct MapCache {
    /// How many use each.
    users: BTreeMap<u64, u32>,
}

impl MapCache {
    /// One more uses a block. It is mapped if nobody did.
    pub fn take(&mut self, block: u64, mapper: &mut impl Mapper) {
        let users = self.users.entry(block).or_insert_with(|| {
            mapper.map(block);
            0
        });
        *users += 1;
    }

    /// One that has taken a block uses it no more. It is unmapped if that was the last.
    pub fn release(&mut self, block: u64, mapper: &mut impl Mapper) {
        let Some(users) = self.users.get_mut(&block) else {
            return;
        };
        *users -= 1;
        if *users == 0 {
            self.users.remove(&block);
            mapper.unmap(block);
        }
    }

    /// How many blocks are mapped.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const PAGE_BYTES: u64 = 4096;

    /// What lies at an address of a virtual machine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Behind {
        Memory(u32),
        Doorbell,
    }

    /// The machine's own page table, and the IOMMU's, into which a block's pages are copied when it is mapped.
    #[derive(Default)]
    struct Machine {
        pages: BTreeMap<u64, Behind>,
        iommu: BTreeMap<u64, Behind>,
    }

    fn pages_of(block: u64) -> std::ops::Range<u64> {
        let pages = BLOCK_BYTES / PAGE_BYTES;
        block * pages..(block + 1) * pages
    }

    impl Mapper for Machine {
        fn map(&mut self, block: u64) {
            let pages = self.pages.range(pages_of(block));
            self.iommu
                .extend(pages.map(|(page, behind)| (*page, *behind)));
        }

        fn unmap(&mut self, block: u64) {
            self.iommu.retain(|page, _| !pages_of(block).contains(page));
        }
    }

    #[test]
    fn a_block_is_mapped_with_its_first_user_and_unmapped_with_its_last() {
        let (mut cache, mut machine) = (MapCache::default(), Machine::default());
        machine.pages.insert(600, Behind::Memory(1));
        cache.take(1, &mut machine);
        cache.take(1, &mut machine);
        assert_eq!((cache.blocks(), machine.iommu.len()), (1, 1));
        cache.release(1, &mut machine);
        assert_eq!(machine.iommu.get(&600), Some(&Behind::Memory(1)));
        cache.release(1, &mut machine);
        assert_eq!((cache.blocks(), machine.iommu.len()), (0, 0));
        cache.release(1, &mut machine);
        assert_eq!(cache.blocks(), 0, "what was never taken changes nothing");
    }

    /// The page of the first command queue, and the one before it, in one block.
    const QUEUE: u64 = 513;
    const BESIDE: u64 = 512;

    /// Where the doorbell page lies: in a space of its own, or with the feature `one-space` among memory.
    const DOORBELL: u64 = match cfg!(feature = "one-space") {
        true => BESIDE,
        false => 1 << 40,
    };

    /// With the feature `one-space` it fails as the paper's Figure 5 does, and CI runs it so as well.
    #[test]
    #[cfg_attr(feature = "one-space", should_panic(expected = "Doorbell"))]
    fn st2_figure_5_a_gpu_reads_memory_and_no_doorbell() {
        let (mut cache, mut machine) = (MapCache::default(), Machine::default());
        machine.pages.insert(BESIDE, Behind::Memory(2));
        machine.pages.insert(QUEUE, Behind::Memory(1));
        // 1: an RDMA program's doorbell page is mapped. 2: a GPU's command queue is made.
        let before = machine.pages.insert(DOORBELL, Behind::Doorbell);
        // 3: the GPU reads the queue, and its block is mapped.
        cache.take(QUEUE * PAGE_BYTES / BLOCK_BYTES, &mut machine);
        // 4: the RDMA program ends, and its doorbell page with it. The block is still used.
        machine.pages.remove(&DOORBELL);
        machine
            .pages
            .extend(before.map(|memory| (DOORBELL, memory)));
        // 5: the page beside the queue becomes a second one. The GPU reads it, and its block is mapped already.
        cache.take(BESIDE * PAGE_BYTES / BLOCK_BYTES, &mut machine);
        assert_eq!(machine.iommu.get(&QUEUE), Some(&Behind::Memory(1)));
        assert_eq!(machine.iommu.get(&BESIDE), Some(&Behind::Memory(2)));
    }
}
