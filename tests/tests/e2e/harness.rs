//! A cluster on which transfers last some seconds, and a moment within each at which something is
//! done to it.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weft_cluster::{Settings, is_below};
use weft_crds::{Phase, TransferJob};
use weft_sim::draw::Draw;

use crate::install;
use crate::test_cluster::{MODELS, SYSTEM, TestCluster};
use crate::tree::Tree;

/// Of a node's link: a chain of 60 MB takes five seconds.
const NODE_RATE: u64 = 100_000_000;
const BYTES: usize = 60_000_000;
/// The same for 25 seconds.
const BYTES_LONG: usize = 300_000_000;
/// Of the bytes at the first destination, when something is done. What is done takes a moment, too.
const MOMENT_PERCENT: (u64, u64) = (5, 45);
/// The tenant.
pub(crate) const TEAM: &str = "team-a";

/// The cluster, and what the seed draws.
pub(crate) struct Harness {
    pub(crate) cluster: TestCluster,
    pub(crate) draw: Draw,
}

/// A job whose bytes are on their way.
pub(crate) struct Running {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) files: Tree,
    pub(crate) to: Vec<String>,
    /// Of the bytes, at the first destination.
    pub(crate) percent: u64,
    pub(crate) since: Instant,
}

impl Harness {
    /// Four nodes, of which the last is of no fabric; the chart; a fabric that is Ready.
    pub(crate) fn new() -> Self {
        let cluster = TestCluster::up(&Settings {
            nodes: 4,
            unlabelled: vec!["node3".to_owned()],
            node_rate: Some(NODE_RATE),
            ..Settings::default()
        });
        install::helm_install(&cluster);
        let mut fabric = install::fabric();
        let library = json!({
            "name": "library", "hostPath": "/var/lib/weft/library", "access": "ReadOnly",
            "scope": "Shared",
        });
        fabric["spec"]["roots"]
            .as_array_mut()
            .unwrap()
            .push(library);
        install::a_fabric_becomes_ready(&cluster, &fabric);
        cluster.kubectl(&["create", "namespace", TEAM]);
        Self {
            cluster,
            draw: Draw::new(0, 0),
        }
    }

