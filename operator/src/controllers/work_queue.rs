//! The jobs to decide next: those that something has happened to, and those whose time has come.
//!
//! A job to which nothing happens costs nothing. A resync finds what was missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::controllers::cache::Key;

/// All jobs are decided again this often, whatever has happened.
const RESYNC: Duration = Duration::from_secs(10);
/// All jobs depend on the nodes, and hundreds of nodes may change one after the other: then
/// all jobs are decided again this often.
const NODE_REVISION_INTERVAL: Duration = Duration::from_secs(1);

/// Times are since some start.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    now: BTreeSet<Key>,
    later: BTreeMap<Key, Duration>,
    resynced: Option<Duration>,
    node_revision: Option<(u64, Duration)>,
}

impl WorkQueue {
    /// Decide a job now.
    pub(crate) fn add(&mut self, key: Key) {
        self.now.insert(key);
    }

    /// Decide a job then, or sooner.
    pub(crate) fn add_at(&mut self, key: &Key, at: Duration) {
        let due = self.later.entry(key.clone()).or_insert(at);
        *due = at.min(*due);
    }

    /// Forgets the jobs that this does not hold for.
    pub(crate) fn retain(&mut self, exists: impl Fn(&Key) -> bool) {
        self.now.retain(&exists);
        self.later.retain(|key, _| exists(key));
    }

    /// Whether all jobs are to be decided, because a node has changed or a resync is due; starts the next interval.
    pub(crate) fn take_resync_due(&mut self, node_revision: u64, now: Duration) -> bool {
        let has_passed = |since: Duration, span: Duration| now.saturating_sub(since) >= span;
        let is_new = self.node_revision.is_none_or(|(known, at)| {
            known != node_revision && has_passed(at, NODE_REVISION_INTERVAL)
        });
        if is_new {
            self.node_revision = Some((node_revision, now));
        }
        let is_due = self.resynced.is_none_or(|at| has_passed(at, RESYNC));
        if is_due {
            self.resynced = Some(now);
        }
        is_new || is_due
    }

    /// Removes and returns the jobs to decide now.
    pub(crate) fn drain_due(&mut self, now: Duration) -> BTreeSet<Key> {
        let mut keys = std::mem::take(&mut self.now);
        self.later.retain(|key, due| {
            let is_due = *due <= now;
            if is_due {
                keys.insert(key.clone());
            }
            !is_due
        });
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_job_is_due_once_when_something_happened_and_once_when_its_time_has_come() {
        let (a, b) = (Key::cluster_scoped("a"), Key::cluster_scoped("b"));
        let mut queue = WorkQueue::default();
        queue.add(a.clone());
        queue.add_at(&b, 5 * SECOND);
        // The sooner counts.
        queue.add_at(&b, 9 * SECOND);
        assert_eq!(queue.drain_due(SECOND), BTreeSet::from([a.clone()]));
        assert_eq!(queue.drain_due(4 * SECOND), BTreeSet::new());
        assert_eq!(queue.drain_due(5 * SECOND), BTreeSet::from([b.clone()]));
        assert_eq!(queue.drain_due(99 * SECOND), BTreeSet::new());
    }

    #[test]
    fn a_job_that_is_gone_is_not_decided() {
        let (gone, existing) = (Key::cluster_scoped("gone"), Key::cluster_scoped("existing"));
        let mut queue = WorkQueue::default();
        for key in [&gone, &existing] {
            queue.add(key.clone());
            queue.add_at(key, 1000 * SECOND);
        }
        queue.retain(|key| *key == existing);
        assert_eq!(queue.later.len(), 1);
        assert_eq!(queue.drain_due(SECOND), BTreeSet::from([existing.clone()]));
        assert_eq!(queue.drain_due(1000 * SECOND), BTreeSet::from([existing]));
    }

    #[test]
    fn all_are_due_with_another_node_revision_at_most_once_a_second_and_once_in_a_while() {
        let mut queue = WorkQueue::default();
        assert!(queue.take_resync_due(1, SECOND));
        assert!(!queue.take_resync_due(1, 2 * SECOND));
        assert!(queue.take_resync_due(2, 3 * SECOND));
        // Later, and not forgotten.
        assert!(!queue.take_resync_due(3, 3 * SECOND + SECOND / 2));
        assert!(queue.take_resync_due(3, 4 * SECOND));
        assert!(!queue.take_resync_due(3, 10 * SECOND));
        assert!(queue.take_resync_due(3, 11 * SECOND));
    }
}
