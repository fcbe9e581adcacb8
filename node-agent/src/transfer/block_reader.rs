//! Block readers: they build the messages that a sender asks for, from the source's files or from this node's
//! partial files.
//!
//! Each sender has a block reader's thread, because disks may be slow.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, select_biased};

use crate::fault::Fault;
use crate::files::{Digest, HashTree, Shape, Source, SourceFile, directory_digest};
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::Buffer;
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::frame::Frame;
use crate::transfer::layout::{Item, MessageLayout};
use crate::transfer::message::Builder;
use crate::transfer::sender_event::SenderEvent;

/// Something that messages can be read from.
pub(crate) trait BlockReader: Send {
    /// Builds a message at the start of `buffer` and returns its length in bytes.
    fn build(&mut self, number: u32, buffer: &mut [u8]) -> Result<usize, Fault>;
}

/// Builds the messages that are asked for, until the attempt stops or the sender ends.
pub(crate) fn serve(
    mut reader: impl BlockReader,
    attempt: &Attempt,
    build_requests_rx: &Receiver<(u32, Buffer)>,
    sender: &Sender<SenderEvent>,
) {
    let stopped = attempt.stop_channel();
    loop {
        let (number, mut buffer) = select_biased! {
            recv(stopped) -> _ => return,
            recv(build_requests_rx) -> request => match request {
                Ok(request) => request,
                Err(_) => return,
            },
        };
        let bytes = match reader.build(number, &mut buffer) {
            Ok(bytes) => bytes,
            Err(fault) => {
                attempt.fail(fault);
                return;
            }
        };
        if sender
            .send(SenderEvent::Built(number, buffer, bytes))
            .is_err()
        {
            return;
        }
    }
}

/// Reads and hashes the source's files.
pub(crate) struct SourceReader {
    source: Source,
    layout: Arc<MessageLayout>,
    /// Counts the bytes and takes the digest. None where a block writer does that.
    attempt: Option<Arc<Attempt>>,
    /// Open: the one being read, and one behind it for a child that lags.
    open: Vec<(u32, SourceFile)>,
    /// Files whose blocks are not all hashed.
    trees: HashMap<u32, HashTree>,
    /// By entry.
    digests: Vec<Option<Digest>>,
    /// Messages below this were built once.
    built: u32,
}

impl SourceReader {
    /// A reader of this source. `attempt` counts the bytes that are read.
    pub(crate) fn new(
        source: Source,
        layout: Arc<MessageLayout>,
        attempt: Option<Arc<Attempt>>,
    ) -> Self {
        let entries = source.manifest().len();
        Self {
            source,
            layout,
            attempt,
            open: Vec::new(),
            trees: HashMap::new(),
            digests: vec![None; entries],
            built: 0,
        }
    }

    fn file(&mut self, index: u32) -> Result<&SourceFile, Fault> {
        let at = match self.open.iter().position(|(open, _)| *open == index) {
            Some(at) => at,
            None => {
                let file = self.source.open(index)?;
                if self.open.len() == 2 {
                    self.open.remove(0);
                }
                self.open.push((index, file));
                self.open.len() - 1
            }
        };
        Ok(&self.open[at].1)
    }

    fn block(
        &mut self,
        builder: &mut Builder<'_>,
        index: u32,
        block: u32,
        bytes: usize,
    ) -> Result<(), Fault> {
        let algorithm = self.layout.algorithm;
        let file = self.file(index)?;
        let blocks = file.blocks(algorithm);
        let room = builder.room(bytes);
        file.read_block(block, room)?;
        let digest = blocks.digest(block, room);
        builder.block(index, block, digest.0, bytes);
        if self.digests[index as usize].is_none() {
            self.trees
                .entry(index)
                .or_insert_with(|| HashTree::new(blocks))
                .set(block, digest);
        }
        Ok(())
    }

    /// A file's digest. Before it is computed, the file is compared with the manifest.
    fn digest(&mut self, index: u32) -> Result<Digest, Fault> {
        if let Some(digest) = self.digests[index as usize] {
            return Ok(digest);
        }
        let algorithm = self.layout.algorithm;
        self.source.entry_unchanged(index)?;
        let tree = match self.trees.remove(&index) {
            Some(tree) => tree,
            None => HashTree::new(self.file(index)?.blocks(algorithm)),
        };
        let unordered = || format!("blocks of file {index} were asked for out of order");
        let digest = tree.root().ok_or_else(|| Fault::engine(unordered()))?;
        self.digests[index as usize] = Some(digest);
        Ok(digest)
    }

    /// Everything was read: the source must still be as the manifest says.
    fn end(&mut self) -> Result<(), Fault> {
        self.source.unchanged()?;
        let manifest = self.source.manifest();
        let digest = match manifest.shape() {
            Shape::File => self.digests.first().copied().flatten(),
            Shape::Directory => {
                let files = manifest.files().filter_map(|(index, entry, _)| {
                    Some((entry.path, self.digests[index as usize]?))
                });
                Some(directory_digest(self.layout.algorithm, files))
            }
        };
        if let Some(attempt) = &self.attempt {
            attempt.all_blocks(digest);
        }
        Ok(())
    }
}

impl BlockReader for SourceReader {
    fn build(&mut self, number: u32, buffer: &mut [u8]) -> Result<usize, Fault> {
        let layout = self.layout.clone();
        let mut builder = Builder::new(buffer);
        let mut read = 0;
        for item in layout.items(number) {
            match item {
                Item::Block { file, block, bytes } => {
                    self.block(&mut builder, file, block, bytes)?;
                    read += bytes as u64;
                }
                Item::FileDigest { file } => {
                    let digest = padded_digest(&self.digest(file)?);
                    builder.frame(&Frame::FileDigest { file, digest });
                }
                Item::End => {
                    self.end()?;
                    builder.frame(&Frame::End);
                }
            }
        }
        if number >= self.built {
            self.built = number + 1;
            if let Some(attempt) = &self.attempt {
                attempt.counters.bytes.fetch_add(read, Ordering::Relaxed);
            }
        }
        Ok(builder.finish())
    }
}

/// Reads the blocks of a destination back from its files. They are in the page cache unless a child is
/// far behind.
pub(crate) struct DestinationBlocksReader(pub Arc<DestinationBlocks>);

impl BlockReader for DestinationBlocksReader {
    fn build(&mut self, number: u32, buffer: &mut [u8]) -> Result<usize, Fault> {
        let missing = |what: String| Fault::engine(format!("{what} is not here yet"));
        let mut builder = Builder::new(buffer);
        for item in self.0.layout.items(number) {
            match item {
                Item::Block { file, block, bytes } => {
                    let open = self.0.file(file)?;
                    let digest = open
                        .read_block(block, builder.room(bytes))?
                        .ok_or_else(|| missing(format!("block {block} of file {file}")))?;
                    builder.block(file, block, digest.0, bytes);
                }
                Item::FileDigest { file } => {
                    let digest = self.0.digest(file);
                    let digest = digest.ok_or_else(|| missing(format!("digest of file {file}")))?;
                    let digest = padded_digest(&digest);
                    builder.frame(&Frame::FileDigest { file, digest });
                }
                Item::End => builder.frame(&Frame::End),
            }
        }
        Ok(builder.finish())
    }
}

/// A digest as frames carry it.
pub(crate) fn padded_digest(digest: &Digest) -> [u8; 32] {
    let mut padded = [0; 32];
    let bytes = digest.as_bytes();
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}
