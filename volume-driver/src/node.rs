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
use weft_proto::volumes::v1::{InUse, UseCopyRequest, UseCopyResponse};
use weft_proto::volumes::{IN_USE, SOCKET, is_id};

use crate::kubelet::csi as proto;
use crate::kubelet::csi::node_server::Node;
use crate::kubelet::csi::volume_capability::AccessType;
use crate::target::Target;
use crate::{Config, copy, mounts};

/// The agent looks at each file of the copy, a million at most. The kubelet waits two minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// The volumes of this node's pods.
#[derive(Debug)]
pub(crate) struct NodeService {
    config: Arc<Config>,
    agent: VolumesClient<Channel>,
}

impl NodeService {
    /// To be called within a runtime of tokio.
    pub(crate) fn new(config: Config) -> Self {
        let channel = weft_proto::unix_channel(&config.volumes.join(SOCKET), ANSWER_TIMEOUT);
        Self {
            config: Arc::new(config),
            agent: VolumesClient::new(channel),
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
        // A kubelet that was restarted asks again; the pod runs, and needs neither agent nor operator.
        if self.is_mounted(&volume, &target).await {
            return Ok(());
        }
        let request = UseCopyRequest {
            volume: volume.clone(),
            namespace: namespace.clone(),
            copy: Some(wanted),
        };
        let answer = self.agent.clone().use_copy(request).await;
        let found = answer.map_err(of_agent)?.into_inner();
        let (path, root) = (found.path.clone(), found.root_directory.clone());
        self.mount(&volume, &namespace, target, found).await?;
        tracing::info!(volume, namespace, root, path, "mounted");
        Ok(())
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

    async fn mount(
        &self,
        volume: &str,
        namespace: &str,
        target: Target,
        found: UseCopyResponse,
    ) -> Result<(), Status> {
        let (config, in_use) = (Arc::clone(&self.config), self.in_use(volume));
        let (volume, namespace) = (volume.to_owned(), namespace.to_owned());
        blocking(move || {
            let mounted =
                copy::open(&config.host, &config.allowed, &namespace, &found).and_then(|copy| {
                    let mount = || {
                        mounts::remove(&target.path)?;
                        mounts::mount(&copy, &config.staging.join(&volume), &target.path)
                    };
                    mount().map_err(|error| failed("mounted", &target.path, &error))
                });
            // The kubelet may never unmount what it has not mounted.
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
        let unmount = move || {
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

/// Runs what may block on a thread for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::unavailable(error.to_string()))
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
