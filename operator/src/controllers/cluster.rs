//! The API server as the controllers use it: watches in, requests out.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Namespace, Node, ObjectReference},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::{ObjectMeta, PartialObjectMeta, object::HasStatus},
    runtime::{
        WatchStreamExt as _,
        events::{Event as PublishedEvent, EventType, Recorder, Reporter},
        watcher::{self, watcher},
    },
};
use serde_json::{Value, json};
use weft_crds::{FabricNode, RdmaFabric, TransferJob};

use crate::{NAME, patience, transfer::innermost};

use super::{
    agents::FABRIC_LABEL,
    holds::{Consequence, Failure},
    request::{Change, Event, Request},
    world::World,
};

/// A write that has not been answered by then is repeated.
const WITHIN: Duration = Duration::from_secs(10);

/// What a watch says.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is put away at once")]
pub(super) enum Seen {
    Fabric(watcher::Event<RdmaFabric>),
    FabricNode(watcher::Event<FabricNode>),
    Job(watcher::Event<TransferJob>),
    Node(watcher::Event<PartialObjectMeta<Node>>),
    Namespace(watcher::Event<PartialObjectMeta<Namespace>>),
    DaemonSet(watcher::Event<PartialObjectMeta<DaemonSet>>),
}

impl Seen {
    /// The epoch of the leader that has written the status of the object; 0 where none has.
    pub(super) fn leader_epoch(&self) -> u64 {
        let epoch = match self {
            Self::Fabric(event) => of(event).map(|status| status.leader_epoch),
            Self::FabricNode(event) => of(event).map(|status| status.leader_epoch),
            Self::Job(event) => of(event).map(|status| status.leader_epoch),
            Self::Node(_) | Self::Namespace(_) | Self::DaemonSet(_) => None,
        };
        u64::try_from(epoch.unwrap_or(0)).unwrap_or(0)
    }

    /// Puts it into the world.
    pub(super) fn enter(self, world: &mut World) {
        match self {
            Self::Fabric(event) => world.fabrics.take(event),
            Self::FabricNode(event) => world.fabric_nodes.take(event),
            Self::Job(event) => world.jobs.take(event),
            Self::Node(event) => world.nodes.take(event),
            Self::Namespace(event) => world.namespaces.take(event),
            Self::DaemonSet(event) => world.daemon_sets.take(event),
        }
    }
}

/// The status of the object that an event is about.
fn of<K: HasStatus>(event: &watcher::Event<K>) -> Option<&K::Status> {
    match event {
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => object.status(),
        watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => None,
    }
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    /// The API server said no, or nothing.
    #[error("{}", innermost(.0))]
    Refused(#[from] kube::Error),
    /// It did not answer.
    #[error("the API server has not answered for {} s; it is asked again", WITHIN.as_secs())]
    Late,
    /// It took the write, and what was written is not there.
    #[error(
        "the API server took a write of {key} and left it out: an admission webhook or policy takes it away; \
         have it let labels and annotations weft.dev/* of nodes through"
    )]
    LeftOut {
        /// Of the label.
        key: String,
    },
}

impl ClusterError {
    /// The same may succeed without anybody changing anything.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Refused(error) => patience::passes(error),
            Self::Late => true,
            Self::LeftOut { .. } => false,
        }
    }

    /// What is to become of the object.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Refused(kube::Error::Api(status)) => match status.code {
                409 => Failure::Stale,
                // 400 is what becomes of a webhook's no without a code.
                400 | 403 | 404 | 422 => Failure::Refused,
                _ => Failure::Failed,
            },
            Self::Refused(_) | Self::Late => Failure::Failed,
            Self::LeftOut { .. } => Failure::Refused,
        }
    }

    /// What is to become of what was asked for.
    pub(super) fn consequence(&self, request: &Request) -> Consequence {
        let (Self::LeftOut { key }, Change::MergeMetadata(wanted)) = (self, &request.change) else {
            return Consequence::Hold(self.failure());
        };
        match wanted["annotations"].get(key) {
            None => Consequence::Hold(self.failure()),
            // Somebody keeps it there: the node may still say other things, after a while.
            Some(Value::Null) => Consequence::Hold(Failure::Failed),
            Some(_) => Consequence::LeaveOut {
                node: request.key.name.clone(),
                key: key.clone(),
            },
        }
    }

    /// The object is gone or has another version: the watch tells which.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if [404, 409].contains(&status.code))
    }
}

/// A client and where it writes.
pub(super) struct Cluster {
    client: Client,
    namespace: String,
    /// Of this leader: every status says it.
    epoch: u64,
    recorder: Recorder,
}

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str, epoch: u64) -> Self {
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
    pub(super) async fn deployment(&self) -> Result<Option<Deployment>, ClusterError> {
        let api = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        within(api.get_opt(NAME)).await
    }

    /// Everything that is watched. Never ends; what fails is begun again.
    pub(super) fn watch(&self) -> impl Stream<Item = Seen> + Send + Unpin + use<> {
        let agents = watcher::Config::default().labels(FABRIC_LABEL);
        let sets =
            Api::<PartialObjectMeta<DaemonSet>>::namespaced(self.client.clone(), &self.namespace);
        stream::select_all([
            told(watcher(self.all::<RdmaFabric>(), config()), Seen::Fabric),
            told(
                watcher(self.all::<FabricNode>(), config()),
                Seen::FabricNode,
            ),
            told(watcher(self.all::<TransferJob>(), config()), Seen::Job),
            told(
                watcher(self.all::<PartialObjectMeta<Node>>(), config()),
                Seen::Node,
            ),
            told(
                watcher(self.all::<PartialObjectMeta<Namespace>>(), config()),
                Seen::Namespace,
            ),
            told(watcher(sets, agents), Seen::DaemonSet),
        ])
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Sends a request. Returns the object as it is from then on; `None` once it is gone.
    pub(super) async fn send(
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
                let object = within(api.patch_metadata(name, &merge, &patch)).await?;
                match left_out(wanted, &object.metadata) {
                    Some(key) => Err(ClusterError::LeftOut { key }),
                    None => Ok(Some(DynamicObject {
                        types: object.types,
                        metadata: object.metadata,
                        data: json!({}),
                    })),
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
    pub(super) async fn publish(&self, object: &ObjectReference, event: &Event) {
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

fn config() -> watcher::Config {
    watcher::Config::default()
}

fn told<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    seen: fn(watcher::Event<K>) -> Seen,
) -> stream::BoxStream<'static, Seen> {
    let heard = |result: watcher::Result<watcher::Event<K>>| {
        let heard = result
            .inspect_err(|error| tracing::warn!(%error, "a watch broke off; it begins again"));
        std::future::ready(heard.ok())
    };
    events.default_backoff().filter_map(heard).map(seen).boxed()
}

/// The first label or annotation that is not as it was wanted.
fn left_out(wanted: &Value, there: &ObjectMeta) -> Option<String> {
    let parts = [
        ("labels", &there.labels),
        ("annotations", &there.annotations),
    ];
    let mut wanted = parts.into_iter().flat_map(|(part, there)| {
        let wanted = wanted[part].as_object().into_iter().flatten();
        wanted.map(move |(key, value)| {
            let there = there.as_ref().and_then(|there| there.get(key));
            (key, value.as_str(), there.map(String::as_str))
        })
    });
    let other = wanted.find(|(_, wanted, there)| wanted != there);
    other.map(|(key, ..)| key.clone())
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(WITHIN, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ClusterError::Late),
    }
}

#[cfg(test)]
mod tests;
