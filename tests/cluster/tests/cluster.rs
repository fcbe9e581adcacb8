//! A cluster comes up, is what a test needs, and leaves nothing. `make e2e` runs it; it needs root and
//! the programs of `hack/cluster-binaries.sh`.

// The steps are beside the `#[test]` functions, so clippy does not see that they are tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_cluster::{Cluster, ClusterError, DATA_INTERFACE, Order, Settings, Up, programs};

/// What a pod needs to start on a machine that does much else.
const PATIENCE: &str = "--timeout=180s";
const ROOT: &str = "/var/lib/weft/models";

/// A cluster in a directory of its own, taken down whatever becomes of the test.
struct Lent {
    cluster: Cluster,
    state: PathBuf,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = Cluster::down(&self.state) {
            eprintln!("{error}");
        }
    }
}

fn up(settings: &Settings, state: &Path) -> Result<Up, ClusterError> {
    let server = Path::new(env!("CARGO_BIN_EXE_cluster"));
    Cluster::up(settings, state, &programs()?, server, &mut |line| {
        println!("{line}");
    })
}

impl Lent {
    fn kubectl(&self, arguments: &[&str]) -> String {
        self.told(self.cluster.kubectl(arguments))
    }

    fn apply(&self, object: &Value) {
        self.told(self.cluster.apply(&object.to_string()));
    }

    /// What went wrong in a cluster stands in its events.
    fn told(&self, said: Result<String, ClusterError>) -> String {
        said.unwrap_or_else(|error| {
            let events = self.cluster.kubectl(&["get", "events", "-A"]);
            panic!("{error}\n{}", events.unwrap_or_default())
        })
    }

    /// The pod of the DaemonSet on a node.
    fn agent(&self, node: &str) -> String {
        let selector = format!("--field-selector=spec.nodeName={node}");
        let name = self.kubectl(&["get", "pods", "-l=app=host", &selector, "-o=name"]);
        name.trim().to_owned()
    }

    fn ping(&self, from: &str, to: &str) -> bool {
        let agent = self.agent(from);
        let ping = [
            "exec",
            &agent,
            "--",
            "ping",
            "-c1",
            "-W5",
            "-I",
            DATA_INTERFACE,
            to,
        ];
        self.cluster.kubectl(&ping).is_ok()
    }
}

fn pod(name: &str, node: &str, image: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": image, "imagePullPolicy": "Never", "command": command,
                "securityContext": {"runAsNonRoot": image.contains("operator")},
            }],
        },
    })
}

/// As an agent is run: in the node's network, with a directory of the node's.
fn daemon_set() -> Value {
    let script = format!("hostname >{ROOT}/name; exec /pause");
    let labels = json!({"app": "host"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "host"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main", "image": "weft.dev/tools:1", "imagePullPolicy": "Never",
                        "command": ["sh", "-c", script],
                        "volumeMounts": [{"name": "root", "mountPath": ROOT}],
                    }],
                    "volumes": [{
                        "name": "root",
                        "hostPath": {"path": ROOT, "type": "DirectoryOrCreate"},
                    }],
                },
            },
        },
    })
}

#[test]
fn a_cluster_of_two_nodes_is_a_real_one_and_leaves_nothing() {
    let before = traces();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let settings = Settings {
        nodes: 2,
        unlabelled: vec!["node1".to_owned()],
        ..Settings::default()
    };
    let begun = Instant::now();
    let Up::Made(cluster) = up(&settings, &state).unwrap() else {
        panic!("a cluster was up in a new directory");
    };
    println!("up in {:.1} s", begun.elapsed().as_secs_f64());
    let lent = Lent { cluster, state };

    asked_again_it_says_what_is_there(&lent, &settings);
    pods_run_and_can_be_asked(&lent);
    the_data_network_crosses_the_spines(&lent);
    a_nodes_files_are_its_own(&lent);
    an_image_of_a_program_runs(&lent, directory.path());
    a_component_is_killed_and_started_again(&lent);

    let processes = below(lent.cluster.pid());
    assert!(processes.len() > 12, "{processes:?}");
    let groups = control_groups(&processes);
    assert!(!groups.is_empty());
    let begun = Instant::now();
    Cluster::down(&lent.state).unwrap();
    println!("down in {:.1} s", begun.elapsed().as_secs_f64());
    assert!(!lent.state.exists());
    let left: Vec<_> = processes
        .into_iter()
        .filter(|(pid, began)| started(*pid) == Some(*began))
        .collect();
    assert_eq!(left, [], "processes");
    assert!(!groups.iter().any(|group| group.exists()), "{groups:?}");
    assert_eq!(traces(), before);
    // A second time there is nothing to do.
    Cluster::down(&lent.state).unwrap();
}

