//! The virtual devices of pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Serialize};

/// A virtual device of a pod, as its node's engine has it. It is counted since the container was started, or another engine
/// has gone on with the device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodDevice {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// The device's name there.
    pub device: String,
    /// Most that it sends, bits per second; none: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_bps: Option<u64>,
    /// Most work requests that begin per second; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_second: Option<u32>,
    /// Its part of the node's link beside other devices, a weight; none: its engine does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
    /// How often programs have it open.
    pub open: u32,
    /// Payload bytes that peers have acknowledged.
    pub bytes_sent: u64,
    /// Payload bytes that have come.
    pub bytes_received: u64,
    /// Packets that asked for memory which they may not reach.
    pub refused_packets: u64,
    /// Offers of pods of other namespaces to connect.
    pub refused_offers: u64,
    /// Calls and work requests for what is not the pod's to use, and foreign protocols at the device's socket.
    #[serde(default)]
    pub refused_calls: u64,
    /// Memory regions.
    #[serde(default)]
    pub regions: u32,
    /// Of these, those whose memory the engine has mapped as well.
    #[serde(default)]
    pub windows: u32,
    /// Bytes of the pod's memory that were copied by plain moves, where the engine has mapped it as well.
    #[serde(default)]
    pub window_bytes: u64,
    /// Bytes of the pod's memory that the kernel has copied, by a descriptor of the program's address space.
    #[serde(default)]
    pub mem_fd_bytes: u64,
    /// Why the pod cannot use it, UpperCamelCase; none while it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl PodDevice {
    /// In paths, and in roles.
    pub const RESOURCE: &str = "poddevices";
}

/// The devices of the pods of a namespace, or of all.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodDeviceList {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `PodDeviceList`.
    pub kind: String,
    /// Empty: there is nothing to be continued or watched.
    #[serde(default)]
    pub metadata: ListMeta,
    /// By namespace, pod and device.
    pub items: Vec<PodDevice>,
    /// Nodes that can have devices whose agents did not say which: some items may be missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent_nodes: Vec<SilentNode>,
}

impl PodDeviceList {
    /// Its kind.
    pub const KIND: &str = "PodDeviceList";
}

/// A node whose agent did not answer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SilentNode {
    /// The node.
    pub node: String,
    /// For people: why, and what to do.
    pub message: String,
}
