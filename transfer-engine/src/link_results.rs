//! What links are measured with, and what came of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_engine::{Access, Key, Region};

use crate::config::{DOMAIN, LinkEngine, random};
use crate::error::TransferError;
use crate::link_choice::LinkInUse;
use crate::lock::lock;

/// Bytes of the memory that is written from and to.
pub(crate) const WRITE_BYTES: u64 = 256 << 10;

/// How long a result holds, for all engines of a host: one of a link that has not passed may have met a passing fault.
pub(crate) const HOLDS_FOR: Duration = Duration::from_secs(600);
pub(crate) const HOLDS_WITHOUT_OTHERS: Duration = Duration::from_secs(30);

/// What an engine measures links with, and the results.
pub(crate) struct LinkResults {
    pub(crate) source: Arc<Region>,
    /// Opens memory that peers write to, and nobody reads.
    pub(crate) key: Key,
    /// By the host of the peers, and until when they hold.
    results: Mutex<HashMap<IpAddr, (Instant, LinkInUse)>>,
    /// Held by the call that measures: two at a time would measure each other.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl LinkResults {
    /// Opens the memory at all engines.
    pub(crate) fn new(engines: &[LinkEngine]) -> Result<Self, TransferError> {
        let memory = || Region::memfd("weft-measure", WRITE_BYTES).map(Arc::new);
        let (source, target) = (memory()?, memory()?);
        let key = Key(u64::from_le_bytes(random()?));
        for it in engines {
            let target = Arc::clone(&target);
            it.engine.register_as(key, DOMAIN, Access::WRITE, target);
        }
        Ok(Self {
            source,
            key,
            results: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn result(&self, host: IpAddr) -> Option<LinkInUse> {
        let mut results = lock(&self.results);
        results.retain(|_, (until, _)| Instant::now() < *until);
        results.get(&host).map(|(_, result)| result.clone())
    }

    pub(crate) fn keep(&self, host: IpAddr, result: &LinkInUse, time: Duration) {
        lock(&self.results).insert(host, (Instant::now() + time, result.clone()));
    }

    /// The next call to a host measures again.
    pub(crate) fn forget(&self, host: IpAddr) {
        lock(&self.results).remove(&host);
    }
}
