//! Gives a node's virtual RDMA devices to pods.
//!
//! By the device plugin API (v1beta1), or by Dynamic Resource Allocation (v1; decision 0044), or by both.
//!
//! By the device plugin API the kubelet is shown ids. A device is made when a container that has the id is about to start
//! (`PreStartContainer`), for the pod that the Pod Resources API names; so every container gets a device that nobody had
//! before it, also after a restart of the container, the kubelet or the node. What a container is given is a file of the
//! Container Device Interface, which the container runtime reads. Decision 0042 has the design.
//!
//! The program keeps nothing: the kubelet knows which pod has which id, the node's engine knows which devices there are.

mod cdi;
mod claims;
mod devices;
mod dra;
mod engine;
mod health_service;
mod install;
pub mod kubelet;
mod namespaces;
mod plugin_registration;
mod pods;
mod reconcile;
mod registration;
mod service;

pub use install::{InstallError, install};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::cdi::Cdi;
use crate::claims::{Claims, Lost};
use crate::devices::{Devices, last_health};
use crate::reconcile::{Health, Unhealthy, lost_in};
use crate::registration::Registration;
use crate::service::Service;

/// How often engine and kubelet are asked what there is.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(2);

/// What a plugin works with as long as it runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The socket of the node's engine.
    pub engine: PathBuf,
    /// Where the engine makes devices, on the node: each is a directory there, named by its id.
    pub directory: PathBuf,
    /// The kubelet's directory for device plugins. None where this program is none.
    pub device_plugins: Option<PathBuf>,
    /// Where pods have devices by claims.
    pub by_claims: Option<ByClaims>,
    /// The kubelet's directory with the socket of the Pod Resources API.
    pub pod_resources: PathBuf,
    /// The namespace and the name of the plugin's own pod, where it runs in one.
    pub own_pod: Option<(String, String)>,
    /// Where the container runtime looks for files of the Container Device Interface.
    pub cdi: PathBuf,
    /// Where Weft's libraries are, on the node.
    pub libraries: PathBuf,
    /// The program that the container runtime calls as a hook, on the node. None where it may not: then the libraries are preloaded
    /// by a variable, which serves fewer programs.
    pub hook: Option<PathBuf>,
    /// What pods ask for.
    pub resource: String,
}

/// What the node's agent says of devices, by the node's fabric and its data interface. It changes while a plugin runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// How many devices the kubelet is shown.
    pub count: u32,
    /// Most that each device sends, bits per second; 0 is no limit.
    pub cap_bps: u64,
    /// Most work requests that each device begins per second; 0 is no limit.
    pub ops_per_s: u32,
    /// The part of the node's link that each device has, a weight; 0 is the engine's default.
    pub share: u32,
    /// Pods of different namespaces may reach each other.
    pub cross_namespace: bool,
    /// The namespaces whose pods may have devices; all where there is none.
    pub namespaces: Vec<String>,
    /// The NUMA node of the interface that carries the data; none where that is not known.
    pub numa_node: Option<u32>,
}

/// What a driver of Dynamic Resource Allocation works with.
#[derive(Debug, Clone)]
pub struct ByClaims {
    /// The socket of the node's agent, which says what claims have been allocated.
    pub agent: PathBuf,
    /// The kubelet's directory `plugins_registry`.
    pub plugins_registry: PathBuf,
    /// The driver's own directory, below the kubelet's, by the path by which the kubelet has it.
    pub directory: PathBuf,
}

impl Config {
    fn cdi(&self) -> Cdi {
        Cdi::new(
            &self.cdi,
            &self.resource,
            &self.libraries,
            self.hook.as_deref(),
        )
    }
}

