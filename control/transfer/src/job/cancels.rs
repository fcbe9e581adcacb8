//! Whom a job that ends has told so, and whom it has to tell again.

use std::{collections::BTreeSet, time::Duration};

/// How often those are asked again that a Cancel has not reached. With [`Tempo::CLUSTER`] they have 7 s
/// between the tries, in which an agent that was stopped runs again, and the four tries take 6 s where
/// the node is silent. Somebody waits for the job to be gone, and a node that is down stays so for longer.
///
/// [`Tempo::CLUSTER`]: crate::Tempo::CLUSTER
const AGAIN: u32 = 3;

/// The Cancels of a job that ends. Owned and written by the job.
#[derive(Debug, Clone)]
pub(super) struct Cancels {
    round: Round,
    /// Rounds before this one.
    before: u32,
    /// How many more there may be.
    left: u32,
}

#[derive(Debug, Clone)]
enum Round {
    /// Asked.
    Asked {
        /// They have not answered yet.
        waiting: BTreeSet<String>,
        /// The Cancel has not reached them.
        unheard: BTreeSet<String>,
    },
    /// Before these are asked again.
    Resting {
        /// Them.
        unheard: BTreeSet<String>,
        /// Until then.
        until: Duration,
    },
}

impl Cancels {
    /// These are asked, and again if need be.
    pub(super) fn ask(nodes: BTreeSet<String>) -> Self {
        Self {
            round: Round::ask(nodes),
            before: 0,
            left: AGAIN,
        }
    }

    /// These are asked once more, after all that they have been asked in vain.
    pub(super) fn ask_once(nodes: BTreeSet<String>) -> Self {
        Self {
            left: 0,
            ..Self::ask(nodes)
        }
    }

    /// One has confirmed it, or is out of reach.
    pub(super) fn answered(&mut self, node: &str, is_heard: bool) {
        if let Round::Asked { waiting, unheard } = &mut self.round
            && waiting.remove(node)
            && !is_heard
        {
            unheard.insert(node.to_owned());
        }
    }

    /// All have answered, and nobody is asked again.
    pub(super) fn are_over(&self) -> bool {
        match &self.round {
            Round::Asked { waiting, unheard } => {
                waiting.is_empty() && (unheard.is_empty() || self.left == 0)
            }
            Round::Resting { .. } => false,
        }
    }

    /// Those that the Cancel has not reached, as far as they have been asked.
    pub(super) fn unheard(&self) -> &BTreeSet<String> {
        match &self.round {
            Round::Asked { unheard, .. } | Round::Resting { unheard, .. } => unheard,
        }
    }

    /// Those are to be asked again that are out of reach, this being the how manieth time.
    pub(super) fn are_to_rest(&self) -> Option<u32> {
        match &self.round {
            Round::Asked { waiting, unheard } if waiting.is_empty() && !unheard.is_empty() => {
                (self.left > 0).then_some(self.before + 1)
            }
            Round::Asked { .. } | Round::Resting { .. } => None,
        }
    }

    /// They are asked again then.
    pub(super) fn rest(&mut self, until: Duration) {
        if let Round::Asked { unheard, .. } = &mut self.round {
            let unheard = std::mem::take(unheard);
            self.round = Round::Resting { unheard, until };
        }
    }

    /// When somebody is to be asked again.
    pub(super) fn until(&self) -> Option<Duration> {
        match &self.round {
            Round::Asked { .. } => None,
            Round::Resting { until, .. } => Some(*until),
        }
    }

    /// Those that are to be asked again by now, and are waited for from now on.
    pub(super) fn again(&mut self, now: Duration) -> BTreeSet<String> {
        match &mut self.round {
            Round::Resting { unheard, until } if now >= *until => {
                let nodes = std::mem::take(unheard);
                self.round = Round::ask(nodes.clone());
                self.before += 1;
                self.left = self.left.saturating_sub(1);
                nodes
            }
            Round::Asked { .. } | Round::Resting { .. } => BTreeSet::new(),
        }
    }
}

impl Round {
    fn ask(nodes: BTreeSet<String>) -> Self {
        Self::Asked {
            waiting: nodes,
            unheard: BTreeSet::new(),
        }
    }
}
