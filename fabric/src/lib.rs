//! A leaf-spine fabric out of network namespaces and kernel routing: what `weft play` runs on.
//!
//! Every node, leaf and spine is a network namespace; links are veth pairs. A leaf has a route to
//! each other leaf over all spines, and the kernel picks one by a hash of addresses and ports, so a
//! port pair is a path, and its two directions take the same spine. Two nodes on the same leaf talk
//! across that leaf only. The address plan stands at the head of `layout.rs`.
//!
//! A network of its own, which no fault and no rate touches, joins the process that built the
//! fabric with every node: the control API is reached over it.
//!
//! [`isolation::enter`] comes first, in `main`. The fabric is then built inside namespaces that end
//! with the process tree; nothing here cleans up after itself on the host because nothing is ever
//! made there. Every call blocks, for as long as a small program takes to run.
//!
//! **Segmentation offload** stays on in a fabric without faults, because it is what makes kernel UDP
//! fast. With loss, corruption or a rate it is switched off on every port: a switch would otherwise
//! drop 64 KiB where a real one drops a packet.

mod counter;
mod fault;
pub mod isolation;
mod layout;
mod namespace;
pub mod quantity;
mod spec;
mod tool;

use std::{
    io,
    net::Ipv4Addr,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use counter::Counter;
use fault::SpineFault;
use layout::{Layout, Place};
use namespace::Namespace;
pub use spec::{
    MAX_LEAVES, MAX_MTU, MAX_NICS, MAX_NODES, MAX_RATE, MAX_SPINES, MIN_MTU, MIN_RATE, Spec,
    SpecError,
};
pub use tool::{MissingTools, Tool, Tools};

/// How many network namespaces the kernel lets there be.
const NAMESPACES_MAX: &str = "user.max_net_namespaces";
/// A link comes up when a kernel thread gets to it: at once, unless the machine is overloaded.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// It is looked for so often.
const UP_LOOK: Duration = Duration::from_millis(10);

/// Why a fabric cannot be built or changed.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The spec makes no fabric.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Programs that configure the network are not there.
    #[error("{0}")]
    MissingTools(MissingTools),
    /// The caller would have changed the host's own network.
    #[error("the fabric is built in namespaces of its own: call isolation::enter first in main")]
    NotIsolated,
    /// One of those programs failed.
    #[error(
        "{tool}: {message}; the kernel may lack what it asks for: leave out the flag that needs it, \
         or use another kernel"
    )]
    Tool {
        /// Which.
        tool: Tool,
        /// What it printed, with the line of the script that failed.
        message: String,
    },
    /// One of those programs could not be run.
    #[error(
        "{tool} could not be run: {source}; where files or processes are too many, raise their limit, as with `ulimit -n 1024` or `ulimit -u 4096`"
    )]
    NotRun {
        /// Which.
        tool: Tool,
        /// With which error.
        source: io::Error,
    },
    /// The system has no thread for it.
    #[error(
        "no thread could be started: {source}; raise the limit on threads, as with `ulimit -u 4096`"
    )]
    NoThread {
        /// With which error.
        source: io::Error,
    },
    /// A namespace could not be made, entered or configured.
    #[error(
        "network namespace {name}: {step}: {source}; if it is refused, run as root or in a \
         privileged container"
    )]
    Namespace {
        /// Its name.
        name: String,
        /// What failed.
        step: &'static str,
        /// With which error.
        source: io::Error,
    },
    /// As many as allowed are in use.
    #[error(
        "network namespace {name} would be one more than the sysctl {NAMESPACES_MAX} allows ({allowed}): raise it, as \
         with `sysctl -w {NAMESPACES_MAX}=100000`, or give fewer --nodes, --leaves and --spines"
    )]
    TooFewNamespaces {
        /// Its name.
        name: String,
        /// The limit, as the kernel says it.
        allowed: String,
    },
    /// A link was configured and does not come up.
    #[error(
        "{port} of {namespace} is still down after {UP_WITHIN:?}: the machine may be overloaded; run again"
    )]
    LinkDown {
        /// Whose port.
        namespace: String,
        /// Which port.
        port: String,
    },
    /// There is no such node.
    #[error("there is no node {given}: the nodes are 0 to {last}")]
    NoSuchNode {
        /// What was asked for.
        given: usize,
        /// The last there is.
        last: usize,
    },
    /// There is no such spine.
    #[error("there is no spine {given}: the spines are 0 to {last}")]
    NoSuchSpine {
        /// What was asked for.
        given: usize,
        /// The last there is.
        last: usize,
    },
}

