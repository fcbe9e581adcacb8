//! A copy within this node: reads the source's files and writes their blocks.
//!
//! It works as a source and its destination do, without a connection between them: the same reader compares
//! the files with the manifest, and the same block writer writes, syncs and renames.

use std::sync::Arc;

use crate::fault::Fault;
use crate::files::Source;
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::{BlockReader as _, SourceReader};
use crate::transfer::block_writer::BlockWriter;
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::frame::SLOT_BYTES;
use crate::transfer::message::PresentBlocks;

/// Copies until everything is published or the attempt is stopped. For threads that may block.
pub(crate) fn copy(
    source: Source,
    blocks: &Arc<DestinationBlocks>,
    attempt: &Arc<Attempt>,
) -> Result<(), Fault> {
    let layout = &blocks.layout;
    let mut reader = SourceReader::new(source, layout.clone(), None);
    let mut block_writer =
        BlockWriter::new(attempt.clone(), blocks.clone(), "this node".to_owned());
    let present = PresentBlocks::new(blocks.present.clone()).map_err(Fault::engine)?;
    let mut buffer = vec![0; SLOT_BYTES];
    for number in 0..layout.messages() {
        if attempt.is_stopping() {
            return Ok(());
        }
        let bytes = reader.build(number, &mut buffer)?;
        let message = &buffer[..bytes];
        match present.shorten(message) {
            Some(short) => block_writer.write_message(&short)?,
            None => block_writer.write_message(message)?,
        };
    }
    block_writer.publish().map(drop)
}
