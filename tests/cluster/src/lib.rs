//! A real Kubernetes of several nodes on this machine, on a leaf-spine fabric: what `helm install`
//! and the end-to-end tests run on.
//!
//! ```text
//! program          `cluster up`, or a test: holds a [`Cluster`], asks over a socket
//! └ server         the same program as `cluster serve`, in namespaces of its own (isolation::enter)
//!   ├ etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!   └ node0, node1, … each a network namespace of the fabric and a mount namespace
//!     └ containerd, kubelet, kube-proxy, and the containers
//! ```
//!
//! Everything runs below the server's process namespace, so the kernel ends all of it with the
//! server: processes, mounts, interfaces, namespaces. What stays for [`Cluster::down`] to remove is
//! the state directory and empty control groups.
//!
//! **Addresses.** A node is known to Kubernetes by its address on the management network, 10.254.0.0/24,
//! where the API server is at 10.254.0.254. Its port on the fabric is called `data0`
//! ([`DATA_INTERFACE`]): what an RdmaFabric's `nics.include` names. Pods of node i that have a network
//! of their own are in 10.244.i.0/24 and do not reach the fabric; pods with `hostNetwork` do.
//!
//! **Files.** `/var`, `/run` and `/tmp` are a node's own, everything else is this machine's and
//! read-only there. What a node has at `/var` is in the state directory, at `node0/var`.

mod control_plane;
mod handle;
mod hierarchy;
mod inside;
mod network;
mod node;
mod order;
mod process;
mod record;
mod room;
mod server;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use weft_fabric::FabricError;
use weft_fabric::isolation::IsolationError;

pub use handle::{Cluster, Up, programs};
pub use inside::{in_mounts_of, in_network_of, is_below};
pub use node::{CLOCK, CONFIGURATION};
pub use order::Order;
pub use record::{NodeRecord, Record};
pub use server::serve;

/// A node's port on the data network.
pub const DATA_INTERFACE: &str = "data0";
/// What a node is labelled with unless it is left out.
pub const LABEL: &str = "gpu=true";

/// What a cluster is made of.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// Nodes: `node0`, `node1`, …
    pub nodes: usize,
    /// Spine switches: ways between two leaves.
    pub spines: usize,
    /// Label of every node.
    pub label: String,
    /// Nodes that do not get it.
    pub unlabelled: Vec<String>,
    /// Bits per second between a node and its leaf, in each direction: with a low rate a transfer
    /// lasts long enough for something to happen to it.
    pub node_rate: Option<u64>,
    /// Kubernetes' feature gates that are not as they are by default, for all of its components.
    #[serde(default)]
    pub feature_gates: BTreeMap<String, bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 3,
            spines: 4,
            label: LABEL.to_owned(),
            unlabelled: Vec::new(),
            node_rate: None,
            feature_gates: BTreeMap::new(),
        }
    }
}

/// Why there is no cluster, or why it does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Mount and network namespaces of a kubelet need it.
    #[error("a cluster needs root: run again as root, or in a privileged container")]
    NotRoot,
    /// A program is not where it should be.
    #[error("{path} is not there: run `hack/cluster-binaries.sh`")]
    NoProgram {
        /// Which.
        path: PathBuf,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
    /// There are no namespaces.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// The network below the nodes could not be built or changed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A component ended that should run.
    #[error("{name} ended ({status}); the end of its log:\n{log}")]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// What it said last.
        log: String,
    },
    /// Nothing ended, and yet what was waited for did not happen.
    #[error("{what}: not within {seconds} s; the end of the log of {name}:\n{log}")]
    Late {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
        /// Whose doing it would have been.
        name: String,
        /// What it said last.
        log: String,
    },
    /// There is no such component.
    #[error("there is no {0}: the components are listed by `cluster status`")]
    NoSuchProcess(String),
    /// There is no such node.
    #[error("there is no node {0}: the nodes are listed by `cluster status`")]
    NoSuchNode(String),
    /// A cluster of another shape is up.
    #[error(
        "a cluster of {nodes} nodes is up in {state}, made with other settings than these: \
         `make cluster-down` first"
    )]
    Other {
        /// The state directory.
        state: PathBuf,
        /// How many nodes it has.
        nodes: usize,
    },
    /// There is something else where the state should be.
    #[error("{0} holds something that is not a cluster's: give another --state, or empty it")]
    Occupied(PathBuf),
    /// No cluster is up.
    #[error("no cluster is up in {0}: `make cluster-up` first")]
    Down(PathBuf),
    /// The server refused or died.
    #[error("the cluster's server: {0}")]
    Server(String),
    /// A program that was asked something failed.
    #[error("{program}: {message}")]
    Program {
        /// Which.
        program: String,
        /// What it said.
        message: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl ClusterError {
    /// For `map_err` after a system call.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

/// A file that only its owner may read, whole or not at all to whoever reads meanwhile.
fn write_private(path: &Path, text: &str) -> Result<(), ClusterError> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let failed = || format!("writing {}", path.display());
    let new = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(ClusterError::system(failed()))?;
    file.write_all(text.as_bytes())
        .map_err(ClusterError::system(failed()))?;
    std::fs::rename(&new, path).map_err(ClusterError::system(failed()))
}

/// Runs a program to its end and returns what it says.
///
/// # Errors
/// What it says if it fails.
pub fn output(command: &mut Command) -> Result<String, ClusterError> {
    let program = program(command);
    let output = command
        .output()
        .map_err(ClusterError::system(program.clone()))?;
    said(program, &output)
}

/// The same for one that reads this.
fn output_of(command: &mut Command, input: &str) -> Result<String, ClusterError> {
    let program = program(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(ClusterError::system(program.clone()))?;
    if let Some(mut stdin) = child.stdin.take()
        && let Err(error) = stdin.write_all(input.as_bytes())
    {
        // Its own message says why it does not read to the end.
        tracing::debug!("{program}: {error}");
    }
    let output = child
        .wait_with_output()
        .map_err(ClusterError::system(program.clone()))?;
    said(program, &output)
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn said(program: String, output: &Output) -> Result<String, ClusterError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ClusterError::Program { program, message })
}

/// Calls `f` for all at once: what it waits for is mostly other programs.
fn each<T: Sync, R: Send>(
    all: &[T],
    f: impl Fn(&T) -> Result<R, ClusterError> + Sync,
) -> Result<Vec<R>, ClusterError> {
    thread::scope(|scope| {
        let running: Vec<_> = all.iter().map(|one| scope.spawn(|| f(one))).collect();
        let done: Vec<Result<R, ClusterError>> = running
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect();
        done.into_iter().collect()
    })
}
