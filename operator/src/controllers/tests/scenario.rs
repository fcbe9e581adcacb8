//! Objects for tests, and an API server of them that does as it is asked.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Namespace, NodeAddress},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, Time},
    jiff::Timestamp,
};
use kube::{
    ResourceExt as _,
    core::{ObjectMeta, PartialObjectMeta},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use weft_crds::{
    Destinations, FabricNode, FabricNodeSpec, FabricNodeStatus, FileSource, ObjectSource,
    RdmaFabric, RdmaFabricSpec, Root, RootAccess, RootScope, SecretReference, Source, TransferJob,
    TransferJobSpec,
};
use weft_proto::operator::v1::{Copy, CopyJob, NodeReport, Ports};
use weft_transfer::{Failure, ReadSecret};

use crate::controllers::{
    cache::Key,
    cluster_node::{ClusterNode, NodeAddresses},
    condition::{self, ConditionUpdate},
    fabric::configuration::pod_configuration,
    kinds::Cache,
    request::{Change, Request},
    tests::api_server::merge,
};

/// The first second of every scenario.
pub(crate) fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn meta(name: &str, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        generation: Some(1),
        resource_version: Some("1".to_owned()),
        ..ObjectMeta::default()
    }
}

/// The nodes with this label.
pub(crate) fn labelled(key: &str) -> LabelSelector {
    let labels = BTreeMap::from([(key.to_owned(), "true".to_owned())]);
    LabelSelector {
        match_labels: Some(labels),
        match_expressions: None,
    }
}

fn root(name: &str, access: RootAccess, scope: RootScope) -> Root {
    Root {
        name: name.to_owned(),
        host_path: format!("/var/lib/weft/{name}"),
        access,
        scope,
        namespaces: None,
        min_free: "10%".to_owned(),
        bytes_per_namespace: None,
    }
}

/// A fabric of the nodes with label gpu, so many seconds old at the [`start`] less 1000.
pub(crate) fn fabric(name: &str, second: i64) -> RdmaFabric {
    let spec = RdmaFabricSpec {
        node_selector: labelled("gpu"),
        roots: vec![
            root("models", RootAccess::ReadWrite, RootScope::PerNamespace),
            root("library", RootAccess::ReadOnly, RootScope::Shared),
        ],
        nics: Default::default(),
        topology: Default::default(),
        transport: Default::default(),
        objects: Default::default(),
        ports: Default::default(),
        devices: None,
    };
    let mut fabric = RdmaFabric::new(name, spec);
    fabric.metadata = meta(name, &format!("fabric-{name}"));
    let made = Timestamp::from_second(start().as_second() - 1000 + second).unwrap();
    fabric.metadata.creation_timestamp = Some(Time(made));
    fabric
}

/// A node of the cluster.
pub(crate) fn node(name: &str, labels: &[&str]) -> ClusterNode {
    let mut metadata = meta(name, &format!("node-{name}"));
    let labels = labels
        .iter()
        .map(|label| ((*label).to_owned(), "true".to_owned()));
    metadata.labels = Some(labels.collect());
    ClusterNode {
        metadata,
        status: NodeAddresses {
            addresses: vec![NodeAddress {
                type_: "InternalIP".to_owned(),
                address: address(name),
            }],
        },
    }
}

/// The address of a node by the number in its name.
pub(crate) fn address(name: &str) -> String {
    let number: u16 = name
        .trim_start_matches(char::is_alphabetic)
        .parse()
        .unwrap_or(0);
    let [high, low] = number.to_be_bytes();
    format!("10.0.{high}.{low}")
}

/// A namespace.
pub(crate) fn namespace(name: &str, labels: &[&str]) -> PartialObjectMeta<Namespace> {
    let mut metadata = meta(name, &format!("namespace-{name}"));
    let labels = labels.iter();
    metadata.labels = Some(
        labels
            .map(|label| ((*label).to_owned(), "true".to_owned()))
            .collect(),
    );
    PartialObjectMeta {
        metadata,
        ..PartialObjectMeta::default()
    }
}

