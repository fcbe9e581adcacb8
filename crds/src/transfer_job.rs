//! `TransferJob`: files of one node that shall be on others.
#![expect(
    unreachable_pub,
    reason = "the schema's derive copies a type within a private scope"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "each printer column has its own"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RootScope;

/// Destinations that a status lists at most; the counts are of all.
pub const DESTINATIONS_SHOWN: usize = 64;

/// Moves a file or directory from one node of a fabric, or objects of a store, to others, and says
/// Complete only when every byte of every copy has been checked.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "TransferJob",
    plural = "transferjobs",
    shortname = "tj",
    category = "weft",
    namespaced,
    status = "TransferJobStatus",
    derive = "PartialEq",
    doc = "Moves a file or directory from one node of a fabric, or objects of a store, to others, and says Complete only when every byte of every copy has been checked.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Rate", type_ = "string", json_path = ".status.rate"),
    printcolumn(name = "ETA", type_ = "string", json_path = ".status.eta"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(name = "Link", type_ = "string", json_path = ".status.link.name"),
    printcolumn(
        name = "Fabric",
        type_ = "string",
        json_path = ".status.fabric",
        priority = 1
    ),
    printcolumn(
        name = "Reader",
        type_ = "string",
        json_path = ".status.reader",
        priority = 1
    ),
    printcolumn(
        name = "Digest",
        type_ = "string",
        json_path = ".status.manifest.digest",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.source == oldSelf.source")
    .message("spec.source is immutable: delete the job and make another"))]
#[x_kube(validation = Rule::new("self.destinations == oldSelf.destinations")
    .message("spec.destinations is immutable: delete the job and make another"))]
#[x_kube(validation = Rule::new("self.strategy == oldSelf.strategy && self.verification == oldSelf.verification && self.overwrite == oldSelf.overwrite")
    .message("spec.strategy, spec.verification and spec.overwrite are immutable: delete the job and make another"))]
#[x_kube(validation = Rule::new("!has(self.verification) || !has(self.verification.expect) || self.verification.expect.size() == (has(self.verification.algorithm) && self.verification.algorithm == 'Xxh3' ? 32 : 64)")
    .message("spec.verification.expect has 64 digits for Blake3 and 32 for Xxh3, as verification.algorithm says"))]
pub struct TransferJobSpec {
    /// Where it is.
    pub source: Source,
    /// Where it shall be.
    pub destinations: Destinations,
    /// Who sends to whom.
    #[serde(default)]
    #[schemars(transform = crate::values::explain)]
    pub strategy: Strategy,
    /// How a copy is known to be the same.
    #[serde(default)]
    pub verification: Verification,
    /// What happens to a file that is there already.
    #[serde(default)]
    #[schemars(transform = crate::values::explain)]
    pub overwrite: Overwrite,
    /// Seconds after its start at which the job fails unless it is complete; no limit when absent. The
    /// start is when its source is first asked, so waiting for that, in the queue of a fabric with a cap
    /// too, does not count; it counts anew after a suspension.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
    /// Attempts in a row that may neither bring a byte to a destination nor end one, Verified or given up. Then those
    /// that are left are given up, and the job is Failed; the others keep their copies. An attempt that an agent refuses for its
    /// configuration does not count while an agent of the job is ConfigurationPending.
    #[schemars(range(min = 0, max = 100))]
    #[serde(default = "backoff_limit")]
    pub backoff_limit: u32,
    /// What becomes of the verified copies when the job is deleted.
    #[serde(default)]
    #[schemars(transform = crate::values::explain)]
    pub deletion_policy: DeletionPolicy,
    /// Seconds after its end at which the job is deleted; what becomes of the files says
    /// deletionPolicy. Never when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Stops the job where it is; false lets it go on from there.
    #[serde(default)]
    pub suspend: bool,
}

fn backoff_limit() -> u32 {
    6
}

/// Where the bytes come from: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.file), has(self.object)].exists_one(x, x)")
    .message("spec.source: give exactly one of: file, object"))]
pub struct Source {
    /// A file or directory of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileSource>,
    /// An object of a store, or all whose names begin with a prefix. One of the destinations reads it
    /// and passes it on; the others never ask the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectSource>,
}

/// An object of a store.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.url.endsWith('/') || !has(self.expect) || !has(self.expect.etag)")
    .message("spec.source.object.expect.etag is that of one object, and the url names all below a prefix: leave it out"))]
