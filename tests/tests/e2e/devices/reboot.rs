//! A node that boots again, and what another boot has left.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use serde_json::json;
use weft_cluster::Order;

use super::{Devices, PER_NODE, TEAM, claims, pod};
use crate::test_cluster::report;

const NODE: &str = "node2";
/// The label of the pods that run when the node's power is cut.
const APP: &str = "reboot";
/// A pod with a claim, and a Deployment whose pod has a device by the resource.
const BY_CLAIM: &str = "by-claim";
const BY_RESOURCE: &str = "by-resource";

/// As where the directory outlives a boot, and where one was cut off while it was written.
pub(super) fn files_of_another_boot_for_the_container_runtime_do_no_harm(devices: &Devices) {
    let cluster = &devices.cluster;
    let directory = format!("/proc/{}/root/var/run/cdi", devices.plugin(NODE));
    let gone = json!({
        "cdiVersion": "0.6.0",
        "kind": "weft.dev/vdev",
        "devices": [{"name": "vdev-00001", "containerEdits": {"mounts": [
            {"hostPath": "/run/weft/devices/of-another-boot", "containerPath": "/dev/weft/weft0"},
        ]}}],
    });
    for (id, text) in [
        ("vdev-00000", r#"{"cdiVersion": "0.6"#),
        ("vdev-00001", &gone.to_string()),
    ] {
        fs::write(format!("{directory}/weft.dev-vdev_{id}.json"), text).unwrap();
    }
    // One of each is among the devices of the pod, or none is left that it could have.
    cluster.apply(&pod(TEAM, "all", NODE, PER_NODE));
    devices.wait_for(TEAM, "all");
    let shown = devices.run((TEAM, "all"), &["ibv_devices"]);
    assert_eq!(shown.matches("weft").count() as u64, PER_NODE, "{shown}");
    devices.delete(TEAM, "all");
    for (id, text) in [
        ("vdev-00000", "half a file"),
        ("vdev-00001", &gone.to_string()),
    ] {
        fs::write(format!("{directory}/weft.dev-vdev_{id}.json"), text).unwrap();
    }
    cluster.wait_until("what no pod has is removed", || {
        (devices.made(NODE, "vdev-") == [0, 0]).then_some(())
    });
}

/// Pods that are ready, each with its container.
fn ready(devices: &Devices) -> BTreeMap<String, String> {
    let label = format!("-l=app={APP}");
    let pods = devices
        .cluster
        .json(&["get", "pods", "--namespace", TEAM, &label]);
    let pods = pods["items"].as_array().unwrap().iter();
    let ready = pods.filter_map(|pod| {
        let container = &pod["status"]["containerStatuses"][0];
        let name = pod["metadata"]["name"].as_str()?.to_owned();
        let id = container["containerID"].as_str()?.to_owned();
        (container["ready"] == true).then_some((name, id))
    });
    ready.collect()
}

/// The same pod by a claim. By the resource the kubelet fails the pod that was there, and its Deployment makes another.
pub(super) fn pods_of_a_node_whose_power_was_cut_run_again_with_devices(devices: &Devices) {
    let cluster = &devices.cluster;
    cluster.apply(&claims::template());
    let mut by_claim = claims::pod(BY_CLAIM, NODE);
    by_claim["metadata"]["labels"] = json!({"app": APP});
    cluster.apply(&by_claim);
    let labels = json!({"app": APP, "made": BY_RESOURCE});
    let template = pod(TEAM, BY_RESOURCE, NODE, 1);
    cluster.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": BY_RESOURCE, "namespace": TEAM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }));
    let before = cluster.wait_until("both pods run", || {
        let pods = ready(devices);
        (pods.len() == 2).then_some(pods)
    });

    let begun = Instant::now();
    let reboot = Order::RebootNode(NODE.to_owned());
    cluster.inner.ask(&reboot).unwrap();
    report("power cut until the node's programs are started", begun);
    let by_resource = cluster.wait_until("pods run again by claim and by resource", || {
        let mut pods = ready(devices);
        pods.retain(|name, container| before.get(name) != Some(container));
        pods.remove(BY_CLAIM)?;
        pods.into_keys().next()
    });
    report("the same until pods have devices again", begun);
    devices.wait_for_node(NODE, PER_NODE);
    let [a, _] = devices.two_pods();
    for name in [BY_CLAIM, &by_resource] {
        let said = devices.pair(a, (TEAM, name), &["ibv_rc_pingpong", "-c", "-g", "0"]);
        said.unwrap_or_else(|said| cluster.fail(&format!("{name}: {said}")));
    }
    cluster.wait_until("only these pods have devices", || {
        let counts = ["vdev-", "dra-"].map(|kind| devices.made(NODE, kind));
        (counts == [[1, 1], [1, 1]]).then_some(())
    });
    devices.delete(TEAM, BY_CLAIM);
    // With what is left of pods that failed.
    let deployment = format!("deployment/{BY_RESOURCE}");
    let delete = [
        "delete",
        &deployment,
        "--cascade=foreground",
        "--namespace",
        TEAM,
    ];
    cluster.kubectl(&delete);
}
