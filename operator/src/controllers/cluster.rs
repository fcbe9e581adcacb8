//! The API server as the controllers use it: watches in, requests out.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Namespace, Node, ObjectReference},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::{ObjectMeta, PartialObjectMeta, object::HasStatus},
    runtime::{
        WatchStreamExt as _,
        events::{Event as Told, EventType, Recorder, Reporter},
        watcher::{self, Event, watcher},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use weft_crds::{FabricNode, RdmaFabric, TransferJob};
use weft_identity::cause::innermost;

use crate::{NAME, patience};

use super::{
    agents::FABRIC_LABEL,
    holds::{Consequence, Failure},
    models::Note,
    request::{FINALIZER, News, Request},
    world::{Key, World},
};

/// A write that has not been answered by then is repeated.
const WITHIN: Duration = Duration::from_secs(10);

/// What a watch says.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is put away at once")]
pub(super) enum Seen {
    Fabric(Event<RdmaFabric>),
    FabricNode(Event<FabricNode>),
    Job(Event<TransferJob>),
    Node(Event<PartialObjectMeta<Node>>),
    Namespace(Event<PartialObjectMeta<Namespace>>),
    DaemonSet(Event<PartialObjectMeta<DaemonSet>>),
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
fn of<K: HasStatus>(event: &Event<K>) -> Option<&K::Status> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => object.status(),
        Event::Delete(_) | Event::Init | Event::InitDone => None,
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
        match (self, request) {
            (
                Self::LeftOut { .. },
                Request::NodeModel {
                    node,
                    key,
                    note: Some(_),
                    ..
                },
            ) => Consequence::LeaveOut {
                node: node.clone(),
                key: key.clone(),
            },
            // Somebody keeps it there: the node may still say other things, after a while.
            (Self::LeftOut { .. }, Request::NodeModel { note: None, .. }) => {
                Consequence::Hold(Failure::Failed)
            }
            _ => Consequence::Hold(self.failure()),
        }
    }

    /// The object is gone or another: the watch will tell.
    pub(super) fn is_stale(&self) -> bool {
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

    /// Carries out a request; what the API server answers is what there is from then on.
    pub(super) async fn carry_out(
        &self,
        request: &Request,
        world: &mut World,
    ) -> Result<(), ClusterError> {
        match request {
            Request::JobStatus {
                key, uid, status, ..
            } => {
                let mut text = identified::<TransferJob>(key, uid, "status", status);
                self.fence(&mut text, world.jobs.get(key));
                world
                    .jobs
                    .learn(self.apply_status(&self.jobs(key), &key.name, &text).await?);
            }
            Request::Finalizer { key, uid, hold, .. } => {
                let mut text = identified::<TransferJob>(key, uid, "spec", &Value::Null);
                let finalizers = if *hold { json!([FINALIZER]) } else { json!([]) };
                text["metadata"]["finalizers"] = finalizers;
                over(&mut text, world.jobs.get(key));
                if let Some(text) = text.as_object_mut() {
                    text.remove("spec");
                }
                world
                    .jobs
                    .learn(self.apply(&self.jobs(key), &key.name, &text).await?);
            }
            Request::DeleteJob { key, uid } => {
                let version = world.jobs.get(key).and_then(TransferJob::resource_version);
                let jobs = self.jobs(key);
                match self.delete(&jobs, &key.name, (uid, version)).await? {
                    Some(job) => world.jobs.learn(job),
                    None => world.jobs.forget(key),
                }
            }
            Request::FabricStatus { name, uid, status } => {
                let mut text = identified::<RdmaFabric>(&Key::cluster(name), uid, "status", status);
                self.fence(&mut text, world.fabrics.named(name));
                world
                    .fabrics
                    .learn(self.apply_status(&self.all(), name, &text).await?);
            }
            Request::FabricNodeStatus {
                name, uid, status, ..
            } => {
                let mut text = identified::<FabricNode>(&Key::cluster(name), uid, "status", status);
                self.fence(&mut text, world.fabric_nodes.named(name));
                world
                    .fabric_nodes
                    .learn(self.apply_status(&self.all(), name, &text).await?);
            }
            Request::ApplyFabricNode {
                name,
                fabric,
                owner,
            } => {
                let spec = json!({ "fabric": fabric });
                let mut text = identified::<FabricNode>(&Key::cluster(name), "", "spec", &spec);
                text["metadata"]["ownerReferences"] = json!([
                    { "apiVersion": "v1", "kind": "Node", "name": name, "uid": owner }
                ]);
                world
                    .fabric_nodes
                    .learn(self.apply(&self.all(), name, &text).await?);
            }
            Request::NodeFabric { node, uid, fabric } => {
                let text = json!({ "metadata": {
                    "uid": uid,
                    "labels": { FABRIC_LABEL: fabric },
                } });
                self.merge_node(node, text, world).await?;
            }
            Request::NodeModel {
                node,
                uid,
                version,
                key,
                note,
            } => {
                let mut text = json!({ "metadata": {
                    "uid": uid,
                    "labels": { key: note.as_ref().map(Note::value) },
                    "annotations": { key: note.as_ref().map(Note::text) },
                } });
                if let Some(version) = version {
                    text["metadata"]["resourceVersion"] = json!(version);
                }
                self.merge_node(node, text, world).await?;
            }
            Request::DeleteFabricNode { name, uid } => {
                let known = world.fabric_nodes.named(name);
                let version = known.and_then(FabricNode::resource_version);
                let nodes = self.all::<FabricNode>();
                match self.delete(&nodes, name, (uid, version)).await? {
                    Some(node) => world.fabric_nodes.learn(node),
                    None => world.fabric_nodes.forget(&Key::cluster(name)),
                }
            }
            Request::ApplyDaemonSet(set) => {
                let set = self.apply(&self.sets(), &set.name_any(), set).await?;
                world.daemon_sets.learn(bare(set));
            }
            Request::DeleteDaemonSet { name, uid } => {
                match self.delete(&self.sets(), name, (uid, None)).await? {
                    Some(set) => world.daemon_sets.learn(bare(set)),
                    None => world.daemon_sets.forget(&Key {
                        namespace: self.namespace.clone(),
                        name: name.clone(),
                    }),
                }
            }
        }
        Ok(())
    }

    /// Says it to people; nobody waits for it, so a failure is only logged.
    pub(super) async fn tell(&self, object: &ObjectReference, action: &str, news: &News) {
        let event = Told {
            type_: if news.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: news.reason.clone(),
            note: Some(news.note.clone()),
            action: action.to_owned(),
            secondary: None,
        };
        match tokio::time::timeout(WITHIN, self.recorder.publish(&event, object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event was not written"),
            Err(_) => tracing::debug!("an Event was not written in time"),
        }
    }

    fn jobs(&self, key: &Key) -> Api<TransferJob> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn sets(&self) -> Api<DaemonSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Has a node say this by its metadata, and looks whether it does.
    async fn merge_node(
        &self,
        node: &str,
        said: Value,
        world: &mut World,
    ) -> Result<(), ClusterError> {
        let parameters = PatchParams {
            field_manager: Some(NAME.to_owned()),
            ..PatchParams::default()
        };
        let nodes = self.all::<Node>();
        let patch = Patch::Merge(&said);
        let node = within(nodes.patch_metadata(node, &parameters, &patch)).await?;
        let left_out = left_out(&said, &node);
        world.nodes.learn(node);
        left_out.map_or(Ok(()), |key| Err(ClusterError::LeftOut { key }))
    }

    async fn apply<K>(
        &self,
        api: &Api<K>,
        name: &str,
        text: &(impl Serialize + std::fmt::Debug),
    ) -> Result<K, ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let parameters = PatchParams::apply(NAME).force();
        within(api.patch(name, &parameters, &Patch::Apply(text))).await
    }

    async fn apply_status<K>(
        &self,
        api: &Api<K>,
        name: &str,
        text: &Value,
    ) -> Result<K, ClusterError>
    where
        K: DeserializeOwned,
    {
        let parameters = PatchParams::apply(NAME).force();
        within(api.patch_status(name, &parameters, &Patch::Apply(text))).await
    }

    /// Has a status say who wrote it, and refused where the object is another than the one known.
    fn fence(&self, text: &mut Value, known: Option<&impl Resource>) {
        over(text, known);
        text["status"]["leaderEpoch"] = json!(i64::try_from(self.epoch).unwrap_or(i64::MAX));
    }

    /// Ends an object; gives it as it is until it is gone.
    async fn delete<K>(
        &self,
        api: &Api<K>,
        name: &str,
        (uid, version): (&str, Option<String>),
    ) -> Result<Option<K>, ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let parameters = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: version,
        });
        Ok(within(api.delete(name, &parameters)).await?.left())
    }
}

