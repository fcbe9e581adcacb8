//! TLS configurations: which certificate to present, and which authorities to trust.
//!
//! Servers and most gRPC clients take tonic's configuration. A client with many connections takes rustls',
//! so that all of them share one configuration.

use std::{sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    sign::CertifiedKey,
};
use tonic::transport::{self, ServerTlsConfig};

use crate::authority::{AuthorityError, Identity};

/// A caller that has not shown its certificate by then is cut off: nothing is known of it yet.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

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

/// A server of gRPC that shows `identity` and requires a certificate of `authority`.
#[must_use]
pub fn server(identity: transport::Identity, authority: transport::Certificate) -> ServerTlsConfig {
    ServerTlsConfig::new()
        .identity(identity)
        .client_ca_root(authority)
        .timeout(HANDSHAKE_WITHIN)
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
