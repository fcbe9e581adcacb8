//! The calls by which the engine is managed.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::process::umask;
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use weft_device::node_gid;
use weft_device_server::{
    AttemptKind, Device, Gid, OPEN_LIMITS, RefusedAttempt, SHARE_DEFAULT, Server, ServerError,
};
use weft_device_socket::descriptor_store::{self, Stored};
use weft_engine::EngineConfig;
use weft_proto::agent::v1::QueuePairOffer;
use weft_proto::engine::v1 as proto;
use weft_proto::engine::v1::engine_server::{Engine, EngineServer};
use weft_proto::engine::v1::refused_attempt::Kind;

use crate::{link_state, offer};

/// Offers that wait until the agent takes them. Of more, the oldest are dropped; the engine makes them again.
const OFFERS_BEHIND_MAX: usize = 4096;

/// An agent that is restarting is awaited so long.
const AGENT_TRIES: u32 = 25;
const AGENT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

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

/// How the engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// What there is goes to the next engine, if the node's agent keeps it until then. Programs notice a pause.
    HandOver,
    /// The devices are gone: programs find that the engine has ended.
    Final,
}

/// Serves devices, which are directories in `devices` and of which so many may be open at a time, and the calls at `socket`,
/// until `stopped` returns. Goes on with what the engine before has left. `flags` are those that `config` is from: the agent is told.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    socket: &Path,
    devices: &Path,
    config: EngineConfig,
    open_devices: u16,
    flags: Vec<String>,
    stopped: impl Future<Output = Shutdown>,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::Socket {
        path: socket.to_owned(),
        source,
    };
    Server::check(&config, open_devices)?;
    // Held until the next engine may begin.
    let lock_file = lock_file(socket).map_err(failed)?;
    let address = config.address.ip();
    let (offers, _) = broadcast::channel(OFFERS_BEHIND_MAX);
    let sender = offers.clone();
    let send_offer = move |offer| {
        // Without an agent nobody receives.
        let _ = sender.send(offer::to_proto(&offer));
    };
    let store = descriptor_store::path_of(socket);
    let server = match take(&store) {
        None => Server::start(devices, config, open_devices, send_offer)?,
        Some(stored) => {
            let again = send_offer.clone();
            let restored = Server::restore(devices, &config, open_devices, stored, again);
            match restored {
                Err(error) => {
                    tracing::error!("{error}");
                    Server::start(devices, config, open_devices, send_offer)?
                }
                Ok(restored) => {
                    let open = restored.list().iter().filter(|it| it.contexts > 0).count();
                    tracing::info!(open, "the devices of the engine before go on");
                    restored
                }
            }
        }
    };
    let listener = listen(socket).map_err(failed)?;
    let server = Arc::new(RwLock::new(Some(server)));
    let service = EngineServer::new(Service {
        server: Arc::clone(&server),
        offers,
        address,
        flags,
    });
    let served = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(UnixListenerStream::new(listener));
    // Not a graceful end, which an agent that watches offers would hold up.
    let ending = tokio::select! {
        served = served => served.map(|()| Shutdown::Final)?,
        ending = stopped => ending,
    };
    let _ = fs::remove_file(socket);
    let server = lock(server.write()).take();
    match server {
        Some(server) if ending == Shutdown::HandOver && is_served(&store).await => {
            hand_over(server, &store);
        }
        server => drop(server),
    }
    // A thread that stands still may keep the process from ending.
    drop(lock_file);
    Ok(())
}

/// A file that only one engine has locked at a time. Nobody else can open it, and so hold engines up.
fn lock_file(socket: &Path) -> io::Result<fs::File> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let mut how = fs::File::options();
    how.create(true).truncate(false).write(true).mode(0o600);
    let file = how.open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(io::Error::other("another engine serves it")),
    }
}

/// Whether an agent keeps what it is given. One that was there may be restarting.
async fn is_served(store: &Path) -> bool {
    for _ in 0..AGENT_TRIES {
        if descriptor_store::is_served(store) {
            return true;
        }
        if !store.exists() {
            return false;
        }
        tokio::time::sleep(AGENT_RETRY_INTERVAL).await;
    }
    false
}

/// What the engine before has left; nothing without an agent that keeps it.
fn take(store: &Path) -> Option<Stored> {
    match descriptor_store::take(store) {
        Ok(stored) => stored,
        Err(error) => {
            tracing::debug!("{}: {error}: nothing is taken over", store.display());
            None
        }
    }
}

/// Leaves what there is to the next engine.
fn hand_over(server: Server, store: &Path) {
    let saved = match server.save() {
        Ok(saved) => saved,
        Err(error) => {
            tracing::error!("nothing is left to the next engine: {error}");
            return;
        }
    };
    let descriptors = saved.descriptors.len();
    match descriptor_store::store(store, &saved) {
        Ok(()) => tracing::info!(descriptors, "what there is waits for the next engine"),
        Err(error) => {
            let store = store.display();
            tracing::error!("{store}: {error}: the agent keeps nothing, and the devices are gone");
        }
    }
}

