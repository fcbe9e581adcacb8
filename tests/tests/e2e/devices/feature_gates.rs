//! What Kubernetes 1.34 has behind feature gates: claims share one device of a node, pods ask for it by the resource, and the
//! status of a pod shows how its device is.

use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use weft_cluster::{DATA_INTERFACE, in_network_of};

use super::{Devices, PER_NODE, TEAM, claims, pod};
use crate::harness::process;
use crate::test_cluster::report;

/// Two claims, and the pods that have them.
const FIRST: &str = "first";
const SECOND: &str = "second";

/// A claim for so many devices. Each has a request of its own, because the scheduler of Kubernetes 1.34 panics at a request for two
/// of a device that is shared (kubernetes/kubernetes#133705).
fn claim(name: &str, count: u64) -> Value {
    let request = |number| {
        json!({
            "name": format!("rdma-{number}"),
            "exactly": {"deviceClassName": "vdev.weft.dev"},
        })
    };
    let requests: Vec<Value> = (0..count).map(request).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"devices": {"requests": requests}},
    })
}

/// A pod of the same name. A kubelet of 1.34 shows the health of a claim only where the pod lists it by the claim's own name.
fn start_with_claim(devices: &Devices, name: &str, node: &str, count: u64) {
    let mut pod = claims::pod(name, node);
    let spec = &mut pod["spec"];
    spec["resourceClaims"] = json!([{"name": name, "resourceClaimName": name}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": name}]});
    devices.cluster.apply(&claim(name, count));
    devices.cluster.apply(&pod);
    devices.wait_for(TEAM, name);
}

/// What the scheduler has given the first request of a claim.
fn allocated(devices: &Devices, claim: &str) -> Value {
    let get = ["get", "resourceclaim", claim, "--namespace", TEAM];
    let claim = devices.cluster.json(&get);
    claim["status"]["allocation"]["devices"]["results"][0].clone()
}

fn assert_is_of_node(result: &Value, node: &str) {
    let part = ["pool", "device", "consumedCapacity"].map(|name| &result[name]);
    let one = json!({"devices": "1"});
    assert_eq!(part, [&json!(node), &json!("vdev"), &one], "{result}");
}

pub(super) fn claims_share_a_device_pods_ask_by_the_resource_and_show_its_health(
    devices: &Devices,
) {
    start_with_claim(devices, FIRST, "node0", 1);
    start_with_claim(devices, SECOND, "node0", 1);
    let [first, second] = [FIRST, SECOND].map(|claim| allocated(devices, claim));
    for result in [&first, &second] {
        assert_is_of_node(result, "node0");
        assert!(result["shareID"].is_string(), "{result}");
    }
    assert_ne!(first["shareID"], second["shareID"]);

    let begun = Instant::now();
    devices.start(TEAM, "by-resource", "node1");
    report("a pod with a device by the resource and DRA", begun);
    let path = "-o=jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}";
    let made = ["get", "pod", "by-resource", "--namespace", TEAM, path];
    let made = devices.cluster.kubectl(&made);
    assert_is_of_node(&allocated(devices, &made), "node1");

    claims::exchange(devices, FIRST, SECOND);
    claims::exchange(devices, FIRST, "by-resource");
    the_capacity_is_that_of_all_claims(devices);
    the_resource_is_removed_from_a_node_that_has_had_the_device_plugin(devices);
    a_pod_shows_the_health_of_its_claims_device(devices);
    claims::exchange(devices, "by-resource", FIRST);
}

/// Of node0, where the two claims have two devices.
fn the_capacity_is_that_of_all_claims(devices: &Devices) {
    let cluster = &devices.cluster;
    start_with_claim(devices, "most", "node0", PER_NODE - 2);
    let shown = devices.run((TEAM, "most"), &["ibv_devices"]);
    let count = shown.matches("weft").count() as u64;
    assert_eq!(count, PER_NODE - 2, "{shown}");
    cluster.apply(&pod(TEAM, "waits", "node0", 1));
    cluster.wait_until("the pod says that it waits for a device", || {
        let said = cluster.kubectl(&["describe", "pod", "waits", "--namespace", TEAM]);
        said.contains("cannot allocate all claims").then_some(())
    });
    devices.delete(TEAM, SECOND);
    cluster.kubectl(&["delete", "resourceclaim", SECOND, "--namespace", TEAM]);
    devices.wait_for(TEAM, "waits");
    for name in ["most", "waits"] {
        devices.delete(TEAM, name);
    }
}

/// With the command of docs/devices.md. A kubelet leaves the resource in the node's status when a device plugin has gone.
fn the_resource_is_removed_from_a_node_that_has_had_the_device_plugin(devices: &Devices) {
    let cluster = &devices.cluster;
    let patch = |change: Value| {
        let paths = ["capacity", "allocatable"].map(|list| {
            let mut change = change.clone();
            change["path"] = json!(format!("/status/{list}/weft.dev~1vdev"));
            change
        });
        let patch = json!(paths).to_string();
        let node = ["patch", "node", "node2", "--subresource=status"];
        cluster.kubectl(&[&node[..], &["--type=json", "--patch", &patch]].concat());
    };
    patch(json!({"op": "add", "value": "0"}));
    cluster.apply(&pod(TEAM, "late", "node2", 1));
    cluster.wait_until("the node lists the resource of a device plugin", || {
        let said = cluster.kubectl(&["describe", "pod", "late", "--namespace", TEAM]);
        said.contains("Insufficient weft.dev/vdev").then_some(())
    });
    patch(json!({"op": "remove"}));
    devices.wait_for(TEAM, "late");
    devices.delete(TEAM, "late");
}

fn a_pod_shows_the_health_of_its_claims_device(devices: &Devices) {
    let until = |health: &str| {
        let what = format!("the status of the pod says {health}");
        devices.cluster.wait_until(&what, || {
            let path = "-o=jsonpath={.status.containerStatuses[0].allocatedResourcesStatus}";
            let get = ["get", "pod", FIRST, "--namespace", TEAM, path];
            let shown: Value = serde_json::from_str(&devices.cluster.kubectl(&get)).ok()?;
            assert_eq!(shown[0]["name"], format!("claim:{FIRST}"), "{shown}");
            (shown[0]["resources"][0]["health"] == health).then_some(())
        });
    };
    until("Healthy");
    let begun = Instant::now();
    let cut = CutLink::new(devices);
    until("Unhealthy");
    report("a node's link down to the pod's device Unhealthy", begun);
    let cluster = &devices.cluster;
    cluster.wait_until("the FabricNode says why", || {
        let path = r#"-o=jsonpath={.status.conditions[?(@.type=="DevicesHealthy")].reason}"#;
        let said = cluster.kubectl(&["get", "fabricnode", "node0", path]);
        (said == "LinkDown").then_some(())
    });
    drop(cut);
    until("Healthy");
}

/// The data link of node0 is down until this is dropped: other trials need it, whatever becomes of this one.
struct CutLink<'a> {
    devices: &'a Devices,
    /// They go with the link.
    routes: String,
}

impl<'a> CutLink<'a> {
    fn new(devices: &'a Devices) -> Self {
        let routes = ip(devices, &["route", "show", "dev", DATA_INTERFACE]);
        ip(devices, &["link", "set", DATA_INTERFACE, "down"]);
        Self { devices, routes }
    }
}

impl Drop for CutLink<'_> {
    fn drop(&mut self) {
        ip(self.devices, &["link", "set", DATA_INTERFACE, "up"]);
        // The route to the gateway comes before the one through it.
        for route in self.routes.lines().rev() {
            let words = ["route", "add"].into_iter().chain(route.split_whitespace());
            let words: Vec<&str> = words.chain(["dev", DATA_INTERFACE]).collect();
            ip(self.devices, &words);
        }
    }
}

/// What `ip` says in the network of node0.
fn ip(devices: &Devices, words: &[&str]) -> String {
    let agent = process(&devices.cluster, "weft-agent", "NODE_NAME=node0");
    let agent = agent.expect("the node has an agent").as_raw();
    let mut command = Command::new("ip");
    command.args(words);
    let thread = in_network_of(agent.cast_unsigned(), move || command.output());
    let output = thread.unwrap().join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}
