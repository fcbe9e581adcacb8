//! Objects whose last write came to nothing: they are left alone for a while, and tried again.
//!
//! Written and asked by the one task that owns the controllers. Times are since some start.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::controllers::request::{Object, Request};

/// Somebody else was faster: what is there by now is on its way here, in milliseconds.
const STALE: Duration = Duration::from_millis(100);
/// The API server did not do it.
const FAILED: Duration = Duration::from_secs(1);
/// With each further failure the wait doubles, so often at most: to 32 s.
const DOUBLINGS: u32 = 5;
/// So long after it was left alone for the last time whoever refused may be asked again: somebody may have
/// changed something.
const REFUSED_LATELY: Duration = Duration::from_secs(64);
/// … what was left out, which concerns one model of a node only.
const LEFT_OUT_LATELY: Duration = Duration::from_secs(600);
/// … and so long it is known that they did, and who failed. Jobs that end ask no node twice after they have
/// waited, so it is longer than it takes to try hundreds of nodes of which none answers.
const FAILED_LATELY: Duration = Duration::from_secs(3600);

/// What follows from a write that has come to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// The object is left alone for a while.
    Hold(Failure),
    /// The node says nothing under this key; it may say other things.
    LeaveOut {
        /// The node.
        node: String,
        /// Of a label.
        key: String,
    },
}

/// Why a write came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The object is another by now than the one that was decided about.
    Stale,
    /// The API server said no, and will again until somebody changes something.
    Refused,
    /// It did not answer, or could not.
    Failed,
}

#[derive(Debug)]
struct Hold {
    last: Duration,
    until: Duration,
    failures: u32,
    failure: Failure,
}

impl Hold {
    fn is_of_late(&self, now: Duration) -> bool {
        let remembered = match self.failure {
            Failure::Stale => REFUSED_LATELY,
            Failure::Refused | Failure::Failed => FAILED_LATELY,
        };
        self.until + remembered > now
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    objects: BTreeMap<Object, Hold>,
    /// What nodes were to say and the API server left out: node, key, and when that was.
    left_out: BTreeMap<(String, String), Duration>,
}

impl Holds {
    /// A write of it has come to nothing.
    pub(crate) fn hold(&mut self, object: Object, failure: Failure, now: Duration) {
        self.forget(now);
        let hold = self.objects.entry(object).or_insert(Hold {
            last: now,
            until: now,
            failures: 0,
            failure,
        });
        let first = match failure {
            Failure::Stale => STALE,
            Failure::Refused | Failure::Failed => FAILED,
        };
        hold.failure = failure;
        hold.last = now;
        hold.until = now + first * 2u32.pow(hold.failures.min(DOUBLINGS));
        hold.failures += 1;
    }

    /// The API server took what a node was to say under this key, and left it out: it says other things.
    pub(crate) fn leave_out(&mut self, node: String, key: String, now: Duration) {
        self.forget(now);
        self.left_out.insert((node, key), now);
    }

    fn forget(&mut self, now: Duration) {
        self.objects.retain(|_, hold| hold.is_of_late(now));
        self.left_out.retain(|_, at| *at + FAILED_LATELY > now);
    }

    /// A write of it has succeeded.
    pub(crate) fn clear(&mut self, object: &Object) {
        self.objects.remove(object);
    }

    /// The nodes whose writes have come to nothing of late.
    pub(crate) fn nodes(&self, now: Duration) -> HeldNodes {
        let mut nodes = HeldNodes {
            now,
            ..HeldNodes::default()
        };
        for (Object { kind, key }, hold) in &self.objects {
            if kind != "Node" || !hold.is_of_late(now) {
                continue;
            }
            match hold.failure {
                Failure::Refused => {
                    nodes.failed.insert(key.name.clone(), hold.last);
                    if hold.until + REFUSED_LATELY > now {
                        nodes.refused.insert(key.name.clone());
                    }
                }
                Failure::Stale => drop(nodes.again.insert(key.name.clone(), hold.until)),
                Failure::Failed => {
                    nodes.again.insert(key.name.clone(), hold.until);
                    nodes.failed.insert(key.name.clone(), hold.last);
                }
            }
        }
        nodes.left_out = self.left_out.clone();
        nodes
    }
}

/// The nodes whose writes have come to nothing of late.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldNodes {
    /// The API server says no.
    pub(crate) refused: BTreeSet<String>,
    /// It left out what this node was to say under this key; and when that was.
    pub(crate) left_out: BTreeMap<(String, String), Duration>,
    /// It said no, did not answer, or could not; and when that was.
    pub(crate) failed: BTreeMap<String, Duration>,
    /// Those that are left alone until then, or have been: whoever has others to write to does that first.
    pub(crate) again: BTreeMap<String, Duration>,
    /// Now, by the same clock.
    pub(crate) now: Duration,
}

