//! The devices of ResourceClaims: one for each device that a claim has been allocated, as long as the kubelet has the claim
//! prepared.
//!
//! Nothing is kept but the devices at the engine and the files of the container runtime. Both are named after the claim's UID,
//! and not after the device of the pool, which the scheduler may give to the next claim before the kubelet lets go of this one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tonic::Status;
use tonic::transport::Channel;
use weft_proto::claims::v1::claims_client::ClaimsClient;
use weft_proto::claims::v1::{AllocatedDevice, FindClaimRequest};
use weft_proto::engine::v1::Device;

use crate::cdi::{Cdi, ClaimDevice, remedy};
use crate::engine::{DeviceLimits, Engine};
use crate::kubelet::dra as proto;
use crate::namespaces::{self, NotListed};
use crate::pods::{Pod, PodResources};
use crate::{Config, Flags};

/// What the ids of these devices begin with. The device plugin's begin otherwise, and each leaves the other's alone.
pub(crate) const ID_PREFIX: &str = "dra-";
/// Digits of a claim's UID in an id, which an engine takes at most 20 letters of: 48 random bits, and a node has a thousand
/// claims.
const UID_DIGITS: usize = 12;
/// Devices of a claim (AllocationResultsMaxSize of Kubernetes).
const DEVICES_MAX: usize = 32;
/// A device that has had no file for so long is destroyed.
const LEFT_MAX: Duration = Duration::from_secs(30);

const BITS_PER_MEGABIT: u64 = 1_000_000;

/// Why a claim is not prepared or unprepared. The kubelet shows it as an event of the pod, and tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("claim.uid: `{0}` is no UUID: the kubelet must give the claim's UID")]
    Uid(String),
    #[error("the node's agent does not say which devices the claim has: {}", .0.message())]
    Agent(Status),
    #[error(
        "the node's agent says that the claim has {0} devices, and a claim has {DEVICES_MAX} at most: look at its log"
    )]
    Devices(usize),
    #[error("the kubelet does not say which devices the pod has by the resource: {}", .0.message())]
    Kubelet(Status),
    #[error("the node's engine does not answer: {}", .0.message())]
    Engine(Status),
    #[error("{id}: the node's engine does not make or destroy the device: {}", .status.message())]
    Device { id: String, status: Status },
    #[error("{id}: its file of the Container Device Interface cannot be written or removed: {source}: {}", remedy(.source))]
    Cdi { id: String, source: io::Error },
    #[error("the files of the Container Device Interface cannot be listed: {0}")]
    Files(io::Error),
    #[error(transparent)]
    Namespace(#[from] NotListed),
}

/// Devices that an engine has lost and that no program has opened since, with the pods that have them.
pub(crate) type Lost = BTreeMap<String, Pod>;

/// The devices of this node's claims.
#[derive(Debug)]
pub(crate) struct Claims {
    engine: Engine,
    agent: ClaimsClient<Channel>,
    /// Says which devices pods have by the resource. None where they can have none.
    by_resource: Option<PodResources>,
    lost: watch::Sender<Lost>,
    flags: watch::Receiver<Flags>,
    cdi: Cdi,
    directory: PathBuf,
    /// Held while devices are made and destroyed.
    changing: Mutex<Left>,
}

impl Claims {
    /// `agent` is the socket of the node's agent. `lost` is told which devices an engine has lost, and says which had been before.
    pub(crate) fn new(
        config: &Config,
        flags: watch::Receiver<Flags>,
        agent: &Path,
        lost: watch::Sender<Lost>,
    ) -> Self {
        let by_resource = || PodResources::new(&config.pod_resources, &config.resource);
        Self {
            engine: Engine::new(&config.engine, flags.clone()),
            agent: weft_proto::claims::client(agent),
            by_resource: config.device_plugins.is_some().then(by_resource),
            lost,
            flags,
            cdi: config.cdi(),
            directory: config.directory.clone(),
            changing: Mutex::default(),
        }
    }

