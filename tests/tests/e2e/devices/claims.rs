//! Virtual RDMA devices of pods by ResourceClaims.

use std::time::Instant;

use serde_json::{Value, json};
use weft_cluster::Order;

use super::faults::replace;
use super::{Devices, PER_NODE, TEAM};
use crate::account;
use crate::test_cluster::{TestCluster, report};

/// The ResourceClaimTemplate of the pods.
const TEMPLATE: &str = "vdev";

/// As docs/devices.md has it.
pub(super) fn template() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": TEMPLATE, "namespace": TEAM},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "rdma", "exactly": {"deviceClassName": "vdev.weft.dev"}},
        ]}}},
    })
}

/// The same pod as one that asks for the resource, but for how it asks.
pub(super) fn pod(name: &str, node: &str) -> Value {
    let mut pod = super::pod(TEAM, name, node, 1);
    let spec = &mut pod["spec"];
    spec["resourceClaims"] = json!([{"name": "vdev", "resourceClaimTemplateName": TEMPLATE}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "vdev"}]});
    pod
}

/// What the slices of a node have for the scheduler.
fn published(cluster: &TestCluster, node: &str) -> Vec<Value> {
    let slices = cluster.json(&["get", "resourceslices"]);
    let slices = slices["items"].as_array().unwrap().iter();
    let of_node = slices.filter(|slice| slice["spec"]["pool"]["name"] == node);
    let devices = of_node.flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
    devices.cloned().collect()
}

/// Until the node has published the one that all its claims share.
pub(super) fn wait_for_shared_device(cluster: &TestCluster, node: &str) {
    cluster.wait_until("the node's device is published", || {
        let devices = published(cluster, node);
        let capacity = &devices.first()?["capacity"]["devices"]["value"];
        let is_shared = *capacity == json!(PER_NODE.to_string());
        (is_shared && devices.len() == 1).then_some(())
    });
}

fn start(devices: &Devices, name: &str, node: &str) {
    devices.cluster.apply(&pod(name, node));
    devices.wait_for(TEAM, name);
}

pub(super) fn exchange(devices: &Devices, server: &str, client: &str) {
    for words in [
        &["ibv_rc_pingpong", "-c", "-g", "0"][..],
        &["ib_write_bw", "-n", "200"],
    ] {
        let said = devices.pair((TEAM, server), (TEAM, client), words);
        let said = said.unwrap_or_else(|said| devices.cluster.fail(&format!("{words:?}: {said}")));
        assert!(said.contains("bytes"), "{said}");
    }
}

/// Kubelet, driver and pods come and go.
pub(super) fn pods_get_devices_by_dra(devices: &Devices) {
    let cluster = &devices.cluster;
    for node in ["node0", "node1"] {
        cluster.wait_until("the node's devices are published", || {
            (published(cluster, node).len() as u64 == PER_NODE).then_some(())
        });
    }
    account::resource_slices_of_other_drivers_are_not_the_operators(cluster);
    account::daemonsets_run_the_charts_agents_only(cluster);
    cluster.apply(&template());
    let begun = Instant::now();
    start(devices, "claim-a", "node0");
    report("a pod with a claim, until it is Ready", begun);
    start(devices, "claim-b", "node1");
    let said = devices.run((TEAM, "claim-a"), &["ibv_devinfo"]);
    assert!(said.contains("hca_id:\tweft0"), "{said}");
    assert!(said.contains("PORT_ACTIVE"), "{said}");
    exchange(devices, "claim-a", "claim-b");
    the_kubelet_is_restarted(devices);
    the_driver_is_restarted(devices);
    a_device_goes_with_its_pod(devices);
    a_pod_has_devices_both_ways(devices);
    // The device plugin leaves the claims' devices alone.
    devices.start(TEAM, "by-resource", "node0");
    exchange(devices, "by-resource", "claim-b");
    for name in ["claim-a", "claim-b", "by-resource"] {
        devices.delete(TEAM, name);
    }
}

fn the_kubelet_is_restarted(devices: &Devices) {
    let cluster = &devices.cluster;
    let kubelet = "node1/kubelet".to_owned();
    cluster.inner.ask(&Order::Kill(kubelet.clone())).unwrap();
    cluster.inner.ask(&Order::Start(kubelet)).unwrap();
    let begun = Instant::now();
    start(devices, "claim-c", "node1");
    let what = "kubelet restarted to the next pod with a claim Ready";
    report(what, begun);
    exchange(devices, "claim-a", "claim-b");
    exchange(devices, "claim-a", "claim-c");
}

fn the_driver_is_restarted(devices: &Devices) {
    replace(
        devices,
        "app.kubernetes.io/name=weft-device-plugin",
        "node1",
    );
    start(devices, "claim-d", "node1");
    exchange(devices, "claim-a", "claim-b");
    exchange(devices, "claim-a", "claim-d");
}

fn a_device_goes_with_its_pod(devices: &Devices) {
    let count = || devices.made("node1", "dra-")[0];
    assert_eq!(count(), 3, "those of claim-b, claim-c and claim-d");
    for pod in ["claim-c", "claim-d"] {
        devices.delete(TEAM, pod);
    }
    let gone = "the devices of pods that are gone are gone";
    devices
        .cluster
        .wait_until(gone, || (count() == 1).then_some(()));
    exchange(devices, "claim-a", "claim-b");
}

/// Each has a name of its own.
fn a_pod_has_devices_both_ways(devices: &Devices) {
    let mut both = pod("both-ways", "node1");
    both["spec"]["containers"][0]["resources"] = json!({
        "limits": {"weft.dev/vdev": 2},
        "claims": [{"name": "vdev"}],
    });
    devices.cluster.apply(&both);
    devices.wait_for(TEAM, "both-ways");
    let shown = devices.run((TEAM, "both-ways"), &["ibv_devices"]);
    for name in ["weft0", "weft1", "weft2"] {
        assert!(shown.contains(name), "{shown}");
    }
    devices.assert_in_sysfs("both-ways", 3);
    exchange(devices, "claim-a", "both-ways");
    devices.delete(TEAM, "both-ways");
}
