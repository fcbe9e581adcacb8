//! `WholeReader`: reads objects of a server that gives no ranges, or that names no versions.
//!
//! It asks for each object once in an attempt. Where the answer breaks off, the attempt fails, and the next
//! one begins again: the bytes of two answers may be of two versions.

use std::sync::Arc;

use super::error::ObjectError;
use super::store::{Answer, Store, Version};

/// Reads objects from their beginning, one after the other.
pub(crate) struct WholeReader {
    store: Arc<Store>,
    /// The answer that is read now.
    open: Option<Answer>,
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
            None => self.store.get(version, None).await?,
        };
        open.fill(offset, buffer).await?;
        self.open = Some(open);
        Ok(())
    }
}
