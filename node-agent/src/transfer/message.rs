//! Messages: building one in a buffer, and leaving out the blocks that a child has already.

use std::sync::Arc;

use weft_proto::agent::v1::PresentRun;

use crate::transfer::buffers::Buffer;
use crate::transfer::frame::{Frame, Frames, HEADER_BYTES, padded, write_header};

/// A built message, shared by the children it goes to.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The bytes; only the first `bytes` count.
    pub buffer: Arc<Buffer>,
    /// Length, the closing header of zeros included.
    pub bytes: usize,
}

/// Writes frames into a buffer one behind the other.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Builder<'a> {
    /// Starts at the front of a buffer of [`SLOT_BYTES`], or of one made to measure.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// Where the data of the next frame goes: to be filled before [`Builder::block`].
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        let at = self.used + HEADER_BYTES;
        &mut self.buffer[at..at + bytes]
    }

    /// Closes a block whose data was put into [`Builder::room`].
    pub(crate) fn block(&mut self, file: u32, block: u32, digest: [u8; 32], bytes: usize) {
        let (header, data) = self.buffer[self.used..].split_at_mut(HEADER_BYTES);
        let frame = Frame::Block {
            file,
            block,
            digest,
            data: &data[..bytes],
        };
        let mut written = [0; HEADER_BYTES];
        write_header(&mut written, &frame);
        header.copy_from_slice(&written);
        data[bytes..padded(bytes)].fill(0);
        self.used += HEADER_BYTES + padded(bytes);
    }

    /// Adds a frame; a block with its data.
    pub(crate) fn frame(&mut self, frame: &Frame<'_>) {
        if let Frame::Block {
            file,
            block,
            digest,
            data,
        } = *frame
        {
            self.room(data.len()).copy_from_slice(data);
            self.block(file, block, digest, data.len());
            return;
        }
        let mut header = [0; HEADER_BYTES];
        write_header(&mut header, frame);
        self.buffer[self.used..self.used + HEADER_BYTES].copy_from_slice(&header);
        self.used += HEADER_BYTES;
    }

    /// Where the next frame will begin.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Ends the message; its length.
    pub(crate) fn finish(self) -> usize {
        let end = (self.used + HEADER_BYTES).min(self.buffer.len());
        self.buffer[self.used..end].fill(0);
        end
    }
}

/// Puts a file's digest into the frame at that place, which was written without.
pub(crate) fn set_digest(buffer: &mut [u8], at: usize, file: u32, digest: [u8; 32]) {
    let mut header = [0; HEADER_BYTES];
    write_header(&mut header, &Frame::FileDigest { file, digest });
    buffer[at..at + HEADER_BYTES].copy_from_slice(&header);
}

/// The digests of the blocks that a destination has already.
#[derive(Debug, Clone, Default)]
pub(crate) struct PresentBlocks {
    /// Sorted by file and first block, not overlapping.
    runs: Vec<PresentRun>,
}

impl PresentBlocks {
    /// From a child's answer. Runs that say nothing or overlap are the child's fault.
    pub(crate) fn new(mut runs: Vec<PresentRun>) -> Result<Self, &'static str> {
        if runs
            .iter()
            .any(|run| run.values.is_empty() || run.values.len() % 32 != 0)
        {
            return Err("a list of present blocks whose hashes are not 32 bytes each");
        }
        runs.sort_by_key(|run| (run.file, run.first_block));
        let overlaps = |pair: &[PresentRun]| {
            let end = u64::from(pair[0].first_block) + (pair[0].values.len() / 32) as u64;
            pair[0].file == pair[1].file && end > u64::from(pair[1].first_block)
        };
        if runs.windows(2).any(overlaps) {
            return Err("a list of present blocks that names one twice");
        }
        Ok(Self { runs })
    }

    /// The digest of a block that the child has.
    pub(crate) fn get(&self, file: u32, block: u32) -> Option<[u8; 32]> {
        let behind = self
            .runs
            .partition_point(|run| (run.file, run.first_block) <= (file, block));
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let at = block.checked_sub(run.first_block)? as usize;
        let (values, _) = run.values.as_chunks::<32>();
        values.get(at).copied().filter(|_| run.file == file)
    }

    fn holds(&self, frame: &Frame<'_>) -> bool {
        match *frame {
            Frame::Block {
                file,
                block,
                digest,
                ..
            } => self.get(file, block) == Some(digest),
            _ => false,
        }
    }

    /// The same message with `Present` frames for the blocks that the child holds. None where it holds none of
    /// them.
    #[must_use]
    pub(crate) fn shorten(&self, message: &[u8]) -> Option<Buffer> {
        if self.runs.is_empty() {
            return None;
        }
        let frames = Frames::new(message);
        let saved: usize = frames
            .clone()
            .flatten()
            .filter(|frame| self.holds(frame))
            .map(|frame| padded(frame.data_bytes()))
            .sum();
        if saved == 0 {
            return None;
        }
        let mut buffer = vec![0; message.len() - saved].into_boxed_slice();
        let mut builder = Builder::new(&mut buffer);
        for frame in frames.flatten() {
            match frame {
                Frame::Block {
                    file,
                    block,
                    digest,
                    ..
                } if self.holds(&frame) => builder.frame(&Frame::Present {
                    file,
                    block,
                    digest,
                }),
                other => builder.frame(&other),
            }
        }
        builder.finish();
        Some(buffer)
    }
}

