//! The chart changes while pods have devices, claims and volumes.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::Value;

use super::exchange::Exchange;
use super::{CLIENT, Devices, SERVER, TEAM, claims, pod};
use crate::test_cluster::{SYSTEM, report, repository};
use crate::volumes;

/// A pod with a volume.
const READER: &str = "reader";
/// A pod with a device by a claim.
const BY_CLAIM: &str = "by-claim";
/// Each replaces the pods of a program, and the agents' those of the operators, which read the agents' template when they start.
const LOGS: [&str; 3] = [
    "--set=agent.log=debug",
    "--set=devices.log=debug",
    "--set=volumes.log=debug",
];

/// An upgrade to other values, with the rest as it is.
fn upgrade<'a>(chart: &'a str, values: &[&'a str]) -> Vec<&'a str> {
    let upgrade = [
        "upgrade",
        "weft",
        chart,
        "--namespace",
        SYSTEM,
        "--reuse-values",
    ];
    [&upgrade[..], values].concat()
}

fn roll_back(devices: &Devices, revision: &str) {
    devices.cluster.helm(&[
        "rollback",
        "weft",
        revision,
        "--namespace",
        SYSTEM,
        "--wait",
        "--timeout=180s",
    ]);
}

/// The revision that is in force.
fn deployed(devices: &Devices) -> String {
    let history = ["history", "weft", "--namespace", SYSTEM, "-o=json"];
    let history: Value = serde_json::from_str(&devices.cluster.helm(&history)).unwrap();
    let mut revisions = history.as_array().unwrap().iter();
    let found = revisions.find(|revision| revision["status"] == "deployed");
    found.unwrap()["revision"].to_string()
}

/// The chart's pods by their uids, once all are ready. Engines are replaced by nobody but their node's administrator.
fn ready_pods(devices: &Devices) -> Option<BTreeSet<String>> {
    let pods = devices.cluster.json(&[
        "get",
        "pods",
        "--namespace",
        SYSTEM,
        "-l=app.kubernetes.io/part-of=weft,app.kubernetes.io/name!=weft-engine",
        // Those of hooks have ended.
        "--field-selector=status.phase!=Succeeded,status.phase!=Failed",
    ]);
    let pods = pods["items"].as_array()?.iter();
    let uid = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
        let is_ready = ready["status"] == "True" && pod["metadata"]["deletionTimestamp"].is_null();
        is_ready.then(|| pod["metadata"]["uid"].to_string())
    };
    pods.map(uid).collect()
}

/// Which pods the team has, and how often their containers were started again.
fn restarts(devices: &Devices) -> String {
    let path = "-o=jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} \
                {.status.containerStatuses[*].restartCount};{end}";
    devices
        .cluster
        .kubectl(&["get", "pods", "--namespace", TEAM, path])
}

/// Operators, agents, device plugins and volume drivers are replaced twice.
pub(super) fn pods_with_devices_and_volumes_go_on_when_the_chart_is_upgraded_and_rolled_back(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    let files = volumes::a_pod_has_a_served_copy(cluster, READER);
    cluster.apply(&claims::template());
    let (server, client) = (pod(TEAM, SERVER, "node0", 1), claims::pod(CLIENT, "node1"));
    let exchange = Exchange::begin(devices, server, vec![client], 1);
    let as_before = || {
        devices.until_in_use("node0", 2, 0);
        devices.until_in_use("node1", 2, 1);
        devices.until_in_use("node2", 0, 0);
    };
    as_before();
    let pods = restarts(devices);
    let revision = deployed(devices);
    let replaces_all = |what: &str, change: &dyn Fn()| {
        let before = cluster.wait_until("all pods are ready", || ready_pods(devices));
        let begun = Instant::now();
        change();
        cluster.wait_until("all pods are replaced", || {
            let now = ready_pods(devices)?;
            (now.len() == before.len() && now.is_disjoint(&before)).then_some(())
        });
        report(what, begun);
        as_before();
    };
    let chart = repository("charts/weft").display().to_string();
    replaces_all("helm upgrade to all pods replaced", &|| {
        let waits = ["--wait", "--timeout=180s"];
        cluster.helm(&upgrade(&chart, &[&LOGS[..], &waits].concat()));
    });
    replaces_all("helm rollback to all pods replaced", &|| {
        roll_back(devices, &revision);
    });
    assert_eq!(restarts(devices), pods);
    exchange.end();
    volumes::reads(cluster, READER, &files);
    let said = devices.pair(a, b, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| cluster.fail(&said));
    devices.delete(TEAM, READER);
    devices.until_in_use("node1", 1, 0);
}

