//! A copy within this node: reads the source's files and places their blocks.
//!
//! It works as a source and its destination do, without a connection between them: the same reader compares
//! the files with the manifest, and the same block writer writes, syncs and renames.

use std::sync::Arc;

use crate::fault::Fault;
use crate::files::Source;
use crate::transfer::attempt::Attempt;
use crate::transfer::block_reader::{BlockReader as _, SourceReader};
use crate::transfer::block_writer::BlockWriter;
use crate::transfer::frame::SLOT_BYTES;
use crate::transfer::message::PresentBlocks;
use crate::transfer::received_blocks::ReceivedBlocks;

/// Copies until everything is published or the attempt is stopped. For threads that may block.
pub(crate) fn copy(
    source: Source,
    received: &Arc<ReceivedBlocks>,
    attempt: &Arc<Attempt>,
) -> Result<(), Fault> {
    let layout = &received.layout;
    let mut reader = SourceReader::new(source, layout.clone(), None);
    let mut block_writer =
        BlockWriter::new(attempt.clone(), received.clone(), "this node".to_owned());
    let present = PresentBlocks::new(received.have.clone()).map_err(Fault::engine)?;
    let mut buffer = vec![0; SLOT_BYTES];
    for number in 0..layout.messages() {
        if attempt.is_stopping() {
            return Ok(());
        }
        let bytes = reader.build(number, &mut buffer)?;
        let message = &buffer[..bytes];
        match present.shorten(message) {
            Some(short) => block_writer.place(&short)?,
            None => block_writer.place(message)?,
        };
    }
    block_writer.publish().map(drop)
}
