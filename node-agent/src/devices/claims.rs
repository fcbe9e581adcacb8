//! Answers this node's device plugin which devices a ResourceClaim has. The plugin has no credentials; the agent asks the
//! operator with the node's certificate, and the operator answers for this node's devices only.

use std::fmt::Debug;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};
use weft_proto::claims::v1::claims_server::{Claims, ClaimsServer};
use weft_proto::claims::v1::{FindClaimRequest, FindClaimResponse};

/// Asks which devices of this node a claim has.
#[tonic::async_trait]
pub(crate) trait FindClaim: Debug + Send + Sync {
    async fn find_claim(&self, request: FindClaimRequest) -> Result<FindClaimResponse, Status>;
}

/// A socket that only its owner can open. One that an earlier agent has left is replaced.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Before that, too, others may not write to it, and so not connect.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves there, for ever.
pub(crate) async fn serve(listener: UnixListener, operator: Arc<dyn FindClaim>) {
    let served = tonic::transport::Server::builder()
        .add_service(ClaimsServer::new(Service(operator)))
        .serve_with_incoming(UnixListenerStream::new(listener));
    if let Err(error) = served.await {
        tracing::error!("no claim of a device is answered: {error}");
    }
}

struct Service(Arc<dyn FindClaim>);

#[tonic::async_trait]
impl Claims for Service {
    async fn find_claim(
        &self,
        request: Request<FindClaimRequest>,
    ) -> Result<Response<FindClaimResponse>, Status> {
        let found = self.0.find_claim(request.into_inner()).await?;
        Ok(Response::new(found))
    }
}
