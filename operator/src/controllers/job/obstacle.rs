//! What keeps a job from beginning.

/// Why a job cannot begin now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// Stable, UpperCamelCase.
    pub(crate) reason: &'static str,
    /// Names the field and the remedy.
    pub(crate) message: String,
    /// Nothing but another job helps; else it is waited for.
    pub(crate) is_final: bool,
}

/// An obstacle that may pass.
pub(crate) fn wait(reason: &'static str, message: String) -> Obstacle {
    Obstacle {
        reason,
        message,
        is_final: false,
    }
}
