//! The object receiver: a thread that receives one attempt's messages from a store, in place of a parent.
//!
//! It reads several messages at a time, each by ranges ([`crate::object`]), and writes them in
//! their order, like those of a parent. A block that an earlier attempt has
//! read and that is still on disk is not read again ([`ObjectReadLog`]).

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::fault::Fault;
use crate::files::{
    BlockDigest, Digest, HashTree, ObjectReadLog, Shape, VersionId, directory_digest,
};
use crate::object::{Store, Version, WholeReader};
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::padded_digest;
use crate::transfer::block_writer::BlockWriter;
use crate::transfer::buffers::{Buffer, BufferReservation};
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::frame::{Frame, Frames, SLOT_BYTES};
use crate::transfer::layout::{Item, MessageLayout};
use crate::transfer::message::{Builder, set_digest};
use crate::transfer::state::State;

/// Buffers: one that is being written, and one for each message of 1 MiB that is read at a time. A store far
/// away takes 50 ms to begin an answer, and eight messages then bring 160 MB/s.
pub(crate) const BUFFERS: usize = 8 + 1;

/// The thread's state.
pub(crate) struct ObjectReceiver {
    block_writer: BlockWriter,
    object: Arc<ObjectBlocks>,
    read_log: ObjectReadLog,
    buffers: BufferReservation,
    /// Files whose blocks were not all read or found on disk yet.
    trees: HashMap<u32, HashTree>,
}

/// The blocks of the objects, and how to read them.
struct ObjectBlocks {
    attempt: Arc<Attempt>,
    /// Where requests run.
    runtime: Handle,
    layout: Arc<MessageLayout>,
    store: Arc<Store>,
    /// By the manifest's entries.
    versions: Vec<Option<Version>>,
    /// What names the versions, where they can be known again.
    ids: Vec<Option<VersionId>>,
    /// Blocks that are on disk as they were read.
    present: HashMap<(u32, u32), BlockDigest>,
}

/// A task that ends with its last user.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A message as it was read, without its files' digests.
struct ReadMessage {
    buffer: Buffer,
    /// Which file's digest belongs where.
    digests: Vec<(u32, usize)>,
}

impl ObjectReceiver {
    /// For an attempt with these versions of objects, by the manifest's entries. Finds out which blocks are on
    /// disk already. `buffers` has two to [`BUFFERS`] buffers; requests run on `runtime`.
    pub(crate) fn new(
        attempt: &Arc<Attempt>,
        blocks: Arc<DestinationBlocks>,
        store: Arc<Store>,
        versions: Vec<Option<Version>>,
        buffers: BufferReservation,
        runtime: Handle,
    ) -> Result<Self, Fault> {
        let mut read_log = blocks.destination.object_read_log(blocks.layout.blocks)?;
        let url = store.url().to_owned();
        let ids: Vec<Option<VersionId>> = versions
            .iter()
            .map(|version| version.as_ref()?.id(&url))
            .collect();
        let object = ObjectBlocks {
            attempt: attempt.clone(),
            runtime,
            layout: blocks.layout.clone(),
            present: present(&blocks, &ids, &mut read_log)?,
            store,
            versions,
            ids,
        };
        Ok(Self {
            block_writer: BlockWriter::new(attempt.clone(), blocks, url),
            object: Arc::new(object),
            read_log,
            buffers,
            trees: HashMap::new(),
        })
    }

    /// Reads until everything is published, or until the attempt fails or is stopped.
    pub(crate) fn run(mut self) -> Result<(), Fault> {
        let object = self.object.clone();
        let url = object.store.url();
        let mut versions = object.versions.iter().flatten();
        let first = if versions.all(Version::is_named) {
            let Some(next) = self.receive_parts()? else {
                return Ok(());
            };
            tracing::info!(
                url,
                "the server gives no parts of an object: it is read as a whole"
            );
            next
        } else {
            tracing::info!(
                url,
                "the server names no version by ETag or Last-Modified, so parts might be of two: it is \
                 read as a whole"
            );
            0
        };
        self.receive_whole(first)
    }

    /// Reads several messages at a time. Gives the first message that cannot be read so, if there is one.
    fn receive_parts(&mut self) -> Result<Option<u32>, Fault> {
        let object = self.object.clone();
        let reads = (0..object.layout.messages()).map(|number| object.clone().spawn_read(number));
        let mut reads = pin!(stream::iter(reads).buffered(self.buffers.buffers() - 1));
        let mut number = 0;
        while let Some(read) = object.wait(reads.next()) {
            match read? {
                Some(message) => self.write_message(message)?,
                None => return Ok(Some(number)),
            }
            number += 1;
        }
        Ok(None)
    }

