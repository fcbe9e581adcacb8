//! What the kubelet calls to mount and unmount volumes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use weft_proto::Message as _;
use weft_proto::volumes::v1::volumes_client::VolumesClient;
use weft_proto::volumes::v1::{InUse, UseCopyRequest};
use weft_proto::volumes::{IN_USE, SOCKET, is_id};

use crate::calls::{CallState, Calls, MountCall};
use crate::fail_fast::{blocking, run_to_end};
use crate::kubelet::csi as proto;
use crate::kubelet::csi::node_server::Node;
use crate::kubelet::csi::volume_capability::AccessType;
use crate::target::Target;
use crate::{Config, copy, mounts};

/// The agent looks at each file of the copy, a million at most. The kubelet waits two minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// The volumes of this node's pods.
#[derive(Debug, Clone)]
pub(crate) struct NodeService {
    config: Arc<Config>,
    agent: VolumesClient<Channel>,
    calls: Arc<Calls>,
}

impl NodeService {
    /// To be called within a runtime of tokio.
    pub(crate) fn new(config: Config) -> Self {
        let channel = weft_proto::unix_channel(&config.volumes.join(SOCKET), ANSWER_TIMEOUT);
        Self {
            config: Arc::new(config),
            agent: VolumesClient::new(channel),
            calls: Arc::default(),
        }
    }

    async fn publish(&self, request: proto::NodePublishVolumeRequest) -> Result<(), Status> {
        let proto::NodePublishVolumeRequest {
            volume_id: volume,
            target_path,
            volume_capability,
            volume_context,
            ..
        } = request;
        check_id(&volume)?;
        let target = Target::parse(&self.config.kubelet, &target_path)?;
        let kind = volume_capability.and_then(|capability| capability.access_type);
        if let Some(AccessType::Block(_)) = kind {
            return Err(Status::invalid_argument(
                "a copy is no block device: mount it",
            ));
        }
        let (namespace, wanted) = copy::of_attributes(&volume_context, &target.pod_uid)?;
        let call = self.calls.mount(&volume).await;
        let service = self.clone();
        run_to_end(async move {
            // A kubelet that was restarted asks again; the pod runs, and needs neither agent nor operator.
            if service.is_mounted(&volume, &target).await {
                return Ok(());
            }
            let request = UseCopyRequest {
                volume: volume.clone(),
                namespace: namespace.clone(),
                copy: Some(wanted),
            };
            let found = match service.agent.clone().use_copy(request).await {
                Ok(answer) => answer.into_inner(),
                Err(status) => {
                    call.fail().await;
                    return Err(of_agent(status));
                }
            };
            let (path, root) = (found.path.clone(), found.root_directory.clone());
            let (config, of_pod) = (Arc::clone(&service.config), namespace.clone());
            let open = move || {
                let copy = copy::open(&config.host, &config.allowed, &of_pod, &found)?;
                Ok(move |staging: &Path, target: &Path| mounts::mount(&copy, staging, target))
            };
            service.mount(call, &volume, target, open).await?;
            tracing::info!(volume, namespace, root, path, "mounted");
            Ok(())
        })
        .await
    }

    /// Whether the volume shows what the agent has written down that it shows.
    async fn is_mounted(&self, volume: &str, target: &Target) -> bool {
        let (in_use, target) = (self.in_use(volume), target.path.clone());
        let look = move || {
            let in_use = InUse::decode(fs::read(in_use).ok()?.as_slice()).ok()?;
            let there = fs::metadata(target).ok()?;
            Some((there.dev(), there.ino()) == (in_use.device, in_use.inode))
        };
        blocking(look).await.ok().flatten().unwrap_or(false)
    }

