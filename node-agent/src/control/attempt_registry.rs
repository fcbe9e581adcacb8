//! `AttemptRegistry`: the latest attempt of each job that this node knows, by the job's UID, and what their commands work with.
//!
//! The commands are in files of their own: `stat`, `prepare`, `start`, `connect` and `cancel`. The control API
//! calls them after it has checked the caller. What a command starts goes on when its caller hangs up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use weft_engine::DomainId;
use weft_proto::agent::v1::{AttemptRef, Location};

use crate::config::ConfigSource;
use crate::config::values::{NodeName, PublicKey};
use crate::control::attempt_handle::AttemptHandle;
use crate::control::manifests::Manifests;
use crate::control::misuse::Misuses;
use crate::control::supervisor::supervise;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{Leftover, Root, RootPath};
use crate::links::Links;
use crate::object::{self, StoreSettings};
use crate::tls::Tls;
use crate::transfer::buffers::MemoryBudget;

/// Jobs that are over and still known.
const FINISHED_JOBS_MAX: usize = 1024;

/// Reasons for which an alert looks (WeftCallsRefused): they are counted from 0, so that a first burst is an increase.
const REFUSED_FROM_0: [&str; 7] = [
    "WrongCertificate",
    "NotAllowed",
    "TicketForged",
    "TicketExpired",
    "TicketOtherFabric",
    "TicketOtherNode",
    "TicketOtherTransfer",
];

/// What jobs work with.
#[derive(Debug)]
pub struct RegistryConfig {
    /// This node.
    pub node: NodeName,
    /// Who wrote the configuration.
    pub config_source: ConfigSource,
    /// The transport.
    pub links: Arc<Links>,
    /// This node's certificate, as it is now.
    pub tls: watch::Receiver<Tls>,
    /// The buffers of all transfers.
    pub memory: Arc<MemoryBudget>,
    /// Receive slots per connection, at most.
    pub slots: u16,
    /// An attempt ends when no operator has asked about it for so long.
    pub lease: Duration,
    /// Another agent that does not answer is called again for so long.
    pub retry_for: Duration,
    /// What holds for all stores of objects.
    pub(crate) stores: StoreSettings,
}

/// The configuration that may change while attempts run. Each command uses what is in force when it comes.
#[derive(Debug)]
pub struct ReloadableConfig {
    /// The directories that may be named.
    pub roots: Vec<Arc<Root>>,
    /// Which stores may be read.
    pub objects: object::Access,
    /// Of the operator's tickets.
    pub ticket_key: PublicKey,
}

/// The latest attempt of each job of this node.
#[derive(Debug)]
pub struct AttemptRegistry {
    pub(crate) config: RegistryConfig,
    reloadable: Mutex<Arc<ReloadableConfig>>,
    /// Calls that were refused, by reason: the number of reasons is fixed.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) misuses: Misuses,
    known: Mutex<KnownJobs>,
    /// Counts the changes of copies' records.
    pub(crate) copies_changed: Arc<watch::Sender<u64>>,
    pub(crate) manifests: Manifests,
    domains: AtomicU32,
}

#[derive(Debug, Default)]
struct KnownJobs {
    /// The latest attempt of each job.
    latest: HashMap<String, Arc<AttemptHandle>>,
    /// The keys of `leftovers`, oldest first.
    order: VecDeque<String>,
    /// What each job may have left. A job whose attempt was refused is here only.
    leftovers: HashMap<String, Arc<Mutex<Leftover>>>,
    stopping: bool,
}

