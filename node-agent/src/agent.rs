//! The agent as a whole: made from its configuration, stopped by its handle.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use weft_core::units::Nanos;
use weft_core::wire::Secret;
use weft_device_socket::descriptor_store::{self, DescriptorStore};
use weft_engine::{
    BadNics, Egress, Encryption, EngineConfig, EngineError, LinkKind, NicAddresses, PortRange,
};
use weft_identity::metrics_access::MetricsAccess;
use weft_identity::tls_listener::TlsRefusals;
use weft_proto::engine::v1::RefusedAttempt;

use crate::config::{self, Config, Programs};
use crate::control::attempt_registry::{AttemptRegistry, RegistryConfig, ReloadableConfig};
use crate::control::authorization::Authorization;
use crate::control::fence::Fence;
use crate::control::listener::ControlListener;
use crate::control::service::Service;
use crate::devices::claims::{self, FindClaim};
use crate::devices::engine_flags::EngineFlags;
use crate::devices::health::{HealthWatcher, NodeDevices};
use crate::devices::listing;
use crate::devices::peers::{FindNode, OperatorPeers, Peers};
use crate::devices::refused_attempts::RefusedAttempts;
use crate::devices::{Devices, programs};
use crate::fail_fast;
use crate::files::{self, FileError, Root};
use crate::links::Links;
use crate::metrics;
use crate::nic_state::EngineNics;
use crate::node_key;
use crate::object::{self, Network, StoreSettings};
use crate::root_opener::Opener;
use crate::root_space;
use crate::tls::{Tls, TlsError};
use crate::transfer::buffers::MemoryBudget;
use crate::volumes::{self, FindJob, VolumeService};
use crate::web::{HealthServer, Registries};

/// Partial files of jobs that nobody has taken up again for so long are removed.
const SWEEP_AGE: Duration = Duration::from_secs(24 * 3600);
/// How often that is looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// Jobs are given so long to end when the agent stops: less than the 30 s that Kubernetes gives it.
const JOBS_GRACE: Duration = Duration::from_secs(20);
/// Calls that are still open when the agent stops are cut off after this.
const GRACE: Duration = Duration::from_secs(2);

/// Parents that measure the links to this node at a time; others wait.
const MEASUREMENTS_MAX: usize = 16;

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A root.
    #[error("roots: {0}")]
    Root(#[from] FileError),
    /// The transport.
    #[error("data: {0}")]
    Engine(#[from] EngineError),
    /// The addresses of the transport.
    #[error("data.otherAddresses: {0}")]
    Nics(#[from] BadNics),
    /// An address to listen on.
    #[error(
        "{field}: cannot listen on {address}: {source}: is another agent running, or is the address not this node's?"
    )]
    Listen {
        /// The field or flag that says so.
        field: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The socket by which the node's `weft-engine` leaves its devices to the next one, that for the device plugin, or a file
    /// with flags.
    #[error(
        "devices.socket: {path}: {source}: give a path in a directory that this process may write to"
    )]
    EngineFile {
        /// Where it should be.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The socket by which the node's driver of volumes asks for copies.
    #[error(
        "--volumes: {path}: {source}: give a directory that this process may make and write to"
    )]
    VolumeSocket {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What an agent works in. It outlives tries to start that fail.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// Serves metrics and health.
    pub(crate) health: Arc<HealthServer>,
    /// Knows the newest leader's epoch.
    pub(crate) fence: Arc<Fence>,
    /// Knows which roots hang.
    opener: Arc<Opener>,
    /// How the operator is asked which node has a device, where there is one.
    pub(crate) operator: Option<Arc<dyn FindNode>>,
    /// How it is asked which job a pod's volume names.
    pub(crate) jobs: Option<Arc<dyn FindJob>>,
    /// How it is asked which devices a ResourceClaim has.
    pub(crate) claims: Option<Arc<dyn FindClaim>>,
}