/// Why the plugin ends.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The directory for registrations.
    #[error("{path}: {source}: give the kubelet's directory for device plugins")]
    Kubelet {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A socket of its own.
    #[error("{path}: {source}: the plugin must be able to make a socket there")]
    Socket {
        /// Where it should be.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Its server.
    #[error("the kubelet cannot be served: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves the kubelet until `stopped` returns. Other flags change the kubelet's list of devices, and devices that are made later.
///
/// # Errors
/// [`PluginError`].
pub async fn run(
    config: Config,
    flags: watch::Receiver<Flags>,
    stopped: impl Future<Output = ()>,
) -> Result<(), PluginError> {
    let (shown, health) = watch::channel(Health::default());
    let said = last_health(&config);
    let lost = match config.by_claims {
        Some(_) => lost_in(&said),
        None => Lost::new(),
    };
    let (lost, lost_of_claims) = watch::channel(lost);
    let devices = Devices::new(&config, flags.clone(), &said, lost_of_claims);
    let driver = async {
        match &config.by_claims {
            Some(by_claims) => {
                let claims = Claims::new(&config, flags.clone(), &by_claims.agent, lost);
                serve_claims(claims, by_claims, health.clone()).await
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = serve_devices(&config, &flags, devices, &shown, health.clone()) => ended,
        ended = driver => ended,
        () = stopped => Ok(()),
    }
}

async fn serve_claims(
    claims: Claims,
    by_claims: &ByClaims,
    health: watch::Receiver<Health>,
) -> Result<(), PluginError> {
    let claims = Arc::new(claims);
    let started = Instant::now();
    let reconciling = async {
        let mut last_problem = String::new();
        let mut ticks = tokio::time::interval(RECONCILE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let problem = claims
                .reconcile(started.elapsed())
                .await
                .err()
                .map(|it| it.to_string());
            let problem = problem.unwrap_or_default();
            if problem != last_problem && !problem.is_empty() {
                tracing::warn!("devices of claims: {problem}");
            }
            last_problem = problem;
        }
    };
    tokio::select! {
        ended = dra::serve(Arc::clone(&claims), health, by_claims) => ended,
        () = reconciling => Ok(()),
    }
}

/// As a device plugin, where the kubelet is to have one. How devices are the node's agent is told in any case.
async fn serve_devices(
    config: &Config,
    flags: &watch::Receiver<Flags>,
    devices: Devices,
    shown: &watch::Sender<Health>,
    health: watch::Receiver<Health>,
) -> Result<(), PluginError> {
    let devices = Arc::new(devices);
    let registration = config.device_plugins.as_ref().map(|directory| {
        let service = Service::new(flags.clone(), Arc::clone(&devices), health);
        Registration::new(directory, &config.resource, service)
    });
    let registration = registration.transpose()?;
    // Containers may start as soon as it is registered, also those of pods that had their devices before a restart.
    reconcile(&devices, shown).await;
    let reconciling = async {
        let mut ticks = tokio::time::interval(RECONCILE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            reconcile(&devices, shown).await;
        }
    };
    let registered = async {
        match registration {
            Some(registration) => registration.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = registered => ended,
        () = reconciling => Ok(()),
    }
}

/// Looks at engine and kubelet, and shows the kubelet what has changed.
async fn reconcile(devices: &Devices, shown: &watch::Sender<Health>) {
    let found = devices.reconcile().await;
    shown.send_if_modified(|health| {
        if *health == found {
            return false;
        }
        log(&found, health);
        *health = found;
        true
    });
}

/// Says what has changed.
fn log(now: &Health, before: &Health) {
    match (&now.problem, &before.problem) {
        (Some(problem), _) => {
            let reason = problem.reason();
            tracing::warn!(reason, "no pod can have a device: {problem}");
        }
        (None, Some(_)) => tracing::info!("pods can have devices again"),
        (None, None) => {}
    }
    for (id, device) in &now.unhealthy {
        if before.unhealthy.get(id) != Some(device) {
            let Unhealthy { fault, pod } = device;
            let pod = pod.as_ref().map(tracing::field::display);
            let reason = fault.reason();
            tracing::warn!(id, pod, reason, "the device is unhealthy: {fault}");
        }
    }
    for id in before.unhealthy.keys() {
        if !now.unhealthy.contains_key(id) {
            tracing::info!(id, "the device is healthy again");
        }
    }
}
