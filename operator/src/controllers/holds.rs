//! Objects whose last write came to nothing: they are left alone for a while, and tried again.
//!
//! Written and asked by the one task that owns the controllers. Times are since some start.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::world::Key;

/// Somebody else was faster: what is there by now is on its way here, in milliseconds.
const STALE: Duration = Duration::from_millis(100);
/// The API server did not do it.
const FAILED: Duration = Duration::from_secs(1);
/// With each further failure the wait doubles, so often at most: to 32 s.
const DOUBLINGS: u32 = 5;

/// An object, with its kind.
pub(super) type Object = (&'static str, Key);

/// Why a write came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The object is another by now than the one that was decided about.
    Stale,
    /// The API server said no, and will again until somebody changes something.
    Refused,
    /// It did not answer, or could not.
    Failed,
}

#[derive(Debug)]
struct Hold {
    until: Duration,
    failures: u32,
    failure: Failure,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Holds(BTreeMap<Object, Hold>);

impl Holds {
    /// Whether it is to be left alone now.
    pub(super) fn is_held(&self, object: &Object, now: Duration) -> bool {
        self.0.get(object).is_some_and(|hold| hold.until > now)
    }

    /// A write of it has come to nothing.
    pub(super) fn hold(&mut self, object: Object, failure: Failure, now: Duration) {
        let hold = self.0.entry(object).or_insert(Hold {
            until: now,
            failures: 0,
            failure,
        });
        let first = match failure {
            Failure::Stale => STALE,
            Failure::Refused | Failure::Failed => FAILED,
        };
        hold.failure = failure;
        hold.until = now + first * 2u32.pow(hold.failures.min(DOUBLINGS));
        hold.failures += 1;
        // Long over, and nothing came of it since: whoever it was about has gone or is well.
        let longest = FAILED * 2u32.pow(DOUBLINGS + 1);
        self.0.retain(|_, hold| hold.until + longest > now);
    }

    /// A write of it has succeeded.
    pub(super) fn clear(&mut self, object: &Object) {
        self.0.remove(object);
    }

    /// The nodes that may not be written to.
    pub(super) fn refused_nodes(&self) -> BTreeSet<String> {
        let refused = |(object, hold): (&Object, &Hold)| {
            let is_refused = object.0 == "Node" && hold.failure == Failure::Refused;
            is_refused.then(|| object.1.name.clone())
        };
        self.0.iter().filter_map(refused).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str) -> Object {
        ("Node", Key::cluster(name))
    }

    #[test]
    fn what_failed_is_left_alone_twice_as_long_each_time_and_forgotten_when_it_succeeds() {
        let mut holds = Holds::default();
        let mut now = SECOND;
        for wait in [1, 2, 4, 8, 16, 32, 32] {
            holds.hold(node("n1"), Failure::Failed, now);
            let until = now + wait * SECOND;
            assert!(holds.is_held(&node("n1"), until - SECOND / 1000), "{wait}");
            assert!(!holds.is_held(&node("n1"), until), "{wait}");
            assert!(!holds.is_held(&node("n2"), now));
            now = until;
        }
        holds.clear(&node("n1"));
        holds.hold(node("n1"), Failure::Failed, now);
        assert!(!holds.is_held(&node("n1"), now + SECOND));
    }

    #[test]
    fn who_was_overtaken_decides_again_at_once_and_not_for_ever() {
        let mut holds = Holds::default();
        holds.hold(node("n1"), Failure::Stale, SECOND);
        assert!(holds.is_held(&node("n1"), SECOND));
        assert!(!holds.is_held(&node("n1"), SECOND + SECOND / 10));
        for _ in 0..9 {
            holds.hold(node("n1"), Failure::Stale, 2 * SECOND);
        }
        assert!(holds.is_held(&node("n1"), 5 * SECOND));
    }

    #[test]
    fn a_node_that_may_not_be_written_to_is_named_as_such() {
        let mut holds = Holds::default();
        holds.hold(node("n1"), Failure::Refused, SECOND);
        holds.hold(node("n2"), Failure::Stale, SECOND);
        holds.hold(
            ("TransferJob", Key::cluster("n3")),
            Failure::Refused,
            SECOND,
        );
        assert_eq!(holds.refused_nodes(), BTreeSet::from(["n1".to_owned()]));
    }
}