impl Environment {
    /// Serves metrics and health at `address`, which `field` gives; metrics only as `access` decides, where there is one.
    pub(crate) async fn new(
        field: &'static str,
        address: SocketAddr,
        access: Option<&Arc<MetricsAccess>>,
    ) -> Result<Self, AgentError> {
        let (listener, address) = listen(field, address).await?;
        Ok(Self {
            health: Arc::new(HealthServer::start(listener, address, access)),
            fence: Arc::default(),
            opener: Arc::default(),
            operator: None,
            jobs: None,
            claims: None,
        })
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    control: SocketAddr,
    registry: Arc<AttemptRegistry>,
    environment: Environment,
    stop: watch::Sender<bool>,
    servers: Vec<tokio::task::JoinHandle<()>>,
    /// How the node's devices are, where its pods can have some.
    devices: Option<watch::Receiver<NodeDevices>>,
    /// What pods have tried with them and may not.
    refused_attempts: RefusedAttempts,
    engine_flags: EngineFlags,
    nics: EngineNics,
}

impl Agent {
    /// Opens everything that the configuration names, and serves.
    pub async fn start(config: &Config) -> Result<Self, AgentError> {
        let environment = Environment::new("metrics.listen", config.metrics.listen, None).await?;
        Self::start_in(environment, config).await
    }

    /// Opens everything that the configuration names, and serves, in this environment.
    pub(crate) async fn start_in(
        environment: Environment,
        config: &Config,
    ) -> Result<Self, AgentError> {
        let tls = Tls::read(&config.tls, &config.node, &config.fabric)?;
        let (opener, entries) = (environment.opener.clone(), config.roots.clone());
        let roots = fail_fast::spawn_blocking("roots", move || opener.open(&entries)).await?;
        let reloadable = reloadable_config(config, roots);
        let control = listen("control.listen", config.control.listen).await?;
        let links = Links::start(config.transport.link, engine_config(config, &tls)?)?;
        let nics = EngineNics::new(&config.data.nics());
        let (in_force, tls) = watch::channel(tls);
        let memory = config.limits.memory.0;
        let budget = MemoryBudget::new(memory);
        let devices = config.devices.as_ref().map(|devices| {
            let peers = match &environment.operator {
                Some(operator) => Peers::OfOperator(OperatorPeers::new(operator.clone())),
                None => Peers::listed(&devices.peers),
            };
            let devices = Devices::new(&devices.socket, peers, tls.clone());
            Arc::new(devices)
        });
        let registry_config = RegistryConfig {
            node: config.node.clone(),
            config_source: config.config_source,
            links: Arc::new(links),
            tls,
            memory: budget.clone(),
            slots: config.limits.slots,
            lease: config.limits.lease.to_std(),
            retry_for: config.transport.stall_timeout.to_std(),
            stores: StoreSettings {
                stall: config.objects.stall_timeout.to_std(),
                list: config.objects.list_timeout.to_std(),
                block: config.objects.block_timeout.to_std(),
                network: Network {
                    proxy: config.objects.proxy.clone(),
                    no_proxy: config.objects.no_proxy.clone(),
                    authorities: config.objects.authorities.clone(),
                },
                identity: config.objects.workload_identity.clone(),
            },
        };
        let registry = AttemptRegistry::new(registry_config, reloadable);
        let service = Service {
            registry: registry.clone(),
            fence: environment.fence.clone(),
            fabric: config.fabric.clone(),
            data: config.data.address,
            memory,
            devices: devices.clone(),
            metrics: environment.health.registries(),
            measurements: Arc::new(Semaphore::new(MEASUREMENTS_MAX)),
        };
        let (stop, stopped) = watch::channel(false);
        let refusals = TlsRefusals::default();
        let server = ControlListener::new(
            control.0,
            Authorization::new(service),
            in_force,
            stopped,
            memory,
            refusals.clone(),
        );
        let mut agent = Self {
            control: control.1,
            registry: registry.clone(),
            environment,
            stop,
            servers: Vec::new(),
            devices: None,
            refused_attempts: RefusedAttempts::default(),
            engine_flags: EngineFlags::default(),
            nics: nics.clone(),
        };
        agent.servers.push(fail_fast::spawn("control", async move {
            server.run().await;
        }));
        agent.sweep();
        let (spaces, roots) = watch::channel(Vec::new());
        agent.spawn("roots' space", root_space::follow(registry.clone(), spaces));
        let mut registries = metrics::registries(registry, budget, nics, roots, &refusals);
        if let Some((of_node, devices)) = config.devices.as_ref().zip(devices) {
            agent
                .serve_devices(config, of_node, devices, &mut registries)
                .await?;
        }
        if let (Some(directory), Some(jobs)) = (&config.volumes, &agent.environment.jobs) {
            let failed = |source| AgentError::VolumeSocket {
                path: directory.clone(),
                source,
            };
            let listener = volumes::bind(directory).map_err(failed)?;
            let service = VolumeService::new(agent.registry.clone(), jobs.clone(), directory);
            agent.spawn("volumes", service.serve(listener));
        }
        agent.environment.health.set_ready(registries);
        tracing::info!(
            node = %config.node, fabric = %config.fabric, control = %agent.control,
            metrics = %agent.metrics(), data = ?config.data.nics(), "agent started"
        );
        Ok(agent)
    }

