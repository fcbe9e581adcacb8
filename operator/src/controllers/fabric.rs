//! Fabrics, their nodes and their agents: what is decided about them, and what agents are told.
//!
//! Fabrics are few. All are decided together: when an agent has reported, when something but a job has
//! changed, and once a second.

pub(crate) mod agents;
pub(crate) mod configuration;
pub(crate) mod decide;
pub(crate) mod view;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Node},
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use tokio::{sync::watch, time::Instant};

use self::agents::AgentTemplate;
use super::{
    api_writer::WriteError,
    cache::{Key, readiness},
    controller::{Controller, ReconcileContext, Setup, TICK},
    job::obstacle::Obstacle,
    kinds::Cache,
    membership::Membership,
    metrics::Metrics,
    request::{ObjectId, Request},
};
use crate::reports::{FabricAgents, Fabrics, NodeState};

/// A node that is not ready for so long is counted: a new pod of an agent takes less.
const NOT_READY_FOR: Duration = Duration::from_secs(600);

/// Decides fabrics.
pub(crate) struct FabricController {
    /// What agents say of their nodes.
    reports: watch::Receiver<BTreeMap<String, NodeState>>,
    /// What the agents of each fabric are told.
    fabric_agents: watch::Sender<Fabrics>,
    template: AgentTemplate,
    /// What is wrong with the Service that owns the DaemonSets.
    service_problem: watch::Receiver<Option<String>>,
    /// The non-job revision of the cache and the time at which fabrics were last decided.
    last_decided: Option<(u64, Duration)>,
    /// Why the last write of a DaemonSet or of a node was refused.
    refused: BTreeMap<ObjectId, String>,
    labels_per_namespace: usize,
    /// Why nodes cannot have the label of a job, by job.
    label_problems: BTreeMap<Key, Obstacle>,
    metrics: Metrics,
}

impl FabricController {
    /// Nothing is decided yet.
    pub(crate) fn new(setup: &Setup<'_>) -> Self {
        Self {
            reports: setup.context.reports.clone(),
            fabric_agents: setup.context.fabrics.clone(),
            template: setup.context.template.clone(),
            service_problem: setup.context.service_problem.clone(),
            last_decided: None,
            refused: BTreeMap::new(),
            labels_per_namespace: setup.context.labels_per_namespace.get() as usize,
            label_problems: BTreeMap::new(),
            metrics: setup.context.metrics.clone(),
        }
    }

    /// Tells the server of agents what they are to know.
    fn publish(&self, cache: &Cache, membership: &Membership) {
        let key = &cache.ticket_key;
        let agents_of = |name: &str| {
            let fabric = cache.fabrics.named(name)?;
            let nodes = membership.members(name)?.nodes.clone();
            Some(FabricAgents {
                config: configuration::config(fabric, key),
                nodes,
            })
        };
        let names = cache.fabrics.iter().map(|(_, fabric)| fabric.name_any());
        let fabric_agents: Fabrics = names
            .filter_map(|name| Some((name.clone(), agents_of(&name)?)))
            .collect();
        self.fabric_agents.send_if_modified(|old| {
            let differs = *old != fabric_agents;
            if differs {
                *old = fabric_agents;
            }
            differs
        });
    }
}

/// How many nodes have not been ready for [`NOT_READY_FOR`].
fn not_ready(cache: &Cache, now: Timestamp) -> usize {
    let since = now - NOT_READY_FOR;
    let nodes = cache.fabric_nodes.iter();
    nodes
        .filter_map(|(_, node)| readiness(node))
        .filter(|ready| ready.status != "True" && ready.last_transition_time.0 <= since)
        .count()
}

impl Controller for FabricController {
    fn name(&self) -> &'static str {
        "fabrics"
    }

    fn prepare(&mut self, cache: &mut Cache) {
        if cache.label_problems != self.label_problems {
            cache.label_problems.clone_from(&self.label_problems);
        }
    }

    fn reconcile(&mut self, context: &mut ReconcileContext<'_>) {
        let revision = context.cache.non_job_revision();
        let is_same = self
            .last_decided
            .is_some_and(|(known, at)| known == revision && context.led_for < at + TICK);
        let has_reports = self.reports.has_changed().unwrap_or(false);
        if is_same && !has_reports {
            return;
        }
        self.reports.mark_unchanged();
        self.last_decided = Some((revision, context.led_for));
        self.publish(context.cache, context.membership);
        let not_ready = not_ready(context.cache, context.now);
        self.metrics.nodes_not_ready.set(not_ready as i64);
        let decision = decide::decide(&view::View {
            cache: context.cache,
            membership: context.membership,
            reports: &self.reports.borrow(),
            led_for: context.led_for,
            refused: &self.refused,
            service_problem: self.service_problem.borrow().as_deref(),
            labels_per_namespace: self.labels_per_namespace,
            template: &self.template,
            now: context.now,
            now_instant: Instant::now(),
        });
        self.label_problems = decision.label_problems;
        context.submit(&Key::default(), decision.requests);
    }

    fn on_write_result(&mut self, _: &Key, request: &Request, result: Result<(), &WriteError>) {
        let id = request.object();
        let is_noted = [
            ObjectId::of::<DaemonSet>(request.key.clone()),
            ObjectId::of::<Node>(request.key.clone()),
        ]
        .contains(&id);
        let is_news = match result {
            Ok(()) => self.refused.remove(&id).is_some(),
            Err(error) if error.is_not_found() => self.refused.remove(&id).is_some(),
            // The watch tells what is true now.
            Err(error) if error.is_conflict() || !is_noted => false,
            Err(error) => {
                self.refused.insert(id, error.to_string());
                true
            }
        };
        if is_news {
            self.last_decided = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::tests::scenario;

    #[test]
    fn nodes_count_that_have_not_been_ready_for_ten_minutes() {
        let mut cache = Cache::default();
        let nodes = [
            scenario::ready("n1", "default"),
            scenario::asleep("n2", "default"),
        ];
        cache.fabric_nodes = nodes.into_iter().collect();
        let after = |time| not_ready(&cache, scenario::start() + time);
        assert_eq!(after(NOT_READY_FOR - Duration::from_secs(1)), 0);
        assert_eq!(after(NOT_READY_FOR), 1);
    }
}