impl FabricError {
    /// A stable word for the cause.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Spec(e) => e.reason(),
            Self::MissingTools(_) => "MissingTools",
            Self::NotIsolated => "NotIsolated",
            Self::Tool { .. } => "NetworkToolFailed",
            Self::NotRun { .. } => "NetworkToolNotRun",
            Self::NoThread { .. } => "NoThreads",
            Self::Namespace { .. } => "NamespaceFailed",
            Self::TooFewNamespaces { .. } => "TooFewNamespaces",
            Self::LinkDown { .. } => "LinkDown",
            Self::NoSuchNode { .. } => "NoSuchNode",
            Self::NoSuchSpine { .. } => "NoSuchSpine",
        }
    }
}

/// A node of the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `node0`, `node1`, …; its namespace has the same name.
    pub name: String,
    /// The file that is its network namespace.
    pub namespace: PathBuf,
    /// The leaf that it hangs on.
    pub leaf: usize,
    /// The address of its first NIC on the data network.
    pub data_address: Ipv4Addr,
    /// Those of all its NICs.
    pub nics: Vec<Ipv4Addr>,
    /// Its address on the management network.
    pub management_address: Ipv4Addr,
}

/// How much of a node is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// Its data link: its agent still answers on the management network.
    Data,
    /// Both networks: nobody hears of it.
    Everywhere,
}

/// Faults in force. Written by the fault calls only.
#[derive(Debug)]
struct Faults {
    spines: Vec<SpineFault>,
    nodes: Vec<Option<Unreachable>>,
    single_packets: bool,
}

/// A running fabric. It ends with this value, or with the isolated process at the latest.
#[derive(Debug)]
pub struct Fabric {
    layout: Layout,
    tools: Tools,
    nodes: Vec<Node>,
    /// In the order of [`Layout::places`].
    namespaces: Vec<Namespace>,
    counters: Vec<Counter>,
    faults: Mutex<Faults>,
}

impl Fabric {
    /// Builds it, up and configured when this returns.
    pub fn build(spec: &Spec) -> Result<Self, FabricError> {
        spec.validate()?;
        if !isolation::is_inside() {
            return Err(FabricError::NotIsolated);
        }
        let tools = Tools::find()?;
        let layout = Layout::new(spec.clone());
        let places = layout.places();
        let namespaces = each(&places, |place| Namespace::create(place.name()))?;
        let nodes = (0..spec.nodes)
            .map(|node| Node {
                name: namespaces[node].name().to_owned(),
                namespace: namespaces[node].path(),
                leaf: layout.leaf_of(node),
                data_address: layout.data_address(node, 0),
                nics: (0..spec.nics)
                    .map(|nic| layout.data_address(node, nic))
                    .collect(),
                management_address: Layout::management_address(node),
            })
            .collect();
        let spine = SpineFault {
            black_hole: false,
            longest: None,
            loss: spec.loss,
            corrupt: spec.corrupt,
        };
        let faults = Mutex::new(Faults {
            spines: vec![SpineFault::default(); spec.spines],
            nodes: vec![None; spec.nodes],
            single_packets: false,
        });
        // From here on, dropping it removes what there is of it.
        let mut fabric = Self {
            layout,
            tools,
            nodes,
            namespaces,
            counters: Vec::new(),
            faults,
        };
        fabric
            .tools
            .run(Tool::Ip, &["-batch", "-"], &fabric.layout.links())?;
        each(&places, |place| fabric.configure(place))?;
        each(&places, |place| {
            fabric
                .at(place)
                .inside(|| fabric.wait_until_up(&place.name(), &fabric.layout.links_of(place)))
        })?;
        fabric.wait_until_up("management", &fabric.layout.management_links())?;
        fabric.counters = each(&places[spec.nodes + spec.leaves..], |place| {
            fabric
                .at(place)
                .inside(|| Counter::open().map_err(|e| fabric.counting(place, e)))
        })?;
        fabric.change_spines(|faults| faults.fill(spine))?;
        Ok(fabric)
    }

