//! The objects of the API that decisions are made from, as the API server has them.
//!
//! Written by the one task that owns it: from watches, and from the answers to its own writes, so that
//! a decision never overlooks what an earlier one did. Beside the ticket key, holds nothing that only this
//! process knows.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Node},
};
use kube::{
    Resource, ResourceExt as _,
    core::{ObjectMeta, PartialObjectMeta},
    runtime::watcher::Event,
};
use weft_crds::{FabricNode, RdmaFabric, TransferJob};
use weft_transfer::Vault;

use super::secret::SecretFault;

/// An object of its kind; the namespace of a cluster's object is "".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Key {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
}

impl Key {
    /// Of an object.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Of a cluster's object.
    pub(super) fn cluster(name: &str) -> Self {
        Self {
            namespace: String::new(),
            name: name.to_owned(),
        }
    }
}

/// An object that decisions are made from.
pub(super) trait Told: Resource {
    /// Whether anything but its version is another.
    fn differs(&self, other: &Self) -> bool;
}

impl<T> Told for PartialObjectMeta<T>
where
    Self: Resource,
{
    fn differs(&self, other: &Self) -> bool {
        bare(self.meta()) != bare(other.meta())
    }
}

macro_rules! told {
    ($($kind:ty)*) => {$(
        impl Told for $kind {
            fn differs(&self, other: &Self) -> bool {
                bare(self.meta()) != bare(other.meta())
                    || self.spec != other.spec
                    || self.status != other.status
            }
        }
    )*};
}

told!(RdmaFabric FabricNode TransferJob);

/// Without what changes with every write, whatever it was about.
fn bare(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        resource_version: None,
        managed_fields: None,
        ..metadata.clone()
    }
}

/// All objects of a kind.
#[derive(Debug, Clone)]
pub(super) struct Kept<K> {
    /// Boxed: a map keeps room for more than it has, and a job is large.
    objects: BTreeMap<Key, Box<K>>,
    /// What a listing has brought so far; it replaces everything once it is whole.
    listing: Option<BTreeMap<Key, Box<K>>>,
    is_whole: bool,
    /// Counts what has changed something.
    revision: u64,
    /// What has changed since it was last asked.
    changed: BTreeSet<Key>,
}

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: None,
            is_whole: false,
            revision: 0,
            changed: BTreeSet::new(),
        }
    }
}

impl<K: Told> Kept<K> {
    /// Everything that there is has been listed once.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Takes what a watch says.
    pub(super) fn take(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(mut object) => {
                strip(object.meta_mut());
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
                self.is_whole = true;
                self.revision += 1;
                self.changed.extend(before.into_keys());
                self.changed.extend(self.objects.keys().cloned());
            }
            Event::Apply(object) => self.learn(object),
            Event::Delete(object) => {
                let key = Key::of(object.meta());
                let known = self.get(&key);
                if known.is_some_and(|known| known.meta().uid == object.meta().uid) {
                    self.forget(&key);
                }
            }
        }
    }

    /// An object as the API server has it, unless something newer is known.
    pub(super) fn learn(&mut self, mut object: K) {
        let key = Key::of(object.meta());
        let known = self.get(&key);
        if known.is_some_and(|known| is_newer(known.meta(), object.meta())) {
            return;
        }
        strip(object.meta_mut());
        // A node's heartbeat is no news.
        if known.is_none_or(|known| known.differs(&object)) {
            self.revision += 1;
            self.changed.insert(key.clone());
        }
        self.objects.insert(key, Box::new(object));
    }

    /// It is no more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.objects.remove(key);
        self.revision += 1;
        self.changed.insert(key.clone());
    }

    /// What has changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Another number when something may have changed since.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The object of that name.
    pub(super) fn get(&self, key: &Key) -> Option<&K> {
        self.objects.get(key).map(Box::as_ref)
    }

    /// The cluster's object of that name.
    pub(super) fn named(&self, name: &str) -> Option<&K> {
        self.get(&Key::cluster(name))
    }

    /// All of them, by their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &K)> {
        self.objects.iter().map(|(key, object)| (key, &**object))
    }
}

impl<K: Told> FromIterator<K> for Kept<K> {
    fn from_iter<T: IntoIterator<Item = K>>(objects: T) -> Self {
        let mut kept = Self {
            is_whole: true,
            ..Self::default()
        };
        for object in objects {
            kept.learn(object);
        }
        kept
    }
}

/// Of the same object, and later. Resource versions are opaque by the API's letter and revisions of
/// etcd in fact; where they are no numbers, what came last counts.
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

