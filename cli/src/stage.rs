//! A fabric with its agents, set up to be asked for transfers.
//!
//! `weft play`, the benchmark and the table of faults stand on one of these: a ground ([`Ground`]: a
//! fabric of namespaces, or loopback), a certificate authority, and an agent at every node. What is
//! moved, and what goes wrong meanwhile, is up to them: a [`Stage`] begins no transfer by itself, and
//! starts no agent again that has ended.

mod agent;
pub mod devices;
mod error;
mod ground;
mod process;
mod program;

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::DevicePeer;
pub use agent::{Access, AgentConfig, CongestionControl, Encryption, Link, PathPolicy};
pub use devices::{DeviceLimits, Devices};
pub use error::StageError;
pub use ground::{Addresses, Ground};
use process::Processes;
pub use process::find;
pub(crate) use process::http_get;
pub use program::Program;
use weft_fabric::isolation;
use weft_identity::authority::{Authority, IdentityFiles};
use weft_planner::Topology;
use weft_transfer::{AgentEndpoint, ConnectionPool, NodeLocation, Runner, Spec};

/// What a stage is made of.
#[derive(Debug)]
pub struct Setup {
    /// Names the fabric in certificates.
    pub name: &'static str,
    /// What the agents stand on.
    pub ground: Ground,
    /// The agent's program; see [`find`].
    pub program: PathBuf,
    /// For keys, configurations and logs: a directory `node0`, `node1`, … each.
    pub home: PathBuf,
    /// What each node serves, in order.
    pub roots: Vec<Root>,
    /// Paths between two nodes.
    pub paths: u16,
    /// How a chunk's path is chosen.
    pub policy: PathPolicy,
    /// What carries the packets.
    pub link: Link,
    /// Whether the data path is encrypted.
    pub encryption: Encryption,
    /// What bounds the bytes in flight.
    pub congestion: CongestionControl,
    /// Virtual devices, on a fabric only.
    pub devices: Option<Devices>,
    /// Agents may outlive this process: [`Stage::keep`] will be called. Where nothing isolates them
    /// they then also outlive a SIGKILL that comes before it.
    pub stays: bool,
}

/// The one root of a node.
#[derive(Debug, Clone)]
pub struct Root {
    /// What jobs call it.
    pub name: &'static str,
    /// Where it is; made if it is not there.
    pub directory: PathBuf,
    /// What jobs may do there.
    pub access: Access,
}

/// Ground, authority and agents. Dropping it ends them, the agents first.
pub struct Stage {
    agents: Processes,
    /// In the order of the nodes that have devices.
    engines: Processes,
    authority: Arc<Authority>,
    pool: ConnectionPool,
    files: Vec<IdentityFiles>,
    setup: Setup,
}

/// Where a node's engine logs, beside its socket.
pub(crate) const ENGINE_LOG: &str = "engine.log";

impl Stage {
    /// Makes keys, directories and configurations. No agent runs yet.
    pub fn set(setup: Setup) -> Result<Self, StageError> {
        let authority = Arc::new(Authority::new(setup.name)?);
        let mut stage = Self {
            agents: Processes::of(Program::Agent),
            engines: Processes::of(Program::Engine),
            pool: ConnectionPool::new(Arc::clone(&authority)),
            authority,
            files: Vec::new(),
            setup,
        };
        for i in 0..stage.nodes() {
            directory(&stage.setup.roots[i].directory)?;
            directory(&stage.home(i))?;
            let identity = stage.authority.node(&node_name(i))?;
            let files = identity.write(&stage.authority, &stage.home(i))?;
            stage.files.push(files);
            write(&stage.config_file(i), &stage.config(i).yaml()?)?;
            stage.agents.add(&node_name(i), stage.log_file(i));
        }
        for i in stage.nodes_with_devices() {
            let log = stage.home(i).join(ENGINE_LOG);
            stage.engines.add(&node_name(i), log);
        }
        Ok(stage)
    }