    /// Reads one message after the other, from objects that are read from their beginning.
    fn receive_whole(&mut self, first: u32) -> Result<(), Fault> {
        let object = self.object.clone();
        let mut whole = WholeReader::new(object.store.clone());
        for number in first..object.layout.messages() {
            let read = async { Some(object.read(number, Some(&mut whole)).await) };
            match object.wait(read).transpose()?.flatten() {
                Some(message) => self.write_message(message)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn write_message(&mut self, message: ReadMessage) -> Result<(), Fault> {
        let ReadMessage {
            mut buffer,
            digests,
        } = message;
        let mut fresh = Vec::new();
        for frame in Frames::new(&buffer).flatten() {
            match frame {
                Frame::Block {
                    file,
                    block,
                    digest,
                    ..
                } => {
                    fresh.push((file, block, BlockDigest(digest)));
                    self.tree(file)?.set(block, BlockDigest(digest));
                }
                Frame::Present {
                    file,
                    block,
                    digest,
                } => {
                    self.tree(file)?.set(block, BlockDigest(digest));
                }
                Frame::FileDigest { .. } | Frame::End => {}
            }
        }
        for (file, at) in digests {
            let unordered = || format!("blocks of file {file} were read out of order");
            let digest = self.tree(file)?.root();
            let digest = digest.ok_or_else(|| Fault::engine(unordered()))?;
            self.trees.remove(&file);
            set_digest(&mut buffer, at, file, padded_digest(&digest));
        }
        let contents = self.block_writer.write_message(&buffer)?;
        for (file, block, digest) in fresh {
            if let Some(Some(id)) = self.object.ids.get(file as usize) {
                self.read_log.add(id, block, &digest)?;
            }
        }
        if contents.is_all {
            self.block_writer.publish()?;
        }
        Ok(())
    }

    fn tree(&mut self, file: u32) -> Result<&mut HashTree, Fault> {
        let blocks = self.object.layout.file(file);
        let blocks = blocks.ok_or_else(|| Fault::engine(format!("entry {file} is no file")))?;
        let tree = self.trees.entry(file);
        Ok(tree.or_insert_with(|| HashTree::new(blocks)))
    }
}

impl ObjectBlocks {
    /// Reads a message in a task of its own: its request goes on while this thread writes another message.
    async fn spawn_read(self: Arc<Self>, number: u32) -> Result<Option<ReadMessage>, Fault> {
        let runtime = self.runtime.clone();
        let task = runtime.spawn(async move { self.read(number, None).await });
        let mut task = AbortOnDrop(task);
        let read = (&mut task.0).await;
        read.unwrap_or_else(|error| resume_unwind(error.into_panic()))
    }

    /// Waits for the result of `work`. None when the attempt fails first.
    fn wait<T>(&self, work: impl Future<Output = Option<T>>) -> Option<T> {
        let mut watch = self.attempt.watch();
        self.runtime.block_on(async {
            tokio::select! {
                result = work => result,
                _ = watch.wait_for(|status| status.state == State::Failed) => None,
            }
        })
    }

    /// Reads a message: each of its blocks by a request of its own, or out of `whole`. None where the store gives
    /// no parts of objects.
    async fn read(
        &self,
        number: u32,
        mut whole: Option<&mut WholeReader>,
    ) -> Result<Option<ReadMessage>, Fault> {
        let mut buffer = vec![0; SLOT_BYTES].into_boxed_slice();
        let mut builder = Builder::new(&mut buffer);
        let mut digests = Vec::new();
        for item in self.layout.items(number) {
            match item {
                Item::Block { file, block, bytes } => {
                    if let Some(digest) = self.present.get(&(file, block)) {
                        let digest = digest.0;
                        builder.frame(&Frame::Present {
                            file,
                            block,
                            digest,
                        });
                        continue;
                    }
                    let version = self.versions.get(file as usize).and_then(Option::as_ref);
                    let Some((version, blocks)) = version.zip(self.layout.file(file)) else {
                        continue;
                    };
                    let (offset, room) = (blocks.range(block).start, builder.room(bytes));
                    let read = async {
                        match &mut whole {
                            Some(whole) => whole.read(version, offset, room).await.map(|()| true),
                            None => self.store.read_range(version, offset, room).await,
                        }
                    };
                    if !self.store.block_within_timeout(read).await? {
                        return Ok(None);
                    }
                    let digest = blocks.digest(block, builder.room(bytes));
                    builder.block(file, block, digest.0, bytes);
                }
                Item::FileDigest { file } => {
                    digests.push((file, builder.used()));
                    let digest = [0; 32];
                    builder.frame(&Frame::FileDigest { file, digest });
                }
                Item::End => builder.frame(&Frame::End),
            }
        }
        builder.finish();
        Ok(Some(ReadMessage { buffer, digests }))
    }
}

/// The blocks on disk that are as they were read. All blocks, where they make up the digest that the job
/// expects.
fn present(
    blocks: &DestinationBlocks,
    ids: &[Option<VersionId>],
    read_log: &mut ObjectReadLog,
) -> Result<HashMap<(u32, u32), BlockDigest>, Fault> {
    let mut all = HashMap::new();
    for run in &blocks.present {
        for (block, digest) in (run.first_block..).zip(run.values.as_chunks::<32>().0) {
            all.insert((run.file, block), BlockDigest(*digest));
        }
    }
    let expected = blocks.destination.expected_digest();
    if expected.is_some() && expected == whole(blocks, &all) {
        return Ok(all);
    }
    let files: HashMap<VersionId, u32> = ids
        .iter()
        .zip(0..)
        .filter_map(|(id, file)| Some(((*id)?, file)))
        .collect();
    let mut present = HashMap::new();
    read_log.read(|id, block, digest| {
        let Some(file) = files.get(id) else {
            return false;
        };
        let at = (*file, block);
        if all.get(&at) == Some(&digest) {
            present.insert(at, digest);
        }
        true
    })?;
    Ok(present)
}

/// The digest of all that is on disk, if that is everything.
fn whole(blocks: &DestinationBlocks, digests: &HashMap<(u32, u32), BlockDigest>) -> Option<Digest> {
    let manifest = &blocks.layout.manifest;
    let mut files = Vec::new();
    for (file, entry, _) in manifest.files() {
        let layout = blocks.layout.file(file)?;
        let mut tree = HashTree::new(layout);
        for block in 0..layout.count() {
            tree.set(block, *digests.get(&(file, block))?);
        }
        files.push((entry.path, tree.root()?));
    }
    match (manifest.shape(), files.as_slice()) {
        (Shape::File, [(_, digest)]) => Some(*digest),
        _ => Some(directory_digest(blocks.layout.algorithm, files.into_iter())),
    }
}
