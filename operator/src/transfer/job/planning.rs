//! Who sends to whom: planned for everybody once it is known what there is, which is what people are
//! shown, and for those that are ready when the first attempt begins.

use std::collections::BTreeSet;

use weft_planner::{Plan, PlanError, Request, plan};

use super::Job;

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
    pub(super) fn plan_for(&mut self, ready: Vec<String>) -> Result<Plan, PlanError> {
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
