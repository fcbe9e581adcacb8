//! What is shown of the devices of pods: in FabricNodes, and by `kubectl weft devices`.

use serde_json::Value;

use super::{Devices, OTHER_TEAM, PER_NODE, TEAM};
use crate::plugin;

/// What `kubectl weft devices` lists of a namespace.
pub(super) fn listed(devices: &Devices, namespace: &str) -> Vec<Value> {
    // The API server asks the operator for its live resources now and then only.
    let live = "apiservice/v1alpha1.live.weft.dev";
    let available = ["wait", "--for=condition=Available", live, "--timeout=120s"];
    devices.cluster.kubectl(&available);
    let list = plugin::told(
        &devices.cluster,
        &["devices", "--namespace", namespace, "-o=json"],
    );
    list["items"].as_array().unwrap().clone()
}

/// Of a, b and c of team-a, which have exchanged bytes.
pub(super) fn devices_are_shown(devices: &Devices) {
    let cluster = &devices.cluster;
    let counts =
        "-o=jsonpath={.status.devices.total} {.status.devices.inUse} {.status.devices.unhealthy}";
    let node_of = |pod: &str| {
        let path = "-o=jsonpath={.spec.nodeName}";
        cluster.kubectl(&["get", "pod", pod, "--namespace", TEAM, path])
    };
    let nodes = ["a", "b", "c"].map(node_of);
    for node in &nodes {
        let in_use = nodes.iter().filter(|one| *one == node).count();
        cluster.wait_until("the FabricNode counts devices", || {
            let said = cluster.inner.kubectl(&["get", "fabricnode", node, counts]);
            (said.ok()? == format!("{PER_NODE} {in_use} 0")).then_some(())
        });
    }
    // As the kubelet has it from the device plugin, behind the feature gate ResourceHealthStatus.
    cluster.wait_until("the pod's status says that its device is healthy", || {
        let path = "-o=jsonpath={.status.containerStatuses[*].allocatedResourcesStatus[*].resources[*].health}";
        let said = cluster.kubectl(&["get", "pod", "a", "--namespace", TEAM, path]);
        (said == "Healthy").then_some(())
    });
    let all = listed(devices, TEAM);
    let names: Vec<&Value> = all.iter().map(|device| &device["pod"]).collect();
    assert_eq!(names, ["a", "b", "c"], "{all:?}");
    cluster.wait_until("bytes of all pods are counted", || {
        let has_bytes = |device: &Value| {
            device["bytesSent"].as_u64() > Some(0) && device["bytesReceived"].as_u64() > Some(0)
        };
        listed(devices, TEAM).iter().all(has_bytes).then_some(())
    });
    assert_eq!(listed(devices, OTHER_TEAM), [Value::Null; 0]);
}

/// Of d of team-b to a of team-a.
pub(super) fn refused_offers_are_shown(devices: &Devices) {
    devices
        .cluster
        .wait_until("refused offers are counted", || {
            let all = listed(devices, TEAM);
            let a = all.iter().find(|device| device["pod"] == "a")?;
            (a["refusedOffers"].as_u64()? > 0).then_some(())
        });
}
