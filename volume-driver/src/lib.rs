//! Mounts verified copies in pods, as the CSI driver `csi.weft.dev`: ephemeral volumes only, and always read-only.
//!
//! The kubelet calls it at a socket in its directory of plugins, where it finds the driver by itself. Which copy a volume shows
//! says the node's agent (`weft.volumes.v1`), for the pod's namespace, which the kubelet names. The driver keeps nothing: that a
//! volume is mounted, the kernel knows. Decision 0043 has the design.

#[cfg(test)]
#[path = "../tests/driver/alone.rs"]
mod alone;
mod calls;
mod copy;
#[cfg(test)]
#[path = "../../node-agent/tests/agents/eventually.rs"]
mod eventually;
mod fail_fast;
mod identity;
pub mod kubelet;
mod mounts;
mod node;
mod registration;
mod target;

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::identity::IdentityService;
use crate::kubelet::csi::identity_server::IdentityServer;
use crate::kubelet::csi::node_server::NodeServer;
use crate::kubelet::registration::registration_server::RegistrationServer;
use crate::node::NodeService;
use crate::registration::RegistrationService;

/// By which pods name the driver.
pub const NAME: &str = "csi.weft.dev";

/// Its socket, in the kubelet's directory of plugins. When the kubelet asks what it has found there, it sends the whole path as the
/// call's authority, with `%2F` in place of each slash. That is none in a host, and HTTP/2 servers refuse it
/// (kubernetes/kubernetes#109081); before an `@` it is the name of a user, and allowed.
const SOCKET: &str = "weft@csi.weft.dev.sock";

/// What the driver works with.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node's name.
    pub node: String,
    /// The kubelet's directory (its `--root-dir`), by the same path as the kubelet sees it.
    pub kubelet: PathBuf,
    /// The directory where the node's agent serves the driver.
    pub volumes: PathBuf,
    /// Where the node's files are.
    pub host: PathBuf,
    /// The directories of the node in which roots may be, absolute.
    pub allowed: Vec<PathBuf>,
    /// An empty directory for mounts that are being made: of a file system whose mounts nobody else sees.
    pub staging: PathBuf,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Its socket.
    #[error(
        "{path}: {source}: give the kubelet's directory, in which the driver must be able to make a socket"
    )]
    Socket {
        /// Where it should be.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Its server.
    #[error("the kubelet cannot be served: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The kubelet does not take it.
    #[error("the kubelet does not take the driver: {0}: is there another driver of this name?")]
    Refused(String),
}

/// Serves the kubelet until `stopped` returns.
///
/// # Errors
/// [`DriverError`].
pub async fn run(config: Config, stopped: impl Future<Output = ()>) -> Result<(), DriverError> {
    let path = config.kubelet.join("plugins_registry").join(SOCKET);
    let listener = bind(&path).map_err(|source| DriverError::Socket {
        path: path.clone(),
        source,
    })?;
    let _removed = Removed(&path);
    let (refusals, mut refused) = mpsc::channel(1);
    let served = Server::builder()
        .add_service(RegistrationServer::new(RegistrationService { refusals }))
        .add_service(IdentityServer::new(IdentityService))
        .add_service(NodeServer::new(NodeService::new(config)))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::select! {
        served = served => Ok(served?),
        // The server holds the sender.
        Some(problem) = refused.recv() => Err(DriverError::Refused(problem)),
        () = stopped => Ok(()),
    }
}

/// The kubelet takes a file that is made anew for another registration.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

/// A socket file that is removed with this: the kubelet calls nobody then.
struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // Where that fails, the next one that starts removes it.
        let _ = std::fs::remove_file(self.0);
    }
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::uri::Authority;

    use super::*;

    /// As grpc-go makes an authority of what it dials.
    fn authority(path: &Path) -> String {
        path.display().to_string().replace('/', "%2F")
    }

    #[test]
    fn the_path_of_the_socket_is_an_authority_as_the_kubelet_sends_it() {
        for kubelet in ["/var/lib/kubelet", "/mnt/k0s_1/kubelet-data"] {
            let directory = Path::new(kubelet).join("plugins_registry");
            let sent = authority(&directory.join(SOCKET));
            let read: Authority = sent.parse().unwrap();
            assert_eq!(read.host(), "csi.weft.dev.sock");
            let plain = authority(&directory.join("csi.weft.dev.sock"));
            assert!(plain.parse::<Authority>().is_err());
        }
    }
}
