//! Who may have devices, and what is said of what was refused.

use serde_json::{Value, json};

use super::{Devices, OTHER_TEAM, PER_NODE, TEAM, pod};

/// The configurations that the agents work with, where all are ready.
fn configurations(devices: &Devices) -> Option<Vec<String>> {
    let nodes = devices.cluster.json(&["get", "fabricnodes"]);
    let nodes = nodes["items"].as_array()?.iter();
    let of_node = |node: &Value| {
        let mut conditions = node["status"]["conditions"].as_array()?.iter();
        let ready = conditions.find(|it| it["type"] == "Ready")?;
        let configuration = node["status"]["configuration"].as_str()?;
        (ready["reason"] == "AgentReady").then(|| configuration.to_owned())
    };
    nodes.map(of_node).collect()
}

/// Which namespaces' pods may have devices; all without any. Returns when the agents have it, and have told the device plugins.
fn set_namespaces(devices: &Devices, namespaces: &[&str]) {
    let cluster = &devices.cluster;
    let all_ready = || configurations(devices);
    let before = cluster.wait_until("all agents are ready", all_ready);
    let patch = json!({"spec": {"devices": {"namespaces": namespaces}}}).to_string();
    cluster.kubectl(&["patch", "rf", "default", "--type=merge", "--patch", &patch]);
    cluster.wait_until("all agents have the fabric's new configuration", || {
        let now = configurations(devices)?;
        now.iter().all(|it| !before.contains(it)).then_some(())
    });
}

pub(super) fn a_pod_of_a_namespace_that_the_fabric_does_not_list_says_so(devices: &Devices) {
    let cluster = &devices.cluster;
    set_namespaces(devices, &[TEAM]);
    let runs = |phase: &str| phase == "Running";
    // One whose node's plugin is just being restarted fails for good.
    let is_early = |phase: &str| runs(phase) || phase == "Failed";
    let phase = || {
        let path = "-o=jsonpath={.status.phase}";
        cluster.kubectl(&["get", "pod", "unlisted", "--namespace", OTHER_TEAM, path])
    };
    cluster.wait_until("the pod says why it has no device", || {
        cluster.apply(&pod(OTHER_TEAM, "unlisted", "node1", 1));
        if is_early(&phase()) {
            // It came before the device plugin took its new flags.
            devices.delete(OTHER_TEAM, "unlisted");
            return None;
        }
        let said = cluster.kubectl(&["describe", "pod", "unlisted", "--namespace", OTHER_TEAM]);
        let text = "pods of namespace team-b may have no RDMA device here: spec.devices.namespaces";
        said.contains(text).then_some(())
    });
    devices.start(TEAM, "listed", "node1");
    set_namespaces(devices, &[]);
    let starts = "the pod starts when the fabric lists all again";
    cluster.wait_until(starts, || runs(&phase()).then_some(()));
    devices.delete(OTHER_TEAM, "unlisted");
    devices.delete(TEAM, "listed");
}

/// Of two namespaces, and each in its own.
pub(super) fn a_refused_connection_is_told_to_both_pods(devices: &Devices) {
    let cluster = &devices.cluster;
    let [a, _] = devices.two_pods();
    let stranger = (OTHER_TEAM, "stranger");
    devices.start(stranger.0, stranger.1, "node1");
    let words = ["ibv_rc_pingpong", "-c", "-g", "0", "-n", "10"];
    let said = devices.pair(a, stranger, &words);
    said.expect_err("pods of two namespaces reach each other");
    for ((namespace, name), other) in [(a, "pod team-b/stranger"), (stranger, "pod team-a/a")] {
        cluster.wait_until("the pod is told of the refused attempt", || {
            let said = cluster.kubectl(&["describe", "pod", name, "--namespace", namespace]);
            let mut lines = said.lines();
            let is_told = |line: &str| line.contains("ConnectionRefused") && line.contains(other);
            lines.any(is_told).then_some(())
        });
    }
    devices.delete(stranger.0, stranger.1);
}

/// Ends the program of a pod's container. Returns when the kubelet has started the container again.
fn restart_container(devices: &Devices, (namespace, name): (&str, &str)) {
    let cluster = &devices.cluster;
    let ready = || {
        let pod = cluster.json(&["get", "pod", name, "--namespace", namespace]);
        let status = &pod["status"]["containerStatuses"][0];
        let id = status["containerID"].as_str()?.to_owned();
        (status["ready"] == true).then_some(id)
    };
    let before = cluster.wait_until("the container runs", ready);
    // This program ends with the container, and may say nothing.
    let _ = devices.try_run((namespace, name), &["kill", "1"]);
    cluster.wait_until("the container is started again", || {
        ready().filter(|now| *now != before)
    });
}

pub(super) fn pods_keep_their_devices_when_their_fabric_has_none_any_more(devices: &Devices) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    let set = |of_fabric: Value| {
        let patch = json!({"spec": {"devices": of_fabric}}).to_string();
        cluster.kubectl(&["patch", "rf", "default", "--type=merge", "--patch", &patch]);
    };
    let until_counted = |node: &str, wanted: &Value| {
        cluster.wait_until("the node counts the devices of its pods", || {
            let found = &cluster.json(&["get", "fabricnode", node])["status"]["devices"];
            (found == wanted).then_some(())
        });
    };
    set(Value::Null);
    for node in ["node0", "node1", "node2"] {
        devices.wait_for_node(node, 0);
    }
    for node in ["node0", "node1"] {
        until_counted(
            node,
            &json!({"total": 0, "inUse": 1, "byClaims": 0, "unhealthy": 0}),
        );
    }
    let pingpong = || {
        let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
        said.unwrap_or_else(|said| cluster.fail(&said))
    };
    pingpong();
    for pod in [a, b] {
        restart_container(devices, pod);
    }
    pingpong();
    for name in ["a", "b"] {
        devices.delete(TEAM, name);
    }
    for node in ["node0", "node1", "node2"] {
        until_counted(node, &Value::Null);
    }
    set(json!({"perNode": PER_NODE}));
    devices.wait_for_nodes();
}
