//! `WholeReader`: reads objects of a server that gives no ranges, or that names no versions.
//!
//! It asks for each object once in an attempt. Where the answer breaks off, the attempt fails, and the next
//! one begins again: the bytes of two answers may be of two versions.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;

use super::error::ObjectError;
use super::store::{ObjectStream, Store, Version};

/// Reads objects from their beginning, one after the other.
pub(crate) struct WholeReader {
    store: Arc<Store>,
    open: Option<Open>,
}

/// The answer that is read now.
struct Open {
    version: Version,
    stream: ObjectStream,
    /// The offset of the next byte.
    at: u64,
    /// The part of the last piece that is not used yet.
    rest: Bytes,
}

impl WholeReader {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, open: None }
    }

    /// Fills `buffer` with the bytes from `offset` on. Calls for one object come in the order of their offsets.
    pub(crate) async fn read(
        &mut self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ObjectError> {
        let known = self.open.take();
        let known = known.filter(|open| open.version == *version && open.at <= offset);
        let mut open = match known {
            Some(open) => open,
            None => Open {
                version: version.clone(),
                stream: self.store.get(version, None).await?,
                at: 0,
                rest: Bytes::new(),
            },
        };
        open.fill(&self.store, offset, buffer).await?;
        self.open = Some(open);
        Ok(())
    }
}

impl Open {
    async fn fill(
        &mut self,
        store: &Store,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ObjectError> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.rest.is_empty() {
                self.rest = match self.stream.next().await {
                    Some(piece) => piece?,
                    None => return Err(store.ended_early(&self.version, self.at)),
                };
            }
            // At most the piece's length.
            let skipped = (offset.saturating_sub(self.at)).min(self.rest.len() as u64) as usize;
            drop(self.rest.split_to(skipped));
            let taken = self.rest.len().min(buffer.len() - filled);
            buffer[filled..filled + taken].copy_from_slice(&self.rest.split_to(taken));
            filled += taken;
            self.at += (skipped + taken) as u64;
        }
        Ok(())
    }
}
