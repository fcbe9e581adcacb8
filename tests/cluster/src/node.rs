//! A node: containerd, kubelet and kube-proxy in one room on one node of the fabric.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use weft_fabric::Fabric;

use crate::control_plane::spawn;
use crate::network::{DNS_SERVICE, PODS, pods_of};
use crate::process::Processes;
use crate::room::{PROGRAMS, Room};
use crate::{ClusterError, hierarchy, output, write_private};

/// Where containerd listens, as everywhere.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// The node's configuration, in its own words.
pub const CONFIGURATION: &str = "/var/lib/weft-cluster";
/// What a pod's sandbox runs; from `hack/cluster-binaries.sh`.
const SANDBOX: &str = "weft.dev/tools:1";
const SANDBOX_ARCHIVE: &str = "tools.tar";
/// In [`CONFIGURATION`]: by how much the containers of Weft that begin from now on see another time, as
/// `faketime` has it (`+10m`); there is no such file unless somebody makes it.
pub const CLOCK: &str = "clock";
/// What containerd calls for runc: there is one clock for all, and a node shall have its own.
const RUNC: &str = include_str!("runc.sh");
/// Where Debian's programs are, and ours first.
const PATH: &str =
    "/run/weft-programs:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// What is waited for of containerd.
const SERVES: &str = "containerd serves";
/// An image is read, unpacked and synced within it on a machine that does much else.
pub(crate) const SLOW: Duration = Duration::from_secs(120);

/// What a node is made from.
pub(crate) struct Plan<'a> {
    pub(crate) fabric: &'a Arc<Fabric>,
    pub(crate) index: usize,
    /// Pid that the cluster ends with.
    pub(crate) cluster: u32,
    /// The node's own directory.
    pub(crate) directory: &'a Path,
    pub(crate) programs: &'a Path,
    pub(crate) logs: &'a Path,
    pub(crate) labels: String,
    /// Kubeconfigs of kubelet and kube-proxy.
    pub(crate) kubelet: String,
    pub(crate) proxy: String,
    /// Of the kubelet.
    pub(crate) feature_gates: &'a BTreeMap<String, bool>,
}

/// A node whose containerd runs.
#[derive(Debug)]
pub(crate) struct Node {
    fabric: Arc<Fabric>,
    room: Arc<Room>,
    name: String,
    address: Ipv4Addr,
    labels: String,
    logs: PathBuf,
}

impl Node {
    /// Makes the room and starts containerd; it holds the sandbox image when this returns.
    pub(crate) fn make(plan: &Plan<'_>, processes: &Processes) -> Result<Self, ClusterError> {
        let place = plan.fabric.node(plan.index);
        let groups = hierarchy::make(plan.cluster, &place.name)?;
        let room = Room::make(
            plan.fabric,
            plan.index,
            plan.directory,
            plan.programs,
            groups,
        )?;
        let node = Self {
            fabric: Arc::clone(plan.fabric),
            room: Arc::new(room),
            name: place.name.clone(),
            address: place.management_address,
            labels: plan.labels.clone(),
            logs: plan.logs.to_owned(),
        };
        node.room
            .inside(&node.fabric, || configure(plan, &node.name))?;
        let config = format!("{CONFIGURATION}/containerd.toml");
        node.start(processes, "containerd", &["--config", &config])?;
        let name = node.process("containerd");
        processes.until(SERVES, SLOW, &name, || {
            processes.check()?;
            node.serves()
        })?;
        let archive = plan.programs.join(SANDBOX_ARCHIVE);
        node.load_image(&archive)?;
        Ok(node)
    }

    /// Whether containerd does.
    fn serves(&self) -> Result<Option<()>, ClusterError> {
        let served = || Ok(output(self.ctr().arg("version")).ok().map(drop));
        self.room.inside(&self.fabric, served)
    }

    /// Ends all processes of the node at once, and what it has in memory, as a power cut does; then starts its programs
    /// again. What its network is made of stays.
    pub(crate) fn reboot(&self, processes: &Processes) -> Result<(), ClusterError> {
        let what = format!("all processes of {} have ended", self.name);
        processes.until(&what, SLOW, &self.process("kubelet"), || {
            let running = self.running()?;
            for pid in &running {
                match kill(*pid, Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(ClusterError::system(what.clone())(error)),
                }
            }
            // The kernel may not be done with the last of them.
            let are_removed = running.is_empty() && hierarchy::clear(self.room.groups()).is_ok();
            Ok(are_removed.then_some(()))
        })?;
        for program in ["containerd", "kubelet", "kube-proxy"] {
            // Until its end is noticed.
            processes.kill(&self.process(program))?;
        }
        self.room.renew(&self.fabric)?;
        let containerd = self.process("containerd");
        processes.restart(&containerd)?;
        processes.until(SERVES, SLOW, &containerd, || self.serves())?;
        for program in ["kubelet", "kube-proxy"] {
            processes.restart(&self.process(program))?;
        }
        Ok(())
    }

