//! The rows of `make bench`, one file for each kind of work.
//!
//! Every row measures our program and, where there is one, its peer in turns (ours, theirs, ours,
//! theirs, …) in one run on one fabric, and answers the median of the rounds; a ratio is made in
//! each round from figures measured next to each other, and its median is what must hold. So that
//! what else the machine does meets both alike.

pub mod arrivals;
mod asymmetric;
mod auto_peers;
pub mod blackhole;
pub mod blaster;
pub mod chain;
pub mod core;
pub(crate) mod devices;
mod encryption;
pub mod ends;
mod engine_latency;
pub mod files;
mod hopper;
pub mod host;
mod idle;
mod latency;
mod libfabric;
mod memory;
mod messages;
mod nics;
mod packet_size;
mod page;
mod paged;
pub(crate) mod peers;
pub(crate) mod processes;
mod python_face;
pub mod raw;
mod registration;
pub mod rounds;
mod routes;
pub mod rss;
mod scale;
mod scrape;
mod shared_memory;
mod single;
mod spine;
mod split;
pub mod spray;
pub mod stage;
mod tcp;
pub(crate) mod tcp_raw;
mod testbed;
pub mod transfer;
pub(crate) mod turns;
mod ucx;
mod udp_raw;
pub(crate) mod verbs;
pub mod writes;
mod xdp;

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;
use weft_cli::stage::StageError;
use weft_engine::{EngineError, Failure};
use weft_fabric::isolation::IsolationError;
use weft_fabric::{Fabric, FabricError, Spec};
use weft_identity::authority::AuthorityError;
use weft_transfer_engine::TransferError;

use crate::report::Row;

/// What can be measured, in the order in which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Work {
    /// The memory of 1,000 idle connections. First: nothing has freed memory yet.
    #[value(name = "idle-1000")]
    Idle,
    /// CPU time of both ends of the core per chunk of 1 and of 11 packets.
    Core,
    /// Virtual RDMA devices: how long each takes to make, and how soon a program can begin.
    Devices,
    /// Queue pairs and regions that a program makes in a second.
    #[value(name = "device-objects")]
    DeviceObjects,
    /// Verbs programs over virtual devices: rate and latency.
    Verbs,
    /// Instructions of a program for a write over a virtual device.
    #[value(name = "verbs-instructions")]
    VerbsInstructions,
    /// The same rate beside Soft-RoCE in a virtual machine.
    #[value(name = "verbs-soft-roce")]
    VerbsSoftRoce,
    /// Programs over virtual devices beside TCP, and beside rules for it.
    Isolation,
    /// A device with a thousand busy queue pairs beside one with one.
    #[value(name = "share-1000")]
    Share,
    /// The engine against a UDP blaster, memory to memory, and the receiver's CPU time.
    Raw,
    /// Writes over UDP of three sizes against the blaster.
    #[value(name = "udp-raw")]
    UdpRaw,
    /// Writes over TCP against a plain TCP socket that walks the same memory.
    #[value(name = "tcp-raw")]
    TcpRaw,
    /// CPU time of writes over AF_XDP against those over UDP.
    Xdp,
    /// Encrypted writes against unencrypted ones.
    Encryption,
    /// A connection over two workers against one over one.
    Split,
    /// Writes of 8 bytes, one way, by who runs the workers.
    Latency,
    /// Writes of 64 KiB, one in flight.
    #[value(name = "write-64k")]
    Single,
    /// Writes by the TransferEngine against NIXL and Mooncake.
    #[value(name = "auto-peers")]
    AutoPeers,
    /// Pages by the TransferEngine against NIXL.
    Paged,
    /// Writes of 8 bytes by the TransferEngine, against UCX and NIXL.
    #[value(name = "engine-lat-8")]
    EngineLatency,
    /// The Python module against the Rust crate.
    Python,
    /// Registering memory by its size.
    #[value(name = "reg")]
    Registration,
    /// A scrape of an agent with many peers and devices.
    Scrape,
    /// What many connections carry together.
    Scale,
    /// Writes through shared memory against UCX.
    #[value(name = "shm")]
    SharedMemory,
    /// Four spines of 1 Gbit/s under three path policies.
    #[value(name = "spray-4")]
    Spray4,
    /// Four spines of 1000, 500, 250 and 50 Mbit/s.
    #[value(name = "spray-asym")]
    Asymmetric,
    /// A connection of the policy hopper on the slowest of four spines.
    Hopper,
    /// Several NICs of a node.
    Nics,
    /// Flows over four fast and two slow spines, as in Hopper's testbed.
    Testbed,
    /// One of four spines drops everything.
    Blackhole,
    /// One of four spines drops large packets only.
    PacketSize,
    /// A file of 1 GiB, verified by XXH3 and by BLAKE3, against nc and scp.
    File,
    /// A broadcast to 3 nodes in a chain.
    #[value(name = "chain-3")]
    Chain3,
    /// A broadcast to 8 nodes in a chain.
    #[value(name = "chain-8")]
    Chain8,
    /// The agents' anonymous memory while 8 GiB move.
    Rss,
    /// The fabric's page of 200 nodes and 1,000 jobs.
    Page,
}

