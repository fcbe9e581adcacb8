//! The fence against operators that no longer lead: the highest leader epoch never falls.

use tokio::sync::watch;

use crate::fault::Fault;

/// The highest leader epoch that this process has seen. It has seen one before the agent takes commands: the
/// operator says its epoch when the node joins.
#[derive(Debug, Default)]
pub(crate) struct Fence(watch::Sender<u64>);

impl Fence {
    /// The leader has said its epoch itself. Returns the highest that was seen before.
    pub(crate) fn observe(&self, epoch: u64) -> u64 {
        let mut seen = 0;
        self.0.send_if_modified(|highest| {
            seen = *highest;
            *highest = epoch.max(seen);
            epoch > seen
        });
        seen
    }

    /// Lets a command through and remembers its epoch, or refuses it.
    pub(crate) fn pass(&self, given: u64) -> Result<(), Fault> {
        let seen = self.observe(given);
        if given < seen {
            return Err(Fault::StaleEpoch { given, seen });
        }
        Ok(())
    }

    /// Waits until a later epoch than `given` is seen. For work that goes on after its command.
    pub(crate) async fn wait_for_later_epoch(&self, given: u64) -> Fault {
        let mut watch = self.0.subscribe();
        let seen = match watch.wait_for(|seen| *seen > given).await {
            Ok(seen) => *seen,
            // The sender lives as long as `self`.
            Err(_) => u64::MAX,
        };
        Fault::StaleEpoch { given, seen }
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

    #[test]
    fn an_epoch_that_the_leader_has_said_counts_and_is_never_lowered() {
        let fence = Fence::default();
        fence.observe(5);
        assert!(fence.pass(4).is_err() && fence.pass(5).is_ok());
        for earlier in [0, 3] {
            fence.observe(earlier);
        }
        assert!(fence.pass(4).is_err() && fence.pass(5).is_ok());
    }

    #[tokio::test]
    async fn a_waiter_gets_a_later_epoch_only() {
        let fence = Fence::default();
        fence.pass(3).unwrap();
        let mut later = std::pin::pin!(fence.wait_for_later_epoch(3));
        assert!(futures::poll!(&mut later).is_pending());
        fence.pass(3).unwrap();
        assert!(futures::poll!(&mut later).is_pending());
        fence.pass(5).unwrap();
        let fault = later.await;
        assert!(
            matches!(fault, Fault::StaleEpoch { given: 3, seen: 5 }),
            "{fault}"
        );
        // Also one that came before.
        assert_eq!(fence.wait_for_later_epoch(4).await.reason(), "StaleEpoch");
    }
}
