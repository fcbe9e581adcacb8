//! How far a job is, and how it ended.

use std::{collections::BTreeSet, time::Duration};

use super::cancels::Cancels;
use crate::{Cleanup, attempt::Attempt};

/// How far a job is, for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// The source is asked what there is.
    Asking,
    /// Before the next Stat or attempt, or until that may begin.
    Resting,
    /// Destinations are made ready.
    Preparing,
    /// Parts are under way.
    Running,
    /// Agents are told that it ends.
    Ending,
    /// Nothing will change any more.
    Over,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every destination is Verified, and the source has nothing to object.
    Complete,
    /// Some destination was given up.
    Failed,
    /// It was stopped.
    Withdrawn(Cleanup),
}

#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Stat was sent.
    Asking,
    /// Before the next Stat or attempt.
    Resting { until: Duration },
    /// The next attempt's number is being written down.
    Claiming,
    /// Prepare was sent to all that are left.
    Preparing {
        waiting: BTreeSet<String>,
        ready: Vec<String>,
    },
    /// An attempt is on its way.
    Running(Attempt),
    /// It is being ended everywhere.
    Cancelling {
        attempt: Attempt,
        waiting: BTreeSet<String>,
    },
    /// All is Verified; the last reports come in.
    Settling { attempt: Attempt, until: Duration },
    /// What failed is being removed.
    Discarding(Cancels),
    /// It was stopped, and everybody is told.
    Withdrawing { cancels: Cancels, cleanup: Cleanup },
    /// Nothing will change any more, because it was stopped.
    Withdrawn(Cleanup),
    /// Nothing will change any more.
    Over,
}
