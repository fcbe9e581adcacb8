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
    fabric_of_node: BTreeMap<String, String>,
    fabrics: BTreeMap<String, Members>,
}

/// The nodes that a fabric selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Those that belong to it.
    pub(crate) nodes: BTreeSet<String>,
    /// Those that an older fabric has, with its name.
    pub(crate) taken_by_older: BTreeMap<String, String>,
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
        match self.fabric_of_node.get(&node) {
            Some(older) => {
                members.taken_by_older.insert(node, older.clone());
            }
            None => {
                members.nodes.insert(node.clone());
                self.fabric_of_node.insert(node, fabric.to_owned());
            }
        }
    }

    /// The fabric that a node belongs to.
    pub(crate) fn fabric(&self, node: &str) -> Option<&str> {
        self.fabric_of_node.get(node).map(String::as_str)
    }

    /// All nodes that belong to a fabric, with it.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fabric_of_node
            .iter()
            .map(|(node, fabric)| (node.as_str(), fabric.as_str()))
    }

    /// What a fabric selects.
    pub(crate) fn members(&self, fabric: &str) -> Option<&Members> {
        self.fabrics.get(fabric)
    }
}

/// A selector that can be asked; an error says what is wrong with it. The API server has no pattern for the keys of
/// a map, so a key that no label can have comes here.
pub(crate) fn selector(selector: &LabelSelector) -> Result<Selector, String> {
    let mut keys = selector.match_labels.iter().flatten().map(|(key, _)| key);
    if let Some(key) = keys.find(|key| !is_label_key(key)) {
        return Err(format!(
            "no label has the key {key:?}: give NAME or DOMAIN/NAME, of letters, digits, '-', '_' and '.'"
        ));
    }
    Selector::try_from(selector.clone())
        .map_err(|error| format!("{error}; operators are In, NotIn, Exists and DoesNotExist"))
}

/// What Kubernetes takes as a label's key: a name of at most 63 characters, after a DNS subdomain and a slash where
/// it has one.
fn is_label_key(key: &str) -> bool {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let is_within = |text: &str, most, is_separator: fn(u8) -> bool| {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || is_separator(*byte);
        text.len() <= most
            && is_end(bytes.first())
            && is_end(bytes.last())
            && bytes.iter().all(is_good)
    };
    is_within(name, 63, |byte| matches!(byte, b'-' | b'_' | b'.'))
        && domain.is_none_or(|domain| {
            is_within(domain, 253, |byte| matches!(byte, b'-' | b'.'))
                && !domain.bytes().any(|byte| byte.is_ascii_uppercase())
        })
}

#[cfg(test)]
mod tests {
    use super::is_label_key;

    #[test]
    fn keys_of_labels_are_told_from_what_no_label_can_have() {
        let long = "k".repeat(63);
        for good in ["gpu", "a.b_c-D", "weft.dev/fabric", &long] {
            assert!(is_label_key(good), "{good}");
        }
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a b",
            "-a",
            "a-",
            "A.b/c",
            "a/b/c",
            "ä",
            &format!("{long}k"),
        ] {
            assert!(!is_label_key(bad), "{bad}");
        }
    }
}
