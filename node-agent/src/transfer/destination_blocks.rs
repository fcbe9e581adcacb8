//! `DestinationBlocks`: what a destination has of a transfer, found on disk or received. A relay's sender reads them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use weft_proto::agent::v1::PresentRun;

use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{BLOCK_BYTES, Destination, DestinationFile, Digest};
use crate::transfer::layout::MessageLayout;
use crate::transfer::sender_event::SenderEvent;

/// Files that stay open though nobody reads them now: opening a finished one again hashes it again.
const OPEN_FILES: usize = 64;

/// Blocks that are reported to a parent, at most: 32 MiB of hashes, which is half of what the control API takes
/// in a message. Blocks beyond that are sent again.
const PRESENT_BLOCKS_MAX: u64 = 1 << 20;

/// What a prepared destination has.
#[derive(Debug)]
pub(crate) struct DestinationBlocks {
    /// Its files.
    pub destination: Arc<Destination>,
    /// How the manifest is cut.
    pub layout: Arc<MessageLayout>,
    /// The blocks that were found on disk.
    pub present: Vec<PresentRun>,
    /// How many blocks those are.
    pub present_blocks: u64,
    /// Their bytes.
    pub present_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By entry: what the source said of files that are not finished.
    digests: HashMap<u32, Digest>,
    /// Least recently used first.
    open: VecDeque<(u32, Arc<DestinationFile>)>,
    /// Number of messages that are complete here without a gap, from the first.
    readable_until: u32,
    sender: Option<Sender<SenderEvent>>,
}

impl DestinationBlocks {
    /// Hashes what is on disk. Calls `check_stop` between files.
    pub(crate) fn scan_disk(
        destination: Arc<Destination>,
        layout: MessageLayout,
        check_stop: impl Fn() -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let files: Vec<u32> = destination
            .manifest()
            .files()
            .map(|(index, ..)| index)
            .collect();
        let mut this = Self {
            destination,
            layout: Arc::new(layout),
            present: Vec::new(),
            present_blocks: 0,
            present_bytes: 0,
            inner: Mutex::default(),
        };
        let mut buffer = vec![0; BLOCK_BYTES];
        for index in files {
            check_stop()?;
            let file = this.destination.open(index)?;
            let found = file.rehash(&mut buffer)?;
            let blocks = file.blocks();
            if !found.is_empty() {
                this.cache_open_file(index, file);
            }
            for (block, digest) in found {
                if this.present_blocks == PRESENT_BLOCKS_MAX {
                    break;
                }
                this.present_blocks += 1;
                this.present_bytes += blocks.len(block) as u64;
                match this.present.last_mut() {
                    Some(run)
                        if run.file == index
                            && run.first_block as usize + run.values.len() / 32
                                == block as usize =>
                    {
                        run.values.extend_from_slice(&digest.0);
                    }
                    _ => this.present.push(PresentRun {
                        file: index,
                        first_block: block,
                        values: digest.0.to_vec(),
                    }),
                }
            }
        }
        Ok(this)
    }

    /// An open file. One that was used a short time ago is still open.
    pub(crate) fn file(&self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        let kept = {
            let inner = &mut *fail_fast::lock(&self.inner);
            let at = inner.open.iter().position(|(kept, _)| *kept == index);
            at.and_then(|at| inner.open.remove(at))
        };
        let file = match kept {
            Some((_, file)) => file,
            None => self.destination.open(index)?,
        };
        self.cache_open_file(index, file.clone());
        Ok(file)
    }

    fn cache_open_file(&self, index: u32, file: Arc<DestinationFile>) {
        let dropped = {
            let mut inner = fail_fast::lock(&self.inner);
            inner.open.push_back((index, file));
            if inner.open.len() > OPEN_FILES {
                inner.open.pop_front()
            } else {
                None
            }
        };
        // Closing a file may take long: not under the lock.
        drop(dropped);
    }

    /// Closes all files.
    pub(crate) fn close_files(&self) {
        let open = std::mem::take(&mut fail_fast::lock(&self.inner).open);
        drop(open);
    }

    /// The digest of a file, if the source has sent it.
    pub(crate) fn digest(&self, index: u32) -> Option<Digest> {
        let sent = fail_fast::lock(&self.inner).digests.get(&index).copied();
        sent.or_else(|| self.destination.digest_of_file(index))
    }

    /// Keeps the digest that the source has sent.
    pub(crate) fn set_digest(&self, index: u32, digest: Digest) {
        fail_fast::lock(&self.inner).digests.insert(index, digest);
    }

    /// Takes a file as whole, if it has the digest that the source sent.
    pub(crate) fn finish(&self, file: &DestinationFile, digest: &Digest) -> Result<(), Fault> {
        self.destination.finish(file, digest)?;
        fail_fast::lock(&self.inner).digests.remove(&file.index());
        Ok(())
    }

    /// Raises the number of messages, from the first, that are complete here.
    pub(crate) fn set_readable_until(&self, message: u32) {
        let mut inner = fail_fast::lock(&self.inner);
        inner.readable_until = message;
        if let Some(sender) = &inner.sender {
            // A sender that has ended needs no event.
            let _ = sender.send(SenderEvent::ReadableUntil(message));
        }
    }

    /// From now on this sender gets an event when that number rises. Returns the number now.
    pub(crate) fn subscribe_sender(&self, sender: Sender<SenderEvent>) -> u32 {
        let mut inner = fail_fast::lock(&self.inner);
        inner.sender = Some(sender);
        inner.readable_until
    }
}
