//! How far a job is, and how it ended.

use crate::command::Cleanup;

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPhase {
    /// The source is asked what there is.
    Listing,
    /// The job waits before the next Stat or attempt, or until the next attempt may begin.
    BetweenAttempts,
    /// Destinations are made ready.
    Preparing,
    /// Parts are under way.
    Running,
    /// Agents are told that the attempt or the job ends.
    Ending,
    /// Nothing will change any more.
    Over,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every destination is Verified, and the source reports no fault.
    Complete,
    /// At least one destination was given up.
    Failed,
    /// The job was cancelled.
    Cancelled(Cleanup),
}

impl End {
    /// What agents remove at the end; where a job ends by itself, at the destinations that failed.
    pub(crate) fn cleanup(self) -> Cleanup {
        match self {
            Self::Complete | Self::Failed => Cleanup::Partials,
            Self::Cancelled(cleanup) => cleanup,
        }
    }
}
