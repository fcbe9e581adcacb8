//! The agent as a whole: made from its configuration, stopped by its handle.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use weft_core::units::Nanos;
use weft_core::wire::Secret;
use weft_engine::{Egress, Encryption, Engine, EngineConfig, EngineError, PortRange};

use crate::abort;
use crate::config::{self, Config, LinkKind};
use crate::control::authorization::Authorization;
use crate::control::fence::Fence;
use crate::control::jobs::{Jobs, JobsConfig, LiveConfig};
use crate::control::listener::ControlListener;
use crate::control::service::Service;
use crate::files::{self, FileError, Root};
use crate::node_key;
use crate::object;
use crate::root_opener::Opener;
use crate::tls::{Tls, TlsError};
use crate::transfer::buffers::MemoryBudget;
use crate::web::HealthServer;

/// Partial files of jobs that nobody has taken up again for so long are removed.
const SWEEP_AGE: Duration = Duration::from_secs(24 * 3600);
/// How often that is looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// Jobs are given so long to end when the agent stops: less than the 30 s that Kubernetes gives it.
const JOBS_GRACE: Duration = Duration::from_secs(20);
/// Calls that are still open when the agent stops are cut off after this.
const GRACE: Duration = Duration::from_secs(2);

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What TLS makes of the certificates together.
    #[error("{problem}")]
    TlsUnusable {
        /// Its words.
        problem: String,
    },
    /// A root.
    #[error("roots: {0}")]
    Root(#[from] FileError),
    /// The transport.
    #[error("data: {0}")]
    Engine(#[from] EngineError),
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
}

/// What is there before an agent can start, and has its state from earlier tries.
#[derive(Debug)]
pub(crate) struct Beside {
    /// Where metrics are served.
    pub(crate) metrics: SocketAddr,
    /// Serves them.
    pub(crate) health: Arc<HealthServer>,
    /// It has heard of leaders.
    pub(crate) fence: Arc<Fence>,
    /// It knows which roots hang.
    pub(crate) opener: Arc<Opener>,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    control: SocketAddr,
    metrics: SocketAddr,
    jobs: Arc<Jobs>,
    health: Arc<HealthServer>,
    opener: Arc<Opener>,
    stop: watch::Sender<bool>,
    servers: Vec<tokio::task::JoinHandle<()>>,
}

impl Agent {
    /// Opens everything that the configuration names, and serves.
    pub async fn start(config: &Config) -> Result<Self, AgentError> {
        let (listener, metrics) = listen("metrics.listen", config.metrics.listen).await?;
        let beside = Beside {
            metrics,
            health: Arc::new(HealthServer::start(listener)),
            fence: Arc::default(),
            opener: Arc::default(),
        };
        Self::start_beside(config, beside).await
    }

    /// The same, with what is there before an agent can start.
    pub(crate) async fn start_beside(config: &Config, beside: Beside) -> Result<Self, AgentError> {
        let Beside {
            metrics,
            health,
            fence,
            opener,
        } = beside;
        let tls = Tls::read(&config.tls, &config.node, &config.fabric)?;
        let entries = (opener.clone(), config.roots.clone());
        let roots = abort::blocking("roots", move || entries.0.open(&entries.1)).await?;
        let live = live_config(config, roots);
        let control = listen("control.listen", config.control.listen).await?;
        let engine = Arc::new(Engine::start(engine_config(config, &tls))?);
        let (in_force, tls) = watch::channel(tls);
        let memory = config.limits.memory.value.0;
        let budget = MemoryBudget::new(memory);
        let jobs_config = JobsConfig {
            node: config.node.clone(),
            author: config.author,
            engine,
            tls,
            memory: budget.clone(),
            slots: config.limits.slots.value,
            lease: config.limits.lease.value.to_std(),
            retry_for: config.transport.stall_timeout.value.to_std(),
            store_stall_timeout: config.objects.stall_timeout.value.to_std(),
            store_list_timeout: config.objects.list_timeout.value.to_std(),
        };
        let jobs = Jobs::new(jobs_config, live);
        let service = Service {
            jobs: jobs.clone(),
            fence,
            node: config.node.clone(),
            fabric: config.fabric.clone(),
            data: config.data.address,
            memory,
        };
        let (stop, stopped) = watch::channel(false);
        let server = ControlListener::new(
            control.0,
            Authorization::new(service),
            in_force,
            stopped,
            memory,
        )
        .map_err(|problem| AgentError::TlsUnusable { problem })?;
        let mut agent = Self {
            control: control.1,
            metrics,
            jobs: jobs.clone(),
            health,
            opener,
            stop,
            servers: Vec::new(),
        };
        agent.serve("control", server.run());
        agent.sweep();
        agent
            .health
            .set_ready(crate::metrics::registry(jobs, budget));
        tracing::info!(
            node = %config.node, fabric = %config.fabric, control = %agent.control,
            metrics = %agent.metrics, data = %config.data.address, "agent started"
        );
        Ok(agent)
    }

    /// Takes over what may change while attempts run: the access to stores, the ticket key, how packets are marked
    /// and limited, and then the roots. Roots whose directories are still the same stay open. Where a root cannot be
    /// opened, all stay as they are.
    pub(crate) async fn apply(&self, config: &Config) -> Result<(), AgentError> {
        self.jobs.config.engine.set_egress(egress(config))?;
        let open = self.jobs.live().roots.clone();
        self.jobs.set_live(live_config(config, open));
        let (opener, entries) = (self.opener.clone(), config.roots.clone());
        let roots = abort::blocking("roots", move || opener.open(&entries)).await?;
        self.jobs.set_live(live_config(config, roots));
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
        self.metrics
    }

    /// Its jobs.
    #[must_use]
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Ends all jobs, tells their observers, and stops serving.
    pub async fn stop(self) {
        self.health.set_not_ready();
        if tokio::time::timeout(JOBS_GRACE, self.jobs.shut_down())
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
        self.health.close().await;
    }

    fn serve(
        &mut self,
        name: &'static str,
        server: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.servers.push(abort::task(name, async move {
            if let Err(error) = server.await {
                tracing::error!(server = name, "a server has ended: {error}");
            }
        }));
    }

    /// Removes what abandoned jobs have left, now and every hour.
    fn sweep(&mut self) {
        let jobs = self.jobs.clone();
        let mut stop = self.stop.subscribe();
        self.servers.push(abort::task("sweep", async move {
            let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                for root in jobs.live().roots.clone() {
                    if root.access() == files::Access::ReadWrite {
                        abort::blocking("sweep", move || sweep(&root)).await;
                    }
                }
            }
        }));
    }
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

pub(crate) async fn listen(
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

fn live_config(config: &Config, roots: Vec<Arc<Root>>) -> LiveConfig {
    LiveConfig {
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
        dscp: transport.dscp.value,
        cap_bps: transport
            .cap_mbps
            .as_ref()
            .map(|cap| u64::from(cap.value) * 1_000_000),
    }
}

fn engine_config(config: &Config, tls: &Tls) -> EngineConfig {
    let ports = config.data.ports.value;
    let ports = PortRange {
        first: ports.first,
        count: ports.count,
    };
    let transport = &config.transport;
    // The only link of this build, and so the best that both ends have.
    let (LinkKind::Auto | LinkKind::Udp) = transport.link;
    EngineConfig {
        mtu: config.data.mtu.value,
        paths: config.paths(),
        policy: transport.policy,
        congestion: transport.congestion.0,
        rto_min: Nanos::new(transport.rto_min.nanos()),
        // At most 64 KiB: checked with the configuration.
        chunk_bytes: transport.chunk.value.0 as u32,
        stall_timeout: transport.stall_timeout.value.to_core(),
        encryption: match transport.encryption {
            config::Encryption::Off => Encryption::Off,
            config::Encryption::Required => Encryption::Required,
        },
        egress: egress(config),
        ..EngineConfig::new(config.data.address, ports, node_key(config, tls))
    }
}

impl Config {
    /// Everything that [`Agent::start`] checks without opening ports: certificates and roots.
    pub fn check_files(&self) -> Result<(), AgentError> {
        Tls::read(&self.tls, &self.node, &self.fabric)?;
        Arc::new(Opener::default()).open(&self.roots)?;
        Ok(())
    }
}
