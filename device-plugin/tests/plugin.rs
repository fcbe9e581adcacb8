//! The plugin between a kubelet that a test plays and a real engine.

mod pods;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use weft_device_plugin::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use weft_device_plugin::kubelet::device_plugin::registration_server::{
    Registration, RegistrationServer,
};
use weft_device_plugin::kubelet::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty, HEALTHY,
    ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use weft_device_plugin::kubelet::pod_resources::PodResources;
use weft_device_plugin::{Config, Flags, kubelet, run};
use weft_engine::{EngineConfig, PortRange, Secret};
use weft_node_engine::Shutdown;
use weft_proto::Message as _;
use weft_proto::engine::v1::{Device, DeviceHealth, ListDevicesRequest, RefusedAttempts};

use crate::pods::{Pods, RESOURCE, pod};

/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

type Channel = tonic::transport::Channel;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it takes a moment")
}

/// What the kubelet is told and says.
#[derive(Clone)]
struct Kubelet {
    registered: mpsc::Sender<RegisterRequest>,
    pods: Pods,
}

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let _ = self.registered.send(request.into_inner()).await;
        Ok(Response::new(Empty {}))
    }
}

/// A node with an engine, a plugin, and what plays its kubelet.
struct Node {
    home: TempDir,
    kubelet: Kubelet,
    registrations: mpsc::Receiver<RegisterRequest>,
    flags: watch::Sender<Flags>,
    registration_server: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.registration_server.abort();
        self.others.iter().for_each(JoinHandle::abort);
    }
}

impl Node {
    async fn start(first_port: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(home.path().join("device-plugins")).expect("it is ours");
        let (registered, registrations) = mpsc::channel(8);
        let kubelet = Kubelet {
            registered,
            pods: Pods::default(),
        };
        let pods = kubelet.pods.serve(&home.path().join("pod-resources"));
        let (flags, _) = watch::channel(Flags {
            count: 4,
            cap_bps: 400_000_000,
            namespaces: vec!["team-a".to_owned()],
            numa_node: Some(1),
            ..Flags::default()
        });
        let mut node = Self {
            registration_server: serve_registrations(&home, &kubelet),
            home,
            kubelet,
            registrations,
            flags,
            others: vec![pods],
        };
        node.start_engine(first_port);
        node.start_plugin();
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn start_engine(&mut self, first: u16) {
        let ports = PortRange { first, count: 1 };
        let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([7; 32]));
        let (socket, devices) = (self.at("engine.sock"), self.at("devices"));
        self.others.push(tokio::spawn(async move {
            let stopped = std::future::pending::<Shutdown>();
            let served = weft_node_engine::serve(&socket, &devices, config, 1, Vec::new(), stopped);
            served.await.expect("it serves");
        }));
    }

    fn start_plugin(&mut self) {
        let config = Config {
            engine: self.at("engine.sock"),
            directory: self.at("devices"),
            device_plugins: Some(self.at("device-plugins")),
            by_claims: None,
            pod_resources: self.at("pod-resources"),
            own_pod: None,
            cdi: self.at("cdi"),
            libraries: "/opt/weft/lib".into(),
            hook: None,
            resource: RESOURCE.to_owned(),
        };
        let flags = self.flags.subscribe();
        self.others.push(tokio::spawn(async move {
            let served = run(config, flags, std::future::pending());
            served.await.expect("it serves");
        }));
    }

    /// The plugin, as it registers next.
    async fn registered(&mut self) -> DevicePluginClient<Channel> {
        let request = soon(self.registrations.recv()).await.expect("it registers");
        assert_eq!(request.resource_name, RESOURCE);
        assert_eq!(request.version, "v1beta1");
        let options = request.options.expect("it says what it can");
        assert!(options.pre_start_required && options.get_preferred_allocation_available);
        let socket = self.at("device-plugins").join(request.endpoint);
        DevicePluginClient::new(kubelet::channel(&socket))
    }

    /// As a kubelet that starts: the sockets of all plugins are gone, and there is another one of its own.
    fn restart_kubelet(&mut self) {
        self.registration_server.abort();
        let sockets = std::fs::read_dir(self.at("device-plugins")).expect("it is there");
        for socket in sockets {
            std::fs::remove_file(socket.expect("it is there").path()).expect("it is ours");
        }
        self.registration_server = serve_registrations(&self.home, &self.kubelet);
    }

    fn set_pods(&self, pods: &[PodResources]) {
        self.kubelet.pods.set(pods);
    }

