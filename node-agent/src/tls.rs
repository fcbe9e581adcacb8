//! The agent's certificate and its fabric's authority, as servers and clients need them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use weft_identity::server_name;
use weft_identity::tls::{self, ClientCertificate, check_key, roots};

use crate::config::TlsFiles;
use crate::config::values::{FabricName, NodeName};
use crate::identity::{self, Caller};

/// A certificate file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tls.{field}: {}: {problem}: {remedy}", path.display())]
pub struct TlsError {
    /// Which of `ca`, `certificate`, `key`.
    field: &'static str,
    /// The file.
    path: PathBuf,
    /// What is wrong with it.
    problem: String,
    /// What to do.
    remedy: String,
}

/// PEM material as it was read, and where from.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    node: NodeName,
    /// Tells other contents of the files from these.
    fingerprint: blake3::Hash,
    server: Arc<ServerConfig>,
    authority: Certificate,
    identity: Identity,
    fabric: FabricName,
    node_key: [u8; 32],
    expires: i64,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("fabric", &self.fabric)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files and checks that the certificate is this node's.
    pub fn read(files: &TlsFiles, node: &NodeName, fabric: &FabricName) -> Result<Self, TlsError> {
        let authority = read("ca", &files.ca)?;
        let certificate = read("certificate", &files.certificate)?;
        let key = read("key", &files.key)?;
        let contents = [&authority, &certificate, &key].map(|file| *blake3::hash(file).as_bytes());
        let not_ours = |problem: String| {
            let remedy = format!("issue one with URI SAN weft://{fabric}/node/{node}");
            wrong("certificate", &files.certificate, problem, &remedy)
        };
        let (_, pem) = x509_parser::pem::parse_x509_pem(&certificate).map_err(|_| {
            let remedy = "give the node's certificate chain";
            wrong(
                "certificate",
                &files.certificate,
                "no PEM certificate in it",
                remedy,
            )
        })?;
        match identity::caller(&pem.contents, fabric) {
            Ok(Caller::Node(name)) if name == *node => {}
            Ok(other) => return Err(not_ours(format!("it is of {other}"))),
            Err(error) => return Err(not_ours(format!("it {error}"))),
        }
        let parsed = pem.parse_x509();
        let parsed = parsed.map_err(|error| not_ours(format!("it cannot be read ({error})")))?;
        let expires = parsed.validity().not_after.timestamp();
        // The transport would say so only when somebody calls.
        roots(&authority).map_err(|error| {
            let remedy = "give the PEM certificates of the fabric's authority";
            wrong("ca", &files.ca, error.to_string(), remedy)
        })?;
        check_key(&certificate, &key).map_err(|error| {
            let remedy = "give the PEM private key that tls.certificate was issued for";
            wrong("key", &files.key, error.to_string(), remedy)
        })?;
        tls::check_issuer(&certificate, &authority, UnixTime::now()).map_err(|error| {
            let authority = files.ca.display();
            let problem = format!("the authority of {authority} does not vouch for it ({error})");
            let remedy = "give a certificate that it has issued and that is in date, or the authority that issued this one";
            wrong("certificate", &files.certificate, problem, remedy)
        })?;
        let required = ClientCertificate::Required;
        let server = tls::server(&certificate, &key, &authority, required, tls::HTTP2);
        let server = server.map_err(|error| not_ours(format!("TLS cannot use it ({error})")))?;
        Ok(Self {
            server: Arc::new(server),
            files: files.clone(),
            node: node.clone(),
            fingerprint: blake3::hash(contents.as_flattened()),
            authority: Certificate::from_pem(authority),
            node_key: blake3::derive_key("weft 2026 node key of the data path", &key),
            identity: Identity::from_pem(certificate, key),
            fabric: fabric.clone(),
            expires,
        })
    }

    /// The Unix time at which the certificate ends.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.expires
    }

    /// What is in the files now, if it is something else.
    pub fn reread(&self) -> Result<Option<Self>, TlsError> {
        let now = Self::read(&self.files, &self.node, &self.fabric)?;
        Ok((now.fingerprint != self.fingerprint).then_some(now))
    }

    /// A key of the data path where none can be kept: the same as long as the
    /// private key is.
    #[must_use]
    pub fn node_key(&self) -> [u8; 32] {
        self.node_key
    }

    /// For the control API: a client certificate is required.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// For calling another node's agent: whoever answers must be that node of this fabric.
    #[must_use]
    pub fn client(&self, node: &str) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(self.authority.clone())
            .identity(self.identity.clone())
            .domain_name(server_name(self.fabric.as_str(), node))
    }
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let remedy = "correct the path or make it readable";
    std::fs::read(path).map_err(|error| wrong(field, path, error.to_string(), remedy))
}

