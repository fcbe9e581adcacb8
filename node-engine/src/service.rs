//! The calls by which the engine is managed.

use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use weft_device_server::{Device, OPEN_LIMITS, Server, ServerError};
use weft_engine::EngineConfig;
use weft_proto::agent::v1::QueuePairOffer;
use weft_proto::engine::v1 as proto;
use weft_proto::engine::v1::engine_server::{Engine, EngineServer};

use crate::offer;

/// Offers that wait until the agent takes them. Of more, the oldest are dropped; the engine makes them again.
const OFFERS_BEHIND_MAX: usize = 4096;

/// Why the engine does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The devices.
    #[error(transparent)]
    Devices(#[from] ServerError),
    /// The socket.
    #[error("--socket {path}: {source}: give a path in a directory that this process may write to")]
    Socket {
        /// Where it should be.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The service.
    #[error("the socket cannot be served: {0}")]
    Service(#[from] tonic::transport::Error),
}

/// Serves devices, which are directories in `devices` and of which so many may be open at a time, and the calls at `socket`, until `stopped` returns. Then the devices
/// are gone: programs find that the engine has ended.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    socket: &Path,
    devices: &Path,
    config: EngineConfig,
    open_devices: u16,
    stopped: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let listener = listen(socket).map_err(|source| ServeError::Socket {
        path: socket.to_owned(),
        source,
    })?;
    let (offers, _) = broadcast::channel(OFFERS_BEHIND_MAX);
    let sender = offers.clone();
    let send_offer = move |offer| {
        // Without an agent nobody receives.
        let _ = sender.send(offer::to_proto(&offer));
    };
    let server = Server::start(devices, config, open_devices, send_offer)?;
    let service = EngineServer::new(Service { server, offers });
    let served = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(UnixListenerStream::new(listener));
    // Not a graceful end, which an agent that watches offers would hold up.
    tokio::select! {
        served = served => served?,
        () = stopped => {}
    }
    let _ = fs::remove_file(socket);
    Ok(())
}

/// A socket that only its owner can open. One that an earlier engine has left is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) if StdUnixStream::connect(path).is_ok() => {
            return Err(io::Error::other("another engine serves it"));
        }
        Ok(_) => fs::remove_file(path)?,
    }
    let before = umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

struct Service {
    server: Server,
    offers: broadcast::Sender<QueuePairOffer>,
}

#[tonic::async_trait]
impl Engine for Service {
    async fn create_device(
        &self,
        request: Request<proto::CreateDeviceRequest>,
    ) -> Result<Response<proto::CreateDeviceResponse>, Status> {
        let request = request.into_inner();
        let gid = offer::gid(&request.gid);
        let gid = gid.ok_or_else(|| Status::invalid_argument("gid must be 16 bytes"))?;
        let device = Device {
            gid,
            limits: OPEN_LIMITS,
            cap_bps: (request.cap_bps > 0).then_some(request.cap_bps),
            ops_per_s: NonZeroU32::new(request.ops_per_s),
        };
        let directory = self.server.create(&request.name, device);
        let directory = directory.map_err(|error| status(&error))?;
        tracing::info!(name = request.name, "device made");
        Ok(Response::new(proto::CreateDeviceResponse {
            directory: directory.display().to_string(),
        }))
    }

    async fn destroy_device(
        &self,
        request: Request<proto::DestroyDeviceRequest>,
    ) -> Result<Response<proto::DestroyDeviceResponse>, Status> {
        let name = request.into_inner().name;
        self.server.destroy(&name).map_err(|error| status(&error))?;
        tracing::info!(name, "device destroyed");
        Ok(Response::new(proto::DestroyDeviceResponse {}))
    }

    async fn list_devices(
        &self,
        _: Request<proto::ListDevicesRequest>,
    ) -> Result<Response<proto::ListDevicesResponse>, Status> {
        let device = |status: weft_device_server::DeviceStatus| proto::Device {
            name: status.name,
            gid: status.gid.to_vec(),
            directory: status.directory.display().to_string(),
            cap_bps: status.cap_bps.unwrap_or(0),
            ops_per_s: status.ops_per_s.map_or(0, NonZeroU32::get),
            contexts: status.contexts,
            queue_pairs: status.queue_pairs,
            refused: status.refused,
            stalled: status.is_stalled,
            regions: status.regions,
            windows: status.windows,
        };
        let devices = self.server.list().into_iter().map(device).collect();
        Ok(Response::new(proto::ListDevicesResponse { devices }))
    }

    type WatchOffersStream = Pin<Box<dyn Stream<Item = Result<QueuePairOffer, Status>> + Send>>;

    async fn watch_offers(
        &self,
        _: Request<proto::WatchOffersRequest>,
    ) -> Result<Response<Self::WatchOffersStream>, Status> {
        let offers = BroadcastStream::new(self.offers.subscribe());
        // Those that were missed come again.
        let offers = offers.filter_map(|offer| Some(Ok(offer.ok()?)));
        Ok(Response::new(Box::pin(offers)))
    }

    async fn receive_offer(
        &self,
        request: Request<proto::ReceiveOfferRequest>,
    ) -> Result<Response<proto::ReceiveOfferResponse>, Status> {
        let request = request.into_inner();
        let offer = offer::from_proto(request.offer).map_err(Status::invalid_argument)?;
        let received = self.server.receive_offer(request.node.into(), offer);
        // The agent counts it, and the peer's agent is told.
        received.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        Ok(Response::new(proto::ReceiveOfferResponse {}))
    }
}

fn status(error: &ServerError) -> Status {
    let text = error.to_string();
    match error {
        ServerError::Exists { .. } | ServerError::GidInUse { .. } | ServerError::StillOpen => {
            Status::already_exists(text)
        }
        ServerError::Name { .. } | ServerError::Cap { .. } => Status::invalid_argument(text),
        ServerError::NoDevice { .. } => Status::not_found(text),
        _ => Status::internal(text),
    }
}

#[cfg(test)]
mod tests;
