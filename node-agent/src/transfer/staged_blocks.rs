//! Staged blocks: what a destination has of a transfer. The receiver fills them, and the sender passes them on.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;
use weft_proto::agent::v1::HaveRun;

use crate::fault::Fault;
use crate::files::{BLOCK_BYTES, Destination, DestinationFile, Digest};
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::{Buffer, BufferPool};
use crate::transfer::layout::Layout;
use crate::transfer::sender_event::SenderEvent;
use crate::transfer::state::State;

/// Files that stay open though nobody reads them now: opening a finished one again hashes it again.
const OPEN_FILES: usize = 64;

/// Blocks that are reported to a parent, at most: 32 MiB of hashes, which is half of what the control API takes
/// in a message. Blocks beyond that are sent again.
const HAVE_BLOCKS_MAX: u64 = 1 << 20;

/// A prepared destination.
#[derive(Debug)]
pub(crate) struct StagedBlocks {
    /// Its files.
    pub destination: Arc<Destination>,
    /// How the manifest is cut.
    pub layout: Arc<Layout>,
    /// The blocks that were found on disk.
    pub have: Vec<HaveRun>,
    /// How many blocks those are.
    pub have_blocks: u64,
    /// Their bytes.
    pub have_bytes: u64,
    /// Messages from the first that are complete here.
    ready: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By entry: what the source said of files that are not finished.
    digests: HashMap<u32, Digest>,
    /// Least recently used first.
    open: VecDeque<(u32, Arc<DestinationFile>)>,
    sender: Option<(Sender<SenderEvent>, Arc<BufferPool>)>,
}

impl StagedBlocks {
    /// All blocks are here: gives the files their names. False when the attempt was stopped before.
    pub(crate) fn publish(&self, attempt: &Attempt) -> Result<bool, Fault> {
        attempt.all_blocks(self.destination.digest());
        // A cancel that came before this line wins; a later one finds the files published.
        if attempt.state() != State::Verifying {
            return Ok(false);
        }
        let digest = self.destination.complete()?;
        let file_by_file = self.destination.is_file_by_file();
        let counters = &attempt.counters;
        counters.file_by_file.store(file_by_file, Ordering::Relaxed);
        attempt.published(Some(digest));
        Ok(true)
    }

    /// Hashes what is on disk. Calls `check_stop` between files.
    pub(crate) fn fill(
        destination: Arc<Destination>,
        layout: Layout,
        check_stop: impl Fn() -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let files: Vec<u32> = destination
            .manifest()
            .files()
            .map(|(index, ..)| index)
            .collect();
        let mut staged = Self {
            destination,
            layout: Arc::new(layout),
            have: Vec::new(),
            have_blocks: 0,
            have_bytes: 0,
            ready: AtomicU32::new(0),
            inner: Mutex::default(),
        };
        let mut buffer = vec![0; BLOCK_BYTES];
        for index in files {
            check_stop()?;
            let file = staged.destination.open(index)?;
            let found = file.rehash(&mut buffer)?;
            let blocks = file.blocks();
            if !found.is_empty() {
                staged.keep(index, file);
            }
            for (block, digest) in found {
                if staged.have_blocks == HAVE_BLOCKS_MAX {
                    break;
                }
                staged.have_blocks += 1;
                staged.have_bytes += blocks.len(block) as u64;
                match staged.have.last_mut() {
                    Some(run)
                        if run.file == index
                            && run.first_block as usize + run.values.len() / 32
                                == block as usize =>
                    {
                        run.values.extend_from_slice(&digest.0);
                    }
                    _ => staged.have.push(HaveRun {
                        file: index,
                        first_block: block,
                        values: digest.0.to_vec(),
                    }),
                }
            }
        }
        Ok(staged)
    }

    /// An open file. One that was used a short time ago is still open.
    pub(crate) fn file(&self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        let kept = {
            let inner = &mut *self.lock();
            let at = inner.open.iter().position(|(kept, _)| *kept == index);
            at.and_then(|at| inner.open.remove(at))
        };
        let file = match kept {
            Some((_, file)) => file,
            None => self.destination.open(index)?,
        };
        self.keep(index, file.clone());
        Ok(file)
    }