pub struct ObjectSource {
    /// s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or https://HOST/PATH. One that ends with a
    /// slash is a directory of all objects below it, which a web server cannot list. http only where
    /// the fabric has objects.allowInsecure.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^(s3|gs|az|https?)://[^/?#@]+(/[^?#]*)?$')")
        .message("url must be s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or https://HOST/PATH, without a user name, '?' and '#': credentials are given by secretRef"))]
    #[x_kube(validation = Rule::new("!self.matches('^https?://') || self.matches('^https?://[^/]+/.*[^/]$')")
        .message("url of a web server must name a file, for example https://example.org/model.bin: it has no list of its files"))]
    pub url: String,
    /// A Secret of the job's namespace with what the store asks for; the operator needs the right to
    /// read it. Without one nothing is signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// What is known of the object; a difference is refused before anything is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<ObjectExpect>,
}

/// A Secret of the job's namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// What an object must be.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ObjectExpect {
    /// Its entity tag, as the store says it.
    #[schemars(length(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Bytes, of a prefix: of all its objects.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
}

/// A file or directory of a node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FileSource {
    /// The node's name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub node: String,
    /// A root of the fabric, by its name.
    #[schemars(length(min = 1, max = 63))]
    pub root: String,
    /// What the author takes that root for: the job waits while the root's own scope is another.
    /// Shared may be said only by who has the verb use on rdmafabrics in this namespace.
    #[serde(default)]
    #[schemars(transform = crate::values::explain)]
    pub scope: RootScope,
    /// In the root; in a PerNamespace root: in this namespace's directory. Empty: all of it.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("!self.startsWith('/') && !('/' + self + '/').contains('/../') && !('/' + self + '/').contains('/./') && !self.contains('//')")
        .message("path must be relative to the root, without '..', '.' and '//', for example minilm/"))]
    pub path: String,
    /// What is done with symbolic links.
    #[schemars(transform = crate::values::explain)]
    #[serde(default)]
    pub symlinks: Symlinks,
}

/// What is done with the symbolic links of a source.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// A link within the source stays a link, and another is copied as the file that it leads to; one that leads to a
    /// directory outside of the source, to nothing, or out of the root or this namespace's directory is refused by
    /// its name.
    #[default]
    Follow,
    /// The job fails and names the first link.
    Refuse,
}

/// Where copies shall be: on selected or on listed nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeSelector) != has(self.nodes)")
    .message("spec.destinations: give either nodeSelector or nodes"))]
pub struct Destinations {
    /// Nodes of the source's fabric by their labels. A node that comes to match while the job runs gets
    /// a copy, too, and one that ceases to match is not waited for; once the job is Complete it stays so, and nodes
    /// that match later get none: make another job, which sends only what is missing. The source itself needs no copy unless root or
    /// path differ; then it makes one for itself.
    #[schemars(schema_with = "crate::bounds::optional_selector")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Nodes by their names; for more of them give them a label, and use nodeSelector.
    #[schemars(
        length(min = 1, max = 256),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
        )
    )]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// A root of the fabric, by its name; must be ReadWrite.
    #[schemars(length(min = 1, max = 63))]
    pub root: String,
    /// What the author takes that root for: the job waits while the root's own scope is another.
    /// Shared may be said only by who has the verb use on rdmafabrics in this namespace.
    #[serde(default)]
    #[schemars(transform = crate::values::explain)]
    pub scope: RootScope,
    /// What the copy is to be called in the root; in a PerNamespace root: in this namespace's
    /// directory.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.startsWith('/') && !('/' + self + '/').contains('/../') && !('/' + self + '/').contains('/./') && !self.contains('//')")
        .message("path must be relative to the root, without '..', '.' and '//', for example minilm/"))]
    pub path: String,
}

/// Who sends to whom.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The fastest by the plan's estimate.
    #[default]
    Auto,
    /// The source to everyone.
    Direct,
    /// Each to the next.
    Chain,
    /// Whoever has it, to those who have not.
    Binomial,
}

/// How a copy is known to be the same.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Verification {
    /// What blocks and files are hashed with.
    #[schemars(transform = crate::values::explain)]
    pub algorithm: Algorithm,
    /// The digest that the source must have, lower-case hexadecimal. Of a file: as b3sum prints it. Of a
    /// directory: of the lines that b3sum prints for its files, sorted by path.
    #[schemars(length(max = 64), regex(pattern = r"^([0-9a-f]{64}|[0-9a-f]{32})$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
}

/// What blocks and files are hashed with.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Finds accidents and attackers.
    #[default]
    Blake3,
    /// XXH3-128: faster; finds accidents.
    Xxh3,
}

/// What happens to a file that is there already.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// Kept when its content is right, else replaced in one step.
    #[default]
    IfDifferent,
    /// Kept when its content is right, else it fails the transfer.
    Never,
    /// Written anew.
    Always,
}

/// What becomes of the verified copies when the job is deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Retain,
    /// The job is taken out of each copy's record, and the files that the record names are removed, unless
    /// another job is recorded for the copy or some of it has changed. A node that does not answer then keeps
    /// its copy.
    Delete,
}

