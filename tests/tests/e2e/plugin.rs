//! `kubectl weft`, as its user meets it.

use std::process::{Command, Output};

use serde_json::Value;
use weft_tests::program;

use crate::journey::{TEAM, job};
use crate::test_cluster::TestCluster;
use crate::tree::Tree;

/// kubectl's plugin, under the name that kubectl finds it by.
fn weft(cluster: &TestCluster, arguments: &[&str]) -> Output {
    // A folder of its own: kubectl looks at every program there.
    let plugins = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(program("kubectl-weft"), plugins.path().join("kubectl-weft"))
        .unwrap();
    let path = format!(
        "{}:{}",
        plugins.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut kubectl: Command = cluster.inner.command("kubectl");
    kubectl.arg("weft").args(arguments).env("PATH", path);
    kubectl.output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// What `kubectl weft` prints as JSON.
pub(crate) fn told(cluster: &TestCluster, arguments: &[&str]) -> Value {
    let output = weft(cluster, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Over each of the fabric's links, by packets large and small or by connections.
pub(crate) fn a_doctor_finds_every_pair_reached(cluster: &TestCluster, links: &[&str]) {
    // The API server asks the operator for its live resources now and then only.
    let live = "apiservice/v1alpha1.live.weft.dev";
    cluster.kubectl(&["wait", "--for=condition=Available", live, "--timeout=120s"]);
    let report = told(cluster, &["doctor", "-o", "json"]);
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    let nodes = report["examined"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    for node in nodes {
        let reaches = node["diagnosis"]["reaches"].as_array().unwrap();
        assert_eq!(reaches.len(), 4 * links.len(), "{node}");
        for link in links {
            let over = reaches.iter().filter(|reach| reach["link"] == *link);
            let sizes = over.map(|reach| reach["packetBytes"].as_u64());
            let sizes: Vec<u64> = sizes.flatten().collect();
            assert_eq!(sizes, [1500, 9000, 1500, 9000], "{node}");
        }
    }
}

pub(crate) fn a_plan_says_who_would_send_or_what_is_in_the_way_and_makes_nothing(
    cluster: &TestCluster,
    files: &Tree,
) {
    let scratch = tempfile::tempdir().unwrap();
    let plan = |name: &str, path: &str| {
        let file = scratch.path().join(name);
        std::fs::write(&file, job(name, path).to_string()).unwrap();
        weft(
            cluster,
            &["plan", "-o", "json", "-f", &file.display().to_string()],
        )
    };
    let good = plan("planned", "minilm/");
    assert!(good.status.success(), "{}", said(&good));
    let good: Value = serde_json::from_slice(&good.stdout).unwrap();
    assert_eq!(good["manifest"]["files"], files.files());
    assert_eq!(good["plan"]["bytes"], files.bytes());
    assert_eq!(good["plan"]["assignments"].as_array().unwrap().len(), 3);

    let bad = plan("absent", "nothing/");
    assert_eq!(bad.status.code(), Some(1), "{}", said(&bad));
    let bad: Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(bad["obstacles"][0]["reason"], "SourceMissing");
    let jobs = cluster.kubectl(&["get", "tj", "--namespace", TEAM, "-o=name"]);
    assert_eq!(jobs, "transferjob.weft.dev/minilm\n");
}

pub(crate) fn a_status_is_shown_to_who_may_see_the_job_and_to_nobody_else(cluster: &TestCluster) {
    let status = told(cluster, &["status", "tj/minilm", "-n", TEAM, "-o", "json"]);
    assert_eq!(status["kind"], "TransferProgress");
    assert_eq!(status["status"]["phase"], "Complete");
    let followed = weft(cluster, &["status", "-w", "tj/minilm", "-n", TEAM]);
    assert!(
        said(&followed).contains("node2  Verified"),
        "{}",
        said(&followed)
    );

    let account = |verb: &[&str]| cluster.kubectl(&[verb, &["--namespace", TEAM]].concat());
    account(&["create", "serviceaccount", "viewer"]);
    account(&[
        "create",
        "rolebinding",
        "viewer",
        "--clusterrole=view",
        &format!("--serviceaccount={TEAM}:viewer"),
    ]);
    let user = format!("--as=system:serviceaccount:{TEAM}:viewer");
    let path = |namespace: &str| {
        format!("/apis/live.weft.dev/v1alpha1/namespaces/{namespace}/transferprogress")
    };
    // The API server learns of a binding by a watch.
    let shown = cluster.wait_until("the viewer is let in", || {
        let asked = ["get", "--raw", &path(TEAM), &user];
        cluster.inner.kubectl(&asked).ok()
    });
    assert!(shown.contains("minilm"), "{shown}");
    let refused = cluster.refused(&["get", "--raw", &path("default"), &user]);
    assert!(refused.contains("forbidden"), "{refused}");
}

/// After a job has moved.
pub(crate) fn top_shows_every_node_and_a_bundle_has_all_there_is_to_read(cluster: &TestCluster) {
    let top = told(cluster, &["top", "nodes", "-o", "json"]);
    let nodes = top["items"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    for node in nodes {
        assert!(node["connections"].is_u64(), "{node}");
        assert!(node["sentBytesPerSecond"].is_number(), "{node}");
    }
    let top = told(cluster, &["top", "jobs", "-n", TEAM, "-o", "json"]);
    assert_eq!(top["items"][0]["phase"], "Complete");
    let paths = weft(cluster, &["top", "paths", "node0", "--no-headers"]);
    assert!(paths.status.success(), "{}", said(&paths));

    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("bundle.tar.gz");
    let bundle = weft(
        cluster,
        &["support-bundle", "-o", &file.display().to_string()],
    );
    let list = said(&bundle);
    assert!(bundle.status.success() && file.exists(), "{list}");
    for name in [
        "versions.json",
        "findings.json",
        "objects/rdmafabrics.json",
        "objects/transferjobs.json",
        "events/weft.json",
        "workloads/deployments.json",
        "workloads/daemonsets.json",
        "metrics/node0.txt",
        "metrics/node2.txt",
        "logs/weft-operator-",
        "logs/weft-agent-",
    ] {
        assert!(
            list.contains(&format!("| {name}")),
            "{name} is not in {list}"
        );
    }
    assert!(!list.contains("## What is not in it"), "{list}");
}