    fn configure(&self, place: Place) -> Result<(), FabricError> {
        let rates = self.layout.rates(place);
        self.at(place).inside(|| {
            self.tools
                .run(Tool::Ip, &["-batch", "-"], &self.layout.addresses(place))?;
            if !rates.is_empty() {
                self.tools.run(Tool::Tc, &["-batch", "-"], &rates)?;
            }
            Ok(())
        })
    }

    /// Waits, in the namespace of the calling thread, until these ports are up. Until then what is
    /// sent through them is dropped, and routes leave them out.
    fn wait_until_up(&self, namespace: &str, ports: &[String]) -> Result<(), FabricError> {
        let deadline = Instant::now() + UP_WITHIN;
        loop {
            let links = self
                .tools
                .run(Tool::Ip, &["-oneline", "link", "show", "up"], "")?;
            let Some(down) = ports.iter().find(|port| !is_up(&links, port)) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                let (namespace, port) = (namespace.to_owned(), down.clone());
                return Err(FabricError::LinkDown { namespace, port });
            }
            // The kernel's thread needs the processor more.
            std::thread::sleep(UP_LOOK);
        }
    }

    /// What it was built from.
    pub fn spec(&self) -> &Spec {
        self.layout.spec()
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Node `i`.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node(&self, i: usize) -> &Node {
        &self.nodes[i]
    }

    /// Address of this process on the management network.
    pub fn management_address(&self) -> Ipv4Addr {
        layout::MANAGEMENT_HOST
    }

    /// A command that runs `program` in node `i`'s network namespace.
    ///
    /// By `nsenter`, which becomes the program (same pid, same signals, same exit status), and not
    /// by `ip netns exec`, which also makes a mount namespace in which later mounts are not seen.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn command(&self, i: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut net = std::ffi::OsString::from("--net=");
        net.push(&self.nodes[i].namespace);
        let mut command = Command::new(self.tools.path(Tool::Nsenter));
        command.arg(net).arg("--").arg(program);
        command
    }

    /// Calls `f` on a thread in node `i`'s network namespace; sockets that it opens stay there.
    pub fn in_node<T: Send>(
        &self,
        i: usize,
        f: impl FnOnce() -> T + Send,
    ) -> Result<T, FabricError> {
        self.check_node(i)?;
        self.at(Place::Node(i)).inside(|| Ok(f()))
    }

    /// Bytes of the data network, link headers included, that each spine has forwarded so far.
    /// What a fault or a full queue dropped is not among them.
    pub fn spine_bytes(&self) -> Result<Vec<u64>, FabricError> {
        self.counters
            .iter()
            .enumerate()
            .map(|(k, c)| {
                c.sent("leaf")
                    .map_err(|e| self.counting(Place::Spine(k), e))
            })
            .collect()
    }

    /// The same for each spine's link to each leaf, by spine and then by leaf.
    pub fn link_bytes(&self) -> Result<Vec<Vec<u64>>, FabricError> {
        let ports: Vec<String> = (0..self.spec().leaves)
            .map(|leaf| Place::Leaf(leaf).name())
            .collect();
        let counters = self.counters.iter().enumerate();
        counters
            .map(|(k, c)| {
                c.sent_by(&ports)
                    .map_err(|e| self.counting(Place::Spine(k), e))
            })
            .collect()
    }

    /// Makes a spine drop everything that it should forward. Its links stay up.
    pub fn fail_spine(&self, k: usize) -> Result<(), FabricError> {
        self.check_spine(k)?;
        self.change_spines(|spines| spines[k].black_hole = true)
    }

    /// Ends [`Self::fail_spine`].
    pub fn heal_spine(&self, k: usize) -> Result<(), FabricError> {
        self.check_spine(k)?;
        self.change_spines(|spines| spines[k].black_hole = false)
    }

    /// [`Self::fail_spine`] for all of them.
    pub fn fail_all(&self) -> Result<(), FabricError> {
        self.change_spines(|spines| spines.iter_mut().for_each(|s| s.black_hole = true))
    }

    /// [`Self::heal_spine`] for all of them.
    pub fn heal_all(&self) -> Result<(), FabricError> {
        self.change_spines(|spines| spines.iter_mut().for_each(|s| s.black_hole = false))
    }

    /// Makes a spine drop IP packets of more bytes; none when absent. Shorter ones pass.
    pub fn drop_longer_than(&self, k: usize, bytes: Option<u32>) -> Result<(), FabricError> {
        self.check_spine(k)?;
        self.change_spines(|spines| spines[k].longest = bytes)
    }

    /// The share of packets that every spine loses from now on.
    pub fn set_loss(&self, share: f64) -> Result<(), FabricError> {
        spec::check_share("loss", share)?;
        self.change_spines(|spines| spines.iter_mut().for_each(|s| s.loss = share))
    }

    /// The share of UDP packets of which every spine alters one byte from now on.
    pub fn set_corrupt(&self, share: f64) -> Result<(), FabricError> {
        spec::check_share("corrupt", share)?;
        self.change_spines(|spines| spines.iter_mut().for_each(|s| s.corrupt = share))
    }

    /// Makes everything from and to a node disappear. Its links stay up.
    pub fn fail_node(&self, i: usize, how: Unreachable) -> Result<(), FabricError> {
        self.change_node(i, Some(how))
    }

    /// Ends [`Self::fail_node`].
    pub fn heal_node(&self, i: usize) -> Result<(), FabricError> {
        self.change_node(i, None)
    }

    /// Takes the data link of a node's first NIC down, as if its cable were pulled out: neither end has a carrier.
    pub fn unplug_node(&self, i: usize) -> Result<(), FabricError> {
        self.unplug_nic(i, 0)
    }

    /// The same for any NIC of the node.
    pub fn unplug_nic(&self, i: usize, nic: usize) -> Result<(), FabricError> {
        self.check_node(i)?;
        let script = format!("link set {} down\n", Layout::leaf_port(i, nic));
        let leaf = self.at(Place::Leaf(self.nodes[i].leaf));
        leaf.inside(|| self.tools.run(Tool::Ip, &["-batch", "-"], &script))
            .map(drop)
    }

    /// Ends [`Self::unplug_node`]. The link is up when this returns.
    pub fn plug_node(&self, i: usize) -> Result<(), FabricError> {
        self.plug_nic(i, 0)
    }

    /// The same for [`Self::unplug_nic`].
    pub fn plug_nic(&self, i: usize, nic: usize) -> Result<(), FabricError> {
        self.check_node(i)?;
        let (port, own) = (Layout::leaf_port(i, nic), Layout::node_port(nic));
        let way = self.layout.way_to_node(i, nic);
        let script = format!("link set {port} up\n{way}");
        let leaf = Place::Leaf(self.nodes[i].leaf);
        self.at(leaf)
            .inside(|| self.tools.run(Tool::Ip, &["-batch", "-"], &script))?;
        for (place, port) in [(leaf, port), (Place::Node(i), own)] {
            let port = [port];
            self.at(place)
                .inside(|| self.wait_until_up(&place.name(), &port))?;
        }
        Ok(())
    }

    fn change_spines(&self, change: impl FnOnce(&mut [SpineFault])) -> Result<(), FabricError> {
        let mut faults = self.faults();
        let mut spines = faults.spines.clone();
        change(&mut spines);
        let spec = self.spec();
        let single_packets = spec.rate.is_some()
            || spec.node_rate.is_some()
            || spines.iter().any(|s| s.loss > 0.0 || s.corrupt > 0.0);
        // Offloads first: no super-packet may meet a rule that is meant for packets.
        if single_packets != faults.single_packets {
            self.set_offloads(!single_packets)?;
            faults.single_packets = single_packets;
        }
        let changed: Vec<usize> = (0..spines.len())
            .filter(|k| spines[*k] != faults.spines[*k])
            .collect();
        each(&changed, |k| {
            self.at(Place::Spine(k))
                .inside(|| self.nft(&spines[k].rules()))
        })?;
        faults.spines = spines;
        Ok(())
    }

    fn change_node(&self, i: usize, how: Option<Unreachable>) -> Result<(), FabricError> {
        self.check_node(i)?;
        let mut faults = self.faults();
        let mut nodes = faults.nodes.clone();
        nodes[i] = how;
        let (leaf, everywhere) = (self.nodes[i].leaf, Some(Unreachable::Everywhere));
        let on_leaf: Vec<String> = (0..nodes.len())
            .filter(|n| nodes[*n].is_some() && self.nodes[*n].leaf == leaf)
            .flat_map(|n| self.layout.leaf_ports(n))
            .collect();
        self.at(Place::Leaf(leaf))
            .inside(|| self.nft(&fault::cut_ports(&on_leaf)))?;
        if nodes[i] == everywhere || faults.nodes[i] == everywhere {
            let silent: Vec<String> = (0..nodes.len())
                .filter(|n| nodes[*n] == everywhere)
                .map(Layout::management_port)
                .collect();
            self.nft(&fault::deaf_ports(&silent))?;
            let deaf = (nodes[i] == everywhere).then(|| layout::NODE_MANAGEMENT_PORT.to_owned());
            let rules = fault::deaf_ports(deaf.as_slice());
            self.at(Place::Node(i)).inside(|| self.nft(&rules))?;
        }
        faults.nodes = nodes;
        Ok(())
    }

    /// On every port of the data network.
    fn set_offloads(&self, on: bool) -> Result<(), FabricError> {
        // Merging on receipt is off on a veth anyway, unless someone switched it on.
        let features: &[&str] = if on {
            &["tso", "on", "gso", "on", "tx-udp-segmentation", "on"]
        } else {
            &[
                "tso",
                "off",
                "gso",
                "off",
                "tx-udp-segmentation",
                "off",
                "gro",
                "off",
            ]
        };
        each(&self.layout.places(), |place| {
            self.at(place).inside(|| {
                for (port, _) in self.layout.ports(place) {
                    let arguments = [&["-K", port.as_str()], features].concat();
                    self.tools.run(Tool::Ethtool, &arguments, "")?;
                }
                Ok(())
            })
        })?;
        Ok(())
    }

    fn nft(&self, script: &str) -> Result<(), FabricError> {
        self.tools.run(Tool::Nft, &["-f", "-"], script).map(drop)
    }

    fn at(&self, place: Place) -> &Namespace {
        let spec = self.spec();
        &self.namespaces[match place {
            Place::Node(i) => i,
            Place::Leaf(i) => spec.nodes + i,
            Place::Spine(i) => spec.nodes + spec.leaves + i,
        }]
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        // Written in one assignment once the kernel has taken it: a panic leaves it whole.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_node(&self, given: usize) -> Result<(), FabricError> {
        let last = self.spec().nodes - 1;
        if given <= last {
            Ok(())
        } else {
            Err(FabricError::NoSuchNode { given, last })
        }
    }

    fn check_spine(&self, given: usize) -> Result<(), FabricError> {
        let last = self.spec().spines - 1;
        if given <= last {
            Ok(())
        } else {
            Err(FabricError::NoSuchSpine { given, last })
        }
    }

    fn counting(&self, place: Place, source: io::Error) -> FabricError {
        FabricError::Namespace {
            name: place.name(),
            step: "reading its counters",
            source,
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let mut links = format!("link del {}\n", layout::MANAGEMENT_BRIDGE);
        for node in 0..self.spec().nodes {
            links.push_str(&format!("link del {}\n", Layout::management_port(node)));
        }
        // Whatever was not made yet cannot be removed.
        if let Err(e) = self.tools.run(Tool::Ip, &["-force", "-batch", "-"], &links) {
            tracing::debug!("{e}");
        }
    }
}

