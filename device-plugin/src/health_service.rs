//! Tells kubelets how the devices of claims are (`DRAResourceHealth`): they show it in the status of the pods, where their feature
//! gate `ResourceHealthStatus` is on. Others never call.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::stream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::claims::Claims;
use crate::kubelet::dra_health as proto;
use crate::kubelet::dra_health::dra_resource_health_server::DraResourceHealth;
use crate::reconcile::Health;

/// How often all devices are told of. A kubelet that has not heard of one for 30 s says that it does not know.
const INTERVAL: Duration = Duration::from_secs(5);

/// Answers by what the device plugin has found out.
#[derive(Debug, Clone)]
pub(crate) struct HealthService {
    pub(crate) claims: Arc<Claims>,
    pub(crate) health: watch::Receiver<Health>,
}

impl HealthService {
    fn list(&self) -> Result<proto::NodeWatchResourcesResponse, Status> {
        let allocated = self.claims.allocated();
        let allocated = allocated.map_err(|error| Status::internal(error.to_string()))?;
        let health = self.health.borrow();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let devices = allocated
            .into_iter()
            .map(|((pool_name, device_name), ids)| {
                let device = proto::DeviceIdentifier {
                    pool_name,
                    device_name,
                };
                // With consumable capacity several claims have one, and the kubelet takes one word for all of them.
                let status = match ids.iter().any(|id| health.is_good(id)) {
                    true => proto::HealthStatus::Healthy,
                    false => proto::HealthStatus::Unhealthy,
                };
                proto::DeviceHealth {
                    device: Some(device),
                    health: status.into(),
                    last_updated_time: i64::try_from(now).unwrap_or(i64::MAX),
                }
            });
        Ok(proto::NodeWatchResourcesResponse {
            devices: devices.collect(),
        })
    }
}

#[tonic::async_trait]
impl DraResourceHealth for HealthService {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<proto::NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<proto::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let lists = stream::unfold((self.clone(), ticks), |(service, mut ticks)| async move {
            ticks.tick().await;
            Some((service.list(), (service, ticks)))
        });
        Ok(Response::new(Box::pin(lists)))
    }
}