    fn keep(&self, index: u32, file: Arc<DestinationFile>) {
        let dropped = {
            let mut inner = self.lock();
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
    pub(crate) fn clear(&self) {
        let open = std::mem::take(&mut self.lock().open);
        drop(open);
    }

    /// The digest of a file, if the source has sent it.
    #[must_use]
    pub(crate) fn digest(&self, index: u32) -> Option<Digest> {
        let sent = self.lock().digests.get(&index).copied();
        sent.or_else(|| self.destination.digest_of_file(index))
    }

    /// Keeps the digest that the source has sent.
    pub(crate) fn set_digest(&self, index: u32, digest: Digest) {
        self.lock().digests.insert(index, digest);
    }

    /// Takes a file as whole, if it has the digest that the source sent.
    pub(crate) fn finish(&self, file: &DestinationFile, digest: &Digest) -> Result<(), Fault> {
        self.destination.finish(file, digest)?;
        self.lock().digests.remove(&file.index());
        Ok(())
    }

    /// Messages from the first that are complete here.
    #[must_use]
    pub(crate) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Acquire)
    }

    /// Raises that number and sends it to the sender.
    pub(crate) fn set_ready(&self, ready: u32) {
        self.ready.fetch_max(ready, Ordering::AcqRel);
        self.notify(SenderEvent::Ready(ready));
    }

    /// From now on this sender gets an event for each message that arrives. Earlier messages are counted by
    /// [`ready`](Self::ready), which the sender reads afterwards.
    pub(crate) fn set_sender(&self, sender: Sender<SenderEvent>, pool: Arc<BufferPool>) {
        self.lock().sender = Some((sender, pool));
    }

    /// A buffer of the sender's pool, in exchange for one with a message, which then belongs to the pool. None
    /// where there is no sender, or no buffer.
    #[must_use]
    pub(crate) fn spare(&self) -> Option<(Buffer, Arc<BufferPool>)> {
        let pool = self.lock().sender.as_ref().map(|(_, pool)| pool.clone())?;
        Some((pool.try_take()?, pool))
    }

    /// Sends an event to the sender, if there is one. A sender that has ended is dropped with its pool.
    pub(crate) fn notify(&self, event: SenderEvent) {
        let over = {
            let mut inner = self.lock();
            let sent = inner.sender.as_ref().map(|(sender, _)| sender.send(event));
            match sent {
                Some(Err(unsent)) => Some((inner.sender.take(), unsent)),
                Some(Ok(())) | None => None,
            }
        };
        // Dropping a pool may take long: not under the lock.
        drop(over);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Access, Algorithm, DestinationConfig, Manifest, Overwrite, Root, RootPath};
    use crate::transfer::buffers::MemoryBudget;
    use crate::transfer::record::SLOT_BYTES;

    #[test]
    fn the_buffers_of_a_sender_that_has_ended_are_free_while_more_arrives() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"a").unwrap();
        let root = Arc::new(Root::open("r", directory.path(), Access::ReadWrite).unwrap());
        let path = |text| RootPath::parse(text).unwrap();
        let manifest = Arc::new(Manifest::scan(&root, &path("a")).unwrap());
        let layout = Layout::new(&manifest, Algorithm::Blake3);
        let config = DestinationConfig {
            root,
            path: path("b"),
            job: "job".parse().unwrap(),
            recorded_for: None,
            manifest,
            algorithm: Algorithm::Blake3,
            overwrite: Overwrite::IfDifferent,
            expect: None,
        };
        let destination = Arc::new(Destination::prepare(config).unwrap());
        let staged = StagedBlocks::fill(destination, layout, || Ok(())).unwrap();
        let budget = MemoryBudget::new(4 * SLOT_BYTES as u64);
        let pool = budget.pool(2, 4).unwrap();
        let (sender, sender_events) = crossbeam_channel::unbounded();
        staged.set_sender(sender, pool.clone());
        let kept = pool.share(pool.take().unwrap());
        staged.set_ready(0);
        drop(pool);
        assert!(staged.spare().is_some(), "the sender is at work");
        // It ends, and what it kept goes with it.
        drop((sender_events, kept));
        staged.set_ready(1);
        assert!(staged.spare().is_none());
        assert_eq!(budget.used(), 0);
        assert!(budget.share(4).is_ok());
    }
}
