//! Certificates that were shown for what they are not for: told to the operator, who makes it known.
//!
//! A node that works as it should never does that, so whoever does has the node's key, or is looking
//! around by hand.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_identity::ticket::TicketFault;

use crate::config::values::NodeName;

/// Told for so long after the last time: an operator that was away hears of it, too.
const TOLD_FOR: Duration = Duration::from_secs(60 * 60);

/// Nodes that are told of at most; a thief of more than that is told of by these.
const NODES_MAX: usize = 8;

/// Things that one node is told to have tried at most.
const THINGS_MAX: usize = 4;

/// What was tried, by the node whose certificate was shown.
#[derive(Debug, Default)]
pub(crate) struct Misuses(BTreeMap<NodeName, Misuse>);

#[derive(Debug)]
struct Misuse {
    last: Instant,
    /// In the order in which they were tried first.
    things: Vec<String>,
}

impl Misuses {
    /// Somebody with `node`'s certificate has tried `thing`.
    pub(crate) fn note(&mut self, now: Instant, node: &NodeName, thing: &str) {
        self.forget(now);
        if !self.0.contains_key(node) && self.0.len() == NODES_MAX {
            return;
        }
        let misuse = self.0.entry(node.clone()).or_insert(Misuse {
            last: now,
            things: Vec::new(),
        });
        misuse.last = now;
        let known = misuse.things.iter().any(|known| known == thing);
        if !known && misuse.things.len() < THINGS_MAX {
            misuse.things.push(thing.to_owned());
        }
    }

    /// For people: what was tried and what to do. Says the same until something new is tried, or until
    /// an hour has gone by.
    pub(crate) fn told(&mut self, now: Instant) -> Option<String> {
        self.forget(now);
        let one = |(node, misuse): (&NodeName, &Misuse)| {
            format!("that of node {node} for {}", misuse.things.join(", "))
        };
        let all: Vec<String> = self.0.iter().map(one).collect();
        (!all.is_empty()).then(|| {
            format!(
                "certificates were shown for what they are not for, and refused: {}: unless somebody \
                 tried that by hand, the key is stolen; see \"A key is stolen\" in docs/operations.md",
                all.join("; ")
            )
        })
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, misuse| now - misuse.last < TOLD_FOR);
    }
}

/// Whether a ticket that does not hold shows that its bearer is up to something: one that is late, or
/// was made before the paths changed, shows nothing.
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
    fn what_was_tried_is_told_for_an_hour_in_the_same_words() {
        let (begun, mut misuses) = (Instant::now(), Misuses::default());
        assert_eq!(misuses.told(begun), None);
        misuses.note(begun, &node("n1"), "Prepare");
        let told = misuses.told(begun).unwrap();
        assert!(told.contains("that of node n1 for Prepare:"), "{told}");
        let later = begun + TOLD_FOR / 2;
        misuses.note(later, &node("n1"), "Prepare");
        assert_eq!(misuses.told(begun + TOLD_FOR).as_ref(), Some(&told));
        misuses.note(begun + TOLD_FOR, &node("n1"), "another node's ticket");
        let more = misuses.told(begun + TOLD_FOR).unwrap();
        assert!(more.contains("Prepare, another node's ticket:"), "{more}");
        assert_eq!(misuses.told(begun + TOLD_FOR * 2), None);
    }

    #[test]
    fn what_is_kept_of_many_is_bounded() {
        let (now, mut misuses) = (Instant::now(), Misuses::default());
        for i in 0..100 {
            for thing in 0..100 {
                misuses.note(now, &node(&format!("n{i}")), &format!("call {thing}"));
            }
        }
        assert_eq!(misuses.0.len(), NODES_MAX);
        let things = misuses.0.values().map(|misuse| misuse.things.len());
        assert_eq!(things.max(), Some(THINGS_MAX));
        assert!(misuses.told(now).unwrap().len() < 1024);
    }
}