    /// Makes the devices of a claim that are not there yet. What containers that use the claim get.
    pub(crate) async fn prepare(
        &self,
        claim: &proto::Claim,
    ) -> Result<Vec<proto::Device>, ClaimError> {
        let prefix = prefix(&claim.uid)?;
        if self.described(&prefix)?.is_empty() {
            // A pod that has its device keeps it when the fabric leaves its namespace out.
            namespaces::check(&self.flags.borrow().namespaces, &claim.namespace)?;
        }
        let request = FindClaimRequest {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        };
        let found = self.agent.clone().find_claim(request).await;
        let found = found.map_err(ClaimError::Agent)?.into_inner();
        if found.devices.len() > DEVICES_MAX {
            return Err(ClaimError::Devices(found.devices.len()));
        }
        let pod = Pod {
            namespace: claim.namespace.clone(),
            name: found.pod,
        };
        let _changing = self.changing.lock().await;
        let mut is_new = false;
        for number in 0..found.devices.len() {
            is_new |= self.read(&format!("{prefix}{number}"))?.is_none();
        }
        let first = match is_new {
            true => self.first_index(&pod).await?,
            false => 0,
        };
        let made = self.engine.ids(&prefix).await;
        let made = made.map_err(ClaimError::Engine)?;
        let mut devices = Vec::new();
        for (number, allocated) in found.devices.into_iter().enumerate() {
            // An allocation does not change, so a device keeps its number.
            let id = format!("{prefix}{number}");
            let described = self.described(&id)?.contains(&id);
            if !described && made.contains(&id) {
                // The claim's last pod ended while the engine was away, or its file was not written yet when this program ended.
                self.destroy(&id).await?;
            }
            let limits = limits(&allocated);
            let device = ClaimDevice {
                pool: allocated.pool.clone(),
                device: allocated.device.clone(),
                ..self.claim_device(&id, (&pod, &found.pod_uid), first, limits)?
            };
            if described && !made.contains(&id) {
                self.make_again(&id, &device).await?;
            } else if !described {
                self.make(&id, &device).await?;
                let Pod { namespace, name } = &pod;
                tracing::info!(id, namespace, pod = name, claim = claim.name, "device made");
            }
            // Last: a file without a device is one that the engine has lost.
            self.describe(&id, &device)?;
            devices.push(prepared(allocated, self.cdi.name(&id)));
        }
        Ok(devices)
    }

    /// Destroys the devices of a claim that are there. Without an engine they are left to [`Self::reconcile`]: the pod ends all the
    /// same.
    pub(crate) async fn unprepare(&self, claim: &proto::Claim) -> Result<(), ClaimError> {
        let prefix = prefix(&claim.uid)?;
        let _changing = self.changing.lock().await;
        for id in self.described(&prefix)? {
            self.remove_file(&id)?;
        }
        self.retain_lost(|id| !id.starts_with(&prefix));
        let made = match self.engine.ids(&prefix).await {
            Ok(made) => made,
            Err(status) => {
                let problem = ClaimError::Engine(status);
                tracing::warn!(claim = claim.name, "devices are destroyed later: {problem}");
                return Ok(());
            }
        };
        for id in made {
            self.destroy(&id).await?;
            tracing::info!(id, claim = claim.name, "device destroyed");
        }
        Ok(())
    }

    /// Makes the devices again that an engine has lost under their pods: a container that is restarted finds its device. Destroys
    /// those that no claim has any more. `now` is time since any start.
    pub(crate) async fn reconcile(&self, now: Duration) -> Result<(), ClaimError> {
        let mut left = self.changing.lock().await;
        let described = self.described(ID_PREFIX)?;
        let made = self.engine.list(ID_PREFIX).await;
        let made = made.map_err(ClaimError::Engine)?.devices;
        let over = left.decide(&made, &described, now);
        self.retain_lost(|id| described.contains(id) && !has_been_open(&made, id));
        let made: BTreeSet<String> = made.into_iter().map(|device| device.name).collect();
        for id in described.difference(&made) {
            match self.read(id)? {
                Some(device) => self.make_again(id, &device).await?,
                // Half of it, as after a power cut: it is written again when its claim is prepared.
                None => self.remove_file(id)?,
            }
        }
        for id in over {
            self.destroy(&id).await?;
            tracing::info!(id, "no claim has the device any more: destroyed");
        }
        Ok(())
    }

