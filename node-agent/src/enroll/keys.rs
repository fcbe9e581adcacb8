//! The node's private key and what the operator has certified, in files that the agent reads again
//! when they change.
//!
//! The key is made once and kept; it never leaves the directory. The agent keeps the data path's key
//! beside it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _};
use rustls::ServerConfig;
use tonic::transport::Identity;
use weft_identity::tls;
use weft_proto::operator::v1::EnrollResponse;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::TlsFiles;
use crate::config::values::{FabricName, NodeName};
use crate::enroll::error::OperatorError;
use crate::identity::{self, Caller};
use crate::private_file;

/// When a certificate holds, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begins: u64,
    pub(crate) ends: u64,
}

impl Validity {
    /// When the next certificate is to be asked for: a third of the life is left for an operator that
    /// is away.
    pub(crate) fn renew_at(self) -> u64 {
        self.begins + self.ends.saturating_sub(self.begins) / 3 * 2
    }
}

/// The directory and the key in it.
#[derive(Debug)]
pub(crate) struct Keys {
    files: TlsFiles,
    pair: KeyPair,
}

impl Keys {
    /// Reads the key, or makes one where there is none that can be used.
    pub(crate) fn open(directory: &Path) -> Result<Self, OperatorError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| unusable(directory, &error))?;
        let files = TlsFiles {
            ca: directory.join("ca.pem"),
            certificate: directory.join("node.pem"),
            key: directory.join("node.key"),
        };
        let pair = match fs::read_to_string(&files.key) {
            Ok(text) => KeyPair::from_pem(&text)
                .inspect_err(|error| {
                    let file = files.key.display();
                    tracing::warn!("{file} holds no private key ({error}): a new one is made");
                })
                .ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unusable(&files.key, &error)),
        };
        let pair = match pair {
            Some(pair) => {
                private_file::restrict(&files.key).map_err(|error| unusable(&files.key, &error))?;
                pair
            }
            None => {
                let pair = KeyPair::generate().map_err(|error| unusable(&files.key, &error))?;
                replace(&files.key, pair.serialize_pem().as_bytes())?;
                pair
            }
        };
        Ok(Self { files, pair })
    }

    /// Where the agent finds them.
    pub(crate) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// PEM of a request that says nothing but the public key.
    pub(crate) fn request(&self) -> Result<String, OperatorError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .serialize_request(&self.pair)
            .and_then(|request| request.pem())
            .map_err(|error| unusable(&self.files.key, &error))
    }

    /// The certificate in force, with its key.
    pub(crate) fn identity(&self) -> Result<Identity, OperatorError> {
        let file = &self.files.certificate;
        let certificate = fs::read(file).map_err(|error| unusable(file, &error))?;
        Ok(Identity::from_pem(certificate, self.pair.serialize_pem()))
    }

    /// A server of pages that shows the certificate in force.
    pub(crate) fn page_server(&self) -> Result<ServerConfig, OperatorError> {
        let file = &self.files.certificate;
        let certificate = fs::read(file).map_err(|error| unusable(file, &error))?;
        let server = tls::page_server(&certificate, self.pair.serialize_pem().as_bytes());
        server.map_err(|error| unusable(file, &error))
    }

    /// Puts what the operator gave into the files, if it is for this node and this key.
    pub(crate) fn keep(
        &self,
        answer: &EnrollResponse,
        node: &NodeName,
        fabric: &FabricName,
    ) -> Result<Validity, OperatorError> {
        let bad = |field, problem: String| OperatorError::BadAnswer { field, problem };
        let certificate = |problem: String| bad("certificate", problem);
        let (_, pem) = x509_parser::pem::parse_x509_pem(answer.certificate.as_bytes())
            .map_err(|error| certificate(format!("no PEM certificate in it ({error})")))?;
        match identity::caller(&pem.contents, fabric) {
            Ok(Caller::Node(name)) if name == *node => {}
            Ok(other) => {
                return Err(certificate(format!(
                    "is of {other}, and not of node {node}"
                )));
            }
            Err(error) => return Err(certificate(error.to_string())),
        }
        let (_, parsed) = X509Certificate::from_der(&pem.contents)
            .map_err(|error| certificate(format!("cannot be read ({error})")))?;
        if parsed.public_key().raw != self.pair.subject_public_key_info() {
            return Err(certificate("is for another key".to_owned()));
        }
        if x509_parser::pem::parse_x509_pem(answer.authorities.as_bytes()).is_err() {
            return Err(bad("authorities", "no PEM certificate in it".to_owned()));
        }
        let seconds = |time: i64| u64::try_from(time).unwrap_or_default();
        let validity = parsed.validity();
        // In this order: while authorities overlap, the new ones vouch for both certificates.
        replace(&self.files.ca, answer.authorities.as_bytes())?;
        replace(&self.files.certificate, answer.certificate.as_bytes())?;
        Ok(Validity {
            begins: seconds(validity.not_before.timestamp()),
            ends: seconds(validity.not_after.timestamp()),
        })
    }
}

