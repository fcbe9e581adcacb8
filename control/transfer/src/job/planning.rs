//! Who sends to whom: planned for all destinations once it is known what there is, for people to see, and for
//! those that are ready when an attempt begins.

use weft_planner::{Part, Plan, PlanError, Request, plan};

use super::Job;
use crate::failure::SENDER_LOST;

/// After so many attempts in a row that brought nothing, a node at which they ended sends to no other node.
const LEAF_AFTER: u32 = 2;

impl Job {
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

    /// The parts of an attempt for the destinations that are ready. Those at which the last attempts ended, as
    /// an agent with other settings than its sender, only receive: they would cut off the nodes behind them.
    pub(super) fn parts_for(&mut self, ready: Vec<String>) -> Result<Vec<Part>, PlanError> {
        let is_leaf = |node: &String| {
            let failure = self.destinations.retrying(node);
            self.failures >= LEAF_AFTER
                && failure.is_some_and(|failure| failure.reason != SENDER_LOST)
        };
        let (mut leaves, mut others): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_leaf);
        if others.is_empty() {
            std::mem::swap(&mut leaves, &mut others);
        }
        let plan = self.make_plan(others)?;
        let mut parts = plan.parts.clone();
        if self.started.is_none() {
            self.plan = Some(plan);
        }
        let senders = parts.len();
        for (index, node) in leaves.into_iter().enumerate() {
            let sender = &mut parts[index % senders];
            sender.sends_to.push(node.clone());
            let leaf = Part {
                node,
                receives_from: Some(sender.node.clone()),
                sends_to: Vec::new(),
                depth: sender.depth + 1,
            };
            parts.push(leaf);
        }
        Ok(parts)
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
