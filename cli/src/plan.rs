//! `weft plan`: prints what the planner would do, and sends nothing.
//!
//! It reads the files that it is given and calls the planner that the operator and `weft play` call.
//! What a TransferJob would do in a cluster is asked by `kubectl weft plan`.

mod table;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use thiserror::Error;
use weft_fabric::quantity;
use weft_planner::{
    Manifest, ManifestError, PAYLOAD_SHARE, PlanError, Request, Strategy, Topology, TopologyError,
};

pub use self::table::Table;

/// What `weft plan` takes.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("data").args(["manifest", "size"]))]
pub struct Args {
    /// Nodes and uplinks (YAML): `nodes: [{name, leaf, rate_bps}]`, `uplinks: [{leaf,
    /// spine, rate_bps}]`, rates in bits per second.
    #[arg(long, value_name = "FILE", requires = "data")]
    pub nodes: PathBuf,
    /// What to send (JSON): `{"files": [{"path", "size", "mode"}], "directories": [{"path", "mode"}]}`.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// How much to send, instead of a manifest: 256MiB, 1.5GB.
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    pub size: Option<u64>,
    /// The node that has the data.
    #[arg(long, value_name = "NODE")]
    pub source: String,
    /// The nodes that shall have it, separated by commas; `all` is every node but the source.
    #[arg(
        long,
        value_name = "all|NODE,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub to: Vec<String>,
    /// Who sends to whom: auto, direct, chain or binomial.
    #[arg(
        long,
        value_name = "STRATEGY",
        default_value = "auto",
        hide_possible_values = true,
        value_parser = strategy_parser()
    )]
    pub strategy: Strategy,
    /// A relay forwards after this much.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = quantity::parse_bytes)]
    pub block: u64,
    /// Part of the line rate that is payload [default: 1408/1538, UDP on Ethernet with MTU 1500].
    #[arg(long, value_name = "SHARE", value_parser = quantity::parse_share)]
    pub payload_share: Option<f64>,
    /// Print the plan as one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Reads a strategy, and gives a shell's completion all names.
pub(crate) fn strategy_parser() -> impl TypedValueParser<Value = Strategy> {
    PossibleValuesParser::new(Strategy::ALL.map(Strategy::name))
        .try_map(|name| name.parse::<Strategy>())
}

/// Why there is nothing to print. Every text names the flag or the file, the field and the remedy.
#[derive(Debug, Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{flag} {}: {source}; give a text file that can be read", path.display())]
    Read {
        /// The flag that named it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its flag takes.
    #[error("{}:{line}:{column}: {message}, near `{text}`; the file must be {wanted}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// What the parser said; it names the field where it knows it.
        message: String,
        /// The text around.
        text: String,
        /// What the file should hold.
        wanted: &'static str,
    },
    /// The nodes make no topology.
    #[error("{}: {source}", path.display())]
    Topology {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in it.
        source: TopologyError,
    },
    /// The manifest has an entry that cannot be sent.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in it.
        source: ManifestError,
    },
    /// The request does not fit the nodes.
    #[error("{flag}: {source}")]
    Request {
        /// The flag to change.
        flag: &'static str,
        /// What is wrong.
        source: PlanError,
    },
    /// The plan could not be written.
    #[error("the plan could not be written: {0}; check the pipe or the disk behind the output")]
    Write(#[from] io::Error),
}

impl Error {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "PlanFileUnreadable",
            Self::Syntax { .. } => "PlanFileSyntax",
            Self::Topology { source, .. } => source.reason(),
            Self::Manifest { source, .. } => source.reason(),
            Self::Request { source, .. } => source.reason(),
            Self::Write(_) => "PlanOutput",
        }
    }
}