    async fn devices(&self) -> Vec<Device> {
        let mut engine = weft_proto::engine::client(&self.at("engine.sock"));
        let listed = engine.list_devices(ListDevicesRequest {}).await;
        listed.expect("it answers").into_inner().devices
    }
}

fn serve_registrations(home: &TempDir, kubelet: &Kubelet) -> JoinHandle<()> {
    let socket = home.path().join("device-plugins/kubelet.sock");
    let listener = UnixListener::bind(socket).expect("it is ours");
    let server = RegistrationServer::new(kubelet.clone());
    tokio::spawn(async move {
        let served = Server::builder()
            .add_service(server)
            .serve_with_incoming(UnixListenerStream::new(listener));
        served.await.expect("it is served");
    })
}

async fn watch_list(plugin: &mut DevicePluginClient<Channel>) -> Streaming<ListAndWatchResponse> {
    let lists = plugin.list_and_watch(Empty {}).await;
    lists.expect("it answers").into_inner()
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn a_container_gets_devices_of_its_own_whenever_it_starts() {
    let mut node = Node::start(31_820).await;
    let mut plugin = node.registered().await;
    let mut lists = watch_list(&mut plugin).await;
    let list = soon(lists.message()).await.expect("it goes on");
    let list = list.expect("a list").devices;
    let names: Vec<&str> = list.iter().map(|device| device.id.as_str()).collect();
    assert_eq!(
        names,
        ["vdev-00000", "vdev-00001", "vdev-00002", "vdev-00003"]
    );
    assert!(list.iter().all(|device| device.health == HEALTHY));

    let of_container = ["vdev-00002", "vdev-00001"];
    let allocate = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: ids(&of_container),
        }],
    };
    let allocated = plugin.allocate(allocate).await.expect("it is allocated");
    let allocated = allocated.into_inner().container_responses.remove(0);
    let names: Vec<String> = allocated
        .cdi_devices
        .into_iter()
        .map(|it| it.name)
        .collect();
    assert_eq!(
        names,
        ["weft.dev/vdev=vdev-00001", "weft.dev/vdev=vdev-00002"]
    );
    let file = std::fs::read_to_string(node.at("cdi/weft.dev-vdev_vdev-00002.json"));
    assert!(file.expect("it is written").contains("/dev/weft/weft1"));
    // The kubelet makes nothing of the engine's yet.
    assert!(node.devices().await.is_empty());

    let start = || PreStartContainerRequest {
        devices_ids: ids(&of_container),
    };
    let refused = plugin.pre_start_container(start()).await;
    let refused = refused.expect_err("no pod has them");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused
            .message()
            .contains("vdev-00001: the kubelet lists no container")
    );

    // A pod of a namespace to which the fabric gives no devices.
    node.set_pods(&[pod("team-b", "trainer-0", &of_container)]);
    let refused = plugin.pre_start_container(start()).await;
    let refused = refused.expect_err("its namespace is not listed");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let text = "pods of namespace team-b may have no RDMA device here: spec.devices.namespaces";
    assert!(refused.message().starts_with(text), "{refused}");
    assert!(node.devices().await.is_empty());

    node.set_pods(&[pod("team-a", "trainer-0", &of_container)]);
    let started = plugin.pre_start_container(start()).await;
    started.expect("they are made");
    let first = node.devices().await;
    for (device, name) in first.iter().zip(["vdev-00001", "vdev-00002"]) {
        assert_eq!(device.name, name);
        assert_eq!(
            (&*device.tenant, &*device.owner),
            ("team-a", "team-a/trainer-0")
        );
        assert_eq!(device.cap_bps, 400_000_000);
    }
    // The agent reads that all are well.
    let health = std::fs::read(node.at("device-plugin.health")).expect("it is written");
    let health = DeviceHealth::decode(&*health).expect("it is whole");
    let nothing = DeviceHealth {
        refused: Some(RefusedAttempts::default()),
        ..DeviceHealth::default()
    };
    assert_eq!(health, nothing);
    // The container has ended and is started again.
    let started = plugin.pre_start_container(start()).await;
    started.expect("they are made");
    let second = node.devices().await;
    assert_eq!(second.len(), 2);
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(first.name, second.name);
        assert_ne!(first.gid, second.gid);
    }
}

