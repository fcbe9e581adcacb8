//! `kubectl weft`, as its user meets it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use weft_tests::program;

use crate::journey::{TEAM, job};
use crate::test_cluster::TestCluster;
use crate::tree::Tree;

fn weft(cluster: &TestCluster, arguments: &[&str]) -> Output {
    let (mut kubectl, _plugins) = command(cluster, arguments);
    kubectl.output().unwrap()
}

/// kubectl's plugin, under the name that kubectl finds it by.
fn command(cluster: &TestCluster, arguments: &[&str]) -> (Command, TempDir) {
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
    (kubectl, plugins)
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

/// While this job is there.
pub(crate) fn a_browser_gets_the_page_with_nodes_rates_and_the_job(
    cluster: &TestCluster,
    job: &str,
) {
    let (mut ui, _plugins) = command(cluster, &["ui"]);
    let mut ui = ui.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(ui.stdout.take().unwrap());
    let mut url = String::new();
    output.read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://");
    let (host, path) = address.and_then(|it| it.split_once('/')).unwrap();

    cluster.wait_until("the page has rates of nodes", || {
        let page: String = get(host, path).collect();
        for name in ["node0", "node1", "node2", job] {
            assert!(
                page.contains(&format!("<bdi>{name}</bdi>")),
                "{name}: {page}"
            );
        }
        (!page.contains("<dt>Received</dt><dd>–</dd>")).then_some(())
    });
    let events = get(host, &format!("{path}events"));
    let event = events.skip_while(|line| !line.starts_with("data: "));
    let event: String = event.take_while(|line| !line.is_empty()).collect();
    assert!(event.contains(&format!("<bdi>{job}</bdi>")), "{event}");
    ui.kill().unwrap();
    ui.wait().unwrap();
}

/// The lines of an answer, as they come.
fn get(host: &str, path: &str) -> impl Iterator<Item = String> + use<> {
    let mut stream = TcpStream::connect(host).unwrap();
    // By HTTP/1.0 a body has no chunks.
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    BufReader::new(stream).lines().map(Result::unwrap)
}
