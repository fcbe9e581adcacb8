//! Holes of sparse files: what a scan finds of them, and what is not written into them.
//!
//! They are counted in whole blocks: a block that lies wholly in a hole needs no space at a destination, and any other
//! one is written whole.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{self, SeekFrom};
use rustix::io::Errno;

use super::digest::{BLOCK_BYTES, BlockLayout};

/// Whether there is nothing but a hole in that part of a file.
pub(super) fn is_hole(file: &File, part: Range<u64>) -> Result<bool, Errno> {
    let data = next_data(file, part.start)?;
    Ok(data.is_none_or(|data| data >= part.end))
}

/// Bytes of the blocks of a file that lie wholly in holes.
pub(super) fn hole_bytes(file: &File, blocks: BlockLayout) -> Result<u64, Errno> {
    let block_of = |at: u64| u32::try_from(at / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
    let (mut holes, mut next) = (0, 0);
    while next < blocks.count() {
        let hole = blocks.range(next).start;
        let data = next_data(file, hole)?;
        // Past the last block this is the end of the file.
        let first = data.map_or(blocks.count(), block_of);
        holes += blocks.range(first).start - hole;
        let Some(data) = data else {
            break;
        };
        next = match fs::seek(file, SeekFrom::Hole(data)) {
            // The block after the one in which the data ends.
            Ok(end) => block_of(end.max(data + 1) - 1).saturating_add(1),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(cause) => return Err(cause),
        };
    }
    Ok(holes)
}

/// Where data begins, there or behind; nothing if a hole goes on to the end of the file. A file system that tells of
/// no holes has data everywhere.
pub(super) fn next_data(file: &File, from: u64) -> Result<Option<u64>, Errno> {
    match fs::seek(file, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(from)),
        Err(cause) => Err(cause),
    }
}
