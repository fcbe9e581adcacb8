//! `RdmaFabric`: which nodes belong together, and what jobs may touch on them.
#![expect(
    unreachable_pub,
    reason = "the schema's derive copies a type within a private scope"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A set of nodes that move data among themselves, and the directories that jobs may name on them.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "RdmaFabric",
    plural = "rdmafabrics",
    shortname = "rf",
    category = "weft",
    status = "FabricStatus",
    derive = "PartialEq",
    doc = "A set of nodes that move data among themselves, and the directories that jobs may name on them.",
    validation = Rule::new("self.metadata.name.size() <= 40 && !self.metadata.name.contains('.')")
        .message("metadata.name must be at most 40 characters without a dot: it is part of names in certificates and of a DaemonSet's name"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.selected"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.nodes.ready"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.transport) || self.transport.congestion != 'Eqds' || has(self.topology) && has(self.topology.linkMbps)")
    .message("spec.transport.congestion: Eqds grants credit at the rate of a node's link; set spec.topology.linkMbps"))]
#[x_kube(validation = Rule::new("!has(self.transport) || !has(self.ports) || self.transport.paths == 128 || self.transport.paths <= self.ports.count * self.ports.count")
    .message("spec.transport.paths is above the square of spec.ports.count, and two nodes have no more paths than that; lower spec.transport.paths or raise spec.ports.count"))]
#[x_kube(validation = Rule::new("oldSelf.roots.all(a, self.roots.all(b, a.name != b.name || a.hostPath == b.hostPath))")
    .message("spec.roots: the hostPath of a root is immutable, for copies are known by its name; add a root of another name and remove this one once no job names it"))]
pub struct RdmaFabricSpec {
    /// The nodes of this fabric, by their labels. A node belongs to one fabric: where two select it,
    /// the older fabric has it and the other gets the condition Conflicting.
    #[schemars(schema_with = "crate::bounds::selector")]
    pub node_selector: LabelSelector,
    /// Directories that jobs may name, by the names given here.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(validation = Rule::new("self.all(a, self.exists_one(b, b.name == a.name))")
        .message("spec.roots: two roots have the same name; give each a name of its own"))]
    #[x_kube(validation = Rule::new("self.all(a, self.all(b, a.name == b.name || !(b.hostPath + '/').startsWith(a.hostPath + '/')))")
        .message("spec.roots: one hostPath lies within another; roots must be apart"))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub roots: Vec<Root>,
    /// Which network interfaces carry the data.
    #[serde(default)]
    pub nics: Nics,
    /// What is known of the network between the nodes; a plan is made from it.
    #[serde(default)]
    pub topology: Topology,
    /// How bytes move.
    #[serde(default)]
    pub transport: Transport,
    /// How stores of objects are read.
    #[serde(default)]
    pub objects: Objects,
    /// UDP ports of the data path; a firewall must let them through between the nodes.
    #[serde(default)]
    pub ports: Ports,
    /// Virtual RDMA devices, which pods ask for as weft.dev/vdev. The nodes have none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
}

/// A directory of every node that jobs may name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// What jobs call it.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Where it is on each node; made where it is missing. Cannot be changed.
    #[schemars(length(min = 2, max = 1024))]
    #[x_kube(validation = Rule::new("self.startsWith('/') && !self.endsWith('/') && !self.contains('//') && !(self + '/').contains('/../') && !(self + '/').contains('/./')")
        .message("hostPath must be absolute, without '..', '.', '//' and a slash at its end, for example /var/lib/weft/models"))]
    #[x_kube(validation = Rule::new("!['/etc', '/usr', '/bin', '/sbin', '/lib', '/proc', '/sys', '/dev', '/boot', '/root', '/var/lib/kubelet', '/var/lib/etcd', '/run'].exists(p, self == p || self.startsWith(p + '/')) && self != '/var' && self != '/var/lib'")
        .message("hostPath must not be a directory of the system; use one of its own, for example /var/lib/weft/models"))]
    pub host_path: String,
    /// What jobs may do there.
    #[schemars(transform = crate::values::explain)]
    pub access: RootAccess,
    /// Whose files it holds.
    #[schemars(transform = crate::values::explain)]
    #[serde(default)]
    pub scope: RootScope,
    /// The namespaces whose jobs may use it; all when absent.
    #[schemars(schema_with = "crate::bounds::optional_selector")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// What jobs leave free of the root's file system: a percentage of it, or bytes such as 200Gi. A job that
    /// would leave less fails with RootReserve before any byte moves. "0" keeps nothing free.
    #[serde(default = "min_free")]
    #[schemars(length(max = 20))]
    #[x_kube(validation = Rule::new("self.matches('^(100|[0-9]{1,2})%$|^[0-9]{1,15}(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$')")
        .message("minFree must be a percentage of 0% to 100%, or a whole number of bytes with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi if wanted, for example 10% or 200Gi"))]
    pub min_free: String,
    /// Bytes, such as 500Gi, that the directory, the copies elsewhere and the transfers under way of one namespace
    /// may take of this root's disk, at each node. A job that would take more fails with NamespaceQuota before any
    /// byte moves. No limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,15}(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$')")
        .message("bytesPerNamespace must be a whole number of bytes with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi if wanted, for example 500Gi"))]
    pub bytes_per_namespace: Option<String>,
}

