//! The driver between a kubelet and an agent that a test plays. Each test has a mount namespace of its own.

#[path = "driver/alone.rs"]
mod alone;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use weft_proto::Message as _;
use weft_proto::volumes::v1::use_copy_request::Copy;
use weft_proto::volumes::v1::volumes_server::{Volumes, VolumesServer};
use weft_proto::volumes::v1::{InUse, UseCopyRequest, UseCopyResponse};
use weft_volume_driver::kubelet::csi;
use weft_volume_driver::kubelet::csi::identity_client::IdentityClient;
use weft_volume_driver::kubelet::csi::node_client::NodeClient;
use weft_volume_driver::kubelet::registration::registration_client::RegistrationClient;
use weft_volume_driver::kubelet::registration::{InfoRequest, RegistrationStatus};
use weft_volume_driver::{Config, DriverError, run};

use crate::alone::alone;

/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);
const VOLUME: &str = "csi-0123";

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it takes a moment")
}

/// An agent that knows the copy of job `minilm` once it is complete.
#[derive(Clone, Default)]
struct Agent {
    copy: Arc<Mutex<Option<UseCopyResponse>>>,
    in_use: PathBuf,
}

#[tonic::async_trait]
impl Volumes for Agent {
    async fn use_copy(
        &self,
        request: Request<UseCopyRequest>,
    ) -> Result<Response<UseCopyResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(request.copy, Some(Copy::Job("minilm".to_owned())));
        if request.namespace != "team-a" {
            return Err(Status::unavailable("the pod waits for TransferJob minilm"));
        }
        let copy = self.copy.lock().expect("no test panics here").clone();
        let copy =
            copy.ok_or_else(|| Status::unavailable("the pod waits for the verified copy"))?;
        let in_use = InUse {
            root: "models".to_owned(),
            path: copy.path.clone(),
            device: copy.device,
            inode: copy.inode,
        };
        fs::write(self.in_use.join(request.volume), in_use.encode_to_vec()).expect("it is ours");
        Ok(Response::new(copy))
    }
}

/// What stops it, and how it has ended.
type Driver = (oneshot::Sender<()>, JoinHandle<Result<(), DriverError>>);

/// A node with a driver, an agent, and what plays its kubelet.
struct TestNode {
    home: TempDir,
    agent: Agent,
    serving: Option<JoinHandle<()>>,
    driver: Option<Driver>,
}