/// A node whose agent is ready.
pub(crate) fn ready(name: &str, fabric: &str) -> FabricNode {
    let mut node = FabricNode::new(
        name,
        FabricNodeSpec {
            fabric: fabric.to_owned(),
        },
    );
    node.metadata = meta(name, &format!("fabric-node-{name}"));
    let mut status = FabricNodeStatus {
        control_address: format!("{}:7400", address(name)),
        mtu: 1500,
        link_mbps: 1000,
        ..FabricNodeStatus::default()
    };
    let text = "the agent reports and can work";
    let update = ConditionUpdate::new("Ready", true, "AgentReady", text);
    condition::set(&mut status.conditions, update, 1, start());
    node.status = Some(status);
    node
}

/// The same, not ready.
pub(crate) fn asleep(name: &str, fabric: &str) -> FabricNode {
    let mut node = ready(name, fabric);
    node.status.as_mut().unwrap().conditions[0].status = "False".into();
    node
}

/// What a node's agent reports.
pub(crate) fn report(name: &str, fabric: &str) -> NodeReport {
    NodeReport {
        control_address: format!("{}:7400", address(name)),
        data_address: "10.0.0.1".into(),
        interface: "eth0".into(),
        nics: Vec::new(),
        mtu: 1500,
        link_mbps: 1000,
        numa_node: Some(1),
        pcie_root: "pci0000:17".into(),
        ports: Some(Ports {
            first: 7500,
            count: 16,
        }),
        version: "0.1.0".into(),
        certificate_expires_unix_s: 1_800_086_400,
        ready: true,
        findings: Vec::new(),
        configuration: pod_configuration(&self::fabric(fabric, 1)),
        copies: Vec::new(),
        copies_listed: true,
        unlisted_namespaces: Vec::new(),
        devices: None,
        volumes_in_use: 0,
        refused_attempts: Vec::new(),
    }
}

/// minilm/ from n1 to all nodes with label gpu, asked for by team-a.
pub(crate) fn job(name: &str) -> TransferJob {
    let spec = TransferJobSpec {
        source: Source {
            file: Some(FileSource {
                node: "n1".into(),
                root: "models".into(),
                scope: RootScope::PerNamespace,
                path: "minilm/".into(),
                symlinks: Default::default(),
            }),
            object: None,
        },
        destinations: Destinations {
            node_selector: Some(labelled("gpu")),
            nodes: None,
            root: "models".into(),
            scope: RootScope::PerNamespace,
            path: "minilm/".into(),
        },
        strategy: Default::default(),
        verification: Default::default(),
        overwrite: Default::default(),
        deadline_seconds: None,
        backoff_limit: 6,
        deletion_policy: Default::default(),
        ttl_seconds_after_finished: None,
        suspend: false,
    };
    let mut job = TransferJob::new(name, spec);
    job.metadata = meta(name, &format!("job-{name}"));
    job.metadata.namespace = Some("team-a".into());
    job
}

/// Objects of a store, read with a Secret.
pub(crate) fn object(url: &str) -> Source {
    let secret_ref = SecretReference {
        name: "store".into(),
    };
    Source {
        file: None,
        object: Some(ObjectSource {
            url: url.into(),
            secret_ref: Some(secret_ref),
            expect: None,
        }),
    }
}

/// One fabric whose nodes n1, n2, … are ready, and a job.
pub(crate) fn cache(nodes: usize) -> Cache {
    let name = |i: usize| format!("n{i}");
    Cache {
        fabrics: [fabric("default", 1)].into_iter().collect(),
        fabric_nodes: (1..=nodes).map(|i| ready(&name(i), "default")).collect(),
        jobs: [job("minilm")].into_iter().collect(),
        nodes: (1..=nodes).map(|i| node(&name(i), &["gpu"])).collect(),
        namespaces: [namespace("team-a", &["models"])].into_iter().collect(),
        daemon_sets: std::iter::empty().collect(),
        resource_slices: std::iter::empty().collect(),
        ticket_key: "0a".repeat(32),
        secrets: BTreeMap::new(),
        label_problems: BTreeMap::new(),
        shortcuts: std::iter::empty().collect(),
        secret_reader: Some(Arc::new(NoSecrets)),
    }
}