    /// Opens a copy, which gives what mounts it by way of a staging directory at the target. It is mounted unless another call has
    /// decided otherwise by then.
    async fn mount<M: FnOnce(&Path, &Path) -> io::Result<()>>(
        &self,
        call: MountCall,
        volume: &str,
        target: Target,
        open: impl FnOnce() -> Result<M, Status> + Send + 'static,
    ) -> Result<(), Status> {
        let (staging, in_use) = (self.config.staging.join(volume), self.in_use(volume));
        blocking(move || {
            // It may take as long as a root's file system hangs, and the volume can be unmounted meanwhile.
            let copy = open();
            let (mut last, state) = call.lock();
            match state {
                CallState::Last => {}
                CallState::Replaced => {
                    let text =
                        "the kubelet has called again meanwhile, and that call mounts the volume";
                    return Err(Status::unavailable(text));
                }
                CallState::Unmounted => {
                    give_back(&in_use)?;
                    let text = "the volume was unmounted, or another call has failed, before its copy was opened";
                    return Err(Status::unavailable(text));
                }
            }
            let mounted = copy.and_then(|mount| {
                let mounted = mounts::remove(&target.path);
                let mounted = mounted.and_then(|()| mount(&staging, &target.path));
                mounted.map_err(|error| failed("mounted", &target.path, &error))
            });
            // The kubelet may never unmount what it has not mounted.
            if mounted.is_err() {
                last.fail();
            }
            if mounted.is_err() && mounts::remove(&target.path).is_ok() {
                give_back(&in_use)?;
            }
            mounted
        })
        .await?
    }

    async fn unpublish(&self, request: proto::NodeUnpublishVolumeRequest) -> Result<(), Status> {
        let volume = request.volume_id;
        check_id(&volume)?;
        let target = Target::parse(&self.config.kubelet, &request.target_path)?.path;
        let in_use = self.in_use(&volume);
        let locked = self.calls.unmount(&volume).await;
        let unmount = move || {
            let _locked = locked;
            mounts::remove(&target).map_err(|error| failed("unmounted", &target, &error))?;
            // Last.
            give_back(&in_use)
        };
        blocking(unmount).await??;
        tracing::info!(volume, "unmounted");
        Ok(())
    }

    /// The file that says that a volume shows a copy.
    fn in_use(&self, volume: &str) -> PathBuf {
        self.config.volumes.join(IN_USE).join(volume)
    }
}

/// Says that a volume shows nothing any more: from then on the copy may be removed.
fn give_back(in_use: &Path) -> Result<(), Status> {
    match fs::remove_file(in_use) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("given back", in_use, &error))
        }
        _ => Ok(()),
    }
}

fn check_id(volume: &str) -> Result<(), Status> {
    match is_id(volume) {
        true => Ok(()),
        false => Err(Status::invalid_argument(
            "volume_id: is no id of the kubelet's",
        )),
    }
}

/// The kubelet calls again, and unmounts the volume of a pod that is deleted: after `Internal` it would do neither.
fn failed(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::unavailable(format!(
        "{}: the volume cannot be {what}: {error}",
        path.display()
    ))
}

