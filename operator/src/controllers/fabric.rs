//! Fabrics, their nodes and their agents: what is decided about them, and what agents are told.
//!
//! Fabrics are few. All are decided together: when an agent has reported, when something but a job has
//! changed, and once a second.

pub(crate) mod agents;
pub(crate) mod configuration;
pub(crate) mod decide;
pub(crate) mod view;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{Resource as _, api::apps::v1::DaemonSet};
use kube::ResourceExt as _;
use tokio::{sync::watch, time::Instant};

use self::agents::AgentTemplate;
use super::{
    api_writer::WriteError,
    cache::Key,
    controller::{Controller, ReconcileContext, Setup, TICK},
    kinds::Cache,
    membership::Membership,
    request::Request,
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
    /// Why the last write of a DaemonSet was refused, by its name.
    refused: BTreeMap<String, String>,
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
        let requests = decide::decide(&view::View {
            cache: round.cache,
            membership: round.membership,
            reports: &self.reports.borrow(),
            leading: round.elapsed,
            refused: &self.refused,
            template: &self.template,
            now: round.now,
            at: Instant::now(),
        });
        round.submit(&Key::default(), requests);
    }

    fn on_write_result(&mut self, _: &Key, request: &Request, result: Result<(), &WriteError>) {
        if request.resource.kind != DaemonSet::KIND {
            return;
        }
        match result {
            Ok(()) => drop(self.refused.remove(&request.key.name)),
            // The watch tells what is true now.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => {
                self.refused
                    .insert(request.key.name.clone(), error.to_string());
            }
        }
        self.decided = None;
    }
}
