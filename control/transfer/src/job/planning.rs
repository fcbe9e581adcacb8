//! Who sends to whom: planned for everybody once it is known what there is, which is what people are
//! shown, and for those that are ready when the first attempt begins.

use std::collections::BTreeSet;

use weft_planner::{Part, Plan, PlanError, Request, plan};

use super::Job;
use crate::{Standing, ledger::SENDER_LOST};

/// After so many attempts in a row that brought nothing, those at whom they ended no longer stand between
/// the source and the others.
const APART_AFTER: u32 = 2;
/// So many at once: the source sends to each of them by itself.
const APART_MAX: usize = 8;

impl Job {
    /// Plans for all that are to receive, before any of them is asked to be ready. What cannot be planned
    /// is found again when the attempt begins.
    pub(super) fn sketch(&mut self) {
        if self.started.is_some() || self.attempt > self.spec.mandate.attempts_before {
            return;
        }
        let names: Vec<String> = self.spec.receivers().map(str::to_owned).collect();
        if names.is_empty() {
            return;
        }
        self.plan = plan(&self.request(names), &self.spec.topology).ok();
        self.is_sketch = self.plan.is_some();
    }

    /// The plan for those that are ready: the one that there is where it is for the same nodes.
    fn plan_for(&mut self, ready: Vec<String>) -> Result<Plan, PlanError> {
        let sketch = self.plan.as_ref().filter(|_| self.is_sketch);
        if let Some(plan) = sketch.filter(|plan| is_for(plan, &self.spec.source.node, &ready)) {
            let plan = plan.clone();
            self.is_sketch = false;
            return Ok(plan);
        }
        let made = plan(&self.request(ready), &self.spec.topology)?;
        if self.is_sketch || self.plan.is_none() {
            self.plan = Some(made.clone());
            self.is_sketch = false;
        }
        Ok(made)
    }

    /// Of those that are ready, those that nobody shall receive from. Whoever has a trouble of its own, as an
    /// agent with other settings than its sender, would cut off those behind it in this attempt as in the
    /// last.
    pub(super) fn troubled(&self, ready: &[String]) -> BTreeSet<String> {
        let is_troubled = |node: &&String| {
            let there = self.ledger.destinations.get(node);
            there.is_some_and(|there| match &there.standing {
                Standing::Troubled(refusal) => refusal.reason != SENDER_LOST,
                _ => false,
            })
        };
        if self.vain < APART_AFTER {
            return BTreeSet::new();
        }
        let mut troubled: Vec<&String> = ready.iter().filter(is_troubled).collect();
        troubled.sort_unstable();
        // Where there are more, others the next time.
        let times = usize::try_from(self.vain).unwrap_or_default();
        let first = (times * APART_MAX) % troubled.len().max(1);
        troubled.rotate_left(first);
        troubled.into_iter().take(APART_MAX).cloned().collect()
    }

    /// The parts of an attempt for those that are ready: those that are troubled receive from the source, beside
    /// the plan for the others.
    pub(super) fn parts_for(
        &mut self,
        ready: Vec<String>,
        troubled: &BTreeSet<String>,
    ) -> Result<Vec<Part>, PlanError> {
        let (mut apart, mut others): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|node| troubled.contains(node));
        if others.is_empty() {
            // Each is as good as the other.
            std::mem::swap(&mut apart, &mut others);
        }
        let mut parts = self.plan_for(others)?.parts;
        let source = &self.spec.source.node;
        for part in parts.iter_mut().filter(|part| part.node == *source) {
            part.sends_to.extend(apart.iter().cloned());
        }
        let leaves = apart.into_iter().map(|node| Part {
            node,
            receives_from: Some(source.clone()),
            sends_to: Vec::new(),
            depth: 1,
        });
        parts.extend(leaves);
        Ok(parts)
    }

    fn request(&self, destinations: Vec<String>) -> Request {
        Request {
            strategy: self.spec.strategy,
            payload_share: self.spec.payload_share,
            ..Request::new(&self.spec.source.node, destinations, self.bytes())
        }
    }
}

fn is_for(plan: &Plan, source: &str, destinations: &[String]) -> bool {
    let names = destinations.iter().map(String::as_str);
    let wanted: BTreeSet<&str> = names.chain([source]).collect();
    let planned: BTreeSet<&str> = plan.parts.iter().map(|part| part.node.as_str()).collect();
    let sends = |part: &&weft_planner::Part| part.receives_from.is_none();
    wanted == planned
        && plan
            .parts
            .iter()
            .find(sends)
            .is_some_and(|part| part.node == source)
}
