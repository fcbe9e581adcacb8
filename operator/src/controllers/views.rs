//! Fabrics as they are decided, and what the server of agents is told of them.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{
    Controllers, LOOK,
    fabric::{self, Sighting},
    membership::Membership,
    request::Request,
};
use crate::reports::{FabricView, Fabrics, NodeState};

impl Controllers {
    /// Decides the fabrics, if it is time to.
    pub(super) fn fabrics(
        &mut self,
        are_reports_new: bool,
        now: Timestamp,
    ) -> Option<Vec<Request>> {
        let around = self.world.surroundings();
        let is_time = self
            .fabrics_of
            .is_none_or(|(known, at)| known != around || at.elapsed() >= LOOK);
        if !is_time && !are_reports_new {
            return None;
        }
        self.fabrics_of = Some((around, Instant::now()));
        self.notes.read(&self.world);
        self.publish(&self.membership);
        Some(fabric::decide(&fabric::View {
            world: &self.world,
            membership: &self.membership,
            sightings: &self.sightings(),
            notes: &self.notes,
            refused: &self.holds.nodes(self.began.elapsed()).refused,
            leading: self.began.elapsed(),
            template: &self.template,
            now,
        }))
    }

    fn sightings(&self) -> BTreeMap<String, Sighting> {
        let reports = self.context.reports.borrow();
        let sighting = |state: &NodeState| Sighting {
            fabric: state.fabric.clone(),
            report: state.report.clone(),
            silent: state.seen.elapsed(),
        };
        reports
            .iter()
            .map(|(node, state)| (node.clone(), sighting(state)))
            .collect()
    }

    /// Tells the server of agents what they are to know.
    fn publish(&self, membership: &Membership) {
        let key = &self.world.ticket_key;
        let view = |name: &str| {
            let fabric = self.world.fabrics.named(name)?;
            let nodes = membership.members(name)?.nodes.clone();
            let models = nodes.iter().filter_map(|node| {
                let models = self.notes.to_look_after(node);
                (!models.is_empty()).then(|| (node.clone(), models))
            });
            Some(FabricView {
                config: fabric::config(fabric, key),
                models: models.collect(),
                nodes,
            })
        };
        let names = self
            .world
            .fabrics
            .iter()
            .map(|(_, fabric)| fabric.name_any());
        let views: Fabrics = names
            .filter_map(|name| Some((name.clone(), view(&name)?)))
            .collect();
        self.context.fabrics.send_if_modified(|old| {
            let is_other = *old != views;
            if is_other {
                *old = views;
            }
            is_other
        });
    }
}
