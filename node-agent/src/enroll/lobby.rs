//! `/healthz` and `/readyz` while there is no agent that serves them: a node that waits for its
//! operator is alive, and not ready.

use std::net::SocketAddr;

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::{AgentError, listen};
use crate::web;

/// Serves until it is closed.
#[derive(Debug)]
pub(crate) struct Lobby(JoinHandle<()>);

impl Lobby {
    /// At the address where the agent will serve its metrics.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, AgentError> {
        let (listener, _) = listen("--metrics-port", address).await?;
        let (_, ready) = watch::channel(false);
        let routes = web::router(Registry::default(), ready);
        Ok(Self(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!("/healthz is not served any more: {error}");
            }
        })))
    }

    /// Gives the address back.
    pub(crate) async fn close(self) {
        self.0.abort();
        // Cancelled: that is what was asked for.
        let _ = self.0.await;
    }
}
