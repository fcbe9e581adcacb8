//! Sends requests to the API server.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::ObjectMeta,
    runtime::events::{Event as PublishedEvent, EventType, Recorder, Reporter},
};
use serde_json::Value;

use super::request::{Change, Event, Request};
use crate::{
    NAME,
    api::{CallError, call},
};

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server said no, or nothing.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server accepted the write, but the object lacks what was written.
    #[error(
        "the API server took a write of {key} and left it out: an admission webhook or policy takes it away; \
         have it let labels weft.dev/* of nodes through"
    )]
    LeftOut {
        /// Of the label.
        key: String,
    },
}

impl WriteError {
    /// There is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Call(error) if error.is_not_found())
    }

    /// The object is gone or has another version: the watch tells which.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Call(error) if error.is_conflict())
    }
}

/// A client and what it writes as.
pub(crate) struct ApiWriter {
    client: Client,
    /// Of this leader: every status says it.
    epoch: u64,
    recorder: Recorder,
}

impl ApiWriter {
    pub(crate) fn new(client: Client, epoch: u64) -> Self {
        let reporter = Reporter {
            controller: NAME.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            epoch,
        }
    }

    /// Sends a request. Returns the object as it is from then on; `None` once it is gone.
    pub(crate) async fn send(
        &self,
        request: &Request,
    ) -> Result<Option<DynamicObject>, WriteError> {
        let name = &request.key.name;
        let api: Api<DynamicObject> = if request.key.namespace.is_empty() {
            Api::all_with(self.client.clone(), &request.resource)
        } else {
            let namespace = &request.key.namespace;
            Api::namespaced_with(self.client.clone(), namespace, &request.resource)
        };
        let apply = PatchParams::apply(NAME).force();
        let body = request.body(self.epoch);
        match &request.change {
            Change::Apply(_) => {
                let object = call(api.patch(name, &apply, &Patch::Apply(&body))).await?;
                Ok(Some(object))
            }
            Change::ApplyStatus(_) => {
                let object = call(api.patch_status(name, &apply, &Patch::Apply(&body))).await?;
                Ok(Some(object))
            }
            Change::MergeMetadata(wanted) => {
                let merge = PatchParams::apply(NAME);
                let object = call(api.patch(name, &merge, &Patch::Merge(&body))).await?;
                match left_out(wanted, &object.metadata) {
                    Some(key) => Err(WriteError::LeftOut { key }),
                    None => Ok(Some(object)),
                }
            }
            Change::Delete => {
                let uid = (!request.uid.is_empty()).then(|| request.uid.clone());
                let parameters = DeleteParams::background().preconditions(Preconditions {
                    uid,
                    resource_version: request.version.clone(),
                });
                Ok(call(api.delete(name, &parameters)).await?.left())
            }
        }
    }

    /// Publishes an Event of an object. A failure is only logged: nothing waits for it.
    pub(crate) async fn publish(&self, object: &ObjectReference, event: &Event) {
        let event = PublishedEvent {
            type_: if event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: event.reason.clone(),
            note: Some(event.note.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = call(self.recorder.publish(&event, object)).await {
            tracing::debug!(%error, "an Event was not written");
        }
    }
}

/// The first label that is not as it was wanted.
fn left_out(wanted: &Value, metadata: &ObjectMeta) -> Option<String> {
    let labels = wanted["labels"].as_object().into_iter().flatten();
    let mut other = labels.filter(|(key, value)| {
        let written = metadata.labels.as_ref().and_then(|labels| labels.get(*key));
        written.map(String::as_str) != value.as_str()
    });
    other.next().map(|(key, _)| key.clone())
}

#[cfg(test)]
mod tests;