impl TestNode {
    async fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        for directory in ["kubelet/plugins_registry", "volumes/in-use", "staging"] {
            fs::create_dir_all(home.path().join(directory)).expect("it is ours");
        }
        let models = home.path().join("host/var/lib/models/team-a/minilm");
        fs::create_dir_all(&models).expect("it is ours");
        fs::write(models.join("weights"), "w").expect("it is ours");
        let mut node = Self {
            agent: Agent {
                in_use: home.path().join("volumes/in-use"),
                ..Agent::default()
            },
            home,
            serving: None,
            driver: None,
        };
        node.start_agent();
        node.start_driver().await;
        node
    }

    fn at(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    fn start_agent(&mut self) {
        let listener = UnixListener::bind(self.at("volumes/agent.sock")).expect("it is ours");
        let server = VolumesServer::new(self.agent.clone());
        self.serving = Some(tokio::spawn(async move {
            let served = Server::builder()
                .add_service(server)
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.expect("it is served");
        }));
    }

    /// Waits until it serves.
    async fn start_driver(&mut self) {
        let config = Config {
            node: "node0".to_owned(),
            kubelet: self.at("kubelet"),
            volumes: self.at("volumes"),
            host: self.at("host"),
            allowed: vec!["/var/lib".into()],
            staging: self.at("staging"),
        };
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(run(config, async {
            let _ = stopped.await;
        }));
        self.driver = Some((stop, ended));
        soon(async {
            let probe = csi::ProbeRequest {};
            while IdentityClient::new(self.channel())
                .probe(probe)
                .await
                .is_err()
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn stop_driver(&mut self) {
        let (stop, ended) = self.driver.take().expect("it runs");
        stop.send(()).expect("it runs");
        soon(ended).await.expect("it ends").expect("as it was told");
    }

    fn channel(&self) -> Channel {
        let socket = self.at("kubelet/plugins_registry/weft@csi.weft.dev.sock");
        weft_proto::unix_channel(&socket, PATIENCE)
    }

    /// The job's copy is verified.
    fn complete(&self) {
        let copy = self.at("host/var/lib/models/team-a/minilm");
        let stat = fs::metadata(copy).expect("it is there");
        *self.agent.copy.lock().expect("no test panics here") = Some(UseCopyResponse {
            root_directory: "/var/lib/models".to_owned(),
            path: "team-a/minilm".to_owned(),
            device: stat.dev(),
            inode: stat.ino(),
        });
    }

    fn target(&self) -> PathBuf {
        self.at("kubelet/pods/uid-1/volumes/kubernetes.io~csi/model/mount")
    }

    async fn publish(&self, namespace: &str) -> Result<(), Status> {
        let context = [
            ("job", "minilm"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.uid", "uid-1"),
            ("csi.storage.k8s.io/pod.namespace", namespace),
        ];
        let context = context.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let request = csi::NodePublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            target_path: self.target().display().to_string(),
            volume_context: HashMap::from(context),
            ..csi::NodePublishVolumeRequest::default()
        };
        let mut driver = NodeClient::new(self.channel());
        soon(driver.node_publish_volume(request)).await.map(drop)
    }

    async fn unpublish(&self) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            target_path: self.target().display().to_string(),
        };
        let mut driver = NodeClient::new(self.channel());
        soon(driver.node_unpublish_volume(request)).await.map(drop)
    }

    fn shows(&self) -> Option<String> {
        fs::read_to_string(self.target().join("weights")).ok()
    }

    fn is_in_use(&self) -> bool {
        self.at("volumes/in-use").join(VOLUME).exists()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

fn mounts_at(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("Linux");
    let path = path.display().to_string();
    mounts
        .lines()
        .filter(|line| line.split(' ').any(|word| word == path))
        .count()
}

#[test]
fn a_volume_is_mounted_read_only_once_its_copy_is_verified() {
    alone(|| async {
        let node = TestNode::start().await;
        let waiting = node.publish("team-a").await.unwrap_err();
        assert_eq!(waiting.code(), Code::Unavailable);
        assert!(
            waiting.message().contains("waits for the verified copy"),
            "{waiting}"
        );
        assert!(!node.target().exists());
        node.complete();
        // Of the copy of another namespace it learns nothing.
        let refused = node.publish("team-b").await.unwrap_err();
        assert!(
            refused.message().contains("waits for TransferJob"),
            "{refused}"
        );
        assert_eq!(node.shows(), None);
        for _ in 0..2 {
            node.publish("team-a").await.unwrap();
            assert_eq!(node.shows().as_deref(), Some("w"));
            assert_eq!(mounts_at(&node.target()), 1);
        }
        let written = fs::write(node.target().join("weights"), "x").unwrap_err();
        assert_eq!(written.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(node.is_in_use());
        assert_eq!(fs::read_dir(node.at("staging")).unwrap().count(), 0);
        for _ in 0..2 {
            node.unpublish().await.unwrap();
            assert!(!node.target().exists() && !node.is_in_use());
            assert_eq!(mounts_at(&node.target()), 0);
        }
    });
}

#[test]
fn what_others_see_of_a_volume_is_read_only_too_and_goes_with_it() {
    alone(|| async {
        let node = TestNode::start().await;
        node.complete();
        // As the node sees the driver's mounts (mountPropagation: Bidirectional).
        let (driver, others) = (node.at("kubelet"), node.at("others"));
        fs::create_dir(&others).unwrap();
        let bind = |from: &Path, to: &Path| {
            mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        };
        bind(&driver, &driver);
        let shared = MsFlags::MS_SHARED;
        mount(None::<&str>, &driver, None::<&str>, shared, None::<&str>).unwrap();
        bind(&driver, &others);
        node.publish("team-a").await.unwrap();
        let seen = others.join("pods/uid-1/volumes/kubernetes.io~csi/model/mount/weights");
        assert_eq!(fs::read_to_string(&seen).unwrap(), "w");
        let written = fs::write(&seen, "x").unwrap_err();
        assert_eq!(written.kind(), io::ErrorKind::ReadOnlyFilesystem);
        node.unpublish().await.unwrap();
        assert!(!seen.exists());
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains("kubernetes.io~csi"), "{mounts}");
    });
}

#[test]
fn a_driver_that_was_restarted_unmounts_and_keeps_what_is_mounted_though_no_agent_runs() {
    alone(|| async {
        let mut node = TestNode::start().await;
        node.complete();
        node.publish("team-a").await.unwrap();
        node.stop_driver().await;
        assert_eq!(node.shows().as_deref(), Some("w"));
        node.serving.take().unwrap().abort();
        fs::remove_file(node.at("volumes/agent.sock")).unwrap();
        node.start_driver().await;
        // As a kubelet that was restarted, too.
        node.publish("team-a").await.unwrap();
        assert_eq!(mounts_at(&node.target()), 1);
        node.unpublish().await.unwrap();
        assert!(!node.target().exists() && !node.is_in_use());
        // Another pod waits for the agent, and its event says so.
        let waiting = node.publish("team-a").await.unwrap_err();
        assert_eq!(waiting.code(), Code::Unavailable);
        assert!(
            waiting.message().contains("waits for the node's agent"),
            "{waiting}"
        );
        node.start_agent();
        node.publish("team-a").await.unwrap();
        assert_eq!(node.shows().as_deref(), Some("w"));
    });
}

#[test]
fn a_copy_of_one_file_is_a_volume_of_that_file() {
    alone(|| async {
        let node = TestNode::start().await;
        let file = node.at("host/var/lib/models/team-a/minilm/weights");
        let stat = fs::metadata(file).unwrap();
        *node.agent.copy.lock().unwrap() = Some(UseCopyResponse {
            root_directory: "/var/lib/models".to_owned(),
            path: "team-a/minilm/weights".to_owned(),
            device: stat.dev(),
            inode: stat.ino(),
        });
        node.publish("team-a").await.unwrap();
        assert_eq!(fs::read_to_string(node.target()).unwrap(), "w");
        node.unpublish().await.unwrap();
        assert!(!node.target().exists());
    });
}

#[test]
fn what_has_taken_the_place_of_a_copy_is_not_mounted() {
    alone(|| async {
        let node = TestNode::start().await;
        node.complete();
        let copy = node.at("host/var/lib/models/team-a/minilm");
        fs::rename(&copy, node.at("host/away")).unwrap();
        fs::create_dir(&copy).unwrap();
        let refused = node.publish("team-a").await.unwrap_err();
        assert!(
            refused
                .message()
                .contains("is another file than the agent's"),
            "{refused}"
        );
        assert!(!node.target().exists() && !node.is_in_use());
    });
}

#[test]
fn a_volume_that_cannot_be_mounted_is_not_in_use_and_is_tried_again() {
    alone(|| async {
        let node = TestNode::start().await;
        node.complete();
        let occupied = node.at("staging").join(VOLUME);
        fs::create_dir_all(occupied.join("by another")).unwrap();
        let refused = node.publish("team-a").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(!node.target().exists() && !node.is_in_use());
        fs::remove_dir_all(occupied).unwrap();
        node.publish("team-a").await.unwrap();
        assert!(node.is_in_use());
    });
}

#[test]
fn a_kubelet_registers_the_driver_at_its_own_socket_or_the_driver_ends() {
    alone(|| async {
        let mut node = TestNode::start().await;
        let mut registration = RegistrationClient::new(node.channel());
        let info = soon(registration.get_info(InfoRequest {}))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            (&*info.r#type, &*info.name, &*info.endpoint),
            ("CSIPlugin", "csi.weft.dev", "")
        );
        assert_eq!(info.supported_versions, ["1.0.0"]);
        let mut driver = NodeClient::new(node.channel());
        let told = soon(driver.node_get_info(csi::NodeGetInfoRequest {}))
            .await
            .unwrap();
        assert_eq!(told.into_inner().node_id, "node0");
        let status = |plugin_registered, error: &str| RegistrationStatus {
            plugin_registered,
            error: error.to_owned(),
        };
        let taken = soon(registration.notify_registration_status(status(true, ""))).await;
        taken.unwrap();
        // The answer may not come any more.
        let _ = soon(registration.notify_registration_status(status(false, "taken"))).await;
        let (_stop, ended) = node.driver.take().unwrap();
        let ended = soon(ended).await.unwrap().unwrap_err();
        assert!(ended.to_string().contains("taken"), "{ended}");
        assert!(
            !node
                .at("kubelet/plugins_registry/weft@csi.weft.dev.sock")
                .exists()
        );
    });
}
