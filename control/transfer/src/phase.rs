//! How far a transfer is, and how it ended.

use crate::command::Cleanup;

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPhase {
    /// The source is asked what there is.
    Listing,
    /// An attempt is being ended and another follows, or the transfer waits for the next Stat or attempt.
    BetweenAttempts,
    /// Destinations are made ready.
    Preparing,
    /// Nodes work on their assignments.
    Running,
    /// Agents are told that the transfer ends.
    Ending,
    /// Nothing will change any more.
    Over,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every destination is Verified, and the source reports no fault.
    Complete,
    /// A destination was given up, the source reports a fault, or no destination is left.
    Failed,
    /// The transfer was cancelled.
    Cancelled(Cleanup),
}

impl End {
    /// What agents remove at the end; where a transfer ends by itself, at the destinations that failed.
    pub(crate) fn cleanup(self) -> Cleanup {
        match self {
            Self::Complete | Self::Failed => Cleanup::Partials,
            Self::Cancelled(cleanup) => cleanup,
        }
    }
}