/// Plans and prints: a table for people, or with `--json` one object.
///
/// # Errors
/// Why there is nothing to print.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Error> {
    let (nodes, source) = (&args.nodes, &args.source);
    let topology = read_nodes(nodes)?;
    let bytes = match (&args.manifest, args.size) {
        (Some(path), _) => read_manifest(path)?.bytes(),
        (None, size) => size.unwrap_or(0),
    };
    let request = Request {
        strategy: args.strategy,
        block_bytes: args.block,
        payload_share: args.payload_share.unwrap_or(PAYLOAD_SHARE),
        ..Request::new(source, destinations(args, source, &topology), bytes)
    };
    let plan =
        weft_planner::plan(&request, &topology).map_err(|error| refused(args, nodes, error))?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &plan).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", Table(&plan))?;
    }
    Ok(())
}

fn destinations(args: &Args, source: &str, topology: &Topology) -> Vec<String> {
    if args.to == ["all"] {
        let names = topology.nodes.iter().map(|node| &node.name);
        names.filter(|name| *name != source).cloned().collect()
    } else {
        args.to.clone()
    }
}

/// Names the flag that has to change.
fn refused(args: &Args, nodes: &Path, error: PlanError) -> Error {
    let flag = match &error {
        PlanError::Topology(source) => {
            return Error::Topology {
                path: nodes.to_owned(),
                source: source.clone(),
            };
        }
        PlanError::UnknownNode { field, .. } if field == "source" => "--source",
        PlanError::NoDestinations
        | PlanError::UnknownNode { .. }
        | PlanError::SourceIsDestination { .. }
        | PlanError::DuplicateDestination { .. } => "--to",
        PlanError::ZeroBlock => "--block",
        PlanError::BadPayloadShare { .. } => "--payload-share",
        PlanError::TooManyBytes { .. } if args.manifest.is_some() => "--manifest",
        PlanError::TooManyBytes { .. } => "--size",
        PlanError::NoPath { .. } => "--nodes",
        PlanError::TooManyReceivers { .. } => "--strategy",
    };
    Error::Request {
        flag,
        source: error,
    }
}

fn read(flag: &'static str, path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read {
        flag,
        path: path.to_owned(),
        source,
    })
}

fn read_nodes(path: &Path) -> Result<Topology, Error> {
    let text = read("--nodes", path)?;
    let topology: Topology = serde_saphyr::from_str(&text).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((1, 1), |at| (at.line(), at.column()));
        let message = error.without_snippet().to_string();
        Error::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: without(message, &format!(" at line {line}, column {column}")),
            text: around(&text, line, column),
            wanted: "YAML with `nodes: [{name, leaf, rate_bps}]` and `uplinks: [{leaf, spine, \
                     rate_bps}]`, rates in bits per second as plain numbers",
        }
    })?;
    match topology.validate() {
        Ok(()) => Ok(topology),
        Err(source) => Err(Error::Topology {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let text = read("--manifest", path)?;
    let manifest: Manifest = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line() as u64, error.column() as u64);
        Error::Syntax {
            path: path.to_owned(),
            line,
            column,
            message: without(
                error.to_string(),
                &format!(" at line {line} column {column}"),
            ),
            text: around(&text, line, column),
            wanted: "JSON as `{\"files\": [{\"path\", \"size\", \"mode\"}], \"directories\": \
                     [{\"path\", \"mode\"}]}`, size in bytes and mode as plain numbers",
        }
    })?;
    match manifest.validate() {
        Ok(()) => Ok(manifest),
        Err(source) => Err(Error::Manifest {
            path: path.to_owned(),
            source,
        }),
    }
}

fn without(mut message: String, end: &str) -> String {
    if message.ends_with(end) {
        message.truncate(message.len() - end.len());
    }
    message
}

/// What stands at a place, cut to what helps to find it.
fn around(text: &str, line: u64, column: u64) -> String {
    const BEFORE: usize = 40;
    const SHOWN: usize = 60;
    let place = |from_one: u64| usize::try_from(from_one.saturating_sub(1)).unwrap_or(usize::MAX);
    let line = text.lines().nth(place(line)).unwrap_or_default();
    let skipped = place(column).saturating_sub(BEFORE);
    line.chars()
        .skip(skipped)
        .take(SHOWN)
        .collect::<String>()
        .trim()
        .to_owned()
}
