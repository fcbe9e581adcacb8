//! One job, as a user sees it.

use std::fs;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use weft_crds::TransferJob;

use crate::install;
use crate::test_cluster::{MODELS, TestCluster, report, repository};
use crate::tree::Tree;

/// The tenant.
pub(crate) const TEAM: &str = "team-a";
const JOB: &str = "minilm";

/// A job of the tenant's, from node0 to all nodes with the label.
pub(crate) fn job(name: &str, path: &str) -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "TransferJob",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "source": {"file": {"node": "node0", "root": "models", "path": path}},
            "destinations": {
                "nodeSelector": {"matchLabels": {"gpu": "true"}}, "root": "models", "path": path,
            },
        },
    })
}

/// The tenant's directory of a node, as this machine sees it.
pub(crate) fn directory(cluster: &TestCluster, node: &str, path: &str) -> std::path::PathBuf {
    cluster.inner.file(node, &format!("{MODELS}/{TEAM}/{path}"))
}

/// The pod of docs/first-job.md, with an image that is there.
pub(crate) fn a_pod_waits_for_the_model(cluster: &TestCluster) {
    cluster.kubectl(&["create", "namespace", TEAM]);
    let guide = fs::read_to_string(repository("docs/first-job.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let pod = blocks.find(|block| block.contains("kind: Pod")).unwrap();
    let mut pod: Value = serde_saphyr::from_str(pod).unwrap();
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("weft.dev/tools:1");
    container["imagePullPolicy"] = json!("Never");
    // The driver of volumes has a trial of its own, with this pod.
    let copy = json!({"path": format!("{MODELS}/{TEAM}/{JOB}"), "type": "Directory"});
    pod["spec"]["volumes"][0] = json!({"name": "model", "hostPath": copy});
    cluster.apply(&pod);
    let unscheduled = "--for=condition=PodScheduled=false";
    cluster.kubectl(&[
        "wait",
        unscheduled,
        "pod/serve",
        "-n",
        TEAM,
        "--timeout=60s",
    ]);
}

pub(crate) fn the_pod_runs_where_the_model_is(cluster: &TestCluster, files: &Tree) {
    let begun = Instant::now();
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/serve",
        "-n",
        TEAM,
        "--timeout=120s",
    ]);
    report("the pod that waits for the model runs", begun);
    let name = "config.json";
    let seen = cluster.kubectl(&[
        "exec",
        "-n",
        TEAM,
        "serve",
        "--",
        "sha256sum",
        &format!("/model/{name}"),
    ]);
    let (digest, _) = seen.split_once(' ').unwrap();
    let here = cluster.scratch.path().join(name);
    fs::write(&here, files.content(name)).unwrap();
    let expected = Command::new("sha256sum").arg(&here).output().unwrap();
    let expected = String::from_utf8(expected.stdout).unwrap();
    assert!(expected.starts_with(digest), "{seen}, {expected}");
    cluster.kubectl(&["delete", "pod", "serve", "-n", TEAM, "--timeout=60s"]);
}

/// The nodes with the label of the job's model.
fn holders(cluster: &TestCluster, files: &Tree) -> Vec<String> {
    let digest = files.digest();
    let selector = format!("-l=weft.dev/model.{TEAM}.{JOB}={}", &digest[..12]);
    let said = cluster.kubectl(&["get", "nodes", &selector, "-o=name"]);
    said.lines().map(str::to_owned).collect()
}

/// The copies are still there, so the labels are, too.
pub(crate) fn the_labels_are_back_after_a_new_installation(cluster: &TestCluster, files: &Tree) {
    assert_eq!(holders(cluster, files), Vec::<String>::new());
    install::helm_install(cluster);
    let begun = Instant::now();
    cluster.wait_until("the nodes with a copy have the label again", || {
        (holders(cluster, files) == ["node/node0", "node/node1"]).then_some(())
    });
    report("helm install --wait to the labels of the copies", begun);
}

/// What is not whole any more is not promised any more.
pub(crate) fn a_node_that_loses_a_file_loses_the_label(cluster: &TestCluster, files: &Tree) {
    let holders = || holders(cluster, files);
    cluster.wait_until("all nodes with a copy have the label", || {
        (holders() == ["node/node0", "node/node1", "node/node2"]).then_some(())
    });
    let begun = Instant::now();
    let file = directory(cluster, "node2", JOB).join("config.json");
    fs::remove_file(&file).unwrap();
    cluster.wait_until("the label goes with the file", || {
        (holders() == ["node/node0", "node/node1"]).then_some(())
    });
    report("a file removed to its node's label gone", begun);
    fs::write(file, files.content("config.json")).unwrap();
}

