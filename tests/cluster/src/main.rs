//! `make cluster-up` and its like: a real Kubernetes of several nodes on this machine.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weft_cluster::{Cluster, ClusterError, LABEL, Order, Settings, Up, programs, serve};
use weft_fabric::isolation::{self, Entered};
use weft_fabric::quantity;

/// Brings up a real Kubernetes on a leaf-spine fabric of network namespaces, and takes it down.
///
/// Needs root, and the programs that hack/cluster-binaries.sh builds.
#[derive(Parser)]
#[command(name = "cluster", version)]
struct Line {
    /// Where everything about the cluster is.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "target/cluster"
    )]
    state: PathBuf,
    /// Where Kubernetes' programs are [default: where hack/cluster-binaries.sh puts them].
    #[arg(long, global = true, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Bring a cluster up; if it is up already, say so.
    Up {
        /// Nodes: node0, node1, …
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
        nodes: u8,
        /// Spine switches: ways between two leaves.
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
        spines: u8,
        /// Label of the nodes.
        #[arg(long, value_name = "KEY=VALUE", default_value = LABEL)]
        label: String,
        /// A node that does not get it; may be repeated.
        #[arg(long, value_name = "NODE")]
        unlabelled: Vec<String>,
        /// Bits per second between a node and its leaf, each way: 200mbit makes transfers last.
        #[arg(long, value_name = "RATE", value_parser = quantity::parse_rate)]
        node_rate: Option<u64>,
        /// A feature gate of Kubernetes that is not as it is by default; may be repeated.
        #[arg(long, value_name = "NAME=true|false", value_parser = feature_gate)]
        feature_gate: Vec<(String, bool)>,
    },
    /// Take it down and leave nothing.
    Down,
    /// Put images where every node's pods find them.
    LoadImages {
        /// Archives, as hack/images.sh makes them.
        #[arg(required = true, value_name = "IMAGE.tar")]
        archives: Vec<PathBuf>,
    },
    /// Print where the administrator's kubeconfig is.
    Kubeconfig,
    /// Print what runs.
    Status,
    /// End a component as a crash would: `kill node0/kubelet`.
    Kill {
        /// As `status` calls it.
        component: String,
    },
    /// Start a component again that has ended.
    Start {
        /// As `status` calls it.
        component: String,
    },
    /// Let a spine drop everything that it should forward.
    FailSpine {
        /// From 0 on.
        spine: usize,
    },
    /// End that.
    HealSpine {
        /// From 0 on.
        spine: usize,
    },
    /// Take the data link of a node down.
    Unplug {
        /// As `status` calls it.
        node: String,
    },
    /// End that.
    Plug {
        /// As `status` calls it.
        node: String,
    },
    /// Cut a node's power, and start it again.
    Reboot {
        /// As `status` calls it.
        node: String,
    },
    /// What `up` starts.
    #[command(hide = true)]
    Serve {
        /// As JSON.
        #[arg(long)]
        settings: String,
    },
}

fn main() -> ExitCode {
    let line = Line::parse();
    if matches!(line.verb, Verb::Serve { .. }) {
        // Before any thread.
        match isolation::enter() {
            Ok(Entered::Inside) => {}
            Ok(Entered::Ended(status)) => return ExitCode::from(status),
            Err(refused) => return failed(&ClusterError::from(refused)),
        }
    }
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn feature_gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=true or NAME=false")?;
    let value = value
        .parse::<bool>()
        .map_err(|_| "give NAME=true or NAME=false")?;
    Ok((name.to_owned(), value))
}

fn failed(error: &ClusterError) -> ExitCode {
    // Nobody may be listening; the status says it too.
    let _ = writeln!(io::stderr(), "cluster: {error}");
    ExitCode::FAILURE
}

fn run(line: &Line) -> Result<(), ClusterError> {
    let programs = || line.programs.clone().map_or_else(programs, Ok);
    let find = || Cluster::find(&line.state, &programs()?);
    match &line.verb {
        Verb::Up {
            nodes,
            spines,
            label,
            unlabelled,
            node_rate,
            feature_gate,
        } => up(
            &line.state,
            &programs()?,
            &Settings {
                nodes: usize::from(*nodes),
                spines: usize::from(*spines),
                label: label.clone(),
                unlabelled: unlabelled.clone(),
                node_rate: *node_rate,
                feature_gates: feature_gate.iter().cloned().collect(),
            },
        ),
        Verb::Down => Cluster::down(&line.state),
        Verb::LoadImages { archives } => find()?.load_images(archives),
        Verb::Kubeconfig => {
            say(&find()?.kubeconfig().display().to_string());
            Ok(())
        }
        Verb::Status => status(&find()?),
        Verb::Kill { component } => find()?.ask(&Order::Kill(component.clone())),
        Verb::Start { component } => find()?.ask(&Order::Start(component.clone())),
        Verb::FailSpine { spine } => find()?.ask(&Order::FailSpine(*spine)),
        Verb::HealSpine { spine } => find()?.ask(&Order::HealSpine(*spine)),
        Verb::Unplug { node } => find()?.ask(&Order::UnplugNode(node.clone())),
        Verb::Plug { node } => find()?.ask(&Order::PlugNode(node.clone())),
        Verb::Reboot { node } => find()?.ask(&Order::RebootNode(node.clone())),
        Verb::Serve { settings } => serve(settings, &line.state, &programs()?),
    }
}

fn up(state: &Path, programs: &Path, settings: &Settings) -> Result<(), ClusterError> {
    let own = std::env::current_exe().map_err(|source| ClusterError::System {
        what: "finding this program".to_owned(),
        source,
    })?;
    let mut tell = |text: &str| {
        let _ = writeln!(io::stderr(), "cluster: {text}");
    };
    let up = Cluster::up(settings, state, programs, &own, &mut tell)?;
    let (cluster, how) = match &up {
        Up::Made(cluster) => (cluster, "up"),
        Up::Found(cluster) => (cluster, "up already"),
    };
    tell(&format!(
        "{how}: {} node(s); export KUBECONFIG={}",
        cluster.nodes().len(),
        cluster.kubeconfig().display()
    ));
    Ok(())
}

fn status(cluster: &Cluster) -> Result<(), ClusterError> {
    for node in cluster.nodes() {
        say(&format!(
            "{} at {}, on the fabric at {}",
            node.name, node.address, node.data_address
        ));
    }
    for (name, runs) in cluster.components()? {
        say(&format!(
            "{name} {}",
            if runs { "runs" } else { "has ended" }
        ));
    }
    say(&format!(
        "pid {}, logs in {}",
        cluster.pid(),
        cluster.logs().display()
    ));
    Ok(())
}

fn say(text: &str) {
    // Nobody reads it when standard output is closed.
    let _ = writeln!(io::stdout(), "{text}");
}
