//! What keeps a job from beginning.

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
