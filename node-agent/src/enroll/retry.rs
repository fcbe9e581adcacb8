//! `Retry`: how long to wait before a call to the operator is made again.

use std::collections::BTreeSet;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

use crate::enroll::error::OperatorError;
use crate::enroll::settings::Timing;

/// The tries of one call: growing delays, and one line of the log for each reason.
#[derive(Debug)]
pub(crate) struct Retry {
    call: &'static str,
    timing: Timing,
    delays: ExponentialBackoff,
    logged: BTreeSet<String>,
}

impl Retry {
    pub(crate) fn new(call: &'static str, timing: Timing) -> Self {
        // The jitter adds up to as much again, so that nodes do not come all at once.
        let delays = ExponentialBuilder::new()
            .with_min_delay(timing.retry_first / 2)
            .with_max_delay(timing.retry_most / 2)
            .without_max_times()
            .with_jitter()
            .build();
        Self {
            call,
            timing,
            delays,
            logged: BTreeSet::new(),
        }
    }

    /// The delay before the next try.
    pub(crate) fn failed(&mut self, error: &OperatorError) -> Duration {
        if self.logged.insert(error.reason().to_owned()) {
            tracing::warn!(
                reason = error.reason(),
                "{}: {error} (tried again until it succeeds)",
                self.call
            );
        }
        // A backoff without a limit of times always has another delay.
        self.delays.next().unwrap_or_default()
    }

    /// The next failure is the first one again.
    pub(crate) fn succeeded(&mut self) {
        if !self.logged.is_empty() {
            tracing::info!("{}: succeeded after failures", self.call);
            *self = Self::new(self.call, self.timing);
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn refused(reason: &str) -> OperatorError {
        OperatorError::Refused {
            code: Code::Internal,
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    #[test]
    fn delays_double_up_to_the_longest_differ_and_begin_again_after_a_success() {
        let new = |_| Retry::new("enroll", Timing::default());
        let mut nodes: Vec<Retry> = (0..20).map(new).collect();
        let fail = |most_s, nodes: &mut [Retry]| {
            let most = Duration::from_secs(most_s);
            let delays = nodes.iter_mut().map(|node| node.failed(&refused("A")));
            let delays: BTreeSet<Duration> = delays.collect();
            assert!(
                delays.iter().all(|delay| (most / 2..=most).contains(delay)),
                "{delays:?}"
            );
            assert!(delays.len() > 15, "{delays:?}");
        };
        for most_s in [1, 2, 4, 8, 16, 30, 30] {
            fail(most_s, &mut nodes);
        }
        nodes.iter_mut().for_each(Retry::succeeded);
        fail(1, &mut nodes);
    }

    #[test]
    fn each_reason_is_logged_once_until_the_call_succeeds() {
        let mut retry = Retry::new("enroll", Timing::default());
        for reason in ["A", "B", "A", "B"] {
            retry.failed(&refused(reason));
        }
        assert_eq!(retry.logged.len(), 2);
        retry.succeeded();
        assert!(retry.logged.is_empty());
    }
}
