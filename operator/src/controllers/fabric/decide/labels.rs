//! The labels of the cluster's nodes: the fabric that a node belongs to, and the models that it has.
//!
//! A model is a verified copy. Agents keep the record of copies and report them; the labels follow from
//! the reports, so one that a write has missed is written in a later round.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::json;
use weft_proto::operator::v1::NodeReport;

use crate::controllers::{
    cache::Key,
    cluster_node::ClusterNode,
    fabric::{agents::FABRIC_LABEL, view::View},
    kinds::Cache,
    request::{Change, Priority, Request},
};

/// Of the keys of the labels that name models.
const MODEL_LABEL: &str = "weft.dev/model.";
/// Of a label's name, `model.` included (Kubernetes, "Labels and Selectors").
const NAME_BYTES_MAX: usize = 63;
/// Digits of the digest that the label's value shows.
const DIGEST_DIGITS: usize = 12;

/// The label by which a job's model is known, with its value: `weft.dev/model.NAMESPACE.NAME` and the
/// beginning of the digest. Where the name is too long for a label, it is cut and ends with its hash.
pub(crate) fn model_label(namespace: &str, name: &str, digest: &str) -> (String, String) {
    let mut name = format!("{namespace}.{name}");
    let room = NAME_BYTES_MAX - "model.".len();
    if name.len() > room {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let kept = &name[..name.floor_char_boundary(room - 9)];
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

/// The labels of the models that a node reports, with their values.
fn models(report: &NodeReport, cache: &Cache) -> BTreeMap<String, String> {
    let mut models = BTreeMap::new();
    for copy in &report.copies {
        let jobs = copy.jobs.iter().filter(|job| {
            let parts = [&job.namespace, &job.name, &copy.digest];
            parts.into_iter().all(|part| is_label_part(part))
        });
        for job in jobs {
            let key = Key {
                namespace: job.namespace.clone(),
                name: job.name.clone(),
            };
            // Of several copies under one name the one of the job that has the name now counts.
            let has_the_name = cache.jobs.get(&key).is_some_and(|there| {
                there.uid().as_deref() == Some(weft_transfer::job_uid(&job.uid))
            });
            let (label, value) = model_label(&job.namespace, &job.name, &copy.digest);
            if has_the_name || !models.contains_key(&label) {
                models.insert(label, value);
            }
        }
    }
    models
}

/// Whether a node has the label of its fabric, and none where it is of no fabric.
pub(crate) fn has_fabric_label(view: &View<'_>, node: &ClusterNode) -> bool {
    let said = node.labels().get(FABRIC_LABEL).map(String::as_str);
    said == view.membership.fabric(&node.name_any())
}

/// What is to change of a node's labels; `None` removes one.
fn changes(view: &View<'_>, node: &ClusterNode) -> BTreeMap<String, Option<String>> {
    let name = node.name_any();
    let fabric = view.membership.fabric(&name);
    let state = view.reports.get(&name);
    // What an agent said that has fallen silent may be of another machine with the node's name.
    let state = state.filter(|state| Some(&*state.fabric) == fabric && !state.is_silent(view.at));
    let wanted = state.map(|state| models(&state.report, view.cache));
    let wanted = wanted.unwrap_or_default();
    let mut changes = BTreeMap::new();
    // What an agent has not listed yet may be there.
    if fabric.is_none() || state.is_some_and(|state| state.report.copies_listed) {
        let labels = node.labels().keys();
        let gone = labels.filter(|key| key.starts_with(MODEL_LABEL) && !wanted.contains_key(*key));
        changes.extend(gone.map(|key| (key.clone(), None)));
    }
    for (key, value) in wanted {
        if node.labels().get(&key) != Some(&value) {
            changes.insert(key, Some(value));
        }
    }
    if !has_fabric_label(view, node) {
        changes.insert(FABRIC_LABEL.to_owned(), fabric.map(str::to_owned));
    }
    changes
}

/// One request for each node whose labels are to change.
pub(crate) fn requests(view: &View<'_>) -> Vec<Request> {
    let mut requests = Vec::new();
    for (_, node) in view.cache.nodes.iter() {
        let changes = changes(view, node);
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
    requests
}
