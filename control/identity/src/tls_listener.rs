//! A listener whose connections have finished their TLS handshake. It bounds what a caller can hold before it has
//! shown a certificate, and counts the callers that it refuses.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, stream};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo, TlsConnectInfo};
use weft_metrics::Metric;

use crate::connection_limit::ConnectionLimit;

/// For a handshake, from the connection's beginning.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at a time, of some 30 KiB each. One more ends the oldest of the address that has the most: a proper
/// caller needs milliseconds, and a caller that only holds connections keeps no other out.
pub const HANDSHAKES_MAX: usize = 256;
/// Connections at a time of callers without a certificate. Agents that enroll need one each, for one call.
pub const ANONYMOUS_MAX: usize = 512;
/// Of these from one address, which many nodes can share behind a NAT.
pub const ANONYMOUS_PER_ADDRESS_MAX: usize = 128;
/// The life of a connection without a certificate.
pub const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(30);
/// After an error of accept, which is of this process's limits: too many files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Counts callers that were refused before their first call.
#[derive(Debug, Clone, Default)]
pub struct TlsRefusals(Family<Vec<(&'static str, &'static str)>, Counter>);

impl TlsRefusals {
    /// Shows it as this metric, whose label is the reason.
    pub fn register(&self, registry: &mut Registry, metric: &'static Metric<1>) {
        weft_metrics::register(registry, metric, self.0.clone());
    }

    /// Counts one.
    pub fn count(&self, reason: &'static str) {
        self.of(reason).inc();
    }

    /// Those of a reason.
    #[must_use]
    pub fn of(&self, reason: &'static str) -> Counter {
        self.0.get_or_create_owned(&vec![("reason", reason)])
    }
}

/// Connections of one TLS configuration. Dropping it ends the handshakes that have begun.
#[derive(Debug)]
pub struct TlsListener {
    listener: Arc<TcpListener>,
    configuration: Arc<ServerConfig>,
    handshakes: JoinSet<Option<TlsConnection>>,
    limit: ConnectionLimit,
    anonymous: Arc<Anonymous>,
    refusals: TlsRefusals,
}

impl TlsListener {
    /// With this certificate, and these authorities of clients.
    #[must_use]
    pub fn new(
        listener: Arc<TcpListener>,
        configuration: Arc<ServerConfig>,
        refusals: TlsRefusals,
    ) -> Self {
        Self {
            listener,
            configuration,
            handshakes: JoinSet::new(),
            limit: ConnectionLimit::new(HANDSHAKES_MAX),
            anonymous: Arc::default(),
            refusals,
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection.
    pub async fn accept(&mut self) -> TlsConnection {
        loop {
            if let Some(connection) = self.next(true).await {
                return connection;
            }
        }
    }

    /// Connections until `end`; handshakes that have begun by then are finished.
    pub fn connections(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> impl Stream<Item = io::Result<TlsConnection>> + Send {
        let state = (self, Some(Box::pin(end)));
        stream::unfold(state, async |(mut listener, mut end)| {
            loop {
                let connection = match &mut end {
                    Some(ended) => tokio::select! {
                        () = ended => None,
                        connection = listener.next(true) => connection,
                    },
                    None => Some(listener.next(false).await?),
                };
                match connection {
                    Some(connection) => return Some((Ok(connection), (listener, end))),
                    None => end = None,
                }
            }
        })
    }

    /// The next connection. `None` once no handshake is left and `accepts` is false.
    async fn next(&mut self, accepts: bool) -> Option<TlsConnection> {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if accepts => match accepted {
                    Ok((stream, from)) => self.start_handshake(stream, from),
                    Err(error) => {
                        tracing::warn!("a connection could not be accepted: {error}: raise the limit on open files");
                        sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Some(connection)) => return Some(connection),
                    Ok(None) => {}
                    Err(error) => if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                },
                else => return None,
            }
        }
    }

    fn start_handshake(&mut self, stream: TcpStream, from: SocketAddr) {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.configuration));
        let (anonymous, refusals) = (Arc::clone(&self.anonymous), self.refusals.clone());
        let handshake = self.handshakes.spawn(async move {
            // Calls are small, and each waits for its answer.
            let _ = stream.set_nodelay(true);
            let reason = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => match TlsConnection::new(stream, from, &anonymous) {
                    Some(connection) => return Some(connection),
                    None => "TooMany",
                },
                Ok(Err(error)) => {
                    tracing::debug!(%from, %error, "no handshake");
                    "Handshake"
                }
                Err(_) => "Timeout",
            };
            refusals.count(reason);
            None
        });
        if self.limit.add(from.ip(), handshake) {
            self.refusals.count("TooMany");
        }
    }
}

/// How many connections without a certificate there are, by the caller's address.
#[derive(Debug, Default)]
struct Anonymous(Mutex<HashMap<IpAddr, usize>>);

impl Anonymous {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more, if there may be one.
    fn admit(self: &Arc<Self>, from: IpAddr) -> Option<AnonymousLife> {
        let mut counts = self.counts();
        let all: usize = counts.values().sum();
        let count = counts.entry(from).or_default();
        if all >= ANONYMOUS_MAX || *count >= ANONYMOUS_PER_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(AnonymousLife {
            end: Box::pin(sleep(ANONYMOUS_TIMEOUT)),
            anonymous: Arc::clone(self),
            from,
        })
    }
}

/// The life of a connection without a certificate.
#[derive(Debug)]
struct AnonymousLife {
    end: Pin<Box<Sleep>>,
    anonymous: Arc<Anonymous>,
    from: IpAddr,
}

impl Drop for AnonymousLife {
    fn drop(&mut self) {
        let mut counts = self.anonymous.counts();
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// A connection after its handshake. One without a certificate ends after [`ANONYMOUS_TIMEOUT`].
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    peer_address: SocketAddr,
    anonymous: Option<AnonymousLife>,
}

impl TlsConnection {
    /// None: there are too many without a certificate.
    fn new(
        stream: TlsStream<TcpStream>,
        from: SocketAddr,
        anonymous: &Arc<Anonymous>,
    ) -> Option<Self> {
        let anonymous = match stream.get_ref().1.peer_certificates() {
            Some(_) => None,
            None => Some(anonymous.admit(from.ip().to_canonical())?),
        };
        Some(Self {
            stream,
            peer_address: from,
            anonymous,
        })
    }

    /// The caller's address.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// The certificate that the caller has shown.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.stream.get_ref().1.peer_certificates()?.first()
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(anonymous) = &mut self.anonymous else {
            return Poll::Pending;
        };
        ready!(anonymous.end.as_mut().poll(context));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = TlsConnectInfo<TcpConnectInfo>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_end(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
