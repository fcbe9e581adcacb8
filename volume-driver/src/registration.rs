//! What the kubelet asks of a plugin that it has found.

use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::NAME;
use crate::kubelet::registration as proto;
use crate::kubelet::registration::registration_server::Registration;

/// Registers the driver.
#[derive(Debug)]
pub(crate) struct RegistrationService {
    /// Told why the kubelet does not take the driver.
    pub(crate) refusals: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(
        &self,
        _: Request<proto::InfoRequest>,
    ) -> Result<Response<proto::PluginInfo>, Status> {
        Ok(Response::new(proto::PluginInfo {
            r#type: proto::TYPE.to_owned(),
            name: NAME.to_owned(),
            // This socket.
            endpoint: String::new(),
            supported_versions: vec![proto::VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::RegistrationStatus>,
    ) -> Result<Response<proto::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        match status.plugin_registered {
            true => tracing::info!("registered"),
            // One that is told already suffices.
            false => drop(self.refusals.try_send(status.error)),
        }
        Ok(Response::new(proto::RegistrationStatusResponse {}))
    }
}
