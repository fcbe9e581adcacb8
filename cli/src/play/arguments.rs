//! What `weft play` takes, and whether it makes sense.
//!
//! [`Args`] is what clap reads; [`Args::check`] makes [`Settings`] of it or says which flag to
//! change. Nothing is made or changed here.

use std::{
    fs, io,
    num::NonZeroU32,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use weft_fabric::{Spec, SpecError, quantity};
use weft_planner::Strategy;
use weft_proto::agent::v1::{self as agent, Algorithm};

use super::{
    out,
    usage_error::{MAX_PATHS, UsageError},
};
use crate::{
    plan::strategy_parser,
    stage::{CongestionControl, DeviceLimits, Encryption, Link, PathPolicy},
};

/// Sent when neither --source nor --size is given.
const DEFAULT_SIZE: u64 = 256 << 20;
/// What `weft play` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Nodes; node 0 has the data.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub nodes: usize,
    /// NICs of each node, all used by every connection, 1 to 8.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nics: usize,
    /// Leaf switches; the nodes are spread over them in turn [default: 2].
    #[arg(long, value_name = "L")]
    pub leaves: Option<usize>,
    /// Spine switches; every one is a way between any two leaves [default: 4].
    #[arg(long, value_name = "S")]
    pub spines: Option<usize>,
    /// Paths between two nodes, 1 to 256 [default: 128; 1 without a fabric].
    #[arg(long, value_name = "P")]
    pub paths: Option<u16>,
    /// A file or a directory to send; it is read where it is.
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub source: Option<PathBuf>,
    /// What is done with symbolic links in --source: follow keeps those that stay in it and copies the files that
    /// the others lead to; refuse takes none. None is followed out of the directory that is sent.
    #[arg(
        long,
        value_name = "follow|refuse",
        default_value = "follow",
        hide_possible_values = true,
        conflicts_with = "size"
    )]
    pub symlinks: Symlinks,
    /// Send so many random bytes instead [default: 256MiB].
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    pub size: Option<u64>,
    /// What the random bytes of --size are drawn from: the same seed gives the same digest.
    #[arg(
        long,
        value_name = "SEED",
        default_value_t = 1,
        conflicts_with = "source"
    )]
    pub seed: u64,
    /// The nodes that shall have it: all, or numbers as 1,3.
    #[arg(long, value_name = "all|1,3", default_value = "all")]
    pub to: Destinations,
    /// Who sends to whom: auto, direct, chain or binomial.
    #[arg(
        long,
        value_name = "STRATEGY",
        default_value = "auto",
        hide_possible_values = true,
        value_parser = strategy_parser()
    )]
    pub strategy: Strategy,
    /// How a chunk's path is chosen.
    #[arg(long, value_name = "POLICY", default_value = "reps")]
    pub path_policy: PathPolicy,
    /// What carries the packets: udp, tcp, or auto, which measures both between two nodes and takes the faster one. Over tcp
    /// a path is a connection of the kernel, 8 at most.
    #[arg(
        long,
        value_name = "auto|udp|tcp",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub link: Link,
    /// Whether the nodes encrypt what they send: off or required.
    #[arg(
        long,
        value_name = "off|required",
        default_value = "off",
        hide_possible_values = true
    )]
    pub encryption: Encryption,
    /// What bounds the bytes in flight: ecn-rtt, swift, or eqds:RATE with the rate at which nodes receive, as
    /// eqds:10gbit.
    #[arg(long, value_name = "CONTROL", default_value = "ecn-rtt")]
    pub congestion: CongestionControl,
    /// What the data is hashed with: blake3, or xxh3, which is faster and finds damage only.
    #[arg(
        long,
        value_name = "HASH",
        default_value = "blake3",
        hide_possible_values = true
    )]
    pub verification: Verification,
    /// Rate of the spines' links, as 1gbit [default: what this machine gives].
    #[arg(long, value_name = "RATE", value_parser = quantity::parse_rate)]
    pub rate: Option<u64>,
    /// Rate of each NIC's link, as 300mbit [default: what this machine gives].
    #[arg(long, value_name = "RATE", value_parser = quantity::parse_rate)]
    pub node_rate: Option<u64>,
    /// Share of packets that every spine loses, as 0.1%.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = quantity::parse_fraction)]
    pub loss: f64,
    /// Share of packets of which every spine alters one byte, as 0.1%.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = quantity::parse_fraction)]
    pub corrupt: f64,
    /// Largest IP packet of the data network, bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    pub mtu: u32,
    /// Spine K drops everything from that time after the start on, as 2@500ms; its links stay up.
    #[arg(long, value_name = "K@TIME")]
    pub fail_spine: Vec<Moment>,
    /// The last NIC of node K loses its carrier at that time after the start, as 1@500ms; its others go on.
    #[arg(long, value_name = "K@TIME")]
    pub fail_nic: Vec<Moment>,
    /// The agent of node K is killed (SIGKILL) at that time after the start, as 1@2s.
    #[arg(long, value_name = "K@TIME")]
    pub kill_node: Vec<Moment>,
    /// The agent of node K, killed before, is started again.
    #[arg(long, value_name = "K@TIME")]
    pub restart_node: Vec<Moment>,
    /// The nodes' roots are made here as DIR/node0, DIR/node1, … and stay; with the same DIR the same command goes on
    /// where an interrupted one ended [default: a temporary place; in memory, with a fabric].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// These nodes get a virtual RDMA device, as 0,1: weft device run NODE -- PROGRAM uses it.
    #[arg(long, value_name = "0,1", value_delimiter = ',', requires = "keep")]
    pub device: Vec<usize>,
    /// Most that each device sends, as 400mbit [default: no limit].
    #[arg(long, value_name = "RATE", requires = "device", value_parser = quantity::parse_rate)]
    pub device_rate: Option<u64>,
    /// Most work requests that each device begins per second, as 20000 [default: no limit].
    #[arg(long, value_name = "N", requires = "device")]
    pub device_ops: Option<NonZeroU32>,
    /// Leave agents and fabric running, and say how to enter and how to end them.
    #[arg(long)]
    pub keep: bool,
    /// Serve the fabric's page to a browser of this machine while it plays, and after the result until Ctrl-C.
    #[arg(long, conflicts_with = "keep")]
    pub ui: bool,
    /// The page's port at 127.0.0.1; 0 for a free one.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "ui")]
    pub ui_port: u16,
    /// Print the result, or why there is none, as one JSON object and nothing else on standard output.
    #[arg(long)]
    pub json: bool,
    /// Show no progress: only the result, and what went wrong.
    #[arg(short, long)]
    pub quiet: bool,
}

