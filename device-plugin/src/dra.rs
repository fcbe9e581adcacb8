//! Serves the kubelet as a driver of Dynamic Resource Allocation.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::claims::Claims;
use crate::health_service::HealthService;
use crate::kubelet::dra as proto;
use crate::kubelet::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::kubelet::dra_health;
use crate::kubelet::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::kubelet::plugin_registration::PluginInfo;
use crate::plugin_registration::{bind, register};
use crate::reconcile::Health;
use crate::{ByClaims, PluginError};

/// The driver's name, as ResourceSlices and the chart's DeviceClass have it.
const DRIVER: &str = "vdev.weft.dev";
/// The name of the driver's socket, in its own directory: as that of a registration, for the kubelet calls both alike.
const SOCKET: &str = "weft@dra.sock";

/// Serves until it cannot.
pub(crate) async fn serve(
    claims: Arc<Claims>,
    health: watch::Receiver<Health>,
    kubelet: &ByClaims,
) -> Result<(), PluginError> {
    let path = kubelet.directory.join(SOCKET);
    let (_removed, connections) = bind(&path)?;
    let health = HealthService {
        claims: Arc::clone(&claims),
        health,
    };
    let served = tonic::transport::Server::builder()
        .add_service(DraResourceHealthServer::new(health))
        .add_service(DraPluginServer::new(Service(claims)))
        .serve_with_incoming(connections);
    tokio::select! {
        served = served => Ok(served?),
        ended = register(&kubelet.plugins_registry, plugin(&path)) => ended,
    }
}

fn plugin(socket: &Path) -> PluginInfo {
    PluginInfo {
        r#type: proto::TYPE.to_owned(),
        name: DRIVER.to_owned(),
        endpoint: socket.display().to_string(),
        supported_versions: vec![proto::VERSION.to_owned(), dra_health::VERSION.to_owned()],
    }
}

struct Service(Arc<Claims>);

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<proto::NodePrepareResourcesRequest>,
    ) -> Result<Response<proto::NodePrepareResourcesResponse>, Status> {
        let mut response = proto::NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let prepared = match self.0.prepare(&claim).await {
                Ok(devices) => proto::NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Err(error) => {
                    let proto::Claim {
                        namespace, name, ..
                    } = &claim;
                    tracing::warn!(namespace, name, "the claim is not prepared: {error}");
                    proto::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error: error.to_string(),
                    }
                }
            };
            response.claims.insert(claim.uid, prepared);
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<proto::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<proto::NodeUnprepareResourcesResponse>, Status> {
        let mut response = proto::NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let unprepared = self.0.unprepare(&claim).await;
            let error = unprepared.err().map(|error| error.to_string());
            let unprepared = proto::NodeUnprepareResourceResponse {
                error: error.unwrap_or_default(),
            };
            response.claims.insert(claim.uid, unprepared);
        }
        Ok(Response::new(response))
    }
}
