//! A real Prometheus that scrapes agents and operators: what boards, rules and alerts ask for is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use weft_cluster::Order;

use super::{Devices, TEAM};
use crate::harness::process;
use crate::journey;
use crate::plugin;
use crate::test_cluster::{SYSTEM, TestCluster, report, repository};
use crate::tree;

/// What fires, and nothing else: a spine drops everything, and TCP does not pass to a node.
const FIRES: [&str; 2] = ["WeftLinkFallback", "WeftPathsDown"];
/// Where TCP does not pass.
const BLOCKED: &str = "node1";
const JOB: &str = "watched";
/// The spine that drops.
const SPINE: usize = 0;

/// What the nodes send over the data path meanwhile, Mbit/s: the job takes a minute.
const CAP_MBPS: u32 = 12;

/// Titles of panels that may have no data here, and why.
const MAY_BE_EMPTY: [(&str, &str); 11] = [
    (
        "Which node sends chunks again?",
        "no node sends ten chunks a second",
    ),
    (
        "node:weft_chunks_resent:ratio_increase30m",
        "no node sends 10,000 chunks",
    ),
    ("Which NICs are down?", "none is"),
    ("Where did it fail, and why?", "the job has not failed"),
    ("Which cannot be used, and why?", "pods can use all devices"),
    (
        "Which pods have another share than others?",
        "all have the same",
    ),
    (
        "Which pod's device refuses packets, offers or calls?",
        "none does",
    ),
    ("Which device stands still?", "none does"),
    ("What arrives and is not used?", "nothing was"),
    ("Which calls does its agent refuse?", "none"),
    ("Which calls does it refuse?", "none"),
];

pub(super) fn every_query_of_boards_and_rules_finds_data_and_the_right_alerts_fire(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    let begun = Instant::now();
    load_image(cluster);
    let files = tree::model();
    files.write(&journey::directory(cluster, "node0", JOB));
    block_tcp(cluster, true);
    // What it has measured before is forgotten.
    let agent = cluster.agent("node0").name_any();
    cluster.kubectl(&["delete", "pod", &agent, "--namespace", SYSTEM]);
    let ready = [
        "wait",
        "--for=condition=Ready",
        "rdmafabric/default",
        "--timeout=60s",
    ];
    cluster.kubectl(&ready);
    start_prometheus(cluster);
    agents_and_operators_are_read(cluster);
    an_account_without_the_right_is_refused(cluster);
    report("Prometheus made, loaded and ready", begun);

    let begun = Instant::now();
    set_cap(cluster, Some(CAP_MBPS));
    cluster.inner.ask(&Order::FailSpine(SPINE)).unwrap();
    let [a, b] = devices.two_pods();
    let queries = queries();
    thread::scope(|scope| {
        let pair = scope.spawn(|| devices.pair(a, b, &["ib_write_bw", "-D", "20"]));
        cluster.apply(&journey::job(JOB, JOB));
        let expected = BTreeSet::from(FIRES.map(str::to_owned));
        cluster.wait_until("the alerts fire, and no other does", || {
            (alerts(cluster, "firing") == expected).then_some(())
        });
        report("a job, and a spine that drops, to the alerts", begun);
        every_query_finds_data(cluster, &queries);
        // Nor does one that still waits.
        assert_eq!(alerts(cluster, "firing"), expected);
        assert_eq!(alerts(cluster, "pending"), BTreeSet::new());
        every_rule_is_evaluated(cluster);
        let name = format!("{TEAM}/{JOB}");
        plugin::a_browser_gets_the_page_with_nodes_rates_and_the_job(cluster, &name);
        let written = pair.join().unwrap();
        written.unwrap_or_else(|said| cluster.fail(&said));
    });
    for (name, _) in MAY_BE_EMPTY {
        let is_there = queries.iter().any(|(of, _)| of == name);
        assert!(is_there, "nothing is called `{name}`");
    }

    set_cap(cluster, None);
    cluster.inner.ask(&Order::HealSpine(SPINE)).unwrap();
    let done = format!("tj/{JOB}");
    let done = [
        "wait",
        "--for=condition=Complete",
        &done,
        "--namespace",
        TEAM,
    ];
    cluster.kubectl(&[&done[..], &["--timeout=120s"]].concat());
    files.assert_is_at(&journey::directory(cluster, "node2", JOB));
    block_tcp(cluster, false);
    cluster.kubectl(&["delete", "tj", JOB, "--namespace", TEAM]);
    cluster.kubectl(&["delete", "namespace", "monitoring"]);
}

