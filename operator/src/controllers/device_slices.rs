//! The ResourceSlices by which the scheduler knows how many virtual devices a node has: one pool for each node of a fabric
//! with `spec.devices`, named after the node.
//!
//! They say what there is to count. A device itself is made by the node's device plugin when a pod has a claim for it.

use std::collections::{BTreeMap, BTreeSet};

use kube::{Resource as _, ResourceExt as _};
use serde_json::{Map, Value, json};
use weft_crds::{Devices, FabricNode, FabricNodeStatus};
use weft_proto::operator::STOPPING;

use super::{
    cache::{Key, uid},
    controller::{Controller, ReconcileContext, Setup},
    fabric::agents::{APPLIED, FABRIC_LABEL},
    kinds::Cache,
    request::{Change, Request},
    resource_slice::ResourceSlice,
};
use crate::{claims::DRIVER, consumable_capacity};

/// Devices of one slice: what the API takes (`ResourceSliceMaxDevices`).
const DEVICES_PER_SLICE: u32 = 128;
/// Devices of one node. A scheduler keeps every one of them in memory, and so does the API server: four times the default of
/// `spec.devices.perNode`.
const DEVICES_MAX: u32 = 1024;
/// Of an attribute: what the API takes (`DeviceAttributeMaxValueLength`).
const STRING_BYTES_MAX: usize = 64;
/// The generation of the slice's pool.
const GENERATION: &str = "weft.dev/pool-generation";
/// Greater ones are believed of no slice: the API takes an i64, and a kubelet can write to the slices of its own node.
const GENERATION_MAX: u64 = i64::MAX as u64 / 2;
/// What the devices of a pool are written from, to be raised with each change of how they are written.
const FORMAT: u32 = 1;

/// Decides which slices there are.
pub(crate) struct SliceController {
    /// Whether devices are given by claims.
    is_enabled: bool,
    has_consumable_capacity: bool,
}

impl SliceController {
    pub(crate) fn new(setup: &Setup<'_>) -> Self {
        Self {
            is_enabled: setup.context.resource_slices,
            has_consumable_capacity: setup.context.consumable_capacity,
        }
    }
}

impl Controller for SliceController {
    fn name(&self) -> &'static str {
        "resourceslices"
    }

    fn reconcile(&mut self, context: &mut ReconcileContext<'_>) {
        if self.is_enabled && context.cache.resource_slices.is_synced() {
            let requests = decide(context.cache, self.has_consumable_capacity);
            context.submit(&Key::default(), requests);
        }
    }
}

/// The slices of one node.
struct Pool<'a> {
    node: &'a FabricNode,
    status: &'a FabricNodeStatus,
    devices: &'a Devices,
    /// Claims share one device, which has the others as its capacity.
    is_shared: bool,
}

/// What is to be written so that each node has its slices.
fn decide(cache: &Cache, has_consumable_capacity: bool) -> Vec<Request> {
    let mut existing: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    let mut requests = Vec::new();
    // Names of slices that are no node's own. What has the place of one is written after they have gone.
    let mut taken = BTreeSet::new();
    for (key, slice) in cache.resource_slices.iter() {
        let found = Slice::of(key, slice);
        match owner(cache, slice) {
            Some(node) => existing.entry(node).or_default().push(found),
            None => {
                requests.extend(found.delete());
                taken.insert(key);
            }
        }
    }
    for (key, node) in cache.fabric_nodes.iter() {
        let existing = existing.remove(&*key.name).unwrap_or_default();
        let Some(devices) = devices(cache, node) else {
            requests.extend(existing.iter().filter_map(Slice::delete));
            continue;
        };
        match reported(node) {
            Some(status) => {
                let pool = Pool {
                    node,
                    status,
                    devices,
                    is_shared: has_consumable_capacity,
                };
                let of_pool = pool.requests(&existing).into_iter();
                requests.extend(of_pool.filter(|request| !taken.contains(&request.key)));
            }
            None if says_why(node) => requests.extend(existing.iter().filter_map(Slice::delete)),
            // An agent that starts or stops does not say what there is: the pool stays as it is.
            None => {}
        }
    }
    requests
}

