//! What a transfer waits for.

use std::{collections::BTreeSet, time::Duration};

use crate::{attempt::Attempt, phase::End};

/// What a transfer waits for.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Stat was sent.
    Listing,
    /// Before the next Stat.
    Waiting { until: Duration },
    /// The next attempt's number is being recorded.
    RecordingAttempt,
    /// Prepare was sent to all destinations that are left.
    Preparing {
        /// They have not answered yet.
        waiting: BTreeSet<String>,
        ready: Vec<String>,
    },
    /// An attempt is under way.
    Running(Attempt),
    /// The attempt is being ended at all its nodes.
    EndingAttempt {
        attempt: Attempt,
        /// They have not answered yet.
        waiting: BTreeSet<String>,
    },
    /// All is Verified; the last progress messages come in.
    AwaitingFinalReports { attempt: Attempt, until: Duration },
    /// Nodes are told how the transfer ends.
    Ending {
        end: End,
        /// They have not answered yet.
        waiting: BTreeSet<String>,
    },
    /// Nothing will change any more.
    Over(End),
}
