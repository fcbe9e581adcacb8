//! The labels of the cluster's nodes: the fabric that a node belongs to, and the models that it has.
//!
//! A node has a model's label for each verified copy of it. Agents keep the record of copies and report them; the
//! labels follow from the reports, so one that a write has missed is written when the controllers reconcile again.
//! A namespace has so many labels at a node: a tenant with many jobs takes them from nobody else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::json;
use weft_crds::{DestinationState, DestinationStatus, Phase, TransferJobStatus};
use weft_proto::operator::{
    COPIES_FULL,
    v1::{CopyJob, NodeReport},
};

use crate::controllers::{
    cache::Key,
    cluster_node::ClusterNode,
    condition::listed,
    fabric::{agents::FABRIC_LABEL, view::View},
    job::{
        job_side::destination_path,
        obstacle::{Obstacle, temporary},
    },
    kinds::Cache,
    request::{Change, ObjectId, Priority, Request},
};

/// Of the keys of the labels that name models.
const MODEL_LABEL: &str = "weft.dev/model.";
/// Of a label's name, `model.` included (Kubernetes, "Labels and Selectors").
const NAME_BYTES_MAX: usize = 63;
/// Of a namespace and a name that are cut: a dot and eight digits of their hash follow. A shorter namespace is whole in
/// the key of a label.
const CUT_BYTES: usize = NAME_BYTES_MAX - "model.".len() - 9;
/// Digits of the digest that the label's value shows.
const DIGEST_DIGITS: usize = 12;
/// Why a node has not the label of a job: its namespace has its share …
const NAMESPACE_FULL: &str = "NamespaceLabelsFull";
/// … or the API server refuses it. Or the agent reports [`COPIES_FULL`].
const REFUSED: &str = "NodeLabelRefused";

/// The label by which a job's model is known, with its value: `weft.dev/model.NAMESPACE.NAME` and the
/// beginning of the digest. Where the name is too long for a label, it is cut and ends with its hash.
pub(crate) fn model_label(namespace: &str, name: &str, digest: &str) -> (String, String) {
    let mut name = format!("{namespace}.{name}");
    let room = NAME_BYTES_MAX - "model.".len();
    if name.len() > room {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let kept = &name[..name.floor_char_boundary(CUT_BYTES)];
        name = format!("{}.{}", kept.trim_end_matches(['.', '-']), &hash[..8]);
    }
    let value = digest.get(..DIGEST_DIGITS).unwrap_or(digest);
    (format!("{MODEL_LABEL}{name}"), value.to_owned())
}

/// Whether Kubernetes takes it as a part of a label. What an agent reports is checked: one label that is
/// refused would keep the others of the node from being written.
fn is_label_part(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_end(bytes.first()) && is_end(bytes.last()) && bytes.iter().copied().all(is_inner)
}

/// A label that a node is to have for a job.
struct ModelLabel {
    value: String,
    job: Key,
    /// The job is there, and not one before it with its name.
    exists: bool,
}

/// Root, path and digest of a copy.
type CopyId = (String, String, String);

/// The jobs that are Complete, by what their copies are.
#[derive(Default)]
struct CompleteJobs<'a>(BTreeMap<CopyId, Vec<(&'a Key, &'a TransferJobStatus)>>);

impl<'a> CompleteJobs<'a> {
    fn of(cache: &'a Cache) -> Self {
        let mut jobs = Self::default();
        for (key, job) in cache.jobs.iter() {
            let status = job.status.as_ref();
            let Some(status) = status.filter(|status| status.phase == Phase::Complete) else {
                continue;
            };
            let digest = status.manifest.as_ref().and_then(|of| of.digest.clone());
            let (root, path) = destination_path(job);
            let copy = (root, path, digest.unwrap_or_default());
            jobs.0.entry(copy).or_default().push((key, status));
        }
        jobs
    }

    /// All of them, with the digest of their copies.
    fn iter(&self) -> impl Iterator<Item = (&str, &Key, &TransferJobStatus)> {
        let jobs = self.0.iter();
        jobs.flat_map(|((_, _, digest), jobs)| {
            jobs.iter()
                .map(|(key, status)| (digest.as_str(), *key, *status))
        })
    }
}

