//! Which node belongs to which fabric.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use super::world::World;

/// A node belongs to one fabric: of those that select it, the oldest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Membership {
    of: BTreeMap<String, String>,
    fabrics: BTreeMap<String, Members>,
}

/// The nodes that a fabric selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Members {
    /// Those that belong to it.
    pub(super) nodes: BTreeSet<String>,
    /// Those that an older fabric has, with its name.
    pub(super) taken: BTreeMap<String, String>,
    /// What is wrong with its selector.
    pub(super) fault: Option<String>,
}

impl Membership {
    /// Of all nodes there are.
    pub(super) fn of(world: &World) -> Self {
        let mut order: Vec<_> = world.fabrics.iter().map(|(_, fabric)| fabric).collect();
        order.sort_by_key(|fabric| {
            (
                fabric.metadata.creation_timestamp.clone(),
                fabric.name_any(),
            )
        });
        let mut membership = Self::default();
        for fabric in order {
            let name = fabric.name_any();
            let mut members = Members::default();
            match selector(&fabric.spec.node_selector) {
                Ok(selector) => {
                    for (_, node) in world.nodes.iter() {
                        if selector.matches(node.labels()) {
                            membership.add(&name, &mut members, node.name_any());
                        }
                    }
                }
                // It keeps what it has until somebody mends the selector.
                Err(fault) => {
                    for (_, node) in world.fabric_nodes.iter() {
                        let known = world.nodes.named(&node.name_any()).is_some();
                        if node.spec.fabric == name && known {
                            membership.add(&name, &mut members, node.name_any());
                        }
                    }
                    members.fault = Some(format!("spec.nodeSelector: {fault}"));
                }
            }
            membership.fabrics.insert(name, members);
        }
        membership
    }

    fn add(&mut self, fabric: &str, members: &mut Members, node: String) {
        match self.of.get(&node) {
            Some(older) => {
                members.taken.insert(node, older.clone());
            }
            None => {
                members.nodes.insert(node.clone());
                self.of.insert(node, fabric.to_owned());
            }
        }
    }

    /// The fabric that a node belongs to.
    pub(super) fn fabric(&self, node: &str) -> Option<&str> {
        self.of.get(node).map(String::as_str)
    }

    /// All nodes that belong to a fabric, with it.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of
            .iter()
            .map(|(node, fabric)| (node.as_str(), fabric.as_str()))
    }

    /// What a fabric selects.
    pub(super) fn members(&self, fabric: &str) -> Option<&Members> {
        self.fabrics.get(fabric)
    }
}

/// A selector that can be asked; an error says what is wrong with it.
pub(super) fn selector(selector: &LabelSelector) -> Result<Selector, String> {
    Selector::try_from(selector.clone())
        .map_err(|error| format!("{error}; operators are In, NotIn, Exists and DoesNotExist"))
}
