//! How a job comes to its end: agents are told, and what shall not stay goes.

use std::{collections::BTreeSet, time::Duration};

use super::{Job, Phase, cancels::Cancels};
use crate::{Cleanup, Command, Refusal, node_of};

impl Job {
    pub(super) fn on_cancelled(
        &mut self,
        now: Duration,
        node: &str,
        result: &Result<(), Refusal>,
        commands: &mut Vec<Command>,
    ) {
        let is_heard = self.is_heard(node, result);
        if is_heard {
            self.unheard.remove(node);
        }
        match &mut self.phase {
            Phase::Cancelling { attempt, waiting } => {
                if waiting.remove(node) && !is_heard {
                    // Nobody waits for it: the next attempt overtakes this one wherever it is asked.
                    self.unheard.insert(node.to_owned());
                }
                if waiting.is_empty() {
                    let attempt = attempt.clone();
                    let is_to_blame = self.ledger.close(&attempt);
                    let blame = self.pass_over(&attempt, is_to_blame);
                    self.next_attempt(now, blame, commands);
                }
            }
            Phase::Discarding(cancels) | Phase::Withdrawing { cancels, .. } => {
                cancels.answered(node, is_heard);
                self.tell_on(now);
            }
            _ => {}
        }
    }

    /// It has confirmed the Cancel, or asking again would change nothing.
    fn is_heard(&self, node: &str, result: &Result<(), Refusal>) -> bool {
        let Err(refusal) = result else {
            return true;
        };
        // Only an earlier operator can have reached it, if it was ever reached.
        let was_never_reached =
            self.spec.mandate.attempts_before == 0 && !self.contact.was_reached(node_of(node));
        !refusal.retriable
            || refusal.is_of_no_agent()
            || refusal.is_before_contact() && was_never_reached
    }

    /// Goes on once all are told, or have been out of reach for too long.
    fn tell_on(&mut self, now: Duration) {
        let (Phase::Discarding(cancels) | Phase::Withdrawing { cancels, .. }) = &self.phase else {
            return;
        };
        if let Some(times) = cancels.are_to_rest() {
            let until = now + self.rest_of(times);
            if let Phase::Discarding(cancels) | Phase::Withdrawing { cancels, .. } = &mut self.phase
            {
                cancels.rest(until);
            }
            return;
        }
        if !cancels.are_over() {
            return;
        }
        self.untold.clone_from(cancels.unheard());
        self.phase = match self.phase {
            Phase::Withdrawing { cleanup, .. } => Phase::Withdrawn(cleanup),
            _ => Phase::Over,
        };
    }

    /// Asks those again whom a Cancel has not reached, if it is time.
    pub(super) fn tell_again(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let (nodes, cleanup) = match &mut self.phase {
            Phase::Discarding(cancels) => (cancels.again(now), Cleanup::Partials),
            Phase::Withdrawing { cancels, cleanup } => (cancels.again(now), *cleanup),
            _ => return,
        };
        self.cancel(&nodes, cleanup, commands);
    }

    fn cancel(&self, nodes: &BTreeSet<String>, cleanup: Cleanup, commands: &mut Vec<Command>) {
        commands.extend(nodes.iter().map(|node| Command::Cancel {
            node: node.clone(),
            attempt: self.attempt,
            cleanup,
        }));
    }

    /// Ends earlier attempts where a Cancel of them was not heard, and where this one, which begins,
    /// does not overtake them: at nodes that have no part in it.
    pub(super) fn cancel_unheard(&self, part: &BTreeSet<String>, commands: &mut Vec<Command>) {
        let source = &self.spec.source.node;
        let is_asked = |node: &&String| !part.contains(*node) && *node != source;
        let nodes = self.unheard.iter().filter(is_asked).cloned().collect();
        self.cancel(&nodes, Cleanup::Nothing, commands);
    }

    /// Everybody who may know of it is told. What is ending by itself goes on to do so.
    pub(super) fn on_stop(&mut self, cleanup: Cleanup, commands: &mut Vec<Command>) {
        match &mut self.phase {
            Phase::Asking
            | Phase::Resting { .. }
            | Phase::Claiming
            | Phase::Preparing { .. }
            | Phase::Running(_)
            | Phase::Cancelling { .. } => {}
            Phase::Settling { .. }
            | Phase::Discarding(_)
            | Phase::Withdrawing { .. }
            | Phase::Withdrawn(_)
            | Phase::Over => return,
        }
        if self.attempt == 0 {
            self.phase = Phase::Withdrawn(cleanup);
            return;
        }
        let destinations = self.spec.destinations.iter();
        let waiting: BTreeSet<String> = destinations
            .map(|place| place.node.clone())
            .chain([self.spec.source.node.clone()])
            .collect();
        self.cancel(&waiting, cleanup, commands);
        self.phase = Phase::Withdrawing {
            cancels: Cancels::ask(waiting),
            cleanup,
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
        self.cancel(&waiting, Cleanup::Partials, commands);
        self.phase = if waiting.is_empty() {
            Phase::Over
        } else if self.vain > self.spec.backoff_limit {
            // Who is out of reach was so in all these attempts.
            Phase::Discarding(Cancels::ask_once(waiting))
        } else {
            Phase::Discarding(Cancels::ask(waiting))
        };
    }
}
