use super::*;
use crate::controllers::tests::scenario;

/// A fabric of n1 and n2 with so many devices, and what there is of slices.
fn cache(per_node: u32) -> Cache {
    let mut cache = scenario::cache(2);
    set_devices(&mut cache, Some(per_node));
    for name in ["n1", "n2"] {
        let mut node = scenario::ready(name, "default");
        node.status.as_mut().unwrap().data_address = scenario::address(name);
        node.metadata.resource_version = Some("9".to_owned());
        cache.fabric_nodes.update(node);
    }
    cache
}

fn set_devices(cache: &mut Cache, per_node: Option<u32>) {
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    fabric.spec.devices =
        per_node.map(|per_node| serde_json::from_value(json!({"perNode": per_node})).unwrap());
    let version: u64 = fabric.resource_version().unwrap().parse().unwrap();
    fabric.metadata.resource_version = Some((version + 1).to_string());
    cache.fabrics.update(fabric);
}

/// Does what the API server does with a request. Returns the slice.
fn obey(cache: &mut Cache, request: &Request) -> Option<Value> {
    if request.change == Change::Delete {
        cache.resource_slices.forget(&request.key);
        return None;
    }
    let mut body = request.body(1);
    body["metadata"]["uid"] = json!(format!("slice-{}", request.key.name));
    let slice = serde_json::from_value(body.clone()).unwrap();
    cache.resource_slices.update(slice);
    Some(body)
}

/// The slices after all is written, by name.
fn settle(cache: &mut Cache) -> BTreeMap<String, Value> {
    settle_by(cache, false)
}

fn settle_by(cache: &mut Cache, has_consumable_capacity: bool) -> BTreeMap<String, Value> {
    let mut slices = BTreeMap::new();
    for request in decide(cache, has_consumable_capacity) {
        let slice = obey(cache, &request);
        slices.extend(slice.map(|slice| (request.key.name.clone(), slice)));
    }
    assert!(decide(cache, has_consumable_capacity).is_empty());
    slices
}

fn generations(cache: &Cache) -> Vec<u64> {
    let slices = cache.resource_slices.iter();
    slices
        .map(|(key, slice)| Slice::of(key, slice).generation)
        .collect()
}

#[test]
fn a_node_has_a_pool_with_its_devices_in_slices_of_what_the_api_takes() {
    let mut cache = cache(200);
    let slices = settle(&mut cache);
    let names: Vec<&String> = slices.keys().collect();
    assert_eq!(names, ["vdev-n1-0", "vdev-n1-1", "vdev-n2-0", "vdev-n2-1"]);
    let slice = &slices["vdev-n1-1"];
    let spec = &slice["spec"];
    assert_eq!(
        (&spec["driver"], &spec["nodeName"]),
        (&json!(DRIVER), &json!("n1"))
    );
    let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 2});
    assert_eq!(spec["pool"], pool);
    let devices = spec["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 72);
    let first = json!({
        "name": "vdev-128",
        "attributes": {
            "fabric": {"string": "default"},
            "linkMbps": {"int": 1000},
            "share": {"int": 100},
        },
    });
    assert_eq!(devices[0], first);
    assert_eq!(
        slice["metadata"]["ownerReferences"][0]["uid"],
        "fabric-node-n1"
    );
}

#[test]
fn a_device_says_where_its_nodes_interface_is_as_far_as_the_node_knows() {
    let mut cache = cache(1);
    let mut node = cache.fabric_nodes.named("n1").unwrap().clone();
    let status = node.status.as_mut().unwrap();
    status.interface = "rail0".to_owned();
    // Devices have the first NIC only.
    let nic = weft_crds::NodeNic {
        mbps: 1000,
        ..weft_crds::NodeNic::default()
    };
    status.nics = vec![nic.clone(), nic];
    status.link_mbps = 2000;
    status.numa_node = Some(1);
    status.pcie_root = "pci0000:17".to_owned();
    node.metadata.resource_version = Some("10".to_owned());
    cache.fabric_nodes.update(node);
    let mut other = cache.fabric_nodes.named("n2").unwrap().clone();
    other.status.as_mut().unwrap().pcie_root = "p".repeat(STRING_BYTES_MAX + 1);
    other.metadata.resource_version = Some("10".to_owned());
    cache.fabric_nodes.update(other);
    let slices = settle(&mut cache);
    let attributes = |slice: &str| slices[slice]["spec"]["devices"][0]["attributes"].clone();
    let wanted = json!({
        "fabric": {"string": "default"},
        "link": {"string": "rail0"},
        "linkMbps": {"int": 1000},
        "numaNode": {"int": 1},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
        "share": {"int": 100},
    });
    assert_eq!(attributes("vdev-n1-0"), wanted);
    // The API would refuse the whole slice.
    let wanted =
        json!({"fabric": {"string": "default"}, "linkMbps": {"int": 1000}, "share": {"int": 100}});
    assert_eq!(attributes("vdev-n2-0"), wanted);
}

