//! The kinds of objects that the controllers read, and what decides about each: `for_each_kind!` lists them. A new
//! kind is a line there, and a module; see docs/add-a-kind.md.

use std::{collections::BTreeMap, sync::Arc};

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Namespace};
use kube::{
    Client, Resource as _,
    api::DynamicObject,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, watcher},
    },
};
use weft_crds::{FabricNode, RdmaFabric, TransferJob};

use super::{
    cache::{Cached, Key, Store},
    cluster_node::ClusterNode,
    job::obstacle::Obstacle,
    request::{ObjectId, Request, qualified},
    resource_slice::ResourceSlice,
};
use weft_transfer::ReadSecret;

/// Declares the cache and the watches that fill it.
macro_rules! kinds {
    ($(
        $(#[doc = $doc:literal])*
        $(#[cfg($condition:meta)])?
        $store:ident: $kind:ty $(=> $controller:ty)?,
    )*) => {
        /// The API's objects that decisions read, and what this process has found out beside them.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Cache {
            $(
                $(#[doc = $doc])*
                $(#[cfg($condition)])?
                pub(crate) $store: Store<$kind>,
            )*
            /// The public key of this leader's tickets: agents are told it.
            pub(crate) ticket_key: String,
            /// Whether the Secrets that jobs name could be read. What they hold is kept nowhere.
            pub(crate) secrets: BTreeMap<Key, Result<(), Obstacle>>,
            /// Why nodes cannot have the label of a job, by job.
            pub(crate) label_problems: BTreeMap<Key, Obstacle>,
            /// Reads Secrets for transfers; `None` in tests.
            pub(crate) secret_reader: Option<Arc<dyn ReadSecret>>,
        }

        impl Cache {
            /// Stores the object from the response to a request; `None` if it is gone.
            pub(crate) fn store_response(
                &mut self,
                request: &Request,
                response: Option<DynamicObject>,
            ) {
                let ObjectId { kind, key } = request.object();
                $(
                    $(#[cfg($condition)])?
                    if kind == qualified(&<$kind>::kind(&()), &<$kind>::group(&())) {
                        return self.$store.store_response(&key, &request.uid, response);
                    }
                )*
            }

            /// Every kind has been listed once, but for those that not every API server has.
            pub(crate) fn is_synced(&self) -> bool {
                let mut is_synced = true;
                $(
                    $(#[cfg($condition)])?
                    {
                        is_synced &= <$kind>::IS_OPTIONAL || self.$store.is_synced();
                    }
                )*
                is_synced
            }

            /// The controllers have reconciled.
            pub(crate) fn clear_changed(&mut self) {
                $(
                    $(#[cfg($condition)])?
                    self.$store.clear_changed();
                )*
            }
        }

        /// Watches every kind, of those that not every API server has only if asked. Never ends; a watch that breaks off
        /// begins again.
        pub(crate) fn watch(
            client: &Client,
            namespace: &str,
            with_optional: bool,
        ) -> impl Stream<Item = WatchEvent> + Send + Unpin + use<> {
            let mut watches = Vec::new();
            $(
                $(#[cfg($condition)])?
                if with_optional || !<$kind>::IS_OPTIONAL {
                    watches.push(watch_kind(client, namespace, |cache| &mut cache.$store));
                }
            )*
            stream::select_all(watches)
        }
    };
}

/// Hands the list of kinds to a macro.
macro_rules! for_each_kind {
    ($receiver:ident) => {
        $receiver! {
            /// The jobs.
            jobs: TransferJob => JobController,
            /// The fabrics.
            fabrics: RdmaFabric => FabricController,
            /// The fabrics' nodes, as the operator last described them.
            fabric_nodes: FabricNode,
            /// The cluster's nodes: their labels and addresses.
            nodes: ClusterNode,
            /// The namespaces: their labels.
            namespaces: PartialObjectMeta<Namespace>,
            /// The agents' DaemonSets: what they were made from.
            daemon_sets: PartialObjectMeta<DaemonSet>,
            /// The slices of the nodes' devices: whose they are, and what they were made from.
            resource_slices: ResourceSlice => SliceController,
            /// What docs/add-a-kind.md adds.
            #[cfg(test)]
            shortcuts: $crate::controllers::tests::example::Shortcut
                => $crate::controllers::tests::example::Shortcuts,
        }
    };
}
pub(crate) use for_each_kind;

for_each_kind!(kinds);

impl Cache {
    /// A number that changes when anything but a job changes.
    pub(crate) fn non_job_revision(&self) -> u64 {
        self.node_revision() + self.daemon_sets.revision()
    }

    /// A number that changes when a node, a fabric or a namespace changes.
    pub(crate) fn node_revision(&self) -> u64 {
        self.fabrics.revision()
            + self.fabric_nodes.revision()
            + self.nodes.revision()
            + self.namespaces.revision()
    }
}

/// An event of a watch.
pub(crate) struct WatchEvent {
    /// The epoch of the leader that has written the status of the object; 0 where none has.
    pub(crate) leader_epoch: u64,
    apply: Box<dyn FnOnce(&mut Cache) + Send>,
}

impl WatchEvent {
    /// An event of the watch of a kind.
    pub(crate) fn new<K: Cached>(
        event: watcher::Event<K>,
        store: fn(&mut Cache) -> &mut Store<K>,
    ) -> Self {
        let epoch = match &event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                object.leader_epoch()
            }
            watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => 0,
        };
        Self {
            leader_epoch: u64::try_from(epoch).unwrap_or(0),
            apply: Box::new(move |cache| store(cache).apply_event(event)),
        }
    }

    /// Applies it to the cache.
    pub(crate) fn apply_to(self, cache: &mut Cache) {
        (self.apply)(cache);
    }
}

fn watch_kind<K: Cached>(
    client: &Client,
    namespace: &str,
    store: fn(&mut Cache) -> &mut Store<K>,
) -> stream::BoxStream<'static, WatchEvent> {
    let log_error = |result: watcher::Result<watcher::Event<K>>| {
        let result = result.inspect_err(|error| {
            let kind = K::kind(&());
            tracing::warn!(%error, %kind, "a watch broke off; it begins again");
        });
        std::future::ready(result.ok())
    };
    let events = watcher(K::api(client.clone(), namespace), K::watched());
    let events = events.default_backoff().filter_map(log_error);
    events
        .map(move |event| WatchEvent::new(event, store))
        .boxed()
}