/// No scenario reads a Secret.
struct NoSecrets;

impl ReadSecret for NoSecrets {
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Failure>> {
        unreachable!("Secret {namespace}/{name} is read");
    }
}

/// The scenario's job.
pub(crate) fn minilm() -> Key {
    Key {
        namespace: "team-a".into(),
        name: "minilm".into(),
    }
}

fn newer(metadata: &mut ObjectMeta) {
    let version: u64 = metadata.resource_version.as_ref().unwrap().parse().unwrap();
    metadata.resource_version = Some((version + 1).to_string());
}

/// An object after the change that a request asks for.
fn changed<K: Serialize + DeserializeOwned>(object: &K, request: &Request) -> K {
    let mut object = json!(object);
    match &request.change {
        Change::Apply(manifest) => merge(&mut object, manifest),
        Change::ApplyStatus(status) => object["status"] = status.clone(),
        Change::MergeMetadata(metadata) => merge(&mut object["metadata"], metadata),
        Change::Delete => object["metadata"]["deletionTimestamp"] = json!(Time(start())),
    }
    serde_json::from_value(object).unwrap()
}

impl Cache {
    /// Does what the API server does with a request.
    pub(crate) fn obey(&mut self, request: &Request) {
        let (key, name) = (&request.key, &request.key.name);
        let is_delete = request.change == Change::Delete;
        match request.kind() {
            "TransferJob" => {
                self.change_job(key, &request.uid, |job| *job = changed(job, request));
            }
            "RdmaFabric" => {
                let mut fabric = changed(self.fabrics.named(name).unwrap(), request);
                newer(&mut fabric.metadata);
                let is_held = !fabric.finalizers().is_empty();
                match fabric.metadata.deletion_timestamp.is_none() || is_held {
                    true => self.fabrics.update(fabric),
                    false => self.fabrics.forget(key),
                }
            }
            "FabricNode" if is_delete => self.fabric_nodes.forget(key),
            "FabricNode" => {
                let new = FabricNode {
                    status: None,
                    ..ready(name, "")
                };
                let existing = self.fabric_nodes.named(name).unwrap_or(&new);
                let mut node = changed(existing, request);
                newer(&mut node.metadata);
                self.fabric_nodes.update(node);
            }
            "Node" => {
                let mut node = changed(self.nodes.named(name).unwrap(), request);
                newer(&mut node.metadata);
                self.nodes.update(node);
            }
            "DaemonSet" if is_delete => self.daemon_sets.forget(key),
            "DaemonSet" => {
                let mut set: PartialObjectMeta<DaemonSet> =
                    changed(&PartialObjectMeta::default(), request);
                set.metadata.uid = Some(format!("set-{name}"));
                self.daemon_sets.update(set);
            }
            other => panic!("a request for a {other}"),
        }
    }

    /// Somebody edits a job; one that nothing holds back any more is gone.
    pub(crate) fn change_job(
        &mut self,
        key: &Key,
        uid: &str,
        change: impl FnOnce(&mut TransferJob),
    ) {
        let mut job = self.jobs.get(key).unwrap().clone();
        assert_eq!(job.uid().unwrap(), uid);
        change(&mut job);
        newer(&mut job.metadata);
        if job.metadata.deletion_timestamp.is_some() && job.finalizers().is_empty() {
            self.jobs.forget(key);
        } else {
            self.jobs.update(job);
        }
    }
}

/// The label of minilm, a job of [`job`].
pub(crate) const MODEL: &str = "weft.dev/model.team-a.minilm";

/// A copy of minilm, as an agent reports it.
pub(crate) fn copy(digest: &str) -> Copy {
    Copy {
        root: "models".into(),
        path: "team-a/minilm".into(),
        digest: digest.into(),
        bytes: 1000,
        files: 1,
        jobs: vec![CopyJob {
            uid: "job-minilm".into(),
            namespace: "team-a".into(),
            name: "minilm".into(),
            namespace_uid: "namespace-team-a".into(),
        }],
    }
}