/// Over TLS, by the token of an account that the chart's role was given.
fn agents_and_operators_are_read(cluster: &TestCluster) {
    let mut last = Value::Null;
    cluster.wait_until("Prometheus reads agents and operators", || {
        let answer = get(cluster, "targets?state=active");
        let targets = answer["data"]["activeTargets"].as_array().unwrap();
        let errors = targets.iter().map(|target| &target["lastError"]);
        let errors: Value = errors.cloned().collect();
        if errors != last {
            println!("  errors of targets: {errors}");
            last = errors;
        }
        let pools = targets.iter().map(|target| text(&target["scrapePool"]));
        let all_up = targets.iter().all(|target| target["health"] == "up");
        let both = BTreeSet::from(["weft-agent", "weft-operator"].map(str::to_owned));
        (all_up && pools.collect::<BTreeSet<_>>() == both).then_some(())
    });
}

/// As the API server says, which no other test asks.
fn an_account_without_the_right_is_refused(cluster: &TestCluster) {
    let agent = cluster.agent("node0").name_any();
    let token = cluster.token("monitoring", "default").unwrap();
    let answer = cluster.ask_metrics(&agent, &token).unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(said.contains("(Forbidden)"), "{said}");
}

fn every_query_finds_data(cluster: &TestCluster, queries: &[(String, String)]) {
    let is_known = |name: &str| MAY_BE_EMPTY.iter().any(|(of, _)| *of == name);
    let mut unanswered: Vec<_> = queries.iter().collect();
    let mut last = usize::MAX;
    cluster.wait_until("every query finds data", || {
        unanswered.retain(|(_, query)| answer(cluster, query).is_empty());
        let missing = unanswered.iter().filter(|(name, _)| !is_known(name));
        let missing: Vec<_> = missing.collect();
        if missing.len() < last {
            last = missing.len();
            println!("  queries without data: {missing:#?}");
        }
        missing.is_empty().then_some(())
    });
    let (all, empty) = (queries.len(), unanswered.len());
    println!("  of {all} queries {empty} find nothing, as is known");
}

