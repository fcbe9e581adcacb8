//! Sends requests to the API server.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ObjectReference};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::ObjectMeta,
    runtime::events::{Event as PublishedEvent, EventType, Recorder, Reporter},
};
use serde_json::Value;

use super::request::{Change, Event, Request};
use crate::{NAME, retry};
use weft_identity::cause::innermost;

/// A write that has not been answered by then is repeated.
const WITHIN: Duration = Duration::from_secs(10);

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// The API server said no, or nothing.
    #[error("{}", innermost(.0))]
    Refused(#[from] kube::Error),
    /// It did not answer.
    #[error("the API server has not answered for {} s; it is asked again", WITHIN.as_secs())]
    Late,
    /// It took the write, and what was written is not there.
    #[error(
        "the API server took a write of {key} and left it out: an admission webhook or policy takes it away; \
         have it let labels weft.dev/* of nodes through"
    )]
    LeftOut {
        /// Of the label.
        key: String,
    },
}

impl ClusterError {
    /// The same may succeed without anybody changing anything.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Refused(error) => retry::passes(error),
            Self::Late => true,
            Self::LeftOut { .. } => false,
        }
    }

    /// The object is gone or has another version: the watch tells which.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if [404, 409].contains(&status.code))
    }
}

/// A client and where it writes.
pub(crate) struct Cluster {
    client: Client,
    namespace: String,
    /// Of this leader: every status says it.
    epoch: u64,
    recorder: Recorder,
}

impl Cluster {
    pub(crate) fn new(client: Client, namespace: &str, epoch: u64) -> Self {
        let reporter = Reporter {
            controller: NAME.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            namespace: namespace.to_owned(),
            epoch,
        }
    }

    /// The operator's own Deployment, which agents end with; `None` outside a cluster.
    pub(crate) async fn deployment(&self) -> Result<Option<Deployment>, ClusterError> {
        let api = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        within(api.get_opt(NAME)).await
    }

    /// Sends a request. Returns the object as it is from then on; `None` once it is gone.
    pub(crate) async fn send(
        &self,
        request: &Request,
    ) -> Result<Option<DynamicObject>, ClusterError> {
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
                let object = within(api.patch(name, &apply, &Patch::Apply(&body))).await?;
                Ok(Some(object))
            }
            Change::ApplyStatus(_) => {
                let object = within(api.patch_status(name, &apply, &Patch::Apply(&body))).await?;
                Ok(Some(object))
            }
            Change::MergeMetadata(wanted) => {
                let merge = PatchParams {
                    field_manager: Some(NAME.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(&body);
                let object = within(api.patch(name, &merge, &patch)).await?;
                match left_out(wanted, &object.metadata) {
                    Some(key) => Err(ClusterError::LeftOut { key }),
                    None => Ok(Some(object)),
                }
            }
            Change::Delete => {
                let uid = (!request.uid.is_empty()).then(|| request.uid.clone());
                let parameters = DeleteParams::background().preconditions(Preconditions {
                    uid,
                    resource_version: request.version.clone(),
                });
                Ok(within(api.delete(name, &parameters)).await?.left())
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
        match tokio::time::timeout(WITHIN, self.recorder.publish(&event, object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event was not written"),
            Err(_) => tracing::debug!("an Event was not written in time"),
        }
    }
}

/// The first label that is not as it was wanted.
fn left_out(wanted: &Value, there: &ObjectMeta) -> Option<String> {
    let labels = wanted["labels"].as_object().into_iter().flatten();
    let mut other = labels.filter(|(key, value)| {
        let there = there.labels.as_ref().and_then(|there| there.get(*key));
        there.map(String::as_str) != value.as_str()
    });
    other.next().map(|(key, _)| key.clone())
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(WITHIN, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ClusterError::Late),
    }
}

#[cfg(test)]
mod tests;
