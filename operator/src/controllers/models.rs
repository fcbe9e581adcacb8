//! Which nodes hold which verified models: a label for people and schedulers, and beside it an
//! annotation of what the node's agent is to look after.
//!
//! Both are on the cluster's node and written as one, so they outlive this process, and end with the
//! node. A model is called by its job, namespace included: nobody can give another's name away.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, core::PartialObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weft_crds::{Finding, TransferJob};
use weft_proto::operator::v1::{Model, ModelState};

use crate::controllers::{
    cache::{Key, uid},
    fabric::decide::Sighting,
    holds::HeldNodes,
    job::snapshot::{Holder, Snapshot},
    kinds::Cache,
    membership::Membership,
    request::{Change, Priority, Request},
};

/// Of the keys of labels and annotations.
const PREFIX: &str = "weft.dev/model.";
/// What the API leaves for a model's name: 63 less `model.`.
const NAME_MAX: usize = 57;
/// Models of one node: what its agent scans every few seconds, and what is named to it.
const MODELS_MAX: usize = 128;
/// Of a node's annotations for models. Kubernetes takes 256 KiB of all annotations of an object, and
/// others need some.
const NOTES_BYTES_MAX: usize = 128 << 10;
/// Of the digest, in the label's value.
const DIGEST_SHOWN: usize = 12;

/// What the annotation says. It outlives its job, and another job of the same name finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// A root of the fabric.
    pub(crate) root: String,
    /// Relative to the root.
    pub(crate) path: String,
    /// Of all of it.
    pub(crate) digest: String,
    /// By which the agent knows that nothing has changed.
    pub(crate) fingerprint: String,
    /// UID of the job that wrote it; "" of a release that wrote none.
    #[serde(default)]
    pub(crate) job: String,
    /// They go with that job. Not so of the source's own, and of a copy that an earlier job's note of this key
    /// told of; files that nobody noted count as brought, also where the job found them with this content.
    #[serde(default)]
    pub(crate) brought: bool,
}

impl Note {
    /// The label's value.
    pub(crate) fn value(&self) -> &str {
        self.digest.get(..DIGEST_SHOWN).unwrap_or(&self.digest)
    }

    /// The annotation.
    pub(crate) fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// It is about the same files, as far as their place and their content tell.
    fn is_of_the_same(&self, other: &Self) -> bool {
        let is_there = self.root == other.root && names(&self.path) == names(&other.path);
        is_there && (self.digest == other.digest || self.fingerprint == other.fingerprint)
    }
}

pub(crate) fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

