//! What the kubelet calls.

use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::devices::{DeviceError, Devices, ID_PREFIX};
use crate::kubelet::device_plugin as proto;
use crate::kubelet::device_plugin::device_plugin_server::DevicePlugin;
use crate::reconcile::Health;

/// How the kubelet is told of a plugin.
pub(crate) fn options() -> proto::DevicePluginOptions {
    proto::DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: false,
    }
}

/// The device plugin of one resource.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    ids: Arc<[String]>,
    devices: Arc<Devices>,
    health: watch::Receiver<Health>,
}

/// The service as one kubelet calls it.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub(crate) service: Service,
    /// True when the registration ends, and with it the list that the kubelet watches.
    pub(crate) ended: watch::Receiver<bool>,
    /// Told when the kubelet watches the list no more: then it counts no device of the plugin.
    pub(crate) lost: mpsc::Sender<()>,
}

/// A list that the kubelet watches, as long as this lives.
struct Watched(mpsc::Sender<()>);

impl Drop for Watched {
    fn drop(&mut self) {
        // One that is told already suffices.
        let _ = self.0.try_send(());
    }
}

impl Service {
    /// With so many devices.
    pub(crate) fn new(count: u32, devices: Arc<Devices>, health: watch::Receiver<Health>) -> Self {
        Self {
            // At most 20 letters: an engine takes no longer name, and the list stays below gRPC's 4 MiB.
            ids: (0..count).map(|i| format!("{ID_PREFIX}{i:05}")).collect(),
            devices,
            health,
        }
    }

    fn list(&self, health: &Health) -> proto::ListAndWatchResponse {
        let device = |id: &String| proto::Device {
            id: id.clone(),
            health: match health.is_good(id) {
                true => proto::HEALTHY,
                false => proto::UNHEALTHY,
            }
            .to_owned(),
            topology: None,
        };
        proto::ListAndWatchResponse {
            devices: self.ids.iter().map(device).collect(),
        }
    }
}

impl From<DeviceError> for Status {
    fn from(error: DeviceError) -> Self {
        let text = error.to_string();
        match error {
            DeviceError::Engine { .. } | DeviceError::Kubelet(_) => Self::unavailable(text),
            DeviceError::NoPod { .. } => Self::failed_precondition(text),
            DeviceError::Namespace(_) => Self::permission_denied(text),
            DeviceError::Cdi { .. } => Self::internal(text),
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Registered {
    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let service = self.service.clone();
        let watched = Watched(self.lost.clone());
        let lists = WatchStream::new(service.health.clone()).map(move |health| {
            let _ = &watched;
            Ok(service.list(&health))
        });
        let mut ended = self.ended.clone();
        let ended = async move {
            let _ = ended.wait_for(|ended| *ended).await;
        };
        Ok(Response::new(Box::pin(lists.take_until(Box::pin(ended)))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let text = "all devices of a node are alike: the kubelet chooses";
        Err(Status::unimplemented(text))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let mut response = proto::AllocateResponse::default();
        for container in request.into_inner().container_requests {
            let names = self.service.devices.allocate(&container.devices_ids);
            let device = |name| proto::CdiDevice { name };
            response
                .container_responses
                .push(proto::ContainerAllocateResponse {
                    cdi_devices: names.into_iter().map(device).collect(),
                    ..proto::ContainerAllocateResponse::default()
                });
        }
        Ok(Response::new(response))
    }

    async fn pre_start_container(
        &self,
        request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_ids;
        self.service.devices.prepare(&ids).await?;
        Ok(Response::new(proto::PreStartContainerResponse {}))
    }
}