#[test]
fn with_consumable_capacity_a_node_has_one_device_and_the_others_are_its_capacity() {
    let mut cache = cache(4000);
    assert_eq!(settle(&mut cache).len(), 2 * 8);
    let slices = settle_by(&mut cache, true);
    let names: Vec<&String> = slices.keys().collect();
    assert_eq!(names, ["vdev-n1-0", "vdev-n2-0"]);
    let spec = &slices["vdev-n1-0"]["spec"];
    let pool = json!({"name": "n1", "generation": 2, "resourceSliceCount": 1});
    assert_eq!(spec["pool"], pool);
    let wanted = json!([{
        "name": "vdev",
        "allowMultipleAllocations": true,
        "attributes": {"fabric": {"string": "default"}, "linkMbps": {"int": 1000}, "share": {"int": 100}},
        "capacity": {"devices": {
            "value": "4000",
            "requestPolicy": {"default": "1", "validValues": ["1"]},
        }},
    }]);
    assert_eq!(spec["devices"], wanted);
    assert_eq!(settle(&mut cache).len(), 2 * 8);
    assert!(
        generations(&cache)
            .iter()
            .all(|generation| *generation == 3)
    );
}

#[test]
fn another_number_of_devices_gives_all_slices_of_a_pool_another_generation() {
    let mut cache = cache(200);
    settle(&mut cache);
    set_devices(&mut cache, Some(129));
    // One write of each pool is answered before the others: these follow with the same generation.
    let requests = decide(&cache, false);
    assert_eq!(requests.len(), 4);
    obey(&mut cache, &requests[0]);
    obey(&mut cache, &requests[3]);
    settle(&mut cache);
    assert_eq!(generations(&cache), [2, 2, 2, 2]);
    set_devices(&mut cache, Some(1));
    let slices = settle(&mut cache);
    assert_eq!(slices["vdev-n1-0"]["spec"]["pool"]["resourceSliceCount"], 1);
    assert_eq!(generations(&cache), [3, 3]);
}

/// A kubelet removes the slices of its node when the driver is away for 30 s.
#[test]
fn slices_that_are_gone_are_written_again() {
    let mut cache = cache(200);
    settle(&mut cache);
    cache
        .resource_slices
        .forget(&Key::cluster_scoped("vdev-n2-1"));
    let requests = decide(&cache, false);
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].key.name, "vdev-n2-1");
    settle(&mut cache);
    assert_eq!(generations(&cache), [1, 1, 1, 1]);
}

#[test]
fn a_node_or_a_fabric_without_devices_has_no_slices() {
    let mut cache = cache(8);
    // Its agent has not reported.
    let mut new = scenario::ready("n3", "default");
    new.status = None;
    cache.fabric_nodes.update(new);
    assert_eq!(settle(&mut cache).len(), 2);
    cache.fabric_nodes.forget(&Key::cluster_scoped("n1"));
    settle(&mut cache);
    assert_eq!(generations(&cache).len(), 1);
    set_devices(&mut cache, None);
    settle(&mut cache);
    assert!(generations(&cache).is_empty());
}

/// What an agent says without a data interface.
fn without_interface(node: &mut FabricNode, reasons: &[&str]) {
    let status = node.status.as_mut().unwrap();
    let finding = |reason: &&str| weft_crds::Finding {
        reason: (*reason).to_owned(),
        message: String::new(),
    };
    *status = FabricNodeStatus {
        conditions: std::mem::take(&mut status.conditions),
        findings: reasons.iter().map(finding).collect(),
        ..FabricNodeStatus::default()
    };
}

/// Each of its reports without a data interface would cost the scheduler the node's devices.
#[test]
fn a_pool_stays_while_the_nodes_agent_is_replaced() {
    let mut cache = cache(200);
    settle(&mut cache);
    let before = cache.fabric_nodes.named("n1").unwrap().clone();
    let mut stopping = before.clone();
    without_interface(&mut stopping, &[STOPPING]);
    let mut starting = before.clone();
    without_interface(&mut starting, &[]);
    for (version, mut node) in [("10", stopping), ("11", starting), ("12", before)] {
        node.metadata.resource_version = Some(version.to_owned());
        cache.fabric_nodes.update(node);
        assert!(decide(&cache, false).is_empty(), "{version}");
    }
    assert_eq!(generations(&cache), [1, 1, 1, 1]);
}