/// The labels of the models that a node reports.
fn model_labels(
    report: &NodeReport,
    cache: &Cache,
    complete: &CompleteJobs<'_>,
) -> BTreeMap<String, ModelLabel> {
    let mut labels: BTreeMap<String, ModelLabel> = BTreeMap::new();
    for copy in &report.copies {
        let is_namespace_now = |job: &&CopyJob| {
            let namespace = cache.namespaces.named(&job.namespace);
            let uid = namespace.and_then(|namespace| namespace.metadata.uid.as_deref());
            job.namespace_uid.is_empty() || uid == Some(&*job.namespace_uid)
        };
        // A namespace that was made again has no labels of the one before.
        let recorded = copy.jobs.iter().filter(is_namespace_now).map(|job| {
            let key = Key {
                namespace: job.namespace.clone(),
                name: job.name.clone(),
            };
            let exists = cache.jobs.get(&key).is_some_and(|job_now| {
                job_now.uid().as_deref() == Some(weft_transfer::job_uid(&job.uid))
            });
            (key, exists)
        });
        // An agent names the jobs since the files were last written. A Complete job whose copy has the same root,
        // path and digest gets its label again.
        let id = (copy.root.clone(), copy.path.clone(), copy.digest.clone());
        let earlier = complete.0.get(&id).into_iter().flatten();
        let earlier = earlier.map(|(key, _)| ((*key).clone(), true));
        for (job, exists) in recorded.chain(earlier) {
            let parts = [&job.namespace, &job.name, &copy.digest];
            if !parts.into_iter().all(|part| is_label_part(part))
                || cache.namespaces.named(&job.namespace).is_none()
            {
                continue;
            }
            let (key, value) = model_label(&job.namespace, &job.name, &copy.digest);
            // Of several copies under one name the one of the job that has the name now counts.
            if exists || !labels.contains_key(&key) {
                labels.insert(key, ModelLabel { value, job, exists });
            }
        }
    }
    labels
}

/// Takes out what a namespace has beyond its limit: the labels of jobs that are gone first, then those that the node
/// does not have yet.
fn take_surplus(
    labels: &mut BTreeMap<String, ModelLabel>,
    node: &ClusterNode,
    limit: usize,
) -> BTreeMap<String, ModelLabel> {
    let mut ranks: Vec<_> = labels
        .iter()
        .map(|(key, label)| {
            let is_new = !node.labels().contains_key(key);
            let namespace = label.job.namespace.clone();
            (namespace, !label.exists, is_new, key.clone())
        })
        .collect();
    ranks.sort();
    let of_namespace = ranks.chunk_by(|one, other| one.0 == other.0);
    let surplus = of_namespace.flat_map(|ranks| ranks.iter().skip(limit));
    surplus
        .filter_map(|(.., key)| labels.remove_entry(key))
        .collect()
}

/// Whether a node has the label of its fabric, and none where it is of no fabric.
pub(crate) fn has_fabric_label(view: &View<'_>, node: &ClusterNode) -> bool {
    let said = node.labels().get(FABRIC_LABEL).map(String::as_str);
    said == view.membership.fabric(&node.name_any())
}

