//! TLS to agents. All connections of a fabric share one configuration: one for each connection would keep a
//! store of sessions with each.

use std::{io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use weft_identity::{
    authority::{AuthorityError, Identity},
    tls::operator_client,
};

/// How long one try to reach a node takes, TLS included: a management network
/// answers within milliseconds, and a SYN that was lost is sent again after 1 s.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_millis(1500);

/// What agents speak (RFC 9113).
const HTTP2: &[u8] = b"h2";

/// A connection after its TLS handshake, for the HTTP library.
pub(crate) type Stream = TokioIo<TlsStream<TcpStream>>;

/// Presents `identity`, and trusts certificates of `authorities` only.
pub(crate) fn config(
    authorities: &str,
    identity: &Identity,
) -> Result<Arc<ClientConfig>, AuthorityError> {
    let mut config = operator_client(authorities, identity)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    // An agent is called over one connection for as long as it is needed.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Connects to HOST:PORT; what answers has a certificate of that name.
pub(crate) async fn dial(
    address: String,
    name: String,
    config: Arc<ClientConfig>,
) -> io::Result<Stream> {
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let connected = timeout(CONNECT_WITHIN, async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    });
    let late = |_| io::Error::other(format!("no connection within {CONNECT_WITHIN:?}"));
    let stream = connected.await.map_err(late)??;
    if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
        return Err(io::Error::other("what answers there does not speak HTTP/2"));
    }
    Ok(TokioIo::new(stream))
}
