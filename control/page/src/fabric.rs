//! What the page shows, as plain data. Written by who serves the page.

use std::time::{Duration, SystemTime};

/// A fabric at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// When the figures were taken.
    pub at: SystemTime,
    /// The leaf switches, with their nodes.
    pub leaves: Vec<Leaf>,
    /// How many spine switches there are, where it is known.
    pub spines: Option<usize>,
    /// The traffic between leaves and spines, where it is known.
    pub links: Vec<Link>,
    /// What a heat of 1 means.
    pub heat_scale: HeatScale,
    /// Connections between nodes, where they are known.
    pub pairs: Vec<Pair>,
    /// Jobs, in any order.
    pub jobs: Vec<Job>,
    /// Jobs that the viewer may not see.
    pub hidden_jobs: usize,
    /// What is wrong with the fabric as a whole.
    pub findings: Vec<Finding>,
    /// Sentences that say what is not shown, and why.
    pub notes: Vec<String>,
}

/// A leaf switch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaf {
    /// Its name.
    pub name: String,
    /// The nodes that hang on it.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its agent works.
    pub state: NodeState,
    /// Bytes that it sends per second.
    pub sends: Option<u64>,
    /// Bytes that it receives per second.
    pub receives: Option<u64>,
    /// Paths to its peers that are not given data, where it is known.
    pub paths_down: Option<u32>,
    /// The largest smoothed round-trip time of its paths.
    pub largest_rtt: Option<Duration>,
    /// Its virtual devices; none where it has none.
    pub devices: Option<Devices>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// Whether a node's agent works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It takes jobs.
    Ready,
    /// It answers, or has said, that it takes none.
    NotReady,
    /// Nobody has heard of it.
    #[default]
    Unknown,
}

impl NodeState {
    /// A sign that is no colour, and the state in words.
    pub(crate) fn sign_and_word(self) -> (&'static str, &'static str) {
        match self {
            Self::Ready => ("✓", "Ready"),
            Self::NotReady => ("✕", "Not ready"),
            Self::Unknown => ("?", "Unknown"),
        }
    }
}

/// The virtual devices of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Those that pods have.
    pub in_use: u32,
    /// Those that pods can have.
    pub total: u32,
    /// Those that no pod can use.
    pub unhealthy: u32,
}

/// The traffic between a leaf and a spine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Number of the leaf in [`Fabric::leaves`].
    pub leaf: usize,
    /// Number of the spine; none for all spines together.
    pub spine: Option<usize>,
    /// From 0 to 1, as [`Fabric::heat_scale`] says.
    pub heat: f64,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

/// What a heat of 1 means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeatScale {
    /// The rate of the link.
    LinkRate,
    /// The traffic of the busiest link.
    #[default]
    Busiest,
}

/// What one node sends to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Paths that are not given data.
    pub paths_down: u32,
    /// The largest smoothed round-trip time of its paths.
    pub largest_rtt: Option<Duration>,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its namespace; empty where there are none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// Bytes that are verified at its destinations.
    pub done: u64,
    /// Bytes of all copies; none before the source has said it.
    pub total: Option<u64>,
    /// Bytes per second.
    pub rate: u64,
    /// The node or the store that has the data.
    pub from: String,
    /// The destinations, or the first of them.
    pub to: Vec<Destination>,
    /// How many destinations there are.
    pub destinations: usize,
    /// Why it waits, or why it has failed; empty where there is nothing to say.
    pub reason: String,
}

/// A destination of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Destination {
    /// The node.
    pub node: String,
    /// Its part of the copy that is verified, from 0 to 1; none before it is known.
    pub done: Option<f64>,
    /// The state as the API names it, as `Verified`.
    pub state: String,
}

/// How far a job is, as the API names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Bytes move.
    Transferring,
    /// Destinations reserve space.
    Preparing,
    /// The source is asked what there is.
    Planning,
    /// For a node, a fabric or a turn.
    Waiting,
    /// Not looked at yet.
    #[default]
    Pending,
    /// Stopped on request.
    Suspended,
    /// Given up.
    Failed,
    /// Every copy is verified.
    Complete,
}

impl Phase {
    /// As the API names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transferring => "Transferring",
            Self::Preparing => "Preparing",
            Self::Planning => "Planning",
            Self::Waiting => "Waiting",
            Self::Pending => "Pending",
            Self::Suspended => "Suspended",
            Self::Failed => "Failed",
            Self::Complete => "Complete",
        }
    }

    /// Agents may be at work for the job.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Transferring | Self::Preparing | Self::Planning)
    }
}

/// Something that is wrong, and what to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub problem: String,
    /// What to do; empty where the problem says it.
    pub fix: String,
}

impl Fabric {
    /// A fabric of which nothing is known yet.
    pub fn new(name: impl Into<String>, at: SystemTime) -> Self {
        Self {
            name: name.into(),
            at,
            leaves: Vec::new(),
            spines: None,
            links: Vec::new(),
            heat_scale: HeatScale::default(),
            pairs: Vec::new(),
            jobs: Vec::new(),
            hidden_jobs: 0,
            findings: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// All nodes, with the leaf of each.
    pub fn nodes(&self) -> impl Iterator<Item = (&Leaf, &Node)> {
        let of = |leaf| move |node| (leaf, node);
        self.leaves
            .iter()
            .flat_map(move |leaf| leaf.nodes.iter().map(of(leaf)))
    }
}

impl Node {
    /// Nothing is wrong with it as far as is known.
    pub(crate) fn is_well(&self) -> bool {
        let is_reached = self.paths_down.unwrap_or(0) == 0;
        self.state == NodeState::Ready && self.findings.is_empty() && is_reached
    }
}

impl Job {
    /// The part that is verified, from 0 to 1; none before it is known.
    pub fn part_done(&self) -> Option<f64> {
        match (self.phase, self.total) {
            (Phase::Complete, _) => Some(1.0),
            (_, None) => None,
            (_, Some(0)) => Some(0.0),
            (_, Some(total)) => Some((self.done as f64 / total as f64).min(1.0)),
        }
    }
}
