//! One connection to each agent, shared by everybody of this process who calls it.
//!
//! A connection costs its two ends some 90 KiB and a handshake; a thousand jobs of a few nodes each
//! would have thousands of them to the same agents. HTTP/2 carries as many calls over one as the
//! agent takes at a time, and one that is given up ends alone. A connection is made by the first call,
//! stays while anybody holds its [`Agent`], and for [`IDLE`] after.
//!
//! The operator's certificate is made here, one for each fabric, and again at two thirds of its life:
//! calls from then on go over new connections, and those under way end over the ones that they began
//! on. Another authority is taken up by another process (`home`, `rotation`), so never here.
//!
//! It never decides what is called, nor when again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use rustls::ClientConfig;
use tokio::time::{Instant, sleep};
use weft_identity::{
    authority::{Authority, AuthorityError, VALID},
    server_name,
};

use super::{
    agent::{Agent, Shared},
    runner::Contact,
    tls,
};

/// A connection that nobody holds is kept for so long at least, and at most twice as long: jobs of the
/// same nodes come in bunches, and a handshake keeps a core busy for some milliseconds.
const IDLE: Duration = Duration::from_secs(60);
/// A certificate is shown for two thirds of its life. A third is left for what an agent's clock is off
/// (`CLOCK_SKEW`), and for connections that are made again by themselves.
const SHOWN: Duration = Duration::from_secs(VALID.whole_seconds().unsigned_abs() / 3 * 2);

/// The connections of this process, seen from a fabric. Clones and other fabrics share them.
#[derive(Clone)]
pub struct Channels {
    authority: Arc<Authority>,
    pool: Arc<Pool>,
}

/// An agent: what a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    fabric: String,
    node: String,
    address: String,
}

struct Pool {
    /// How long a certificate is shown.
    shown: Duration,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// By fabric.
    certificates: BTreeMap<String, Shown>,
    /// How many were made.
    made: u64,
    agents: BTreeMap<Key, Entry>,
    is_swept: bool,
}

struct Entry {
    shared: Arc<Shared>,
    /// Nobody holds it, as was seen then.
    idle: Option<Instant>,
}

/// The operator's certificate in a fabric.
struct Shown {
    number: u64,
    tls: Arc<ClientConfig>,
    until: Instant,
}

/// What the operator shows to an agent, and asks of it.
pub(super) struct Credentials {
    /// Tells certificates apart.
    pub(super) number: u64,
    /// The same for all agents of the fabric.
    pub(super) tls: Arc<ClientConfig>,
    /// That of the agent's certificate.
    pub(super) name: String,
}

impl Channels {
    /// No connection yet. Certificates are made, and tickets signed, by this authority, for its fabric.
    pub fn new(authority: Arc<Authority>) -> Self {
        Self::with(authority, SHOWN)
    }

    fn with(authority: Arc<Authority>, shown: Duration) -> Self {
        let held = Mutex::default();
        Self {
            authority,
            pool: Arc::new(Pool { shown, held }),
        }
    }

    /// The same connections for another fabric.
    #[must_use]
    pub fn of_fabric(&self, fabric: &str) -> Self {
        Self {
            authority: Arc::new(self.authority.of_fabric(fabric)),
            pool: Arc::clone(&self.pool),
        }
    }

    /// Who signs for this fabric.
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// An agent of this fabric; its connection stays as long as this is held. Nothing is dialled yet.
    pub(super) fn agent(&self, contact: &Contact) -> Agent {
        let key = Key {
            fabric: self.authority.fabric().to_owned(),
            node: contact.node.clone(),
            address: contact.address.clone(),
        };
        let mut held = self.pool.lock();
        if !held.is_swept {
            held.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.pool)));
        }
        let entry = held.agents.entry(key).or_insert_with(|| Entry {
            shared: Arc::new(Shared::new(contact)),
            idle: None,
        });
        entry.idle = None;
        Agent::new(Arc::clone(&entry.shared), self.clone())
    }

    /// What to show to a node now.
    pub(super) fn credentials(&self, node: &str) -> Result<Credentials, AuthorityError> {
        let (number, tls) = self.pool.certificate(&self.authority)?;
        let name = server_name(self.authority.fabric(), node);
        Ok(Credentials { number, tls, name })
    }

    /// Which certificate is to be shown now.
    pub(super) fn certificate(&self) -> Result<u64, AuthorityError> {
        Ok(self.pool.certificate(&self.authority)?.0)
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn certificate(
        &self,
        authority: &Authority,
    ) -> Result<(u64, Arc<ClientConfig>), AuthorityError> {
        let now = Instant::now();
        let mut held = self.lock();
        if let Some(shown) = held.certificates.get(authority.fabric())
            && now < shown.until
        {
            return Ok((shown.number, Arc::clone(&shown.tls)));
        }
        let operator = authority.operator()?;
        let tls = tls::config(authority.certificate(), &operator)?;
        held.made += 1;
        let shown = Shown {
            number: held.made,
            tls: Arc::clone(&tls),
            until: now + self.shown,
        };
        let number = shown.number;
        held.certificates
            .insert(authority.fabric().to_owned(), shown);
        Ok((number, tls))
    }
}

impl Held {
    /// Lets go of what nobody has held for [`IDLE`].
    fn sweep(&mut self, now: Instant) {
        self.agents.retain(|_, entry| {
            if Arc::strong_count(&entry.shared) > 1 {
                entry.idle = None;
                return true;
            }
            let since = *entry.idle.get_or_insert(now);
            now.duration_since(since) < IDLE
        });
    }
}

/// Sweeps for as long as there is anything.
async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(IDLE).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut held = pool.lock();
        held.sweep(Instant::now());
        if held.agents.is_empty() {
            held.is_swept = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests;
