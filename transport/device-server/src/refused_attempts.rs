//! Which pods have tried what they may not, for those who tell both.
//!
//! It counts nothing: that does each device. It is bounded, because a program can try without end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pairs of pods that are kept until they are taken: more than are told of in that time.
const PAIRS_MAX: usize = 64;

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptKind {
    /// To connect to a device of another tenant.
    Connection,
    /// To reach memory, over a connection, that the peer has not opened.
    MemoryAccess,
}

/// An attempt that was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedAttempt {
    /// What was tried.
    pub kind: AttemptKind,
    /// The pod that tried, as NAMESPACE/NAME. Its node vouches for that.
    pub from: Arc<str>,
    /// The pod whose device or memory it is.
    pub to: Arc<str>,
}

/// Those that nobody has been told of.
#[derive(Debug, Default)]
pub(crate) struct RefusedAttempts(Mutex<BTreeSet<RefusedAttempt>>);

impl RefusedAttempts {
    /// Keeps one of a pod with another one. Devices without a pod have nobody to tell.
    pub(crate) fn add(&self, attempt: RefusedAttempt) {
        if attempt.from.is_empty() || attempt.to.is_empty() || attempt.from == attempt.to {
            return;
        }
        let mut attempts = self.lock();
        if attempts.len() < PAIRS_MAX {
            attempts.insert(attempt);
        }
    }

    /// Those since they were taken last.
    pub(crate) fn take(&self) -> BTreeSet<RefusedAttempt> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<RefusedAttempt>> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(from: &str, to: &str) -> RefusedAttempt {
        RefusedAttempt {
            kind: AttemptKind::Connection,
            from: from.into(),
            to: to.into(),
        }
    }

    #[test]
    fn attempts_of_one_pair_are_one_and_a_flood_of_pairs_is_bounded() {
        let attempts = RefusedAttempts::default();
        for (from, to) in [
            ("a/x", "b/y"),
            ("a/x", "b/y"),
            ("a/x", "a/x"),
            ("", "b/y"),
            ("a/x", ""),
        ] {
            attempts.add(attempt(from, to));
        }
        assert_eq!(attempts.take(), [attempt("a/x", "b/y")].into());
        assert!(attempts.take().is_empty());
        for i in 0..1000 {
            attempts.add(attempt(&format!("a/{i}"), "b/y"));
        }
        assert_eq!(attempts.take().len(), PAIRS_MAX);
    }
}
