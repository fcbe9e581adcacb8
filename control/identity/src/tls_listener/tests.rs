use futures::StreamExt as _;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{
    OPERATOR_NAME,
    authority::Authority,
    tls::{self, ClientCertificate},
};

/// A listener of the operator's, and callers of it.
struct Stage {
    address: SocketAddr,
    authority: Authority,
    refusals: TlsRefusals,
}

impl Stage {
    async fn new(client: ClientCertificate) -> (Self, TlsListener) {
        let authority = Authority::new("weft").unwrap();
        let own = authority.operator_server(&[]).unwrap();
        let configuration = tls::server(
            own.certificate.as_bytes(),
            own.key.as_bytes(),
            authority.certificate().as_bytes(),
            client,
            tls::HTTP2,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stage = Self {
            address: listener.local_addr().unwrap(),
            authority,
            refusals: TlsRefusals::default(),
        };
        let listener = TlsListener::new(
            Arc::new(listener),
            Arc::new(configuration.unwrap()),
            stage.refusals.clone(),
        );
        (stage, listener)
    }

    /// Accepts connections, answers the first byte of each, and holds it until its end.
    async fn serving(client: ClientCertificate) -> Self {
        let (stage, mut listener) = Self::new(client).await;
        tokio::spawn(async move {
            loop {
                let mut connection = listener.accept().await;
                tokio::spawn(async move {
                    let mut byte = [0];
                    while connection.read_exact(&mut byte).await.is_ok() {
                        connection.write_all(&byte).await.unwrap();
                        connection.flush().await.unwrap();
                    }
                });
            }
        });
        stage
    }

    fn connector(&self, certified: bool) -> TlsConnector {
        let config = if certified {
            let own = self.authority.operator().unwrap();
            tls::operator_client(self.authority.certificate(), &own).unwrap()
        } else {
            let mut roots = RootCertStore::empty();
            let certificates = tls::roots(self.authority.certificate().as_bytes()).unwrap();
            roots.roots.extend(certificates.roots);
            ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth()
        };
        TlsConnector::from(Arc::new(config))
    }

    /// A connection over which the server has answered.
    async fn call(
        &self,
        connector: &TlsConnector,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = OPERATOR_NAME.try_into().unwrap();
        let mut connection = connector.connect(name, stream).await?;
        connection.write_all(b"?").await?;
        connection.read_exact(&mut [0]).await?;
        Ok(connection)
    }

    /// Waits until so many were refused.
    async fn refused(&self, reason: &'static str, count: u64) {
        let waited = timeout(HANDSHAKE_TIMEOUT * 2, async {
            while self.refusals.of(reason).get() < count {
                tokio::task::yield_now().await;
            }
        });
        assert!(waited.await.is_ok(), "{}", self.refusals.of(reason).get());
        assert_eq!(self.refusals.of(reason).get(), count);
    }
}

#[tokio::test]
async fn a_thousand_callers_without_a_handshake_hold_a_few_connections_and_keep_nobody_out() {
    for client in [ClientCertificate::Required, ClientCertificate::Optional] {
        let stage = Stage::serving(client).await;
        let mut slow = Vec::new();
        for _ in 0..1000 {
            slow.push(TcpStream::connect(stage.address).await.unwrap());
        }
        // Before anybody's time is over.
        let certified = stage.connector(true);
        let call = timeout(HANDSHAKE_TIMEOUT / 2, stage.call(&certified));
        call.await.unwrap().unwrap();
        stage.refused("TooMany", 1001 - HANDSHAKES_MAX as u64).await;
        for mut stream in slow.drain(..500) {
            // Closed or reset.
            let _ = stream.read(&mut [0]).await;
        }
    }
}

#[tokio::test]
async fn a_caller_whose_handshake_fails_is_counted_and_one_that_is_silent_is_cut_off() {
    let stage = Stage::serving(ClientCertificate::Required).await;
    let mut plain = TcpStream::connect(stage.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    stage.refused("Handshake", 1).await;
    stage.call(&stage.connector(false)).await.unwrap_err();
    stage.refused("Handshake", 2).await;
    tokio::time::pause();
    let mut silent = TcpStream::connect(stage.address).await.unwrap();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
    stage.refused("Timeout", 1).await;
}

#[tokio::test]
async fn callers_without_a_certificate_hold_a_bounded_number_of_connections_for_a_bounded_time() {
    let stage = Stage::serving(ClientCertificate::Optional).await;
    let anonymous = stage.connector(false);
    let mut held = Vec::new();
    for _ in 0..ANONYMOUS_PER_ADDRESS_MAX {
        held.push(stage.call(&anonymous).await.unwrap());
    }
    stage.call(&anonymous).await.unwrap_err();
    stage.refused("TooMany", 1).await;
    // A caller with a certificate is not counted.
    let mut certified = stage.call(&stage.connector(true)).await.unwrap();
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    for connection in &mut held {
        connection.read_exact(&mut [0]).await.unwrap_err();
    }
    assert!(begun.elapsed() <= ANONYMOUS_TIMEOUT);
    tokio::time::resume();
    stage.call(&anonymous).await.unwrap();
    certified.write_all(b"?").await.unwrap();
    certified.read_exact(&mut [0]).await.unwrap();
}

#[tokio::test]
async fn a_listener_that_is_replaced_finishes_the_handshakes_that_have_begun() {
    let (stage, mut listener) = Stage::new(ClientCertificate::Required).await;
    let stream = TcpStream::connect(stage.address).await.unwrap();
    while listener.handshakes.is_empty() {
        assert!(futures::poll!(Box::pin(listener.next(true))).is_pending());
        tokio::task::yield_now().await;
    }
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let mut connections = Box::pin(listener.connections(async {
        let _ = ended.await;
    }));
    drop(end);
    let connector = stage.connector(true);
    let name = OPERATOR_NAME.try_into().unwrap();
    let (called, accepted) = tokio::join!(connector.connect(name, stream), connections.next());
    called.unwrap();
    accepted.unwrap().unwrap();
    assert!(connections.next().await.is_none());
}
