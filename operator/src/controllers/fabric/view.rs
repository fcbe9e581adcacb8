//! What fabrics are decided from.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use weft_proto::operator::v1::NodeReport;

use crate::controllers::{fabric::agents::AgentTemplate, kinds::Cache, membership::Membership};

/// A node that has said nothing for so long is not ready: three of the reports that it owes.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// What a node's agent last said.
#[derive(Debug, Clone)]
pub(crate) struct LastReport {
    /// Of which fabric it is an agent.
    pub(crate) fabric: String,
    /// What it said.
    pub(crate) report: NodeReport,
    /// How long ago.
    pub(crate) silent: Duration,
}

/// What fabrics are decided from.
pub(crate) struct View<'a> {
    /// The objects.
    pub(crate) cache: &'a Cache,
    /// Whose the nodes are.
    pub(crate) membership: &'a Membership,
    /// What agents have said to this process.
    pub(crate) last_reports: &'a BTreeMap<String, LastReport>,
    /// How long this process has been leading: agents need a while to find a new leader.
    pub(crate) leading: Duration,
    /// What DaemonSets are made from.
    pub(crate) template: &'a AgentTemplate,
    /// Now.
    pub(crate) now: Timestamp,
}