/// What blocks and files are hashed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verification {
    /// A cryptographic hash: also against forged data.
    Blake3,
    /// A faster one, against damage only.
    Xxh3,
}

impl From<Verification> for Algorithm {
    fn from(verification: Verification) -> Self {
        match verification {
            Verification::Blake3 => Self::Blake3,
            Verification::Xxh3 => Self::Xxh3,
        }
    }
}

/// What is done with the symbolic links of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Symlinks {
    /// Keeps those that stay in it, and copies the files that the others lead to.
    Follow,
    /// Takes none.
    Refuse,
}

impl From<Symlinks> for agent::Symlinks {
    fn from(symlinks: Symlinks) -> Self {
        match symlinks {
            Symlinks::Follow => Self::Follow,
            Symlinks::Refuse => Self::Refuse,
        }
    }
}

/// Of --to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destinations {
    /// Every node but the source.
    All,
    /// These.
    Nodes(Vec<usize>),
}

impl FromStr for Destinations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = |word: &str| {
            word.trim()
                .parse()
                .map_err(|_| format!("{word:?} is no node: give all, or numbers as 1,3"))
        };
        text.split(',')
            .map(number)
            .collect::<Result<_, _>>()
            .map(Self::Nodes)
    }
}

/// `K@TIME`: something happens to the K-th of its kind, so long after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Which one.
    pub index: usize,
    /// When, after the start of the transfer.
    pub at: Duration,
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not K@TIME: write a number and a time, as 2@500ms");
        let (index, time) = text.split_once('@').ok_or_else(wrong)?;
        let index = index.trim().parse().map_err(|_| wrong())?;
        let time = time.trim();
        let (number, unit) = time.split_at(
            time.find(|c: char| c.is_ascii_alphabetic())
                .unwrap_or(time.len()),
        );
        let unit_seconds = match unit {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            _ => {
                return Err(format!(
                    "{text:?} has no unit of time: write ms, s or m, as 2@500ms"
                ));
            }
        };
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let at = Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| wrong())?;
        Ok(Self { index, at })
    }
}

