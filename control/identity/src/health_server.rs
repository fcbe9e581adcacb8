//! The HTTP server of the pages for probes and Prometheus. Everybody who reaches it is served, so it bounds what a caller
//! can hold: the number of connections, the time for a request's head, and the life of a connection.
//!
//! One port has HTTP and HTTPS, which the first byte of a connection tells apart: the kubelet's probes come without TLS,
//! and also before there is a certificate.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower_http::compression::CompressionLayer;

use crate::{
    connection_limit::ConnectionLimit,
    metrics_access::{MetricsAccess, refuse_without_tls},
    tls_listener::HANDSHAKE_TIMEOUT,
};

/// Connections at a time. One more ends the oldest of the address that has the most, so that the kubelet's probes
/// are answered whatever another caller does.
pub const CONNECTIONS_MAX: usize = 64;
/// For the head of a request, from the connection's beginning or the last answer on.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// For a whole connection: a caller who does not read the answer holds it no longer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a request's head. hyper takes no less than 8 KiB.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// After an error of accept, which is of this process's limits: too many files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The first byte of a TLS connection: the type of a handshake's record (RFC 8446, section 5.1). No method of HTTP begins
/// with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// The certificate that is in force; none while the server has no certificate.
pub type Certificate = watch::Receiver<Option<Arc<ServerConfig>>>;

/// What the server answers.
#[derive(Debug, Clone)]
pub struct Pages {
    /// Without TLS.
    pub plain: Router,
    /// Over TLS, where it is served. Callers are refused while there is no certificate.
    pub tls: Option<(Certificate, Router)>,
}

impl Pages {
    /// Metrics beside the pages for probes. With `access`, metrics are given over TLS only, to those who may read them.
    pub fn of_metrics(
        metrics: Router,
        probes: Router,
        access: Option<(&Arc<MetricsAccess>, Certificate)>,
    ) -> Self {
        match access {
            None => probes.merge(metrics).into(),
            Some((access, certificate)) => Self {
                plain: (probes.clone())
                    .route("/metrics", get(refuse_without_tls))
                    .route("/metrics/{page}", get(refuse_without_tls)),
                tls: Some((certificate, access.protect(metrics).merge(probes))),
            },
        }
    }
}

impl From<Router> for Pages {
    /// Without TLS only.
    fn from(plain: Router) -> Self {
        Self { plain, tls: None }
    }
}

/// Serves the pages until it is dropped; they are compressed for callers that accept gzip.
pub async fn serve(listener: TcpListener, pages: impl Into<Pages>) -> Infallible {
    let Pages { plain, tls } = pages.into();
    let compressed = |routes: Router| routes.layer(CompressionLayer::new());
    let pages = Pages {
        plain: compressed(plain),
        tls: tls.map(|(certificate, routes)| (certificate, compressed(routes))),
    };
    let mut connections = JoinSet::new();
    let mut limit = ConnectionLimit::new(CONNECTIONS_MAX);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let served = connections.spawn(connection(stream, pages.clone()));
                    limit.add(from.ip(), served);
                }
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}: raise the limit on open files");
                    sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, pages: Pages) -> io::Result<()> {
    let Some((certificate, routes)) = pages.tls else {
        answer(stream, pages.plain).await;
        return Ok(());
    };
    let mut first = [0];
    timeout(HEADER_TIMEOUT, stream.peek(&mut first)).await??;
    if first != [TLS_HANDSHAKE] {
        answer(stream, pages.plain).await;
        return Ok(());
    }
    let in_force = certificate.borrow().clone();
    if let Some(in_force) = in_force {
        let handshake = TlsAcceptor::from(in_force).accept(stream);
        answer(timeout(HANDSHAKE_TIMEOUT, handshake).await??, routes).await;
    }
    Ok(())
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) {
    let mut server = Builder::new(TokioExecutor::new()).http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX);
    let served = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // The caller's errors concern nobody else.
    let _ = timeout(CONNECTION_TIMEOUT, served).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{authority::Authority, tls};

    /// Serves one page at the address that it returns.
    async fn server() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/healthz", get(|| async { "ok\n" }));
        tokio::spawn(serve(listener, routes));
        address
    }

    async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn read(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    const WHOLE: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    #[tokio::test]
    async fn a_thousand_slow_callers_hold_a_few_connections_and_keep_nobody_out() {
        let address = server().await;
        let mut slow = Vec::new();
        for _ in 0..1000 {
            slow.push(send(address, "GET /healthz HTTP/1.1\r\nHost: ").await);
        }
        assert!(read(send(address, WHOLE).await).await.ends_with("ok\n"));
        // The newest ones are open, the others were closed.
        let newest = slow.split_off(1000 - CONNECTIONS_MAX / 2);
        for stream in slow.drain(..900) {
            assert_eq!(read(stream).await, "");
        }
        for stream in newest {
            let waits = timeout(Duration::from_millis(1), read(stream)).await;
            assert!(waits.is_err(), "{waits:?}");
        }
    }

    #[tokio::test]
    async fn a_page_is_compressed_for_who_asks_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = "weft_connections 1\n".repeat(1000);
        let length = page.len();
        let routes = Router::new().route("/metrics", get(move || async { page }));
        tokio::spawn(serve(listener, routes));
        let ask = async |header: &str| {
            let head =
                format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
            let mut stream = send(address, &head).await;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let plain = ask("").await;
        assert!(plain.len() > length, "{}", plain.len());
        let compressed = ask("Accept-Encoding: gzip\r\n").await;
        assert!(compressed.len() < length / 10, "{}", compressed.len());
        let text = String::from_utf8_lossy(&compressed);
        assert!(text.contains("content-encoding: gzip"), "{text}");
    }

    /// Time passes at once where all wait.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_and_one_without_end_close_the_connection() {
        let address = server().await;
        let begun = tokio::time::Instant::now();
        assert_eq!(
            read(send(address, "GET /healthz HTTP/1.1\r\nHost: ").await).await,
            ""
        );
        assert!(begun.elapsed() >= HEADER_TIMEOUT);
        let endless = format!(
            "GET /healthz HTTP/1.1\r\nx: {}",
            "x".repeat(2 * HEADER_BYTES_MAX)
        );
        let answer = read(send(address, &endless).await).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_of_a_port_with_tls_that_says_nothing_or_half_a_handshake_is_cut_off() {
        let own = Authority::new("lab").unwrap().operator_server(&[]).unwrap();
        let config = tls::page_server(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
        let (_sender, certificate) = watch::channel(Some(Arc::new(config)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pages = Pages {
            plain: Router::new(),
            tls: Some((certificate, Router::new())),
        };
        tokio::spawn(serve(listener, pages));
        let half = "\u{16}\u{3}\u{1}\u{2}";
        for (said, limit) in [("", HEADER_TIMEOUT), (half, HANDSHAKE_TIMEOUT)] {
            let begun = tokio::time::Instant::now();
            assert_eq!(read(send(address, said).await).await, "");
            let passed = begun.elapsed();
            assert!(passed >= limit && passed < 2 * limit, "{passed:?}");
        }
    }
}
