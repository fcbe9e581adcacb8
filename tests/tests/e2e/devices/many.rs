//! Many devices of one node in use.

use std::time::Instant;

use serde_json::json;

use super::exchange::Exchange;
use super::faults::replace;
use super::{Devices, PER_NODE, SERVER, TEAM, pod};
use crate::test_cluster::report;

/// Pods with devices, and how many each has.
const PODS: u64 = 5;
const OF_EACH: u64 = 20;
const DEVICES: u64 = PODS * OF_EACH;

/// How many devices each node has.
fn set_per_node(devices: &Devices, count: u64) {
    let patch = json!({"spec": {"devices": {"perNode": count}}}).to_string();
    devices
        .cluster
        .kubectl(&["patch", "rf", "default", "--type=merge", "--patch", &patch]);
    for node in ["node0", "node1", "node2"] {
        devices.wait_for_node(node, count);
    }
}

/// All on one node, each with a connection to another node.
pub(super) fn programs_with_100_devices_go_on_when_their_engine_and_agents_are_replaced(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    set_per_node(devices, DEVICES + PER_NODE);
    let begun = Instant::now();
    let clients = (0..PODS).map(|number| pod(TEAM, &format!("of-20-{number}"), "node0", OF_EACH));
    let server = pod(TEAM, SERVER, "node1", 1);
    let exchange = Exchange::begin(devices, server, clients.collect(), DEVICES);
    report("pods with 100 devices made to all of them connected", begun);
    devices.assert_in_sysfs("of-20-0", OF_EACH);
    for node in ["node0", "node1"] {
        replace(devices, "weft.dev/fabric", node);
    }
    let begun = Instant::now();
    replace(devices, "app.kubernetes.io/name=weft-engine", "node0");
    report("engine of 100 devices replaced", begun);
    cluster.wait_until("the devices are in use, and healthy", || {
        let status = &cluster.json(&["get", "fabricnode", "node0"])["status"]["devices"];
        let is_well = status["inUse"].as_u64() >= Some(DEVICES) && status["unhealthy"] == 0;
        is_well.then_some(())
    });
    exchange.end();
    set_per_node(devices, PER_NODE);
}