fn replace(path: &Path, contents: &[u8]) -> Result<(), OperatorError> {
    private_file::replace(path, contents).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, problem: &dyn std::error::Error) -> OperatorError {
    OperatorError::State {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::string::Ia5String;
    use rcgen::{CertificateSigningRequestParams, Issuer, SanType};
    use x509_parser::certification_request::X509CertificationRequest;

    use super::*;
    use crate::private_file::PRIVATE;

    /// As an operator answers: the certificate of `node` for the key in the request.
    fn answer(request: &str, node: &str) -> EnrollResponse {
        let key = KeyPair::generate().unwrap();
        let authority = CertificateParams::default().self_signed(&key).unwrap();
        let issuer = Issuer::new(CertificateParams::default(), key);
        let mut params = CertificateParams::default();
        let uri = Ia5String::try_from(format!("weft://lab/node/{node}")).unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        let request = CertificateSigningRequestParams::from_pem(request).unwrap();
        let certificate = params.signed_by(&request.public_key, &issuer).unwrap();
        EnrollResponse {
            node: node.to_owned(),
            certificate: certificate.pem(),
            authorities: authority.pem(),
            config: None,
            leader_epoch: 0,
        }
    }

    #[test]
    fn the_key_stays_and_nobody_else_can_read_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("a/b");
        let keys = Keys::open(&state).unwrap();
        let request = keys.request().unwrap();
        let (node, fabric) = ("n1".parse().unwrap(), "lab".parse().unwrap());
        keys.keep(&answer(&request, "n1"), &node, &fabric).unwrap();
        let of = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(of(&state), 0o700);
        let names: Vec<_> = fs::read_dir(&state).unwrap().map(Result::unwrap).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        for file in names {
            assert_eq!(of(&file.path()), PRIVATE, "{file:?}");
        }
        fs::set_permissions(&keys.files.key, Permissions::from_mode(0o644)).unwrap();
        let again = Keys::open(&state).unwrap();
        assert_eq!(of(&again.files.key), PRIVATE);
        assert_eq!(again.pair.serialize_pem(), keys.pair.serialize_pem());
        fs::write(&keys.files.key, "half a key").unwrap();
        let new = Keys::open(&state).unwrap();
        assert_ne!(new.pair.serialize_pem(), keys.pair.serialize_pem());
    }

    #[test]
    fn a_request_says_nothing_but_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        let request = keys.request().unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(request.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let info = &request.certification_request_info;
        assert_eq!(info.subject_pki.raw, keys.pair.subject_public_key_info());
        assert_eq!(info.subject.iter().count(), 0);
        assert_eq!(request.requested_extensions().map_or(0, Iterator::count), 0);
    }

    #[test]
    fn what_is_not_for_this_node_and_this_key_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        let good = answer(&keys.request().unwrap(), "n1");
        let other = Keys::open(&directory.path().join("other")).unwrap();
        let table = [
            (answer(&keys.request().unwrap(), "n2"), "of node n2"),
            (answer(&other.request().unwrap(), "n1"), "another key"),
            (
                EnrollResponse {
                    certificate: "none".to_owned(),
                    ..good.clone()
                },
                "certificate: no PEM",
            ),
            (
                EnrollResponse {
                    authorities: String::new(),
                    ..good.clone()
                },
                "authorities: no PEM",
            ),
        ];
        let (node, fabric) = ("n1".parse().unwrap(), "lab".parse().unwrap());
        for (answer, hint) in table {
            let error = keys.keep(&answer, &node, &fabric).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
            assert!(!keys.files.certificate.exists());
        }
        let wrong = keys.keep(&good, &node, &"other".parse().unwrap());
        assert_eq!(wrong.unwrap_err().reason(), "BadAnswer");
        keys.keep(&good, &node, &fabric).unwrap();
    }

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
        let at = |begins, ends| Validity { begins, ends }.renew_at();
        assert_eq!(at(1_000, 1_000 + 86_400), 1_000 + 57_600);
        assert_eq!(at(5, 5), 5);
        // Nonsense, and no reason to panic.
        assert_eq!(at(9, 3), 9);
    }
}
