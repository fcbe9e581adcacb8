//! Virtual RDMA devices of pods: unprivileged pods run unmodified verbs programs, whatever fails beside them.
//!
//! All trials share one cluster, which is made with the first of them, also that of volumes.

mod cdi_directory;
mod claims;
mod exchange;
mod faults;
mod feature_gates;
mod link;
mod many;
mod monitoring;
mod policy;
mod programs;
mod reboot;
mod releases;
mod scribbles;
mod shown;

use std::any::type_name_of_val;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use libtest_mimic::Trial;
use nix::unistd::Pid;
use serde_json::{Value, json};
use weft_cluster::{Settings, programs};

use crate::harness::process;
use crate::test_cluster::{SYSTEM, Shared, TestCluster, report, repository, share};
use crate::{install, volumes};
use weft_tests::program;

const TEAM: &str = "team-a";
const OTHER_TEAM: &str = "team-b";
/// Two pods whose programs write to each other.
const SERVER: &str = "server";
const CLIENT: &str = "client";
/// Devices of a node.
const PER_NODE: u64 = 8;
/// Where rdma-core's and perftest's programs listen.
const PORT: u16 = 18_515;
/// Of a program of a pair, in seconds. A connection is offered for 10.
const PROGRAM_TIMEOUT: &str = "30";

/// Feature gates of Kubernetes 1.34 that are off by default. They change nothing for who does not ask for what is behind them.
const FEATURE_GATES: [&str; 3] = [
    "DRAConsumableCapacity",
    "DRAExtendedResource",
    "ResourceHealthStatus",
];

/// One test for each.
pub(crate) fn trials(shared: &Shared) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add_in = |mode: Mode, play: fn(&Devices), path: &str| {
        let (_, name) = path.rsplit_once("::").unwrap_or_default();
        let shared = Arc::clone(shared);
        trials.push(Trial::test(name, move || {
            let up = move || Devices::up(mode);
            share(&shared, up, |devices| {
                devices.clear();
                devices.enter(mode);
                play(devices);
            });
            Ok(())
        }));
    };
    // The first one: a node that has had a device plugin lists its resource for good, and then no pod of the node gets the
    // resource by a claim.
    add_in(
        Mode::SharedClaims,
        feature_gates::claims_share_a_device_pods_ask_by_the_resource_and_show_its_health,
        type_name_of_val(
            &feature_gates::claims_share_a_device_pods_ask_by_the_resource_and_show_its_health,
        ),
    );
    let mut add = |play: fn(&Devices), path: &str| add_in(Mode::Both, play, path);
    add(
        unprivileged_pods_run_verbs_programs_over_their_devices,
        type_name_of_val(&unprivileged_pods_run_verbs_programs_over_their_devices),
    );
    add(
        programs::unprivileged_pods_run_perftest_ucx_mpi_and_pyverbs,
        type_name_of_val(&programs::unprivileged_pods_run_perftest_ucx_mpi_and_pyverbs),
    );
    add(
        pods_of_another_namespace_are_not_reached,
        type_name_of_val(&pods_of_another_namespace_are_not_reached),
    );
    add(
        policy::a_pod_of_a_namespace_that_the_fabric_does_not_list_says_so,
        type_name_of_val(&policy::a_pod_of_a_namespace_that_the_fabric_does_not_list_says_so),
    );
    add(
        policy::a_refused_connection_is_told_to_both_pods,
        type_name_of_val(&policy::a_refused_connection_is_told_to_both_pods),
    );
    add(
        policy::pods_keep_their_devices_when_their_fabric_has_none_any_more,
        type_name_of_val(&policy::pods_keep_their_devices_when_their_fabric_has_none_any_more),
    );
    add(
        faults::a_kubelet_that_is_killed_twenty_times_takes_no_device_away,
        type_name_of_val(&faults::a_kubelet_that_is_killed_twenty_times_takes_no_device_away),
    );
    add(
        faults::programs_go_on_when_the_engine_is_replaced,
        type_name_of_val(&faults::programs_go_on_when_the_engine_is_replaced),
    );
    add(
        faults::programs_go_on_when_the_agents_are_replaced,
        type_name_of_val(&faults::programs_go_on_when_the_agents_are_replaced),
    );
    add(
        faults::a_container_starts_when_the_plugin_is_killed_after_its_pod_was_admitted,
        type_name_of_val(
            &faults::a_container_starts_when_the_plugin_is_killed_after_its_pod_was_admitted,
        ),
    );
    add(
        faults::of_two_pods_one_has_the_last_device_and_the_other_waits_for_it,
        type_name_of_val(&faults::of_two_pods_one_has_the_last_device_and_the_other_waits_for_it),
    );
    add(
        faults::a_pod_that_is_deleted_by_force_leaves_no_device,
        type_name_of_val(&faults::a_pod_that_is_deleted_by_force_leaves_no_device),
    );
    add(
        claims::pods_get_devices_by_dra,
        type_name_of_val(&claims::pods_get_devices_by_dra),
    );
    add(
        programs::pods_with_claims_run_perftest_ucx_mpi_and_pyverbs,
        type_name_of_val(&programs::pods_with_claims_run_perftest_ucx_mpi_and_pyverbs),
    );
    add(
        |devices| {
            volumes::a_pod_mounts_a_verified_model_when_its_copy_is_complete(&devices.cluster);
        },
        type_name_of_val(&volumes::a_pod_mounts_a_verified_model_when_its_copy_is_complete),
    );
    add(
        monitoring::every_query_of_boards_and_rules_finds_data_and_the_right_alerts_fire,
        type_name_of_val(
            &monitoring::every_query_of_boards_and_rules_finds_data_and_the_right_alerts_fire,
        ),
    );
    for (play, path) in later() {
        add(play, path);
    }
    add(
        faults::helm_uninstall_is_refused_while_pods_have_devices,
        type_name_of_val(&faults::helm_uninstall_is_refused_while_pods_have_devices),
    );
    trials
}