/// Everything that decisions are made from, but for what this process knows alone.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    /// The fabrics.
    pub(super) fabrics: Kept<RdmaFabric>,
    /// Their nodes, as the operator last described them.
    pub(super) fabric_nodes: Kept<FabricNode>,
    /// The jobs.
    pub(super) jobs: Kept<TransferJob>,
    /// The cluster's nodes: labels are all that is asked of them.
    pub(super) nodes: Kept<PartialObjectMeta<Node>>,
    /// The namespaces, likewise.
    pub(super) namespaces: Kept<PartialObjectMeta<Namespace>>,
    /// The agents' DaemonSets, likewise.
    pub(super) daemon_sets: Kept<PartialObjectMeta<DaemonSet>>,
    /// The public key of this leader's tickets: part of what agents are told, and of no object.
    pub(super) ticket_key: String,
    /// What came of the last looks at the Secrets that jobs name; what they hold is kept nowhere.
    pub(super) secrets: BTreeMap<Key, Result<(), SecretFault>>,
    /// The way to them, which transfers are given.
    pub(super) vault: Vault,
}

impl World {
    /// Every kind has been listed once.
    pub(super) fn is_whole(&self) -> bool {
        self.fabrics.is_whole()
            && self.fabric_nodes.is_whole()
            && self.jobs.is_whole()
            && self.nodes.is_whole()
            && self.namespaces.is_whole()
            && self.daemon_sets.is_whole()
    }

    /// The jobs that have changed since this was last asked; of the other kinds the numbers below tell.
    pub(super) fn take_changed_jobs(&mut self) -> BTreeSet<Key> {
        self.fabrics.take_changed();
        self.fabric_nodes.take_changed();
        self.nodes.take_changed();
        self.namespaces.take_changed();
        self.daemon_sets.take_changed();
        self.jobs.take_changed()
    }

    /// Another number when anything but a job has changed since.
    pub(super) fn surroundings(&self) -> u64 {
        self.layout() + self.daemon_sets.revision()
    }

    /// Another number when what jobs are laid out by may have changed since: who is where, and how
    /// it is reached.
    pub(super) fn layout(&self) -> u64 {
        self.fabrics.revision()
            + self.fabric_nodes.revision()
            + self.nodes.revision()
            + self.namespaces.revision()
    }
}

/// A node's fabric and whether it is ready, by its FabricNode.
pub(super) fn readiness(
    node: &FabricNode,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    let conditions = &node.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
}

/// Its UID; "" of an object that the API server has never seen.
pub(super) fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str, version: &str) -> PartialObjectMeta<Node> {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        PartialObjectMeta {
            metadata,
            ..PartialObjectMeta::default()
        }
    }

    fn version(kept: &Kept<PartialObjectMeta<Node>>, name: &str) -> Option<String> {
        kept.named(name)?.metadata.resource_version.clone()
    }

    #[test]
    fn a_heartbeat_is_no_news_and_a_label_is() {
        let mut kept = Kept::default();
        kept.learn(node("a", "1", "9"));
        let before = kept.revision();
        assert_eq!(kept.take_changed().len(), 1);
        kept.take(Event::Apply(node("a", "1", "10")));
        assert_eq!((kept.revision(), kept.take_changed().len()), (before, 0));
        assert_eq!(version(&kept, "a").unwrap(), "10");
        let mut labelled = node("a", "1", "11");
        labelled.metadata.labels = Some([("gpu".to_owned(), "true".to_owned())].into());
        kept.take(Event::Apply(labelled));
        assert!(kept.revision() > before);
        assert_eq!(kept.take_changed().len(), 1);
        kept.forget(&Key::cluster("a"));
        assert_eq!(kept.take_changed().len(), 1);
    }

    #[test]
    fn a_late_event_does_not_undo_an_answer() {
        let mut kept = Kept::default();
        kept.learn(node("a", "1", "9"));
        kept.take(Event::Apply(node("a", "1", "8")));
        assert_eq!(version(&kept, "a").unwrap(), "9");
        kept.take(Event::Apply(node("a", "1", "10")));
        assert_eq!(version(&kept, "a").unwrap(), "10");
    }

    #[test]
    fn an_object_made_anew_under_the_same_name_replaces_the_old_one() {
        let mut kept = Kept::default();
        kept.learn(node("a", "1", "9"));
        kept.take(Event::Apply(node("a", "2", "4")));
        assert_eq!(version(&kept, "a").unwrap(), "4");
        // The old one's end is no news of the new one.
        kept.take(Event::Delete(node("a", "1", "12")));
        assert!(kept.named("a").is_some());
    }

    #[test]
    fn a_listing_replaces_everything_when_it_is_whole_and_not_before() {
        let mut kept = Kept::default();
        kept.take(Event::Init);
        kept.take(Event::InitApply(node("a", "1", "1")));
        assert!(!kept.is_whole() && kept.named("a").is_none());
        kept.take(Event::InitDone);
        assert!(kept.is_whole());
        kept.take(Event::Apply(node("b", "2", "2")));
        kept.learn(node("a", "1", "7"));
        kept.take(Event::Init);
        kept.take(Event::InitApply(node("a", "1", "3")));
        assert!(kept.named("b").is_some());
        kept.take(Event::InitDone);
        assert!(kept.named("b").is_none());
        assert_eq!(version(&kept, "a").unwrap(), "7");
    }
}