/// The node whose own slice it is. A kubelet chooses names, labels and owners of the slices that it makes for its node, but
/// the API server lets it make none for another node.
fn owner<'a>(cache: &Cache, slice: &'a ResourceSlice) -> Option<&'a str> {
    let node = cache.fabric_nodes.named(&slice.spec.node_name)?;
    let mut owners = slice.owner_references().iter();
    let is_own = slice.spec.driver == DRIVER && owners.any(|owner| owner.uid == uid(node));
    is_own.then_some(&slice.spec.node_name)
}

/// The devices that a node has by its fabric.
fn devices<'a>(cache: &'a Cache, node: &FabricNode) -> Option<&'a Devices> {
    let fabric = cache.fabrics.named(&node.spec.fabric)?;
    let is_there = node.metadata.deletion_timestamp.is_none();
    fabric.spec.devices.as_ref().filter(|_| is_there)
}

/// What the node's agent has said last. None where that was without the data interface.
fn reported(node: &FabricNode) -> Option<&FabricNodeStatus> {
    let status = node.status.as_ref();
    status.filter(|status| !status.data_address.is_empty())
}

/// Whether the node's agent says why it does not work, as when the data interface is missing: pods that came would wait. One
/// that is replaced says that it ends.
fn says_why(node: &FabricNode) -> bool {
    let mut findings = node.status.iter().flat_map(|status| &status.findings);
    findings.any(|finding| finding.reason != STOPPING)
}

/// A slice as the API server has it.
struct Slice {
    key: Key,
    uid: String,
    is_deleted: bool,
    has_finalizers: bool,
    applied: String,
    /// 0 where it says none that is believed.
    generation: u64,
}

impl Slice {
    fn of(key: &Key, slice: &ResourceSlice) -> Self {
        let annotation = |name: &str| slice.annotations().get(name).cloned();
        let generation = annotation(GENERATION).and_then(|text| text.parse().ok());
        let generation = generation.filter(|generation| *generation <= GENERATION_MAX);
        Self {
            key: key.clone(),
            uid: uid(slice),
            is_deleted: slice.meta().deletion_timestamp.is_some(),
            has_finalizers: !slice.finalizers().is_empty(),
            applied: annotation(APPLIED).unwrap_or_default(),
            generation: generation.unwrap_or_default(),
        }
    }

    fn delete(&self) -> Option<Request> {
        let change = match (self.is_deleted, self.has_finalizers) {
            (false, _) => Change::Delete,
            // With a finalizer it would keep its name.
            (true, true) => Change::MergeMetadata(json!({"finalizers": null})),
            (true, false) => return None,
        };
        Some(Request {
            uid: self.uid.clone(),
            ..Request::new::<ResourceSlice>(self.key.clone(), change)
        })
    }
}

