//! Transfers whose task ended without an outcome, which is a bug: they begin again, later each time.
//!
//! There is no last time. What a person gives up is a job, by its deadline or by deleting it; a bug of the
//! operator is no reason that a job is Failed, which is final. Times are since some start.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::request::News;

/// Before it begins again; it doubles …
const FIRST: Duration = Duration::from_secs(1);
/// … up to this: a job that panics at once costs the agents and the log one attempt a minute.
const LONGEST: Duration = Duration::from_secs(60);
/// Whoever went on for so long has stumbled over something else.
const CALM: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Stumble {
    wait: Duration,
    until: Duration,
}

/// By the jobs' UIDs.
#[derive(Debug, Default)]
pub(super) struct Stumbles(BTreeMap<String, Stumble>);

impl Stumbles {
    /// A task has ended so: how long its job waits now.
    pub(super) fn stumbled(&mut self, uid: &str, now: Duration) -> Duration {
        let before = self.0.get(uid).filter(|before| now < before.until + CALM);
        let wait = before.map_or(FIRST, |before| (before.wait * 2).min(LONGEST));
        let until = now + wait;
        self.0.insert(uid.to_owned(), Stumble { wait, until });
        wait
    }

    /// Whether a job is not to begin yet.
    pub(super) fn is_waiting(&self, uid: &str, now: Duration) -> bool {
        self.0.get(uid).is_some_and(|stumble| now < stumble.until)
    }

    /// Only these jobs are there still.
    pub(super) fn keep(&mut self, uids: &BTreeSet<String>) {
        self.0.retain(|uid, _| uids.contains(uid));
    }
}

/// What people hear of a job whose transfer ended by a bug.
pub(super) fn interrupted(wait: Duration) -> News {
    News {
        warning: true,
        reason: "TransferInterrupted".to_owned(),
        note: format!(
            "the operator's task for this transfer ended by a bug, which its log tells of; it begins again \
             in {} s, from what is there",
            wait.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_stumbles_begins_again_later_each_time_and_within_a_minute() {
        let mut stumbles = Stumbles::default();
        let mut now = SECOND;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!stumbles.is_waiting("a", now));
            assert_eq!(stumbles.stumbled("a", now), wait * SECOND);
            assert!(stumbles.is_waiting("a", now + wait * SECOND - SECOND / 1000));
            assert!(!stumbles.is_waiting("b", now));
            now += wait * SECOND;
        }
        // It went on for long enough.
        now += CALM;
        assert_eq!(stumbles.stumbled("a", now), SECOND);
        stumbles.keep(&BTreeSet::from(["b".to_owned()]));
        assert!(!stumbles.is_waiting("a", now));
    }
}
