//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs), `/readyz` (it takes jobs). It serves from
//! before the agent has enrolled until the process ends.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use weft_identity::metrics;

use crate::abort;

/// What is measured; nothing while no agent takes jobs.
type Ready = Option<Arc<Registry>>;

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct HealthServer {
    ready: watch::Sender<Ready>,
    server: JoinHandle<()>,
}

impl HealthServer {
    /// Serves at `listener`: alive, and not ready.
    pub(crate) fn start(listener: TcpListener) -> Self {
        let ready = watch::Sender::new(None);
        let routes = router(ready.subscribe());
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!("/healthz is not served any more: {error}");
            }
        });
        Self { ready, server }
    }

    /// From now on the agent takes jobs, and this is what is measured.
    pub(crate) fn set_ready(&self, registry: Registry) {
        self.ready.send_replace(Some(Arc::new(registry)));
    }

    /// Gives the address back, unless somebody else serves there, too.
    pub(crate) async fn close(self: Arc<Self>) {
        if let Some(mut last) = Arc::into_inner(self) {
            last.server.abort();
            // Cancelled: that is what was asked for.
            let _ = (&mut last.server).await;
        }
    }

    /// The agent takes no jobs any more.
    pub(crate) fn set_not_ready(&self) {
        self.ready.send_replace(None);
    }
}

impl Drop for HealthServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn router(ready: watch::Receiver<Ready>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(ready)
}

async fn show_metrics(State(ready): State<watch::Receiver<Ready>>) -> impl IntoResponse {
    let registry = ready.borrow().clone().unwrap_or_default();
    abort::blocking("metrics", move || metrics::page(&registry)).await
}

async fn readyz(State(ready): State<watch::Receiver<Ready>>) -> impl IntoResponse {
    if ready.borrow().is_some() {
        (StatusCode::OK, "ready\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is starting, stopping, or waiting for its operator\n",
        )
    }
}
