//! Objects whose last write came to nothing: they are left alone for a while, and tried again.
//!
//! Written and asked by the one task that owns the controllers. Times are since some start.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{request::Request, world::Key};

/// Somebody else was faster: what is there by now is on its way here, in milliseconds.
const STALE: Duration = Duration::from_millis(100);
/// The API server did not do it.
const FAILED: Duration = Duration::from_secs(1);
/// With each further failure the wait doubles, so often at most: to 32 s.
const DOUBLINGS: u32 = 5;
/// Whoever fails for so long is not waited for any longer: this process leads, so the API server does as it
/// is asked elsewhere.
const PATIENCE: Duration = Duration::from_secs(120);

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
    since: Duration,
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
            since: now,
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
        self.0.retain(|_, hold| hold.is_of_late(now));
    }

    /// A write of it has succeeded.
    pub(super) fn clear(&mut self, object: &Object) {
        self.0.remove(object);
    }

    /// The nodes that cannot be written to.
    pub(super) fn nodes(&self, now: Duration) -> HeldNodes {
        let mut nodes = HeldNodes::default();
        for ((kind, key), hold) in &self.0 {
            if *kind != "Node" || !hold.is_of_late(now) {
                continue;
            }
            let is_in_vain = match hold.failure {
                Failure::Refused => {
                    nodes.refused.insert(key.name.clone());
                    true
                }
                Failure::Failed => now.saturating_sub(hold.since) >= PATIENCE,
                Failure::Stale => false,
            };
            if is_in_vain {
                nodes.given_up.insert(key.name.clone());
            } else if hold.until > now {
                nodes.waiting.insert(key.name.clone());
            }
        }
        nodes
    }
}

impl Hold {
    /// What is long over, with nothing come of it since, is forgotten: whoever it was about has gone, or
    /// may be well again and is tried as at first.
    fn is_of_late(&self, now: Duration) -> bool {
        let longest = FAILED * 2u32.pow(DOUBLINGS + 1);
        self.until + longest > now
    }
}

/// The nodes that cannot be written to.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldNodes {
    /// The API server says no.
    pub(super) refused: BTreeSet<String>,
    /// These, and those that have failed for minutes: nobody waits for them.
    pub(super) given_up: BTreeSet<String>,
    /// They are tried again: whoever has others to write to does that first.
    pub(super) waiting: BTreeSet<String>,
}

impl HeldNodes {
    /// Of requests to write to nodes the first that may be made now; else one that has to wait.
    pub(super) fn pick(&self, requests: impl Iterator<Item = Request>) -> Option<Request> {
        let mut waits = None;
        for request in requests {
            if !self.waiting.contains(&request.object().1.name) {
                return Some(request);
            }
            waits.get_or_insert(request);
        }
        waits
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
        let now = SECOND + SECOND / 20;
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let nodes = holds.nodes(now);
        assert_eq!(nodes.refused, names(&["n1"]));
        assert_eq!(nodes.given_up, nodes.refused);
        assert_eq!(nodes.waiting, names(&["n2"]));
        // Whoever refused may have thought again.
        assert!(holds.nodes(now + PATIENCE).refused.is_empty());
    }

    #[test]
    fn a_node_that_fails_is_passed_over_while_it_is_left_alone_and_given_up_after_two_minutes() {
        let mut holds = Holds::default();
        let mut now = SECOND;
        while now < SECOND + PATIENCE {
            holds.hold(node("n1"), Failure::Failed, now);
            let nodes = holds.nodes(now);
            assert!(nodes.waiting.contains("n1") && nodes.given_up.is_empty());
            let until = holds.0[&node("n1")].until;
            assert!(holds.nodes(until).waiting.is_empty(), "it is tried again");
            now = until;
        }
        holds.hold(node("n1"), Failure::Failed, now);
        assert!(holds.nodes(now).given_up.contains("n1"));
        assert!(holds.nodes(now).refused.is_empty(), "nobody has said no");
        holds.clear(&node("n1"));
        holds.hold(node("n1"), Failure::Failed, now);
        assert!(holds.nodes(now).given_up.is_empty());
    }
}