/// What the peers over TCP use in the nodes. A new network namespace inherits the machine's, and
/// BBR over a veth is two to four times slower: a peer would be measured at less than it can do.
pub const TCP_CONGESTION: &str = "reno";
const TCP_SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// What every row is told.
#[derive(Debug)]
pub struct Context {
    /// Rounds of each row.
    pub rounds: usize,
    /// Smaller work, to try a row out: its figures mean little.
    pub quick: bool,
    /// What the TransferEngine runs over in the rows that measure it.
    pub link: transfer::Link,
    /// Why this process has no namespaces of its own, if it has none.
    pub refused: Option<IsolationError>,
    /// Where large files may lie while a row runs.
    pub scratch: PathBuf,
}

/// Why a row could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There are no namespaces to build a fabric in.
    #[error("this row needs a fabric of network namespaces: {0}")]
    Isolation(String),
    /// The fabric could not be built or changed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// An engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A TransferEngine refused.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// An operation of a TransferEngine was not done.
    #[error("an operation was not done: {0}")]
    Operation(String),
    /// What arrived is not what was sent.
    #[error("write {write} differs from what was sent at byte {at}")]
    Differs {
        /// Which write.
        write: u64,
        /// The first byte of it that differs.
        at: usize,
    },
    /// There are no certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Agents could not be set up.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A connection failed.
    #[error("the connection failed: {0}")]
    Failed(Failure),
    /// Nothing happened for too long.
    #[error("{what}: nothing for {seconds} s; run again on a machine that does less else")]
    Silent {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// Too little arrived before the fault to compare with.
    #[error(
        "in half of the time before the fault nothing arrived: run again on a machine that does \
         less else"
    )]
    Idle,
    /// A thread of the benchmark panicked.
    #[error("{0}: its thread panicked; the message stands above")]
    Panicked(&'static str),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program did not do its work.
    #[error("{program}: {message}")]
    Program {
        /// Which.
        program: String,
        /// What it said.
        message: String,
    },
}

impl BenchError {
    /// For `map_err` after a system call.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

impl Work {
    /// Measures it.
    ///
    /// # Errors
    /// [`BenchError`]: why there is no figure.
    pub fn measure(self, context: &Context) -> Result<Vec<Row>, BenchError> {
        match self {
            Self::Core => core::measure(context),
            Self::Idle => idle::measure(context),
            Self::Devices => devices::measure(context),
            Self::DeviceObjects => devices::measure_objects(context),
            Self::Verbs => verbs::measure(context),
            Self::VerbsInstructions => verbs::measure_instructions(context),
            Self::VerbsSoftRoce => verbs::measure_beside_soft_roce(context),
            Self::Isolation => verbs::isolation::measure(context),
            Self::Share => verbs::share::measure(context),
            Self::Raw => raw::measure(context),
            Self::UdpRaw => udp_raw::measure(context),
            Self::TcpRaw => tcp_raw::measure(context),
            Self::Xdp => xdp::measure(context),
            Self::Encryption => encryption::measure(context),
            Self::Split => split::measure(context),
            Self::Latency => latency::measure(context),
            Self::Single => single::measure(context),
            Self::AutoPeers => auto_peers::measure(context),
            Self::Paged => paged::measure(context),
            Self::EngineLatency => engine_latency::measure(context),
            Self::Python => python_face::measure(context),
            Self::Registration => registration::measure(context),
            Self::Scrape => scrape::measure(context),
            Self::Scale => scale::measure(context),
            Self::SharedMemory => shared_memory::measure(context),
            Self::Spray4 => spray::measure(context),
            Self::Asymmetric => asymmetric::measure(context),
            Self::Hopper => hopper::measure(context),
            Self::Nics => nics::measure(context),
            Self::Testbed => testbed::measure(context),
            Self::PacketSize => packet_size::measure(context),
            Self::Blackhole => blackhole::measure(context),
            Self::File => files::measure(context),
            Self::Chain3 => chain::measure(context, chain::THREE),
            Self::Chain8 => chain::measure(context, chain::EIGHT),
            Self::Rss => rss::measure(context),
            Self::Page => page::measure(context),
        }
    }
}

impl Context {
    /// Two nodes behind one leaf, without a limit of rate.
    pub(crate) fn two_nodes(&self) -> Result<Fabric, BenchError> {
        self.fabric(&Spec {
            nodes: 2,
            leaves: 1,
            ..Spec::default()
        })
    }

    /// Builds a fabric, or says why there is none.
    fn fabric(&self, spec: &Spec) -> Result<Fabric, BenchError> {
        if let Some(refused) = &self.refused {
            return Err(BenchError::Isolation(refused.to_string()));
        }
        let fabric = Fabric::build(spec)?;
        for node in 0..fabric.nodes().len() {
            fabric
                .in_node(node, || std::fs::write(TCP_SETTING, TCP_CONGESTION))?
                .map_err(BenchError::system(TCP_SETTING))?;
        }
        Ok(fabric)
    }
}
