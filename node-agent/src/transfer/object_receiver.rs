//! The fetch: a thread that receives one attempt's messages from a store, in place of an intake.
//!
//! So many messages at a time are read, each by ranges ([`crate::object`]); in their
//! order they are checked, written and handed to the outlet like those of a parent. What an earlier
//! attempt has read and is still on disk is not read again ([`ReadRecord`]).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::StreamExt as _;
use futures::stream;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

use crate::fault::Fault;
use crate::files::{
    Algorithm, BlockDigest, Digest, FileTree, ReadRecord, Shape, VersionId, directory_digest,
};
use crate::object::{ObjectError, Store, Version, WholeReader};
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::padded_digest;
use crate::transfer::buffers::{Buffer, Pool};
use crate::transfer::layout::{Item, Layout};
use crate::transfer::memory_account::Share;
use crate::transfer::message::{Builder, set_digest};
use crate::transfer::placing::Placing;
use crate::transfer::record::{Record, Records, SLOT_BYTES};
use crate::transfer::staged_blocks::Shelf;
use crate::transfer::state::State;

/// Buffers: one that is being written, and for each message of 1 MiB that is asked for at a time. A store
/// far away takes 50 ms to begin an answer, and eight of them then bring 160 MB/s.
pub(crate) const BUFFERS: usize = 8 + 1;
/// Of a reader for which there is no more memory.
pub(crate) const BUFFERS_LEAST: usize = 2 + 1;

/// What a fetch works with.
pub(crate) struct FetchConfig {
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// What it fills.
    pub shelf: Arc<Shelf>,
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// Where the objects are.
    pub store: Arc<Store>,
    /// By the manifest's entries.
    pub versions: Vec<Option<Version>>,
    /// Of its buffers: [`BUFFERS_LEAST`] to [`BUFFERS`].
    pub share: Share,
    /// Where requests run.
    pub runtime: Handle,
}

/// The thread's state.
pub(crate) struct Fetch {
    placing: Placing,
    plan: Arc<Plan>,
    record: ReadRecord,
    runtime: Handle,
    /// Messages that are asked for at a time.
    window: usize,
    /// Files of which not all blocks have come by.
    trees: HashMap<u32, FileTree>,
}

/// What each request needs to know.
struct Plan {
    attempt: Arc<Attempt>,
    layout: Arc<Layout>,
    store: Arc<Store>,
    versions: Vec<Option<Version>>,
    /// What names them, where they can be known again.
    ids: Vec<Option<VersionId>>,
    /// Blocks that are on disk as they were read.
    held: HashMap<(u32, u32), BlockDigest>,
    pool: Arc<Pool>,
}

/// A message as it was read, without its files' digests.
struct Read {
    buffer: Buffer,
    /// Which file's digest belongs where.
    digests: Vec<(u32, usize)>,
}

/// Why a message was not read.
enum Unread {
    /// The store gives no parts of objects.
    NoRanges,
    Failed(Fault),
}

impl From<ObjectError> for Unread {
    fn from(error: ObjectError) -> Self {
        Self::Failed(error.into())
    }
}

impl Fetch {
    /// Finds out what is there already.
    pub(crate) fn new(config: FetchConfig) -> Result<Self, Fault> {
        let FetchConfig {
            attempt,
            shelf,
            algorithm,
            store,
            versions,
            share,
            runtime,
        } = config;
        let window = share.buffers() - 1;
        let mut record = shelf.destination.read_record(shelf.layout.blocks())?;
        let url = store.url();
        let ids: Vec<Option<VersionId>> = versions
            .iter()
            .map(|version| version.as_ref()?.fingerprint(url))
            .collect();
        let held = held(&shelf, algorithm, &ids, &mut record)?;
        let plan = Plan {
            attempt: attempt.clone(),
            layout: shelf.layout.clone(),
            store,
            versions,
            ids,
            held,
            pool: Pool::of(share),
        };
        Ok(Self {
            placing: Placing::new(attempt, shelf, algorithm, "the store".to_owned()),
            plan: Arc::new(plan),
            record,
            runtime,
            window,
            trees: HashMap::new(),
        })
    }

