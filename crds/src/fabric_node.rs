//! `FabricNode`: a node of a fabric, as its agent describes it.
#![expect(
    unreachable_pub,
    reason = "the schema's derive copies a type within a private scope"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "each printer column has its own"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A node of a fabric. Written by the operator only, from what the node's agent streams to it; has
/// the node's name, and ends with the node.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "FabricNode",
    plural = "fabricnodes",
    shortname = "fn",
    category = "weft",
    status = "FabricNodeStatus",
    derive = "PartialEq",
    doc = "A node of a fabric, as its agent describes it. Written by the operator only.",
    printcolumn(name = "Fabric", type_ = "string", json_path = ".spec.fabric"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Data", type_ = "string", json_path = ".status.dataAddress"),
    printcolumn(
        name = "Devices",
        type_ = "integer",
        json_path = ".status.devices.total"
    ),
    printcolumn(
        name = "In-Use",
        type_ = "integer",
        json_path = ".status.devices.inUse"
    ),
    printcolumn(
        name = "Unhealthy",
        type_ = "integer",
        json_path = ".status.devices.unhealthy"
    ),
    printcolumn(
        name = "Interface",
        type_ = "string",
        json_path = ".status.interface",
        priority = 1
    ),
    printcolumn(
        name = "MTU",
        type_ = "integer",
        json_path = ".status.mtu",
        priority = 1
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct FabricNodeSpec {
    /// The fabric it belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub fabric: String,
}

/// What a node's agent says of itself.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct FabricNodeStatus {
    /// The generation of the spec that this is about.
    pub observed_generation: i64,
    /// Ready: the agent reports and can work; Unknown after an uninstallation. Reason ConfigurationPending: it works with
    /// an earlier configuration of the fabric until its pod is replaced. DevicesHealthy, where the fabric has devices: pods
    /// can use them; when False, the reason and the message say why, and name devices and pods.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// HOST:PORT of the agent's control API.
    pub control_address: String,
    /// The IPv4 address of the data path, of the first NIC.
    pub data_address: String,
    /// The interface that has it.
    pub interface: String,
    /// The NICs that carry the data, the first one first.
    #[schemars(length(max = 16))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NodeNic>,
    /// Bytes of an IP packet on every NIC.
    pub mtu: u32,
    /// Mbit/s of all NICs together, as the kernel says; 0 when it does not.
    pub link_mbps: u32,
    /// The NUMA node of the interface; absent where the kernel knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The PCI root of the interface, as pci0000:17; absent where it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pcie_root: String,
    /// UDP ports of the data path.
    pub ports: NodePorts,
    /// Its virtual devices; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<NodeDevices>,
    /// Volumes of its pods that show verified copies now (csi.weft.dev).
    #[serde(skip_serializing_if = "crate::unsaid")]
    pub volumes_in_use: u32,
    /// The agent's release.
    pub version: String,
    /// The hash of the fabric's configuration that the agent's pod was made for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub configuration: String,
    /// When its certificate ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<Time>,
    /// What is not as it should be, each with its remedy.
    #[schemars(length(max = 32))]
    pub findings: Vec<Finding>,
    /// The epoch of the leader that wrote this. An operator of an earlier one that sees it writes nothing
    /// until it knows that it still leads.
    #[serde(skip_serializing_if = "crate::unsaid")]
    pub leader_epoch: i64,
}

/// A NIC that carries the data.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodeNic {
    /// Its interface.
    pub interface: String,
    /// Its IPv4 address.
    pub address: String,
    /// Mbit/s as the kernel says; 0 when it does not.
    pub mbps: u32,
    /// It is up and has a carrier. While it is not, the other NICs carry the data.
    pub up: bool,
}

/// A range of UDP ports.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodePorts {
    /// The first.
    pub first: u16,
    /// How many, from the first on.
    pub count: u16,
}

/// How many virtual devices a node has.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDevices {
    /// Those that its pods can have.
    pub total: u32,
    /// Those that pods have.
    pub in_use: u32,
    /// Of those that pods have, how many by ResourceClaims.
    pub by_claims: u32,
    /// Those that no pod can use: all of them where its pods can have none.
    pub unhealthy: u32,
}

/// Something that is not as it should be.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Stable, UpperCamelCase.
    pub reason: String,
    /// What it is about, and what to do.
    pub message: String,
}
