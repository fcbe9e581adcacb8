//! What links are measured with, and what came of it.

use std::net::IpAddr;
use std::sync::Arc;

use weft_engine::{Access, Key, LinkResults, MEASURED_BYTES, Region};

use crate::config::{DOMAIN, LinkEngine, random};
use crate::error::TransferError;

/// What an engine measures links with, and the results.
pub(crate) struct MeasuredLinks {
    pub(crate) source: Arc<Region>,
    /// Opens memory that peers write to, and nobody reads.
    pub(crate) key: Key,
    /// By the host of the peers: they hold for all engines there.
    pub(crate) results: LinkResults<IpAddr>,
    /// Held by the call that measures: two at a time would measure each other.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl MeasuredLinks {
    /// Opens the memory at all engines.
    pub(crate) fn new(engines: &[LinkEngine]) -> Result<Self, TransferError> {
        let memory = || Region::memfd("weft-measure", MEASURED_BYTES).map(Arc::new);
        let (source, target) = (memory()?, memory()?);
        let key = Key(u64::from_le_bytes(random()?));
        for it in engines {
            let target = Arc::clone(&target);
            it.engine.register_as(key, DOMAIN, Access::WRITE, target);
        }
        Ok(Self {
            source,
            key,
            results: LinkResults::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }
}