    /// Reads until everything is published, or until something fails or it is told to stop.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.fetch() {
            self.plan.attempt.fail(fault);
        }
        self.plan.pool.close();
    }

    fn fetch(&mut self) -> Result<(), Fault> {
        let url = self.plan.store.url().to_owned();
        if self
            .plan
            .versions
            .iter()
            .flatten()
            .any(|version| !version.is_named())
        {
            tracing::info!(
                url,
                "the server names no version by ETag or Last-Modified, so parts might be of two: it is \
                 read as a whole"
            );
            return self.as_a_whole(0);
        }
        let Some(next) = self.in_parts()? else {
            return Ok(());
        };
        tracing::info!(
            url,
            "the server gives no parts of an object: it is read as a whole"
        );
        self.as_a_whole(next)
    }

    /// Several messages at a time; gives the first that cannot be had so, if there is one.
    fn in_parts(&mut self) -> Result<Option<u32>, Fault> {
        let runtime = self.runtime.clone();
        let plan = self.plan.clone();
        let tasks = (0..plan.layout.messages()).map(|number| {
            let plan = plan.clone();
            Aborting(runtime.spawn(async move { plan.read(number).await }))
        });
        // Lazily: a task begins when there is room for it in the window.
        let mut read = stream::iter(tasks).buffered(self.window);
        let mut number = 0;
        while let Some(result) = runtime.block_on(until_stopped(&plan.attempt, read.next())) {
            match result {
                Ok(Ok(read)) => self.place(read)?,
                Ok(Err(Unread::NoRanges)) => return Ok(Some(number)),
                Ok(Err(Unread::Failed(fault))) => return Err(fault),
                Err(error) => return Err(died(&error)),
            }
            number += 1;
        }
        Ok(None)
    }

    /// One message after the other.
    fn as_a_whole(&mut self, first: u32) -> Result<(), Fault> {
        let runtime = self.runtime.clone();
        let plan = self.plan.clone();
        let mut whole = WholeReader::new(plan.store.clone());
        for number in first..plan.layout.messages() {
            let read = async { Some(plan.read_whole(number, &mut whole).await) };
            match runtime.block_on(until_stopped(&plan.attempt, read)) {
                Some(read) => self.place(read?)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn place(&mut self, read: Read) -> Result<(), Fault> {
        let Read {
            mut buffer,
            digests,
        } = read;
        let mut fresh = Vec::new();
        for record in Records::new(&buffer).flatten() {
            match record {
                Record::Block {
                    file, block, value, ..
                } => {
                    fresh.push((file, block, BlockDigest(value)));
                    self.hashed(file, block, BlockDigest(value))?;
                }
                Record::Held { file, block, value } => {
                    self.hashed(file, block, BlockDigest(value))?;
                }
                Record::FileDigest { .. } | Record::End => {}
            }
        }
        for (file, at) in digests {
            let digest = self.tree(file)?.root().ok_or_else(|| Fault::Engine {
                problem: format!("blocks of file {file} were read out of order"),
            })?;
            self.trees.remove(&file);
            set_digest(&mut buffer, at, file, padded_digest(&digest));
        }
        let contents = self.placing.place(&buffer)?;
        for (file, block, digest) in fresh {
            if let Some(Some(id)) = self.plan.ids.get(file as usize) {
                self.record.add(id, block, &digest)?;
            }
        }
        let buffer = self.placing.pass_on(buffer, &contents);
        self.plan.pool.give(buffer);
        if self.placing.take(&contents) {
            self.placing.publish()?;
        }
        Ok(())
    }

    fn hashed(&mut self, file: u32, block: u32, digest: BlockDigest) -> Result<(), Fault> {
        self.tree(file)?.set(block, digest);
        Ok(())
    }

    fn tree(&mut self, file: u32) -> Result<&mut FileTree, Fault> {
        let blocks = self.plan.layout.file(file);
        let blocks = blocks.ok_or_else(|| Fault::Engine {
            problem: format!("entry {file} is no file"),
        })?;
        Ok(self
            .trees
            .entry(file)
            .or_insert_with(|| FileTree::new(blocks)))
    }
}

impl Plan {
    /// A message, each of its blocks by a request of its own.
    async fn read(&self, number: u32) -> Result<Read, Unread> {
        let mut buffer = self.buffer();
        let mut builder = Builder::new(&mut buffer);
        let mut digests = Vec::new();
        for item in self.layout.items(number) {
            if let Some((block, version, offset)) = self.wanted(item, &mut builder, &mut digests) {
                let room = builder.room(block.bytes);
                if !self.store.read_range(version, offset, room).await? {
                    self.pool.give(buffer);
                    return Err(Unread::NoRanges);
                }
                self.close(&mut builder, block);
            }
        }
        builder.finish();
        Ok(Read { buffer, digests })
    }

    /// The same from objects that are read from their beginning.
    async fn read_whole(&self, number: u32, whole: &mut WholeReader) -> Result<Read, Fault> {
        let mut buffer = self.buffer();
        let mut builder = Builder::new(&mut buffer);
        let mut digests = Vec::new();
        for item in self.layout.items(number) {
            if let Some((block, version, offset)) = self.wanted(item, &mut builder, &mut digests) {
                let room = builder.room(block.bytes);
                whole.read(version, offset, room).await?;
                self.close(&mut builder, block);
            }
        }
        builder.finish();
        Ok(Read { buffer, digests })
    }

    fn buffer(&self) -> Buffer {
        // The window is smaller than the pool; what requests held that were given up is gone, and is
        // made anew.
        let taken = self.pool.try_take();
        taken.unwrap_or_else(|| vec![0; SLOT_BYTES].into_boxed_slice())
    }

    /// Writes what needs no reading; gives what does.
    fn wanted(
        &self,
        item: Item,
        builder: &mut Builder<'_>,
        digests: &mut Vec<(u32, usize)>,
    ) -> Option<(Block, &Version, u64)> {
        match item {
            Item::Block { file, block, bytes } => {
                if let Some(digest) = self.held.get(&(file, block)) {
                    let value = digest.0;
                    builder.record(&Record::Held { file, block, value });
                    return None;
                }
                let version = self.versions.get(file as usize)?.as_ref()?;
                let offset = self.layout.file(file)?.range(block).start;
                Some((Block { file, block, bytes }, version, offset))
            }
            Item::FileDigest { file } => {
                digests.push((file, builder.used()));
                let value = [0; 32];
                builder.record(&Record::FileDigest { file, value });
                None
            }
            Item::End => {
                builder.record(&Record::End);
                None
            }
        }
    }

    /// Closes a block that was read into the builder's room.
    fn close(&self, builder: &mut Builder<'_>, block: Block) {
        let Block { file, block, bytes } = block;
        if let Some(blocks) = self.layout.file(file) {
            let digest = blocks.digest(block, builder.room(bytes));
            builder.block(file, block, digest.0, bytes);
        }
    }
}

/// A block that is read.
#[derive(Clone, Copy)]
struct Block {
    file: u32,
    block: u32,
    bytes: usize,
}

/// Which blocks on disk are as they were read; all of them, where they make up the digest that the job
/// expects.
fn held(
    shelf: &Shelf,
    algorithm: Algorithm,
    ids: &[Option<VersionId>],
    record: &mut ReadRecord,
) -> Result<HashMap<(u32, u32), BlockDigest>, Fault> {
    let mut all = HashMap::new();
    for run in &shelf.have {
        for (block, value) in (run.first_block..).zip(run.values.as_chunks::<32>().0) {
            all.insert((run.file, block), BlockDigest(*value));
        }
    }
    let expected = shelf.destination.expect();
    if expected.is_some() && expected == whole(shelf, algorithm, &all) {
        return Ok(all);
    }
    let files: HashMap<VersionId, u32> = ids
        .iter()
        .zip(0..)
        .filter_map(|(id, file)| Some(((*id)?, file)))
        .collect();
    let mut held = HashMap::new();
    record.read(|id, block, digest| {
        let Some(file) = files.get(id) else {
            return false;
        };
        let at = (*file, block);
        if all.get(&at) == Some(&digest) {
            held.insert(at, digest);
        }
        true
    })?;
    Ok(held)
}

/// The digest of all that is on disk, if that is everything.
fn whole(
    shelf: &Shelf,
    algorithm: Algorithm,
    blocks: &HashMap<(u32, u32), BlockDigest>,
) -> Option<Digest> {
    let manifest = shelf.destination.manifest();
    let mut digests = Vec::new();
    for (file, entry, _) in manifest.files() {
        let cut = shelf.layout.file(file)?;
        let mut tree = FileTree::new(cut);
        for block in 0..cut.count() {
            tree.set(block, *blocks.get(&(file, block))?);
        }
        digests.push((entry.path, tree.root()?));
    }
    match (manifest.shape(), digests.as_slice()) {
        (Shape::File, [(_, digest)]) => Some(*digest),
        _ => Some(directory_digest(algorithm, digests.into_iter())),
    }
}

/// What comes, unless the attempt is to stop first.
async fn until_stopped<T>(attempt: &Attempt, work: impl Future<Output = Option<T>>) -> Option<T> {
    let mut watch = attempt.watch();
    tokio::select! {
        result = work => result,
        _ = watch.wait_for(|status| status.state == State::Failed) => None,
    }
}

fn died(error: &JoinError) -> Fault {
    Fault::Engine {
        problem: format!("a request has died: {error}"),
    }
}

/// A task that ends when nobody waits for it any more.
struct Aborting<T>(JoinHandle<T>);

impl<T> Future for Aborting<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
