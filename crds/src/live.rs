//! What the operator answers itself, as the group `live.weft.dev` behind the API server: nothing of it
//! is stored.
//!
//! | resource | verb | answer |
//! |---|---|---|
//! | `transferprogress` | get, list | [`TransferProgress`]: how far a job is at this moment |
//! | `transferplans` | create | [`TransferPlan`]: what a job would do, and what is in its way |
//! | `diagnoses` | create | [`Diagnosis`]: what a node's agent has tried and found |
//! | `nodecopies` | list | [`NodeCopyList`]: the verified copies that agents have recorded |
//! | `availableroots` | list | [`AvailableRootList`]: the roots that the jobs of a namespace may name |
//! | `poddevices` | list | [`PodDeviceList`]: the virtual devices of pods, as the nodes' engines count now |
//! | `copyremovals` | create | [`CopyRemoval`]: removes copies that no job holds |
//! | `fabricpages` | get, watch | [`FabricPage`]: HTML that shows a fabric, and events that replace its content |
//! | `fabricnodes/metrics`, `fabricnodes/pathmetrics` | get | [`NodeMetrics`]: what a node's agent exports for Prometheus |

mod copies;
mod devices;
mod metrics;
mod page;
mod roots;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use serde::{Deserialize, Serialize};
use weft_planner::Plan;

pub use self::{
    copies::{CopyJob, CopyRemoval, CopyRemovalRequest, KeptCopy, NodeCopy, NodeCopyList},
    devices::{PodDevice, PodDeviceList, SilentNode},
    metrics::NodeMetrics,
    page::FabricPage,
    roots::{AvailableRoot, AvailableRootList},
};
use crate::{ManifestSummary, TransferJobStatus};

/// The API group that the operator serves.
pub const LIVE_GROUP: &str = "live.weft.dev";
/// Its version.
pub const LIVE_VERSION: &str = "v1alpha1";

/// `apiVersion` of every answer.
pub fn live_api_version() -> String {
    format!("{LIVE_GROUP}/{LIVE_VERSION}")
}

/// How far a job is: the status that the operator would write now, with every destination where one job
/// is asked for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TransferProgress {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `TransferProgress`.
    pub kind: String,
    /// Name, namespace, UID and creation of the job.
    pub metadata: ObjectMeta,
    /// What the operator knows now; `destinations` holds all of them, and in a list none: `counts` says
    /// there how many there are.
    pub status: TransferJobStatus,
    /// While it waits for its turn: how many jobs of its fabric that wait come before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u32>,
}

impl TransferProgress {
    /// Its kind.
    pub const KIND: &str = "TransferProgress";
    /// In paths, and in roles.
    pub const RESOURCE: &str = "transferprogress";
}

/// The jobs of a namespace, or of all.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TransferProgressList {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `TransferProgressList`.
    pub kind: String,
    /// Empty: there is nothing to be continued or watched.
    #[serde(default)]
    pub metadata: ListMeta,
    /// By namespace and name.
    pub items: Vec<TransferProgress>,
}

/// What a job would do if it were made now. Asked for by posting the TransferJob.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TransferPlan {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `TransferPlan`.
    pub kind: String,
    /// What it would wait for, or fail by; empty when it would begin at once.
    pub obstacles: Vec<Obstacle>,
    /// What the source holds, as its agent says; absent when it could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestSummary>,
    /// Who would send to whom; absent where that depends on an obstacle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

impl TransferPlan {
    /// Its kind.
    pub const KIND: &str = "TransferPlan";
    /// In paths, and in roles.
    pub const RESOURCE: &str = "transferplans";
}

/// What is in a job's way.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// Stable, UpperCamelCase: the reason that the job's condition would have.
    pub reason: String,
    /// For people: the field, and the remedy.
    pub message: String,
    /// The job would fail at once; otherwise it would wait.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// What a node's agent has tried and found. Asked for by posting a [`DiagnosisRequest`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `Diagnosis`.
    pub kind: String,
    /// The node.
    pub node: String,
    /// The operator's release.
    pub operator_version: String,
    /// Milliseconds that the node's clock is ahead of the operator's; negative when it is behind.
    /// Wrong by what the call took at most.
    pub clock_ahead_ms: i64,
    /// What the kernel and the pod give the agent.
    pub facts: NodeFacts,
    /// For each peer and size of packet.
    pub reaches: Vec<Reach>,
}

impl Diagnosis {
    /// Its kind.
    pub const KIND: &str = "Diagnosis";
    /// In paths, and in roles.
    pub const RESOURCE: &str = "diagnoses";
}

/// Which node is to try what.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DiagnosisRequest {
    /// The node.
    pub node: String,
}

/// What the kernel and the pod give an agent.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// The kernel's release.
    pub kernel: String,
    /// UDP GSO works.
    pub gso: bool,
    /// UDP GRO works.
    pub gro: bool,
    /// Bytes of a socket's receive buffer that were asked for.
    pub receive_buffer_wanted: u64,
    /// Bytes of it that were granted.
    pub receive_buffer_granted: u64,
    /// Bytes of a socket's send buffer that were asked for.
    pub send_buffer_wanted: u64,
    /// Bytes of it that were granted.
    pub send_buffer_granted: u64,
    /// Bytes that the agent's pod may use; 0 without a limit.
    pub memory_limit: u64,
    /// Bytes of buffers that the agent may use by its configuration.
    pub memory_budget: u64,
}

/// What came back of packets of one size to one peer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// The peer.
    pub node: String,
    /// Bytes of an IP packet.
    pub packet_bytes: u32,
    /// How many ports were tried.
    pub ports: u16,
    /// Those that did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent_ports: Vec<u16>,
    /// What was tried: udp or tcp; udp when absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link: String,
    /// Why the node's kernel did not even send; empty when it did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}