fn config() -> watcher::Config {
    watcher::Config::default()
}

fn told<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    seen: fn(Event<K>) -> Seen,
) -> stream::BoxStream<'static, Seen> {
    let heard = |result: watcher::Result<Event<K>>| {
        let heard = result
            .inspect_err(|error| tracing::warn!(%error, "a watch broke off; it begins again"));
        std::future::ready(heard.ok())
    };
    events.default_backoff().filter_map(heard).map(seen).boxed()
}

/// Only its metadata.
fn bare(set: DaemonSet) -> PartialObjectMeta<DaemonSet> {
    PartialObjectMeta {
        metadata: set.metadata,
        ..PartialObjectMeta::default()
    }
}

/// The first label or annotation that a node does not have as it was said.
fn left_out(said: &Value, node: &PartialObjectMeta<Node>) -> Option<String> {
    let parts = [
        ("labels", node.labels()),
        ("annotations", node.annotations()),
    ];
    let mut said = parts.into_iter().flat_map(|(part, there)| {
        let said = said["metadata"][part].as_object().into_iter().flatten();
        said.map(move |(key, value)| (key, value.as_str(), there.get(key)))
    });
    let is_other = |(_, value, there): &(&String, Option<&str>, Option<&String>)| {
        *value != there.map(String::as_str)
    };
    said.find(is_other).map(|(key, ..)| key.clone())
}

/// An object of one part, with its UID: refused where that is another's by now.
fn identified<K: Resource<DynamicType = ()>>(
    key: &Key,
    uid: &str,
    part: &str,
    value: &impl Serialize,
) -> Value {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let metadata = ObjectMeta {
        name: Some(key.name.clone()),
        namespace: some(&key.namespace),
        uid: some(uid),
        ..ObjectMeta::default()
    };
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": metadata,
        part: value,
    })
}

/// Has the API server refuse it where the object is another than the one that was decided about.
fn over(text: &mut Value, known: Option<&impl Resource>) {
    if let Some(version) = known.and_then(|known| known.resource_version()) {
        text["metadata"]["resourceVersion"] = json!(version);
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(WITHIN, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ClusterError::Late),
    }
}

#[cfg(test)]
mod tests;
