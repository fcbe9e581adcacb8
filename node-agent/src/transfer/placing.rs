//! Placing: what is done with a message that has come, from a parent or from a store.
//!
//! Each block is checked against its hash and written, each file finished once it is whole, and all of
//! it published at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fault::Fault;
use crate::files::{Algorithm, BlockDigest, DestinationFile, Digest};
use crate::transfer::arrivals::Arrivals;
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::Buffer;
use crate::transfer::layout::Item;
use crate::transfer::message::Message;
use crate::transfer::record::{HEADER_BYTES, Record, Records, padded};
use crate::transfer::sender::Feed;
use crate::transfer::staged_blocks::Shelf;

/// One attempt's messages on their way to disk.
#[derive(Debug)]
pub(crate) struct Placing {
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// What it fills.
    pub shelf: Arc<Shelf>,
    /// How blocks are checked.
    pub algorithm: Algorithm,
    /// Where the messages come from, for messages: a node.
    from: String,
    /// Files of which something is missing: few, since messages come at most so far ahead.
    open: HashMap<u32, Arc<DestinationFile>>,
    arrivals: Arrivals,
}

/// What a message had in it.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Which message.
    pub number: u32,
    /// Of the message, in bytes.
    pub bytes: usize,
    /// Of its blocks, in bytes.
    pub data: u64,
    /// It is the message as the source builds it: no block was left out.
    pub whole: bool,
}

impl Placing {
    /// Nothing has come yet.
    pub(crate) fn new(
        attempt: Arc<Attempt>,
        shelf: Arc<Shelf>,
        algorithm: Algorithm,
        from: String,
    ) -> Self {
        Self {
            attempt,
            shelf,
            algorithm,
            from,
            open: HashMap::new(),
            arrivals: Arrivals::default(),
        }
    }

    /// Hands a message that was placed to the outlet where a child may want it; gives the buffer back,
    /// or a spare one for it. Without a spare, the child will read it from disk.
    pub(crate) fn pass_on(&self, buffer: Buffer, contents: &Contents) -> Buffer {
        let spare = if contents.whole {
            self.shelf.spare()
        } else {
            None
        };
        let Some((spare, pool)) = spare else {
            return buffer;
        };
        let message = Message {
            buffer: pool.share(buffer),
            bytes: contents.bytes,
        };
        self.shelf.tell(Feed::Built(contents.number, message));
        spare
    }

    /// The message is dealt with; whether all of them are.
    pub(crate) fn take(&mut self, contents: &Contents) -> bool {
        self.arrivals.take(contents.number);
        self.shelf.set_ready(self.arrivals.ready());
        self.arrivals.ready() == self.shelf.layout.messages()
    }

    /// Checks and writes a message's blocks. They must be those that the layout says.
    pub(crate) fn place(&mut self, buffer: &[u8]) -> Result<Contents, Fault> {
        let shelf = self.shelf.clone();
        let mut items: Option<Box<dyn Iterator<Item = Item> + '_>> = None;
        let mut contents = Contents {
            number: 0,
            bytes: 0,
            data: 0,
            whole: true,
        };
        for record in Records::new(buffer) {
            let record = record.map_err(|error| self.faulty(error.to_string()))?;
            let item = self.item(&record)?;
            let expected = match &mut items {
                Some(items) => items.next(),
                None => {
                    contents.number = shelf
                        .layout
                        .message_of(item)
                        .ok_or_else(|| self.faulty("a block there is not".to_owned()))?;
                    self.arrivals
                        .check(contents.number)
                        .map_err(|wrong| self.faulty(wrong.to_string()))?;
                    items
                        .insert(Box::new(shelf.layout.items(contents.number)))
                        .next()
                }
            };
            if expected != Some(item) {
                return Err(self.faulty(format!("message {} in another order", contents.number)));
            }
            contents.bytes += HEADER_BYTES;
            match record {
                Record::Block {
                    file,
                    block,
                    value,
                    data,
                } => {
                    contents.bytes += padded(data.len());
                    contents.data += data.len() as u64;
                    self.block(file, block, value, data)?;
                }
                Record::Held { file, block, value } => {
                    contents.whole = false;
                    self.held(file, block, value)?;
                }
                Record::FileDigest { file, value } => self.digest(file, &value)?,
                Record::End => {}
            }
        }
        match items.map(|mut items| items.next()) {
            Some(None) => {}
            _ => return Err(self.faulty("a message that is not whole".to_owned())),
        }
        contents.bytes = (contents.bytes + HEADER_BYTES).min(buffer.len());
        Ok(contents)
    }