    /// The devices of pools that claims have, as (pool, device), each with the ids that it has here: several where claims share it.
    pub(crate) fn allocated(&self) -> Result<BTreeMap<(String, String), Vec<String>>, ClaimError> {
        let mut allocated: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for id in self.described(ID_PREFIX)? {
            let Some(ClaimDevice { pool, device, .. }) = self.read(&id)? else {
                continue;
            };
            // Of a device whose file is of an earlier release it is not known.
            if !device.is_empty() {
                allocated.entry((pool, device)).or_default().push(id);
            }
        }
        Ok(allocated)
    }

    async fn destroy(&self, id: &str) -> Result<(), ClaimError> {
        let destroyed = self.engine.destroy(id).await;
        destroyed.map_err(|status| ClaimError::Device {
            id: id.to_owned(),
            status,
        })
    }

    async fn make(&self, id: &str, device: &ClaimDevice) -> Result<(), ClaimError> {
        let made = self.engine.create(id, &device.pod, device.limits).await;
        made.map_err(|status| ClaimError::Device {
            id: id.to_owned(),
            status,
        })
    }

    /// A device that an engine has lost under its pod.
    async fn make_again(&self, id: &str, device: &ClaimDevice) -> Result<(), ClaimError> {
        // Also where it cannot be made.
        self.lost.send_if_modified(|lost| {
            let before = lost.insert(id.to_owned(), device.pod.clone());
            before.is_none()
        });
        self.make(id, device).await?;
        let text = "the engine had lost the device: it is made again, restart its container";
        tracing::warn!(id, "{text}");
        Ok(())
    }

    /// Removes the lost devices for which `is_lost` is false.
    fn retain_lost(&self, is_lost: impl Fn(&str) -> bool) {
        self.lost.send_if_modified(|lost| {
            let before = lost.len();
            lost.retain(|id, _| is_lost(id));
            lost.len() < before
        });
    }

    fn remove_file(&self, id: &str) -> Result<(), ClaimError> {
        self.cdi.remove(id).map_err(|source| ClaimError::Cdi {
            id: id.to_owned(),
            source,
        })
    }

    fn describe(&self, id: &str, device: &ClaimDevice) -> Result<(), ClaimError> {
        let written = self
            .cdi
            .write_for_claim(id, device, &self.directory.join(id));
        written.map_err(|source| ClaimError::Cdi {
            id: id.to_owned(),
            source,
        })
    }

    /// The first index behind those that a container of the pod has by the resource.
    async fn first_index(&self, pod: &Pod) -> Result<usize, ClaimError> {
        match &self.by_resource {
            Some(pods) => {
                let pods = pods.list().await.map_err(ClaimError::Kubelet)?;
                Ok(pods.most_of_a_container(pod))
            }
            None => Ok(0),
        }
    }

    /// What the file of a device says, or is to say: its index is the first, from this one on, that no other device of the pod has.
    fn claim_device(
        &self,
        id: &str,
        (pod, pod_uid): (&Pod, &str),
        first: usize,
        limits: DeviceLimits,
    ) -> Result<ClaimDevice, ClaimError> {
        if let Some(device) = self.read(id)? {
            return Ok(device);
        }
        let mut taken = BTreeSet::new();
        for other in self.described(ID_PREFIX)? {
            let other = self.read(&other)?;
            taken.extend(other.filter(|it| it.pod_uid == pod_uid).map(|it| it.index));
        }
        let index = (first..).find(|index| !taken.contains(index));
        Ok(ClaimDevice {
            index: index.unwrap_or_default(),
            pod: pod.clone(),
            pod_uid: pod_uid.to_owned(),
            limits,
            pool: String::new(),
            device: String::new(),
        })
    }

    fn read(&self, id: &str) -> Result<Option<ClaimDevice>, ClaimError> {
        self.cdi.read(id).map_err(|source| ClaimError::Cdi {
            id: id.to_owned(),
            source,
        })
    }

    /// The devices with a file whose ids begin so.
    fn described(&self, prefix: &str) -> Result<BTreeSet<String>, ClaimError> {
        self.cdi.ids(prefix).map_err(ClaimError::Files)
    }
}

/// Whether a program has the device open, or one that has ended has moved bytes with it: the engine counts them since the device was
/// made. Of one that moved none and ended between two lists it is not known.
fn has_been_open(made: &[Device], id: &str) -> bool {
    let has_been = |device: &Device| {
        let bytes = [
            device.bytes_sent,
            device.bytes_received,
            device.window_bytes,
            device.mem_fd_bytes,
        ];
        device.contexts > 0 || bytes.iter().any(|bytes| *bytes > 0)
    };
    made.iter()
        .any(|device| device.name == id && has_been(device))
}