impl Pool<'_> {
    fn count(&self) -> u32 {
        match self.is_shared {
            true => self.devices.per_node,
            false => self.devices.per_node.min(DEVICES_MAX),
        }
    }

    fn slices(&self) -> u32 {
        match self.is_shared {
            true => 1,
            false => self.count().div_ceil(DEVICES_PER_SLICE),
        }
    }

    fn key(&self, slice: u32) -> Key {
        Key::cluster_scoped(&format!("vdev-{}-{slice}", self.node.name_any()))
    }

    /// Of each device: what its claims can select by.
    fn attributes(&self) -> Map<String, Value> {
        let FabricNodeStatus {
            interface,
            nics,
            link_mbps,
            numa_node,
            pcie_root,
            ..
        } = self.status;
        // A device has the first NIC only.
        let link_mbps = nics.first().map_or(link_mbps, |nic| &nic.mbps);
        // The API refuses other lengths.
        let is_value = |text: &&String| (1..=STRING_BYTES_MAX).contains(&text.len());
        let texts = [
            ("fabric", &self.node.spec.fabric),
            ("link", interface),
            ("resource.kubernetes.io/pcieRoot", pcie_root),
        ];
        let texts = texts.into_iter().filter(|(_, text)| is_value(text));
        let numbers = [
            ("linkMbps", Some(*link_mbps).filter(|mbps| *mbps > 0)),
            ("capMbps", self.devices.cap_mbps),
            ("share", Some(self.devices.share)),
            ("numaNode", *numa_node),
        ];
        let numbers = numbers
            .into_iter()
            .filter_map(|(name, number)| Some((name.to_owned(), json!({"int": number?}))));
        let texts = texts.map(|(name, text)| (name.to_owned(), json!({"string": text})));
        texts.chain(numbers).collect()
    }

    /// Names what the slices are written from; equal pools have equal names.
    fn hash(&self) -> String {
        let owner = uid(self.node);
        let (count, attributes) = (self.count(), self.attributes());
        let text = json!([FORMAT, owner, count, attributes, self.is_shared]).to_string();
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }

    /// The scheduler uses a pool when all its slices have the same generation and none is missing. So a change of the pool
    /// gives all of them another one.
    fn requests(&self, existing: &[Slice]) -> Vec<Request> {
        let hash = self.hash();
        let wanted: BTreeSet<Key> = (0..self.slices()).map(|slice| self.key(slice)).collect();
        let is_right = |slice: &&Slice| {
            slice.applied == hash && wanted.contains(&slice.key) && slice.generation > 0
        };
        let newest = |slices: &[&Slice]| slices.iter().map(|slice| slice.generation).max();
        let (right, wrong): (Vec<&Slice>, Vec<&Slice>) = existing.iter().partition(is_right);
        let generation = match (newest(&right), newest(&wrong)) {
            // The others are being written.
            (Some(right), wrong) if wrong.is_none_or(|wrong| right > wrong) => right,
            (right, wrong) => right.max(wrong).unwrap_or_default() + 1,
        };
        let mut requests = Vec::new();
        for slice in 0..self.slices() {
            let key = self.key(slice);
            let found = existing.iter().find(|slice| slice.key == key);
            let is_written =
                found.is_some_and(|slice| slice.applied == hash && slice.generation == generation);
            if !is_written {
                let manifest = self.manifest(slice, generation, &hash);
                requests.push(Request {
                    // One that is deleted meanwhile is not brought back by a late answer.
                    uid: found.map(|slice| slice.uid.clone()).unwrap_or_default(),
                    ..Request::new::<ResourceSlice>(key, Change::Apply(manifest))
                });
            }
        }
        let surplus = existing.iter().filter(|slice| !wanted.contains(&slice.key));
        requests.extend(surplus.filter_map(Slice::delete));
        requests
    }

    fn manifest(&self, slice: u32, generation: u64, hash: &str) -> Value {
        let node = self.node.name_any();
        json!({
            "metadata": {
                "labels": { FABRIC_LABEL: self.node.spec.fabric },
                "annotations": { APPLIED: hash, GENERATION: generation.to_string() },
                "ownerReferences": [{
                    "apiVersion": FabricNode::api_version(&()),
                    "kind": FabricNode::kind(&()),
                    "name": node,
                    "uid": uid(self.node),
                }],
            },
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {
                    "name": node,
                    "generation": generation,
                    "resourceSliceCount": self.slices(),
                },
                "devices": self.devices(slice),
            },
        })
    }

    /// Those of one slice.
    fn devices(&self, slice: u32) -> Vec<Value> {
        let attributes = Value::Object(self.attributes());
        if self.is_shared {
            // A request takes one, however it is written; one for two devices says so by its count.
            let one = json!({"default": "1", "validValues": ["1"]});
            let capacity = json!({"value": self.count().to_string(), "requestPolicy": one});
            return vec![json!({
                "name": "vdev",
                "attributes": attributes,
                consumable_capacity::FIELD: true,
                "capacity": {"devices": capacity},
            })];
        }
        let first = slice * DEVICES_PER_SLICE;
        let end = (first + DEVICES_PER_SLICE).min(self.count());
        let device = |number| json!({"name": format!("vdev-{number}"), "attributes": attributes});
        (first..end).map(device).collect()
    }
}

#[cfg(test)]
mod tests;
