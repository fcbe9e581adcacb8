//! A copy of files that this node has itself: a thread that reads, checks and writes them.
//!
//! What a source sends and what a destination takes, with nothing between: the same reader, which
//! compares the files with the manifest, and the same shelf, which writes, syncs and renames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fault::Fault;
use crate::files::{Algorithm, BlockDigest, Digest, Source};
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::{SourceSupply, Supply as _};
use crate::transfer::memory_account::Share;
use crate::transfer::record::{Record, Records, SLOT_BYTES};
use crate::transfer::staged_blocks::Shelf;

/// The thread's state.
pub(crate) struct LocalCopy {
    supply: SourceSupply,
    shelf: Arc<Shelf>,
    algorithm: Algorithm,
    attempt: Arc<Attempt>,
    /// The buffer's part of the memory account.
    _share: Share,
}

impl LocalCopy {
    /// From what is to be read to a prepared destination.
    pub(crate) fn new(
        source: Source,
        shelf: Arc<Shelf>,
        algorithm: Algorithm,
        attempt: Arc<Attempt>,
        share: Share,
    ) -> Self {
        // The reader has counts of its own: what is read is not yet there.
        let reading = Attempt::new(attempt.job.clone());
        Self {
            supply: SourceSupply::new(source, shelf.layout.clone(), algorithm, reading),
            shelf,
            algorithm,
            attempt,
            _share: share,
        }
    }

    /// Copies until everything is published, or until something fails or it is told to stop.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.copy() {
            self.attempt.fail(fault);
        }
    }

    fn copy(&mut self) -> Result<(), Fault> {
        let mut buffer = vec![0; SLOT_BYTES];
        for number in 0..self.shelf.layout.messages() {
            if self.attempt.is_stopping() {
                return Ok(());
            }
            let bytes = self.supply.build(number, &mut buffer)?;
            for record in Records::new(&buffer[..bytes]) {
                let record = record.map_err(|error| Fault::Engine {
                    problem: format!("message {number} of a local copy: {error}"),
                })?;
                self.place(&record)?;
            }
        }
        self.shelf.publish(&self.attempt).map(drop)
    }

    fn place(&self, record: &Record<'_>) -> Result<(), Fault> {
        match *record {
            Record::Block {
                file,
                block,
                value,
                data,
            } => self.block(file, block, &BlockDigest(value), data),
            Record::FileDigest { file, value } => {
                let (said, _) = value.split_at(self.algorithm.digest_bytes());
                if let Some(digest) = Digest::from_bytes(self.algorithm, said) {
                    self.shelf.set_digest(file, digest);
                    let open = self.shelf.file(file)?;
                    self.shelf.finish(&open, &digest)?;
                }
                Ok(())
            }
            Record::Held { .. } | Record::End => Ok(()),
        }
    }

    fn block(&self, file: u32, block: u32, digest: &BlockDigest, data: &[u8]) -> Result<(), Fault> {
        let open = self.shelf.file(file)?;
        let counters = &self.attempt.counters;
        let (missing, bytes) = (open.missing(), data.len() as u64);
        if open.confirm(block, digest)? {
            // An earlier attempt, or somebody else, has left it there.
            if open.missing() < missing {
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                counters.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
            }
            return Ok(());
        }
        let verified =
            open.blocks()
                .verify(block, data, digest)
                .map_err(|cause| Fault::Engine {
                    problem: format!("block {block} of file {file} of a local copy: {cause}"),
                })?;
        if open.write_block(&verified)? {
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}