/// Of all that the nodes of the fabric send.
fn set_cap(cluster: &TestCluster, mbps: Option<u32>) {
    let patch = json!({"spec": {"transport": {"capMbps": mbps}}}).to_string();
    let patch = [
        "patch",
        "rdmafabric",
        "default",
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.kubectl(&patch);
}

/// The chart's. WeftPathsDown counts half minutes: here it counts seconds.
fn rules() -> String {
    let rules = fs::read_to_string(repository("charts/weft/monitoring/rules.yaml")).unwrap();
    let counted = "count_over_time((weft_peer_paths_down > 0)[30m:30s])";
    assert!(rules.contains(counted), "{counted}");
    rules.replace(counted, &counted.replace("30s", "1s"))
}

fn start_prometheus(cluster: &TestCluster) {
    let file = cluster.scratch.path().join("rules.yaml");
    fs::write(&file, rules()).unwrap();
    let started = Command::new(repository("hack/cluster-monitoring.sh"))
        .arg(&file)
        .env("KUBECONFIG", cluster.inner.kubeconfig())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(started.status.success(), "{said}");
}

fn load_image(cluster: &TestCluster) {
    let built = Command::new(repository("hack/monitoring-binaries.sh"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    let program = Path::new(String::from_utf8_lossy(&built.stdout).trim()).join("prometheus");
    let images = cluster.scratch.path().join("images");
    let made = Command::new(repository("hack/images.sh"))
        .arg(&images)
        .arg(format!("prometheus={}", program.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    cluster
        .inner
        .load_images(&[images.join("prometheus.tar")])
        .unwrap();
    fs::remove_dir_all(images).unwrap();
}

/// At the ports of data of a node.
fn block_tcp(cluster: &TestCluster, is_blocked: bool) {
    let agent = process(cluster, "weft-agent", &format!("NODE_NAME={BLOCKED}"));
    let agent = agent.unwrap_or_else(|| cluster.fail("the node has no agent"));
    let rules = match is_blocked {
        true => {
            "table inet blocked { chain in { type filter hook input priority 0; tcp dport 7500-7515 drop; }; }"
        }
        false => "delete table inet blocked",
    };
    let made = Command::new("nsenter")
        .arg(format!("--net=/proc/{agent}/ns/net"))
        .args(["nft", rules])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
}

/// Of all panels, by their titles, and of all rules, by their names; and what the choices at the top of a board list.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for board in fs::read_dir(repository("charts/weft/dashboards")).unwrap() {
        let board = fs::read(board.unwrap().path()).unwrap();
        let board: Value = serde_json::from_slice(&board).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                queries.push((text(&panel["title"]), text(&target["expr"])));
            }
        }
        for choice in board["templating"]["list"].as_array().unwrap() {
            // label_values(METRIC, LABEL)
            let listed = choice["definition"].as_str().unwrap_or_default();
            let listed = listed.strip_prefix("label_values(");
            if let Some((metric, label)) = listed.and_then(|listed| listed.rsplit_once(", ")) {
                let label = label.trim_end_matches(')');
                let query = format!("count by ({label}) ({metric})");
                queries.push((text(&choice["label"]), query));
            }
        }
    }
    let rules: Value = serde_saphyr::from_str(&rules()).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    for rule in groups.flat_map(|group| group["rules"].as_array().unwrap()) {
        match rule["record"].as_str() {
            Some(name) => queries.push((name.to_owned(), name.to_owned())),
            // Of those that fire; others find nothing, as they should.
            None if FIRES.contains(&rule["alert"].as_str().unwrap()) => {
                queries.push((text(&rule["alert"]), text(&rule["expr"])));
            }
            None => {}
        }
    }
    assert!(queries.len() > 50, "{}", queries.len());
    let value = |query: String| {
        let query = query.replace("$__rate_interval", "1m");
        let query = query.replace("$node", "node0");
        query.replace("$namespace", TEAM).replace("$name", JOB)
    };
    let queries = queries.into_iter();
    queries.map(|(name, query)| (name, value(query))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The series that a query finds.
fn answer(cluster: &TestCluster, query: &str) -> Vec<Value> {
    let answer = get(cluster, &format!("query?query={}", encoded(query)));
    answer["data"]["result"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// Those of alerts that are silent, too.
fn every_rule_is_evaluated(cluster: &TestCluster) {
    let answer = get(cluster, "rules");
    let groups = answer["data"]["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(rules.len() > 20, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

/// The alerts of Weft in a state, by name.
fn alerts(cluster: &TestCluster, state: &str) -> BTreeSet<String> {
    let answer = get(cluster, "alerts");
    let alerts = answer["data"]["alerts"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let of_state = alerts.iter().filter(|alert| alert["state"] == state);
    of_state
        .map(|alert| text(&alert["labels"]["alertname"]))
        .collect()
}

/// What Prometheus answers, through the API server.
fn get(cluster: &TestCluster, what: &str) -> Value {
    let service = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1";
    let said = cluster.kubectl(&["get", "--raw", &format!("{service}/{what}")]);
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["status"], json!("success"), "{what}: {said}");
    answer
}

/// As a part of a URL (RFC 3986).
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
