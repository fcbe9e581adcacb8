//! Makes the devices of containers, and destroys those that no pod has any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::{Mutex, watch};
use tonic::Status;
use weft_proto::Message as _;
use weft_proto::engine::v1::DeviceHealth;

use crate::cdi::{Cdi, remedy};
use crate::claims::{self, Lost};
use crate::engine::{DeviceLimits, Engine};
use crate::namespaces::{self, NotListed};
use crate::pods::{Allocation, Pod, PodResources};
use crate::reconcile::{EngineDevice, Found, Health, OfEngine, Reconciler, pod_named};
use crate::{Config, Flags};

/// What the ids of devices begin with; the engine may have others, as those of claims, which are nobody's here.
pub(crate) const ID_PREFIX: &str = "vdev-";

/// Why a container cannot have its devices. The kubelet shows it as an event of the pod, and tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("{id}: the node's engine does not make the device: {}", .status.message())]
    Engine { id: String, status: Status },
    #[error("{id}: its file of the Container Device Interface cannot be written or removed: {source}: {}", remedy(.source))]
    Cdi { id: String, source: io::Error },
    #[error("the kubelet does not say which pod has the device: {0}")]
    Kubelet(String),
    #[error(
        "{id}: the kubelet lists no container that has it; one that only an init container asks for cannot be used: \
         have a container of the pod ask for it as well"
    )]
    NoPod { id: String },
    #[error(transparent)]
    Namespace(#[from] NotListed),
}

/// The devices of this node's pods.
#[derive(Debug)]
pub(crate) struct Devices {
    engine: Engine,
    pods: PodResources,
    /// The plugin's own pod: a kubelet that does not list it knows no pods yet.
    own_pod: Option<Pod>,
    flags: watch::Receiver<Flags>,
    lost_of_claims: watch::Receiver<Lost>,
    cdi: Cdi,
    directory: PathBuf,
    /// What the node's agent reads.
    health_file: PathBuf,
    started: Instant,
    /// Held while devices are made and destroyed.
    reconciler: Mutex<Reconciler>,
}

impl Devices {
    /// It goes on from what the device plugin said last. `lost_of_claims` are devices of claims that an engine has lost.
    pub(crate) fn new(
        config: &Config,
        flags: watch::Receiver<Flags>,
        said: &DeviceHealth,
        lost_of_claims: watch::Receiver<Lost>,
    ) -> Self {
        let own_pod = config.own_pod.as_ref();
        let own_pod = own_pod.map(|(namespace, name)| Pod {
            namespace: namespace.clone(),
            name: name.clone(),
        });
        Self {
            engine: Engine::new(&config.engine, flags.clone()),
            pods: PodResources::new(&config.pod_resources, &config.resource),
            own_pod,
            flags,
            lost_of_claims,
            cdi: config.cdi(),
            directory: config.directory.clone(),
            health_file: weft_proto::engine::health_file(&config.engine),
            started: Instant::now(),
            reconciler: Mutex::new(Reconciler::resume(said)),
        }
    }

    /// A container will have these devices. Their names, for the container runtime.
    pub(crate) fn allocate(&self, ids: &[String]) -> Vec<String> {
        let in_order: BTreeSet<&String> = ids.iter().collect();
        for (index, id) in in_order.iter().enumerate() {
            // Early, for the container runtime notices a new file after a while. What fails here ends the pod, so it is
            // left to the start of the container, which is tried again.
            if let Err(error) = self.describe(id, index) {
                tracing::warn!("{error}");
            }
        }
        in_order.iter().map(|id| self.cdi.name(id)).collect()
    }

    fn describe(&self, id: &str, index: usize) -> Result<(), DeviceError> {
        let written = self.cdi.write(id, index, &self.directory.join(id));
        written.map_err(|source| DeviceError::Cdi {
            id: id.to_owned(),
            source,
        })
    }

    /// Makes the devices of a container that is about to start. What an earlier container had under these ids is destroyed.
    pub(crate) async fn prepare(&self, ids: &[String]) -> Result<(), DeviceError> {
        // Not while devices without a pod are looked for.
        let _held = self.reconciler.lock().await;
        let allocations = self.allocations().await.map_err(DeviceError::Kubelet)?;
        let in_order: BTreeSet<&String> = ids.iter().collect();
        for (index, id) in in_order.into_iter().enumerate() {
            let allocation = allocations.get(id);
            let allocation = allocation.ok_or_else(|| DeviceError::NoPod { id: id.clone() })?;
            namespaces::check(&self.flags.borrow().namespaces, &allocation.pod.namespace)?;
            self.describe(id, index)?;
            let made = self.make_anew(id, &allocation.pod).await;
            made.map_err(|status| DeviceError::Engine {
                id: id.clone(),
                status,
            })?;
            let Pod { namespace, name } = &allocation.pod;
            tracing::info!(id, namespace, pod = name, "device made");
        }
        Ok(())
    }

