//! The works that the TransferEngine and its peers are given in turns: writes from the memory of node 0 to that of node 1.
//!
//! Before each of them the receiver's memory is cleared, and behind it every byte that was to come is compared with what was
//! sent.

use super::BenchError;

/// Bytes after which the content of a source begins again. No multiple of 8 MiB, so that a write to a wrong place is found.
const PERIOD: usize = (8 << 20) - 8;
/// Steps through the pages of a source and of a destination. Both are odd, so each page occurs once, and pages that follow
/// one another in the list never do in memory.
const STEPS: (u32, u32) = (5, 11);

/// Writes of contiguous bytes, one behind the other through all the memory, from the beginning again at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Many {
    /// Bytes of each.
    pub bytes: usize,
    /// How many.
    pub count: u64,
    /// How many are under way at a time.
    pub outstanding: usize,
}

/// Writes of pages that lie neither at the source nor at the destination behind one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paged {
    /// Bytes of a page.
    pub page: usize,
    /// Pages of an operation, a power of two.
    pub pages: u32,
    /// How many operations: all of their pages are in the memory once.
    pub operations: u64,
    /// How many of them are under way at a time.
    pub outstanding: usize,
}

/// How long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    /// From the first write until the last has ended.
    pub seconds: f64,
    /// One write until it has ended, the median; 0 with several under way.
    pub median_us: f64,
}

/// Two ends of a library.
pub(crate) trait Writer {
    /// Writes and compares.
    fn write(&mut self, work: Many) -> Result<Took, BenchError>;

    /// Writes pages and compares them.
    fn write_pages(&mut self, work: Paged) -> Result<Took, BenchError>;
}

impl Many {
    /// Payload, GB/s.
    pub(crate) fn rate(self, took: Took) -> f64 {
        self.bytes as f64 * self.count as f64 / took.seconds / 1e9
    }
}

impl Paged {
    /// Pages a second, as the paper counts operations.
    pub(crate) fn rate(self, took: Took) -> f64 {
        f64::from(self.pages) * self.operations as f64 / took.seconds
    }
}

/// Which pages an operation takes, and where each of them goes.
pub(super) fn page_offsets(work: Paged, operation: u64) -> Vec<(u32, u32)> {
    let first = operation as u32 * work.pages;
    let page = |i: u32| {
        let at = |step| first + i * step % work.pages;
        (at(STEPS.0), at(STEPS.1))
    };
    (0..work.pages).map(page).collect()
}

/// What a source has: no eight bytes of a period are alike.
pub(super) struct Content(Vec<u8>);

impl Content {
    pub(super) fn new() -> Self {
        let words = 1..=(PERIOD / 8) as u64;
        let period: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        // Twice: a piece may begin anywhere in the first one.
        Self(period.repeat(2))
    }

    /// What lies at `offset`, at most 8 MiB - 8.
    pub(super) fn at(&self, offset: usize, bytes: usize) -> &[u8] {
        let first = offset % PERIOD;
        &self.0[first..first + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_occurs_once_and_no_two_lie_behind_one_another() {
        let work = Paged {
            page: 1024,
            pages: 256,
            operations: 2,
            outstanding: 1,
        };
        let list = page_offsets(work, 1);
        for side in [|pair: &(u32, u32)| pair.0, |pair: &(u32, u32)| pair.1] {
            let mut pages: Vec<u32> = list.iter().map(side).collect();
            assert!(pages.windows(2).all(|two| two[0].abs_diff(two[1]) > 1));
            pages.sort_unstable();
            assert_eq!(pages, (256..512).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_content_of_two_places_of_a_power_of_two_differs() {
        let content = Content::new();
        for place in 1..64 {
            assert_ne!(content.at(0, 8), content.at(place << 20, 8));
        }
        assert_eq!(content.at(PERIOD, 64), content.at(0, 64));
    }
}
