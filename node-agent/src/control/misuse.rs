//! Misuses: node certificates that were shown for calls or tickets that they are not for. The operator makes them known.
//!
//! An agent never does that. So a stolen key is in use, or a person tries calls by hand.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use weft_identity::ticket::TicketFault;

use crate::config::values::NodeName;
use crate::fail_fast;

/// A misuse is reported for so long after the last time: also an operator that was away reads it.
const REPORTED_FOR: Duration = Duration::from_secs(60 * 60);

/// Misuses that are reported, at most.
const REPORTED_MAX: usize = 16;
/// Of one node, at most: the others have room.
const REPORTED_OF_A_NODE_MAX: usize = 2;

/// The node whose certificate was shown, what for, and when it was last.
#[derive(Debug, Default)]
pub(crate) struct Misuses(Mutex<BTreeMap<(NodeName, &'static str), Instant>>);

impl Misuses {
    /// A caller with `node`'s certificate has tried this.
    pub(crate) fn note(&self, now: Instant, node: &NodeName, tried: &'static str) {
        let mut misuses = self.current(now);
        let misuse = (node.clone(), tried);
        let of_node = misuses.keys().filter(|(other, _)| other == node).count();
        let has_room = misuses.len() < REPORTED_MAX && of_node < REPORTED_OF_A_NODE_MAX;
        if has_room || misuses.contains_key(&misuse) {
            misuses.insert(misuse, now);
        }
    }

    /// What was tried and what to do. The text stays the same until something new is tried, or until an hour
    /// has passed.
    pub(crate) fn report(&self, now: Instant) -> Option<String> {
        let misuses = self.current(now);
        let all: Vec<String> = misuses
            .keys()
            .map(|(node, tried)| format!("that of node {node} for {tried}"))
            .collect();
        (!all.is_empty()).then(|| {
            format!(
                "certificates were shown for what they are not for, and refused: {}: unless a \
                 person tried that by hand, the key is stolen; see \"A key is stolen\" in docs/operations.md",
                all.join("; ")
            )
        })
    }

    /// All that are still reported.
    fn current(&self, now: Instant) -> MutexGuard<'_, BTreeMap<(NodeName, &'static str), Instant>> {
        let mut misuses = fail_fast::lock(&self.0);
        misuses.retain(|_, last| now - *last < REPORTED_FOR);
        misuses
    }
}

/// What the bearer of a ticket that does not hold has tried. A ticket that is late, or that was made before the
/// paths changed, is no misuse.
pub(crate) fn of_ticket(fault: &TicketFault) -> Option<&'static str> {
    match fault {
        TicketFault::Forged => Some("a ticket that no operator of this fabric has signed"),
        TicketFault::OtherNode { .. } => Some("another node's ticket"),
        TicketFault::OtherFabric { .. }
        | TicketFault::Expired { .. }
        | TicketFault::OtherTransfer { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn what_was_tried_is_reported_for_an_hour_in_the_same_words() {
        let (begun, misuses) = (Instant::now(), Misuses::default());
        assert_eq!(misuses.report(begun), None);
        misuses.note(begun, &node("n1"), "Prepare");
        let report = misuses.report(begun).unwrap();
        assert!(report.contains("that of node n1 for Prepare:"), "{report}");
        let later = begun + REPORTED_FOR / 2;
        misuses.note(later, &node("n1"), "Prepare");
        assert_eq!(misuses.report(begun + REPORTED_FOR).as_ref(), Some(&report));
        misuses.note(later, &node("n1"), "another node's ticket");
        let more = misuses.report(begun + REPORTED_FOR).unwrap();
        for tried in ["for Prepare", "for another node's ticket"] {
            assert!(more.contains(tried), "{more}");
        }
        assert_eq!(misuses.report(begun + REPORTED_FOR * 2), None);
    }

    #[test]
    fn what_is_kept_of_many_is_bounded() {
        let (now, misuses) = (Instant::now(), Misuses::default());
        for i in 0..100 {
            for tried in ["Stat", "Prepare", "Start"] {
                misuses.note(now, &node(&format!("n{i}")), tried);
            }
        }
        assert_eq!(misuses.current(now).len(), REPORTED_MAX);
        let report = misuses.report(now).unwrap();
        assert!(
            report.contains("node n0 ") && report.contains("node n7 "),
            "{report}"
        );
        assert!(misuses.report(now).unwrap().len() < 1024);
    }
}
