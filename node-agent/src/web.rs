//! The HTTP endpoint: `/metrics`, `/metrics/paths` (each path by itself), `/healthz` (the process runs) and
//! `/readyz` (it takes jobs). It serves from before the agent has enrolled until the process ends.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use weft_identity::health_server::{self, Pages};
use weft_identity::metrics;
use weft_identity::metrics_access::MetricsAccess;

use crate::fail_fast;

/// The metrics; none while no agent takes jobs.
pub(crate) type Ready = Option<Arc<Registries>>;

/// The metrics of a running agent.
#[derive(Debug, Default)]
pub(crate) struct Registries {
    /// Of `/metrics`.
    pub(crate) agent: Registry,
    /// Of `/metrics/paths`.
    pub(crate) paths: Registry,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct HealthServer {
    address: SocketAddr,
    ready: watch::Sender<Ready>,
    /// Of the pages over TLS.
    certificate: watch::Sender<Option<Arc<ServerConfig>>>,
    server: JoinHandle<()>,
}

impl HealthServer {
    /// Serves at `listener`, which is bound to `address`: alive, and not ready. With `access`, metrics are given over TLS
    /// only, to those who may read them.
    pub(crate) fn start(
        listener: TcpListener,
        address: SocketAddr,
        access: Option<&Arc<MetricsAccess>>,
    ) -> Self {
        let ready = watch::Sender::new(None);
        let certificate = watch::Sender::new(None);
        let pages = pages(
            &ready,
            access.map(|access| (access, certificate.subscribe())),
        );
        let server =
            tokio::spawn(async move { match health_server::serve(listener, pages).await {} });
        Self {
            address,
            ready,
            certificate,
            server,
        }
    }

    /// The metrics that it serves, for those who ask another way.
    pub(crate) fn registries(&self) -> watch::Receiver<Ready> {
        self.ready.subscribe()
    }

    /// Where it serves.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the agent takes jobs.
    pub(crate) fn set_ready(&self, registries: Registries) {
        self.ready.send_replace(Some(Arc::new(registries)));
    }

    /// New connections over TLS are shown this certificate.
    pub(crate) fn set_certificate(&self, server: ServerConfig) {
        self.certificate.send_replace(Some(Arc::new(server)));
    }

    /// Stops serving, when this is the last user.
    pub(crate) async fn close(self: Arc<Self>) {
        if let Some(mut last) = Arc::into_inner(self) {
            last.server.abort();
            // It ends as cancelled.
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

fn pages(
    ready: &watch::Sender<Ready>,
    access: Option<(&Arc<MetricsAccess>, health_server::Certificate)>,
) -> Pages {
    let metrics = Router::new()
        .route("/metrics", get(|ready| page(ready, |all| &all.agent)))
        .route("/metrics/paths", get(|ready| page(ready, |all| &all.paths)))
        .with_state(ready.subscribe());
    let probes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(ready.subscribe());
    Pages::of_metrics(metrics, probes, access)
}

async fn page(
    State(ready): State<watch::Receiver<Ready>>,
    part: fn(&Registries) -> &Registry,
) -> impl IntoResponse {
    let registries = ready.borrow().clone().unwrap_or_default();
    fail_fast::spawn_blocking("metrics", move || metrics::page(part(&registries))).await
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