pub(crate) fn a_directory_of_files_reaches_all_nodes(cluster: &TestCluster, files: &Tree) {
    files.write(&directory(cluster, "node0", JOB));
    let begun = Instant::now();
    cluster.apply(&job(JOB, "minilm/"));
    cluster.kubectl(&[
        "wait",
        "--for=condition=Complete",
        "tj/minilm",
        "--namespace",
        TEAM,
        "--timeout=120s",
    ]);
    let bytes = files.bytes();
    report(
        &format!("{bytes} bytes to 2 nodes, kubectl apply to Complete"),
        begun,
    );
    for node in ["node1", "node2"] {
        files.assert_is_at(&directory(cluster, node, JOB));
    }
    let job = cluster.of::<TransferJob>(TEAM);
    let status = cluster.wait(job.get(JOB)).unwrap().status.unwrap();
    let manifest = status.manifest.unwrap();
    assert_eq!(manifest.files as usize, files.files());
    assert_eq!(manifest.bytes as u64, bytes);
    assert_eq!(manifest.digest, Some(files.digest()));
    let digests: Vec<(&str, &str)> = status
        .destinations
        .iter()
        .map(|one| (one.node.as_str(), one.digest.as_str()))
        .collect();
    let digest = files.digest();
    assert_eq!(digests, [("node1", digest.as_str()), ("node2", &digest)]);
}

pub(crate) fn the_columns_say_how_it_went(cluster: &TestCluster) {
    let shown = cluster.kubectl(&["get", "tj", "--namespace", TEAM]);
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let columns = ["NAME", "PHASE", "PROGRESS", "RATE", "ETA", "AGE", "LINK"];
    assert_eq!(lines[0], columns, "{shown}");
    // Rate and ETA are of what moves, and nothing does any more.
    assert_eq!(
        lines[1][..4],
        ["minilm", "Complete", "100%", "of"],
        "{shown}"
    );
    // Which one is faster here is not for this test to say.
    let link = lines[1].last();
    assert!(
        link.is_some_and(|it| ["udp", "tcp"].contains(it)),
        "{shown}"
    );
    print!("{shown}");
}

pub(crate) fn the_events_are_its_transitions(cluster: &TestCluster) {
    let reasons = cluster.wait_until("the job's end is told", || {
        let events = cluster.json(&["get", "events.events.k8s.io", "--namespace", TEAM]);
        let events = events["items"].as_array().unwrap();
        let mut told: Vec<(&str, &str)> = events
            .iter()
            .filter(|event| event["regarding"]["name"] == JOB)
            .map(|event| (event["eventTime"].as_str(), event["reason"].as_str()))
            .map(|(time, reason)| (time.unwrap_or_default(), reason.unwrap_or_default()))
            .collect();
        told.sort_unstable();
        let reasons: Vec<String> = told.into_iter().map(|(_, reason)| reason.into()).collect();
        reasons.iter().any(|it| it == "Complete").then_some(reasons)
    });
    // On a machine that does much else an agent may be late, and be tried again, once.
    let retried = reasons.iter().filter(|reason| *reason == "Retrying");
    assert!(retried.count() <= 1, "{reasons:?}");
    let expected: Vec<&str> = reasons
        .iter()
        .map(String::as_str)
        .filter(|reason| !["Retrying", "NodesNotReady"].contains(reason))
        .collect();
    assert_eq!(
        expected,
        ["Started", "Planned", "Transferring", "Complete"],
        "{reasons:?}"
    );
}

pub(crate) fn describe_shows_plan_destinations_and_digest(cluster: &TestCluster, files: &Tree) {
    let shown = cluster.kubectl(&["describe", "tj", JOB, "--namespace", TEAM]);
    for part in [
        "Strategy:",
        "Bottleneck:",
        "node1",
        "node2",
        "Verified",
        &files.digest(),
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// The fabric's link is TCP by now.
pub(crate) fn a_job_moves_over_tcp(cluster: &TestCluster, files: &Tree) {
    let name = "over-tcp";
    files.write(&directory(cluster, "node0", name));
    cluster.apply(&job(name, &format!("{name}/")));
    let complete = ["wait", "--for=condition=Complete", "--timeout=120s"];
    cluster.kubectl(&[&complete[..], &["tj", name, "-n", TEAM]].concat());
    for node in ["node1", "node2"] {
        files.assert_is_at(&directory(cluster, node, name));
    }
    let job = cluster.json(&["get", "tj", name, "-n", TEAM]);
    let link = json!({"name": "tcp", "reason": "chosen by transport.link"});
    assert_eq!(job["status"]["link"], link);
    cluster.kubectl(&["delete", "tj", name, "-n", TEAM, "--timeout=30s"]);
}

pub(crate) fn a_deleted_job_is_gone_and_its_files_stay(cluster: &TestCluster, files: &Tree) {
    cluster.kubectl(&["delete", "tj", JOB, "--namespace", TEAM, "--timeout=30s"]);
    let left = cluster.kubectl(&["get", "tj", "--namespace", TEAM, "-o=name"]);
    assert_eq!(left, "");
    for node in ["node0", "node1", "node2"] {
        files.assert_is_at(&directory(cluster, node, JOB));
    }
}
