//! Which node belongs to which fabric.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::controllers::kinds::Cache;

/// If several fabrics select a node, the node belongs to the oldest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    of: BTreeMap<String, String>,
    fabrics: BTreeMap<String, Members>,
}

/// The nodes that a fabric selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Those that belong to it.
    pub(crate) nodes: BTreeSet<String>,
    /// Those that an older fabric has, with its name.
    pub(crate) taken: BTreeMap<String, String>,
    /// What is wrong with its selector.
    pub(crate) fault: Option<String>,
}

impl Membership {
    /// Of all nodes there are.
    pub(crate) fn of(cache: &Cache) -> Self {
        let mut order: Vec<_> = cache.fabrics.iter().map(|(_, fabric)| fabric).collect();
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
                    for (_, node) in cache.nodes.iter() {
                        if selector.matches(node.labels()) {
                            membership.add(&name, &mut members, node.name_any());
                        }
                    }
                }
                // It keeps what it has until somebody mends the selector.
                Err(fault) => {
                    for (_, node) in cache.fabric_nodes.iter() {
                        let known = cache.nodes.named(&node.name_any()).is_some();
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
    pub(crate) fn fabric(&self, node: &str) -> Option<&str> {
        self.of.get(node).map(String::as_str)
    }

    /// All nodes that belong to a fabric, with it.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of
            .iter()
            .map(|(node, fabric)| (node.as_str(), fabric.as_str()))
    }

    /// What a fabric selects.
    pub(crate) fn members(&self, fabric: &str) -> Option<&Members> {
        self.fabrics.get(fabric)
    }
}

/// A selector that can be asked; an error says what is wrong with it.
pub(crate) fn selector(selector: &LabelSelector) -> Result<Selector, String> {
    Selector::try_from(selector.clone())
        .map_err(|error| format!("{error}; operators are In, NotIn, Exists and DoesNotExist"))
}
