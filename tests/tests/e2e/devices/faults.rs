//! What goes wrong on a node whose pods have devices.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use weft_cluster::Order;

use super::exchange::Exchange;
use super::{CLIENT, Devices, PER_NODE, SERVER, TEAM, pod};
use crate::harness::processes;
use crate::test_cluster::{SYSTEM, report};

/// Programs that write for 40 s while something fails.
const WRITES: [&str; 3] = ["ib_write_bw", "-D", "40"];
/// And such as compare what they get, for 5 s at least.
const EXCHANGES: [&str; 6] = ["ibv_rc_pingpong", "-c", "-g", "0", "-n", "100000"];
const RESTARTS: u32 = 20;
/// Of the kubelet, with the devices of its pods.
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
/// And of its plugins' sockets.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// Of one node, which the kubelet's list says by a pod's label.
pub(super) fn pod_of(devices: &Devices, label: &str, node: &str) -> Option<String> {
    let label = format!("-l={label}");
    let node = format!("--field-selector=spec.nodeName={node}");
    let name = "-o=jsonpath={.items[*].metadata.name}";
    let asked = ["get", "pods", "--namespace", SYSTEM, &label, &node, name];
    let said = devices.cluster.inner.kubectl(&asked).ok()?;
    said.split(' ')
        .next()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// Deletes the pod of a DaemonSet on a node, and waits for the next one.
pub(super) fn replace(devices: &Devices, label: &str, node: &str) {
    let cluster = &devices.cluster;
    let find = || pod_of(devices, label, node);
    let before = cluster.wait_until("the node has the pod", find);
    cluster.kubectl(&["delete", "pod", "--namespace", SYSTEM, &before]);
    let next = cluster.wait_until("there is another one", || {
        find().filter(|now| *now != before)
    });
    let pod = format!("pod/{next}");
    let ready = ["wait", "--for=condition=Ready", &pod, "--timeout=60s"];
    cluster.kubectl(&[&ready[..], &["--namespace", SYSTEM]].concat());
}

/// Where the kubelet can call the plugin of a node.
fn plugin_sockets(devices: &Devices, node: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(devices.cluster.inner.file(node, DEVICE_PLUGINS));
    let names = entries.unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("weft-")).collect()
}

/// Kills the kubelet of a node and starts it, and waits until the next one has taken the plugin.
fn restart_kubelet(devices: &Devices, node: &str) {
    let cluster = &devices.cluster;
    let kubelet = format!("{node}/kubelet");
    let plugin = pod_of(devices, "app.kubernetes.io/name=weft-device-plugin", node);
    let plugin = plugin.expect("the node has a plugin");
    let before = plugin_sockets(devices, node);
    cluster.inner.ask(&Order::Kill(kubelet.clone())).unwrap();
    cluster.inner.ask(&Order::Start(kubelet)).unwrap();
    cluster.wait_until("the next kubelet has taken the plugin", || {
        let now = plugin_sockets(devices, node);
        let next = now.difference(&before).next()?;
        let logs = ["logs", &plugin, "--namespace", SYSTEM];
        let said = cluster.inner.kubectl(&logs).ok()?;
        let mut registered = said.lines().filter(|line| line.contains(": registered "));
        registered.any(|line| line.contains(next)).then_some(())
    });
}

pub(super) fn a_kubelet_that_is_killed_twenty_times_takes_no_device_away(devices: &Devices) {
    let server = pod(TEAM, SERVER, "node0", 1);
    let client = pod(TEAM, CLIENT, "node1", 1);
    let exchange = Exchange::begin(devices, server, vec![client], 1);
    for _ in 0..RESTARTS {
        restart_kubelet(devices, "node1");
    }
    exchange.end();
    let begun = Instant::now();
    devices.wait_for_node("node1", PER_NODE);
    devices.start(TEAM, "e", "node1");
    report("kubelet restarted to the next pod Ready", begun);
    devices.two_pods();
    let words = ["ibv_rc_pingpong", "-c", "-g", "0"];
    for client in ["b", "e"] {
        let said = devices.pair((TEAM, "a"), (TEAM, client), &words);
        said.unwrap_or_else(|said| devices.cluster.fail(&said));
    }
    devices.delete(TEAM, "e");
}

pub(super) fn programs_go_on_when_the_engine_is_replaced(devices: &Devices) {
    devices.begin_pair(&EXCHANGES);
    let begun = Instant::now();
    replace(devices, "app.kubernetes.io/name=weft-engine", "node1");
    report("engine's pod deleted to the next one Ready", begun);
    devices.end_pair();
    let [a, b] = devices.two_pods();
    let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| devices.cluster.fail(&said));
}

pub(super) fn programs_go_on_when_the_agents_are_replaced(devices: &Devices) {
    devices.begin_pair(&WRITES);
    for node in ["node0", "node1"] {
        replace(devices, "weft.dev/fabric", node);
    }
    devices.end_pair();
    // And another connection is made, by what the new agents know.
    let [a, b] = devices.two_pods();
    let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| devices.cluster.fail(&said));
}