    /// Starts every agent; all serve when this returns.
    pub async fn start_all(&mut self) -> Result<(), StageError> {
        for i in 0..self.nodes() {
            self.start(i, &[])?;
        }
        for i in 0..self.nodes() {
            self.ready(i).await?;
        }
        self.start_engines().await
    }

    /// Starts the engines of virtual devices, and makes the devices.
    async fn start_engines(&mut self) -> Result<(), StageError> {
        let Some(devices) = self.setup.devices.clone() else {
            return Ok(());
        };
        devices::put_libraries(&devices.libraries)?;
        devices::put_device_node()?;
        for (at, i) in devices.nodes.iter().copied().enumerate() {
            let setup = &self.setup;
            let mut command = setup.ground.command(i, &devices.program, setup.stays);
            command.args(devices::arguments(i, &self.socket(i), setup));
            self.engines.start(at, command)?;
        }
        for (at, i) in devices.nodes.into_iter().enumerate() {
            let socket = self.socket(i);
            let is_ready = async || devices::is_ready(&socket).await;
            self.engines.ready(at, is_ready).await?;
            let address = self.setup.ground.addresses(i).data;
            devices::create(i, &socket, address, devices.limits).await?;
        }
        Ok(())
    }

    /// Starts node `i`'s agent, by way of a program that becomes it if there are words for one.
    pub fn start(&mut self, i: usize, by: &[&str]) -> Result<(), StageError> {
        let (setup, stays) = (&self.setup, self.setup.stays);
        // A session of its own is also a group of its own to the scheduler, so only where it is needed.
        let session = stays.then_some("setsid");
        let mut words = session.iter().chain(by).map(Path::new);
        let (first, then) = match words.next() {
            Some(first) => (first, Some(&setup.program)),
            None => (&*setup.program, None),
        };
        let mut command = setup.ground.command(i, first, stays);
        command.args(words).args(then);
        command.arg("--config").arg(self.config_file(i));
        if !stays {
            // Ctrl-C is for the program that started it.
            command.process_group(0);
        }
        self.agents.start(i, command)
    }

    /// Waits until node `i`'s agent serves.
    pub async fn ready(&mut self, i: usize) -> Result<(), StageError> {
        let metrics = self.setup.ground.addresses(i).metrics;
        let is_ready = async || process::is_ready(metrics).await;
        self.agents.ready(i, is_ready).await
    }

    /// Returns when an agent or an engine has ended by itself.
    pub async fn ended(&mut self) -> StageError {
        tokio::select! {
            error = self.agents.ended() => error,
            error = self.engines.ended() => error,
        }
    }

    /// SIGKILL; node `i`'s agent is gone when this returns, if it ran.
    pub fn kill(&mut self, i: usize) -> io::Result<()> {
        self.agents.kill(i)
    }

    /// Whether node `i`'s agent runs.
    pub fn is_running(&mut self, i: usize) -> bool {
        self.agents.is_running(i)
    }

    /// The process of node `i`'s agent, if it was started.
    pub fn pid(&self, i: usize) -> Option<u32> {
        self.agents.pid(i)
    }

    /// What node `i`'s agent has logged since it was started.
    pub fn log(&self, i: usize) -> String {
        self.agents.log(i)
    }

    /// Leaves the agents and their ground to themselves: they go on when this process ends, until
    /// [`isolation::pid`] is killed; on loopback, until each of [`Self::pid`] is.
    pub fn keep(mut self) -> Result<(), StageError> {
        if let Ground::Fabric(fabric) = &self.setup.ground {
            isolation::keep().map_err(StageError::NotKept)?;
            // Never dropped, so never taken down.
            std::mem::forget(Arc::clone(fabric));
        }
        self.agents.leave();
        self.engines.leave();
        Ok(())
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.setup.roots.len()
    }

    /// What the agents stand on.
    pub fn ground(&self) -> &Ground {
        &self.setup.ground
    }

