//! What a destination has of a transfer: shared by its intake, which fills it, and its outlet,
//! which passes it on.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;
use weft_proto::agent::v1::HaveRun;

use crate::fault::Fault;
use crate::files::{BLOCK_BYTES, Destination, DestinationFile, Digest};
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::{Buffer, Pool};
use crate::transfer::layout::Layout;
use crate::transfer::sender::Feed;
use crate::transfer::state;

/// Files kept open though nobody needs them now: opening a finished one again hashes it again.
const OPEN_FILES: usize = 64;

/// Blocks that are told to a sender, at most: 32 MiB of hashes, which is half of what the control
/// API takes in a message. What is left out is sent again.
const HAVE_BLOCKS_MAX: usize = 1 << 20;

/// A prepared destination.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// Its files.
    pub destination: Arc<Destination>,
    /// How the manifest is cut.
    pub layout: Arc<Layout>,
    /// What was found on disk.
    pub have: Vec<HaveRun>,
    /// Messages from the first that are complete here.
    ready: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By entry; what the source said of files that are not finished.
    digests: HashMap<u32, Digest>,
    /// Least recently used first.
    open: VecDeque<(u32, Arc<DestinationFile>)>,
    outlet: Option<(Sender<Feed>, Arc<Pool>)>,
}

impl Shelf {
    /// All blocks are here: gives the files their names. Whether that was done.
    pub(crate) fn publish(&self, attempt: &Attempt) -> Result<bool, Fault> {
        attempt.all_blocks(self.destination.digest());
        // A cancel that came before this line wins; one that comes later finds the files published.
        if attempt.state() != state::State::Verifying {
            return Ok(false);
        }
        let digest = self.destination.complete()?;
        let file_by_file = self.destination.is_file_by_file();
        let counters = &attempt.counters;
        counters.file_by_file.store(file_by_file, Ordering::Relaxed);
        attempt.published(Some(digest));
        Ok(true)
    }

    /// Hashes what is on disk. `stop` is asked between files.
    pub(crate) fn fill(
        destination: Arc<Destination>,
        layout: Layout,
        stop: impl Fn() -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let files: Vec<u32> = destination
            .manifest()
            .files()
            .map(|(index, ..)| index)
            .collect();
        let mut shelf = Self {
            destination,
            layout: Arc::new(layout),
            have: Vec::new(),
            ready: AtomicU32::new(0),
            state: Mutex::default(),
        };
        let mut buffer = vec![0; BLOCK_BYTES];
        let mut blocks = 0;
        for index in files {
            stop()?;
            let file = shelf.destination.open(index)?;
            let found = file.rehash(&mut buffer)?;
            if !found.is_empty() {
                shelf.keep(index, file);
            }
            for (block, digest) in found {
                if blocks == HAVE_BLOCKS_MAX {
                    break;
                }
                blocks += 1;
                match shelf.have.last_mut() {
                    Some(run)
                        if run.file == index
                            && run.first_block as usize + run.values.len() / 32
                                == block as usize =>
                    {
                        run.values.extend_from_slice(&digest.0);
                    }
                    _ => shelf.have.push(HaveRun {
                        file: index,
                        first_block: block,
                        values: digest.0.to_vec(),
                    }),
                }
            }
        }
        Ok(shelf)
    }

    /// Blocks that were found on disk.
    #[must_use]
    pub(crate) fn have_blocks(&self) -> u64 {
        self.have
            .iter()
            .map(|run| (run.values.len() / 32) as u64)
            .sum()
    }

    /// Bytes of the blocks that were not.
    #[must_use]
    pub(crate) fn lacking_bytes(&self) -> u64 {
        let held = self.have.iter().filter_map(|run| {
            let blocks = self.layout.file(run.file)?;
            let end = run.first_block + (run.values.len() / 32) as u32;
            Some(
                (run.first_block..end)
                    .map(|block| blocks.len(block) as u64)
                    .sum::<u64>(),
            )
        });
        self.layout.bytes().saturating_sub(held.sum())
    }

    /// A file, open; one that was open of late costs nothing.
    pub(crate) fn file(&self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        let kept = {
            let state = &mut *self.lock();
            let at = state.open.iter().position(|(kept, _)| *kept == index);
            at.and_then(|at| state.open.remove(at))
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
            let mut state = self.lock();
            state.open.push_back((index, file));
            if state.open.len() > OPEN_FILES {
                state.open.pop_front()
            } else {
                None
            }
        };
        // Closing a file may take long: not under the lock.
        drop(dropped);
    }

    /// Lets all files go.
    pub(crate) fn clear(&self) {
        let open = std::mem::take(&mut self.lock().open);
        drop(open);
    }

    /// What the source said about a file.
    #[must_use]
    pub(crate) fn digest(&self, index: u32) -> Option<Digest> {
        let told = self.lock().digests.get(&index).copied();
        told.or_else(|| self.destination.digest_of_file(index))
    }

    /// Remembers what the source said about a file.
    pub(crate) fn set_digest(&self, index: u32, digest: Digest) {
        self.lock().digests.insert(index, digest);
    }

    /// Takes a file as whole, if it has the digest that the source said.
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

    /// More of them are; the outlet is told.
    pub(crate) fn set_ready(&self, ready: u32) {
        self.ready.fetch_max(ready, Ordering::AcqRel);
        self.tell(Feed::Ready(ready));
    }

    /// Joins the outlet: from now on it is told what arrives. What was there before is in
    /// [`Shelf::ready`], to be read afterwards.
    pub(crate) fn join(&self, outlet: Sender<Feed>, pool: Arc<Pool>) {
        self.lock().outlet = Some((outlet, pool));
    }

    /// A buffer in exchange for one that the outlet is given, if there is an outlet and it has one; and
    /// its pool, which the other belongs to then.
    #[must_use]
    pub(crate) fn spare(&self) -> Option<(Buffer, Arc<Pool>)> {
        let pool = self.lock().outlet.as_ref().map(|(_, pool)| pool.clone())?;
        Some((pool.try_take()?, pool))
    }

    /// Tells the outlet, if there is one. One that is over needs nothing more, nor its buffers.
    pub(crate) fn tell(&self, feed: Feed) {
        let over = {
            let mut state = self.lock();
            let sent = state.outlet.as_ref().map(|(outlet, _)| outlet.send(feed));
            match sent {
                Some(Err(unsent)) => Some((state.outlet.take(), unsent)),
                Some(Ok(())) | None => None,
            }
        };
        // Its pool may go with it: not under the lock.
        drop(over);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Access, Algorithm, DestinationConfig, Manifest, Overwrite, Root, RootPath};
    use crate::transfer::memory_account::Account;
    use crate::transfer::record::SLOT_BYTES;

    #[test]
    fn the_buffers_of_an_outlet_that_is_over_are_anybodys_while_more_arrives() {
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
        let shelf = Shelf::fill(destination, layout, || Ok(())).unwrap();
        let account = Account::new(4 * SLOT_BYTES as u64);
        let pool = Pool::new(&account, 2, 4).unwrap();
        let (feed, fed) = crossbeam_channel::unbounded();
        shelf.join(feed, pool.clone());
        let kept = pool.share(pool.take().unwrap());
        shelf.set_ready(0);
        drop(pool);
        assert!(shelf.spare().is_some(), "the outlet is at work");
        // It ends, and what it kept goes with it.
        drop((fed, kept));
        shelf.set_ready(1);
        assert!(shelf.spare().is_none());
        assert_eq!(account.used(), 0);
        assert!(account.take(4).is_ok());
    }
}
