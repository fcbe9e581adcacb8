//! Serves the kubelet, and registers anew with each kubelet that starts.
//!
//! A kubelet that starts removes the sockets of all plugins and makes its own. Both are seen as changes of their directory.
//! Each registration has a socket of its own, so that one kubelet's calls never reach what another was told.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;

use crate::PluginError;
use crate::kubelet;
use crate::kubelet::device_plugin::device_plugin_server::DevicePluginServer;
use crate::kubelet::device_plugin::registration_client::RegistrationClient;
use crate::kubelet::device_plugin::{RegisterRequest, VERSION};
use crate::service::{Registered, Service, options};

/// The kubelet's own socket.
const KUBELET: &str = "kubelet.sock";
/// A kubelet that refuses, or is not there, is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Calls that are open when a registration ends are cut off after this.
const GRACE: Duration = Duration::from_millis(500);
/// Changes of the directory that are read at a time: each has a name of at most 255 bytes.
const EVENTS_BYTES: usize = 4096;

/// What is registered, and where.
#[derive(Debug)]
pub(crate) struct Registration {
    directory: PathBuf,
    resource: String,
    service: Service,
    changes: EventStream<[u8; EVENTS_BYTES]>,
}

impl Registration {
    /// With the kubelet of this directory.
    pub(crate) fn new(
        directory: &Path,
        resource: &str,
        service: Service,
    ) -> Result<Self, PluginError> {
        let directory = directory.to_owned();
        let watch = || {
            let inotify = Inotify::init()?;
            let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE;
            inotify.watches().add(&directory, mask)?;
            inotify.into_event_stream([0; EVENTS_BYTES])
        };
        let changes = watch().map_err(|source| PluginError::Kubelet {
            path: directory.clone(),
            source,
        })?;
        Ok(Self {
            directory,
            resource: resource.to_owned(),
            service,
            changes,
        })
    }

    /// Serves until it cannot.
    pub(crate) async fn run(mut self) -> Result<(), PluginError> {
        loop {
            let why = self.register().await?;
            tracing::info!("registering again: {why}");
        }
    }

    /// Serves at a socket, and registers it, until the kubelet does not know it any more. Says why.
    async fn register(&mut self) -> Result<&'static str, PluginError> {
        let name = socket_name();
        let path = self.directory.join(&name);
        let listener = UnixListener::bind(&path);
        let listener = listener.map_err(|source| PluginError::Socket {
            path: path.clone(),
            source,
        })?;
        let _removed = Removed(&path);
        let (end, mut ended) = watch::channel(false);
        let (lost, mut is_lost) = mpsc::channel(1);
        let service = Registered {
            service: self.service.clone(),
            ended: ended.clone(),
            lost,
        };
        let stopped = async move {
            let _ = ended.wait_for(|ended| *ended).await;
        };
        let mut served = pin!(
            tonic::transport::Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
        );
        let why = tokio::select! {
            served = &mut served => {
                served?;
                "the server has ended"
            }
            why = announce(&self.directory, &self.resource, &name, &mut is_lost) => why,
            why = forgotten(&mut self.changes, &name) => {
                why.map_err(|source| PluginError::Kubelet { path: self.directory.clone(), source })?
            }
        };
        // Before the next registration: a kubelet takes the end of an earlier plugin's list for the end of the later one's.
        end.send_replace(true);
        if tokio::time::timeout(GRACE, served).await.is_err() {
            tracing::debug!("the kubelet keeps a call open");
        }
        Ok(why)
    }
}

/// A socket file that is removed with this.
struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // The kubelet may have removed it.
        let _ = std::fs::remove_file(self.0);
    }
}

/// No two registrations have the same.
fn socket_name() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    format!("weft-{}-{nanos}.sock", std::process::id())
}

/// Registers the socket, and waits until the kubelet watches its devices no more.
async fn announce(
    directory: &Path,
    resource: &str,
    endpoint: &str,
    lost: &mut mpsc::Receiver<()>,
) -> &'static str {
    let mut problem = String::new();
    while let Err(status) = register_once(directory, resource, endpoint).await {
        if problem != status.message() {
            problem = status.message().to_owned();
            tracing::warn!(
                problem,
                "the kubelet does not take the plugin; it is tried again"
            );
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    tracing::info!(resource, socket = endpoint, "registered");
    let _ = lost.recv().await;
    // A kubelet that is restarted makes its socket anew, which is noticed sooner.
    tokio::time::sleep(RETRY_INTERVAL).await;
    "the kubelet does not watch the devices any more"
}

async fn register_once(directory: &Path, resource: &str, endpoint: &str) -> Result<(), Status> {
    let channel = kubelet::channel(&directory.join(KUBELET));
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(options()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// Waits until the kubelet has made its socket anew, or has removed the plugin's.
async fn forgotten(
    changes: &mut EventStream<[u8; EVENTS_BYTES]>,
    own: &str,
) -> io::Result<&'static str> {
    loop {
        let event = changes.next().await;
        let event = event.ok_or_else(|| io::Error::other("its changes are told no more"))??;
        let name = event.name.as_deref().unwrap_or_default();
        let is_made = !event.mask.contains(EventMask::DELETE);
        if name == KUBELET && is_made {
            return Ok("the kubelet has been started anew");
        }
        if name == own && !is_made {
            return Ok("the plugin's socket was removed");
        }
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Ok("changes of the directory were missed");
        }
        if event.mask.contains(EventMask::IGNORED) {
            return Err(io::Error::other("the directory is gone"));
        }
    }
}
