//! What keeps a job from beginning, the operator from reading a job's Secret, or nodes from having the label of a
//! finished job.

pub(crate) use weft_crds::Obstacle;

/// An obstacle that may pass.
pub(crate) fn temporary(reason: &str, message: String) -> Obstacle {
    Obstacle {
        reason: reason.to_owned(),
        message,
        is_final: false,
    }
}

/// One where nothing but another job helps.
pub(crate) fn permanent(reason: &str, message: String) -> Obstacle {
    Obstacle {
        is_final: true,
        ..temporary(reason, message)
    }
}

/// Reasons of the obstacles that only other jobs are: the job has the condition Queued.
pub(crate) const QUEUE_REASONS: [&str; 3] = ["PathInUse", "NamespaceFull", "Queued"];
