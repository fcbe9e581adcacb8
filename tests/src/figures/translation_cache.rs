//! A model of a NIC that keeps some translations of addresses in a cache: PCIe's Address Translation Cache (ATC).
//!
//! The NIC has as many accesses to memory under way as fill its link while every translation is in the cache. An access
//! moves one page. It takes a round trip over PCIe and the time of the page's bytes; when the translation is not in the
//! cache, one round trip more, to the IOMMU. Accesses under way are as many in both cases (Little's law), so the
//! bandwidth falls as the time of an access grows. The model has no second cache in the IOMMU, and nothing is translated
//! ahead: it is the worst case.

use std::collections::{BTreeMap, HashMap};

/// Bytes of a page (STELLAR, section 6: GDR memory page size).
pub(super) const PAGE_BYTES: u64 = 4096;
/// Translations in the cache: "tens of thousands of memory pages" (STELLAR, section 6).
pub(super) const TRANSLATIONS: usize = 16_384;
/// A round trip over PCIe, nanoseconds: the median of a read of 64 bytes whose translation the IOMMU has at hand (data of
/// pcie-bench, Neugebauer et al., SIGCOMM 2018: Xeon E5-2630 v4, 4 KiB pages, `lat_cmd_sweep_rd_rnd_64`, cold).
const ROUND_TRIP_NS: f64 = 480.0;
/// Bytes that PCIe 4.0 carries in a nanosecond over 16 lanes, which the paper's ConnectX-6 has: 16 × 16 GT/s × 128/130.
const PCIE_BYTES_PER_NS: f64 = 31.5;

/// Translations by their page, of which the one that was used longest ago makes room.
#[derive(Debug, Default)]
struct Cache {
    /// When each page was used last.
    used: HashMap<u64, u64>,
    /// The same the other way round.
    pages: BTreeMap<u64, u64>,
    time: u64,
}

impl Cache {
    /// Uses a page's translation. Whether it was there.
    fn access(&mut self, page: u64, most: usize) -> bool {
        self.time += 1;
        let before = self.used.insert(page, self.time);
        if let Some(before) = before {
            self.pages.remove(&before);
        }
        self.pages.insert(self.time, page);
        if self.pages.len() > most
            && let Some((_, oldest)) = self.pages.pop_first()
        {
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

/// The bandwidth with a cache of [`TRANSLATIONS`], of that without misses. `lap` gives the pages that are accessed, which is
/// done over and over; the first lap fills the cache.
pub(super) fn share(lap: impl Iterator<Item = u64> + Clone) -> f64 {
    let mut cache = Cache::default();
    for page in lap.clone() {
        cache.access(page, TRANSLATIONS);
    }
    let (mut accesses, mut misses) = (0u64, 0u64);
    for page in lap {
        accesses += 1;
        misses += u64::from(!cache.access(page, TRANSLATIONS));
    }
    let missed = misses as f64 / accesses.max(1) as f64;
    let hit = ROUND_TRIP_NS + PAGE_BYTES as f64 / PCIE_BYTES_PER_NS;
    hit / (hit + missed * ROUND_TRIP_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_fit_are_never_missed_and_one_more_misses_all_of_them() {
        assert!((share(0..TRANSLATIONS as u64) - 1.0).abs() < 1e-9);
        let all_missed = share(0..TRANSLATIONS as u64 + 1);
        assert!((all_missed - 610.0 / 1090.0).abs() < 1e-2, "{all_missed}");
    }

    #[test]
    fn the_translation_that_was_used_longest_ago_makes_room() {
        let mut cache = Cache::default();
        let hits = [1, 2, 1, 3, 1, 2].map(|page| cache.access(page, 2));
        assert_eq!(hits, [false, false, true, false, true, false]);
    }
}
