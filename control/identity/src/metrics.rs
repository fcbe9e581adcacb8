//! The page `/metrics` of a server.

use axum::http::{HeaderName, StatusCode, header};
use prometheus_client::{encoding::text::encode, registry::Registry};

/// The content type of OpenMetrics text.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A page as axum answers it.
pub type Page = (StatusCode, [(HeaderName, &'static str); 1], String);

/// Everything in the registry, as OpenMetrics text.
#[must_use]
pub fn page(registry: &Registry) -> Page {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            format!("metrics cannot be written: {error}\n"),
        ),
    }
}
