//! `BlockWriter`: writes messages to disk, whether they come from a parent, a store or this node's own files.
//!
//! It checks each block against its hash and writes it, finishes each file once it is whole, and publishes
//! all files at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fault::Fault;
use crate::files::{BlockDigest, DestinationFile, Digest};
use crate::transfer::attempt::Attempt;
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::frame::{Frame, Frames};
use crate::transfer::layout::Item;
use crate::transfer::receive_window::ReceiveWindow;
use crate::transfer::state::State;

/// Writes one attempt's messages.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    attempt: Arc<Attempt>,
    blocks: Arc<DestinationBlocks>,
    /// Where the messages come from, for error messages: a node or a store.
    from: String,
    /// Files of which something is missing: few, because messages come at most so far ahead.
    open: HashMap<u32, Arc<DestinationFile>>,
    receive_window: ReceiveWindow,
}

/// What was in a message.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Which message.
    pub number: u32,
    /// Bytes of its blocks.
    pub data: u64,
    /// All messages have come now.
    pub is_all: bool,
}

impl BlockWriter {
    /// Nothing has come yet.
    pub(crate) fn new(attempt: Arc<Attempt>, blocks: Arc<DestinationBlocks>, from: String) -> Self {
        Self {
            attempt,
            blocks,
            from,
            open: HashMap::new(),
            receive_window: ReceiveWindow::default(),
        }
    }

    /// Checks and writes a message's blocks. They must be those that the layout says.
    pub(crate) fn write_message(&mut self, buffer: &[u8]) -> Result<Contents, Fault> {
        let blocks = self.blocks.clone();
        let first = Frames::new(buffer).next();
        let first = first.ok_or_else(|| self.faulty("an empty message".to_owned()))?;
        let first = first.map_err(|error| self.faulty(error.to_string()))?;
        let number = blocks.layout.message_of(self.item(&first)?);
        let number = number.ok_or_else(|| self.faulty("an unknown block".to_owned()))?;
        let checked = self.receive_window.check(number);
        checked.map_err(|wrong| self.faulty(wrong))?;
        let mut items = blocks.layout.items(number);
        let mut contents = Contents {
            number,
            data: 0,
            is_all: false,
        };
        for frame in Frames::new(buffer) {
            let frame = frame.map_err(|error| self.faulty(error.to_string()))?;
            if items.next() != Some(self.item(&frame)?) {
                return Err(self.faulty(format!("message {number} in another order")));
            }
            match frame {
                Frame::Block {
                    file,
                    block,
                    digest,
                    data,
                } => {
                    contents.data += data.len() as u64;
                    self.block(file, block, digest, data)?;
                }
                Frame::Present {
                    file,
                    block,
                    digest,
                } => self.present(file, block, digest)?,
                Frame::FileDigest { file, digest } => self.digest(file, &digest)?,
                Frame::End => {}
            }
        }
        if items.next().is_some() {
            return Err(self.faulty("a message that is not whole".to_owned()));
        }
        self.receive_window.mark_received(number);
        let readable_until = self.receive_window.readable_until();
        blocks.set_readable_until(readable_until);
        contents.is_all = readable_until == blocks.layout.messages();
        Ok(contents)
    }

    /// The item that a frame claims to be.
    fn item(&self, frame: &Frame<'_>) -> Result<Item, Fault> {
        Ok(match *frame {
            Frame::Block {
                file, block, data, ..
            } => Item::Block {
                file,
                block,
                bytes: data.len(),
            },
            Frame::Present { file, block, .. } => {
                let blocks = self.blocks.layout.file(file);
                let blocks = blocks.filter(|blocks| block < blocks.count());
                let bytes = blocks
                    .map(|blocks| blocks.len(block))
                    .ok_or_else(|| self.faulty("an unknown block".to_owned()))?;
                Item::Block { file, block, bytes }
            }
            Frame::FileDigest { file, .. } => Item::FileDigest { file },
            Frame::End => Item::End,
        })
    }

    fn block(
        &mut self,
        index: u32,
        block: u32,
        digest: [u8; 32],
        data: &[u8],
    ) -> Result<(), Fault> {
        let file = self.file(index)?;
        let verified = file
            .blocks()
            .verify(block, data, &BlockDigest(digest))
            .map_err(|cause| Fault::BlockRefused {
                node: self.from.clone(),
                path: self.path(index),
                cause,
            })?;
        if file.write_block(&verified)? {
            self.attempt
                .counters
                .bytes
                .fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        self.finish(index, &file)
    }

    fn present(&mut self, index: u32, block: u32, digest: [u8; 32]) -> Result<(), Fault> {
        let file = self.file(index)?;
        let digest = BlockDigest(digest);
        let missing_before = file.missing();
        let mut confirmed = file.confirm(block, &digest)?;
        if !confirmed {
            // Too many files to have kept them all open since they were hashed.
            let mut buffer = vec![0; file.blocks().len(0)];
            file.rehash(&mut buffer)?;
            confirmed = file.confirm(block, &digest)?;
        }
        if !confirmed {
            let path = self.path(index);
            return Err(self.faulty(format!(
                "a frame that says that this node has block {block} of {path}, which it has not"
            )));
        }
        if file.missing() < missing_before {
            let bytes = file.blocks().len(block) as u64;
            let counters = &self.attempt.counters;
            // First, so that no report has them as bytes that came.
            counters.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.finish(index, &file)
    }

    fn digest(&mut self, index: u32, digest: &[u8; 32]) -> Result<(), Fault> {
        let algorithm = self.blocks.layout.algorithm;
        let (sent, zeros) = digest.split_at(algorithm.digest_bytes());
        let digest = Digest::from_bytes(algorithm, sent)
            .filter(|_| zeros.iter().all(|byte| *byte == 0))
            .ok_or_else(|| self.faulty("a digest of another length".to_owned()))?;
        self.blocks.set_digest(index, digest);
        let file = self.file(index)?;
        self.finish(index, &file)
    }

    /// Finishes a file once all its blocks are here and the source has sent its digest.
    fn finish(&mut self, index: u32, file: &Arc<DestinationFile>) -> Result<(), Fault> {
        if file.missing() > 0 {
            return Ok(());
        }
        if let Some(digest) = self.blocks.digest(index) {
            self.blocks.finish(file, &digest)?;
            self.open.remove(&index);
        }
        Ok(())
    }

    fn file(&mut self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        if let Some(file) = self.open.get(&index) {
            return Ok(file.clone());
        }
        let file = self.blocks.file(index)?;
        self.open.insert(index, file.clone());
        Ok(file)
    }

    fn path(&self, index: u32) -> String {
        let entry = self.blocks.destination.manifest().entry(index as usize);
        entry.map_or_else(String::new, |entry| entry.path.to_owned())
    }

    /// All blocks are here: gives the files their names. False when the attempt was stopped before.
    pub(crate) fn publish(&self) -> Result<bool, Fault> {
        let (attempt, destination) = (&self.attempt, &self.blocks.destination);
        attempt.all_blocks(destination.digest());
        // A cancel that came before this line wins; a later one finds the files published.
        if attempt.state() != State::Verifying {
            return Ok(false);
        }
        let digest = destination.publish()?;
        let file_by_file = destination.is_file_by_file();
        let counters = &attempt.counters;
        counters.file_by_file.store(file_by_file, Ordering::Relaxed);
        attempt.set_published(Some(digest));
        Ok(true)
    }

    fn faulty(&self, problem: String) -> Fault {
        Fault::faulty(&self.from, problem)
    }
}
