//! Whether Secrets can be read, asked of the API server for jobs that wait for it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use super::{
    Controllers, reading,
    secret::{SecretFault, Secrets},
    world::Key,
};

/// Whether a Secret can be read is believed for so long: nothing tells when that changes, and who waits
/// for it is looked at with all others by then.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Looks under way: with a thousand Secrets to look at, the API server is asked no faster for it.
const AT_ONCE: usize = 8;

/// What came of a look.
pub(super) type Seen = (Key, Result<(), SecretFault>);

/// Those that are under way, and those that are still believed.
pub(super) struct Looks {
    secrets: Secrets,
    /// When each was answered; none while it is under way.
    begun: BTreeMap<Key, Option<Instant>>,
    turns: Arc<Semaphore>,
    tell: mpsc::UnboundedSender<Seen>,
}

impl Looks {
    /// None yet; what comes of them is told.
    pub(super) fn new(secrets: Secrets, tell: mpsc::UnboundedSender<Seen>) -> Self {
        Self {
            secrets,
            begun: BTreeMap::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            tell,
        }
    }
}

impl Controllers {
    /// Looks whether a Secret can be read, unless that is under way.
    pub(super) fn look(&mut self, secret: Key) {
        if self.looks.begun.contains_key(&secret) {
            return;
        }
        self.looks.begun.insert(secret.clone(), None);
        let turns = Arc::clone(&self.looks.turns);
        let (secrets, tell) = (self.looks.secrets.clone(), self.looks.tell.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _turn = turns.acquire().await;
            let seen = secrets.read(&secret.namespace, &secret.name).await;
            // Whoever has gone needs no answer. What it holds is read anew when it is needed.
            let _ = tell.send((secret, seen.map(drop)));
        });
    }

    /// What came of a look; those that wait for it are decided at once.
    pub(super) fn saw(&mut self, (secret, seen): Seen) {
        for (key, job) in self.world.jobs.iter() {
            if reading::secret(job).as_ref() == Some(&secret) {
                self.work_queue.add(key.clone());
            }
        }
        self.looks
            .begun
            .insert(secret.clone(), Some(Instant::now()));
        self.world.secrets.insert(secret, seen);
    }

    /// What was seen some time ago is seen anew before it is believed again.
    pub(super) fn forget_looks(&mut self) {
        let begun = &mut self.looks.begun;
        begun.retain(|_, at| at.is_none_or(|at| at.elapsed() < LOOK_AGAIN));
        (self.world.secrets).retain(|secret, _| begun.contains_key(secret));
    }
}