/// The namespace that the key of a model's label names. A long one may be cut in the key.
fn namespace_in(key: &str) -> &str {
    let name = key.strip_prefix(MODEL_LABEL).unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

/// Whether that namespace is gone.
fn is_of_no_namespace(key: &str, cache: &Cache) -> bool {
    let mut names = cache.namespaces.iter().map(|(key, _)| &key.name);
    !names.any(|name| name.starts_with(namespace_in(key)))
}

/// Whether an agent has listed all copies of the namespace that the key of a model's label names: a copy that is not
/// listed is not there.
fn is_listed(report: &NodeReport, key: &str) -> bool {
    let namespace = namespace_in(key);
    let is_meant = |name: &String| {
        name == namespace || namespace.len() >= CUT_BYTES && name.starts_with(namespace)
    };
    let unlisted = &report.unlisted_namespaces;
    report.copies_listed || !unlisted.is_empty() && !unlisted.iter().any(is_meant)
}

/// The labels of the models of all nodes.
struct Labels<'a> {
    view: &'a View<'a>,
    complete: CompleteJobs<'a>,
    /// The nodes that cannot have the label of a job, by the job and the reason.
    missing: BTreeMap<Key, (&'static str, BTreeSet<String>)>,
}

impl Labels<'_> {
    /// What is to change of a node's labels; `None` removes one.
    fn changes(&mut self, node: &ClusterNode) -> BTreeMap<String, Option<String>> {
        let name = node.name_any();
        let fabric = self.view.membership.fabric(&name);
        let state = self.view.reports.get(&name);
        // What an agent said that has fallen silent may be of another machine with the node's name.
        let state = state.filter(|state| {
            Some(&*state.fabric) == fabric && !state.is_silent(self.view.now_instant)
        });
        let mut wanted = state.map_or_else(BTreeMap::new, |state| {
            model_labels(&state.report, self.view.cache, &self.complete)
        });
        let surplus = take_surplus(&mut wanted, node, self.view.labels_per_namespace);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for key in wanted.keys() {
            *counts.entry(namespace_in(key)).or_default() += 1;
        }
        let mut changes = BTreeMap::new();
        for key in node.labels().keys() {
            if !key.starts_with(MODEL_LABEL) || wanted.contains_key(key) {
                continue;
            }
            let count = counts.entry(namespace_in(key)).or_default();
            // What an agent has not listed yet may be there.
            if fabric.is_none()
                || state.is_some_and(|state| is_listed(&state.report, key))
                || surplus.contains_key(key)
                || is_of_no_namespace(key, self.view.cache)
                || *count >= self.view.labels_per_namespace
            {
                changes.insert(key.clone(), None);
            } else {
                *count += 1;
            }
        }
        self.note_missing(node, state.map(|state| &state.report), &wanted, &surplus);
        for (key, label) in wanted {
            if node.labels().get(&key) != Some(&label.value) {
                changes.insert(key, Some(label.value));
            }
        }
        if !has_fabric_label(self.view, node) {
            changes.insert(FABRIC_LABEL.to_owned(), fabric.map(str::to_owned));
        }
        changes
    }

    fn note_missing(
        &mut self,
        node: &ClusterNode,
        report: Option<&NodeReport>,
        wanted: &BTreeMap<String, ModelLabel>,
        surplus: &BTreeMap<String, ModelLabel>,
    ) {
        let name = node.name_any();
        let mut note = |reason, job: &Key| {
            let entry = self.missing.entry(job.clone());
            let (_, nodes) = entry.or_insert((reason, BTreeSet::new()));
            nodes.insert(name.clone());
        };
        for label in surplus.values().filter(|label| label.exists) {
            note(NAMESPACE_FULL, &label.job);
        }
        let is_refused = self.view.refused.contains_key(&node_id(&name));
        for (key, label) in wanted {
            if is_refused && label.exists && node.labels().get(key) != Some(&label.value) {
                note(REFUSED, &label.job);
            }
        }
        let mut findings = report.into_iter().flat_map(|report| &report.findings);
        if findings.any(|finding| finding.reason == COPIES_FULL) {
            for (digest, job, status) in self.complete.iter() {
                let (key, value) = model_label(&job.namespace, &job.name, digest);
                let is_here = |destination: &DestinationStatus| {
                    destination.node == name && destination.state == DestinationState::Verified
                };
                if node.labels().get(&key) != Some(&value)
                    && !wanted.contains_key(&key)
                    && !surplus.contains_key(&key)
                    && status.destinations.iter().any(is_here)
                {
                    note(COPIES_FULL, job);
                }
            }
        }
    }

    fn label_problems(self) -> BTreeMap<Key, Obstacle> {
        let explain = |(job, (reason, nodes)): (Key, (&str, BTreeSet<String>))| {
            let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let cause = match reason {
                NAMESPACE_FULL => format!(
                    "namespace {} has {} labels of models there, as many as a namespace may have at a node \
                     (the chart's operator.labelsPerNamespace): delete jobs that nobody needs any more",
                    job.namespace, self.view.labels_per_namespace
                ),
                REFUSED => {
                    let error = nodes.first().and_then(|node| self.view.refused.get(&node_id(node)));
                    format!(
                        "the API server refuses to change the node's labels: {}",
                        error.map_or("", String::as_str)
                    )
                }
                _ => "more copies are there than the node's agent can list: delete jobs with deletionPolicy Delete, \
                      or copies"
                    .to_owned(),
            };
            let message = format!(
                "pods that select status.nodeLabel do not find {}: {cause}; the label then comes by itself",
                listed(&names)
            );
            (job, temporary(reason, message))
        };
        let missing = self.missing.into_iter();
        missing.map(explain).collect()
    }
}

fn node_id(name: &str) -> ObjectId {
    ObjectId::of::<Node>(Key::cluster_scoped(name))
}

/// One request for each node whose labels are to change, and why nodes cannot have the label of a job.
pub(crate) fn decide(view: &View<'_>) -> (Vec<Request>, BTreeMap<Key, Obstacle>) {
    let has_copies = view
        .reports
        .values()
        .any(|state| !state.report.copies.is_empty());
    let mut labels = Labels {
        view,
        complete: match has_copies {
            true => CompleteJobs::of(view.cache),
            false => CompleteJobs::default(),
        },
        missing: BTreeMap::new(),
    };
    let mut requests = Vec::new();
    for (_, node) in view.cache.nodes.iter() {
        let changes = labels.changes(node);
        if changes.is_empty() {
            continue;
        }
        let priority = match changes.contains_key(FABRIC_LABEL) {
            true => Priority::Normal,
            false => Priority::Low,
        };
        let metadata = json!({ "labels": changes });
        requests.push(Request {
            uid: node.uid().unwrap_or_default(),
            priority,
            ..Request::new::<Node>(Key::of(&node.metadata), Change::MergeMetadata(metadata))
        });
    }
    (requests, labels.label_problems())
}