fn wrong(field: &'static str, path: &Path, problem: impl Into<String>, remedy: &str) -> TlsError {
    TlsError {
        field,
        path: path.to_owned(),
        problem: problem.into(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn files_are_taken_up_again_only_when_they_hold_something_else_that_is_this_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let certify = |node: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            let uri = Ia5String::try_from(format!("weft://lab/node/{node}")).unwrap();
            params.subject_alt_names.push(SanType::URI(uri));
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            std::fs::write(file("ca"), &pem).unwrap();
            std::fs::write(file("certificate"), pem).unwrap();
            std::fs::write(file("key"), key.serialize_pem()).unwrap();
        };
        certify("n0");
        let files = TlsFiles {
            ca: file("ca"),
            certificate: file("certificate"),
            key: file("key"),
        };
        let (node, fabric) = ("n0".parse().unwrap(), "lab".parse().unwrap());
        let tls = Tls::read(&files, &node, &fabric).unwrap();
        assert!(tls.reread().unwrap().is_none());
        certify("n0");
        let renewed = tls.reread().unwrap().unwrap();
        assert!(renewed.reread().unwrap().is_none());
        certify("n1");
        let error = renewed.reread().unwrap_err().to_string();
        assert!(error.contains("it is of node n1: issue one"), "{error}");
        certify("n0");
        let good = |name: &str| std::fs::read(file(name)).unwrap();
        let (ca, key) = (good("ca"), good("key"));
        let half = ca[..ca.len() / 2].to_vec();
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
        for wrong in [half, broken, Vec::new(), key.clone()] {
            std::fs::write(file("ca"), wrong).unwrap();
            let error = renewed.reread().unwrap_err().to_string();
            assert!(
                error.starts_with("tls.ca") && error.contains("/ca"),
                "{error}"
            );
        }
        let certificate = good("certificate");
        certify("n0");
        std::fs::write(file("certificate"), certificate).unwrap();
        std::fs::write(file("key"), &key).unwrap();
        let error = renewed.reread().unwrap_err().to_string();
        assert!(
            error.starts_with("tls.certificate") && error.contains("does not vouch for it"),
            "{error}"
        );
        std::fs::write(file("ca"), ca).unwrap();
        let others = KeyPair::generate().unwrap().serialize_pem().into_bytes();
        for wrong in [b"half".to_vec(), others] {
            std::fs::write(file("key"), wrong).unwrap();
            let error = renewed.reread().unwrap_err().to_string();
            assert!(
                error.starts_with("tls.key") && error.contains("/key"),
                "{error}"
            );
        }
        std::fs::write(file("key"), key).unwrap();
        assert!(renewed.reread().unwrap().is_some());
        std::fs::write(file("certificate"), "half").unwrap();
        let error = renewed.reread().unwrap_err().to_string();
        assert!(error.contains("no PEM certificate in it"), "{error}");
        std::fs::remove_file(file("key")).unwrap();
        let error = renewed.reread().unwrap_err().to_string();
        assert!(error.starts_with("tls.key"), "{error}");
    }
}
