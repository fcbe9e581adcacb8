//! `make bench-cluster`: what the operator costs when there is much to do, what an agent costs when
//! there is nothing, and how long a user waits, on a real API server.
//!
//! Two real nodes with real agents, and as many simulated ones as are asked for: each is a Node
//! object, an agent's pod that the DaemonSet's controller makes and no kubelet starts, and a
//! stand-in in this process (`fleet`, `stand_in`) that enrolls with that pod's token, reports, and
//! answers the operator's calls over mutual TLS. The operator cannot tell it from a real one.

mod crowd;
mod devices;
mod fleet;
mod largest;
mod load;
mod metrics;
mod process;
mod stand_in;
mod wide;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_cluster::{Cluster, ClusterError, Settings, Up, programs};

use crate::report::Row;

use load::Load;
use process::Process;

/// Where the chart is installed.
const NAMESPACE: &str = "weft-system";
/// Of the real nodes.
const FABRIC: &str = "default";
/// Port of the operator's and, on a node, of the agent's metrics.
const OPERATOR_METRICS: u16 = 7411;
/// How long an idle agent is looked at.
const IDLE: Duration = Duration::from_secs(20);
const MIB: f64 = (1 << 20) as f64;

/// How much there is to do.
#[derive(Debug, Clone)]
pub struct Size {
    /// Simulated agents.
    pub agents: usize,
    /// Jobs, made at once.
    pub jobs: usize,
    /// How long they are watched. A transfer takes half of that.
    pub watched: Duration,
    /// Simulated agents of a cluster of its own, in which one job is planned for all of them; none for 0.
    pub wide: usize,
    /// Whether virtual devices of pods are measured, in a cluster of their own.
    pub devices: bool,
    /// Jobs of the largest allowed size, in a cluster of their own; none for 0.
    pub largest: usize,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ClusterBenchError {
    /// The cluster, kubectl or helm.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The API server refused something.
    #[error("{what}: {source}")]
    Api {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The kubeconfig is none.
    #[error("the cluster's kubeconfig: {0}")]
    Kubeconfig(String),
    /// A simulated agent could not be started.
    #[error("the simulated agent of {node}: {problem}")]
    Fleet {
        /// Of which node.
        node: String,
        /// Why not.
        problem: String,
    },
    /// What should happen did not.
    #[error("{what}: not within {seconds} s")]
    Late {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
    },
    /// A process could not be found or looked at.
    #[error("{what}: {source}")]
    System {
        /// What was done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl ClusterBenchError {
    fn fleet<E: std::fmt::Display>(node: &str) -> impl FnOnce(E) -> Self {
        move |problem| Self::Fleet {
            node: node.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api {
            what,
            source: Box::new(source),
        }
    }

    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// A cluster that goes when this does.
struct Lent {
    cluster: Cluster,
    state: PathBuf,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = Cluster::down(&self.state) {
            tracing::error!("{error}");
        }
    }
}

/// Brings clusters up below `scratch`, one after the other, measures, and takes them down. `server` is as in
/// [`Cluster::up`], `images` the archives of operator, agent and devices, and of programs that pods run.
///
/// # Errors
/// [`ClusterBenchError`].
pub fn measure(
    size: &Size,
    scratch: &Path,
    server: &Path,
    images: &[PathBuf],
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, ClusterBenchError> {
    let lend = |name: &str, say: &mut dyn FnMut(&str)| {
        let state = scratch.join(name);
        let settings = Settings {
            nodes: 2,
            ..Settings::default()
        };
        let up = Cluster::up(&settings, &state, &programs()?, server, say)?;
        let (Up::Made(cluster) | Up::Found(cluster)) = up;
        let lent = Lent { cluster, state };
        lent.cluster.load_images(images)?;
        Ok::<_, ClusterBenchError>(lent)
    };
    let mut rows = Vec::new();
    if size.jobs > 0 {
        let lent = lend("cluster", say)?;
        rows.push(start_up(&lent.cluster, load::VALUES)?);
        say("the fabric of real nodes is ready");
        rows.push(first_job(&lent.cluster)?);
        say("looking at an idle agent");
        rows.extend(idle_agent(&lent.cluster)?);
        rows.extend(Load::new(&lent.cluster, size)?.run(say)?);
    }
    if size.devices {
        let lent = lend("cluster-devices", say)?;
        start_up(&lent.cluster, devices::VALUES)?;
        rows.extend(devices::measure(&lent.cluster, say)?);
    }
    if size.largest > 0 {
        let lent = lend("cluster-largest", say)?;
        start_up(&lent.cluster, &[])?;
        rows.extend(largest::measure(&lent.cluster, size.largest, say)?);
    }
    if size.wide > 0 {
        let lent = lend("cluster-wide", say)?;
        start_up(&lent.cluster, wide::VALUES)?;
        rows.extend(wide::measure(&lent.cluster, size.wide, say)?);
    }
    Ok(rows)
}

fn row(id: &str, work: String, unit: &str, ours: f64, most: f64) -> Row {
    Row {
        id: id.to_owned(),
        work,
        unit: unit.to_owned(),
        ours,
        peer: String::new(),
        theirs: None,
        ratio: None,
        must: format!("≤ {most} {unit}"),
        holds: ours <= most,
    }
}

/// Chart installed until the fabric is Ready.
fn start_up(cluster: &Cluster, values: &[&str]) -> Result<Row, ClusterBenchError> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weft");
    let begun = Instant::now();
    let mut helm = cluster.command("helm");
    helm.args(["install", "weft", "--create-namespace", "--namespace"])
        .arg(NAMESPACE)
        .args(["--set", "operator.replicas=1"])
        // The operator's metrics are read without TLS.
        .args(["--set", "metrics.auth=false"])
        .args(values)
        .arg(chart);
    weft_cluster::output(&mut helm)?;
    cluster.apply(&load::fabric(FABRIC, "gpu").to_string())?;
    let fabric = format!("rdmafabric/{FABRIC}");
    cluster.kubectl(&["wait", "--for=condition=Ready", &fabric, "--timeout=120s"])?;
    let work = "helm install until the fabric of 2 real nodes is Ready, images present".to_owned();
    Ok(row(
        "start-up",
        work,
        "s",
        begun.elapsed().as_secs_f64(),
        60.0,
    ))
}

/// A job made until it is Complete, which is later than its first byte.
fn first_job(cluster: &Cluster) -> Result<Row, ClusterBenchError> {
    // A namespace's jobs see its own directory of the root.
    let file = cluster.file("node0", "/var/lib/weft/models/default/small");
    let write = || {
        if let Some(root) = file.parent() {
            std::fs::create_dir_all(root)?;
        }
        std::fs::write(&file, "a byte would do\n")
    };
    write().map_err(ClusterBenchError::system("writing the first job's file"))?;
    let mut rounds: Vec<f64> = Vec::new();
    for round in 0..5 {
        let name = format!("first-{round}");
        let job = load::job(&name, "default", ("node0", "small"), ("node1", &name));
        rounds.push(load::until_complete(cluster, &job)?.as_secs_f64());
    }
    let work = "job created until its copy of 16 B on the other real node is verified, which is \
                after its first byte; median of 5"
        .to_owned();
    let ours = crate::report::median(&mut rounds);
    Ok(row("first-byte", work, "s", ours, 1.0))
}

fn idle_agent(cluster: &Cluster) -> Result<[Row; 2], ClusterBenchError> {
    let looking = ClusterBenchError::system;
    let agents =
        Process::below(cluster.pid(), "weft-agent", "").map_err(looking("looking for agents"))?;
    let agent = agents
        .first()
        .copied()
        .ok_or_else(|| ClusterBenchError::Late {
            what: "a process weft-agent".to_owned(),
            seconds: 0,
        })?;
    let before = agent
        .cpu_nanos()
        .map_err(looking("an agent's processor time"))?;
    let begun = Instant::now();
    std::thread::sleep(IDLE);
    let spent = agent
        .cpu_nanos()
        .map_err(looking("an agent's processor time"))?
        - before;
    let share = spent as f64 / begun.elapsed().as_nanos() as f64 * 100.0;
    let bytes = agent
        .anonymous_bytes()
        .map_err(looking("an agent's memory"))?;
    let seconds = IDLE.as_secs();
    Ok([
        row(
            "agent-idle-cpu",
            format!("a real agent without a job, share of one core over {seconds} s"),
            "%",
            share,
            0.2,
        ),
        row(
            "agent-idle-rss",
            "RssAnon of a real agent without a job".to_owned(),
            "MiB",
            bytes as f64 / MIB,
            24.0,
        ),
    ])
}
