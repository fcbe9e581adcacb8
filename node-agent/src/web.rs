//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs), `/readyz` (it takes jobs).

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::guard;

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Endpoint {
    registry: Arc<Registry>,
    ready: watch::Receiver<bool>,
}

/// The routes.
pub(crate) fn router(registry: Registry, ready: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(Endpoint {
            registry: Arc::new(registry),
            ready,
        })
}

async fn metrics(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    let text = guard::blocking("metrics", move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &endpoint.registry).map(|()| text)
    })
    .await;
    match text {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            format!("metrics cannot be written: {error}\n"),
        ),
    }
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
