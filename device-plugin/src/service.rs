//! What the kubelet calls.

use std::pin::Pin;
use std::sync::Arc;

use futures::{StreamExt as _, stream};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::Flags;
use crate::devices::{DeviceError, Devices, ID_PREFIX};
use crate::kubelet::device_plugin as proto;
use crate::kubelet::device_plugin::device_plugin_server::DevicePlugin;
use crate::reconcile::Health;

/// How the kubelet is told of a plugin.
pub(crate) fn options() -> proto::DevicePluginOptions {
    proto::DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}

/// The device plugin of one resource.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    flags: watch::Receiver<Flags>,
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
    /// With the devices of a node.
    pub(crate) fn new(
        flags: watch::Receiver<Flags>,
        devices: Arc<Devices>,
        health: watch::Receiver<Health>,
    ) -> Self {
        Self {
            flags,
            devices,
            health,
        }
    }

    fn list(&self) -> proto::ListAndWatchResponse {
        let (flags, health) = (self.flags.borrow(), self.health.borrow());
        // Of all devices, for they share an interface. None where it is not known.
        let topology = flags.numa_node.map(|node| proto::TopologyInfo {
            nodes: vec![proto::NumaNode { id: node.into() }],
        });
        let device = |id: String| {
            let is_good = health.is_good(&id);
            device(id, is_good, topology.as_ref())
        };
        proto::ListAndWatchResponse {
            devices: ids(flags.count).map(device).collect(),
        }
    }
}

fn device(id: String, is_good: bool, topology: Option<&proto::TopologyInfo>) -> proto::Device {
    proto::Device {
        id,
        health: match is_good {
            true => proto::HEALTHY,
            false => proto::UNHEALTHY,
        }
        .to_owned(),
        topology: topology.cloned(),
    }
}

/// Each has at most 20 letters: an engine takes no longer name.
fn ids(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("{ID_PREFIX}{number:05}"))
}

/// Which devices a container is to have. All devices of a node are behind one interface, so none is nearer to a pod than
/// another: those with the first names, and equal requests have equal answers.
fn preferred(request: proto::ContainerPreferredAllocationRequest) -> Vec<String> {
    let size = usize::try_from(request.allocation_size).unwrap_or_default();
    let mut chosen = request.must_include_device_i_ds;
    let mut others = request.available_device_i_ds;
    others.sort_unstable();
    others.retain(|id| !chosen.contains(id));
    others.truncate(size.saturating_sub(chosen.len()));
    chosen.append(&mut others);
    chosen
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
        let health = WatchStream::new(service.health.clone()).map(drop);
        let flags = WatchStream::from_changes(service.flags.clone()).map(drop);
        let lists = stream::select(health, flags).map(move |()| {
            let _ = &watched;
            Ok(service.list())
        });
        let mut ended = self.ended.clone();
        let ended = async move {
            let _ = ended.wait_for(|ended| *ended).await;
        };
        Ok(Response::new(Box::pin(lists.take_until(Box::pin(ended)))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let mut response = proto::PreferredAllocationResponse::default();
        for container in request.into_inner().container_requests {
            response
                .container_responses
                .push(proto::ContainerPreferredAllocationResponse {
                    device_i_ds: preferred(container),
                });
        }
        Ok(Response::new(response))
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

#[cfg(test)]
mod tests {
    use weft_proto::Message as _;

    use super::*;

    /// A kubelet refuses a longer message (gRPC's default limit), and would then know no device at all.
    const LIST_BYTES_MAX: usize = 4 << 20;

    /// The most that a fabric can ask for, as the list is longest.
    #[test]
    fn a_list_of_65_536_devices_is_taken_by_a_kubelet() {
        let node = proto::NumaNode { id: 1023 };
        let topology = proto::TopologyInfo { nodes: vec![node] };
        let devices = ids(65_536).map(|id| device(id, false, Some(&topology)));
        let devices = devices.collect();
        let bytes = proto::ListAndWatchResponse { devices }.encoded_len();
        assert!(bytes <= LIST_BYTES_MAX, "{bytes}");
    }
}
