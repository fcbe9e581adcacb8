//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs, and a leader goes on), `/readyz` (it
//! leads, or could).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use prometheus_client::registry::Registry;
use tokio::{sync::watch, time::Instant};
use weft_identity::metrics;

/// A leader that has not gone on for so long never will: its longest wait is the 10 s for the answer to
/// one write. The kubelet then starts it anew; its Lease is renewed by another thread, and would be for
/// ever.
const STUCK: Duration = Duration::from_secs(60);

/// How far this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No API server answers, for this reason: it is waited for.
    Alone(String),
    /// It has not seen the Lease yet.
    Starting,
    /// Another leads; this one would take over.
    Standby,
    /// It leads and answers agents.
    Leading,
}

/// When a leader last went on. Written by the controllers.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Instant>>>);

impl Heartbeat {
    /// It goes on.
    pub fn beat(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// How long it has not gone on, where that is too long.
    fn stuck(&self, now: Instant) -> Option<Duration> {
        let beat = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(beat?);
        (silent >= STUCK).then_some(silent)
    }
}

#[derive(Clone)]
struct Endpoint {
    registry: Arc<Registry>,
    standing: watch::Receiver<Standing>,
    heartbeat: Heartbeat,
}

/// The routes.
pub fn router(
    registry: Registry,
    standing: watch::Receiver<Standing>,
    heartbeat: Heartbeat,
) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Endpoint {
            registry: Arc::new(registry),
            standing,
            heartbeat,
        })
}

async fn show_metrics(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    metrics::page(&endpoint.registry)
}

async fn healthz(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    match endpoint.heartbeat.stuck(Instant::now()) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(silent) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the controllers have not gone on for {} s, which is a bug: start this process anew\n",
                silent.as_secs()
            ),
        ),
    }
}

async fn readyz(State(endpoint): State<Endpoint>) -> impl IntoResponse {
    let standing = endpoint.standing.borrow();
    let (code, text) = match &*standing {
        Standing::Alone(cause) => (StatusCode::SERVICE_UNAVAILABLE, cause.clone()),
        Standing::Starting => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the Lease weft-operator has not been read yet".to_owned(),
        ),
        Standing::Standby => (StatusCode::OK, "another one leads".to_owned()),
        Standing::Leading => (StatusCode::OK, "leading".to_owned()),
    };
    (code, text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_does_not_go_on_is_unwell_after_a_minute_and_one_that_never_led_is_not() {
        let (heartbeat, now) = (Heartbeat::default(), Instant::now());
        assert_eq!(heartbeat.stuck(now + 2 * STUCK), None);
        heartbeat.beat(now);
        assert_eq!(
            heartbeat.stuck(now + STUCK - Duration::from_millis(1)),
            None
        );
        assert_eq!(heartbeat.stuck(now + STUCK), Some(STUCK));
        heartbeat.beat(now + STUCK);
        assert_eq!(heartbeat.stuck(now + STUCK), None);
    }
}