impl HeldNodes {
    /// Whether there is any sense in asking a node to say something under this key. Whoever has been done with
    /// waiting for so long asks none that has failed since.
    pub(crate) fn may_say(&self, node: &str, key: &str, waited: Option<Duration>) -> bool {
        let is_since =
            |at: Duration| waited.is_some_and(|waited| self.now.saturating_sub(at) < waited);
        let has_failed = || self.failed.get(node).is_some_and(|at| is_since(*at));
        let is_left_out = || {
            let what = (node.to_owned(), key.to_owned());
            let at = self.left_out.get(&what);
            at.is_some_and(|at| *at + LEFT_OUT_LATELY > self.now || is_since(*at))
        };
        !(self.refused.contains(node) || has_failed() || !self.left_out.is_empty() && is_left_out())
    }

    /// Of requests to write to nodes the first that has not come to nothing; else that which is tried again
    /// first.
    pub(crate) fn pick(&self, requests: impl Iterator<Item = Request>) -> Option<Request> {
        let mut next: Option<(Duration, Request)> = None;
        for request in requests {
            let Some(until) = self.again.get(&request.key.name) else {
                return Some(request);
            };
            if next.as_ref().is_none_or(|(first, _)| until < first) {
                next = Some((*until, request));
            }
        }
        next.map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::cache::Key;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str) -> Object {
        Object {
            kind: "Node".to_owned(),
            key: Key::cluster(name),
        }
    }

    #[test]
    fn a_node_that_may_not_be_written_to_is_named_as_such() {
        let mut holds = Holds::default();
        holds.hold(node("n1"), Failure::Refused, SECOND);
        holds.hold(node("n2"), Failure::Stale, SECOND);
        let job = Object {
            kind: "TransferJob".to_owned(),
            key: Key::cluster("n3"),
        };
        holds.hold(job, Failure::Refused, SECOND);
        let now = SECOND + SECOND / 20;
        let nodes = holds.nodes(now);
        assert_eq!(nodes.refused, BTreeSet::from(["n1".to_owned()]));
        assert!(!nodes.may_say("n1", "k", None));
        // Who was only overtaken is asked in any case, after others.
        assert!(!nodes.failed.contains_key("n2") && nodes.again.contains_key("n2"));
        assert!(nodes.may_say("n2", "k", Some(100 * SECOND)));
        // Whoever refused may have thought again.
        let later = now + REFUSED_LATELY + SECOND;
        assert!(holds.nodes(later).refused.is_empty());
        // Nothing is left of it when it fails again much later.
        let later = later + FAILED_LATELY;
        holds.hold(node("n1"), Failure::Failed, later);
        assert_eq!(holds.objects[&node("n1")].failures, 1);
    }

    #[test]
    fn a_node_that_failed_while_it_was_waited_for_is_asked_once_more() {
        let mut holds = Holds::default();
        let may = |holds: &Holds, seconds: u32, waited: Option<u32>| {
            let nodes = holds.nodes(seconds * SECOND);
            nodes.may_say("n1", "k", waited.map(|seconds| seconds * SECOND))
        };
        holds.hold(node("n1"), Failure::Failed, SECOND);
        assert!(may(&holds, 9, None) && may(&holds, 9, Some(7)));
        holds.hold(node("n1"), Failure::Failed, 9 * SECOND);
        assert!(may(&holds, 10, None) && !may(&holds, 10, Some(8)));
    }

    #[test]
    fn what_is_left_out_of_one_node_under_one_key_is_said_of_others() {
        let mut holds = Holds::default();
        holds.leave_out("n1".into(), "a".into(), SECOND);
        let nodes = holds.nodes(SECOND);
        assert!(!nodes.may_say("n1", "a", None));
        assert!(nodes.may_say("n1", "b", None) && nodes.may_say("n2", "a", None));
        assert!(
            holds
                .nodes(SECOND + LEFT_OUT_LATELY)
                .may_say("n1", "a", None)
        );
    }

    #[test]
    fn who_refused_after_all_that_waiting_is_not_asked_again() {
        let mut holds = Holds::default();
        holds.hold(node("n1"), Failure::Refused, 200 * SECOND);
        holds.leave_out("n2".into(), "k".into(), 200 * SECOND);
        // A thousand others were asked meanwhile.
        let nodes = holds.nodes(1000 * SECOND);
        for name in ["n1", "n2"] {
            assert!(!nodes.may_say(name, "k", Some(900 * SECOND)));
            assert!(nodes.may_say(name, "k", Some(700 * SECOND)));
            assert!(nodes.may_say(name, "k", None));
        }
    }

    #[test]
    fn hundreds_of_nodes_that_do_not_answer_are_all_known_to_have_failed() {
        let mut holds = Holds::default();
        let mut now = SECOND;
        for number in 0..300 {
            now += 10 * SECOND;
            holds.hold(node(&format!("n{number}")), Failure::Failed, now);
        }
        assert_eq!(holds.nodes(now).failed.len(), 300);
    }
}