/// The engine answers nothing for a moment, so the container waits for its device.
pub(super) fn a_container_starts_when_the_plugin_is_killed_after_its_pod_was_admitted(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    let engines = processes(cluster, "weft-engine");
    assert_eq!(engines.len(), 3);
    for engine in &engines {
        kill(*engine, Signal::SIGSTOP).unwrap();
    }
    cluster.apply(&pod(TEAM, "f", "node1", 1));
    let path = "-o=jsonpath={.metadata.uid}";
    let uid = cluster.kubectl(&["get", "pod", "f", "--namespace", TEAM, path]);
    cluster.wait_until("the kubelet has noted the pod's device", || {
        let noted = fs::read_to_string(cluster.inner.file("node1", CHECKPOINT)).ok()?;
        noted.contains(&uid).then_some(())
    });
    kill(devices.plugin("node1"), Signal::SIGKILL).unwrap();
    for engine in &engines {
        kill(*engine, Signal::SIGCONT).unwrap();
    }
    devices.wait_for(TEAM, "f");
    let words = ["ibv_rc_pingpong", "-c", "-g", "0"];
    devices.two_pods();
    let said = devices.pair((TEAM, "a"), (TEAM, "f"), &words);
    said.unwrap_or_else(|said| cluster.fail(&said));
    devices.delete(TEAM, "f");
}

pub(super) fn of_two_pods_one_has_the_last_device_and_the_other_waits_for_it(devices: &Devices) {
    let cluster = &devices.cluster;
    cluster.apply(&pod(TEAM, "most", "node2", PER_NODE - 1));
    devices.wait_for(TEAM, "most");
    for name in ["g", "h"] {
        cluster.apply(&pod(TEAM, name, "node2", 1));
    }
    let phase = |name: &str| {
        let path = "-o=jsonpath={.status.phase}";
        cluster.kubectl(&["get", "pod", name, "--namespace", TEAM, path])
    };
    let (has, waits) = cluster.wait_until("one of them runs", || {
        let is_there = |name| phase(name) == "Running";
        match [is_there("g"), is_there("h")] {
            [true, false] => Some(("g", "h")),
            [false, true] => Some(("h", "g")),
            _ => None,
        }
    });
    cluster.wait_until("the other one says what it waits for", || {
        let said = cluster.kubectl(&["describe", "pod", waits, "--namespace", TEAM]);
        said.contains("Insufficient weft.dev/vdev").then_some(())
    });
    assert_eq!(phase(waits), "Pending");
    devices.delete(TEAM, has);
    devices.wait_for(TEAM, waits);
    let shown = devices.run((TEAM, waits), &["ibv_devinfo"]);
    assert!(shown.contains("PORT_ACTIVE"), "{shown}");
    let shown = devices.run((TEAM, "most"), &["ibv_devices"]);
    assert_eq!(
        shown.matches("weft").count() as u64,
        PER_NODE - 1,
        "{shown}"
    );
    devices.assert_in_sysfs("most", PER_NODE - 1);
    for name in [waits, "most"] {
        devices.delete(TEAM, name);
    }
}

pub(super) fn a_pod_that_is_deleted_by_force_leaves_no_device(devices: &Devices) {
    let cluster = &devices.cluster;
    devices.start(TEAM, "i", "node2");
    let counts = || devices.made("node2", "vdev-");
    cluster.wait_until("only this pod has a device", || {
        (counts() == [1, 1]).then_some(())
    });
    let begun = Instant::now();
    let mut delete = cluster.inner.command("kubectl");
    delete
        .args(["delete", "pod", "i", "--namespace", TEAM, "--force"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    assert!(delete.status().unwrap().success());
    cluster.wait_until("its device is gone", || (counts() == [0, 0]).then_some(()));
    report("pod deleted by force to its device gone", begun);
}

pub(super) fn helm_uninstall_is_refused_while_pods_have_devices(devices: &Devices) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    for (node, in_use) in [("node0", 1), ("node1", 1), ("node2", 0)] {
        devices.until_in_use(node, in_use, 0);
    }
    let uninstall = ["uninstall", "weft", "--namespace", SYSTEM];
    let mut helm = cluster.inner.command("helm");
    assert!(!helm.args(uninstall).output().unwrap().status.success());
    let said = cluster.kubectl(&["logs", "--namespace", SYSTEM, "job/weft-uninstall"]);
    let in_use = "pods use 1 device of node node0, 1 device of node node1;";
    assert!(said.contains(in_use), "{said}");
    let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| cluster.fail(&said));
    // As docs/operations.md says it: the release is kept, and then it goes all the same.
    let history = cluster.helm(&["history", "weft", "--namespace", SYSTEM, "-o=json"]);
    let history: Value = serde_json::from_str(&history).unwrap();
    let last = history.as_array().and_then(|revisions| revisions.last());
    let last = last.unwrap()["revision"].to_string();
    cluster.helm(&["rollback", "weft", &last, "--namespace", SYSTEM]);
    cluster.kubectl(&["annotate", "rdmafabrics", "--all", "weft.dev/force=true"]);
    cluster.helm(&uninstall);
}
