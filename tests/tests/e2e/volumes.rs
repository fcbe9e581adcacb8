//! Volumes of pods: unprivileged pods of restricted namespaces read verified copies.

use std::fs;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use weft_sim::draw::Draw;

use crate::harness::process;
use crate::journey::{self, TEAM};
use crate::test_cluster::{SYSTEM, TestCluster, report, repository};
use crate::tree::{self, Tree};

const OTHER_TEAM: &str = "team-b";
const JOB: &str = "minilm";
const NODE: &str = "node1";
/// Of another, small copy.
const SERVED: &str = "served";
/// One of the model's files.
const FILE: &str = "config.json";

/// As little as a pod can have.
fn unprivileged(pod: &mut Value) {
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["securityContext"] = json!({
        "runAsNonRoot": true,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("weft.dev/tools:1");
    container["imagePullPolicy"] = json!("Never");
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    });
}

/// A pod at a node, whose volume shows this.
fn pod(namespace: &str, name: &str, attributes: &Value) -> Value {
    let csi = json!({"driver": "csi.weft.dev", "readOnly": true, "volumeAttributes": attributes});
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "containers": [{
                "name": "serve",
                "volumeMounts": [{"name": "model", "mountPath": "/model"}],
            }],
            "volumes": [{"name": "model", "csi": csi}],
        },
    });
    unprivileged(&mut pod);
    pod
}

