//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs), `/readyz` (it takes jobs).

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use weft_identity::metrics;

use crate::guard;

#[derive(Clone)]
struct Endpoint {
    registry: Arc<Registry>,
    ready: watch::Receiver<bool>,
}

/// The routes.
pub(crate) fn router(registry: Registry, ready: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(Endpoint {
            registry: Arc::new(registry),
            ready,
        })
}

async fn show_metrics(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    guard::blocking("metrics", move || metrics::page(&endpoint.registry)).await
}

async fn readyz(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    if *endpoint.ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is starting, stopping, or waiting for its operator\n",
        )
    }
}