/// Nothing is changed, and the hook says what is in use.
fn is_refused(devices: &Devices, values: &[&str], in_use: &str) {
    let cluster = &devices.cluster;
    let chart = repository("charts/weft").display().to_string();
    let mut helm = cluster.inner.command("helm");
    let refused = helm.args(upgrade(&chart, values)).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{values:?}");
    assert!(why.contains("pre-upgrade hooks failed"), "{why}");
    let said = cluster.kubectl(&["logs", "--namespace", SYSTEM, "job/weft-upgrade"]);
    let text = format!("pods use {in_use}, which the values");
    assert!(said.contains(&text), "{said}");
}

/// Devices by the resource and by a claim, and a volume.
pub(super) fn an_upgrade_that_takes_away_what_pods_have_is_refused_and_made_when_they_are_gone(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    let files = volumes::a_pod_has_a_served_copy(cluster, READER);
    cluster.apply(&claims::template());
    let start_with_claim = || {
        cluster.apply(&claims::pod(BY_CLAIM, "node2"));
        devices.wait_for(TEAM, BY_CLAIM);
    };
    start_with_claim();
    devices.until_in_use("node0", 1, 0);
    devices.until_in_use("node1", 1, 1);
    devices.until_in_use("node2", 1, 0);
    let revision = deployed(devices);
    let pods = ready_pods(devices);
    let begun = Instant::now();
    let all = ["--set=devices.enabled=false", "--set=volumes.enabled=false"];
    let in_use = "1 device of node node0, 1 device of node node1, 1 volume of node node1, \
                  1 device of node node2";
    is_refused(devices, &all, in_use);
    report("helm upgrade to its refusal", begun);
    let without_claims = ["--set=devices.mode=devicePlugin"];
    let in_use = format!("devices by claims of node node2 ({TEAM}/{BY_CLAIM})");
    is_refused(devices, &without_claims, &in_use);
    let in_use = "1 device of node node0 by the resource, 1 device of node node1 by the resource";
    is_refused(devices, &["--set=devices.mode=dra"], in_use);

    assert_eq!(ready_pods(devices), pods, "a refused upgrade replaces pods");
    assert_eq!(deployed(devices), revision);
    for client in [b, (TEAM, BY_CLAIM)] {
        let said = devices.pair(a, client, &["ibv_rc_pingpong", "-c", "-g", "0"]);
        said.unwrap_or_else(|said| cluster.fail(&said));
    }
    volumes::reads(cluster, READER, &files);

    // The others have devices by the resource, which stays.
    for name in [BY_CLAIM, READER] {
        devices.delete(TEAM, name);
    }
    cluster.wait_until("the claim is gone", || {
        let claims = ["get", "resourceclaims", "--namespace", TEAM, "-o=name"];
        cluster.kubectl(&claims).is_empty().then_some(())
    });
    let begun = Instant::now();
    let chart = repository("charts/weft").display().to_string();
    cluster.helm(&upgrade(&chart, &without_claims));
    report("helm upgrade to another devices.mode, not refused", begun);
    roll_back(devices, &revision);
    // The fabric goes on saying that it has devices, and files move without.
    for name in ["a", "b"] {
        devices.delete(TEAM, name);
    }
    for node in ["node0", "node1", "node2"] {
        devices.until_in_use(node, 0, 0);
    }
    cluster.helm(&upgrade(&chart, &all));
    cluster.wait_until("agents are ready without devices", || {
        let nodes = cluster.json(&["get", "fabricnodes"]);
        let mut nodes = nodes["items"].as_array()?.iter();
        let is_ready = |node: &Value| {
            let status = &node["status"];
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let mut findings = status["findings"].as_array().into_iter().flatten();
            conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
                && findings.any(|one| one["reason"] == "DevicesNotServed")
        };
        nodes.all(is_ready).then_some(())
    });
    roll_back(devices, &revision);
    devices.wait_for_nodes();
    devices.two_pods();
    start_with_claim();
    let said = devices.pair(a, (TEAM, BY_CLAIM), &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| cluster.fail(&said));
    // Before the status shows the device, it says 0 as it does afterwards.
    devices.until_in_use("node2", 1, 0);
    devices.delete(TEAM, BY_CLAIM);
    devices.until_in_use("node2", 0, 0);
}
