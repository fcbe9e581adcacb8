//! The verified copies of a cluster, and their removal.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Serialize};

/// A verified copy on a node, as its agent's record says.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeCopy {
    /// The node.
    pub node: String,
    /// The root of its fabric.
    pub root: String,
    /// Relative to the root.
    pub path: String,
    /// Of all of it.
    pub digest: String,
    /// Of its files.
    pub bytes: u64,
    /// How many there are.
    pub files: u64,
    /// The jobs that it is recorded for, oldest first.
    pub jobs: Vec<CopyJob>,
}

impl NodeCopy {
    /// In paths, and in roles.
    pub const RESOURCE: &str = "nodecopies";

    /// Whether a job that it is recorded for exists.
    pub fn is_held(&self) -> bool {
        self.jobs.iter().any(|job| job.exists)
    }
}

/// A job that a copy is recorded for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CopyJob {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// By this the agent knows it.
    pub uid: String,
    /// It has not been deleted.
    pub exists: bool,
}

/// The copies of the jobs of a namespace, or of all.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeCopyList {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `NodeCopyList`.
    pub kind: String,
    /// Empty: there is nothing to be continued or watched.
    #[serde(default)]
    pub metadata: ListMeta,
    /// By root, path and node.
    pub items: Vec<NodeCopy>,
}

impl NodeCopyList {
    /// Its kind.
    pub const KIND: &str = "NodeCopyList";
}

/// Which copies are to be removed: those of a place that no job holds any more.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CopyRemovalRequest {
    /// The root.
    pub root: String,
    /// Relative to the root.
    pub path: String,
    /// On these nodes; on all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

/// What has become of them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CopyRemoval {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `CopyRemoval`.
    pub kind: String,
    /// The nodes whose agents have taken the jobs out of the record. They remove the files then, or once
    /// nobody reads or writes there.
    pub removed: Vec<String>,
    /// Those that keep their copy.
    pub kept: Vec<KeptCopy>,
}

impl CopyRemoval {
    /// Its kind.
    pub const KIND: &str = "CopyRemoval";
    /// In paths, and in roles.
    pub const RESOURCE: &str = "copyremovals";
}

/// Why a copy stays.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeptCopy {
    /// The node.
    pub node: String,
    /// For people: why, and what to do.
    pub message: String,
}