    async fn make_anew(&self, id: &str, pod: &Pod) -> Result<(), Status> {
        self.engine.destroy(id).await?;
        self.engine.create(id, pod, DeviceLimits::default()).await
    }

    /// Looks at engine and kubelet, destroys the devices that no pod has, and says how devices are: to the node's agent as well.
    pub(crate) async fn reconcile(&self) -> Health {
        let mut reconciler = self.reconciler.lock().await;
        let described = self.cdi.ids(ID_PREFIX).unwrap_or_else(|error| {
            tracing::warn!("files of the Container Device Interface: {error}");
            BTreeSet::new()
        });
        let found = Found {
            engine: self.of_engine().await,
            allocations: self.allocations().await,
            described,
            of_claims: count_of_claims(&self.cdi),
            lost_of_claims: self.lost_of_claims.borrow().clone(),
        };
        if let Err(problem) = &found.allocations {
            tracing::warn!("the kubelet does not say which pods have devices: {problem}");
        }
        let decision = reconciler.decide(&found, self.started.elapsed());
        for (id, index) in &decision.describe {
            if let Err(error) = self.describe(id, *index) {
                tracing::warn!("{error}");
            }
        }
        for id in &decision.destroy {
            if let Err(error) = self.reclaim(id).await {
                // It is tried again.
                tracing::warn!("{error}");
            }
        }
        if let Ok(of_engine) = &found.engine {
            reconciler.refused = of_engine.refused;
        }
        self.tell_agent(&reconciler.said(&decision));
        decision.health
    }

    /// Lets the node's agent read how devices are, and that this program runs. It never sees half of a file.
    fn tell_agent(&self, health: &DeviceHealth) {
        let temporary = self.health_file.with_extension("new");
        let written = fs::write(&temporary, health.encode_to_vec());
        let written = written.and_then(|()| fs::rename(&temporary, &self.health_file));
        if let Err(error) = written {
            let path = self.health_file.display();
            tracing::warn!("{path}: {error}: the node's agent does not learn how devices are");
        }
    }

    async fn reclaim(&self, id: &str) -> Result<(), DeviceError> {
        let id = || id.to_owned();
        let destroyed = self.engine.destroy(&id()).await;
        destroyed.map_err(|status| DeviceError::Engine { id: id(), status })?;
        let removed = self.cdi.remove(&id());
        removed.map_err(|source| DeviceError::Cdi { id: id(), source })?;
        tracing::info!(id = id(), "no pod has the device any more: destroyed");
        Ok(())
    }

    async fn of_engine(&self) -> Result<OfEngine, String> {
        let listed = self.engine.list("").await;
        let listed = listed
            .map_err(|status| format!("the node's engine does not answer: {}", status.message()))?;
        let mut of_engine = OfEngine {
            link_problem: (!listed.link_problem.is_empty()).then_some(listed.link_problem),
            refused: listed.refused,
            ..OfEngine::default()
        };
        for device in listed.devices {
            if device.name.starts_with(ID_PREFIX) {
                let found = EngineDevice {
                    is_open: device.contexts > 0,
                    is_stalled: device.stalled,
                };
                of_engine.devices.insert(device.name, found);
            } else if device.name.starts_with(claims::ID_PREFIX) && device.stalled {
                let pod = pod_named(&device.owner);
                of_engine.stalled_of_claims.insert(device.name, pod);
            }
        }
        Ok(of_engine)
    }

    async fn allocations(&self) -> Result<BTreeMap<String, Allocation>, String> {
        let pods = self.pods.list().await;
        let pods = pods.map_err(|status| status.message().to_owned())?;
        match &self.own_pod {
            Some(own) if !pods.names.contains(own) => {
                Err("it has not heard of this node's pods yet".to_owned())
            }
            _ => Ok(pods.allocations),
        }
    }
}

/// What the device plugin said last on this node, before it was restarted.
pub(crate) fn last_health(config: &Config) -> DeviceHealth {
    let said = fs::read(weft_proto::engine::health_file(&config.engine)).ok();
    let said = said.and_then(|said| DeviceHealth::decode(&*said).ok());
    said.unwrap_or_default()
}

/// How many devices claims have. None where that cannot be read.
fn count_of_claims(cdi: &Cdi) -> Option<u32> {
    let ids = cdi.ids(claims::ID_PREFIX);
    let ids = ids.inspect_err(|error| {
        tracing::warn!("files of the Container Device Interface: {error}");
    });
    u32::try_from(ids.ok()?.len()).ok()
}