    /// Serves what the programs of the node's virtual devices need of their agent.
    async fn serve_devices(
        &mut self,
        config: &Config,
        of_node: &config::Devices,
        devices: Arc<Devices>,
        registries: &mut Registries,
    ) -> Result<(), AgentError> {
        let failed = |(path, source)| AgentError::EngineFile { path, source };
        let socket = &of_node.socket;
        let total = match &of_node.programs {
            Programs::External => None,
            Programs::Configured(programs) => {
                programs::write(socket, config, programs).map_err(failed)?;
                Some(programs.per_node)
            }
            Programs::Disabled => {
                programs::disable(socket).map_err(failed)?;
                Some(0)
            }
        };
        if let Some(operator) = self.environment.claims.clone() {
            let path = socket.with_file_name(weft_proto::claims::SOCKET);
            let listener = claims::listen(&path).map_err(|source| failed((path, source)))?;
            self.spawn("claims", claims::serve(listener, operator));
        }
        keep_descriptors(socket)?;
        if let Some(total) = total {
            let watcher = HealthWatcher::new(socket, total, devices.health.clone());
            // The first report to the operator has it.
            watcher.read().await;
            let health = devices.health.subscribe();
            let (listed, each) = watch::channel(Vec::new());
            let collector = metrics::DeviceCollector {
                node: health.clone(),
                devices: each,
            };
            self.spawn("list of devices", listing::follow(devices.engine(), listed));
            registries.agent.register_collector(Box::new(collector));
            self.devices = Some(health);
            self.spawn("device health", watcher.run());
            let attempts = self.refused_attempts.clone();
            self.spawn("refused attempts", attempts.follow(devices.engine()));
            let file = programs::engine_file(socket);
            let flags = self.engine_flags.clone();
            self.spawn("engine flags", flags.follow(devices.engine(), file));
        }
        devices.dropped.register(&mut registries.agent);
        self.spawn("offers", Arc::clone(&devices).pass_offers_on());
        self.spawn("certificates", devices.follow_certificates());
        Ok(())
    }

    /// Applies what may change while attempts run: the access to stores, the ticket key, how packets are marked and
    /// limited, and then the roots. Roots whose directories are the same stay open. When a root cannot be opened, all
    /// roots stay as they are.
    pub(crate) async fn apply(&self, config: &Config) -> Result<(), AgentError> {
        self.registry.config.links.set_egress(egress(config))?;
        let open = self.registry.reloadable_config().roots.clone();
        self.registry
            .set_reloadable_config(reloadable_config(config, open));
        let (opener, entries) = (self.environment.opener.clone(), config.roots.clone());
        let roots = fail_fast::spawn_blocking("roots", move || opener.open(&entries)).await?;
        self.registry
            .set_reloadable_config(reloadable_config(config, roots));
        Ok(())
    }

    /// Where the control API listens.
    #[must_use]
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Where metrics are served.
    #[must_use]
    pub fn metrics(&self) -> SocketAddr {
        self.environment.health.address()
    }

    /// The attempts of its jobs.
    #[must_use]
    pub fn registry(&self) -> &Arc<AttemptRegistry> {
        &self.registry
    }

    /// How the node's virtual devices are, where its pods can have some.
    pub(crate) fn devices(&self) -> Option<watch::Receiver<NodeDevices>> {
        self.devices.clone()
    }

    /// What is to be done where the engine of devices runs with other flags than are written for it.
    pub(crate) fn engine_flags(&self) -> Option<String> {
        self.engine_flags.problem()
    }

    /// The NICs that carry its data.
    pub(crate) fn nics(&self) -> &EngineNics {
        &self.nics
    }

    /// What pods have tried with devices of the node of late, and may not.
    pub(crate) fn refused_attempts(&self) -> Vec<RefusedAttempt> {
        self.refused_attempts.listed(tokio::time::Instant::now())
    }

