//! The memory that ranks open to each other, and where what lies in it.

use std::ops::Range;

use weft_transfer_engine::{MemoryRegion, MrDescriptor, TransferEngine};

use crate::Result;
use crate::model::{EXPERTS, EXPERTS_PER_RANK, HIDDEN, Hidden, RANKS, TOKENS, TOP_K};

/// Rows that a rank sends in a round.
pub(crate) const ROWS: usize = TOKENS * TOP_K;
pub(crate) const ROW_BYTES: usize = HIDDEN * size_of::<f32>();

/// Rows that a rank sends to each rank before it has the routes: as many as its link sends in the time of the exchange. More
/// would make the private buffers larger and gain nothing.
pub(crate) const PRIVATE_ROWS: usize =
    (LINK_BYTES_PER_S as u128 * EXCHANGE_NS as u128 / 1_000_000_000) as usize / (RANKS * ROW_BYTES);
/// 10 Gbit/s.
const LINK_BYTES_PER_S: u64 = 1_250_000_000;
/// One way for the routes, and the time until the receiver's thread knows.
const EXCHANGE_NS: u64 = 40_000;
const _: () = assert!(PRIVATE_ROWS >= 1 && PRIVATE_ROWS < ROWS);

/// Rows that a rank gets at most: all tokens of all ranks go to it.
pub(crate) const ROWS_MAX: usize = RANKS * ROWS;
/// A row of the table.
pub(crate) const ROUTES_BYTES: usize = EXPERTS * size_of::<u32>();

/// Where a rank receives: its regions, or their descriptors at the other ranks.
///
/// A rank sends its routes of a round when it has read all that it got in the round before. So `shared` and `results`, which
/// others write only after they have these routes, are free by then. `routes` and `private` are written without this knowledge,
/// so there are two of each, in turn: a rank is in round `n` only when it has all routes of round `n - 1`, and by then
/// everybody has read what came in round `n - 2`.
pub(crate) struct Buffers<T> {
    /// Twice a row of the table for each sender.
    pub(crate) routes: T,
    /// Twice [`PRIVATE_ROWS`] rows for each sender.
    pub(crate) private: T,
    /// The other rows of sender 0, of sender 1, and so on.
    pub(crate) shared: T,
    /// The result of each row that this rank has sent.
    pub(crate) results: T,
}

impl Buffers<MemoryRegion> {
    pub(crate) fn new(engine: &TransferEngine) -> Result<Self> {
        let alloc = |bytes: usize| engine.alloc(bytes as u64).map(|(region, _)| region);
        Ok(Self {
            routes: alloc(2 * RANKS * ROUTES_BYTES)?,
            private: alloc(2 * RANKS * PRIVATE_ROWS * ROW_BYTES)?,
            shared: alloc(ROWS_MAX * ROW_BYTES)?,
            results: alloc(ROWS * ROW_BYTES)?,
        })
    }

    pub(crate) fn descriptors(&self) -> Buffers<MrDescriptor> {
        let descriptor = |region: &MemoryRegion| region.descriptor().clone();
        Buffers {
            routes: descriptor(&self.routes),
            private: descriptor(&self.private),
            shared: descriptor(&self.shared),
            results: descriptor(&self.results),
        }
    }
}

/// How many rows each rank has for each expert.
pub(crate) type Table = [[u32; EXPERTS]; RANKS];

/// The rows of `from` for `to`, by their places among all rows of `from`, which are sorted by expert.
pub(crate) fn rows(table: &Table, from: usize, to: usize) -> Range<usize> {
    let end = |rank: usize| table[from][..rank * EXPERTS_PER_RANK].iter().sum::<u32>() as usize;
    end(to)..end(to + 1)
}

/// How many of `rows` go to the shared buffer.
pub(crate) fn remainder(rows: &Range<usize>) -> usize {
    rows.len().saturating_sub(PRIVATE_ROWS)
}

/// Which of the two places per sender in `routes` and `private` a round uses.
pub(crate) fn place(round: usize, sender: usize) -> usize {
    round % 2 * RANKS + sender
}

/// `N` words of 4 bytes.
pub(crate) fn read<const N: usize>(region: &MemoryRegion, offset: usize) -> Result<[[u8; 4]; N]> {
    let mut words = [[0; 4]; N];
    region.read(offset as u64, words.as_flattened_mut())?;
    Ok(words)
}

pub(crate) fn read_row(region: &MemoryRegion, row: usize) -> Result<Hidden> {
    Ok(read(region, row * ROW_BYTES)?.map(f32::from_le_bytes))
}

pub(crate) fn write_row(region: &MemoryRegion, row: usize, hidden: &Hidden) -> Result<()> {
    let bytes = hidden.map(f32::to_le_bytes);
    Ok(region.write((row * ROW_BYTES) as u64, bytes.as_flattened())?)
}
