//! What the operator reads of the cluster's nodes.

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::{Resource, core::ObjectMeta};
use serde::Deserialize;

/// A Node: its metadata and its addresses. The rest, which is most of it, is not kept.
#[derive(Debug, Clone, Default, Resource, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[resource(inherit = Node)]
pub(crate) struct ClusterNode {
    /// Its labels, among others.
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) status: NodeAddresses,
}

/// The part of a Node's status that is kept.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(crate) struct NodeAddresses {
    /// IP addresses and names.
    #[serde(default)]
    pub(crate) addresses: Vec<NodeAddress>,
}