#[tokio::test]
async fn devices_are_at_the_numa_node_of_the_interface_and_the_first_free_ones_are_preferred() {
    let mut node = Node::start(31_848).await;
    let mut plugin = node.registered().await;
    let mut lists = watch_list(&mut plugin).await;
    let list = soon(lists.message()).await.expect("it goes on");
    for device in list.expect("a list").devices {
        let nodes = device.topology.expect("it has one").nodes;
        let nodes: Vec<i64> = nodes.iter().map(|node| node.id).collect();
        assert_eq!(nodes, [1], "{}", device.id);
    }
    let container = |available: &[&str], must: &[&str], size| ContainerPreferredAllocationRequest {
        available_device_i_ds: ids(available),
        must_include_device_i_ds: ids(must),
        allocation_size: size,
    };
    // In any order, as the kubelet has them.
    let free = ["vdev-00003", "vdev-00001", "vdev-00002"];
    let request = PreferredAllocationRequest {
        container_requests: vec![
            container(&free, &[], 2),
            container(&free, &["vdev-00003"], 2),
            container(&free, &[], 9),
        ],
    };
    let preferred = plugin.get_preferred_allocation(request).await;
    let preferred = preferred.expect("it answers").into_inner();
    let preferred = preferred.container_responses.into_iter();
    let preferred: Vec<Vec<String>> = preferred.map(|it| it.device_i_ds).collect();
    let wanted = [
        ids(&["vdev-00001", "vdev-00002"]),
        ids(&["vdev-00003", "vdev-00001"]),
        ids(&["vdev-00001", "vdev-00002", "vdev-00003"]),
    ];
    assert_eq!(preferred, wanted);
}

#[tokio::test]
async fn other_flags_change_the_list_and_the_next_devices_and_not_the_registration() {
    let mut node = Node::start(31_880).await;
    let mut plugin = node.registered().await;
    let mut lists = watch_list(&mut plugin).await;
    let list = soon(lists.message()).await.expect("it goes on");
    assert_eq!(list.expect("a list").devices.len(), 4);
    node.flags.send_replace(Flags {
        count: 1,
        cap_bps: 800_000_000,
        share: 400,
        namespaces: vec!["team-b".to_owned()],
        ..Flags::default()
    });
    let list = soon(lists.message()).await.expect("it goes on");
    let list = list.expect("a list").devices;
    let [device] = list.as_slice() else {
        panic!("{list:?}")
    };
    assert_eq!((&*device.id, &device.topology), ("vdev-00000", &None));

    let had_before = ["vdev-00003"];
    let start = || PreStartContainerRequest {
        devices_ids: ids(&had_before),
    };
    node.set_pods(&[pod("team-a", "trainer-0", &had_before)]);
    let refused = plugin.pre_start_container(start()).await;
    let refused = refused.expect_err("its namespace is not listed any more");
    assert_eq!(refused.code(), Code::PermissionDenied);
    node.set_pods(&[pod("team-b", "trainer-0", &had_before)]);
    let started = plugin.pre_start_container(start()).await;
    started.expect("it is made");
    let made = node.devices().await;
    let made: Vec<(&str, u64, u32)> = made
        .iter()
        .map(|device| (&*device.name, device.cap_bps, device.share))
        .collect();
    assert_eq!(made, [("vdev-00003", 800_000_000, 400)]);
    let again = node.registrations.try_recv();
    assert!(again.is_err(), "{again:?}");
}

#[tokio::test]
async fn every_kubelet_that_starts_gets_a_registration() {
    let mut node = Node::start(31_824).await;
    node.set_pods(&[pod("team-a", "trainer-0", &["vdev-00003"])]);
    let mut plugin = node.registered().await;
    let mut lists = watch_list(&mut plugin).await;
    let list = soon(lists.message()).await;
    assert!(list.expect("it goes on").is_some());
    for _ in 0..20 {
        node.restart_kubelet();
        // The list of the kubelet that is gone ends.
        let ended = soon(lists.message()).await;
        assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
        plugin = node.registered().await;
        lists = watch_list(&mut plugin).await;
        let list = soon(lists.message()).await;
        assert!(list.expect("it goes on").is_some());
    }
    // A kubelet that watches the list no more knows no device of the plugin.
    drop(lists);
    let mut plugin = node.registered().await;
    let mut lists = watch_list(&mut plugin).await;
    let list = soon(lists.message()).await;
    assert!(list.expect("it goes on").is_some());
    // A pod that had its device before finds what its container starts with.
    assert!(node.at("cdi/weft.dev-vdev_vdev-00003.json").is_file());
}
