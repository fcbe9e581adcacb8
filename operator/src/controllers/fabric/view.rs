//! What fabrics are decided from.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    controllers::{
        fabric::agents::AgentTemplate, kinds::Cache, membership::Membership, request::ObjectId,
    },
    reports::NodeState,
};

/// What fabrics are decided from.
pub(crate) struct View<'a> {
    /// The objects.
    pub(crate) cache: &'a Cache,
    /// Which fabric each node belongs to.
    pub(crate) membership: &'a Membership,
    /// What agents have said to this process.
    pub(crate) reports: &'a BTreeMap<String, NodeState>,
    /// How long this process has led: agents need a while to find a new leader.
    pub(crate) led_for: Duration,
    /// Why the last write of a DaemonSet or of a node was refused.
    pub(crate) refused: &'a BTreeMap<ObjectId, String>,
    /// What is wrong with the Service that owns the DaemonSets: without it Kubernetes deletes them.
    pub(crate) service_problem: Option<&'a str>,
    /// Labels of models of one namespace that a node may have.
    pub(crate) labels_per_namespace: usize,
    /// What DaemonSets are made from.
    pub(crate) template: &'a AgentTemplate,
    /// Now, by this machine's clock …
    pub(crate) now: Timestamp,
    /// … and by the clock that reports are counted by.
    pub(crate) now_instant: Instant,
}
