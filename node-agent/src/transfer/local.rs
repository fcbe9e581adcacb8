//! A copy within this node: reads the source's files and places their blocks.
//!
//! It works as a source and its destination do, without a connection between them: the same reader compares
//! the files with the manifest, and the same placer writes, syncs and renames.

use std::sync::Arc;

use crate::fault::Fault;
use crate::files::Source;
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::{BlockReader as _, SourceReader};
use crate::transfer::message::PresentBlocks;
use crate::transfer::placer::BlockWriter;
use crate::transfer::received_blocks::ReceivedBlocks;
use crate::transfer::record::SLOT_BYTES;

/// Copies until everything is published or the attempt is stopped. For threads that may block.
pub(crate) fn copy(
    source: Source,
    staged: &Arc<ReceivedBlocks>,
    attempt: &Arc<Attempt>,
) -> Result<(), Fault> {
    let layout = &staged.layout;
    let mut reader = SourceReader::new(source, layout.clone(), None);
    let mut placer = BlockWriter::new(attempt.clone(), staged.clone(), "this node".to_owned());
    let held = PresentBlocks::new(staged.have.clone()).map_err(Fault::engine)?;
    let mut buffer = vec![0; SLOT_BYTES];
    for number in 0..layout.messages() {
        if attempt.is_stopping() {
            return Ok(());
        }
        let bytes = reader.build(number, &mut buffer)?;
        let message = &buffer[..bytes];
        match held.shorten(message) {
            Some(short) => placer.place(&short)?,
            None => placer.place(message)?,
        };
    }
    placer.publish().map(drop)
}
