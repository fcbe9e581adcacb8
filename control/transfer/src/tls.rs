//! TLS to agents: what the operator shows and whom it believes is the same for all agents of a fabric, and
//! is held once. A library that makes it for each connection keeps a store of sessions with each.

use std::{io, sync::Arc};

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use weft_identity::{
    authority::{AuthorityError, Identity},
    tls::operator_client,
};

use super::CONTACT_TRY;

/// What agents speak (RFC 9113).
const HTTP2: &[u8] = b"h2";

/// A connection that has shown what it is, for the HTTP library.
pub(super) type Stream = TokioIo<TlsStream<TcpStream>>;

/// Shows `identity`, and believes certificates of `authorities` only.
pub(super) fn config(
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
pub(super) async fn dial(
    address: String,
    name: String,
    config: Arc<ClientConfig>,
) -> io::Result<Stream> {
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let connected = timeout(CONTACT_TRY, async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    });
    let late = |_| io::Error::other(format!("no connection within {CONTACT_TRY:?}"));
    let stream = connected.await.map_err(late)??;
    if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
        return Err(io::Error::other("what answers there does not speak HTTP/2"));
    }
    Ok(TokioIo::new(stream))
}
