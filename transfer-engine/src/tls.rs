//! The TLS of set-up. Each engine makes a certificate at its start; its address holds it, and peers trust nothing else.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

/// The name in all certificates.
pub(crate) const SERVER_NAME: &str = "weft";

/// A new certificate, and the server that has its key.
pub(crate) fn new_identity() -> io::Result<(CertificateDer<'static>, ServerConfig)> {
    let names = [SERVER_NAME.to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let certificate = CertificateDer::from(made.cert);
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.map_err(io::Error::other)?);
    Ok((certificate, server.map_err(io::Error::other)?))
}

/// A client that accepts the engine with this certificate only.
pub(crate) fn client_of(certificate: &[u8]) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate))?;
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(client)
}

/// Whether `error` says that the server has another certificate.
pub(crate) fn is_other_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    matches!(error, Some(Error::InvalidCertificate(_)))
}
