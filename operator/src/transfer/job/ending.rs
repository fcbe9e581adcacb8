//! How a job comes to its end: agents are told, and what shall not stay goes.

use std::{collections::BTreeSet, time::Duration};

use super::{Job, Phase};
use crate::transfer::{Command, Removal};

impl Job {
    pub(super) fn on_cancelled(&mut self, now: Duration, node: &str, commands: &mut Vec<Command>) {
        match &mut self.phase {
            Phase::Cancelling { attempt, waiting } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    let attempt = attempt.clone();
                    self.ledger.close(&attempt);
                    self.next_attempt(now, commands);
                }
            }
            Phase::Discarding { waiting } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    self.phase = Phase::Over;
                }
            }
            Phase::Withdrawing {
                waiting,
                discard,
                remove,
            } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    let (discard, remove) = (*discard, std::mem::take(remove));
                    self.remove(discard, remove, commands);
                }
            }
            _ => {}
        }
    }

    /// Everybody who may know of it is told. What is ending by itself goes on to do so.
    pub(super) fn on_stop(
        &mut self,
        discard: bool,
        remove: Vec<Removal>,
        commands: &mut Vec<Command>,
    ) {
        match self.phase {
            Phase::Asking
            | Phase::Resting { .. }
            | Phase::Claiming
            | Phase::Preparing { .. }
            | Phase::Running(_)
            | Phase::Cancelling { .. } => {}
            Phase::Settling { .. }
            | Phase::Discarding { .. }
            | Phase::Withdrawing { .. }
            | Phase::Removing { .. }
            | Phase::Withdrawn { .. }
            | Phase::Over => return,
        }
        if self.attempt == 0 {
            return self.remove(discard, remove, commands);
        }
        let destinations = self.spec.destinations.iter();
        let waiting: BTreeSet<String> = destinations
            .map(|place| place.node.clone())
            .chain([self.spec.source.node.clone()])
            .collect();
        commands.extend(waiting.iter().map(|node| Command::Cancel {
            node: node.clone(),
            attempt: self.attempt,
            discard,
        }));
        self.phase = Phase::Withdrawing {
            waiting,
            discard,
            remove,
        };
    }

    /// No byte of it lands any more: what shall not stay goes.
    pub(super) fn remove(
        &mut self,
        discard: bool,
        remove: Vec<Removal>,
        commands: &mut Vec<Command>,
    ) {
        let waiting: BTreeSet<String> = remove.iter().map(|it| it.place.node.clone()).collect();
        commands.extend(remove.into_iter().map(Command::Remove));
        self.phase = if waiting.is_empty() {
            Phase::Withdrawn { discard }
        } else {
            Phase::Removing { waiting, discard }
        };
    }

    /// Ends the job; what failed leaves no partial files.
    pub(super) fn finish(&mut self, commands: &mut Vec<Command>) {
        self.ledger.compare_digests();
        let mut waiting = self.ledger.destinations.failed();
        // Unless an earlier operator has reached it.
        if self.spec.mandate.attempts_before == 0 {
            waiting.retain(|node| !self.contact.was_never_reached(node));
        }
        commands.extend(waiting.iter().map(|node| Command::Cancel {
            node: node.clone(),
            attempt: self.attempt,
            discard: true,
        }));
        self.phase = if waiting.is_empty() {
            Phase::Over
        } else {
            Phase::Discarding { waiting }
        };
    }
}