/// What happens while the transfer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A spine drops everything.
    FailSpine,
    /// A node's last NIC loses its carrier.
    FailNic,
    /// A node's agent is killed.
    KillNode,
    /// It is started again.
    RestartNode,
}

impl FaultKind {
    /// The flag, without its dashes.
    pub fn name(self) -> &'static str {
        match self {
            Self::FailSpine => "fail-spine",
            Self::FailNic => "fail-nic",
            Self::KillNode => "kill-node",
            Self::RestartNode => "restart-node",
        }
    }

    /// What it happens to.
    pub fn target(self, index: usize) -> String {
        match self {
            Self::FailSpine => format!("spine{index}"),
            Self::FailNic | Self::KillNode | Self::RestartNode => format!("node{index}"),
        }
    }
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// To which.
    pub index: usize,
    /// When, after the start of the transfer.
    pub at: Duration,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A file that exists.
    File(PathBuf),
    /// A directory that exists.
    Directory(PathBuf),
    /// Random bytes.
    Random {
        /// How many.
        bytes: u64,
        /// Drawn from this.
        seed: u64,
    },
}

/// Arguments that make sense. Written by [`Args::check`] only.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fabric.
    pub fabric: Spec,
    /// Flags given that have no meaning without a fabric.
    pub of_fabric: Vec<&'static str>,
    /// Paths between two nodes, as asked for.
    pub paths: Option<u16>,
    /// What is sent.
    pub data: Data,
    /// What is done with the links in it.
    pub symlinks: Symlinks,
    /// Destinations, ascending.
    pub to: Vec<usize>,
    /// Who sends to whom.
    pub strategy: Strategy,
    /// How paths are chosen.
    pub path_policy: PathPolicy,
    /// What carries the packets.
    pub link: Link,
    /// Whether the nodes encrypt what they send.
    pub encryption: Encryption,
    /// What bounds the bytes in flight.
    pub congestion: CongestionControl,
    /// What the data is hashed with.
    pub verification: Verification,
    /// By time.
    pub faults: Vec<Fault>,
    /// Where the roots stay.
    pub out: Option<PathBuf>,
    /// The nodes that get a virtual device, ascending.
    pub devices: Vec<usize>,
    /// How each device is limited.
    pub device_limits: DeviceLimits,
    /// Leave everything running.
    pub keep: bool,
    /// The port of the page, where there is one; 0 for a free one.
    pub ui_port: Option<u16>,
    /// JSON on standard output.
    pub json: bool,
    /// No progress.
    pub quiet: bool,
}