    /// The item that a record claims to be.
    fn item(&self, record: &Record<'_>) -> Result<Item, Fault> {
        Ok(match *record {
            Record::Block {
                file, block, data, ..
            } => Item::Block {
                file,
                block,
                bytes: data.len(),
            },
            Record::Held { file, block, .. } => {
                let blocks = self.shelf.layout.file(file);
                let blocks = blocks.filter(|blocks| block < blocks.count());
                let bytes = blocks
                    .map(|blocks| blocks.len(block))
                    .ok_or_else(|| self.faulty("a block there is not".to_owned()))?;
                Item::Block { file, block, bytes }
            }
            Record::FileDigest { file, .. } => Item::FileDigest { file },
            Record::End => Item::End,
        })
    }

    fn block(&mut self, index: u32, block: u32, value: [u8; 32], data: &[u8]) -> Result<(), Fault> {
        let file = self.file(index)?;
        let verified = file
            .blocks()
            .verify(block, data, &BlockDigest(value))
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

    fn held(&mut self, index: u32, block: u32, value: [u8; 32]) -> Result<(), Fault> {
        let file = self.file(index)?;
        let digest = BlockDigest(value);
        let fresh = file.missing();
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
                "block {block} of {path} as held here, and it is not"
            )));
        }
        if file.missing() < fresh {
            let bytes = file.blocks().len(block) as u64;
            let counters = &self.attempt.counters;
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            counters.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
        }
        self.finish(index, &file)
    }

    fn digest(&mut self, index: u32, value: &[u8; 32]) -> Result<(), Fault> {
        let algorithm = self.algorithm;
        let (said, zeros) = value.split_at(algorithm.digest_bytes());
        let digest = Digest::from_bytes(algorithm, said)
            .filter(|_| zeros.iter().all(|byte| *byte == 0))
            .ok_or_else(|| self.faulty("a digest of another length".to_owned()))?;
        self.shelf.set_digest(index, digest);
        let file = self.file(index)?;
        self.finish(index, &file)
    }

    /// Takes a file as whole once it is, and once the source has said what it is.
    fn finish(&mut self, index: u32, file: &Arc<DestinationFile>) -> Result<(), Fault> {
        if file.missing() > 0 {
            return Ok(());
        }
        if let Some(digest) = self.shelf.digest(index) {
            self.shelf.finish(file, &digest)?;
            self.open.remove(&index);
        }
        Ok(())
    }

    fn file(&mut self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        if let Some(file) = self.open.get(&index) {
            return Ok(file.clone());
        }
        let file = self.shelf.file(index)?;
        self.open.insert(index, file.clone());
        Ok(file)
    }

    fn path(&self, index: u32) -> String {
        let entry = self.shelf.destination.manifest().entry(index as usize);
        entry.map_or_else(String::new, |entry| entry.path.to_owned())
    }

    /// Everything is here: gives the files their names. Whether that was done.
    pub(crate) fn publish(&self) -> Result<bool, Fault> {
        self.shelf.publish(&self.attempt)
    }

    fn faulty(&self, problem: String) -> Fault {
        Fault::PeerFaulty {
            node: self.from.clone(),
            problem,
        }
    }
}