/// What holds the lock does not panic.
fn lock<G>(locked: Result<G, PoisonError<G>>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// A socket that only its owner can open. One that an earlier engine has left is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => fs::remove_file(path)?,
    }
    let before = umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

struct Service {
    /// None when the engine ends.
    server: Arc<RwLock<Option<Server>>>,
    offers: broadcast::Sender<QueuePairOffer>,
    /// The node's, on the data network.
    address: IpAddr,
    flags: Vec<String>,
}

impl Service {
    fn with<R>(&self, act: impl FnOnce(&Server) -> R) -> Result<R, Status> {
        let server = lock(self.server.read());
        let ends = || Status::unavailable("the engine ends");
        Ok(act(server.as_ref().ok_or_else(ends)?))
    }

    /// A GID that no device has had.
    fn draw_gid(&self) -> Result<Gid, Status> {
        let IpAddr::V4(address) = self.address else {
            let problem =
                "gid must be 16 bytes: the node's address is of IPv6, and no GID can name it";
            return Err(Status::invalid_argument(problem));
        };
        let mut number = [0; 4];
        let drawn = SystemRandom::new().fill(&mut number);
        drawn.map_err(|_| Status::internal("the system gives no random numbers"))?;
        Ok(node_gid::of_node(address, number))
    }
}

#[tonic::async_trait]
impl Engine for Service {
    async fn create_device(
        &self,
        request: Request<proto::CreateDeviceRequest>,
    ) -> Result<Response<proto::CreateDeviceResponse>, Status> {
        let request = request.into_inner();
        let gid = match request.gid.is_empty() {
            true => self.draw_gid()?,
            false => offer::gid(&request.gid)
                .ok_or_else(|| Status::invalid_argument("gid must be 16 bytes, or none"))?,
        };
        let device = Device {
            tenant: request.tenant.into(),
            owner: request.owner.into(),
            cap_bps: (request.cap_bps > 0).then_some(request.cap_bps),
            ops_per_s: NonZeroU32::new(request.ops_per_s),
            share: match request.share {
                0 => SHARE_DEFAULT,
                share => share,
            },
            ..Device::new(gid, OPEN_LIMITS)
        };
        let directory = self.with(|server| server.create(&request.name, device))?;
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
        let destroyed = self.with(|server| server.destroy(&name))?;
        destroyed.map_err(|error| status(&error))?;
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
            share: status.share,
            tenant: status.tenant.to_string(),
            owner: status.owner.to_string(),
            refused_offers: status.refused_offers,
            refused_calls: status.refused_calls,
            operations: status.operations,
            bytes_sent: status.bytes_sent,
            bytes_received: status.bytes_received,
            contexts: status.contexts,
            queue_pairs: status.queue_pairs,
            refused: status.refused,
            stalled: status.is_stalled,
            regions: status.regions,
            windows: status.windows,
            window_bytes: status.copied.by_window,
            mem_fd_bytes: status.copied.by_address_space,
        };
        let (devices, refused) = self.with(|server| (server.list(), server.refused()))?;
        let devices = devices.into_iter().map(device).collect();
        Ok(Response::new(proto::ListDevicesResponse {
            devices,
            link_problem: link_state::problem(self.address).unwrap_or_default(),
            refused: Some(proto::RefusedAttempts {
                packets: refused.packets,
                offers: refused.offers,
                calls: refused.calls,
                connections: refused.connections,
            }),
        }))
    }

    async fn take_refused_attempts(
        &self,
        _: Request<proto::TakeRefusedAttemptsRequest>,
    ) -> Result<Response<proto::TakeRefusedAttemptsResponse>, Status> {
        let attempt = |attempt: RefusedAttempt| proto::RefusedAttempt {
            kind: match attempt.kind {
                AttemptKind::Connection => Kind::Connection.into(),
                AttemptKind::MemoryAccess => Kind::MemoryAccess.into(),
            },
            from: attempt.from.to_string(),
            to: attempt.to.to_string(),
        };
        let attempts = self.with(Server::take_refused_attempts)?;
        let attempts = attempts.into_iter().map(attempt).collect();
        Ok(Response::new(proto::TakeRefusedAttemptsResponse {
            attempts,
        }))
    }

    async fn get_flags(
        &self,
        _: Request<proto::GetFlagsRequest>,
    ) -> Result<Response<proto::GetFlagsResponse>, Status> {
        let flags = self.flags.clone();
        Ok(Response::new(proto::GetFlagsResponse { flags }))
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
        let received = self.with(|server| server.receive_offer(request.node.into(), offer))?;
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
        ServerError::Name { .. } | ServerError::Cap { .. } | ServerError::Share { .. } => {
            Status::invalid_argument(text)
        }
        ServerError::NoDevice { .. } => Status::not_found(text),
        _ => Status::internal(text),
    }
}

#[cfg(test)]
mod tests;
