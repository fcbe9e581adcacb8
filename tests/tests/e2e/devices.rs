//! Virtual RDMA devices of pods: unprivileged pods of three nodes run unmodified verbs programs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_cluster::{Order, Settings, programs};

use crate::install;
use crate::test_cluster::{SYSTEM, TestCluster, report, repository};
use weft_tests::program;

const TEAM: &str = "team-a";
const OTHER_TEAM: &str = "team-b";
/// What a program that is refused a connection says after: the time in which it is offered.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Of a server, in seconds.
const SERVER_TIMEOUT: &str = "30";

/// A pod with a device, and with as little of everything else as a pod can have.
fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "verbs",
                "image": "weft.dev/verbs:1",
                "imagePullPolicy": "Never",
                "resources": {"limits": {"weft.dev/vdev": 1}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

struct Pods<'c> {
    cluster: &'c TestCluster,
}

impl Pods<'_> {
    fn start(&self, namespace: &str, name: &str, node: &str) {
        self.cluster.apply(&pod(namespace, name, node));
        self.wait_for(namespace, name);
    }

    fn wait_for(&self, namespace: &str, name: &str) {
        let pod = format!("pod/{name}");
        let ready = ["wait", "--for=condition=Ready", &pod, "--timeout=60s"];
        self.cluster
            .kubectl(&[&ready[..], &["--namespace", namespace]].concat());
    }

    fn address(&self, namespace: &str, name: &str) -> String {
        let path = "-o=jsonpath={.status.podIP}";
        self.cluster
            .kubectl(&["get", "pod", name, "--namespace", namespace, path])
    }

    /// A program in a pod.
    fn command(&self, (namespace, pod): (&str, &str), words: &[&str]) -> Command {
        let mut command = self.cluster.inner.command("kubectl");
        command
            .args(["exec", "--namespace", namespace, pod, "--"])
            .args(words)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, pod: (&str, &str), words: &[&str]) -> String {
        let output = self.command(pod, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            self.cluster.fail(&format!("{words:?}: {said}{why}"));
        }
        said
    }

    /// A pair of programs that find each other by the server's address. What the client says.
    fn pair(
        &self,
        server: (&str, &str),
        client: (&str, &str),
        words: &[&str],
    ) -> Result<String, String> {
        // One whose client fails waits without end.
        let bounded = [&["timeout", SERVER_TIMEOUT][..], words].concat();
        let serving = self
            .command(server, &bounded)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let address = self.address(server.0, server.1);
        let words = [words, &[&address]].concat();
        // The server listens after a moment.
        let begun = Instant::now();
        let said = loop {
            let output = self.command(client, &words).output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_early = why.contains("Couldn't connect") || why.contains("onnection refused");
            match output.status.success() {
                true => break Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false if is_early && begun.elapsed() < CONNECT_TIMEOUT => {}
                false => {
                    let said = String::from_utf8_lossy(&output.stdout);
                    break Err(format!("{said}{why}"));
                }
            }
        };
        let served = serving.wait_with_output().unwrap();
        let text = [served.stdout, served.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // By which ping-pong programs say it, and end with status 0.
        assert!(!text.contains("invalid data"), "{text}");
        said.and_then(|said| match served.status.success() {
            true => Ok(said),
            false => Err(format!("the server ended with {}: {text}", served.status)),
        })
    }
}

/// What the node can give to pods.
fn devices_of(cluster: &TestCluster, node: &str) -> Option<u64> {
    let path = r"-o=jsonpath={.status.allocatable.weft\.dev/vdev}";
    let said = cluster.inner.kubectl(&["get", "node", node, path]).ok()?;
    said.parse().ok()
}

