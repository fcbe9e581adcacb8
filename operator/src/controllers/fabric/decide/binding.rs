//! Which nodes say of which fabric they are, and what waits until all of them do.

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::{ResourceExt as _, core::PartialObjectMeta};
use serde_json::json;

use super::{NAMED_MAX, View, listed};
use crate::controllers::{
    condition::Verdict,
    fabric::agents::{self, BOUND, FABRIC_LABEL},
    membership::Members,
    models::patch,
    request::Request,
};

/// Whether a node says of which fabric it is, and that is so.
fn is_labelled(view: &View<'_>, node: &PartialObjectMeta<Node>) -> bool {
    let said = node.labels().get(FABRIC_LABEL).map(String::as_str);
    said == view.membership.fabric(&node.name_any())
}

/// Every node says of which fabric it is, and of none where that is so.
pub(crate) fn node_labels(view: &View<'_>) -> Vec<Request> {
    let nodes = view.cache.nodes.iter().map(|(_, node)| node);
    let others = nodes.filter(|node| !is_labelled(view, node));
    let request = |node: &PartialObjectMeta<Node>| {
        let fabric = view.membership.fabric(&node.name_any());
        let labels = json!({ "labels": { FABRIC_LABEL: fabric } });
        patch(node, labels)
    };
    others.map(request).collect()
}

/// The fabric's DaemonSet, where it has one.
pub(crate) fn set_of<'a>(
    view: &View<'a>,
    fabric: &str,
) -> Option<&'a PartialObjectMeta<DaemonSet>> {
    let name = agents::name(fabric);
    let mut sets = view.cache.daemon_sets.iter().map(|(_, set)| set);
    sets.find(|set| set.name_any() == name)
}

/// The nodes for whose labels a set that was bound to nodes by their own labels waits before it is bound
/// by the operator's: its agents would be ended on those that do not have that yet.
pub(crate) fn unlabelled<'a>(
    view: &View<'_>,
    set: &PartialObjectMeta<DaemonSet>,
    members: &'a Members,
) -> Vec<&'a str> {
    if set.annotations().contains_key(BOUND) {
        return Vec::new();
    }
    let lacks = |name: &&String| {
        let node = view.cache.nodes.named(name);
        node.is_some_and(|node| !is_labelled(view, node))
    };
    let nodes = members.nodes.iter().filter(lacks);
    nodes.map(String::as_str).collect()
}

/// Whether anything keeps a fabric's agents at an earlier release. Of nodes that the operator is labelling
/// it says how many; of those that it may not label, which, and what to do.
pub(crate) fn updated(view: &View<'_>, fabric: &str, members: &Members) -> Verdict {
    let set = set_of(view, fabric);
    let lacking = set.map_or_else(Vec::new, |set| unlabelled(view, set, members));
    let refused = lacking.iter().copied();
    let refused: Vec<&str> = refused
        .filter(|node| view.refused.contains(*node))
        .collect();
    let (reason, message) = if lacking.is_empty() {
        let text = "the agents' DaemonSet follows the fabric and the release";
        ("NodesLabelled", text.to_owned())
    } else if refused.is_empty() {
        let text = format!(
            "{} of {} nodes have no label {FABRIC_LABEL}={fabric} yet: {}; the operator writes it, and \
             replaces the agents of the earlier release once all nodes have it; where that lasts, its log \
             says why",
            lacking.len(),
            members.nodes.len(),
            listed(&lacking),
        );
        ("NodesNotLabelled", text)
    } else {
        let text = format!(
            "the operator may not write the label {FABRIC_LABEL}={fabric} to {} of {} nodes: {}; the \
             agents stay those of the earlier release until all nodes have it: the operator's log says \
             who refuses; allow its ServiceAccount to patch nodes, or write the label yourself: kubectl \
             label node {} {FABRIC_LABEL}={fabric} --overwrite",
            refused.len(),
            members.nodes.len(),
            listed(&refused),
            refused[..refused.len().min(NAMED_MAX)].join(" "),
        );
        ("LabelsRefused", text)
    };
    Verdict {
        kind: "AgentsUpdated",
        holds: lacking.is_empty(),
        reason: reason.to_owned(),
        message,
    }
}
