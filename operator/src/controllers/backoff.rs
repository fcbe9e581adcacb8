//! Exponential backoff: how long something that has failed is left alone. Times are since some start.

use std::{collections::BTreeMap, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

#[derive(Debug)]
struct Failure {
    delays: ExponentialBackoff,
    until: Duration,
}

/// What has failed of late, by key. The delay doubles with each failure.
#[derive(Debug)]
pub(crate) struct Backoff<K> {
    failures: BTreeMap<K, Failure>,
    delays: ExponentialBuilder,
    /// A failure so long after the last delay is a first one again.
    forget_after: Duration,
}

impl<K: Ord> Backoff<K> {
    /// The first delay is `first`, the longest `longest`. A key that has not failed for `forget_after`
    /// starts again with the first.
    pub(crate) fn new(first: Duration, longest: Duration, forget_after: Duration) -> Self {
        Self {
            failures: BTreeMap::new(),
            delays: ExponentialBuilder::new()
                .with_min_delay(first)
                .with_max_delay(longest)
                .without_max_times(),
            forget_after,
        }
    }

    /// Records that it has failed. Returns how long it is left alone.
    pub(crate) fn record_failure(&mut self, key: K, now: Duration) -> Duration {
        let forget_after = self.forget_after;
        self.failures
            .retain(|_, failure| now < failure.until + forget_after);
        let failure = self.failures.entry(key).or_insert_with(|| Failure {
            delays: self.delays.build(),
            until: now,
        });
        // A backoff without a limit of times has always another delay.
        let delay = failure.delays.next().unwrap_or_default();
        failure.until = now + delay;
        delay
    }

    /// Records that it has succeeded: the next failure is the first one.
    pub(crate) fn record_success(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Until when it is left alone; `None` if it is not.
    pub(crate) fn until(&self, key: &K, now: Duration) -> Option<Duration> {
        let until = self.failures.get(key)?.until;
        (now < until).then_some(until)
    }

    /// Whether its last attempt failed.
    pub(crate) fn has_failed(&self, key: &K) -> bool {
        self.failures.contains_key(key)
    }

    /// Forgets the keys that this does not hold for.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.failures.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_failure_doubles_the_delay_up_to_the_longest_and_a_success_ends_it() {
        let mut backoff = Backoff::new(SECOND, 32 * SECOND, 3600 * SECOND);
        let mut now = SECOND;
        for delay in [1, 2, 4, 8, 16, 32, 32] {
            assert_eq!(backoff.record_failure("a", now), delay * SECOND);
            let until = now + delay * SECOND;
            assert_eq!(backoff.until(&"a", until - SECOND / 1000), Some(until));
            assert_eq!(backoff.until(&"a", until), None);
            assert_eq!(backoff.until(&"b", now), None);
            now = until;
        }
        backoff.record_success(&"a");
        assert_eq!(backoff.record_failure("a", now), SECOND);
    }

    #[test]
    fn a_failure_long_after_the_last_is_a_first_one() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND, 600 * SECOND);
        backoff.record_failure("a", SECOND);
        assert_eq!(backoff.record_failure("a", 2 * SECOND), 2 * SECOND);
        assert_eq!(backoff.record_failure("a", 604 * SECOND), SECOND);
    }
}
