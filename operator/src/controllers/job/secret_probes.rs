//! Probes whether Secrets can be read, for jobs that wait for that.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore, mpsc},
    time::Instant,
};

use super::secret::Secrets;
use crate::controllers::{cache::Key, job::obstacle::Obstacle};

/// How long a result is believed: no watch tells when it changes. By then the jobs that wait for it are
/// decided again, with all others.
const PROBE_AGAIN: Duration = Duration::from_secs(10);

/// Probes at once: with a thousand Secrets, the API server is asked no faster for it.
const CONCURRENCY_MAX: usize = 8;

type ProbeResult = Result<(), Obstacle>;

/// The probes that are under way, and those whose result is still believed.
pub(crate) struct SecretProbes {
    secrets: Secrets,
    /// When each was answered; `None` while it is under way.
    probes: BTreeMap<Key, Option<Instant>>,
    permits: Arc<Semaphore>,
    results_sender: mpsc::UnboundedSender<(Key, ProbeResult)>,
    results: mpsc::UnboundedReceiver<(Key, ProbeResult)>,
    wake: Arc<Notify>,
}

impl SecretProbes {
    /// Without a probe. Each result wakes the controllers.
    pub(crate) fn new(secrets: Secrets, wake: Arc<Notify>) -> Self {
        let (results_sender, results) = mpsc::unbounded_channel();
        Self {
            secrets,
            probes: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(CONCURRENCY_MAX)),
            results_sender,
            results,
            wake,
        }
    }

    /// Probes whether a Secret can be read, unless that is under way.
    pub(crate) fn probe(&mut self, secret: Key) {
        if self.probes.contains_key(&secret) {
            return;
        }
        self.probes.insert(secret.clone(), None);
        let (permits, wake) = (Arc::clone(&self.permits), Arc::clone(&self.wake));
        let (secrets, results_sender) = (self.secrets.clone(), self.results_sender.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _permit = permits.acquire().await;
            let outcome = secrets.read(&secret.namespace, &secret.name).await;
            // The controllers may be gone. What the Secret holds is read again when it is needed.
            let _ = results_sender.send((secret, outcome.map(drop)));
            wake.notify_one();
        });
    }

    /// Enters new results, and removes those that are not believed any more. Returns the Secrets with new
    /// results.
    pub(crate) fn update(&mut self, results: &mut BTreeMap<Key, ProbeResult>) -> Vec<Key> {
        self.probes
            .retain(|_, at| at.is_none_or(|at| at.elapsed() < PROBE_AGAIN));
        results.retain(|secret, _| self.probes.contains_key(secret));
        let mut new = Vec::new();
        while let Ok((secret, outcome)) = self.results.try_recv() {
            self.probes.insert(secret.clone(), Some(Instant::now()));
            results.insert(secret.clone(), outcome);
            new.push(secret);
        }
        new
    }
}
