//! Frames: what a message between agents consists of.
//!
//! A message fills one receive slot from its start. It consists of frames: each is a 64-byte header,
//! the data that the header announces, and zeros up to the next multiple of 8. Little endian.
//!
//! | byte | field |
//! |---|---|
//! | 0 | kind, u8: 1 block, 2 present, 3 file digest, 4 end |
//! | 1…3 | 0 |
//! | 4…7 | file: index of the manifest's entry, u32 |
//! | 8…11 | block: index in the file, u32 |
//! | 12…15 | bytes of data that follow, u32 |
//! | 16…47 | block, present: digest of the block; file digest: that of the file; padded with zeros |
//! | 48…63 | 0 |
//!
//! Decoding never panics and never allocates.

use crate::files::BLOCK_BYTES;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 64;
/// Frames start at multiples of this.
pub const ALIGN_BYTES: usize = 8;
/// Bytes of a slot: one whole block, and room for headers or for many small files.
pub const SLOT_BYTES: usize = BLOCK_BYTES + (64 << 10);

/// One frame, as found in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A block of a file.
    Block {
        /// Entry.
        file: u32,
        /// Which block.
        block: u32,
        /// Its digest.
        digest: [u8; 32],
        /// Its bytes.
        data: &'a [u8],
    },
    /// A block that the receiver said it holds, and that the source has with this digest.
    Present {
        /// Entry.
        file: u32,
        /// Which block.
        block: u32,
        /// Its digest.
        digest: [u8; 32],
    },
    /// The source has read a whole file, found it unchanged, and this is its digest.
    FileDigest {
        /// Entry.
        file: u32,
        /// The digest, padded with zeros.
        digest: [u8; 32],
    },
    /// Everything was sent and the source as a whole is unchanged.
    End,
}

impl Frame<'_> {
    /// Bytes of the block in it.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        match self {
            Frame::Block { data, .. } => data.len(),
            _ => 0,
        }
    }
}

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FrameError(&'static str);

const UNKNOWN_KIND: FrameError = FrameError("a frame of an unknown kind");
const CUT: FrameError = FrameError("a message that ends within a frame");
const RESERVED: FrameError = FrameError("a frame whose reserved bytes are not zero");

/// Writes a header; `data` is the number of bytes that follow it.
pub fn write_header(out: &mut [u8; HEADER_BYTES], frame: &Frame<'_>) {
    let (kind, file, block, bytes, digest) = match *frame {
        // A block is at most 1 MiB.
        Frame::Block {
            file,
            block,
            digest,
            data,
        } => (1, file, block, data.len() as u32, digest),
        Frame::Present {
            file,
            block,
            digest,
        } => (2, file, block, 0, digest),
        Frame::FileDigest { file, digest } => (3, file, 0, 0, digest),
        Frame::End => (4, 0, 0, 0, [0; 32]),
    };
    out.fill(0);
    out[0] = kind;
    out[4..8].copy_from_slice(&file.to_le_bytes());
    out[8..12].copy_from_slice(&block.to_le_bytes());
    out[12..16].copy_from_slice(&bytes.to_le_bytes());
    out[16..48].copy_from_slice(&digest);
}

/// Bytes that `data` bytes take up after a header.
#[must_use]
pub fn padded(data: usize) -> usize {
    data.next_multiple_of(ALIGN_BYTES)
}

/// Goes through the frames of a message. A header of zeros ends the message: the bytes behind it in the
/// slot are those of an earlier, longer message.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Of a received slot.
    #[must_use]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.rest.iter().take(HEADER_BYTES).all(|b| *b == 0) {
            return None;
        }
        let found = take(&mut self.rest);
        if found.is_err() {
            self.rest = &[];
        }
        Some(found)
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<Frame<'a>, FrameError> {
    let (header, behind) = rest.split_first_chunk::<HEADER_BYTES>().ok_or(CUT)?;
    let word = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    if header[1..4].iter().chain(&header[48..]).any(|b| *b != 0) {
        return Err(RESERVED);
    }
    let (kind, file, block) = (header[0], word(4), word(8));
    let bytes = word(12) as usize;
    let mut digest = [0; 32];
    digest.copy_from_slice(&header[16..48]);
    if kind != 1 && bytes != 0 {
        return Err(RESERVED);
    }
    let frame = match kind {
        1 => {
            let data = behind.get(..bytes).ok_or(CUT)?;
            Frame::Block {
                file,
                block,
                digest,
                data,
            }
        }
        2 => Frame::Present {
            file,
            block,
            digest,
        },
        3 => Frame::FileDigest { file, digest },
        4 => Frame::End,
        _ => return Err(UNKNOWN_KIND),
    };
    *rest = behind.get(padded(bytes)..).unwrap_or_default();
    Ok(frame)
}