    /// Those in the node's network, and those of pods that have a network of their own.
    fn running(&self) -> Result<Vec<Pid>, ClusterError> {
        let failed = || format!("listing the processes of {}", self.name);
        let of = |path: &Path| fs::metadata(path).map(|network| network.ino());
        let index = self.room.node();
        let network = of(&self.fabric.node(index).namespace);
        let network = network.map_err(ClusterError::system(failed()))?;
        let mut running = hierarchy::processes(self.room.groups());
        for entry in fs::read_dir("/proc").map_err(ClusterError::system(failed()))? {
            let path = entry.map_err(ClusterError::system(failed()))?.path();
            let pid = path
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            if let Some(pid) = pid
                && of(&path.join("ns/net")).is_ok_and(|its| its == network)
            {
                running.push(Pid::from_raw(pid));
            }
        }
        Ok(running)
    }

    /// Starts kubelet and kube-proxy.
    pub(crate) fn join(&self, processes: &Processes) -> Result<(), ClusterError> {
        let config = |file: &str| format!("{CONFIGURATION}/{file}");
        let address = self.address.to_string();
        let mut kubelet = vec![
            "--config".to_owned(),
            config("kubelet.json"),
            "--kubeconfig".to_owned(),
            config("kubelet.kubeconfig"),
            format!("--hostname-override={}", self.name),
            format!("--node-ip={address}"),
        ];
        if !self.labels.is_empty() {
            kubelet.push(format!("--node-labels={}", self.labels));
        }
        let kubelet: Vec<&str> = kubelet.iter().map(String::as_str).collect();
        self.start(processes, "kubelet", &kubelet)?;
        let arguments = [
            "--kubeconfig",
            &config("proxy.kubeconfig"),
            "--hostname-override",
            &self.name,
            "--cluster-cidr",
            PODS,
            "--proxy-mode=iptables",
            // Its limits belong to the machine, not to a namespace.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--metrics-bind-address=127.0.0.1:10249",
        ];
        self.start(processes, "kube-proxy", &arguments)
    }

    /// Puts an image from an archive where pods of this node find it.
    pub(crate) fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        // Opened here: the node may not see it by this name.
        let failed = || archive.display().to_string();
        let file = File::open(archive).map_err(ClusterError::system(failed()))?;
        self.room.inside(&self.fabric, || {
            let mut ctr = self.ctr();
            ctr.args(["images", "import", "-"]).stdin(Stdio::from(file));
            output(&mut ctr).map(drop)
        })
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new(Path::new(PROGRAMS).join("ctr"));
        command.args(["--address", SOCKET, "--namespace", "k8s.io"]);
        command
    }

    fn process(&self, program: &str) -> String {
        format!("{}/{program}", self.name)
    }

    fn start(
        &self,
        processes: &Processes,
        program: &str,
        arguments: &[&str],
    ) -> Result<(), ClusterError> {
        let (name, log) = (
            self.process(program),
            self.logs.join(format!("{}-{program}.log", self.name)),
        );
        let (fabric, room) = (Arc::clone(&self.fabric), Arc::clone(&self.room));
        let path = Path::new(PROGRAMS).join(program);
        let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
        processes.start(&name.clone(), log, move |log| {
            room.inside(&fabric, || {
                let mut command = Command::new(&path);
                command.args(&arguments).env("PATH", PATH).current_dir("/");
                spawn(&mut command, &name, &log)
            })
        })
    }
}

/// Writes the configurations, on a thread of the node.
fn configure(plan: &Plan<'_>, name: &str) -> Result<(), ClusterError> {
    let cni = format!("{CONFIGURATION}/cni");
    fs::create_dir_all(&cni).map_err(ClusterError::system(cni.clone()))?;
    let containerd = format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{SANDBOX}"

# Without CAP_SYS_RESOURCE, as in many containers, no process may lower its score, and runc fails.
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{CONFIGURATION}/runc"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{cni}"
"#
    );
    let bridge = json!({
        "cniVersion": "1.0.0",
        "name": "weft",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{"subnet": pods_of(plan.index)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        // Whoever reaches it is in a namespace of this cluster.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "featureGates": plan.feature_gates,
        // A pod sees a changed ConfigMap so soon, not after a minute and more.
        "syncFrequency": "10s",
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": false,
        "resolvConf": "",
        "clusterDNS": [DNS_SERVICE.to_string()],
        "clusterDomain": "cluster.local",
        "volumePluginDir": "/var/lib/kubelet/plugins-volume",
        // The disk is the machine's and may be nearly full of other things.
        "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%",
            "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    });
    for (file, text) in [
        ("containerd.toml", containerd),
        ("cni/10-weft.conflist", bridge.to_string()),
        ("runc", RUNC.to_owned()),
        ("kubelet.json", kubelet.to_string()),
        ("kubelet.kubeconfig", plan.kubelet.clone()),
        ("proxy.kubeconfig", plan.proxy.clone()),
    ] {
        write_private(&Path::new(CONFIGURATION).join(file), &text)
            .map_err(|error| ClusterError::Setting(format!("configuring {name}: {error}")))?;
    }
    let runc = Path::new(CONFIGURATION).join("runc");
    fs::set_permissions(&runc, fs::Permissions::from_mode(0o700))
        .map_err(ClusterError::system(runc.display().to_string()))?;
    Ok(())
}
