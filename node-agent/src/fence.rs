//! The fence against operators that have lost their lease: `leaderEpoch` only ever rises.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::Fault;

/// The highest leader epoch seen by this agent since it started.
#[derive(Debug, Default)]
pub(crate) struct Fence(AtomicU64);

impl Fence {
    /// Lets a command through and remembers its epoch, or refuses it.
    pub(crate) fn pass(&self, given: u64) -> Result<(), Fault> {
        let seen = self.0.fetch_max(given, Ordering::AcqRel);
        if given < seen {
            return Err(Fault::StaleEpoch { given, seen });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_below_the_highest_seen_is_refused() {
        let fence = Fence::default();
        for (given, passes) in [(3, true), (3, true), (2, false), (4, true), (3, false)] {
            assert_eq!(fence.pass(given).is_ok(), passes, "{given}");
        }
    }
}