#[test]
fn a_component_that_ends_is_named_and_nothing_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (state, broken) = (
        directory.path().join("state"),
        directory.path().join("programs"),
    );
    fs::create_dir(&broken).unwrap();
    for program in fs::read_dir(programs().unwrap()).unwrap() {
        let program = program.unwrap();
        if program.file_name() != "kube-apiserver" {
            symlink(program.path(), broken.join(program.file_name())).unwrap();
        }
    }
    let api = broken.join("kube-apiserver");
    fs::write(&api, "#!/bin/sh\necho no such flag >&2\nexit 1\n").unwrap();
    fs::set_permissions(&api, fs::Permissions::from_mode(0o755)).unwrap();
    let settings = Settings {
        nodes: 1,
        ..Settings::default()
    };
    let server = Path::new(env!("CARGO_BIN_EXE_cluster"));
    let failed = Cluster::up(&settings, &state, &broken, server, &mut |_| {});
    assert_eq!(
        failed.unwrap_err().to_string(),
        "the cluster's server: kube-apiserver ended (exit status: 1); the end of its log:\nno such flag"
    );
    assert!(!state.exists());
}

fn asked_again_it_says_what_is_there(lent: &Lent, settings: &Settings) {
    assert!(matches!(up(settings, &lent.state).unwrap(), Up::Found(_)));
    let more = Settings {
        nodes: 3,
        ..settings.clone()
    };
    let refused = up(&more, &lent.state).unwrap_err().to_string();
    assert!(
        refused.starts_with("a cluster of 2 nodes is up in "),
        "{refused}"
    );
    let labelled = lent.kubectl(&["get", "nodes", "-l=gpu=true", "-o=name"]);
    assert_eq!(labelled.trim(), "node/node0");
}

fn pods_run_and_can_be_asked(lent: &Lent) {
    for node in ["node0", "node1"] {
        let greet = format!("echo hello from {node}; exec /pause");
        lent.apply(&pod(node, node, "weft.dev/tools:1", &["sh", "-c", &greet]));
    }
    lent.apply(&daemon_set());
    lent.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/node0",
        "pod/node1",
        PATIENCE,
    ]);
    lent.kubectl(&["rollout", "status", "daemonset/host", PATIENCE]);
    for node in ["node0", "node1"] {
        assert_eq!(
            lent.kubectl(&["logs", node]),
            format!("hello from {node}\n")
        );
        assert_eq!(
            lent.kubectl(&["exec", node, "--", "hostname"]),
            format!("{node}\n")
        );
    }
    // From pod to pod across nodes.
    let address = lent.kubectl(&["get", "pod", "node1", "-o=jsonpath={.status.podIP}"]);
    let agent = lent.agent("node0");
    for from in ["node0", &agent] {
        lent.kubectl(&["exec", from, "--", "ping", "-c1", "-W5", &address]);
    }
    // To a Service, from a pod's own network and from the node's.
    let ask = r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w5 10.96.0.1 443";
    for from in ["node0", &agent] {
        // Once kube-proxy has written its rules.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = lent.cluster.kubectl(&["exec", from, "--", "sh", "-c", ask]);
            let answer = answer.unwrap_or_else(|error| error.to_string());
            if answer.contains("HTTP request to an HTTPS server") {
                break;
            }
            assert!(Instant::now() < deadline, "{from}: {answer}");
        }
    }
}

fn the_data_network_crosses_the_spines(lent: &Lent) {
    for node in lent.cluster.nodes() {
        let agent = lent.agent(&node.name);
        let nics = lent.kubectl(&["exec", &agent, "--", "ls", "/sys/class/net"]);
        assert!(
            nics.split_whitespace().any(|nic| nic == DATA_INTERFACE),
            "{nics}"
        );
        let shown = lent.kubectl(&["exec", &agent, "--", "ip", "addr", "show", DATA_INTERFACE]);
        assert!(
            shown.contains(&format!("inet {}/", node.data_address)),
            "{shown}"
        );
    }
    let far = lent.cluster.nodes()[1].data_address.to_string();
    assert!(lent.ping("node0", &far), "the data address of node1");
    for spine in 0..Settings::default().spines {
        lent.cluster.ask(&Order::FailSpine(spine)).unwrap();
    }
    assert!(!lent.ping("node0", &far), "with every spine failed");
    for spine in 0..Settings::default().spines {
        lent.cluster.ask(&Order::HealSpine(spine)).unwrap();
    }
    assert!(lent.ping("node0", &far), "with every spine healed");
}

