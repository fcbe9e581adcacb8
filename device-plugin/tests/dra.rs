//! The driver of claims between a kubelet and an agent that a test plays, and a real engine.

#[path = "../../node-agent/tests/agents/eventually.rs"]
mod eventually;
mod pods;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use weft_device_plugin::kubelet::dra::dra_plugin_client::DraPluginClient;
use weft_device_plugin::kubelet::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use weft_device_plugin::kubelet::dra_health::dra_resource_health_client::DraResourceHealthClient;
use weft_device_plugin::kubelet::dra_health::{HealthStatus, NodeWatchResourcesRequest};
use weft_device_plugin::kubelet::plugin_registration::registration_client::RegistrationClient;
use weft_device_plugin::kubelet::plugin_registration::{InfoRequest, RegistrationStatus};
use weft_device_plugin::{ByClaims, Config, Flags, kubelet, run};
use weft_device_socket::Client;
use weft_engine::{EngineConfig, PortRange, Secret};
use weft_node_engine::Shutdown;
use weft_proto::Message as _;
use weft_proto::claims::v1::claims_server::{Claims, ClaimsServer};
use weft_proto::claims::v1::{
    AllocatedDevice, DeviceParameters, FindClaimRequest, FindClaimResponse,
};
use weft_proto::engine::v1::{
    CreateDeviceRequest, DestroyDeviceRequest, Device, DeviceFault, DeviceHealth,
    ListDevicesRequest,
};

use crate::eventually::eventually;
use crate::pods::{Pods, RESOURCE, pod};

const TRAINER: &str = "0f5f57f1-84b6-4f4e-9d3c-3f0a3c1b2a55";
const LOADER: &str = "1c3e57f1-84b6-4f4e-9d3c-3f0a3c1b2a55";

/// What claims have been allocated, by their UIDs.
#[derive(Clone, Default)]
struct Agent(Arc<Mutex<BTreeMap<String, FindClaimResponse>>>);

#[tonic::async_trait]
impl Claims for Agent {
    async fn find_claim(
        &self,
        request: Request<FindClaimRequest>,
    ) -> Result<Response<FindClaimResponse>, Status> {
        let request = request.into_inner();
        let claims = self.0.lock().expect("no test panics here");
        let none = || Status::not_found(format!("ResourceClaim {} is not there", request.name));
        let found = claims.get(&request.uid).cloned().ok_or_else(none)?;
        Ok(Response::new(found))
    }
}

impl Agent {
    fn allocate(&self, uid: &str, pod: &str, devices: &[&str]) {
        let device = |device: &&str| AllocatedDevice {
            request: "rdma".to_owned(),
            pool: "n1".to_owned(),
            device: (*device).to_owned(),
            parameters: Some(DeviceParameters {
                share: 400,
                ..DeviceParameters::default()
            }),
        };
        let found = FindClaimResponse {
            pod: pod.to_owned(),
            pod_uid: format!("uid of {pod}"),
            devices: devices.iter().map(device).collect(),
        };
        let mut claims = self.0.lock().expect("no test panics here");
        claims.insert(uid.to_owned(), found);
    }
}

/// A node with an engine, a driver, and what plays its agent and its kubelet.
struct Node {
    home: TempDir,
    agent: Agent,
    pods: Pods,
    driver: JoinHandle<()>,
    engine: JoinHandle<()>,
    served: [JoinHandle<()>; 2],
}

impl Drop for Node {
    fn drop(&mut self) {
        let own = [&self.driver, &self.engine];
        own.into_iter()
            .chain(&self.served)
            .for_each(|it| it.abort());
    }
}