/// How far a job is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// Not looked at yet.
    #[default]
    Pending,
    /// For a node, a fabric or a turn; the message says for what.
    Waiting,
    /// The source is asked what there is.
    Planning,
    /// Destinations reserve space and look at what they have.
    Preparing,
    /// The nodes compare what they have, and send what is missing.
    Transferring,
    /// Stopped on request.
    Suspended,
    /// Every copy is verified.
    Complete,
    /// Given up; the message says why.
    Failed,
}

impl Phase {
    /// Agents may be at work for the job.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Planning | Self::Preparing | Self::Transferring)
    }

    /// Nothing will change any more.
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Complete | Phase::Failed)
    }
}

/// What the operator says of a job.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TransferJobStatus {
    /// The generation of the spec that this is about.
    pub observed_generation: i64,
    /// How far it is.
    #[schemars(transform = crate::values::explain)]
    pub phase: Phase,
    /// Complete, Failed, Labelled (nodes can have status.nodeLabel), Planned, Queued (it waits for other jobs), Suspended.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The fabric that it runs on, once that is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fabric: String,
    /// For people: what is waited for, or why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the job began, or went on after a suspension: its source is first asked then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it became Complete or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The attempt under way, from 1.
    pub attempt: u32,
    /// Destinations by their state.
    pub counts: Counts,
    /// Bytes verified at the destinations, of `bytesTotal`.
    pub bytes: i64,
    /// Bytes of the manifest times destinations.
    pub bytes_total: i64,
    /// Bytes per second that come over the network, over all destinations.
    pub bytes_per_second: i64,
    /// Seconds to the end at that rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<i64>,
    /// `bytes` of `bytesTotal`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// `bytesPerSecond`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rate: String,
    /// `etaSeconds`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub eta: String,
    /// What the source holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestSummary>,
    /// Of an object: the destination that reads it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reader: String,
    /// Who sends to whom, and what it should take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSummary>,
    /// What carries the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkInUse>,
    /// The label of the nodes that hold a verified copy, for a pod's nodeAffinity; it goes when the
    /// node's agent finds the files changed or gone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_label: String,
    /// Failed ones first, then the slowest; 64 at most.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    #[schemars(length(max = 64))]
    pub destinations: Vec<DestinationStatus>,
    /// There are more destinations than are listed.
    pub destinations_truncated: bool,
    /// The epoch of the leader that wrote this. An operator of an earlier one that sees it writes nothing
    /// until it knows that it still leads.
    #[serde(skip_serializing_if = "crate::unsaid")]
    pub leader_epoch: i64,
}

/// Destinations by their state.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// All.
    pub total: u32,
    /// Have a verified copy.
    pub verified: u32,
    /// Given up.
    pub failed: u32,
}

/// What the source holds.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ManifestSummary {
    /// Regular files.
    pub files: u32,
    /// Bytes of all of them.
    pub bytes: i64,
    /// Of all of it; set once the source has read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What copies do not have of the source's files: Owner (copies are the agent's), SpecialModeBits (set-uid, set-gid, sticky),
    /// ExtendedAttributes (also ACLs), HardLinks (copies are files of their own).
    #[schemars(length(max = 8), inner(length(max = 32)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_kept: Vec<String>,
}

/// Who sends to whom, and what it should take.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlanSummary {
    /// Who sends to whom, as planned: never Auto.
    #[schemars(transform = crate::values::explain)]
    pub strategy: Strategy,
    /// Seconds by the plan's estimate.
    pub estimate_seconds: f64,
    /// The link that decides how long it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<String>,
}

/// What carries the packets.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LinkInUse {
    /// For example udp; "tcp, udp" where nodes receive over different ones.
    pub name: String,
    /// Why that one.
    pub reason: String,
}

/// How far a destination is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DestinationState {
    /// No byte has come in the present attempt: its agent makes room and looks at what is there already. With a reason:
    /// the next attempt is waited for.
    #[default]
    Pending,
    /// Bytes arrive.
    Transferring,
    /// All bytes are there and are compared, synced and renamed.
    Verifying,
    /// The copy is under its final name and the same.
    Verified,
    /// Given up.
    Failed,
}

/// A destination of a job.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DestinationStatus {
    /// The node.
    pub node: String,
    /// How far it is.
    #[schemars(transform = crate::values::explain)]
    pub state: DestinationState,
    /// Why it failed or waits: stable, UpperCamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for people: names the node, the file or path, and the remedy. Where it is Verified: that the
    /// copy was there already, or that the files of a directory were replaced one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Bytes verified there.
    #[serde(default)]
    pub bytes: i64,
    /// Of the copy, once it is verified.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}
