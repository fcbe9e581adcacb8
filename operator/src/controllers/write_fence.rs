//! Whether this process may write: the fence against the moments in which two operators believe to lead.
//!
//! Every status says which leader wrote it, and is written only over the version that was decided about.
//! A former leader therefore cannot overwrite its successor's status. Once it sees a later epoch, it writes
//! nothing until its own Lease is renewed. Only the task that owns the controllers uses the fence.

use tokio::{sync::watch, time::Instant};

use crate::lease::RENEW_DEADLINE;

/// Whether this process still leads, as far as the controllers know.
#[derive(Debug)]
pub(crate) struct WriteFence {
    epoch: u64,
    /// When the last successful renewal of the Lease was sent.
    renewals: watch::Receiver<Instant>,
    /// A later leader's epoch, and when it was first seen.
    later_epoch: Option<(u64, Instant)>,
    /// Epochs up to this are of no leader: the Lease was renewed after they had been seen.
    ignored_epoch: u64,
}

impl WriteFence {
    /// Nothing has been seen yet.
    pub(crate) fn new(epoch: u64, renewals: watch::Receiver<Instant>) -> Self {
        Self {
            epoch,
            renewals,
            later_epoch: None,
            ignored_epoch: epoch,
        }
    }

    /// A status says that the leader of this epoch wrote it.
    pub(crate) fn observe(&mut self, epoch: u64, now: Instant) {
        let known = self
            .later_epoch
            .map_or(self.ignored_epoch, |(known, _)| known);
        if epoch > known {
            tracing::warn!(
                epoch,
                ours = self.epoch,
                "a later leader has written: nothing is written here until the Lease is renewed"
            );
            self.later_epoch = Some((epoch, now));
        }
    }

    /// Whether it is certain enough that this process leads.
    pub(crate) fn may_write(&mut self, now: Instant) -> bool {
        let renewed = *self.renewals.borrow();
        if let Some((epoch, since)) = self.later_epoch {
            if renewed <= since {
                return false;
            }
            // Who holds the Lease leads, whatever was restored from a backup or written by hand.
            tracing::warn!(
                epoch,
                ours = self.epoch,
                "this process still holds the Lease; it ignores the later epoch"
            );
            self.ignored_epoch = epoch;
            self.later_epoch = None;
        }
        now.saturating_duration_since(renewed) < RENEW_DEADLINE
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_written_once_the_lease_may_be_anothers() {
        let now = Instant::now();
        let (renew, renewals) = watch::channel(now);
        let mut fence = WriteFence::new(5, renewals);
        assert!(fence.may_write(now + RENEW_DEADLINE - SECOND));
        assert!(!fence.may_write(now + RENEW_DEADLINE));
        renew.send_replace(now + SECOND);
        assert!(fence.may_write(now + RENEW_DEADLINE));
    }

    #[test]
    fn who_sees_a_later_leader_writes_again_only_after_another_renewal() {
        let now = Instant::now();
        let (renew, renewals) = watch::channel(now);
        let mut fence = WriteFence::new(5, renewals);
        for earlier in [0, 4, 5] {
            fence.observe(earlier, now + SECOND);
        }
        assert!(fence.may_write(now + SECOND));
        fence.observe(6, now + 2 * SECOND);
        assert!(!fence.may_write(now + 3 * SECOND));
        // Sent before it was seen: another may have taken the Lease since.
        renew.send_replace(now + 2 * SECOND);
        assert!(!fence.may_write(now + 3 * SECOND));
        renew.send_replace(now + 3 * SECOND);
        assert!(fence.may_write(now + 3 * SECOND));
        // It is known by now; a still later one is not.
        fence.observe(6, now + 4 * SECOND);
        assert!(fence.may_write(now + 4 * SECOND));
        fence.observe(7, now + 4 * SECOND);
        assert!(!fence.may_write(now + 4 * SECOND));
    }
}