impl Args {
    /// Says what is wrong with them, if anything is.
    pub fn check(&self) -> Result<Settings, UsageError> {
        if self.nodes < 2 {
            return Err(UsageError::TooFewNodes(self.nodes));
        }
        let fabric = Spec {
            nodes: self.nodes,
            nics: self.nics,
            leaves: self.leaves(),
            spines: self.spines(),
            rate: self.rate,
            node_rate: self.node_rate,
            loss: self.loss,
            corrupt: self.corrupt,
            mtu: self.mtu,
        };
        fabric.validate()?;
        if let Some(paths) = self.paths.filter(|paths| !(1..=MAX_PATHS).contains(paths)) {
            return Err(UsageError::Paths(paths));
        }
        let to = self.destinations()?;
        let faults = self.faults()?;
        let data = match (&self.source, self.size) {
            (Some(path), _) => source(path)?,
            (None, size) => Data::Random {
                bytes: size.unwrap_or(DEFAULT_SIZE),
                seed: self.seed,
            },
        };
        if let Some(out) = &self.out {
            check_out(out, &data)?;
        }
        Ok(Settings {
            of_fabric: self.of_fabric(),
            fabric,
            paths: self.paths,
            data,
            symlinks: self.symlinks,
            to,
            strategy: self.strategy,
            path_policy: self.path_policy,
            link: self.link,
            encryption: self.encryption,
            congestion: self.congestion,
            verification: self.verification,
            faults,
            out: self.out.clone(),
            devices: self.devices()?,
            device_limits: DeviceLimits {
                cap_bps: self.device_rate,
                ops_per_s: self.device_ops,
            },
            keep: self.keep,
            ui_port: self.ui.then_some(self.ui_port),
            json: self.json,
            quiet: self.quiet,
        })
    }

    fn leaves(&self) -> usize {
        self.leaves.unwrap_or(2)
    }

    fn spines(&self) -> usize {
        self.spines.unwrap_or(4)
    }

    fn of_fabric(&self) -> Vec<&'static str> {
        [
            ("--nics", self.nics > 1),
            ("--leaves", self.leaves.is_some()),
            ("--spines", self.spines.is_some()),
            ("--rate", self.rate.is_some()),
            ("--node-rate", self.node_rate.is_some()),
            ("--loss", self.loss > 0.0),
            ("--corrupt", self.corrupt > 0.0),
            ("--fail-spine", !self.fail_spine.is_empty()),
            ("--paths", self.paths.is_some_and(|paths| paths > 1)),
            ("--device", !self.device.is_empty()),
        ]
        .into_iter()
        .filter_map(|(flag, given)| given.then_some(flag))
        .collect()
    }

    fn destinations(&self) -> Result<Vec<usize>, UsageError> {
        let last = self.nodes - 1;
        let Destinations::Nodes(named) = &self.to else {
            return Ok((1..=last).collect());
        };
        let mut nodes = named.clone();
        nodes.sort_unstable();
        for pair in nodes.windows(2) {
            if pair[0] == pair[1] {
                return Err(UsageError::DuplicateDestination(pair[0]));
            }
        }
        match nodes
            .iter()
            .copied()
            .find(|given| *given == 0 || *given > last)
        {
            Some(0) => Err(UsageError::SourceIsDestination),
            Some(given) => Err(UsageError::NoSuchNode {
                flag: "--to",
                given,
                last,
            }),
            None => Ok(nodes),
        }
    }

    fn devices(&self) -> Result<Vec<usize>, UsageError> {
        let last = self.nodes - 1;
        let mut nodes = self.device.clone();
        nodes.sort_unstable();
        nodes.dedup();
        match nodes.last().copied().filter(|given| *given > last) {
            Some(given) => Err(UsageError::NoSuchNode {
                flag: "--device",
                given,
                last,
            }),
            None => Ok(nodes),
        }
    }

    fn faults(&self) -> Result<Vec<Fault>, UsageError> {
        let last = self.spines() - 1;
        if let Some(moment) = self.fail_spine.first() {
            if self.leaves() == 1 {
                return Err(SpecError::NoSpineCrossed { flag: "fail-spine" }.into());
            }
            let given = self
                .fail_spine
                .iter()
                .map(|m| m.index)
                .find(|given| *given > last);
            if let Some(given) = given {
                return Err(UsageError::NoSuchSpine { given, last });
            }
            debug_assert!(moment.index <= last);
        }
        if !self.fail_nic.is_empty() && self.nics == 1 {
            return Err(UsageError::OnlyNic);
        }
        let last = self.nodes - 1;
        for (flag, moments) in [
            ("--fail-nic", &self.fail_nic),
            ("--kill-node", &self.kill_node),
            ("--restart-node", &self.restart_node),
        ] {
            if let Some(given) = moments.iter().map(|m| m.index).find(|given| *given > last) {
                return Err(UsageError::NoSuchNode { flag, given, last });
            }
        }
        let of = |kind, moments: &[Moment]| -> Vec<Fault> {
            let fault = |m: &Moment| Fault {
                kind,
                index: m.index,
                at: m.at,
            };
            moments.iter().map(fault).collect()
        };
        let mut faults = [
            of(FaultKind::FailSpine, &self.fail_spine),
            of(FaultKind::FailNic, &self.fail_nic),
            of(FaultKind::KillNode, &self.kill_node),
            of(FaultKind::RestartNode, &self.restart_node),
        ]
        .concat();
        faults.sort_by_key(|fault| fault.at);
        let mut dead = Vec::new();
        for fault in &faults {
            let is_dead = dead.contains(&fault.index);
            match fault.kind {
                FaultKind::FailSpine | FaultKind::FailNic => {}
                FaultKind::KillNode if is_dead => {
                    return Err(UsageError::KilledTwice(fault.index));
                }
                FaultKind::KillNode => dead.push(fault.index),
                FaultKind::RestartNode if is_dead => dead.retain(|index| *index != fault.index),
                FaultKind::RestartNode => {
                    return Err(UsageError::RestartWithoutKill(fault.index));
                }
            }
        }
        Ok(faults)
    }
}