    /// Who issues the certificates and signs the tickets.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// The directory of node `i`'s root.
    pub fn root(&self, i: usize) -> &Path {
        &self.setup.roots[i].directory
    }

    /// Where node `i`'s agent logs.
    pub fn log_file(&self, i: usize) -> PathBuf {
        self.home(i).join("agent.log")
    }

    /// The nodes that have a virtual device.
    pub fn nodes_with_devices(&self) -> Vec<usize> {
        let devices = self.setup.devices.as_ref();
        devices.map_or_else(Vec::new, |devices| devices.nodes.clone())
    }

    /// The socket by which node `i`'s engine is managed.
    pub fn socket(&self, i: usize) -> PathBuf {
        self.home(i).join("engine.sock")
    }

    /// The command line of node `i`'s engine.
    pub fn engine(&self, i: usize) -> Vec<OsString> {
        let program = self
            .setup
            .devices
            .iter()
            .map(|it| it.program.clone().into());
        let arguments = devices::arguments(i, &self.socket(i), &self.setup);
        program.chain(arguments).collect()
    }

    fn device_peers(&self) -> Vec<DevicePeer> {
        let peer = |i| {
            let addresses = self.setup.ground.addresses(i);
            DevicePeer {
                gid: devices::gid(addresses.data),
                node: node_name(i),
                control: addresses.control,
            }
        };
        self.nodes_with_devices().into_iter().map(peer).collect()
    }

    fn config_file(&self, i: usize) -> PathBuf {
        self.home(i).join("agent.yaml")
    }

    fn home(&self, i: usize) -> PathBuf {
        self.setup.home.join(node_name(i))
    }

    /// What node `i`'s agent is told.
    pub fn config(&self, i: usize) -> AgentConfig {
        let setup = &self.setup;
        let other_nics = setup.ground.other_nics(i).to_vec();
        // At most 8: each NIC has a port of its own.
        let nics = 1 + other_nics.len() as u16;
        AgentConfig {
            node: node_name(i),
            fabric: setup.name,
            addresses: setup.ground.addresses(i),
            other_nics,
            ports: ground::port_count(setup.paths).max(nics),
            paths: setup.paths,
            mtu: setup.ground.mtu(),
            policy: setup.policy,
            link: setup.link,
            encryption: setup.encryption,
            congestion: setup.congestion,
            ticket_key: self.authority.ticket_key(),
            files: self.files[i].clone(),
            root: setup.roots[i].clone(),
            devices: self
                .nodes_with_devices()
                .contains(&i)
                .then(|| (self.socket(i), self.device_peers())),
        }
    }

    /// A file or directory at node `i`.
    pub fn place(&self, i: usize, path: &str) -> NodeLocation {
        NodeLocation {
            node: node_name(i),
            root: self.setup.roots[i].name.to_owned(),
            path: path.to_owned(),
        }
    }

    /// As the planner sees it.
    pub fn topology(&self) -> Topology {
        self.setup.ground.topology()
    }

    /// Begins a transfer. All transfers of a stage share the connections to the agents, so they need
    /// the same runtime.
    pub fn begin(&self, spec: Spec) -> Runner {
        let endpoint = |i| AgentEndpoint {
            node: node_name(i),
            address: self.setup.ground.addresses(i).control.to_string(),
        };
        let endpoints: Vec<AgentEndpoint> = (0..self.nodes()).map(endpoint).collect();
        Runner::begin(spec, self.pool.clone(), &endpoints)
    }
}

/// Node `i` in certificates, plans and reports.
pub fn node_name(i: usize) -> String {
    format!("node{i}")
}

/// A directory that only its owner may enter.
pub(crate) fn directory(path: &Path) -> Result<(), StageError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| StageError::Files {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, text: &str) -> Result<(), StageError> {
    fs::write(path, text).map_err(|source| StageError::Files {
        path: path.to_owned(),
        source,
    })
}
