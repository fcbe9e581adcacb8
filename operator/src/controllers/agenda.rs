//! Which jobs are to be decided: those that something has happened to, and those whose time has come.
//!
//! A thousand jobs that nothing happens to cost nothing. What should have been noticed and was not is
//! found when everything is looked at once in a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::world::Key;

/// Everything is looked at so often, whatever has been noticed.
const SWEEP: Duration = Duration::from_secs(10);
/// All jobs depend on the layout of the nodes, and hundreds of nodes may change in a bunch: then they
/// are looked at this often.
const LAYOUT: Duration = Duration::from_secs(1);

/// Times are since some start.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    now: BTreeSet<Key>,
    later: BTreeMap<Key, Duration>,
    swept: Option<Duration>,
    layout: Option<(u64, Duration)>,
}

impl Agenda {
    /// Something has happened to a job.
    pub(super) fn note(&mut self, key: Key) {
        self.now.insert(key);
    }

    /// A job is to be looked at then, or sooner.
    pub(super) fn at(&mut self, key: &Key, at: Duration) {
        let due = self.later.entry(key.clone()).or_insert(at);
        *due = at.min(*due);
    }

    /// Forgets those that are no more, when they would be due too.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.now.retain(&is_there);
        self.later.retain(|key, _| is_there(key));
    }

    /// Whether all are to be looked at: the layout is another, or it is time.
    pub(super) fn is_for_all(&mut self, layout: u64, now: Duration) -> bool {
        let has_passed = |since: Duration, span: Duration| now.saturating_sub(since) >= span;
        let is_new = self
            .layout
            .is_none_or(|(known, at)| known != layout && has_passed(at, LAYOUT));
        if is_new {
            self.layout = Some((layout, now));
        }
        let is_due = self.swept.is_none_or(|at| has_passed(at, SWEEP));
        if is_due {
            self.swept = Some(now);
        }
        is_new || is_due
    }

    /// Those that are to be looked at now; they are off the agenda.
    pub(super) fn take(&mut self, now: Duration) -> BTreeSet<Key> {
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
        let (a, b) = (Key::cluster("a"), Key::cluster("b"));
        let mut agenda = Agenda::default();
        agenda.note(a.clone());
        agenda.at(&b, 5 * SECOND);
        // The sooner counts.
        agenda.at(&b, 9 * SECOND);
        assert_eq!(agenda.take(SECOND), BTreeSet::from([a.clone()]));
        assert_eq!(agenda.take(4 * SECOND), BTreeSet::new());
        assert_eq!(agenda.take(5 * SECOND), BTreeSet::from([b.clone()]));
        assert_eq!(agenda.take(99 * SECOND), BTreeSet::new());
    }

    #[test]
    fn a_job_that_is_no_more_is_off_the_agenda() {
        let (gone, there) = (Key::cluster("gone"), Key::cluster("there"));
        let mut agenda = Agenda::default();
        for key in [&gone, &there] {
            agenda.note(key.clone());
            agenda.at(key, 1000 * SECOND);
        }
        agenda.keep(|key| *key == there);
        assert_eq!(agenda.later.len(), 1);
        assert_eq!(agenda.take(SECOND), BTreeSet::from([there.clone()]));
        assert_eq!(agenda.take(1000 * SECOND), BTreeSet::from([there]));
    }

    #[test]
    fn all_are_due_with_another_layout_at_most_once_a_second_and_once_in_a_while() {
        let mut agenda = Agenda::default();
        assert!(agenda.is_for_all(1, SECOND));
        assert!(!agenda.is_for_all(1, 2 * SECOND));
        assert!(agenda.is_for_all(2, 3 * SECOND));
        // Later, and not forgotten.
        assert!(!agenda.is_for_all(3, 3 * SECOND + SECOND / 2));
        assert!(agenda.is_for_all(3, 4 * SECOND));
        assert!(!agenda.is_for_all(3, 10 * SECOND));
        assert!(agenda.is_for_all(3, 11 * SECOND));
    }
}