fn min_free() -> String {
    "10%".to_owned()
}

/// What jobs may do in a root.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootAccess {
    /// Be a source.
    ReadOnly,
    /// Be a source or a destination.
    ReadWrite,
}

/// Whose files a root holds.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RootScope {
    /// Each namespace has a directory of its own in it: a job sees hostPath/NAMESPACE only.
    #[default]
    PerNamespace,
    /// All namespaces share it: jobs that say so, in scope beside root, see all of it.
    Shared,
}

/// Network interfaces, by name; `*` stands for any characters.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Nics {
    /// All interfaces that one of these matches carry the data of files and jobs, in the order of the patterns, 16 at most;
    /// virtual devices have the first one. Without any: the interface that has the node's InternalIP.
    #[schemars(length(max = 16), inner(length(min = 1, max = 64)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Interfaces that are never used.
    #[schemars(length(max = 16), inner(length(min = 1, max = 64)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// The network between the nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    /// The key of a node label whose value names the leaf switch that the node hangs on. Without it all nodes count as one leaf.
    #[schemars(length(min = 1, max = 317), regex(pattern = crate::bounds::LABEL_KEY))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf_label: Option<String>,
    /// Mbit/s of a node's link, for estimates; as the interface says when absent.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_mbps: Option<u32>,
}

/// How bytes move. The same on all nodes of a fabric.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Transport {
    /// Paths for each pair of nodes; at most the square of ports.count, to which the default is lowered.
    #[schemars(range(min = 1, max = 256))]
    pub paths: u16,
    /// How the path of a chunk is chosen.
    #[schemars(transform = crate::values::explain)]
    pub policy: PathPolicy,
    /// What bounds the bytes in flight.
    #[schemars(transform = crate::values::explain)]
    pub congestion: CongestionControl,
    /// Queueing that the congestion control allows, microseconds: 1,000 for EcnRtt and 250 for Swift when absent.
    /// Some 50 where workers busy-poll or NICs stamp time. For Eqds the longest round trip without queueing, 50 when
    /// absent: its first window is what a node receives in that time.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_queueing_micros: Option<u32>,
    /// Bytes of payload in a chunk, at most.
    #[schemars(range(min = 512, max = 65536))]
    pub chunk_bytes: u32,
    /// The smallest retransmission timeout, microseconds.
    #[schemars(range(min = 250, max = 10_000_000))]
    pub rto_min_micros: u32,
    /// What carries the packets.
    #[schemars(transform = crate::values::explain)]
    pub link: Link,
    /// Whether the data path is encrypted and authenticated, by AES-128-GCM. In YAML put "Off" in quotes.
    #[schemars(transform = crate::values::explain)]
    pub encryption: Encryption,
    /// Most that a node sends over the data path, Mbit/s; jobs share it evenly, and take turns: a node
    /// takes part in two at a time. No limit, and no turns, when absent.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_mbps: Option<u32>,
    /// Differentiated services code point of the data path's packets, by which switches tell them from
    /// others.
    #[schemars(range(min = 0, max = 63))]
    pub dscp: u8,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            paths: 128,
            policy: PathPolicy::default(),
            congestion: CongestionControl::default(),
            target_queueing_micros: None,
            chunk_bytes: 64 << 10,
            rto_min_micros: 5_000,
            link: Link::default(),
            encryption: Encryption::default(),
            cap_mbps: None,
            dscp: 0,
        }
    }
}

/// How stores of objects are read.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Objects {
    /// Also without TLS (http), and from services of the nodes themselves: whoever may make jobs can then
    /// have such a service asked. For tests, and for stores of a network of its own.
    pub allow_insecure: bool,
}

/// How the path of a chunk is chosen.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// Paths whose data came back soon and unmarked are used again (REPS).
    #[default]
    Reps,
    /// The better of two drawn at random, by round-trip time.
    TwoChoices,
    /// The one with the lowest round-trip time.
    BestRtt,
    /// One path until another is clearly better (Hopper).
    Hopper,
    /// Any, at random.
    Oblivious,
    /// In turns.
    RoundRobin,
    /// One path for all.
    Single,
}

