//! The objects of a kind, as the API server has them.
//!
//! A store is written by the one task that owns it: from watches, and from the responses to the task's own
//! writes, so that a decision never overlooks what an earlier one did.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Namespace};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::DynamicObject,
    core::{ObjectMeta, PartialObjectMeta},
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use weft_crds::{FabricNode, RdmaFabric, TransferJob};

use super::{cluster_node::ClusterNode, fabric::agents::FABRIC_LABEL};

/// A fabric that is deleted with this annotation does not wait for its jobs. No other
/// annotation of our own kinds is read.
pub(crate) const FORCE: &str = "weft.dev/force";

/// Namespace and name of an object. The namespace is empty for a cluster-scoped object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Key {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl Key {
    /// Of an object.
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Of a cluster's object.
    pub(crate) fn cluster_scoped(name: &str) -> Self {
        Self {
            namespace: String::new(),
            name: name.to_owned(),
        }
    }
}

/// A kind of object that the controllers watch.
pub(crate) trait Cached:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Whether the cache is complete without it: not every API server has the kind, and it is watched only if asked.
    const IS_OPTIONAL: bool = false;

    /// Whether the two differ in anything but their versions.
    fn differs(&self, other: &Self) -> bool;

    /// The epoch of the leader that wrote its status; 0 if none has.
    fn leader_epoch(&self) -> i64 {
        0
    }

    /// Where the objects are listed: everywhere, or in the operator's namespace.
    fn api(client: Client, _namespace: &str) -> Api<Self> {
        Api::all(client)
    }

    /// Which of them are watched.
    fn watched() -> watcher::Config {
        watcher::Config::default()
    }

    /// Drops what no decision reads, and is most of an object's bytes.
    fn strip(&mut self) {
        strip(self.meta_mut());
    }
}

impl Cached for ClusterNode {
    fn differs(&self, other: &Self) -> bool {
        metadata_differs(&self.metadata, &other.metadata) || self.status != other.status
    }
}

impl Cached for PartialObjectMeta<Namespace> {
    fn differs(&self, other: &Self) -> bool {
        without_volatile_fields(self.meta()) != without_volatile_fields(other.meta())
    }
}

impl Cached for PartialObjectMeta<DaemonSet> {
    fn differs(&self, other: &Self) -> bool {
        without_volatile_fields(self.meta()) != without_volatile_fields(other.meta())
    }

    fn api(client: Client, namespace: &str) -> Api<Self> {
        Api::namespaced(client, namespace)
    }

    fn watched() -> watcher::Config {
        watcher::Config::default().labels(FABRIC_LABEL)
    }
}

/// Objects of our own kinds in one answer to a list. A tenant can make each as large as etcd takes it, 1.5 MiB, and
/// read into memory it has several times that.
pub(crate) const PAGE: u32 = 16;

/// Our own kinds: their status says which leader wrote it.
macro_rules! cached {
    ($($kind:ty)*) => {$(
        impl $crate::controllers::cache::Cached for $kind {
            fn differs(&self, other: &Self) -> bool {
                $crate::controllers::cache::metadata_differs(&self.metadata, &other.metadata)
                    || self.spec != other.spec
                    || self.status != other.status
            }

            fn leader_epoch(&self) -> i64 {
                self.status.as_ref().map_or(0, |status| status.leader_epoch)
            }

            fn watched() -> ::kube::runtime::watcher::Config {
                let page = $crate::controllers::cache::PAGE;
                ::kube::runtime::watcher::Config::default().page_size(page)
            }

            fn strip(&mut self) {
                $crate::controllers::cache::strip_own(&mut self.metadata);
            }
        }
    )*};
}

cached!(RdmaFabric FabricNode TransferJob);

#[cfg(test)]
pub(crate) use cached;

/// Whether two metadata differ in anything but what every write changes.
pub(crate) fn metadata_differs(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    without_volatile_fields(one) != without_volatile_fields(other)
}

/// Metadata without what every write changes.
fn without_volatile_fields(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        resource_version: None,
        managed_fields: None,
        ..metadata.clone()
    }
}

/// All objects of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Store<K> {
    /// Boxed: a map keeps room for more than it has, and a job is large.
    objects: BTreeMap<Key, Box<K>>,
    /// What a listing has brought so far; it replaces everything once it is whole.
    listing: Option<BTreeMap<Key, Box<K>>>,
    is_synced: bool,
    /// Counts what has changed something.
    revision: u64,
    /// What has changed since the controllers last reconciled.
    changed: BTreeSet<Key>,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: None,
            is_synced: false,
            revision: 0,
            changed: BTreeSet::new(),
        }
    }
}

