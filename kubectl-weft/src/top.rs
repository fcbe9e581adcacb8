//! `kubectl weft top`: nodes, jobs, devices and paths, the busiest or the worst first.
//!
//! Nodes and paths are computed from what agents export for Prometheus, which the operator reads for who may: two
//! readings, and the seconds between them. Agents are not asked for anything that they do not count anyway.

mod devices;
mod jobs;
mod nodes;
mod paths;
mod readings;
mod table;

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use serde::Serialize;
use thiserror::Error;
use tokio::time::{MissedTickBehavior, interval};

use self::{
    devices::DeviceRow,
    jobs::JobRow,
    nodes::NodeRow,
    paths::PathRow,
    table::{Row, Table},
};
use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::{Format, say, text},
};

/// Clears a terminal, and goes on at its upper left corner (ECMA-48: ED and CUP).
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// What is shown.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Nodes: bytes sent and received per second, connections, resends, paths down, the largest round-trip time,
    /// devices and jobs. Needs ClusterRole weft-monitor.
    ///
    /// An agent exports the first 128 peers by address and 64 jobs: paths down, the largest round-trip time and jobs
    /// cover these only.
    Nodes {
        /// Only this node.
        node: Option<String>,
        /// How they are shown.
        #[command(flatten)]
        shown: Shown,
    },
    /// Jobs: how far each is, how fast, and what limits it.
    Jobs {
        /// Of all namespaces.
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        /// How they are shown.
        #[command(flatten)]
        shown: Shown,
    },
    /// Virtual devices of pods: bytes sent and received per second.
    Devices {
        /// Only those of this node.
        node: Option<String>,
        /// Of the pods of all namespaces.
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        /// How they are shown.
        #[command(flatten)]
        shown: Shown,
    },
    /// Paths from a node, the worst first: dead ones, then by losses and round-trip time. Needs ClusterRole weft-monitor.
    ///
    /// An agent exports the paths of 64 peers: only these are shown.
    Paths {
        /// The node that sends.
        node: String,
        /// How they are shown.
        #[command(flatten)]
        shown: Shown,
    },
}

/// How rows are shown, whatever they are.
#[derive(Clone, Debug, clap::Args)]
pub struct Shown {
    /// Sort by this column: numbers from the largest, names from A. A blank in its name is a hyphen here.
    #[arg(long, value_name = "COLUMN")]
    pub sort_by: Option<String>,
    /// Show it again and again on a terminal; with -o json a line each time, with -o yaml a document.
    #[arg(short, long)]
    pub watch: bool,
    /// Seconds between two times.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Without the line that names the columns.
    #[arg(long)]
    pub no_headers: bool,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why nothing is shown.
#[derive(Debug, Error)]
pub enum TopError {
    /// There is no such column.
    #[error("--sort-by {given}: there is no such column; write one of {columns}")]
    Column {
        /// What was asked for.
        given: String,
        /// Those that there are.
        columns: String,
    },
    /// There is no such node.
    #[error("no FabricNode is named {0}; see: kubectl get fabricnodes")]
    Node(String),
    /// The cluster refused, or did not answer.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The output could not be written.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// Shows them; whether every node that was asked has answered.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    command: &Command,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, TopError> {
    match command {
        Command::Nodes { node, shown } => {
            let mut source = nodes::Source::new(node.clone());
            let look = async |cluster: &Cluster| source.look(cluster).await;
            show::<NodeRow>(shown, look, out, err).await
        }
        Command::Jobs {
            all_namespaces,
            shown,
        } => {
            let look = async |cluster: &Cluster| jobs::look(cluster, *all_namespaces).await;
            show::<JobRow>(shown, look, out, err).await
        }
        Command::Devices {
            node,
            all_namespaces,
            shown,
        } => {
            let mut source = devices::Source::new(node.clone(), *all_namespaces);
            let look = async |cluster: &Cluster| source.look(cluster).await;
            show::<DeviceRow>(shown, look, out, err).await
        }
        Command::Paths { node, shown } => {
            let mut source = paths::Source::new(node);
            let look = async |cluster: &Cluster| source.look(cluster).await;
            show::<PathRow>(shown, look, out, err).await
        }
    }
}

/// What a program reads.
#[derive(Serialize)]
struct List<'a, R> {
    items: &'a [R],
}

/// Looks, and shows the rows; with --watch until it is ended.
async fn show<R: Row>(
    shown: &Shown,
    mut look: impl AsyncFnMut(&Cluster) -> Result<Vec<R>, TopError>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, TopError> {
    let column = shown.sort_by.as_deref().map(table::column::<R>);
    let column = column.transpose()?;
    let cluster = Cluster::reach(&shown.reach).await?;
    let format = shown.format;
    let terminal = io::stdout().is_terminal().then(console::Term::stdout);
    // A table that is no screen is printed once.
    let is_watched = shown.watch && (format.is_object() || terminal.is_some());
    let mut ticks = interval(Duration::from_secs(shown.interval));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut rows = match look(&cluster).await {
            Ok(rows) => rows,
            // It comes back; a person may end the wait.
            Err(TopError::Cluster(error)) if is_watched && error.is_transient() => {
                say(error, err)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        table::sort(&mut rows, column);
        let is_whole = rows.iter().all(|row| row.message().is_empty());
        let list = List { items: &rows };
        let table = Table {
            rows: &rows,
            has_head: !shown.no_headers,
        };
        if !is_watched {
            if !format.write(&list, out)? {
                match rows.is_empty() {
                    true => say(R::NONE, err)?,
                    false => text(table, out)?,
                }
            }
            return Ok(is_whole);
        }
        if !format.write_next(&list, out)? {
            let lines = terminal.as_ref().map_or(u16::MAX, |screen| screen.size().0);
            out.write_all(CLEAR.as_bytes())?;
            text(table::fitting(&table.to_string(), lines.into()), out)?;
            out.flush()?;
        }
    }
}
