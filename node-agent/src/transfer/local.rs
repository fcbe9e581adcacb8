//! A copy within this node: a thread that reads the source's files and places their blocks.
//!
//! It works as a source and its destination do, without a connection between them: the same reader compares
//! the files with the manifest, and the same placer writes, syncs and renames.

use std::sync::Arc;

use crate::fault::Fault;
use crate::files::Source;
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::{BlockReader as _, SourceReader};
use crate::transfer::buffers::BufferShare;
use crate::transfer::message::HeldBlocks;
use crate::transfer::placer::Placer;
use crate::transfer::record::SLOT_BYTES;
use crate::transfer::staged_blocks::StagedBlocks;

/// The thread's state.
pub(crate) struct LocalCopy {
    reader: SourceReader,
    placer: Placer,
    staged: Arc<StagedBlocks>,
    attempt: Arc<Attempt>,
    /// The buffer's part of the memory budget.
    _share: BufferShare,
}

impl LocalCopy {
    /// From a source to a prepared destination.
    pub(crate) fn new(
        source: Source,
        staged: Arc<StagedBlocks>,
        attempt: Arc<Attempt>,
        share: BufferShare,
    ) -> Self {
        let from = "this node".to_owned();
        Self {
            reader: SourceReader::new(source, staged.layout.clone(), None),
            placer: Placer::new(attempt.clone(), staged.clone(), from),
            staged,
            attempt,
            _share: share,
        }
    }

    /// Copies until everything is published, or until the copy fails or is stopped.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.copy() {
            self.attempt.fail(fault);
        }
    }

    fn copy(&mut self) -> Result<(), Fault> {
        let held = HeldBlocks::new(self.staged.have.clone());
        let held = held.map_err(|problem| Fault::Engine {
            problem: problem.to_owned(),
        })?;
        let mut buffer = vec![0; SLOT_BYTES];
        for number in 0..self.staged.layout.messages() {
            if self.attempt.is_stopping() {
                return Ok(());
            }
            let bytes = self.reader.build(number, &mut buffer)?;
            let message = &buffer[..bytes];
            let contents = match held.shorten(message) {
                Some(short) => self.placer.place(&short)?,
                None => self.placer.place(message)?,
            };
            self.placer.take(&contents);
        }
        self.placer.publish().map(drop)
    }
}
