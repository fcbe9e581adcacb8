//! TLS configurations: which certificate to present, and which authorities to trust.
//!
//! Servers take rustls' configuration, and so does a client with many connections, which then share it. Other gRPC
//! clients take tonic's.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer, UnixTime,
        pem::{self, PemObject as _},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
    sign::CertifiedKey,
};

use crate::authority::{AuthorityError, Identity};

/// The protocol of gRPC, as a TLS handshake names it.
pub const HTTP2: &[u8] = b"h2";
/// The protocol of the API server's proxy.
pub const HTTP1: &[u8] = b"http/1.1";

/// Why certificates or keys cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The authorities' certificates are not PEM.
    #[error("no PEM ({0})")]
    NotPem(pem::Error),
    /// There is none.
    #[error("no PEM certificate in it")]
    NoAuthority,
    /// A certificate to show is not PEM.
    #[error("its certificate is no PEM ({0})")]
    CertificateNotPem(pem::Error),
    /// A private key is not PEM.
    #[error("no PEM private key in it ({0})")]
    KeyNotPem(pem::Error),
    /// TLS takes no such certificate, or not that key for it.
    #[error(transparent)]
    Refused(#[from] rustls::Error),
    /// Clients cannot be checked by these authorities.
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
}

/// Believes these authorities (PEM); there is at least one.
///
/// # Errors
/// There is none, or one that is no authority's certificate.
pub fn roots(authorities: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority.map_err(TlsError::NotPem)?)?;
    }
    match roots.is_empty() {
        true => Err(TlsError::NoAuthority),
        false => Ok(roots),
    }
}

/// A certificate with what vouches for it, and its private key, both from PEM.
///
/// # Errors
/// One of the two cannot be read. Whether the key is the certificate's is not looked at.
pub fn chain_and_key(
    certificate: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(TlsError::CertificateNotPem)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::KeyNotPem)?;
    Ok((chain, key))
}

/// Whether the key belongs to the certificate: the transport would say so only when somebody calls.
///
/// # Errors
/// It does not, or one of the two cannot be read.
pub fn check_key(certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
    let (chain, key) = chain_and_key(certificate, key)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(())
}

/// Whether the authorities (PEM) vouch for the certificate at a time: peers would say so only when somebody calls.
///
/// # Errors
/// They do not, it is out of date, or one of the two cannot be read.
pub fn check_issuer(certificate: &[u8], authorities: &[u8], at: UnixTime) -> Result<(), TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(TlsError::CertificateNotPem)?;
    let (first, intermediates) = chain.split_first().ok_or(TlsError::NoAuthority)?;
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(authorities)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
    verifier.verify_client_cert(first, intermediates, at)?;
    Ok(())
}

/// What a server asks of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// A certificate of the authorities.
    Required,
    /// One, or none.
    Optional,
}

/// A server that shows `certificate`, asks clients for one of `authorities` (all PEM), and speaks `protocol`.
///
/// # Errors
/// One of the three cannot be used.
pub fn server(
    certificate: &[u8],
    key: &[u8],
    authorities: &[u8],
    client: ClientCertificate,
    protocol: &[u8],
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(authorities)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let verifier = match client {
        ClientCertificate::Required => verifier,
        ClientCertificate::Optional => verifier.allow_unauthenticated(),
    };
    let (chain, key) = chain_and_key(certificate, key)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// A server of pages over HTTP that shows `certificate` (PEM) and asks clients for none.
///
/// # Errors
/// One of the two cannot be used.
pub fn page_server(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, TlsError> {
    let (chain, key) = chain_and_key(certificate, key)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(config)
}

/// A client that shows the operator's `identity`, and believes certificates of `authorities` (PEM) only.
///
/// # Errors
/// What was kept of the authority cannot be used.
pub fn operator_client(
    authorities: &str,
    identity: &Identity,
) -> Result<ClientConfig, AuthorityError> {
    let own = |error: TlsError| AuthorityError::Kept {
        part: "ca.key",
        problem: format!("the operator's certificate made with it cannot be shown: {error}"),
    };
    let roots = roots(authorities.as_bytes()).map_err(|error| AuthorityError::Kept {
        part: "ca.crt",
        problem: error.to_string(),
    })?;
    let (chain, key) =
        chain_and_key(identity.certificate.as_bytes(), identity.key.as_bytes()).map_err(own)?;
    let provider = Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            let builder = builder.with_root_certificates(roots);
            builder.with_client_auth_cert(chain, key)
        })
        .map_err(|error| own(error.into()))
}
