//! A small certificate authority, and the operator's signature on tickets.
//!
//! `weft play` makes one for as long as it runs; in a cluster the operator keeps one. It never
//! listens to anybody: whoever holds it decides who gets a certificate.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair as _},
};
use time::{Duration, OffsetDateTime};
use weft_proto::{
    Message as _,
    agent::v1::{SignedTicket, Ticket},
};

/// What is signed before a ticket's bytes, so that a signature can mean nothing else.
const TICKET_CONTEXT: &[u8; 21] = b"weft.agent.v1.Ticket\n";
/// A certificate's life, as in a cluster.
const VALID: Duration = Duration::hours(24);
/// How far apart the clocks of two nodes may be.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// Why there is no authority, or no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate could not be made.
    #[error("the certificate for {subject} cannot be made: {source}; check the name and the clock")]
    Certificate {
        /// Whose.
        subject: String,
        /// What the library said.
        source: rcgen::Error,
    },
    /// The kernel gave no random bytes.
    #[error("no key can be made: the system's random generator does not answer; see getrandom(2)")]
    Random,
    /// A file could not be written.
    #[error("{}: {source}; a directory that can be written is needed for keys", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl AuthorityError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Certificate { .. } => "CertificateNotMade",
            Self::Random => "NoRandomness",
            Self::Write { .. } => "KeyNotWritten",
        }
    }
}

/// Issues certificates of one fabric and signs its tickets.
pub struct Authority {
    fabric: String,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    tickets: Ed25519KeyPair,
}

/// A certificate and its private key, as PEM.
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// Where an [`Identity`] was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The node's certificate.
    pub certificate: PathBuf,
    /// Its private key, readable by its owner only.
    pub key: PathBuf,
}

impl Authority {
    /// Makes the keys of a new fabric.
    pub fn new(fabric: &str) -> Result<Self, AuthorityError> {
        let failed = |source| AuthorityError::Certificate {
            subject: fabric.to_owned(),
            source,
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(&format!("weft fabric {fabric}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| AuthorityError::Random)?;
        let tickets =
            Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|_| AuthorityError::Random)?;
        Ok(Self {
            fabric: fabric.to_owned(),
            certificate,
            issuer: Issuer::new(params, key),
            tickets,
        })
    }

    /// The fabric's name.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The authority's own certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The name that a node's certificate answers to: what to ask for when dialling any of its
    /// addresses.
    pub fn server_name(fabric: &str, node: &str) -> String {
        format!("{node}.{fabric}.weft")
    }

    /// A certificate for a node's agent, which serves the control API and calls its peers'.
    pub fn node(&self, name: &str) -> Result<Identity, AuthorityError> {
        let both = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let dns = Self::server_name(&self.fabric, name);
        self.issue(name, &format!("node/{name}"), Some(&dns), both)
    }

    /// The certificate that may Stat, Prepare, Start and Cancel.
    pub fn operator(&self) -> Result<Identity, AuthorityError> {
        self.issue(
            "operator",
            "operator",
            None,
            vec![ExtendedKeyUsagePurpose::ClientAuth],
        )
    }

    fn issue(
        &self,
        subject: &str,
        role: &str,
        dns: Option<&str>,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<Identity, AuthorityError> {
        let failed = |source| AuthorityError::Certificate {
            subject: subject.to_owned(),
            source,
        };
        let uri = format!("weft://{}/{role}", self.fabric);
        let mut params = params(subject);
        params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(failed)?)];
        if let Some(dns) = dns {
            params
                .subject_alt_names
                .push(SanType::DnsName(dns.try_into().map_err(failed)?));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// The public half of the ticket key, 64 hexadecimal digits.
    pub fn ticket_key(&self) -> String {
        hex(self.tickets.public_key().as_ref())
    }

    /// Signs a ticket.
    pub fn sign(&self, ticket: &Ticket) -> SignedTicket {
        let ticket = ticket.encode_to_vec();
        let message = [TICKET_CONTEXT.as_slice(), &ticket].concat();
        let signature = self.tickets.sign(&message).as_ref().to_vec();
        SignedTicket { ticket, signature }
    }
}

impl Identity {
    /// Writes it, and the authority's certificate beside it, into a directory.
    pub fn write(
        &self,
        authority: &Authority,
        directory: &Path,
    ) -> Result<IdentityFiles, AuthorityError> {
        let file = |name: &str, text: &str| {
            let path = directory.join(name);
            let written = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            match written {
                Ok(()) => Ok(path),
                Err(source) => Err(AuthorityError::Write { path, source }),
            }
        };
        Ok(IdentityFiles {
            ca: file("ca.pem", authority.certificate())?,
            certificate: file("node.pem", &self.certificate)?,
            key: file("node.key", &self.key)?,
        })
    }
}

/// A name that nobody else has: 16 hexadecimal digits from the kernel.
pub fn unique() -> Result<String, AuthorityError> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| AuthorityError::Random)?;
    Ok(hex(&bytes))
}

fn params(subject: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, subject);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + VALID;
    params
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_ticket_holds_under_the_published_key_and_under_its_context_only() {
        let authority = Authority::new("play").unwrap();
        let ticket = Ticket {
            fabric: "play".into(),
            from_node: "node0".into(),
            ..Ticket::default()
        };
        let signed = authority.sign(&ticket);
        assert_eq!(Ticket::decode(signed.ticket.as_slice()).unwrap(), ticket);

        let text = authority.ticket_key();
        assert_eq!(text.len(), 64);
        let key: Vec<u8> = (0..32)
            .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let key = UnparsedPublicKey::new(&ED25519, key);
        let message = [TICKET_CONTEXT.as_slice(), &signed.ticket].concat();
        key.verify(&message, &signed.signature).unwrap();
        key.verify(&signed.ticket, &signed.signature).unwrap_err();
    }

    #[test]
    fn keys_are_written_for_their_owner_only_and_never_over_another() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("play").unwrap();
        let identity = authority.node("node0").unwrap();
        let files = identity.write(&authority, directory.path()).unwrap();
        for path in [&files.ca, &files.certificate, &files.key] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        let again = identity.write(&authority, directory.path()).unwrap_err();
        assert_eq!(again.reason(), "KeyNotWritten");
    }

    #[test]
    fn a_name_that_is_no_certificate_name_is_an_error() {
        let authority = Authority::new("play").unwrap();
        let error = authority.node("nödë").err().unwrap();
        assert_eq!(error.reason(), "CertificateNotMade");
    }

    #[test]
    fn two_names_differ() {
        assert_ne!(unique().unwrap(), unique().unwrap());
    }
}