fn load_images(cluster: &TestCluster) {
    let images = cluster.scratch.path().join("images");
    let pause = programs().unwrap().join("pause");
    let made = Command::new(repository("hack/images.sh"))
        .arg(&images)
        .arg(format!("devices={}", program("weft-engine").display()))
        .arg(format!("verbs={}", pause.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let archives = ["devices.tar", "verbs.tar"].map(|name| images.join(name));
    cluster.inner.load_images(&archives).unwrap();
    std::fs::remove_dir_all(images).unwrap();
}

/// The whole way, from `helm install` to pods that exchange data.
pub(crate) fn unprivileged_pods_run_verbs_programs_over_their_devices() {
    let cluster = TestCluster::up(&Settings::default());
    load_images(&cluster);
    install::helm_install(&cluster);
    let chart = repository("charts/weft").display().to_string();
    // In a directory of each node: /opt is the machine's.
    let upgrade = [
        "upgrade",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--reuse-values",
        "--set=devices.enabled=true",
        "--set=devices.libraryPath=/var/lib/weft-devices",
        "--wait",
        "--timeout=180s",
    ];
    cluster.helm(&upgrade);
    let mut fabric = install::fabric();
    fabric["spec"]["devices"] = json!({"perNode": 8, "open": 8});
    install::a_fabric_becomes_ready(&cluster, &fabric);
    let begun = Instant::now();
    for node in ["node0", "node1"] {
        cluster.wait_until("the node has devices", || {
            (devices_of(&cluster, node) == Some(8)).then_some(())
        });
    }
    report("fabric Ready to devices of its nodes", begun);
    for team in [TEAM, OTHER_TEAM] {
        cluster.kubectl(&["create", "namespace", team]);
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        cluster.kubectl(&["label", "namespace", team, restricted]);
    }
    let pods = Pods { cluster: &cluster };
    let begun = Instant::now();
    pods.start(TEAM, "a", "node0");
    report("a pod with a device, until it is Ready", begun);
    pods.start(TEAM, "b", "node1");
    pods.start(TEAM, "c", "node0");
    let (a, b, c) = ((TEAM, "a"), (TEAM, "b"), (TEAM, "c"));
    let said = pods.run(a, &["ibv_devinfo"]);
    assert!(said.contains("hca_id:\tweft0"), "{said}");
    assert!(said.contains("PORT_ACTIVE"), "{said}");
    for (server, client) in [(a, b), (b, a), (a, c)] {
        for words in [
            &["ibv_rc_pingpong", "-c", "-g", "0"][..],
            &["ibv_ud_pingpong", "-c", "-g", "0"],
            &["ib_write_bw", "-n", "200"],
        ] {
            let said = pods.pair(server, client, words);
            let said = said.unwrap_or_else(|said| cluster.fail(&format!("{words:?}: {said}")));
            assert!(said.contains("bytes"), "{said}");
        }
    }
    pods_of_another_namespace_are_not_reached(&pods);
    the_kubelet_is_restarted(&pods);
    another_engine_goes_on(&pods);
}

fn pods_of_another_namespace_are_not_reached(pods: &Pods<'_>) {
    pods.start(OTHER_TEAM, "d", "node1");
    let words = ["ibv_rc_pingpong", "-c", "-g", "0", "-n", "10"];
    let said = pods.pair((TEAM, "a"), (OTHER_TEAM, "d"), &words);
    let said = said.expect_err("pods of two namespaces reach each other");
    assert!(said.contains("transport retry counter exceeded"), "{said}");
}

fn the_kubelet_is_restarted(pods: &Pods<'_>) {
    let cluster = pods.cluster;
    let kubelet = "node1/kubelet".to_owned();
    for _ in 0..3 {
        cluster.inner.ask(&Order::Kill(kubelet.clone())).unwrap();
        cluster.inner.ask(&Order::Start(kubelet.clone())).unwrap();
    }
    let begun = Instant::now();
    cluster.wait_until("the node has devices again", || {
        (devices_of(cluster, "node1") == Some(8)).then_some(())
    });
    pods.start(TEAM, "e", "node1");
    report("kubelet restarted to the next pod Ready", begun);
    let words = ["ibv_rc_pingpong", "-c", "-g", "0"];
    for client in ["b", "e"] {
        let said = pods.pair((TEAM, "a"), (TEAM, client), &words);
        said.unwrap_or_else(|said| cluster.fail(&said));
    }
}

/// The engine's pod is replaced under programs: they go on.
fn another_engine_goes_on(pods: &Pods<'_>) {
    let cluster = pods.cluster;
    let words = ["ibv_rc_pingpong", "-c", "-g", "0", "-n", "200000"];
    let server = pods
        .command((TEAM, "a"), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let address = pods.address(TEAM, "a");
    let words = [&words[..], &[&address]].concat();
    let client = pods
        .command((TEAM, "b"), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let engine = [
        "get",
        "pods",
        "--namespace",
        SYSTEM,
        "-l=app.kubernetes.io/name=weft-engine",
        "--field-selector=spec.nodeName=node1",
        "-o=name",
    ];
    let before = cluster.kubectl(&engine);
    let begun = Instant::now();
    cluster.kubectl(&["delete", "--namespace", SYSTEM, before.trim()]);
    cluster.wait_until("there is another engine", || {
        let now = cluster.inner.kubectl(&engine).ok()?;
        (!now.trim().is_empty() && now != before).then_some(())
    });
    report("engine's pod deleted to the next one there", begun);
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    let served = server.wait_with_output().unwrap();
    let served_text = [served.stdout, served.stderr].concat();
    let served_text = String::from_utf8_lossy(&served_text);
    let are_well = output.status.success() && served.status.success();
    if !are_well || served_text.contains("invalid data") {
        cluster.fail(&format!("{said}{why}{served_text}"));
    }
}