/// In the words of `ip -oneline link`: `2: data0@if3: <…> mtu 9000 qdisc noqueue state UP …`.
fn is_up(links: &str, port: &str) -> bool {
    links.lines().any(|line| {
        let name = line.split_whitespace().nth(1).unwrap_or_default();
        let name = name.trim_end_matches(':').split('@').next();
        name == Some(port) && line.contains(" state UP ") && !line.contains(" qdisc noop ")
    })
}

/// Calls `f` for all at once: what it waits for is mostly other programs.
fn each<T: Copy + Sync, R: Send>(
    all: &[T],
    f: impl Fn(T) -> Result<R, FabricError> + Sync,
) -> Result<Vec<R>, FabricError> {
    thread::scope(|scope| {
        let running: Vec<_> = all.iter().map(|one| spawn(scope, || f(*one))).collect();
        running.into_iter().map(|thread| join(thread?)).collect()
    })
}

/// Starts a thread of a scope. Where the system has none for it, [`Scope::spawn`](thread::Scope::spawn) would panic.
fn spawn<'scope, R: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    f: impl FnOnce() -> Result<R, FabricError> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<R, FabricError>>, FabricError> {
    let spawned = thread::Builder::new().spawn_scoped(scope, f);
    spawned.map_err(|source| FabricError::NoThread { source })
}

fn join<R>(thread: ScopedJoinHandle<'_, Result<R, FabricError>>) -> Result<R, FabricError> {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
