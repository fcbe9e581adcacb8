//! The HTTP endpoint: `/metrics`, `/healthz` (the process runs, and a leader goes on), `/readyz` (it
//! leads, or could).

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use kube::Client;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use weft_identity::{
    authority::Authority,
    health_server::{Certificate, Pages},
    metrics,
    metrics_access::MetricsAccess,
    tls,
};

use crate::home::Home;

/// A leader that has not gone on for so long never will: its longest wait is the 10 s for the answer to
/// one write. The kubelet then starts it anew; its Lease is renewed by another thread, and would be for
/// ever.
const STUCK: Duration = Duration::from_secs(60);

/// How often the authority is read again, also while there is none yet.
const AUTHORITY_POLL: Duration = Duration::from_secs(10);
/// A server certificate lives a year.
const CERTIFICATE_RENEWAL: Duration = Duration::from_secs(24 * 60 * 60);

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

/// The pages. With `access`, metrics are given over TLS only, to those who may read them.
pub fn pages(
    registry: Registry,
    standing: watch::Receiver<Standing>,
    heartbeat: Heartbeat,
    access: Option<(&Arc<MetricsAccess>, Certificate)>,
) -> Pages {
    let endpoint = Endpoint {
        registry: Arc::new(registry),
        standing,
        heartbeat,
    };
    let metrics = Router::new().route("/metrics", get(show_metrics));
    let metrics = metrics.with_state(endpoint.clone());
    let probes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(endpoint);
    Pages::of_metrics(metrics, probes, access)
}

/// Keeps the certificate of the pages one of the authority's, in every replica, leading or not.
pub async fn keep_certificate(
    client: Client,
    namespace: &str,
    certificate: watch::Sender<Option<Arc<ServerConfig>>>,
) -> Infallible {
    let home = Home::new(client, namespace);
    let mut in_force = None;
    let mut said = String::new();
    loop {
        let now = Instant::now();
        let issued = match home.stored_authority().await {
            // The leader is about to make it.
            Ok(None) => Ok(()),
            Ok(Some(authority)) => {
                let kept = authority.to_kept();
                let is_due = in_force.as_ref().is_none_or(|(known, since)| {
                    *known != kept || now - *since >= CERTIFICATE_RENEWAL
                });
                match is_due {
                    false => Ok(()),
                    true => page_server(&authority).map(|server| {
                        certificate.send_replace(Some(Arc::new(server)));
                        in_force = Some((kept, now));
                    }),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        match issued {
            Ok(()) => said.clear(),
            Err(error) if error != said => {
                tracing::warn!(
                    "the certificate of the metrics page stays as it is: {error}; trying on"
                );
                said = error;
            }
            Err(_) => {}
        }
        sleep(AUTHORITY_POLL).await;
    }
}

fn page_server(authority: &Authority) -> Result<ServerConfig, String> {
    let own = authority
        .operator_server(&[])
        .map_err(|error| error.to_string())?;
    let server = tls::page_server(own.certificate.as_bytes(), own.key.as_bytes());
    server.map_err(|error| format!("TLS cannot use it: {error}; see the Secret weft-ca"))
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
    use std::num::NonZeroU32;

    use axum::{
        body::Body,
        http::{Request, header},
    };
    use k8s_openapi::api::core::v1::Secret;
    use tower::ServiceExt as _;
    use weft_identity::metrics_access::{Review, Reviewer, Verdict};

    use super::*;
    use crate::controllers::tests::api_server::ApiServer;

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

    /// Everybody may read who has a token.
    #[derive(Debug)]
    struct All;

    #[tonic::async_trait]
    impl Reviewer for All {
        async fn review(&self, token: &str) -> Result<Review, String> {
            let user = token.to_owned();
            Ok(Verdict::Allowed { user }.review())
        }
    }

    async fn status(routes: &Router, path: &str, token: Option<&str>) -> u16 {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        routes
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    }

    #[tokio::test]
    async fn metrics_are_protected_where_that_is_asked_for_and_probes_never_are() {
        let access = Arc::new(MetricsAccess::new(All, NonZeroU32::MIN));
        let (_standing, readiness) = watch::channel(Standing::Standby);
        let (_certificate, in_force) = watch::channel(None);
        let of = |access| {
            let heartbeat = Heartbeat::default();
            pages(Registry::default(), readiness.clone(), heartbeat, access)
        };
        let open = of(None);
        assert!(open.tls.is_none());
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(status(&open.plain, path, None).await, 200, "{path}");
        }
        let protected = of(Some((&access, in_force)));
        let tls = protected.tls.unwrap().1;
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status(&protected.plain, path, None).await, 200, "{path}");
            assert_eq!(status(&tls, path, None).await, 200, "{path}");
        }
        assert_eq!(status(&protected.plain, "/metrics", Some("t")).await, 403);
        assert_eq!(status(&tls, "/metrics", None).await, 401);
        assert_eq!(status(&tls, "/metrics", Some("t")).await, 200);
    }

    /// Lets the test's own time pass.
    async fn pass(time: Duration) {
        // Nothing else ends it.
        let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_shows_a_certificate_of_the_authority_in_force_leading_or_not() {
        let server = ApiServer::new();
        let (sender, certificate) = watch::channel(None);
        let client = server.client();
        let home = Home::new(server.client(), "weft-system");
        tokio::spawn(async move { keep_certificate(client, "weft-system", sender).await });
        let shown = async || {
            pass(2 * AUTHORITY_POLL).await;
            certificate.borrow().clone()
        };
        assert!(shown().await.is_none());
        // As the first leader does.
        home.authority().await.unwrap();
        let first = shown().await.expect("it is shown");
        let same = shown().await.unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        server.delete::<Secret>("weft-system", "weft-ca");
        let kept = shown().await.unwrap();
        assert!(Arc::ptr_eq(&first, &kept));
        home.authority().await.unwrap();
        let second = shown().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        pass(CERTIFICATE_RENEWAL).await;
        let renewed = shown().await.unwrap();
        assert!(!Arc::ptr_eq(&second, &renewed));
    }
}