/// A trial on the shared cluster, and its path in this crate.
type NamedTrial = (fn(&Devices), &'static str);

/// Those of which each needs what the others do, too: volumes, claims and devices by the resource.
fn later() -> [NamedTrial; 10] {
    [
        (
            cdi_directory::a_pod_says_that_files_for_the_container_runtime_have_no_room_and_runs_when_they_have,
            type_name_of_val(
                &cdi_directory::a_pod_says_that_files_for_the_container_runtime_have_no_room_and_runs_when_they_have,
            ),
        ),
        (
            cdi_directory::a_pod_says_that_files_for_the_container_runtime_cannot_be_written_and_runs_when_they_can,
            type_name_of_val(
                &cdi_directory::a_pod_says_that_files_for_the_container_runtime_cannot_be_written_and_runs_when_they_can,
            ),
        ),
        (
            reboot::files_of_another_boot_for_the_container_runtime_do_no_harm,
            type_name_of_val(&reboot::files_of_another_boot_for_the_container_runtime_do_no_harm),
        ),
        (
            reboot::pods_of_a_node_whose_power_was_cut_run_again_with_devices,
            type_name_of_val(&reboot::pods_of_a_node_whose_power_was_cut_run_again_with_devices),
        ),
        (
            link::devices_in_use_are_unhealthy_while_their_nodes_data_link_is_down,
            type_name_of_val(&link::devices_in_use_are_unhealthy_while_their_nodes_data_link_is_down),
        ),
        (
            scribbles::a_pod_that_scribbles_over_its_rings_hurts_no_other_pod,
            type_name_of_val(&scribbles::a_pod_that_scribbles_over_its_rings_hurts_no_other_pod),
        ),
        (
            |devices| volumes::a_pod_with_a_volume_waits_for_its_nodes_agent(&devices.cluster),
            type_name_of_val(&volumes::a_pod_with_a_volume_waits_for_its_nodes_agent),
        ),
        (
            many::programs_with_100_devices_go_on_when_their_engine_and_agents_are_replaced,
            type_name_of_val(
                &many::programs_with_100_devices_go_on_when_their_engine_and_agents_are_replaced,
            ),
        ),
        (
            releases::pods_with_devices_and_volumes_go_on_when_the_chart_is_upgraded_and_rolled_back,
            type_name_of_val(
                &releases::pods_with_devices_and_volumes_go_on_when_the_chart_is_upgraded_and_rolled_back,
            ),
        ),
        (
            releases::an_upgrade_that_takes_away_what_pods_have_is_refused_and_made_when_they_are_gone,
            type_name_of_val(
                &releases::an_upgrade_that_takes_away_what_pods_have_is_refused_and_made_when_they_are_gone,
            ),
        ),
    ]
}

/// A cluster whose nodes have devices and volumes.
pub(crate) struct Devices {
    cluster: TestCluster,
    mode: Mode,
}

/// How pods get devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By the resource from the device plugin, and by claims, each for a device of the node's slice.
    Both,
    /// By claims that share one device of the node's slice, also where they ask by the resource.
    SharedClaims,
}