#[test]
fn a_node_whose_data_interface_is_missing_has_no_pool_until_it_is_back() {
    let mut cache = cache(200);
    settle(&mut cache);
    let mut before = cache.fabric_nodes.named("n1").unwrap().clone();
    let mut missing = before.clone();
    without_interface(&mut missing, &["InterfaceMissing"]);
    missing.metadata.resource_version = Some("10".to_owned());
    cache.fabric_nodes.update(missing);
    settle(&mut cache);
    let left: Vec<&str> = cache
        .resource_slices
        .iter()
        .map(|(key, _)| &*key.name)
        .collect();
    assert_eq!(left, ["vdev-n2-0", "vdev-n2-1"]);
    before.metadata.resource_version = Some("11".to_owned());
    cache.fabric_nodes.update(before);
    assert_eq!(settle(&mut cache).len(), 2);
}

#[test]
fn a_pool_has_no_more_than_a_scheduler_can_keep() {
    let mut cache = cache(65_536);
    assert_eq!(settle(&mut cache).len(), 2 * 8);
}

/// A slice as a kubelet can make it: what it likes, but for its own node.
fn forge(cache: &mut Cache, name: &str, node: &str, owner: [&str; 2], generation: &str) {
    let slice = json!({
        "metadata": {
            "name": name,
            "uid": format!("forged-{name}"),
            "labels": { FABRIC_LABEL: "default" },
            "annotations": { GENERATION: generation },
            "ownerReferences": [{
                "apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "name": owner[0], "uid": owner[1],
            }],
        },
        "spec": {"driver": DRIVER, "nodeName": node},
    });
    cache
        .resource_slices
        .update(serde_json::from_value(slice).unwrap());
}

#[test]
fn a_kubelets_slices_change_no_other_nodes_pool() {
    let mut cache = cache(8);
    settle(&mut cache);
    let owner = ["n2", "fabric-node-n2"];
    for (name, generation) in [
        ("a", "9223372036854775807"),
        ("b", "18446744073709551615"),
        ("c", "7"),
    ] {
        forge(&mut cache, name, "n1", owner, generation);
        let requests = decide(&cache, false);
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(
            (&*requests[0].key.name, &requests[0].change),
            (name, &Change::Delete)
        );
        settle(&mut cache);
        assert_eq!(generations(&cache), [1, 1]);
    }
}

#[test]
fn a_slice_that_has_the_name_of_anothers_is_deleted_before_that_is_written() {
    let mut cache = cache(8);
    forge(&mut cache, "vdev-n2-0", "n1", ["n2", "fabric-node-n2"], "7");
    let requests = decide(&cache, false);
    let changes: Vec<(&str, bool)> = requests
        .iter()
        .map(|request| (&*request.key.name, request.change == Change::Delete))
        .collect();
    assert_eq!(changes, [("vdev-n2-0", true), ("vdev-n1-0", false)]);
    assert_eq!(requests[0].uid, "forged-vdev-n2-0");
    // A finalizer does not keep it there.
    let mut kept = cache.resource_slices.named("vdev-n2-0").unwrap().clone();
    kept.finalizers_mut().push("example.org/kept".to_owned());
    kept.meta_mut().deletion_timestamp =
        serde_json::from_value(json!("2026-11-28T00:00:00Z")).unwrap();
    cache.resource_slices.update(kept);
    let change = Change::MergeMetadata(json!({"finalizers": null}));
    assert_eq!(decide(&cache, false)[0].change, change);
    for request in &requests {
        obey(&mut cache, request);
    }
    let slices = settle(&mut cache);
    assert_eq!(slices["vdev-n2-0"]["spec"]["nodeName"], "n2");
    assert_eq!(generations(&cache), [1, 1]);
}

#[test]
fn a_generation_that_no_pool_reaches_is_written_over() {
    let mut cache = cache(8);
    settle(&mut cache);
    for generation in ["9223372036854775807", "18446744073709551615"] {
        forge(
            &mut cache,
            "vdev-n1-0",
            "n1",
            ["n1", "fabric-node-n1"],
            generation,
        );
        let slices = settle(&mut cache);
        assert_eq!(slices["vdev-n1-0"]["spec"]["pool"]["generation"], 1);
    }
    let mut right = cache.resource_slices.named("vdev-n1-0").unwrap().clone();
    let annotations = right.annotations_mut();
    annotations.insert(GENERATION.to_owned(), i64::MAX.to_string());
    cache.resource_slices.update(right);
    settle(&mut cache);
    assert_eq!(generations(&cache), [1, 1]);
}
