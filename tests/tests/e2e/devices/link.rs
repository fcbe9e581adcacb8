//! A node whose data link is down while pods use its devices.

use std::thread;
use std::time::Instant;

use kube::ResourceExt as _;
use serde_json::Value;
use weft_cluster::Order;

use super::{Devices, PER_NODE, TEAM, shown};
use crate::test_cluster::report;

/// Where the client's pod is.
const NODE: &str = "node1";
/// Goes on until its link is down.
const WRITES: [&str; 3] = ["ib_write_bw", "-D", "25"];

/// What is listed of the client's device.
fn device(devices: &Devices) -> Option<Value> {
    let listed = shown::listed(devices, TEAM);
    listed.into_iter().find(|device| device["pod"] == "b")
}

/// Until the FabricNode and an Event say it, and the kubelet counts so many devices fewer.
fn until_condition(devices: &Devices, condition: [&str; 2], unhealthy: u64, event: &str) {
    let cluster = &devices.cluster;
    let [status, reason] = condition;
    let what = format!("devices of {NODE}: {reason}");
    cluster.wait_until(&what, || {
        let of = r#"{.status.conditions[?(@.type=="DevicesHealthy")]"#;
        let path = format!("-o=jsonpath={of}.status}} {of}.reason}} {{.status.devices.unhealthy}}");
        let said = cluster.inner.kubectl(&["get", "fabricnode", NODE, &path]);
        (said.ok()? == format!("{status} {reason} {unhealthy}")).then_some(())
    });
    cluster.wait_until("an Event of the FabricNode says it", || {
        let of_node = format!(
            "--field-selector=involvedObject.kind=FabricNode,involvedObject.name={NODE},reason={reason}"
        );
        let path = "-o=jsonpath={.items[*].message}";
        let asked = ["get", "events", "--all-namespaces", &of_node, path];
        let said = cluster.inner.kubectl(&asked).ok()?;
        said.contains(event).then_some(())
    });
    let path = r"-o=jsonpath={.status.allocatable.weft\.dev/vdev}";
    cluster.wait_until("the kubelet counts the node's healthy devices", || {
        let said = cluster.inner.kubectl(&["get", "node", NODE, path]).ok()?;
        (said.parse() == Ok(PER_NODE - unhealthy)).then_some(())
    });
}

pub(super) fn devices_in_use_are_unhealthy_while_their_nodes_data_link_is_down(devices: &Devices) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    let sent = || device(devices)?["bytesSent"].as_u64();
    let before = cluster.wait_until("the client's device is listed", sent);
    let (begun, failed) = thread::scope(|scope| {
        let pair = scope.spawn(|| devices.pair(a, b, &WRITES));
        cluster.wait_until("the client writes", || (sent()? > before).then_some(()));
        let unplug = Order::UnplugNode(NODE.to_owned());
        cluster.inner.ask(&unplug).unwrap();
        (Instant::now(), pair.join().unwrap())
    });
    let failed = failed.expect_err("a program goes on without a link");
    assert!(failed.contains("Failed status 12"), "{failed}");

    until_condition(devices, ["False", "LinkDown"], PER_NODE, "has no carrier");
    report("data link down to devices unhealthy at the kubelet", begun);
    let agent = cluster.agent(NODE).name_any();
    let metric = r#"weft_devices_unhealthy{reason="LinkDown"}"#;
    assert_eq!(cluster.metric(&agent, metric), Some(PER_NODE));
    assert_eq!(device(devices).unwrap()["reason"], "LinkDown");

    let begun = Instant::now();
    cluster
        .inner
        .ask(&Order::PlugNode(NODE.to_owned()))
        .unwrap();
    until_condition(
        devices,
        ["True", "AllHealthy"],
        0,
        "pods can use the node's devices",
    );
    report("data link up to devices healthy at the kubelet", begun);
    assert_eq!(cluster.metric(&agent, metric).unwrap_or_default(), 0);
    assert_eq!(device(devices).unwrap()["reason"], Value::Null);
    let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| cluster.fail(&said));
}
