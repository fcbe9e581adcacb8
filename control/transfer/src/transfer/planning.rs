//! Who sends to whom: planned for all destinations once it is known what there is, for people to see, and for
//! those that are ready when an attempt begins.

use weft_planner::{Assignment, Plan, PlanError, RECEIVERS_MAX, Request, plan};

use super::Transfer;
use crate::failure::SENDER_LOST;

/// After so many attempts in a row without progress, a node at which they ended sends to no other node.
const RECEIVE_ONLY_AFTER: u32 = 2;

impl Transfer {
    /// Plans for all destinations that are to receive, before the first attempt. What cannot be planned is an
    /// error when the attempt begins.
    pub(super) fn plan_for_all(&mut self) {
        if self.started.is_some() || self.attempt > self.spec.leader.attempts_before {
            return;
        }
        let names: Vec<String> = self.spec.receivers().map(str::to_owned).collect();
        if !names.is_empty() {
            self.plan = self.make_plan(names).ok();
        }
    }

    /// The assignments of an attempt for the destinations that are ready. A destination whose last attempts failed,
    /// for example because its settings differ from its sender's, only receives. As a relay it would cut off the
    /// nodes that it sends to.
    pub(super) fn assignments_for(
        &mut self,
        ready: Vec<String>,
    ) -> Result<Vec<Assignment>, PlanError> {
        let receives_only = |node: &String| {
            let failure = self.destinations.retrying(node);
            self.failures >= RECEIVE_ONLY_AFTER
                && failure.is_some_and(|failure| failure.reason != SENDER_LOST)
        };
        let (mut last, mut others): (Vec<_>, Vec<_>) = ready.into_iter().partition(receives_only);
        if others.is_empty() {
            std::mem::swap(&mut last, &mut others);
        }
        let plan = self.make_plan(others)?;
        let mut assignments = plan.assignments.clone();
        if self.started.is_none() {
            self.plan = Some(plan);
        }
        let senders = assignments.len();
        for (index, node) in last.into_iter().enumerate() {
            let has_room = |at: &usize| assignments[*at].sends_to.len() < RECEIVERS_MAX;
            let in_turn = (0..senders).map(|turn| (index + turn) % senders);
            // Where all of them are full, those that were to receive only send, too.
            let mut senders = in_turn.chain(senders..assignments.len());
            let sender = senders.find(has_room).unwrap_or_default();
            let sender = &mut assignments[sender];
            sender.sends_to.push(node.clone());
            let assignment = Assignment {
                node,
                receives_from: Some(sender.node.clone()),
                sends_to: Vec::new(),
                depth: sender.depth + 1,
            };
            assignments.push(assignment);
        }
        Ok(assignments)
    }

    fn make_plan(&self, destinations: Vec<String>) -> Result<Plan, PlanError> {
        let request = Request {
            strategy: self.spec.strategy,
            payload_share: self.spec.payload_share,
            ..Request::new(&self.spec.source.node, destinations, self.bytes())
        };
        plan(&request, &self.spec.topology)
    }
}