impl<K: Cached> Store<K> {
    /// Everything that there is has been listed once.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Applies an event of a watch.
    pub(crate) fn apply_event(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(mut object) => {
                object.strip();
                let listing = self.listing.get_or_insert_default();
                listing.insert(Key::of(object.meta()), Box::new(object));
            }
            Event::InitDone => {
                let listing = self.listing.take().unwrap_or_default();
                let mut before = std::mem::replace(&mut self.objects, listing);
                for (key, object) in &mut self.objects {
                    if let Some(known) = before.remove(key)
                        && is_newer(known.meta(), object.meta())
                    {
                        *object = known;
                    }
                }
                self.is_synced = true;
                self.revision += 1;
                self.changed.extend(before.into_keys());
                self.changed.extend(self.objects.keys().cloned());
            }
            Event::Apply(object) => self.update(object),
            Event::Delete(object) => {
                let key = Key::of(object.meta());
                let known = self.get(&key);
                if known.is_some_and(|known| known.meta().uid == object.meta().uid) {
                    self.forget(&key);
                }
            }
        }
    }

    /// Stores an object as the API server has it, unless a newer version is stored.
    pub(crate) fn update(&mut self, mut object: K) {
        let key = Key::of(object.meta());
        let known = self.get(&key);
        if known.is_some_and(|known| is_newer(known.meta(), object.meta())) {
            return;
        }
        object.strip();
        // A node's heartbeat is no news.
        if known.is_none_or(|known| known.differs(&object)) {
            self.revision += 1;
            self.changed.insert(key.clone());
        }
        self.objects.insert(key, Box::new(object));
    }

    /// Stores the object from a response of the API server. `uid` is the object's UID, or "" for an object that the
    /// request created; `None` means that it is deleted. Ignores a response about an object that a watch has
    /// already removed. If the response cannot be parsed, the watch brings the object.
    pub(crate) fn store_response(&mut self, key: &Key, uid: &str, response: Option<DynamicObject>) {
        let known = self.get(key).and_then(|known| known.meta().uid.as_deref());
        if !uid.is_empty() && known != Some(uid) {
            return;
        }
        match response.map(DynamicObject::try_parse::<K>) {
            Some(Ok(object)) => self.update(object),
            Some(Err(error)) => {
                tracing::warn!(%error, "a response of the API server cannot be read");
            }
            None => self.forget(key),
        }
    }

    /// It is no more.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.objects.remove(key);
        self.revision += 1;
        self.changed.insert(key.clone());
    }

    /// What has changed since the controllers last reconciled.
    pub(crate) fn changed(&self) -> &BTreeSet<Key> {
        &self.changed
    }

    /// The controllers have reconciled.
    pub(crate) fn clear_changed(&mut self) {
        self.changed.clear();
    }

    /// Another number when something may have changed since.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The object of that name.
    pub(crate) fn get(&self, key: &Key) -> Option<&K> {
        self.objects.get(key).map(Box::as_ref)
    }

    /// The cluster's object of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&K> {
        self.get(&Key::cluster_scoped(name))
    }

    /// All of them, by their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &K)> {
        self.objects.iter().map(|(key, object)| (key, &**object))
    }
}

#[cfg(test)]
impl<K: Cached> FromIterator<K> for Store<K> {
    fn from_iter<T: IntoIterator<Item = K>>(objects: T) -> Self {
        let mut store = Self {
            is_synced: true,
            ..Self::default()
        };
        for object in objects {
            store.update(object);
        }
        store
    }
}

/// Whether `a` is a later version of the same object. The API calls resource versions opaque; in practice
/// they are etcd revisions. If they are not numbers, the later arrival wins.
fn is_newer(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| meta.resource_version.as_ref()?.parse::<u64>().ok();
    a.uid == b.uid && version(a).zip(version(b)).is_some_and(|(a, b)| a > b)
}

/// What no decision reads, and most of an object's bytes.
fn strip(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| key.starts_with("weft.dev/"));
    }
}

