//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs), `/readyz` (it leads, or could).

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How far this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has not seen the Lease yet.
    Starting,
    /// Another leads; this one would take over.
    Standby,
    /// It leads and answers agents.
    Leading,
}

#[derive(Clone)]
struct Endpoint {
    registry: Arc<Registry>,
    standing: watch::Receiver<Standing>,
}

/// The routes.
pub fn router(registry: Registry, standing: watch::Receiver<Standing>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(Endpoint {
            registry: Arc::new(registry),
            standing,
        })
}

async fn metrics(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &endpoint.registry) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            format!("metrics cannot be written: {error}\n"),
        ),
    }
}

async fn readyz(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    match *endpoint.standing.borrow() {
        Standing::Starting => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the Lease weft-operator has not been read yet\n",
        ),
        Standing::Standby => (StatusCode::OK, "another one leads\n"),
        Standing::Leading => (StatusCode::OK, "leading\n"),
    }
}