impl Node {
    fn start(first_port: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(home.path().join("device-plugins")).expect("it is ours");
        let agent = Agent::default();
        let socket = home.path().join("claims.sock");
        let listener = UnixListener::bind(socket).expect("it is ours");
        let service = ClaimsServer::new(agent.clone());
        let served = tokio::spawn(async move {
            let served = Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.expect("it is served");
        });
        let pods = Pods::default();
        Self {
            served: [served, pods.serve(&home.path().join("pod-resources"))],
            driver: start_driver(&home),
            engine: start_engine(&home, first_port),
            home,
            agent,
            pods,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    async fn stop_driver(&mut self) {
        self.driver.abort();
        let _ = (&mut self.driver).await;
    }

    /// As when its container ends at once: its sockets stay.
    async fn restart_driver(&mut self) {
        self.stop_driver().await;
        let stale = self.at("plugins/vdev.weft.dev");
        std::fs::create_dir_all(&stale).expect("it is ours");
        drop(
            std::os::unix::net::UnixListener::bind(stale.join("weft@dra.sock"))
                .expect("it is free"),
        );
        self.driver = start_driver(&self.home);
    }

    /// As with an engine that is killed: its devices are gone.
    async fn lose_device(&self, name: &str) {
        let mut engine = weft_proto::engine::client(&self.at("engine.sock"));
        let name = name.to_owned();
        let destroyed = engine.destroy_device(DestroyDeviceRequest { name }).await;
        destroyed.expect("it is there");
    }

    /// The driver, as a kubelet finds it that has just started.
    async fn registered(&self) -> DraPluginClient<tonic::transport::Channel> {
        let socket = self.at("plugins_registry/weft@vdev.weft.dev-reg.sock");
        let info = eventually("it registers", async || {
            let mut plugin = RegistrationClient::new(kubelet::channel(&socket));
            plugin.get_info(InfoRequest {}).await.ok()
        });
        let info = info.await.into_inner();
        assert_eq!((&*info.r#type, &*info.name), ("DRAPlugin", "vdev.weft.dev"));
        let versions = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
        assert_eq!(info.supported_versions, versions);
        let mut plugin = RegistrationClient::new(kubelet::channel(&socket));
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        let told = plugin.notify_registration_status(status).await;
        told.expect("it is told");
        DraPluginClient::new(kubelet::channel(info.endpoint.as_ref()))
    }

    async fn prepare(&self, uid: &str) -> NodePrepareResourceResponse {
        self.prepare_claim(claim(uid)).await
    }

    async fn prepare_claim(&self, claim: Claim) -> NodePrepareResourceResponse {
        let uid = claim.uid.clone();
        let request = NodePrepareResourcesRequest {
            claims: vec![claim],
        };
        let mut driver = self.registered().await;
        let prepared = driver.node_prepare_resources(request).await;
        let mut claims = prepared.expect("it answers").into_inner().claims;
        claims.remove(&uid).expect("it says how it went")
    }

    async fn unprepare(&self, uid: &str) -> String {
        let request = NodeUnprepareResourcesRequest {
            claims: vec![claim(uid)],
        };
        let mut driver = self.registered().await;
        let unprepared = driver.node_unprepare_resources(request).await;
        let mut claims = unprepared.expect("it answers").into_inner().claims;
        claims.remove(uid).expect("it says how it went").error
    }

    /// Waits until a kubelet is told so of these devices and of no others.
    async fn shows(&self, wanted: &[(&str, HealthStatus)]) {
        let socket = self.at("plugins/vdev.weft.dev/weft@dra.sock");
        let shown = eventually("the kubelet is told", async || {
            let mut driver = DraResourceHealthClient::new(kubelet::channel(&socket));
            let lists = driver.node_watch_resources(NodeWatchResourcesRequest {});
            let list = lists.await.ok()?.into_inner().message().await.ok()??;
            let told: Vec<(String, HealthStatus)> = list
                .devices
                .into_iter()
                .map(|device| {
                    let health = device.health();
                    let device = device.device.expect("it is named");
                    assert_eq!(device.pool_name, "n1");
                    (device.device_name, health)
                })
                .collect();
            let told: Vec<(&str, HealthStatus)> = told
                .iter()
                .map(|(name, health)| (&**name, *health))
                .collect();
            (told == wanted).then_some(())
        });
        shown.await;
    }

    /// Waits until the node's agent is told so of devices, each with the reason and the pod.
    async fn says(&self, wanted: &[[&str; 3]]) {
        let file = weft_proto::engine::health_file(&self.at("engine.sock"));
        let said = eventually("the agent is told", async || {
            let health = DeviceHealth::decode(&*std::fs::read(&file).ok()?).ok()?;
            let said = health.devices.iter();
            let said: Vec<[&str; 3]> = said
                .map(|it| [&*it.device, &*it.reason, &*it.pod])
                .collect();
            (said == wanted).then_some(())
        });
        said.await;
    }

    /// Has a program open the device of this id until what is returned is gone.
    async fn open(&self, id: &str) -> std::sync::mpsc::Sender<()> {
        let directory = self.at("devices").join(id);
        let (closing, is_closed) = std::sync::mpsc::channel::<()>();
        let (opening, is_open) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let opened = Client::open(&directory);
            let _ = opening.send(opened.as_ref().err().map(ToString::to_string));
            let _ = is_closed.recv();
        });
        assert_eq!(is_open.await.expect("it is opened"), None);
        closing
    }

    async fn list(&self) -> Option<Vec<Device>> {
        let mut engine = weft_proto::engine::client(&self.at("engine.sock"));
        let listed = engine.list_devices(ListDevicesRequest {}).await;
        listed.ok().map(|listed| listed.into_inner().devices)
    }

    async fn devices(&self) -> Vec<Device> {
        eventually("the engine answers", || self.list()).await
    }

    /// Where a container finds the device of this id.
    fn container_path(&self, id: &str) -> String {
        let file = self.at(&format!("cdi/weft.dev-vdev_{id}.json"));
        let text = std::fs::read(file).expect("it is written");
        let file: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
        let mount = &file["devices"][0]["containerEdits"]["mounts"][0];
        mount["containerPath"].as_str().expect("a path").to_owned()
    }
}

fn claim(uid: &str) -> Claim {
    Claim {
        namespace: "team-a".to_owned(),
        uid: uid.to_owned(),
        name: "claim".to_owned(),
    }
}

fn start_engine(home: &TempDir, first: u16) -> JoinHandle<()> {
    let ports = PortRange { first, count: 2 };
    let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([7; 32]));
    let (socket, devices) = (home.path().join("engine.sock"), home.path().join("devices"));
    tokio::spawn(async move {
        let stopped = std::future::pending::<Shutdown>();
        let served = weft_node_engine::serve(&socket, &devices, config, 2, Vec::new(), stopped);
        served.await.expect("it serves");
    })
}

/// A driver that is a device plugin as well, as by the chart's mode `both`.
fn start_driver(home: &TempDir) -> JoinHandle<()> {
    let at = |name: &str| home.path().join(name);
    let config = Config {
        engine: at("engine.sock"),
        directory: at("devices"),
        device_plugins: Some(at("device-plugins")),
        by_claims: Some(ByClaims {
            agent: at("claims.sock"),
            plugins_registry: at("plugins_registry"),
            directory: at("plugins/vdev.weft.dev"),
        }),
        pod_resources: at("pod-resources"),
        own_pod: None,
        cdi: at("cdi"),
        libraries: "/opt/weft/lib".into(),
        hook: None,
        resource: RESOURCE.to_owned(),
    };
    let (_, flags) = watch::channel(Flags {
        count: 4,
        cap_bps: 400_000_000,
        namespaces: vec!["team-a".to_owned()],
        numa_node: Some(1),
        ..Flags::default()
    });
    tokio::spawn(async move {
        let served = run(config, flags, std::future::pending());
        served.await.expect("it serves");
    })
}

#[tokio::test]
async fn a_claim_has_its_devices_from_prepare_to_unprepare_however_often_these_are_called() {
    let mut node = Node::start(31_828);
    let of_other_team = Claim {
        namespace: "team-b".to_owned(),
        ..claim(TRAINER)
    };
    let refused = node.prepare_claim(of_other_team).await.error;
    let text = "pods of namespace team-b may have no RDMA device here: spec.devices.namespaces";
    assert!(refused.starts_with(text), "{refused}");
    let refused = node.prepare(TRAINER).await;
    assert!(refused.error.contains("ResourceClaim claim is not there"));
    node.agent
        .allocate(TRAINER, "trainer-0", &["vdev-7", "vdev-3"]);
    let first = node.prepare(TRAINER).await;
    assert_eq!(first.error, "");
    let device = &first.devices[1];
    assert_eq!((&*device.pool_name, &*device.device_name), ("n1", "vdev-3"));
    assert_eq!(device.request_names, ["rdma"]);
    let id = "dra-0f5f57f184b6-1";
    assert_eq!(device.cdi_device_ids, [format!("weft.dev/vdev={id}")]);
    assert_eq!(node.container_path(id), "/dev/weft/weft1");
    let made = node.devices().await;
    assert_eq!(made.len(), 2);
    for device in &made {
        assert_eq!(
            (&*device.tenant, &*device.owner),
            ("team-a", "team-a/trainer-0")
        );
        assert_eq!((device.cap_bps, device.share), (400_000_000, 400));
    }

    // Another kubelet, then another driver: the claim keeps its devices.
    let gids = |devices: &[Device]| devices.iter().map(|it| it.gid.clone()).collect::<Vec<_>>();
    assert_eq!(node.prepare(TRAINER).await, first);
    node.restart_driver().await;
    assert_eq!(node.prepare(TRAINER).await, first);
    assert_eq!(gids(&node.devices().await), gids(&made));

    node.restart_driver().await;
    for _ in 0..2 {
        assert_eq!(node.unprepare(TRAINER).await, "");
        assert!(node.devices().await.is_empty());
    }
    assert!(!node.at(&format!("cdi/weft.dev-vdev_{id}.json")).exists());
}

#[tokio::test]
async fn claims_of_one_pod_have_devices_of_different_names_and_a_late_end_harms_no_other_claim() {
    let node = Node::start(31_832);
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"]);
    // The scheduler gives a device to the next claim before the kubelet has let go of the first.
    node.agent.allocate(LOADER, "trainer-0", &["vdev-7"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    assert_eq!(node.prepare(LOADER).await.error, "");
    assert_eq!(node.container_path("dra-0f5f57f184b6-0"), "/dev/weft/weft0");
    assert_eq!(node.container_path("dra-1c3e57f184b6-0"), "/dev/weft/weft1");
    assert_eq!(node.unprepare(TRAINER).await, "");
    let left = node.devices().await;
    let left: Vec<&str> = left.iter().map(|device| &*device.name).collect();
    assert_eq!(left, ["dra-1c3e57f184b6-0"]);
}

#[tokio::test]
async fn a_device_that_an_engine_has_lost_is_made_again_for_its_pod() {
    let node = Node::start(31_836);
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    node.lose_device("dra-0f5f57f184b6-0").await;
    let made = eventually("it is made again", async || {
        let devices = node.list().await?;
        devices.into_iter().next()
    });
    let made = made.await;
    assert_eq!(
        (&*made.tenant, &*made.owner),
        ("team-a", "team-a/trainer-0")
    );
    assert_eq!(made.share, 400);
}

/// By the socket of the driver, as a kubelet whose gate `ResourceHealthStatus` is on.
#[tokio::test]
async fn a_kubelet_is_told_how_the_devices_of_claims_are() {
    let mut node = Node::start(31_852);
    node.agent
        .allocate(TRAINER, "trainer-0", &["vdev-7", "vdev-3"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    node.agent.allocate(LOADER, "loader-0", &["vdev-3"]);
    assert_eq!(node.prepare(LOADER).await.error, "");
    let (good, bad) = (HealthStatus::Healthy, HealthStatus::Unhealthy);
    node.shows(&[("vdev-3", good), ("vdev-7", good)]).await;

    // The engine is away, and a driver goes on from what the one before it said: one device of each that claims have stands
    // still. Of vdev-3, which two claims have, the other does not.
    node.engine.abort();
    node.stop_driver().await;
    let stalled = DeviceHealth {
        devices: ["dra-0f5f57f184b6-0", "dra-0f5f57f184b6-1"]
            .map(|device| DeviceFault {
                reason: "DeviceStalled".to_owned(),
                device: device.to_owned(),
                pod: "team-a/trainer-0".to_owned(),
                ..DeviceFault::default()
            })
            .into(),
        ..DeviceHealth::default()
    };
    let file = weft_proto::engine::health_file(&node.at("engine.sock"));
    std::fs::write(file, stalled.encode_to_vec()).expect("it is ours");
    node.driver = start_driver(&node.home);
    node.shows(&[("vdev-3", good), ("vdev-7", bad)]).await;

    // The next engine has none of them: they are lost until programs open those that are made again.
    node.engine = start_engine(&node.home, 31_856);
    node.shows(&[("vdev-3", bad), ("vdev-7", bad)]).await;
    let _of_loader = node.open("dra-1c3e57f184b6-0").await;
    node.shows(&[("vdev-3", good), ("vdev-7", bad)]).await;
    let _of_trainer = node.open("dra-0f5f57f184b6-0").await;
    node.shows(&[("vdev-3", good), ("vdev-7", good)]).await;
}

/// A claim keeps its UID when its next pod comes.
#[tokio::test]
async fn a_device_that_an_earlier_pod_left_behind_is_not_given_to_the_next() {
    let node = Node::start(31_844);
    node.devices().await;
    let mut engine = weft_proto::engine::client(&node.at("engine.sock"));
    let left = CreateDeviceRequest {
        name: "dra-0f5f57f184b6-0".to_owned(),
        owner: "team-a/before".to_owned(),
        ..CreateDeviceRequest::default()
    };
    engine.create_device(left).await.expect("it is made");
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    let made = node.devices().await;
    assert_eq!((made.len(), &*made[0].owner), (1, "team-a/trainer-0"));
}

/// As when the program is killed after it has made the device.
#[tokio::test]
async fn a_device_whose_file_was_not_written_is_not_lost_and_its_claim_gets_one() {
    let mut node = Node::start(31_876);
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"]);
    let temporary = node.at("cdi/weft.dev-vdev_dra-0f5f57f184b6-0.tmp");
    std::fs::create_dir_all(&temporary).expect("it is ours");
    let refused = node.prepare(TRAINER).await.error;
    assert!(refused.contains("cannot be written"), "{refused}");
    let left = node.devices().await;
    assert_eq!(left.len(), 1);
    std::fs::remove_dir(&temporary).expect("it is ours");
    node.restart_driver().await;
    assert_eq!(node.prepare(TRAINER).await.error, "");
    let made = node.devices().await;
    assert_eq!((made.len(), &*made[0].owner), (1, "team-a/trainer-0"));
    assert_ne!(made[0].gid, left[0].gid);
    assert_eq!(node.container_path("dra-0f5f57f184b6-0"), "/dev/weft/weft0");
    // What is said from now on.
    let said = weft_proto::engine::health_file(&node.at("engine.sock"));
    let _ = std::fs::remove_file(said);
    node.says(&[]).await;
    node.shows(&[("vdev-7", HealthStatus::Healthy)]).await;
}

/// Devices by the resource and by claims are mounted at places of their own.
#[tokio::test]
async fn in_a_pod_with_devices_by_the_resource_those_of_its_claims_come_behind_them() {
    let node = Node::start(31_860);
    let by_resource = ["vdev-00001", "vdev-00003"];
    node.pods.set(&[
        pod("team-a", "trainer-0", &by_resource),
        pod(
            "team-a",
            "other",
            &["vdev-00000", "vdev-00002", "vdev-00004"],
        ),
        pod("team-b", "loader-0", &["vdev-00005"]),
    ]);
    node.agent
        .allocate(TRAINER, "trainer-0", &["vdev-7", "vdev-3"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    assert_eq!(node.container_path("dra-0f5f57f184b6-0"), "/dev/weft/weft2");
    assert_eq!(node.container_path("dra-0f5f57f184b6-1"), "/dev/weft/weft3");
    // Of another namespace is the pod of this name that has one.
    node.agent.allocate(LOADER, "loader-0", &["vdev-5"]);
    assert_eq!(node.prepare(LOADER).await.error, "");
    assert_eq!(node.container_path("dra-1c3e57f184b6-0"), "/dev/weft/weft0");
    // A device keeps its name as long as its claim is prepared, whatever the kubelet says.
    node.pods.set(&[]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    assert_eq!(node.container_path("dra-0f5f57f184b6-0"), "/dev/weft/weft2");
}

#[tokio::test]
async fn a_device_of_a_claim_that_an_engine_has_lost_is_unhealthy_until_a_program_opens_it() {
    let mut node = Node::start(31_864);
    let id = "dra-0f5f57f184b6-0";
    let lost = [[id, "DeviceLost", "team-a/trainer-0"]];
    let (good, bad) = (HealthStatus::Healthy, HealthStatus::Unhealthy);
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"]);
    assert_eq!(node.prepare(TRAINER).await.error, "");
    node.says(&[]).await;
    node.lose_device(id).await;
    node.says(&lost).await;
    node.shows(&[("vdev-7", bad)]).await;
    // The engine has made it again, so the next driver knows by what this one has said.
    assert_eq!(node.devices().await.len(), 1);
    node.restart_driver().await;
    node.shows(&[("vdev-7", bad)]).await;
    node.says(&lost).await;
    let program = node.open(id).await;
    node.says(&[]).await;
    node.shows(&[("vdev-7", good)]).await;
    drop(program);

    // Or until the claim ends.
    node.lose_device(id).await;
    node.says(&lost).await;
    assert_eq!(node.unprepare(TRAINER).await, "");
    node.says(&[]).await;
}

#[tokio::test]
async fn a_claim_of_more_devices_than_a_claim_can_have_is_refused() {
    let node = Node::start(31_868);
    node.agent.allocate(TRAINER, "trainer-0", &["vdev-7"; 33]);
    let refused = node.prepare(TRAINER).await.error;
    assert!(refused.contains("has 33 devices"), "{refused}");
    assert!(node.devices().await.is_empty());
}

/// As after a power cut, where the directory outlives it.
#[tokio::test]
async fn half_a_file_of_a_claims_device_is_removed() {
    let node = Node::start(31_872);
    let half = node.at("cdi/weft.dev-vdev_dra-0f5f57f184b6-0.json");
    std::fs::create_dir_all(node.at("cdi")).expect("it is ours");
    std::fs::write(&half, r#"{"cdiVersion": "0.6"#).expect("it is ours");
    let removed = eventually("it is removed", async || (!half.exists()).then_some(()));
    removed.await;
}