/// The pod of docs/first-job.md, with an image that is there.
fn pod_of_the_guide() -> Value {
    let guide = fs::read_to_string(repository("docs/first-job.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let pod = blocks.find(|block| block.contains("kind: Pod")).unwrap();
    let mut pod: Value = serde_saphyr::from_str(pod).unwrap();
    assert_eq!(pod["spec"]["volumes"][0]["csi"]["driver"], "csi.weft.dev");
    unprivileged(&mut pod);
    pod
}

/// What the pod's events say of its volume.
fn until_event(cluster: &TestCluster, namespace: &str, name: &str, text: &str) {
    let of_pod = format!("--field-selector=involvedObject.name={name},reason=FailedMount");
    let path = "-o=jsonpath={.items[*].message}";
    let what = format!("an event of {namespace}/{name} says `{text}`");
    cluster.wait_until(&what, || {
        let said =
            cluster
                .inner
                .kubectl(&["get", "events", "--namespace", namespace, &of_pod, path]);
        said.ok()?.contains(text).then_some(())
    });
}

fn until_ready(cluster: &TestCluster, name: &str) {
    let pod = format!("pod/{name}");
    let ready = ["wait", "--for=condition=Ready", &pod, "--timeout=150s"];
    cluster.kubectl(&[&ready[..], &["--namespace", TEAM]].concat());
}

fn run(cluster: &TestCluster, name: &str, words: &[&str]) -> String {
    cluster.kubectl(&[&["exec", "--namespace", TEAM, name, "--"][..], words].concat())
}

/// A pod reads the model, as somebody who is not root, and changes nothing of it.
pub(crate) fn reads(cluster: &TestCluster, name: &str, files: &Tree) {
    assert_eq!(run(cluster, name, &["id", "-u"]).trim(), "1000");
    let seen = run(cluster, name, &["sha256sum", &format!("/model/{FILE}")]);
    let here = cluster.scratch.path().join(FILE);
    fs::write(&here, files.content(FILE)).unwrap();
    let expected = Command::new("sha256sum").arg(&here).output().unwrap();
    let expected = String::from_utf8(expected.stdout).unwrap();
    let digest = |text: &str| text.split(' ').next().unwrap().to_owned();
    assert_eq!(digest(&seen), digest(&expected));
    let write = ["exec", "--namespace", TEAM, name, "--", "touch", "/model/x"];
    let refused = cluster.refused(&write);
    assert!(refused.contains("Read-only file system"), "{refused}");
}

/// The pod of the driver at the node.
fn driver(cluster: &TestCluster) -> String {
    let pods = [
        "get",
        "pods",
        "--namespace",
        SYSTEM,
        "-l=app.kubernetes.io/name=weft-volume-driver",
        &format!("--field-selector=spec.nodeName={NODE},status.phase=Running"),
        "-o=name",
    ];
    cluster.kubectl(&pods).trim().to_owned()
}

/// Waits until the kubelet has registered the driver.
fn until_registered(cluster: &TestCluster) {
    cluster.wait_until("the kubelet knows the driver", || {
        let path = "-o=jsonpath={.spec.drivers[*].name}";
        let said = cluster
            .inner
            .kubectl(&["get", "csinode", NODE, path])
            .ok()?;
        said.contains("csi.weft.dev").then_some(())
    });
}

/// A small copy, verified at all nodes. Its job stays.
fn a_served_copy(cluster: &TestCluster) -> Tree {
    until_registered(cluster);
    let files = Tree::draw(1_000_000, &mut Draw::new(0, 0));
    let source = journey::directory(cluster, "node0", SERVED);
    if !source.exists() {
        files.write(&source);
        cluster.apply(&journey::job(SERVED, "served/"));
    }
    let job = format!("tj/{SERVED}");
    let complete = ["wait", "--for=condition=Complete", &job, "--timeout=120s"];
    cluster.kubectl(&[&complete[..], &["--namespace", TEAM]].concat());
    files
}

/// A pod that has the small copy, and reads it.
pub(crate) fn a_pod_has_a_served_copy(cluster: &TestCluster, name: &str) -> Tree {
    let files = a_served_copy(cluster);
    cluster.apply(&pod(TEAM, name, &json!({"job": SERVED})));
    until_ready(cluster, name);
    reads(cluster, name, &files);
    files
}

/// An agent that is killed twice within ten seconds is away for ten more.
pub(crate) fn a_pod_with_a_volume_waits_for_its_nodes_agent(cluster: &TestCluster) {
    let files = a_served_copy(cluster);
    let variable = format!("NODE_NAME={NODE}");
    let agent = || process(cluster, "weft-agent", &variable);
    let first = agent().unwrap();
    kill(first, Signal::SIGKILL).unwrap();
    let second = cluster.wait_until("the agent is started again", || {
        agent().filter(|agent| *agent != first)
    });
    kill(second, Signal::SIGKILL).unwrap();
    cluster.apply(&pod(TEAM, "patient", &json!({"job": SERVED})));
    let text = "the pod waits for the node's agent, which does not answer";
    until_event(cluster, TEAM, "patient", text);
    let begun = Instant::now();
    until_ready(cluster, "patient");
    report(
        "a pod said that it waits for the agent, until it is Ready",
        begun,
    );
    reads(cluster, "patient", &files);
    cluster.kubectl(&["delete", "pod", "patient", "--namespace", TEAM]);
}

/// The whole way, from `helm install` to a copy that goes when the last pod has ended.
pub(crate) fn a_pod_mounts_a_verified_model_when_its_copy_is_complete(cluster: &TestCluster) {
    let files = tree::model();
    until_registered(cluster);

    // Before the job.
    let by_job = json!({"job": JOB});
    cluster.apply(&pod(TEAM, "early", &by_job));
    cluster.apply(&pod(OTHER_TEAM, "other", &by_job));
    let other_place = json!({"root": "models", "path": format!("../{TEAM}/{JOB}")});
    cluster.apply(&pod(OTHER_TEAM, "hostile", &other_place));
    let waits = format!("waits for TransferJob {JOB}");
    until_event(cluster, TEAM, "early", &waits);
    until_event(cluster, OTHER_TEAM, "hostile", "contains \"..\"");

    files.write(&journey::directory(cluster, "node0", JOB));
    let mut job = journey::job(JOB, "minilm/");
    job["spec"]["deletionPolicy"] = json!("Delete");
    cluster.apply(&job);
    let complete = [
        "wait",
        "--for=condition=Complete",
        "tj/minilm",
        "--timeout=120s",
    ];
    cluster.kubectl(&[&complete[..], &["--namespace", TEAM]].concat());
    let begun = Instant::now();
    until_ready(cluster, "early");
    report(
        "job Complete to the pod that waited for its copy Ready",
        begun,
    );
    reads(cluster, "early", &files);
    let begun = Instant::now();
    let place = json!({"root": "models", "path": JOB});
    cluster.apply(&pod(TEAM, "late", &place));
    until_ready(cluster, "late");
    report("a pod with a volume, until it is Ready", begun);
    reads(cluster, "late", &files);
    cluster.apply(&pod_of_the_guide());
    until_ready(cluster, "serve");
    reads(cluster, "serve", &files);
    cluster.wait_until("the FabricNodes count the volumes", || {
        // The pod of the guide may be at any node that has the copy.
        let path = "-o=jsonpath={.items[*].status.volumesInUse}";
        let said = cluster.inner.kubectl(&["get", "fabricnodes", path]).ok()?;
        let counts = said.split(' ').map(str::parse::<u32>);
        let in_use: u32 = counts.filter_map(Result::ok).sum();
        (in_use == 3).then_some(())
    });
    // The other namespace has no job of that name, whatever this one has.
    until_event(
        cluster,
        OTHER_TEAM,
        "other",
        &format!("which namespace {OTHER_TEAM} does not have"),
    );
    for name in ["other", "hostile"] {
        let path = "-o=jsonpath={.status.phase}";
        let phase = cluster.kubectl(&["get", "pod", name, "--namespace", OTHER_TEAM, path]);
        assert_eq!(phase, "Pending", "{name}");
    }
    another_driver_unmounts(cluster, &files);
    a_copy_stays_as_long_as_a_pod_has_it(cluster, &files);
}

/// The driver is replaced under pods that have volumes.
fn another_driver_unmounts(cluster: &TestCluster, files: &Tree) {
    let before = driver(cluster);
    cluster.kubectl(&["delete", "--namespace", SYSTEM, &before]);
    cluster.wait_until("there is another driver", || {
        let now = driver(cluster);
        (now.starts_with("pod/") && now != before && !now.contains('\n')).then_some(())
    });
    let ready = [
        "wait",
        "--for=condition=Ready",
        "--timeout=60s",
        "--namespace",
        SYSTEM,
    ];
    cluster.kubectl(&[&ready[..], &[&driver(cluster)]].concat());
    until_registered(cluster);
    reads(cluster, "early", files);
    for name in ["late", "serve"] {
        cluster.kubectl(&["delete", "pod", name, "--namespace", TEAM, "--timeout=120s"]);
    }
    reads(cluster, "early", files);
}

/// Its job goes, and takes the copies with it: at this node once the pod has ended.
fn a_copy_stays_as_long_as_a_pod_has_it(cluster: &TestCluster, files: &Tree) {
    cluster.kubectl(&["delete", "tj", JOB, "--namespace", TEAM, "--timeout=120s"]);
    let copy = |node: &str| journey::directory(cluster, node, JOB);
    cluster.wait_until("the copy that nobody uses is removed", || {
        (!copy("node2").exists()).then_some(())
    });
    files.assert_is_at(&copy(NODE));
    reads(cluster, "early", files);
    cluster.kubectl(&[
        "delete",
        "pod",
        "early",
        "--namespace",
        TEAM,
        "--timeout=120s",
    ]);
    let begun = Instant::now();
    cluster.wait_until("the copy that nobody uses any more is removed", || {
        (!copy(NODE).exists()).then_some(())
    });
    report("the last pod with the copy gone to the copy gone", begun);
}