/// Since when devices that no program has open have had no file.
#[derive(Debug, Default)]
struct Left(BTreeMap<String, Duration>);

impl Left {
    /// Which to destroy.
    fn decide(
        &mut self,
        made: &[Device],
        described: &BTreeSet<String>,
        now: Duration,
    ) -> Vec<String> {
        let left = made.iter().filter(|device| device.contexts == 0);
        let left = left.filter(|device| !described.contains(&device.name));
        let since = |device: &Device| {
            let since = self.0.get(&device.name).copied();
            (device.name.clone(), since.unwrap_or(now))
        };
        self.0 = left.map(since).collect();
        let is_over = |since: Duration| now.saturating_sub(since) >= LEFT_MAX;
        let over = self.0.iter().filter(|(_, since)| is_over(**since));
        over.map(|(id, _)| id.clone()).collect()
    }
}

/// What the claim's DeviceClass says.
fn limits(allocated: &AllocatedDevice) -> DeviceLimits {
    let said = allocated.parameters.unwrap_or_default();
    DeviceLimits {
        cap_bps: u64::from(said.cap_mbps) * BITS_PER_MEGABIT,
        ops_per_s: said.operations_per_second,
        share: said.share,
    }
}

fn prepared(allocated: AllocatedDevice, cdi: String) -> proto::Device {
    // Containers name the request, also where it has alternatives.
    let request = allocated.request.split('/').next().map(str::to_owned);
    proto::Device {
        request_names: request.into_iter().collect(),
        pool_name: allocated.pool,
        device_name: allocated.device,
        cdi_device_ids: vec![cdi],
    }
}