    /// Removes the jobs of earlier trials and their files, of which a machine's disk holds a few only.
    pub(crate) fn clear(&self) {
        // A trial that failed may have left no operator, without which jobs do not go.
        let jobs = ["delete", "tj", "--all", "-n", TEAM, "--timeout=60s"];
        if let Err(error) = self.cluster.inner.kubectl(&jobs) {
            eprintln!("the files of earlier trials stay: {error}");
            return;
        }
        for node in ["node0", "node1", "node2", "node3"] {
            let directory = self.directory(node, TEAM, "");
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                // A link is removed itself, not what it points to.
                let removed = if entry.file_type().unwrap().is_dir() {
                    fs::remove_dir_all(entry.path())
                } else {
                    fs::remove_file(entry.path())
                };
                removed.unwrap();
            }
        }
    }

    /// What a job moves, at the source.
    pub(crate) fn files(&mut self, namespace: &str, name: &str) -> Tree {
        self.files_of(BYTES, namespace, name)
    }

    pub(crate) fn files_of(&mut self, bytes: usize, namespace: &str, name: &str) -> Tree {
        let files = Tree::draw(bytes, &mut self.draw);
        files.write(&self.directory("node0", namespace, name));
        files
    }

    /// A tenant's directory of a node, as this machine sees it.
    pub(crate) fn directory(&self, node: &str, namespace: &str, path: &str) -> PathBuf {
        self.cluster
            .inner
            .file(node, &format!("{MODELS}/{namespace}/{path}"))
    }

    /// A job of the tenant's that is at a moment that the seed draws.
    pub(crate) fn begin(&mut self, name: &str) -> Running {
        let files = self.files(TEAM, name);
        self.cluster.apply(&job(TEAM, name, &["node1", "node2"]));
        self.moment(TEAM, name, files, &["node1", "node2"])
    }

    /// The same with so much that it lasts for what takes some seconds to do.
    pub(crate) fn begin_long(&mut self, namespace: &str, name: &str) -> Running {
        let files = self.files_of(BYTES_LONG, namespace, name);
        self.cluster
            .apply(&job(namespace, name, &["node1", "node2"]));
        self.moment(namespace, name, files, &["node1", "node2"])
    }

    /// Waits until a share of the bytes, drawn from the seed, is at the first destination.
    pub(crate) fn moment(
        &mut self,
        namespace: &str,
        name: &str,
        files: Tree,
        to: &[&str],
    ) -> Running {
        let (least, most) = MOMENT_PERCENT;
        let wanted = files.bytes() * self.draw.within(least, most) / 100;
        let agent = self.cluster.agent(to[0]).name_any();
        let arrived = self.cluster.wait_until("bytes arrive", || {
            let arrived = self.cluster.arrived(&agent, namespace, name)?;
            (arrived >= wanted).then_some(arrived)
        });
        Running {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            percent: arrived * 100 / files.bytes(),
            files,
            to: to.iter().map(|node| (*node).to_owned()).collect(),
            since: Instant::now(),
        }
    }

    pub(crate) fn of_job(&self, namespace: &str, name: &str) -> TransferJob {
        let api = self.cluster.of::<TransferJob>(namespace);
        self.cluster.wait(api.get(name)).unwrap()
    }

    /// What was done fell within the transfer: the large file is under its final name nowhere.
    pub(crate) fn assert_fell_within(&self, running: &Running) {
        for node in &running.to {
            let file = self.copy(running, node).join("weights");
            assert!(
                !file.exists(),
                "{} had arrived ({} % at the moment): it fell outside of the transfer",
                file.display(),
                running.percent
            );
        }
    }

    pub(crate) fn copy(&self, running: &Running, node: &str) -> PathBuf {
        self.directory(node, &running.namespace, &running.name)
    }

    /// Waits for Complete, compares all copies, and prints how long it took from the moment on.
    pub(crate) fn completes(&self, running: &Running, what: &str) {
        self.until_phase(&running.namespace, &running.name, Phase::Complete);
        for node in &running.to {
            running.files.assert_is_at(&self.copy(running, node));
        }
        let seconds = running.since.elapsed().as_secs_f64();
        let attempts = self.of_job(&running.namespace, &running.name);
        let attempts = attempts.status.unwrap_or_default().attempt;
        println!(
            "  {what} at {} %: Complete {seconds:.1} s later, attempt {attempts}",
            running.percent
        );
    }

    pub(crate) fn until_phase(&self, namespace: &str, name: &str, wanted: Phase) -> TransferJob {
        let api = self.cluster.of::<TransferJob>(namespace);
        let what = format!("{wanted:?}");
        let is_there = |job: Option<&TransferJob>| {
            let status = job.and_then(|job| job.status.as_ref());
            let phase = status.map(|status| status.phase).unwrap_or_default();
            phase == wanted || phase.is_over()
        };
        let job = self.cluster.until(&what, &api, name, is_there);
        let job = job.unwrap_or_else(|| self.cluster.fail(&format!("{name} is gone")));
        let phase = job.status.as_ref().map(|status| status.phase);
        if phase != Some(wanted) {
            self.cluster
                .fail(&format!("{name}: {phase:?} and not {wanted:?}"));
        }
        job
    }

    /// The condition's reason and the message that go with it.
    pub(crate) fn until_waiting(&self, name: &str, reason: &str) -> String {
        let job = self.until_phase(TEAM, name, Phase::Waiting);
        let status = job.status.unwrap();
        let planned = status.conditions.iter().find(|one| one.type_ == "Planned");
        assert_eq!(planned.unwrap().reason, reason, "{}", status.message);
        status.message
    }

    /// Who leads, and how often that has changed.
    pub(crate) fn leader(&self) -> (String, i32) {
        let leases = self.cluster.of::<Lease>(SYSTEM);
        let lease = self.cluster.wait(leases.get("weft-operator")).unwrap();
        let spec = lease.spec.unwrap();
        (
            spec.holder_identity.unwrap_or_default(),
            spec.lease_transitions.unwrap_or_default(),
        )
    }

    /// Ends the leading operator's process as a crash would; gives its pod.
    pub(crate) fn kill_leader(&self) -> String {
        let (leader, _) = self.leader();
        let pid = process(
            &self.cluster,
            "weft-operator",
            &format!("POD_NAME={leader}"),
        );
        let pid = pid.unwrap_or_else(|| self.cluster.fail(&format!("{leader} has no process")));
        kill(pid, Signal::SIGKILL).unwrap();
        leader
    }

    /// Nothing of a job is at its destinations, neither files nor parts of files.
    pub(crate) fn nothing_is_left(&self, running: &Running) {
        self.cluster.wait_until("partial files are removed", || {
            let left = running.to.iter().map(|node| self.copy(running, node));
            let left = left.map(|copy| {
                // Where it is assembled: `.weft-UID-HEX`, with half a hash of its name.
                let name = copy.file_name().unwrap_or_default();
                let hash = blake3::hash(name.as_encoded_bytes()).to_hex();
                let beside = copy.parent().and_then(|parent| parent.read_dir().ok());
                let mut beside = beside.into_iter().flatten().flatten();
                let assembled = beside.any(|entry| {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    name.starts_with(".weft-") && name.ends_with(&hash[..32])
                });
                let files = if copy.exists() {
                    Tree::read(&copy).files()
                } else {
                    0
                };
                files + usize::from(assembled)
            });
            (left.sum::<usize>() == 0).then_some(())
        });
    }
}

/// A job from node0 to these nodes.
pub(crate) fn job(namespace: &str, name: &str, to: &[&str]) -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "TransferJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "source": {"file": {"node": "node0", "root": "models", "path": name}},
            "destinations": {"nodes": to, "root": "models", "path": name},
            "strategy": "Chain",
        },
    })
}

/// The process of a pod's program, as this machine sees it; other clusters may be up.
pub(crate) fn process(cluster: &TestCluster, program: &str, variable: &str) -> Option<Pid> {
    let has_it = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|set| set == variable.as_bytes())
    };
    processes(cluster, program).into_iter().find(has_it)
}

/// All processes of a program.
pub(crate) fn processes(cluster: &TestCluster, program: &str) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap();
    let processes = all.filter_map(|entry| {
        let path = entry.unwrap().path();
        let pid: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let is_program = fs::read_link(path.join("exe"))
            .is_ok_and(|exe| exe.file_name().is_some_and(|name| name == program));
        let found = is_program && is_below(pid, cluster.inner.pid());
        found.then(|| Pid::from_raw(pid.cast_signed()))
    });
    processes.collect()
}