/// The same of our own kinds. What a tenant writes there has no bound but that of the whole object.
pub(crate) fn strip_own(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.labels = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| key == FORCE);
    }
    metadata.owner_references = None;
    if let Some(finalizers) = &mut metadata.finalizers {
        finalizers.retain(|name| name.starts_with("weft.dev/"));
    }
}

/// The Ready condition of a FabricNode, if it has one.
pub(crate) fn readiness(
    node: &FabricNode,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    let conditions = &node.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
}

/// Its UID; "" of an object that the API server has never seen.
pub(crate) fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str, version: &str) -> ClusterNode {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        ClusterNode {
            metadata,
            ..ClusterNode::default()
        }
    }

    fn version(store: &Store<ClusterNode>, name: &str) -> Option<String> {
        store.named(name)?.metadata.resource_version.clone()
    }

    #[test]
    fn a_heartbeat_is_no_news_and_a_label_is() {
        let mut store = Store::default();
        store.update(node("a", "1", "9"));
        let before = store.revision();
        assert_eq!(store.changed().len(), 1);
        store.clear_changed();
        store.apply_event(Event::Apply(node("a", "1", "10")));
        assert_eq!((store.revision(), store.changed().len()), (before, 0));
        assert_eq!(version(&store, "a").unwrap(), "10");
        let mut labelled = node("a", "1", "11");
        labelled.metadata.labels = Some([("gpu".to_owned(), "true".to_owned())].into());
        store.apply_event(Event::Apply(labelled));
        assert!(store.revision() > before);
        assert_eq!(store.changed().len(), 1);
        store.clear_changed();
        store.forget(&Key::cluster_scoped("a"));
        assert_eq!(store.changed().len(), 1);
    }

    #[test]
    fn a_late_event_does_not_undo_an_answer() {
        let mut store = Store::default();
        store.update(node("a", "1", "9"));
        store.apply_event(Event::Apply(node("a", "1", "8")));
        assert_eq!(version(&store, "a").unwrap(), "9");
        store.apply_event(Event::Apply(node("a", "1", "10")));
        assert_eq!(version(&store, "a").unwrap(), "10");
    }

    #[test]
    fn an_object_made_anew_under_the_same_name_replaces_the_old_one() {
        let mut store = Store::default();
        store.update(node("a", "1", "9"));
        store.apply_event(Event::Apply(node("a", "2", "4")));
        assert_eq!(version(&store, "a").unwrap(), "4");
        // The old one's end is no news of the new one.
        store.apply_event(Event::Delete(node("a", "1", "12")));
        assert!(store.named("a").is_some());
    }

    #[test]
    fn a_listing_replaces_everything_when_it_is_synced_and_not_before() {
        let mut store = Store::default();
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(node("a", "1", "1")));
        assert!(!store.is_synced() && store.named("a").is_none());
        store.apply_event(Event::InitDone);
        assert!(store.is_synced());
        store.apply_event(Event::Apply(node("b", "2", "2")));
        store.update(node("a", "1", "7"));
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(node("a", "1", "3")));
        assert!(store.named("b").is_some());
        store.apply_event(Event::InitDone);
        assert!(store.named("b").is_none());
        assert_eq!(version(&store, "a").unwrap(), "7");
    }

    #[test]
    fn what_a_tenant_writes_besides_the_spec_is_not_kept() {
        let names =
            |prefix: &'static str| (0..9).map(move |n| (format!("{prefix}{n}"), "text".to_owned()));
        let mut job: TransferJob = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "a", "namespace": "team", "uid": "1",
                "finalizers": ["example.org/one", "weft.dev/copies", "example.org/two"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "2"}],
            },
            "spec": {
                "source": {"file": {"node": "n", "root": "models", "path": "m"}},
                "destinations": {"nodes": ["n"], "root": "models", "path": "m"},
            },
        }))
        .unwrap();
        let metadata = &mut job.metadata;
        metadata.labels = Some(names("example.org/").collect());
        let annotations = names("example.org/").chain(names("weft.dev/"));
        metadata.annotations = Some(annotations.collect());
        let mut store = Store::default();
        store.update(job);
        let (_, kept) = store.iter().next().unwrap();
        let expected = ObjectMeta {
            name: Some("a".to_owned()),
            namespace: Some("team".to_owned()),
            uid: Some("1".to_owned()),
            finalizers: Some(vec!["weft.dev/copies".to_owned()]),
            annotations: Some(BTreeMap::new()),
            ..ObjectMeta::default()
        };
        assert_eq!(kept.metadata, expected);
    }
}