/// What the ids of a claim's devices begin with; their numbers follow.
fn prefix(uid: &str) -> Result<String, ClaimError> {
    let is_digit = |digit: &char| digit.is_ascii_digit() || matches!(digit, 'a'..='f');
    let digits: String = uid.chars().filter(is_digit).take(UID_DIGITS).collect();
    match digits.len() {
        UID_DIGITS => Ok(format!("{ID_PREFIX}{digits}-")),
        _ => Err(ClaimError::Uid(uid.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_the_claim_and_are_as_long_as_an_engine_takes() {
        let prefix = prefix("0f5f57f1-84b6-4f4e-9d3c-3f0a3c1b2a55").unwrap();
        assert_eq!(prefix, "dra-0f5f57f184b6-");
        assert!(format!("{prefix}{}", DEVICES_MAX - 1).len() <= 20);
        assert!(super::prefix("no-uuid").is_err());
    }

    #[test]
    fn a_device_is_for_the_request_and_not_for_its_alternative() {
        let allocated = AllocatedDevice {
            request: "rdma/fast".to_owned(),
            pool: "n1".to_owned(),
            device: "vdev-7".to_owned(),
            parameters: None,
        };
        let device = prepared(allocated, "weft.dev/vdev=dra-1".to_owned());
        assert_eq!(device.request_names, ["rdma"]);
    }

    const ID: &str = "dra-0f5f57f184b6-0";

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn claims(home: &Path) -> Claims {
        let config = Config {
            engine: home.join("engine.sock"),
            directory: home.join("devices"),
            device_plugins: None,
            by_claims: None,
            pod_resources: home.join("pod-resources"),
            own_pod: None,
            cdi: home.join("cdi"),
            libraries: "/opt/weft/lib".into(),
            hook: None,
            resource: "weft.dev/vdev".to_owned(),
        };
        let (_, flags) = watch::channel(Flags::default());
        let (lost, _) = watch::channel(Lost::new());
        Claims::new(&config, flags, &home.join("claims.sock"), lost)
    }

    #[tokio::test]
    async fn a_pod_ends_while_the_engine_is_away() {
        let home = tempfile::tempdir().unwrap();
        let claims = claims(home.path());
        let device = ClaimDevice {
            index: 0,
            pod: Pod {
                namespace: "team-a".to_owned(),
                name: "trainer-0".to_owned(),
            },
            pod_uid: "77".to_owned(),
            limits: DeviceLimits::default(),
            pool: "n1".to_owned(),
            device: "vdev-7".to_owned(),
        };
        claims.describe(ID, &device).unwrap();
        let claim = proto::Claim {
            namespace: "team-a".to_owned(),
            uid: "0f5f57f1-84b6-4f4e-9d3c-3f0a3c1b2a55".to_owned(),
            name: "claim".to_owned(),
        };
        claims.unprepare(&claim).await.unwrap();
        assert!(claims.described(ID_PREFIX).unwrap().is_empty());
    }

    #[test]
    fn a_device_without_a_file_is_destroyed_after_thirty_seconds_unless_a_program_has_it_open() {
        let device = |name: &str, contexts| Device {
            name: name.to_owned(),
            contexts,
            ..Device::default()
        };
        let made = [
            device("dra-1-0", 0),
            device("dra-2-0", 0),
            device("dra-3-0", 1),
        ];
        let mut left = Left::default();
        let mut destroyed = |described: &[&str], seconds| {
            let described = described.iter().map(|id| (*id).to_owned()).collect();
            left.decide(&made, &described, at(seconds))
        };
        assert!(destroyed(&["dra-1-0"], 0).is_empty());
        assert!(destroyed(&["dra-1-0"], 29).is_empty());
        // It has been prepared again.
        assert!(destroyed(&["dra-1-0", "dra-2-0"], 30).is_empty());
        assert!(destroyed(&["dra-1-0"], 31).is_empty());
        assert_eq!(destroyed(&["dra-1-0"], 61), ["dra-2-0"]);
    }

    #[tokio::test]
    async fn a_device_is_not_lost_any_more_whose_program_has_used_it_and_ended() {
        let home = tempfile::tempdir().unwrap();
        let claims = claims(home.path());
        let pod = Pod {
            namespace: "team-a".to_owned(),
            name: "trainer-0".to_owned(),
        };
        let ids = ["dra-1-0", "dra-2-0", "dra-3-0", "dra-4-0"];
        claims
            .lost
            .send_replace(ids.map(|id| (id.to_owned(), pod.clone())).into());
        let device = |name: &str| Device {
            name: name.to_owned(),
            ..Device::default()
        };
        let made = [
            device(ids[0]),
            Device {
                contexts: 1,
                ..device(ids[1])
            },
            Device {
                bytes_received: 1,
                ..device(ids[2])
            },
            Device {
                window_bytes: 1,
                ..device(ids[3])
            },
        ];
        claims.retain_lost(|id| !has_been_open(&made, id));
        assert!(claims.lost.borrow().keys().eq([ids[0]]));
    }

    #[tokio::test]
    async fn what_was_left_at_the_engine_is_destroyed_and_no_device_of_another_kind() {
        let home = tempfile::tempdir().unwrap();
        let claims = claims(home.path());
        let (socket, devices) = (home.path().join("engine.sock"), home.path().join("devices"));
        let ports = weft_engine::PortRange {
            first: 31_840,
            count: 1,
        };
        let secret = weft_engine::Secret([7; 32]);
        let config = weft_engine::EngineConfig::new(std::net::Ipv4Addr::LOCALHOST, ports, secret);
        let stopped = std::future::pending::<weft_node_engine::Shutdown>();
        let engine = weft_node_engine::serve(&socket, &devices, config, 1, Vec::new(), stopped);
        let tried = async {
            let pod = Pod {
                namespace: "team-a".to_owned(),
                name: "trainer-0".to_owned(),
            };
            while claims.engine.list("").await.is_err() {
                tokio::task::yield_now().await;
            }
            let limits = DeviceLimits::default();
            for id in [ID, "vdev-00001"] {
                claims.engine.create(id, &pod, limits).await.unwrap();
            }
            for (seconds, left) in [(0, 2), (29, 2), (30, 1)] {
                claims.reconcile(at(seconds)).await.unwrap();
                assert_eq!(claims.engine.ids("").await.unwrap().len(), left);
            }
            assert_eq!(claims.engine.ids("vdev-").await.unwrap().len(), 1);
        };
        tokio::select! {
            ended = engine => panic!("the engine ended: {:?}", ended.err().map(|it| it.to_string())),
            () = tried => {}
        }
    }
}
