//! Registers a plugin with every kubelet that starts, by a socket in the kubelet's directory `plugins_registry`.
//!
//! The kubelet watches the directory, and looks through it when it starts. It calls the socket, is told where the plugin
//! itself serves, and forgets the plugin when the socket is removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::PluginError;
use crate::kubelet::plugin_registration as proto;
use crate::kubelet::plugin_registration::PluginInfo;
use crate::kubelet::plugin_registration::registration_server::{Registration, RegistrationServer};

/// The file of a socket that this process serves. It is removed with this.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens at a socket. One that an earlier process has left is replaced.
pub(crate) fn bind(path: &Path) -> Result<(SocketFile, UnixListenerStream), PluginError> {
    let bind = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => UnixListener::bind(path),
        }
    };
    let listener = bind().map_err(|source| PluginError::Socket {
        path: path.to_owned(),
        source,
    })?;
    let file = SocketFile(path.to_owned());
    Ok((file, UnixListenerStream::new(listener)))
}

/// Tells kubelets of a plugin, which serves already, until this cannot be done.
pub(crate) async fn register(directory: &Path, plugin: PluginInfo) -> Result<(), PluginError> {
    let path = directory.join(socket_name(&plugin.name));
    let (_removed, connections) = bind(&path)?;
    tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(Plugin(plugin)))
        .serve_with_incoming(connections)
        .await?;
    Ok(())
}

/// When the kubelet asks what it has found in its directory, it sends the whole path as the call's authority, with `%2F` in place of
/// each slash. That is none in a host, and HTTP/2 servers refuse it (kubernetes/kubernetes#109081); before an `@` it is the name
/// of a user, and allowed.
fn socket_name(plugin: &str) -> String {
    format!("weft@{plugin}-reg.sock")
}

struct Plugin(PluginInfo);

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(
        &self,
        _: Request<proto::InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.0.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::RegistrationStatus>,
    ) -> Result<Response<proto::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let PluginInfo { r#type, name, .. } = &self.0;
        match status.plugin_registered {
            true => tracing::info!(kind = r#type, name, "registered"),
            // It tries again.
            false => tracing::warn!(
                kind = r#type,
                name,
                problem = status.error,
                "the kubelet does not take the plugin"
            ),
        }
        Ok(Response::new(proto::RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::uri::Authority;

    use super::*;

    #[test]
    fn the_path_of_the_socket_is_an_authority_as_the_kubelet_sends_it() {
        let sent = |name: &str| format!("%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2F{name}");
        let read: Authority = sent(&socket_name("vdev.weft.dev")).parse().unwrap();
        assert_eq!(read.host(), "vdev.weft.dev-reg.sock");
        assert!(sent("vdev.weft.dev-reg.sock").parse::<Authority>().is_err());
    }
}