impl AttemptRegistry {
    /// None yet.
    #[must_use]
    pub fn new(config: RegistryConfig, reloadable: ReloadableConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            reloadable: Mutex::new(Arc::new(reloadable)),
            refused: Mutex::new(BTreeMap::from(REFUSED_FROM_0.map(|reason| (reason, 0)))),
            misuses: Misuses::default(),
            known: Mutex::default(),
            copies_changed: Arc::default(),
            manifests: Manifests::default(),
            domains: AtomicU32::new(1),
        })
    }

    /// Counts a call that is refused.
    pub(crate) fn count_refusal(&self, reason: &'static str) {
        *fail_fast::lock(&self.refused).entry(reason).or_default() += 1;
    }

    /// Calls that were refused, by reason.
    pub(crate) fn refused(&self) -> BTreeMap<&'static str, u64> {
        fail_fast::lock(&self.refused).clone()
    }

    /// What is in force now.
    pub(crate) fn reloadable_config(&self) -> Arc<ReloadableConfig> {
        fail_fast::lock(&self.reloadable).clone()
    }

    /// Puts a configuration in force.
    pub(crate) fn set_reloadable_config(&self, config: ReloadableConfig) {
        *fail_fast::lock(&self.reloadable) = Arc::new(config);
    }

    /// The root and the path that a location names.
    pub(crate) fn resolve(&self, location: &Location) -> Result<(Arc<Root>, RootPath), Fault> {
        let root = self.root(&location.root)?;
        Ok((root, RootPath::parse(&location.path)?))
    }

    fn root(&self, name: &str) -> Result<Arc<Root>, Fault> {
        let config = self.reloadable_config();
        let root = config.roots.iter().find(|root| root.name() == name);
        root.cloned().ok_or_else(|| {
            let known: Vec<&str> = config.roots.iter().map(|root| root.name()).collect();
            Fault::UnknownRoot {
                root: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    /// Called before Prepare, which may leave files. A first attempt finds no earlier files; a later one may find
    /// them in any root.
    pub(crate) fn register_job(&self, attempt_ref: &AttemptRef) {
        if attempt_order(attempt_ref) <= (1, 1) {
            fail_fast::lock(&self.known).leftover_of(&attempt_ref.uid, Leftover::default);
        } else {
            self.register_unknown_job(attempt_ref);
        }
    }

    /// A job of which nothing is known may have left anything in any root.
    pub(crate) fn register_unknown_job(&self, attempt_ref: &AttemptRef) {
        let anywhere = || Leftover::anywhere(&self.reloadable_config().roots);
        fail_fast::lock(&self.known).leftover_of(&attempt_ref.uid, anywhere);
    }

    /// The latest attempt of the job.
    pub(crate) fn latest(&self, attempt_ref: &AttemptRef) -> Option<Arc<AttemptHandle>> {
        fail_fast::lock(&self.known)
            .latest
            .get(&attempt_ref.uid)
            .cloned()
    }

    /// Exactly this attempt.
    pub fn find(&self, attempt_ref: &AttemptRef) -> Result<Arc<AttemptHandle>, Fault> {
        match self.latest(attempt_ref) {
            Some(latest) if latest.attempt.attempt_ref == *attempt_ref => Ok(latest),
            Some(latest)
                if attempt_order(&latest.attempt.attempt_ref) > attempt_order(attempt_ref) =>
            {
                Err(stale(&latest, attempt_ref))
            }
            _ => Err(Fault::UnknownAttempt {
                uid: attempt_ref.uid.clone(),
                attempt: attempt_ref.number,
            }),
        }
    }

    /// This attempt, made if it is new. An earlier one of the same job is ended first.
    pub(crate) async fn find_or_begin(
        &self,
        attempt_ref: &AttemptRef,
    ) -> Result<Arc<AttemptHandle>, Fault> {
        loop {
            let earlier = {
                let mut known = fail_fast::lock(&self.known);
                match known.latest.get(&attempt_ref.uid) {
                    Some(latest) if latest.attempt.attempt_ref == *attempt_ref => {
                        return Ok(latest.clone());
                    }
                    Some(latest)
                        if attempt_order(&latest.attempt.attempt_ref)
                            > attempt_order(attempt_ref) =>
                    {
                        return Err(stale(latest, attempt_ref));
                    }
                    _ if known.stopping => return Err(Fault::ShuttingDown),
                    Some(earlier) if !earlier.attempt.status().closed => earlier.clone(),
                    _ => return Ok(self.insert(&mut known, attempt_ref)),
                }
            };
            earlier.attempt.fail(Fault::Superseded {
                by: attempt_ref.number,
            });
            earlier.attempt.wait_closed().await;
        }
    }

    fn insert(&self, known: &mut KnownJobs, attempt_ref: &AttemptRef) -> Arc<AttemptHandle> {
        let domain = DomainId(self.domains.fetch_add(1, Ordering::Relaxed));
        let leftover = known.leftover_of(&attempt_ref.uid, Leftover::default);
        let attempt = AttemptHandle::new(attempt_ref, domain, leftover);
        known
            .latest
            .insert(attempt_ref.uid.clone(), attempt.clone());
        fail_fast::spawn("supervisor", supervise(attempt.clone(), self.config.lease));
        attempt
    }

    /// The latest attempt of each job that is known.
    #[must_use]
    pub fn attempts(&self) -> Vec<Arc<AttemptHandle>> {
        fail_fast::lock(&self.known)
            .latest
            .values()
            .cloned()
            .collect()
    }

    /// Ends all attempts and refuses new ones.
    pub async fn shut_down(&self) {
        fail_fast::lock(&self.known).stopping = true;
        let attempts = self.attempts();
        for known in &attempts {
            known.attempt.fail(Fault::ShuttingDown);
        }
        for known in &attempts {
            known.attempt.wait_closed().await;
        }
    }
}

impl KnownJobs {
    /// What a job may have left. `unknown` says it for a job that is not known.
    fn leftover_of(
        &mut self,
        uid: &str,
        unknown: impl FnOnce() -> Leftover,
    ) -> Arc<Mutex<Leftover>> {
        if let Some(leftover) = self.leftovers.get(uid) {
            return leftover.clone();
        }
        let leftover = Arc::new(Mutex::new(unknown()));
        self.leftovers.insert(uid.to_owned(), leftover.clone());
        self.order.push_back(uid.to_owned());
        let is_over = |latest: Option<&Arc<AttemptHandle>>| {
            latest.is_none_or(|latest| latest.attempt.status().closed)
        };
        while self.order.len() > FINISHED_JOBS_MAX
            && let Some(uid) = self
                .order
                .pop_front_if(|uid| is_over(self.latest.get(uid.as_str())))
        {
            self.leftovers.remove(&uid);
            self.latest.remove(&uid);
        }
        leftover
    }
}

/// Attempts of a job are ordered by this.
fn attempt_order(attempt_ref: &AttemptRef) -> (u64, u32) {
    (attempt_ref.generation, attempt_ref.number)
}

fn stale(latest: &AttemptHandle, attempt_ref: &AttemptRef) -> Fault {
    let next = latest.attempt.attempt_ref.number.saturating_add(1);
    Fault::StaleAttempt {
        uid: attempt_ref.uid.clone(),
        given: attempt_ref.number,
        next,
    }
}

#[cfg(test)]
mod tests {
    use weft_identity::ticket::TicketFault;

    use super::*;

    #[test]
    fn refusals_for_which_an_alert_looks_are_counted_from_0() {
        let other = String::new;
        let tickets = [
            TicketFault::Forged,
            TicketFault::Expired { seconds: 1 },
            TicketFault::OtherFabric { theirs: other() },
            TicketFault::OtherNode {
                from: other(),
                to: other(),
                caller: other(),
                here: other(),
            },
            TicketFault::OtherTransfer { what: "root" },
        ];
        let mut reasons = vec!["WrongCertificate", "NotAllowed"];
        reasons.extend(tickets.iter().map(TicketFault::reason));
        assert_eq!(REFUSED_FROM_0.as_slice(), reasons);
    }
}
