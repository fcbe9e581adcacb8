//! A request that changes one object of the API. Decisions make requests; only the writer sends them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource, ResourceExt as _,
    core::{ApiResource, ObjectMeta},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::controllers::cache::Key;

/// Keeps a job in the API until the agents have nothing of it left.
pub(crate) const FINALIZER: &str = "weft.dev/agents";

/// Keeps a fabric in the API while jobs run in it.
pub(crate) const FABRIC_FINALIZER: &str = "weft.dev/jobs";

/// An object of the API, by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    /// Kind and group: `TransferJob.weft.dev`, or `Node` of the core group.
    pub(crate) kind: String,
    /// Namespace and name.
    pub(crate) key: Key,
}

impl ObjectId {
    /// The object of a kind with this name.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(key: Key) -> Self {
        Self {
            kind: qualified(&K::kind(&()), &K::group(&())),
            key,
        }
    }
}

/// The name of a kind together with its group: two groups may have a kind of the same name.
pub(crate) fn qualified(kind: &str, group: &str) -> String {
    match group {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    }
}

/// What the API server is asked to change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// Server-side apply of this manifest. The writer adds what identifies the object.
    Apply(Value),
    /// Server-side apply of this status. The writer adds the leader's epoch.
    ApplyStatus(Value),
    /// A JSON merge patch of the metadata: `null` removes a label.
    MergeMetadata(Value),
    /// Deletes the object; its dependents follow in the background.
    Delete,
}

/// How urgent a request is. The writer sends the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// A job's next step waits for it.
    High,
    /// The status and the fabric label of nodes, the status of fabrics, and the deletion of a job whose time to live
    /// is over. Thousands of nodes may change at once.
    Normal,
    /// The progress of a job, and the model labels of nodes. One namespace with many jobs can change thousands of
    /// them, so the steps of other jobs and the status of nodes are sent first.
    Low,
}

/// A request that changes one object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// Group, version, kind and plural of the object.
    pub(crate) resource: ApiResource,
    /// Namespace and name.
    pub(crate) key: Key,
    /// The API server refuses the request if the object has another UID. Empty for an object that the
    /// request creates.
    pub(crate) uid: String,
    /// The API server refuses the request if the object has another version.
    pub(crate) version: Option<String>,
    /// What changes.
    pub(crate) change: Change,
    /// How urgent it is.
    pub(crate) priority: Priority,
    /// Events to publish once the change is written.
    pub(crate) events: Vec<Event>,
}

/// A Kubernetes Event: something that people should know about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Something is wrong.
    pub(crate) warning: bool,
    /// Stable, UpperCamelCase.
    pub(crate) reason: String,
    /// What happened.
    pub(crate) note: String,
}

impl Request {
    /// A change of the object with this name. It creates the object if there is none.
    pub(crate) fn new<K: Resource<DynamicType = ()>>(key: Key, change: Change) -> Self {
        Self {
            resource: ApiResource::erase::<K>(&()),
            key,
            uid: String::new(),
            version: None,
            change,
            priority: Priority::Normal,
            events: Vec::new(),
        }
    }

    /// A change of this object and of no later one with the same name.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(object: &K, change: Change) -> Self {
        Self {
            uid: object.uid().unwrap_or_default(),
            ..Self::new::<K>(Key::of(object.meta()), change)
        }
    }

    /// The same, refused if the object has changed since it was read.
    pub(crate) fn unless_changed<K: Resource<DynamicType = ()>>(
        object: &K,
        change: Change,
    ) -> Self {
        Self {
            version: object.resource_version(),
            ..Self::of(object, change)
        }
    }

    /// Writes a status over the version that it was decided from.
    pub(crate) fn status<K: Resource<DynamicType = ()>>(
        object: &K,
        status: &impl Serialize,
    ) -> Self {
        Self::unless_changed(object, Change::ApplyStatus(json!(status)))
    }

    /// The object that it changes.
    pub(crate) fn object(&self) -> ObjectId {
        ObjectId {
            kind: qualified(&self.resource.kind, &self.resource.group),
            key: self.key.clone(),
        }
    }

    /// The kind of the object.
    pub(crate) fn kind(&self) -> &str {
        &self.resource.kind
    }

    /// The object as Events name it.
    pub(crate) fn reference(&self) -> ObjectReference {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ObjectReference {
            api_version: Some(self.resource.api_version.clone()),
            kind: Some(self.resource.kind.clone()),
            name: some(&self.key.name),
            namespace: some(&self.key.namespace),
            uid: some(&self.uid),
            ..ObjectReference::default()
        }
    }

    /// What is sent for a patch: the change with what identifies the object. `epoch` is the leader's.
    pub(crate) fn body(&self, epoch: u64) -> Value {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let metadata = ObjectMeta {
            name: some(&self.key.name),
            namespace: some(&self.key.namespace),
            uid: some(&self.uid),
            resource_version: self.version.clone(),
            ..ObjectMeta::default()
        };
        let mut body = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": metadata,
        });
        match &self.change {
            Change::Apply(manifest) => extend(&mut body, manifest),
            Change::ApplyStatus(status) => {
                body["status"] = status.clone();
                body["status"]["leaderEpoch"] = json!(i64::try_from(epoch).unwrap_or(i64::MAX));
            }
            Change::MergeMetadata(part) => extend(&mut body["metadata"], part),
            Change::Delete => {}
        }
        body
    }
}

/// Adds the fields of an object to another; those of its metadata one by one.
fn extend(body: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        if name == "metadata" {
            extend(&mut body["metadata"], value);
        } else {
            body[name] = value.clone();
        }
    }
}
