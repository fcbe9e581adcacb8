//! Fabrics, their nodes and their agents: what is decided about them, and what agents are told.
//!
//! Fabrics are few. All are decided together: when an agent has reported, when something but a job has
//! changed, and once a second.

pub(crate) mod agents;
pub(crate) mod configuration;
pub(crate) mod decide;
pub(crate) mod view;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::ResourceExt as _;
use tokio::{sync::watch, time::Instant};

use self::agents::AgentTemplate;
use super::{
    api_writer::WriteError,
    cache::Key,
    controller::{Controller, ReconcileContext, Setup, TICK},
    job::obstacle::Obstacle,
    kinds::Cache,
    membership::Membership,
    request::{ObjectId, Request},
};
use crate::reports::{FabricView, Fabrics as Views, NodeState};

/// Decides fabrics.
pub(crate) struct FabricController {
    /// What agents say of their nodes.
    reports: watch::Receiver<BTreeMap<String, NodeState>>,
    /// What agents are told.
    fabrics: watch::Sender<Views>,
    template: AgentTemplate,
    /// What was around the jobs when fabrics were last decided, and when that was.
    decided: Option<(u64, Duration)>,
    /// Why the last write of a DaemonSet or of a node was refused.
    refused: BTreeMap<ObjectId, String>,
    labels_per_namespace: usize,
    /// Why nodes cannot have the label of a job.
    unlabelled: BTreeMap<Key, Obstacle>,
}

impl FabricController {
    /// Nothing is decided yet.
    pub(crate) fn new(setup: &Setup<'_>) -> Self {
        Self {
            reports: setup.context.reports.clone(),
            fabrics: setup.context.fabrics.clone(),
            template: setup.context.template.clone(),
            decided: None,
            refused: BTreeMap::new(),
            labels_per_namespace: setup.context.labels_per_namespace.get() as usize,
            unlabelled: BTreeMap::new(),
        }
    }

    /// Tells the server of agents what they are to know.
    fn publish(&self, cache: &Cache, membership: &Membership) {
        let key = &cache.ticket_key;
        let view = |name: &str| {
            let fabric = cache.fabrics.named(name)?;
            let nodes = membership.members(name)?.nodes.clone();
            Some(FabricView {
                config: configuration::config(fabric, key),
                nodes,
            })
        };
        let names = cache.fabrics.iter().map(|(_, fabric)| fabric.name_any());
        let views: Views = names
            .filter_map(|name| Some((name.clone(), view(&name)?)))
            .collect();
        self.fabrics.send_if_modified(|old| {
            let is_other = *old != views;
            if is_other {
                *old = views;
            }
            is_other
        });
    }
}

impl Controller for FabricController {
    fn name(&self) -> &'static str {
        "fabrics"
    }

    fn prepare(&mut self, cache: &mut Cache) {
        if cache.unlabelled != self.unlabelled {
            cache.unlabelled.clone_from(&self.unlabelled);
        }
    }

    fn reconcile(&mut self, round: &mut ReconcileContext<'_>) {
        let around = round.cache.non_job_revision();
        let is_same = self
            .decided
            .is_some_and(|(known, at)| known == around && round.elapsed < at + TICK);
        let has_reports = self.reports.has_changed().unwrap_or(false);
        if is_same && !has_reports {
            return;
        }
        self.reports.mark_unchanged();
        self.decided = Some((around, round.elapsed));
        self.publish(round.cache, round.membership);
        let decision = decide::decide(&view::View {
            cache: round.cache,
            membership: round.membership,
            reports: &self.reports.borrow(),
            leading: round.elapsed,
            refused: &self.refused,
            labels_per_namespace: self.labels_per_namespace,
            template: &self.template,
            now: round.now,
            at: Instant::now(),
        });
        self.unlabelled = decision.unlabelled;
        round.submit(&Key::default(), decision.requests);
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
            self.decided = None;
        }
    }
}