fn a_nodes_files_are_its_own(lent: &Lent) {
    for node in ["node0", "node1"] {
        let file = lent.cluster.file(node, &format!("{ROOT}/name"));
        // A pod in the host's network has the host's name, which here is this machine's.
        assert!(file.is_file(), "{}", file.display());
        fs::write(file, node).unwrap();
        let agent = lent.agent(node);
        let name = lent.kubectl(&["exec", &agent, "--", "cat", &format!("{ROOT}/name")]);
        assert_eq!(name, node);
    }
    assert!(!Path::new(ROOT).exists(), "this machine's own {ROOT}");
}

fn an_image_of_a_program_runs(lent: &Lent, scratch: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/images.sh");
    let made = Command::new(script)
        .arg(scratch)
        .arg(concat!("operator=", env!("CARGO_BIN_EXE_cluster")))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let archive = scratch.join("operator.tar");
    lent.cluster.load_images(&[archive]).unwrap();
    let image = format!("weft.dev/operator:{}", env!("CARGO_PKG_VERSION"));
    lent.apply(&pod(
        "image",
        "node1",
        &image,
        &["/weft-operator", "--version"],
    ));
    lent.kubectl(&[
        "wait",
        "--for=jsonpath={.status.phase}=Succeeded",
        "pod/image",
        PATIENCE,
    ]);
    assert!(lent.kubectl(&["logs", "image"]).starts_with("cluster "));
}

fn a_component_is_killed_and_started_again(lent: &Lent) {
    let runs = |name: &str| {
        let components = lent.cluster.components().unwrap();
        components.iter().find(|(n, _)| n == name).unwrap().1
    };
    let etcd = "etcd".to_owned();
    assert!(runs(&etcd));
    lent.cluster.ask(&Order::Kill(etcd.clone())).unwrap();
    assert!(!runs(&etcd));
    lent.cluster.ask(&Order::Start(etcd.clone())).unwrap();
    assert!(runs(&etcd));
    // What it held is still there, and it can be written to.
    lent.kubectl(&["delete", "pod", "node0", "node1", PATIENCE]);
    let refused = lent.cluster.ask(&Order::Kill("node9/kubelet".to_owned()));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("there is no node9/kubelet")
    );
}

/// What a cluster could leave on this machine, by kind.
fn traces() -> BTreeMap<&'static str, String> {
    let list = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}");
        String::from_utf8(output.stdout).unwrap()
    };
    BTreeMap::from([
        ("mounts", fs::read_to_string("/proc/self/mounts").unwrap()),
        ("interfaces", list("ip", &["-oneline", "-brief", "link"])),
        ("namespaces", list("ip", &["netns", "list"])),
        ("routes", list("ip", &["route"])),
    ])
}

/// Those named after one of these processes: another cluster may be up beside this one.
fn control_groups(processes: &[(u32, u64)]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // The second version has one hierarchy, the first has many.
    let mounted = Path::new("/sys/fs/cgroup");
    let entries = fs::read_dir(mounted).unwrap();
    let many = entries.map(|entry| entry.unwrap().path());
    for hierarchy in many.chain([mounted.to_owned()]) {
        let ours = hierarchy.join("weft-cluster");
        let named = processes.iter().map(|(pid, _)| ours.join(pid.to_string()));
        found.extend(named.filter(|group| group.exists()));
    }
    found
}

/// A process and everything below it, with when each was started.
fn below(pid: u32) -> Vec<(u32, u64)> {
    let all: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    let parent = |pid: u32| field(pid, 1).and_then(|parent| u32::try_from(parent).ok());
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let children = all.iter().filter(|one| parent(**one) == Some(found[next]));
        let children: Vec<u32> = children.copied().collect();
        found.extend(children);
        next += 1;
    }
    found
        .into_iter()
        .filter_map(|pid| Some((pid, started(pid)?)))
        .collect()
}

fn started(pid: u32) -> Option<u64> {
    // What only its parent, this test, has not noticed the end of has ended.
    let ended = stat(pid)?.first()? == "Z";
    if ended { None } else { field(pid, 19) }
}

fn field(pid: u32, n: usize) -> Option<u64> {
    stat(pid)?.get(n)?.parse().ok()
}

/// The fields of `/proc/PID/stat` after the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}
