//! First contact: which nodes have been reached yet, and when one that never was is given up.
//!
//! Pure; the job asks. A node that a connection was made to may come back, even if it never
//! answered a call, and is waited for by the backoff limit; something may be left there, too. One
//! that none was made to most likely has a wrong address, a closed port or no agent, and a person
//! wants to know that at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Refusal;

/// Owned and written by the job.
#[derive(Debug, Clone)]
pub(super) struct FirstContact {
    /// A node that has not been reached for so long since it was first asked is given up.
    limit: Duration,
    /// Asked and not reached, since then.
    unreached: BTreeMap<String, Duration>,
    reached: BTreeSet<String>,
}

impl FirstContact {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            unreached: BTreeMap::new(),
            reached: BTreeSet::new(),
        }
    }

    /// A node is asked something.
    pub(super) fn asked(&mut self, node: &str, now: Duration) {
        if !self.reached.contains(node) {
            self.unreached.entry(node.to_owned()).or_insert(now);
        }
    }

    /// It has been reached: whatever it said, it is there.
    pub(super) fn reached(&mut self, node: &str) {
        self.unreached.remove(node);
        self.reached.insert(node.to_owned());
    }

    /// A refusal, final where it is one more vain try to reach a node that never was.
    pub(super) fn judge(&mut self, now: Duration, refusal: Refusal) -> Refusal {
        if !refusal.is_before_contact() {
            self.reached(&refusal.node);
            return refusal;
        }
        let since = self.unreached.get(&refusal.node);
        let over = since.is_some_and(|since| now.saturating_sub(*since) >= self.limit);
        Refusal {
            retriable: refusal.retriable && !over,
            ..refusal
        }
    }

    /// A connection was made to it.
    pub(super) fn was_reached(&self, node: &str) -> bool {
        self.reached.contains(node)
    }

    /// No connection was ever made to it, so nothing of this job is there.
    pub(super) fn was_never_reached(&self, node: &str) -> bool {
        self.unreached.contains_key(node)
    }
}