impl Mode {
    /// Values of the chart.
    fn values(self) -> [&'static str; 3] {
        match self {
            Self::Both => [
                "--set=devices.mode=both",
                "--set=devices.consumableCapacity=false",
                "--set=devices.extendedResource=false",
            ],
            Self::SharedClaims => [
                "--set=devices.mode=dra",
                "--set=devices.consumableCapacity=true",
                "--set=devices.extendedResource=true",
            ],
        }
    }
}

/// A pod with devices, and with as little of everything else as a pod can have.
fn pod(namespace: &str, name: &str, node: &str, devices: u64) -> Value {
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
                "resources": {"limits": {"weft.dev/vdev": devices}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

impl Devices {
    /// From `helm install` to nodes with devices.
    fn up(mode: Mode) -> Self {
        let gates = FEATURE_GATES.map(|gate| (gate.to_owned(), true));
        let cluster = TestCluster::up(&Settings {
            feature_gates: gates.into(),
            ..Settings::default()
        });
        load_images(&cluster);
        install::helm_install(&cluster);
        let devices = Self { cluster, mode };
        devices.upgrade();
        let cluster = &devices.cluster;
        let mut fabric = install::fabric();
        fabric["spec"]["devices"] = json!({"perNode": PER_NODE});
        install::a_fabric_becomes_ready(cluster, &fabric);
        for team in [TEAM, OTHER_TEAM] {
            cluster.kubectl(&["create", "namespace", team]);
            let restricted = "pod-security.kubernetes.io/enforce=restricted";
            cluster.kubectl(&["label", "namespace", team, restricted]);
        }
        let begun = Instant::now();
        devices.wait_for_nodes();
        report("fabric Ready to devices of its nodes", begun);
        devices
    }

    /// Deletes the pods that a trial which failed has left: they have devices that the next ones need.
    fn clear(&self) {
        // Every trial may use these two.
        let others = "--field-selector=metadata.name!=a,metadata.name!=b";
        for team in [TEAM, OTHER_TEAM] {
            let pods = ["delete", "pods", others, "--namespace", team];
            self.cluster.kubectl(&pods);
        }
    }

    /// Has pods get devices in this way from now on.
    fn enter(&mut self, mode: Mode) {
        if self.mode == mode {
            return;
        }
        // Devices that claims had in the other way are not counted.
        let all = ["delete", "pods,resourceclaims", "--all"];
        self.cluster
            .kubectl(&[&all[..], &["--namespace", TEAM]].concat());
        let begun = Instant::now();
        self.mode = mode;
        self.upgrade();
        self.wait_for_nodes();
        report("devices.mode changed to devices of the nodes", begun);
    }

    fn upgrade(&self) {
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
            "--set=volumes.enabled=true",
            "--set=devices.libraryPath=/var/lib/weft-devices",
            "--wait",
            "--timeout=180s",
        ];
        self.cluster
            .helm(&[&upgrade[..], &self.mode.values()].concat());
    }

    fn wait_for_nodes(&self) {
        for node in ["node0", "node1", "node2"] {
            match self.mode {
                Mode::Both => self.wait_for_node(node, PER_NODE),
                Mode::SharedClaims => claims::wait_for_shared_device(&self.cluster, node),
            }
        }
    }

    /// Until the node has so many devices.
    fn wait_for_node(&self, node: &str, count: u64) {
        self.cluster.wait_until("the node has devices", || {
            let path = r"-o=jsonpath={.status.allocatable.weft\.dev/vdev}";
            let said = self.cluster.inner.kubectl(&["get", "node", node, path]);
            (said.ok()?.parse() == Ok(count)).then_some(())
        });
    }

    /// Does nothing where it runs already.
    fn start(&self, namespace: &str, name: &str, node: &str) {
        self.cluster.apply(&pod(namespace, name, node, 1));
        self.wait_for(namespace, name);
    }

    fn delete(&self, namespace: &str, name: &str) {
        self.cluster
            .kubectl(&["delete", "pod", name, "--namespace", namespace]);
    }

    /// A pair of pods on two nodes.
    fn two_pods(&self) -> [(&'static str, &'static str); 2] {
        for (name, node) in [("a", "node0"), ("b", "node1")] {
            self.start(TEAM, name, node);
        }
        [(TEAM, "a"), (TEAM, "b")]
    }

    /// A pair of pods whose programs go on for a while. They are no children of a kubelet's connection.
    fn begin_pair(&self, words: &[&str]) {
        let cluster = &self.cluster;
        let begin = |name: &str, node: &str, words: &[&str]| {
            let mut pod = pod(TEAM, name, node, 1);
            pod["metadata"]["labels"] = json!({"app": "pair"});
            pod["spec"]["restartPolicy"] = json!("Never");
            pod["spec"]["containers"][0]["command"] = json!(words);
            cluster.apply(&pod);
            self.wait_for(TEAM, name);
        };
        begin(SERVER, "node0", words);
        cluster.wait_until("the server listens", || {
            self.listens((TEAM, SERVER), PORT).then_some(())
        });
        let address = self.address(TEAM, SERVER);
        begin(CLIENT, "node1", &[words, &[&address]].concat());
    }

    /// Both must run still, so that they have met what was done meanwhile, and end well.
    fn end_pair(&self) {
        let cluster = &self.cluster;
        let phase = "-o=jsonpath={.items[*].status.phase}";
        let both = ["get", "pod", "--namespace", TEAM, "-l=app=pair", phase];
        assert_eq!(cluster.kubectl(&both), "Running Running");
        for name in [SERVER, CLIENT] {
            let pod = format!("pod/{name}");
            let ended = "--for=jsonpath={.status.phase}=Succeeded";
            let ended = ["wait", ended, &pod, "--timeout=240s", "--namespace", TEAM];
            cluster.kubectl(&ended);
            let said = cluster.kubectl(&["logs", name, "--namespace", TEAM]);
            // By which ping-pong programs say it, and end with status 0.
            assert!(!said.contains("invalid data"), "{said}");
            self.delete(TEAM, name);
        }
    }

    /// The plugin's process on a node.
    fn plugin(&self, node: &str) -> Pid {
        let pod = faults::pod_of(self, "app.kubernetes.io/name=weft-device-plugin", node);
        let variable = format!("POD_NAME={}", pod.expect("the node has a plugin"));
        process(&self.cluster, "weft-device-plugin", &variable).expect("it runs")
    }

    /// How many devices of this kind a node has, and files for its container runtime: as the plugin sees them.
    fn made(&self, node: &str, kind: &str) -> [usize; 2] {
        let plugin = self.plugin(node);
        ["/run/weft/devices", "/var/run/cdi"].map(|directory| {
            let entries = fs::read_dir(format!("/proc/{plugin}/root{directory}"));
            let names = entries.unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.to_string_lossy().into_owned());
            names.filter(|name| name.contains(kind)).count()
        })
    }

    /// Until the node's FabricNode says that so many of its devices and volumes are in use.
    fn until_in_use(&self, node: &str, of_devices: u64, of_volumes: u64) {
        let what = format!("{node} has {of_devices} devices and {of_volumes} volumes in use");
        self.cluster.wait_until(&what, || {
            let status = &self.cluster.json(&["get", "fabricnode", node])["status"];
            let volumes = status["volumesInUse"].as_u64().unwrap_or_default();
            let counts = &status["devices"];
            let has_them = counts["total"] == PER_NODE
                && counts["inUse"] == of_devices
                && counts["unhealthy"] == 0
                && volumes == of_volumes;
            has_them.then_some(())
        });
    }

    /// Programs of a pod find all its devices in `/sys/class`, also the last one.
    fn assert_in_sysfs(&self, pod: &str, count: u64) {
        let shown = self.run((TEAM, pod), &["ls", "/sys/class/infiniband"]);
        assert_eq!(shown.matches("weft").count() as u64, count, "{shown}");
        let gid = format!(
            "/sys/class/infiniband/weft{}/ports/1/gids/0",
            count.saturating_sub(1)
        );
        let shown = self.run((TEAM, pod), &["cat", &gid]);
        assert!(shown.starts_with("fd77:"), "{shown}");
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
        let ended = self.try_run(pod, words);
        ended.unwrap_or_else(|said| self.cluster.fail(&format!("{words:?}: {said}")))
    }

    /// What the program says, or what one says that fails.
    fn try_run(&self, pod: (&str, &str), words: &[&str]) -> Result<String, String> {
        let output = self.command(pod, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(format!("{said}{why}"))
    }

    /// Whether a program of a pod listens at a TCP port, by the kernel's list of sockets.
    fn listens(&self, pod: (&str, &str), port: u16) -> bool {
        let mut command = self.command(pod, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        let listed = command.output().unwrap().stdout;
        let port = format!(":{port:04X} ");
        String::from_utf8_lossy(&listed)
            .lines()
            .any(|line| line.contains(&port) && line.contains(" 0A "))
    }

    /// Waits until a program does, or has ended.
    fn await_listener(&self, program: &mut Child, pod: (&str, &str), port: u16) {
        self.cluster.wait_until("the server listens", || {
            let has_ended = program.try_wait().unwrap().is_some();
            (has_ended || self.listens(pod, port)).then_some(())
        });
    }

    /// A pair of programs that find each other by the server's address. What the client says.
    fn pair(
        &self,
        server: (&str, &str),
        client: (&str, &str),
        words: &[&str],
    ) -> Result<String, String> {
        self.pair_at(PORT, (server, words), (client, words))
    }

    /// The same with programs that listen at another port, or are two. The client's last word is the server's address.
    fn pair_at(
        &self,
        port: u16,
        (server, listening): ((&str, &str), &[&str]),
        (client, connecting): ((&str, &str), &[&str]),
    ) -> Result<String, String> {
        // One that fails may leave the other waiting without end.
        let timeout = ["timeout", PROGRAM_TIMEOUT];
        let mut serving = self
            .command(server, &[&timeout, listening].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        self.await_listener(&mut serving, server, port);
        let address = self.address(server.0, server.1);
        let connecting = [&timeout, connecting, &[&address]].concat();
        let connected = self.command(client, &connecting).output();
        let connected = connected.unwrap();
        let served = serving.wait_with_output().unwrap();
        let text = |output: &Output| {
            let said = String::from_utf8_lossy(&output.stdout);
            format!("{said}{}", String::from_utf8_lossy(&output.stderr))
        };
        let [said, text] = [&connected, &served].map(text);
        // By which ping-pong programs say it, and end with status 0.
        assert!(!text.contains("invalid data"), "{text}");
        match [connected.status, served.status].map(|status| status.success()) {
            [true, true] => Ok(said),
            _ => Err(format!(
                "{said}the server ended with {}: {text}",
                served.status
            )),
        }
    }
}

fn load_images(cluster: &TestCluster) {
    let images = cluster.scratch.path().join("images");
    let pause = programs().unwrap().join("pause");
    let made = Command::new(repository("hack/images.sh"))
        .arg(&images)
        .arg(format!("devices={}", program("weft-engine").display()))
        .arg(format!(
            "volumes={}",
            program("weft-volume-driver").display()
        ))
        .arg(format!("verbs={}", pause.display()))
        .arg(format!("programs={}", pause.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let archives = ["devices", "volumes", "verbs", "programs"];
    let archives = archives.map(|name| images.join(format!("{name}.tar")));
    cluster.inner.load_images(&archives).unwrap();
    std::fs::remove_dir_all(images).unwrap();
}

/// The whole way, from `helm install` to pods that exchange data.
fn unprivileged_pods_run_verbs_programs_over_their_devices(devices: &Devices) {
    let begun = Instant::now();
    let [a, b] = devices.two_pods();
    report("two pods with a device, until they are Ready", begun);
    devices.start(TEAM, "c", "node0");
    let c = (TEAM, "c");
    let said = devices.run(a, &["ibv_devinfo"]);
    assert!(said.contains("hca_id:\tweft0"), "{said}");
    assert!(said.contains("PORT_ACTIVE"), "{said}");
    for (server, client) in [(a, b), (b, a), (a, c)] {
        for words in [
            &["ibv_rc_pingpong", "-c", "-g", "0"][..],
            &["ibv_ud_pingpong", "-c", "-g", "0"],
            &["ib_write_bw", "-n", "200"],
        ] {
            let said = devices.pair(server, client, words);
            let said =
                said.unwrap_or_else(|said| devices.cluster.fail(&format!("{words:?}: {said}")));
            assert!(said.contains("bytes"), "{said}");
        }
    }
    shown::devices_are_shown(devices);
    devices.delete(TEAM, "c");
}

fn pods_of_another_namespace_are_not_reached(devices: &Devices) {
    let [a, _] = devices.two_pods();
    devices.start(OTHER_TEAM, "d", "node1");
    let words = ["ibv_rc_pingpong", "-c", "-g", "0", "-n", "10"];
    let said = devices.pair(a, (OTHER_TEAM, "d"), &words);
    let said = said.expect_err("pods of two namespaces reach each other");
    assert!(said.contains("transport retry counter exceeded"), "{said}");
    shown::refused_offers_are_shown(devices);
    devices.delete(OTHER_TEAM, "d");
}