/// What the agent says, or that it says nothing.
fn of_agent(status: Status) -> Status {
    // Of tonic's own, where there is no connection; an agent's answer has none.
    match std::error::Error::source(&status) {
        None => status,
        Some(_) => Status::unavailable(
            "the pod waits for the node's agent, which does not answer: is the node of a fabric (kubectl get fabricnodes), and \
             does its weft-agent run?",
        ),
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Result<Response<proto::NodePublishVolumeResponse>, Status> {
        let published = self.publish(request.into_inner()).await;
        published.inspect_err(|status| tracing::info!("not mounted: {}", status.message()))?;
        Ok(Response::new(proto::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<proto::NodeUnpublishVolumeResponse>, Status> {
        let unpublished = self.unpublish(request.into_inner()).await;
        unpublished.inspect_err(|status| tracing::warn!("{}", status.message()))?;
        Ok(Response::new(proto::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Result<Response<proto::NodeGetInfoResponse>, Status> {
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: self.config.node.clone(),
            ..proto::NodeGetInfoResponse::default()
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<proto::NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(proto::NodeGetCapabilitiesResponse::default()))
    }

    async fn node_stage_volume(
        &self,
        _: Request<proto::NodeStageVolumeRequest>,
    ) -> Result<Response<proto::NodeStageVolumeResponse>, Status> {
        Err(unsupported())
    }

    async fn node_unstage_volume(
        &self,
        _: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Result<Response<proto::NodeUnstageVolumeResponse>, Status> {
        Err(unsupported())
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        Err(unsupported())
    }

    async fn node_expand_volume(
        &self,
        _: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        Err(unsupported())
    }
}

fn unsupported() -> Status {
    Status::unimplemented("it is not among the driver's capabilities")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::future::ready;
    use std::pin::pin;
    use std::sync::mpsc;

    use tempfile::TempDir;
    use tokio::net::UnixListener;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::alone::alone;
    use crate::copy::OpenCopy;
    use crate::eventually::eventually;

    const VOLUME: &str = "csi-0123";

    type Answered = Result<(), Status>;

    /// A node with one copy, and an agent that says that the volume shows it.
    struct TestNode {
        home: TempDir,
        service: Arc<NodeService>,
    }

    impl TestNode {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let at = |path: &str| home.path().join(path);
            for directory in ["volumes/in-use", "staging", "copy"] {
                fs::create_dir_all(at(directory)).unwrap();
            }
            fs::write(at("copy/weights"), "w").unwrap();
            fs::write(at("volumes/in-use").join(VOLUME), "").unwrap();
            let config = Config {
                node: "node0".to_owned(),
                kubelet: at("kubelet"),
                volumes: at("volumes"),
                host: at("host"),
                allowed: Vec::new(),
                staging: at("staging"),
            };
            let service = Arc::new(NodeService::new(config));
            Self { home, service }
        }

        fn target(&self) -> Target {
            let path = "kubelet/pods/uid-1/volumes/kubernetes.io~csi/model/mount";
            let path = self.home.path().join(path);
            let kubelet = self.home.path().join("kubelet");
            Target::parse(&kubelet, path.to_str().unwrap()).unwrap()
        }

        /// The work of a call, which opens the copy when it is told how that goes.
        fn work(&self, call: MountCall) -> (mpsc::Sender<Answered>, JoinHandle<Answered>) {
            let (answer, held) = mpsc::channel::<Answered>();
            let (service, target) = (Arc::clone(&self.service), self.target());
            let copy = self.home.path().join("copy");
            let open = move || {
                // A test that fails says nothing.
                held.recv().unwrap_or_else(|_| Err(unsupported()))?;
                let file = File::open(copy).unwrap();
                let copy = OpenCopy {
                    file,
                    is_directory: true,
                };
                Ok(move |staging: &Path, target: &Path| mounts::mount(&copy, staging, target))
            };
            let work = async move { service.mount(call, VOLUME, target, open).await };
            (answer, tokio::spawn(work))
        }

        /// The kubelet's call for a pod that wants the copy of a job.
        fn request(&self) -> proto::NodePublishVolumeRequest {
            let context = [
                ("job", "minilm"),
                ("csi.storage.k8s.io/ephemeral", "true"),
                ("csi.storage.k8s.io/pod.uid", "uid-1"),
                ("csi.storage.k8s.io/pod.namespace", "team-a"),
            ];
            let context = context.map(|(name, value)| (name.to_owned(), value.to_owned()));
            proto::NodePublishVolumeRequest {
                volume_id: VOLUME.to_owned(),
                target_path: self.target().path.display().to_string(),
                volume_context: context.into(),
                ..proto::NodePublishVolumeRequest::default()
            }
        }

        async fn unpublish(&self) {
            let request = proto::NodeUnpublishVolumeRequest {
                volume_id: VOLUME.to_owned(),
                target_path: self.target().path.display().to_string(),
            };
            self.service.unpublish(request).await.unwrap();
        }

        /// Whether the volume shows the copy, and whether it is said to.
        fn shows(&self) -> [bool; 2] {
            let weights = self.target().path.join("weights");
            [weights.exists(), self.service.in_use(VOLUME).exists()]
        }
    }

    #[test]
    fn a_copy_that_is_open_only_after_its_volume_was_unmounted_is_not_mounted() {
        alone(|| async {
            let node = TestNode::new();
            let call = node.service.calls.mount(VOLUME).await;
            let (root, late) = node.work(call);
            node.unpublish().await;
            // As an agent that was slow, too.
            fs::write(node.service.in_use(VOLUME), "").unwrap();
            root.send(Ok(())).unwrap();
            let refused = late.await.unwrap().unwrap_err();
            assert!(refused.message().contains("was unmounted"), "{refused}");
            assert!(!node.target().path.exists());
            assert_eq!(node.shows(), [false, false]);
        });
    }

    #[test]
    fn a_call_that_is_late_gives_back_what_the_one_after_it_could_not_mount() {
        alone(|| async {
            let node = TestNode::new();
            let first = node.service.calls.mount(VOLUME).await;
            let second = node.service.calls.mount(VOLUME).await;
            let (root, late) = node.work(first);
            // Its agent refuses.
            second.fail().await;
            root.send(Ok(())).unwrap();
            late.await.unwrap().unwrap_err();
            assert_eq!(node.shows(), [false, false]);
        });
    }

    #[test]
    fn of_two_calls_that_mount_a_volume_the_last_one_decides() {
        alone(|| async {
            for answer in [Ok(()), Err(Status::unavailable("the root is away"))] {
                let node = TestNode::new();
                let first = node.service.calls.mount(VOLUME).await;
                let second = node.service.calls.mount(VOLUME).await;
                let (root, late) = node.work(first);
                let (other, done) = node.work(second);
                other.send(Ok(())).unwrap();
                done.await.unwrap().unwrap();
                assert_eq!(node.shows(), [true, true]);
                root.send(answer).unwrap();
                let refused = late.await.unwrap().unwrap_err();
                assert!(refused.message().contains("has called again"), "{refused}");
                assert_eq!(node.shows(), [true, true]);
                node.unpublish().await;
                assert_eq!(node.shows(), [false, false]);
            }
        });
    }

    #[test]
    fn a_call_that_the_kubelet_gives_up_ends_all_the_same() {
        alone(|| async {
            let node = TestNode::new();
            let first = Arc::new(node.service.calls.mount(VOLUME).await);
            let agent = UnixListener::bind(node.home.path().join("volumes").join(SOCKET)).unwrap();
            let (service, request) = (Arc::clone(&node.service), node.request());
            let second = tokio::spawn(async move { service.publish(request).await });
            let (connection, _) = agent.accept().await.unwrap();
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
            // The agent goes, too.
            drop((agent, connection));
            eventually("the second call has failed", || async {
                let first = Arc::clone(&first);
                let state = blocking(move || first.lock().1).await.unwrap();
                (state == CallState::Unmounted).then_some(())
            })
            .await;
            let (root, late) = node.work(Arc::into_inner(first).unwrap());
            root.send(Ok(())).unwrap();
            late.await.unwrap().unwrap_err();
            assert_eq!(node.shows(), [false, false]);
        });
    }

    #[test]
    fn a_call_waits_while_the_one_before_it_changes_the_volume() {
        alone(|| async {
            let node = TestNode::new();
            let call = node.service.calls.mount(VOLUME).await;
            let (begins, has_begun) = oneshot::channel();
            let (go_on, held) = mpsc::channel();
            let mount = move |_: &Path, _: &Path| {
                begins
                    .send(())
                    .map_err(|()| io::Error::other("nobody waits"))?;
                held.recv().map_err(io::Error::other)
            };
            let (service, target) = (Arc::clone(&node.service), node.target());
            let first = tokio::spawn(async move {
                let open = || Ok(mount);
                service.mount(call, VOLUME, target, open).await
            });
            has_begun.await.unwrap();
            let mut second = pin!(node.service.calls.unmount(VOLUME));
            tokio::select! {
                biased;
                _ = &mut second => panic!("two calls change one volume"),
                () = ready(()) => {}
            }
            go_on.send(()).unwrap();
            first.await.unwrap().unwrap();
            drop(second.await);
        });
    }
}