    /// Ends all jobs and stops serving.
    pub async fn stop(self) {
        self.environment.health.set_not_ready();
        if tokio::time::timeout(JOBS_GRACE, self.registry.shut_down())
            .await
            .is_err()
        {
            tracing::error!("jobs have not ended within {JOBS_GRACE:?}; stopping without them");
        }
        self.stop.send_replace(true);
        for mut server in self.servers {
            if tokio::time::timeout(GRACE, &mut server).await.is_err() {
                server.abort();
            }
        }
        self.environment.health.close().await;
    }

    /// Runs something until the agent stops.
    fn spawn(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        self.servers.push(fail_fast::spawn(name, async move {
            tokio::select! {
                () = work => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }));
    }

    /// Removes what abandoned jobs have left, now and every hour.
    fn sweep(&mut self) {
        let registry = self.registry.clone();
        let mut stop = self.stop.subscribe();
        self.servers.push(fail_fast::spawn("sweep", async move {
            let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                for root in registry.reloadable_config().roots.clone() {
                    if root.access() == files::Access::ReadWrite {
                        fail_fast::spawn_blocking("sweep", move || sweep(&root)).await;
                    }
                }
            }
        }));
    }
}

/// Keeps what the node's engine of devices leaves to the next one.
fn keep_descriptors(engine: &Path) -> Result<(), AgentError> {
    let path = descriptor_store::path_of(engine);
    let store = DescriptorStore::bind(&path).and_then(|mut store| {
        fail_fast::thread("descriptors", move || {
            while let Ok(()) = store.serve() {}
            panic!("the kernel does not say when the engine comes");
        })
    });
    store
        .map(drop)
        .map_err(|source| AgentError::EngineFile { path, source })
}

fn sweep(root: &Arc<Root>) {
    match files::sweep(root, SWEEP_AGE) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(
            root = root.name(),
            removed,
            "abandoned partial files removed"
        ),
        Err(error) => tracing::warn!(root = root.name(), reason = error.reason(), "{error}"),
    }
}

async fn listen(
    field: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), AgentError> {
    let failed = |source| AgentError::Listen {
        field,
        address,
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// What reset tokens are made from.
fn node_key(config: &Config, tls: &Tls) -> Secret {
    let path = node_key::path(&config.tls.key);
    let kept = node_key::keep(&path);
    Secret(kept.unwrap_or_else(|error| {
        tracing::warn!(
            "{}: {error}: the data path's key comes from the private key instead; once that is \
             renewed, other nodes notice a restart of this agent only by its silence: let the \
             agent write there",
            path.display()
        );
        tls.node_key()
    }))
}

fn reloadable_config(config: &Config, roots: Vec<Arc<Root>>) -> ReloadableConfig {
    ReloadableConfig {
        roots,
        objects: match config.objects.allow_insecure {
            true => object::Access::Insecure,
            false => object::Access::Secure,
        },
        ticket_key: config.operator.ticket_key,
    }
}

fn egress(config: &Config) -> Egress {
    let transport = &config.transport;
    Egress {
        dscp: transport.dscp,
        cap_bps: transport.cap_mbps.map(|cap| u64::from(cap) * 1_000_000),
    }
}

/// The settings of the engine over a link.
fn engine_config(config: &Config, tls: &Tls) -> Result<impl Fn(LinkKind) -> EngineConfig, BadNics> {
    let ports = config.data.ports;
    let ports = PortRange {
        first: ports.first,
        count: ports.count,
    };
    let transport = &config.transport;
    let nics = config.data.nics().into_iter().map(IpAddr::from);
    let nics = NicAddresses::try_from(nics.collect::<Vec<_>>())?;
    let node_key = node_key(config, tls);
    Ok(move |link| EngineConfig {
        mtu: config.data.mtu,
        paths: config.paths_over(link),
        policy: transport.policy,
        congestion: transport.congestion.0,
        rto_min: Nanos::new(transport.rto_min.nanos()),
        // At most 64 KiB: checked with the configuration.
        chunk_bytes: transport.chunk.0 as u32,
        stall_timeout: transport.stall_timeout.to_core(),
        encryption: match transport.encryption {
            config::Encryption::Off => Encryption::Off,
            config::Encryption::Required => Encryption::Required,
        },
        egress: egress(config),
        ..EngineConfig::over(link, nics, ports, node_key.clone())
    })
}

impl Config {
    /// Everything that [`Agent::start`] checks without opening ports: certificates and roots.
    pub fn check_files(&self) -> Result<(), AgentError> {
        Tls::read(&self.tls, &self.node, &self.fabric)?;
        Arc::new(Opener::default()).open(&self.roots)?;
        Ok(())
    }
}