/// What bounds the bytes in flight.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CongestionControl {
    /// A window driven by marks (ECN) and queueing delay.
    #[default]
    EcnRtt,
    /// A target for the round trip, paced below one packet in a round trip (Swift).
    Swift,
    /// Credits that the receiver grants at the rate of its link, spec.topology.linkMbps (EQDS).
    Eqds,
}

/// Whether the data path is encrypted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Packets are readable; headers are authenticated, and payload is checked for damage.
    #[default]
    Off,
    /// Every packet is encrypted and authenticated. A link or a group that cannot be is refused.
    Required,
}

/// What carries the packets.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Link {
    /// The faster of Udp and Tcp between two nodes, measured when a job connects them, or the one that passes. The job's
    /// status says which and why.
    #[default]
    Auto,
    /// Kernel UDP. It never gives way: where it does not pass, jobs say so.
    Udp,
    /// Kernel TCP, for networks that block UDP or slow it down. It never gives way either. A path is a connection, 8 at most; the kernel controls
    /// congestion. Virtual devices use UDP all the same.
    Tcp,
}

/// A range of UDP ports.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(validation = Rule::new("self.first + self.count <= 65536")
    .message("ports: the range ends beyond port 65535; choose a smaller ports.first"))]
pub struct Ports {
    /// The first.
    #[schemars(range(min = 1024, max = 65535))]
    #[serde(default = "first_port")]
    pub first: u16,
    /// How many, from the first on.
    #[schemars(range(min = 1, max = 16))]
    #[serde(default = "port_count")]
    pub count: u16,
}

fn first_port() -> u16 {
    7500
}

fn port_count() -> u16 {
    16
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            first: first_port(),
            count: port_count(),
        }
    }
}

/// Virtual RDMA devices of each node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.firstPort + 16 * self.open <= 65536")
    .message("devices: 16 ports for each open device end beyond port 65535; choose a smaller devices.firstPort or devices.open"))]
pub struct Devices {
    /// How many the pods of a node can have.
    #[schemars(range(min = 1, max = 65536))]
    #[serde(default = "devices_per_node")]
    pub per_node: u32,
    /// How many programs may use at a time: each has ports.count UDP ports, from firstPort on.
    #[schemars(range(min = 1, max = 4032))]
    #[serde(default = "open_devices")]
    pub open: u16,
    /// The first UDP port of devices; a firewall must let them through between the nodes.
    #[schemars(range(min = 1024, max = 65535))]
    #[serde(default = "first_device_port")]
    pub first_port: u16,
    /// Most that a device sends, Mbit/s; no limit when absent. The devices of a node share its link by their weights, share.
    #[schemars(range(min = 1, max = 10_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mbps: Option<u32>,
    /// Most work requests that a device begins per second; no limit when absent.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_second: Option<u32>,
    /// The part of the node's link that each device has, beside others that want more than theirs: a weight. A DeviceClass can say
    /// another one for its devices.
    #[schemars(range(min = 1, max = 10_000))]
    #[serde(default = "device_share")]
    pub share: u32,
    /// Whether pods of different namespaces may reach each other.
    #[serde(default)]
    pub cross_namespace: bool,
    /// The namespaces whose pods may have devices; all when empty. A pod of another namespace that asks for one does not start,
    /// and its events say why.
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(validation = Rule::new("self.all(name, name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .message("devices.namespaces must be names of namespaces: lower case letters, digits and -, for example team-a; leave it out for all namespaces"))]
    pub namespaces: Vec<String>,
}

fn devices_per_node() -> u32 {
    256
}

fn device_share() -> u32 {
    100
}

fn open_devices() -> u16 {
    256
}

/// Between what jobs use and the ephemeral ports, which begin at 32768.
fn first_device_port() -> u16 {
    16_000
}

/// What the operator says of a fabric.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct FabricStatus {
    /// The generation of the spec that this is about.
    pub observed_generation: i64,
    /// Ready: every selected node's agent reports; Unknown while a new operator has not heard them, and after an
    /// uninstallation. Conflicting: another fabric has some of the nodes. AgentsApplied: the agents' DaemonSet is as
    /// the chart's values and the spec say; when False, the message says who refuses it.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// How many nodes.
    pub nodes: NodeCount,
    /// The epoch of the leader that wrote this. An operator of an earlier one that sees it writes nothing
    /// until it knows that it still leads.
    #[serde(skip_serializing_if = "crate::unsaid")]
    pub leader_epoch: i64,
}

/// Nodes of a fabric.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCount {
    /// Selected, and of no older fabric.
    pub selected: u32,
    /// Their agent reports that it can work.
    pub ready: u32,
}
