//! Who may read an agent's metrics.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::{Client, StatusCode};
use rustls::ClientConfig;
use rustls::crypto::ring;
use weft_identity::tls;

use crate::operator::{Member, Operator};
use crate::support::{Lab, eventually};

/// The name in the certificate of the first node.
const NAME: &str = "n0.lab.weft";

async fn join(operator: &Operator) -> Member {
    operator.join_with(0, |s| s.metrics_auth = true).await
}

/// A client of the first node that asks for a certificate of the authority in force.
async fn client(operator: &Operator) -> Client {
    let lab = operator.lab().await;
    let roots = tls::roots(lab.authority().as_bytes()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address: SocketAddr = lab.metrics(0).parse().unwrap();
    Client::builder()
        .tls_backend_preconfigured(config)
        .resolve(NAME, address)
        // Each call meets the certificate in force.
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

/// The status and the text of a page over TLS.
async fn ask(client: &Client, path: &str, token: &str) -> reqwest::Result<(StatusCode, String)> {
    let request = client.get(format!("https://{NAME}:7401{path}"));
    let answer = match token {
        "" => request.send().await?,
        token => request.bearer_auth(token).send().await?,
    };
    Ok((answer.status(), answer.text().await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_users_whom_the_operator_allows_and_it_is_asked_once_a_minute() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let member = join(&operator).await;
    operator.ready(0).await;
    let lab = operator.lab().await;
    let ready = lab.get(0, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    for path in ["/metrics", "/metrics/paths"] {
        let refused = lab.get(0, path).await;
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    }
    let client = client(&operator).await;
    for path in ["/metrics", "/metrics/paths"] {
        for (token, status, text) in [
            ("", StatusCode::UNAUTHORIZED, "the request has no token"),
            ("stranger", StatusCode::UNAUTHORIZED, "nobody has it"),
            ("guest", StatusCode::FORBIDDEN, "guest may not `get`"),
            ("reader", StatusCode::OK, "# EOF"),
        ] {
            let answer = ask(&client, path, token).await.unwrap();
            assert_eq!(answer.0, status, "{path} {token}: {}", answer.1);
            assert!(answer.1.contains(text), "{path} {token}: {}", answer.1);
        }
    }
    let metrics = ask(&client, "/metrics", "reader").await.unwrap().1;
    assert!(metrics.contains("weft_build_info"), "{metrics}");
    assert_eq!(operator.reviews(), 3);
    // While the operator is away, known readers go on reading, and others learn nothing.
    running.stop().await;
    let (status, _) = ask(&client, "/metrics", "reader").await.unwrap();
    assert_eq!(status, StatusCode::OK);
    let (status, text) = ask(&client, "/metrics", "another").await.unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(text.contains("cannot be checked now"), "{text}");
    assert!(text.contains("operator"), "{text}");
    drop(lab);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_metrics_shows_the_new_certificate_once_the_authority_is_another() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let member = join(&operator).await;
    operator.ready(0).await;
    let before = client(&operator).await;
    ask(&before, "/metrics", "reader").await.unwrap();
    running.stop().await;
    operator.rotate().await;
    let running = operator.serve().await;
    let after = client(&operator).await;
    let asked = || async { ask(&after, "/metrics", "reader").await.ok() };
    let (status, _) = eventually("the new certificate is shown", asked).await;
    assert_eq!(status, StatusCode::OK);
    assert!(ask(&before, "/metrics", "reader").await.is_err());
    member.stop().await;
    running.stop().await;
}