/// Bytes of file data in a message.
pub(crate) fn data_bytes(message: &Message) -> u64 {
    let frames = Frames::new(&message.buffer[..message.bytes]).flatten();
    frames.map(|frame| frame.data_bytes() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::frame::SLOT_BYTES;

    fn message() -> Message {
        let mut buffer = vec![0xAA; SLOT_BYTES].into_boxed_slice();
        let mut builder = Builder::new(&mut buffer);
        builder.frame(&Frame::Block {
            file: 1,
            block: 0,
            digest: [1; 32],
            data: b"hello",
        });
        builder.frame(&Frame::FileDigest {
            file: 1,
            digest: [9; 32],
        });
        builder.frame(&Frame::Block {
            file: 2,
            block: 7,
            digest: [2; 32],
            data: &[3; 1000],
        });
        builder.frame(&Frame::End);
        let bytes = builder.finish();
        Message {
            buffer: Arc::new(buffer),
            bytes,
        }
    }

    fn run(file: u32, first_block: u32, values: &[u8]) -> PresentRun {
        let values = values.iter().flat_map(|v| [*v; 32]).collect();
        PresentRun {
            file,
            first_block,
            values,
        }
    }

    #[test]
    fn what_is_built_is_read_back() {
        let message = message();
        let read: Result<Vec<_>, _> = Frames::new(&message.buffer).collect();
        assert_eq!(
            read.unwrap(),
            [
                Frame::Block {
                    file: 1,
                    block: 0,
                    digest: [1; 32],
                    data: b"hello"
                },
                Frame::FileDigest {
                    file: 1,
                    digest: [9; 32]
                },
                Frame::Block {
                    file: 2,
                    block: 7,
                    digest: [2; 32],
                    data: &[3; 1000]
                },
                Frame::End,
            ]
        );
        assert_eq!(data_bytes(&message), 1005);
    }

    #[test]
    fn a_child_that_holds_a_block_is_told_its_hash_instead() {
        let present = PresentBlocks::new(vec![run(2, 6, &[8, 2, 8]), run(1, 0, &[7])]).unwrap();
        let message = message();
        let short = present.shorten(&message.buffer[..message.bytes]).unwrap();
        let read: Result<Vec<_>, _> = Frames::new(&short).collect();
        assert_eq!(
            read.unwrap(),
            [
                // Present with another digest: sent.
                Frame::Block {
                    file: 1,
                    block: 0,
                    digest: [1; 32],
                    data: b"hello"
                },
                Frame::FileDigest {
                    file: 1,
                    digest: [9; 32]
                },
                Frame::Present {
                    file: 2,
                    block: 7,
                    digest: [2; 32]
                },
                Frame::End,
            ]
        );
        assert!(short.len() < 500);
        let other = PresentBlocks::new(vec![run(2, 6, &[8])]).unwrap();
        assert!(other.shorten(&message.buffer[..message.bytes]).is_none());
    }

    #[test]
    fn lists_of_held_blocks_are_checked() {
        let cut = PresentRun {
            file: 0,
            first_block: 0,
            values: vec![0; 33],
        };
        assert!(PresentBlocks::new(vec![cut]).is_err());
        assert!(PresentBlocks::new(vec![run(1, 0, &[1, 2]), run(1, 1, &[3])]).is_err());
        assert!(PresentBlocks::new(vec![run(1, 0, &[1, 2]), run(1, 2, &[3])]).is_ok());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let message = message();
        let mut bytes = message.buffer[..message.bytes].to_vec();
        for at in 0..bytes.len().min(400) {
            for value in [0, 1, 0x7F, 0xFF] {
                let before = std::mem::replace(&mut bytes[at], value);
                for cut in [bytes.len(), at] {
                    let _ = Frames::new(&bytes[..cut]).count();
                }
                bytes[at] = before;
            }
        }
    }
}