/// The key of the label by which a job's model is known.
pub(crate) fn key(job: &TransferJob) -> String {
    let name = format!("{}.{}", job.namespace().unwrap_or_default(), job.name_any());
    if name.len() <= NAME_MAX {
        return format!("{PREFIX}{name}");
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    let kept = name[..NAME_MAX - 9].trim_end_matches(['.', '-']);
    format!("{PREFIX}{kept}.{}", &hash[..8])
}

/// What is noted at a node, by key, as far as it can be read.
pub(crate) fn noted(node: &PartialObjectMeta<Node>) -> impl Iterator<Item = (&str, Option<Note>)> {
    let keys = node.annotations().keys();
    let keys = keys.filter(|key| key.starts_with(PREFIX));
    keys.map(|key| (key.as_str(), note(node, key)))
}

/// What nodes' annotations say, read once for each version of a node: there may be thousands of nodes
/// with a hundred models each, and fabrics are decided every second.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeMap<String, Noted>);

#[derive(Debug)]
struct Noted {
    /// UID and version of the node that was read.
    of: (Option<String>, Option<String>),
    models: Arc<Vec<Model>>,
    /// Keys of what cannot be read: somebody else wrote it, and nobody looks after it.
    unreadable: Vec<String>,
}

impl Notes {
    /// Reads what is new.
    pub(crate) fn read(&mut self, cache: &Cache) {
        self.0.retain(|name, _| cache.nodes.named(name).is_some());
        for (place, node) in cache.nodes.iter() {
            let of = (node.uid(), node.resource_version());
            if self.0.get(&place.name).is_none_or(|noted| noted.of != of) {
                self.0.insert(place.name.clone(), Noted::new(node, of));
            }
        }
    }

    /// What a node's agent is to look after.
    pub(crate) fn to_look_after(&self, node: &str) -> Arc<Vec<Model>> {
        let noted = self.0.get(node);
        noted
            .map(|noted| Arc::clone(&noted.models))
            .unwrap_or_default()
    }

    /// The first key by which a node promises what its agent does not find any more, or what nobody can
    /// read.
    fn broken(&self, node: &str, said: &[ModelState]) -> Option<&str> {
        let noted = self.0.get(node)?;
        let is_lost = |model: &&Model| {
            said.iter().any(|state| {
                !state.intact
                    && (&state.name, &state.fingerprint) == (&model.name, &model.fingerprint)
            })
        };
        let lost = noted.models.iter().find(is_lost).map(|model| &*model.name);
        noted.unreadable.first().map(|key| &**key).or(lost)
    }
}

impl Noted {
    fn new(node: &PartialObjectMeta<Node>, of: (Option<String>, Option<String>)) -> Self {
        let (mut models, mut unreadable) = (Vec::new(), Vec::new());
        for (key, note) in noted(node) {
            match note {
                Some(note) => models.push(Model {
                    name: key.to_owned(),
                    root: note.root,
                    path: note.path,
                    fingerprint: note.fingerprint,
                }),
                None => unreadable.push(key.to_owned()),
            }
        }
        models.truncate(MODELS_MAX);
        Self {
            of,
            models: Arc::new(models),
            unreadable,
        }
    }
}

/// Whether a node can take one more note, or another one in place of that which it has.
fn has_room(node: &PartialObjectMeta<Node>, key: &str, note: &Note) -> bool {
    let others = node.annotations().iter();
    let others = others.filter(|(there, _)| there.starts_with(PREFIX) && *there != key);
    let (count, bytes) = others.fold((0, 0), |(count, bytes), (there, text)| {
        (count + 1, bytes + there.len() + text.len())
    });
    count < MODELS_MAX && bytes + key.len() + note.text().len() <= NOTES_BYTES_MAX
}

/// What an entry needs at most: a key, and a note with a path and a fingerprint of 1.5 kB. Most need a
/// tenth of it.
const NOTE_BYTES_MAX: usize = 4 << 10;

/// What is wrong where a node may have no room for one more model.
pub(crate) fn full(node: &PartialObjectMeta<Node>) -> Option<Finding> {
    let notes = node.annotations().iter();
    let notes = notes.filter(|(key, _)| key.starts_with(PREFIX));
    let (count, bytes) = notes.fold((0, 0), |(count, bytes), (key, text)| {
        (count + 1, bytes + key.len() + text.len())
    });
    let is_full = count >= MODELS_MAX || bytes + NOTE_BYTES_MAX > NOTES_BYTES_MAX;
    is_full.then(|| Finding {
        reason: "ModelsFull".to_owned(),
        // No numbers that change with each model: another text is another Event.
        message: format!(
            "the node has as many models as its annotations and its agent can hold ({MODELS_MAX}, or {} KiB of \
             annotations): a copy of another one gets no label, and nobody looks after it; delete jobs with \
             deletionPolicy Delete, or labels and annotations {PREFIX}* of the node",
            NOTES_BYTES_MAX >> 10
        ),
    })
}

/// What a node says of one model.
pub(crate) fn note(node: &PartialObjectMeta<Node>, key: &str) -> Option<Note> {
    serde_json::from_str(node.annotations().get(key)?).ok()
}

/// What is to be said of a copy. Of one that another job's note at this key tells of already, the job has
/// found the files, and brought none: whoever kept them when that job went wants them still.
pub(crate) fn said(holder: &Holder, node: &PartialObjectMeta<Node>, key: &str) -> Note {
    let new = holder.note.clone();
    let before = note(node, key).filter(|before| before.is_of_the_same(&new));
    let was_there = before.is_some_and(|before| before.job != new.job || !before.brought);
    Note {
        brought: new.brought && !was_there,
        ..new
    }
}

/// Writes what a node says of a model, or removes it.
pub(crate) fn write_note(
    node: &PartialObjectMeta<Node>,
    key: &str,
    note: Option<&Note>,
) -> Request {
    let said = json!({
        "labels": { key: note.map(Note::value) },
        "annotations": { key: note.map(Note::text) },
    });
    patch(node, said)
}

/// Changes a node's labels and annotations.
pub(crate) fn patch(node: &PartialObjectMeta<Node>, metadata: Value) -> Request {
    Request {
        uid: uid(node),
        ..Request::new::<Node>(Key::of(&node.metadata), Change::MergeMetadata(metadata))
    }
}

/// The next node that holds a job's model and does not say so yet. Those that refuse, and those that are full,
/// are left out; so are those that fail, once they have been waited for.
pub(crate) fn next(
    job: &TransferJob,
    cache: &Cache,
    work: &Snapshot,
    (held, waited): (&HeldNodes, Option<Duration>),
) -> Option<Request> {
    let key = key(job);
    let requests = work.holders.iter().filter_map(|holder| {
        let node = cache.nodes.named(&holder.node)?;
        let new = said(holder, node, &key);
        let is_said = note(node, &key).as_ref() == Some(&new)
            && node.labels().get(&key).map(String::as_str) == Some(new.value());
        if is_said || !held.may_say(&holder.node, &key, waited) {
            return None;
        }
        if !has_room(node, &key, &new) {
            // Said at its end only: until then this is asked with every step.
            if work.outcome.is_some() {
                tracing::debug!(
                    node = holder.node,
                    label = key,
                    "no label: the node has as many models as its annotations and its agent can hold; \
                     delete models, or labels and annotations weft.dev/model.* of the node"
                );
            }
            return None;
        }
        let is_over = work.outcome.is_some();
        Some(Request {
            // The job's end waits for it.
            priority: if is_over { Priority::Normal } else { Priority::Low },
            ..write_note(node, &key, Some(&new))
        })
    });
    held.pick(requests)
}

/// What nodes say and do not hold any more, one request for a node at most.
pub(crate) fn lost(
    cache: &Cache,
    membership: &Membership,
    sightings: &BTreeMap<String, Sighting>,
    notes: &Notes,
) -> Vec<Request> {
    let mut requests = Vec::new();
    for (place, node) in cache.nodes.iter() {
        let name = &place.name;
        let fabric = membership.fabric(name);
        let sighting = sightings
            .get(name)
            .filter(|sighting| Some(sighting.fabric.as_str()) == fabric);
        let said = sighting.map_or(&[][..], |sighting| &sighting.report.models);
        let gone = match fabric {
            Some(_) => notes.broken(name, said),
            // Nobody looks after it where no fabric has the node.
            None => {
                let mut keys = node.annotations().keys().map(String::as_str);
                keys.find(|key| key.starts_with(PREFIX))
            }
        };
        let labels = node.labels().keys().filter(|key| key.starts_with(PREFIX));
        let stray = labels
            .map(String::as_str)
            .find(|key| !node.annotations().contains_key(*key));
        if let Some(key) = gone.or(stray) {
            // What has been written since is about other files.
            requests.push(Request {
                version: node.resource_version(),
                ..write_note(node, key, None)
            });
        }
    }
    requests
}

#[cfg(test)]
mod tests;
