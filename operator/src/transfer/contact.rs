//! First contact: which nodes have answered yet, and when one that never has is given up.
//!
//! Pure; the job asks. A node that answered once may come back, and is waited for by the backoff
//! limit. One that never did most likely has a wrong address, a closed port or no agent, and a
//! person wants to know that at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Refusal, UNREACHABLE};

/// A node that has not answered for so long since it was first asked is given up: two tries of
/// [`CONTACT_TRY`](super::CONTACT_TRY) with the first backoff between them.
const FIRST_CONTACT: Duration = Duration::from_secs(3);

/// Owned and written by the job.
#[derive(Debug, Clone, Default)]
pub(super) struct FirstContact {
    /// Asked and not heard of, since then.
    unheard: BTreeMap<String, Duration>,
    heard: BTreeSet<String>,
}

impl FirstContact {
    /// A node is asked something.
    pub(super) fn asked(&mut self, node: &str, now: Duration) {
        if !self.heard.contains(node) {
            self.unheard.entry(node.to_owned()).or_insert(now);
        }
    }

    /// It has answered: whatever that was, it is there.
    pub(super) fn answered(&mut self, node: &str) {
        self.unheard.remove(node);
        self.heard.insert(node.to_owned());
    }

    /// A refusal, final where it is one more silence of a node that was never heard of.
    pub(super) fn judge(&mut self, now: Duration, refusal: Refusal) -> Refusal {
        if refusal.reason != UNREACHABLE {
            self.answered(&refusal.node);
            return refusal;
        }
        let since = self.unheard.get(&refusal.node);
        let over = since.is_some_and(|since| now.saturating_sub(*since) >= FIRST_CONTACT);
        Refusal {
            retriable: refusal.retriable && !over,
            ..refusal
        }
    }

    /// Nothing was ever heard of it, so nothing of this job is there.
    pub(super) fn is_unheard(&self, node: &str) -> bool {
        self.unheard.contains_key(node)
    }
}