fn source(path: &Path) -> Result<Data, UsageError> {
    let unreadable = |source| UsageError::SourceUnreadable {
        path: path.to_owned(),
        source,
        user: std::env::var("USER").unwrap_or_else(|_| "this user".to_owned()),
    };
    let real = fs::canonicalize(path).map_err(unreadable)?;
    if real.file_name().is_none_or(|name| name.to_str().is_none()) {
        return Err(UsageError::SourceName {
            path: path.to_owned(),
        });
    }
    let kind = fs::metadata(&real).map_err(unreadable)?.file_type();
    if kind.is_dir() {
        fs::read_dir(&real).map_err(unreadable)?;
        return Ok(Data::Directory(real));
    }
    if kind.is_file() {
        fs::File::open(&real).map_err(unreadable)?;
        return Ok(Data::File(real));
    }
    let kind = if kind.is_socket() {
        "socket"
    } else if kind.is_fifo() {
        "pipe"
    } else {
        "device"
    };
    Err(UsageError::SourceKind {
        path: path.to_owned(),
        kind,
    })
}

fn check_out(path: &Path, data: &Data) -> Result<(), UsageError> {
    let unusable = |source| UsageError::Out {
        path: path.to_owned(),
        source,
    };
    let existing = path.ancestors().find(|above| above.exists());
    let existing = existing.unwrap_or(Path::new("."));
    let real = fs::canonicalize(existing).map_err(unusable)?;
    if let Data::Directory(source) = data
        && real.starts_with(source)
    {
        return Err(UsageError::OutInSource {
            path: path.to_owned(),
            within: source.clone(),
        });
    }
    // Of /run, the fabric sees what was there before it, but for what belongs to network namespaces and to Weft.
    if let Ok(below) = real.strip_prefix("/run") {
        let first = below.components().next().map(|first| first.as_os_str());
        let is_own = |name: &str| name == "netns" || name.starts_with("weft-");
        if first.is_none_or(|first| is_own(&first.to_string_lossy())) {
            return Err(UsageError::OutInRun {
                path: path.to_owned(),
            });
        }
    }
    match fs::read_dir(path) {
        Ok(entries) => match out::data_of(path) {
            None if !out::is_unused(entries) => {
                return Err(UsageError::OutNotEmpty {
                    path: path.to_owned(),
                });
            }
            Some(of_run) if of_run != data.describe() => {
                return Err(UsageError::OutOfOtherData {
                    path: path.to_owned(),
                    data: of_run,
                });
            }
            _ => {}
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(unusable(e)),
    }
    // Only writing shows whether it can be written.
    tempfile::tempfile_in(existing).map(drop).map_err(unusable)
}

#[cfg(test)]
mod tests;
