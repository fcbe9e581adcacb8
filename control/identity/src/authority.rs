//! A small certificate authority, and the operator's signature on tickets.
//!
//! `weft play` makes one for as long as it runs; in a cluster the operator keeps one for all fabrics
//! in a Secret. It never listens to anybody: whoever holds it decides who gets a certificate.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType,
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
use x509_parser::pem::Pem;

use crate::{AGENT_NAME, CLOCK_SKEW, OPERATOR_NAME, role::Role, server_name, ticket};

/// A node's certificate's life, and the operator's as a caller.
pub const VALID: Duration = Duration::hours(24);
/// The authority's own life: it ends by being rotated (`weft_operator::rotation`), before a third of it is left.
const AUTHORITY_VALID: Duration = Duration::days(365);
/// The life of a server certificate, whose key never leaves the process that it is made for.
const SERVER_VALID: Duration = Duration::days(365);

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
    /// What an agent sent is no certificate request that was signed with its own key.
    #[error(
        "the certificate request cannot be used ({source}): make a new one, in PEM, signed with its key"
    )]
    Request {
        /// What the library said.
        source: rcgen::Error,
    },
    /// What was kept of an authority is not whole.
    #[error("{part}: {problem}: put back what it was, or delete it all for a new authority")]
    Kept {
        /// Which part: `ca.crt`, `ca.key`, `tickets.key`.
        part: &'static str,
        /// What is wrong with it.
        problem: String,
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
            Self::Request { .. } => "BadRequest",
            Self::Kept { .. } => "AuthorityUnusable",
            Self::Random => "NoRandomness",
            Self::Write { .. } => "KeyNotWritten",
        }
    }
}

/// Issues certificates of one fabric and signs its tickets.
#[derive(Clone)]
pub struct Authority {
    fabric: String,
    keys: Arc<Keys>,
}

/// The same for all fabrics of an operator.
struct Keys {
    /// PEM: the one that signs, then others that are trusted still or already.
    certificates: String,
    issuer: Issuer<'static, KeyPair>,
    tickets: Ed25519KeyPair,
    tickets_pem: String,
    /// PEM: of the authority that comes next, while that is announced.
    next: String,
}

/// An authority as it is kept: everything, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KeptAuthority {
    /// `ca.crt`: the certificate of `key` first, then others that are trusted still or already.
    pub certificates: String,
    /// `ca.key`: what certificates are signed with.
    pub key: String,
    /// `tickets.key`: what tickets are signed with, Ed25519.
    pub tickets: String,
    /// `ca.next.key`: of the second certificate, which signs next; "" unless one is announced.
    pub next: String,
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
    /// Makes the keys of a new authority, which begins with this fabric.
    pub fn new(fabric: &str) -> Result<Self, AuthorityError> {
        let Identity { certificate, key } = Self::root(fabric)?;
        let tickets = KeyPair::generate_for(&PKCS_ED25519).map_err(|_| AuthorityError::Random)?;
        let kept = KeptAuthority {
            certificates: certificate,
            key,
            tickets: tickets.serialize_pem(),
            next: String::new(),
        };
        Self::from_kept(fabric, kept)
    }

    /// A certificate that signs others, and its key.
    pub fn root(name: &str) -> Result<Identity, AuthorityError> {
        let failed = |source| not_made(name, source);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(&format!("weft {name}"), AUTHORITY_VALID);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Identity {
            certificate,
            key: key.serialize_pem(),
        })
    }

    /// Takes up one that was kept.
    pub fn from_kept(fabric: &str, kept: KeptAuthority) -> Result<Self, AuthorityError> {
        let wrong = |part: &'static str, problem: &dyn std::fmt::Display| AuthorityError::Kept {
            part,
            problem: problem.to_string(),
        };
        let key = KeyPair::from_pem(&kept.key).map_err(|error| wrong("ca.key", &error))?;
        let signer = Pem::iter_from_buffer(kept.certificates.as_bytes()).next();
        let signer = signer
            .ok_or_else(|| wrong("ca.crt", &"it is empty"))?
            .map_err(|error| wrong("ca.crt", &error))?;
        let certificate = signer
            .parse_x509()
            .map_err(|error| wrong("ca.crt", &error))?;
        if *certificate.public_key().subject_public_key.data != *key.public_key_raw() {
            return Err(wrong(
                "ca.crt",
                &"its first certificate is not that of ca.key",
            ));
        }
        if !certificate.validity().is_valid() {
            let validity = certificate.validity();
            let problem = format!(
                "its first certificate holds from {} to {} only",
                validity.not_before, validity.not_after
            );
            return Err(wrong("ca.crt", &problem));
        }
        let issuer = Issuer::from_ca_cert_der(&signer.contents.as_slice().into(), key)
            .map_err(|error| wrong("ca.crt", &error))?;
        let tickets =
            KeyPair::from_pem(&kept.tickets).map_err(|error| wrong("tickets.key", &error))?;
        let tickets = Ed25519KeyPair::from_pkcs8(tickets.serialized_der())
            .map_err(|_| wrong("tickets.key", &"it is no Ed25519 key"))?;
        Ok(Self {
            fabric: fabric.to_owned(),
            keys: Arc::new(Keys {
                certificates: kept.certificates,
                issuer,
                tickets,
                tickets_pem: kept.tickets,
                next: kept.next,
            }),
        })
    }

    /// What is to be kept of it.
    pub fn to_kept(&self) -> KeptAuthority {
        KeptAuthority {
            certificates: self.keys.certificates.clone(),
            key: self.keys.issuer.key().serialize_pem(),
            tickets: self.keys.tickets_pem.clone(),
            next: self.keys.next.clone(),
        }
    }

    /// The same keys for another fabric.
    #[must_use]
    pub fn of_fabric(&self, fabric: &str) -> Self {
        Self {
            fabric: fabric.to_owned(),
            keys: Arc::clone(&self.keys),
        }
    }

    /// The fabric's name.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The certificates to trust, as PEM: the authority's own, and others while it is rotated.
    pub fn certificate(&self) -> &str {
        &self.keys.certificates
    }

    /// A certificate for a node's agent, which serves the control API and calls its peers'.
    pub fn node(&self, name: &str) -> Result<Identity, AuthorityError> {
        self.issue(&self.node_params(name)?, name)
    }

    /// The same for a key that only the node has: `request` is a PKCS#10 request as PEM, of which
    /// nothing counts but the key.
    pub fn certify_node(&self, name: &str, request: &str) -> Result<String, AuthorityError> {
        let request = CertificateSigningRequestParams::from_pem(request)
            .map_err(|source| AuthorityError::Request { source })?;
        self.node_params(name)?
            .signed_by(&request.public_key, &self.keys.issuer)
            .map(|certificate| certificate.pem())
            .map_err(|source| not_made(name, source))
    }

    /// The certificate that may Stat, Prepare, Start and Cancel.
    pub fn operator(&self) -> Result<Identity, AuthorityError> {
        let mut params = params("operator", VALID);
        params.subject_alt_names = vec![self.role(&Role::Operator)?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&params, "operator")
    }

    /// What the operator's own server shows. It names no role: nobody can call with it.
    pub fn operator_server(&self, names: &[&str]) -> Result<Identity, AuthorityError> {
        let mut params = params(OPERATOR_NAME, SERVER_VALID);
        for name in [OPERATOR_NAME].iter().chain(names) {
            params.subject_alt_names.push(dns(name)?);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params, OPERATOR_NAME)
    }

    fn node_params(&self, name: &str) -> Result<CertificateParams, AuthorityError> {
        let mut params = params(name, VALID);
        params.subject_alt_names = vec![
            self.role(&Role::Node(name.to_owned()))?,
            dns(&server_name(&self.fabric, name))?,
            dns(AGENT_NAME)?,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        Ok(params)
    }

    fn role(&self, role: &Role) -> Result<SanType, AuthorityError> {
        let uri = role.uri(&self.fabric);
        let name = uri.clone().try_into();
        name.map(SanType::URI)
            .map_err(|source| not_made(&uri, source))
    }

    fn issue(&self, params: &CertificateParams, subject: &str) -> Result<Identity, AuthorityError> {
        let failed = |source| not_made(subject, source);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.keys.issuer).map_err(failed)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// The public half of the ticket key, 64 hexadecimal digits.
    pub fn ticket_key(&self) -> String {
        hex(self.keys.tickets.public_key().as_ref())
    }

    /// Signs a ticket.
    pub fn sign(&self, ticket: &Ticket) -> SignedTicket {
        let ticket = ticket.encode_to_vec();
        let signature = self.keys.tickets.sign(&ticket::signed_bytes(&ticket));
        let signature = signature.as_ref().to_vec();
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

fn params(subject: &str, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, subject);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + valid;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params
}

fn dns(name: &str) -> Result<SanType, AuthorityError> {
    let ascii = name.try_into();
    ascii
        .map(SanType::DnsName)
        .map_err(|source| not_made(name, source))
}

fn not_made(subject: &str, source: rcgen::Error) -> AuthorityError {
    AuthorityError::Certificate {
        subject: subject.to_owned(),
        source,
    }
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
        let message = ticket::signed_bytes(&signed.ticket);
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

    /// PEM of a request for a new key, with names that nobody asked for.
    fn request(key: &KeyPair) -> String {
        let mut params = CertificateParams::new(vec!["operator.weft".to_owned()]).unwrap();
        let uri = "weft://lab/operator".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    #[test]
    fn of_a_nodes_request_only_the_key_counts() {
        let authority = Authority::new("weft").unwrap().of_fabric("lab");
        let key = KeyPair::generate().unwrap();
        let pem = authority.certify_node("n1", &request(&key)).unwrap();
        let pem = Pem::iter_from_buffer(pem.as_bytes())
            .next()
            .unwrap()
            .unwrap();
        let certificate = pem.parse_x509().unwrap();
        let public_key = &certificate.public_key().subject_public_key.data;
        assert_eq!(**public_key, *key.public_key_raw());
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        let names: Vec<String> = names
            .value
            .general_names
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "URI(weft://lab/node/n1)",
            "DNSName(n1.lab.weft)",
            "DNSName(agent.weft)",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_node_whose_clock_is_ten_minutes_off_believes_a_new_certificate_and_a_new_authority() {
        let authority = Authority::new("weft").unwrap();
        let node = authority.node("n1").unwrap().certificate;
        let server = authority.operator_server(&[]).unwrap().certificate;
        for text in [node.as_str(), &server, authority.certificate()] {
            let pem = Pem::iter_from_buffer(text.as_bytes()).next().unwrap();
            let pem = pem.unwrap();
            let certificate = pem.parse_x509().unwrap();
            let now = OffsetDateTime::now_utc();
            for theirs in [now - Duration::minutes(10), now + Duration::minutes(10)] {
                let theirs = x509_parser::time::ASN1Time::from_timestamp(theirs.unix_timestamp());
                assert!(certificate.validity().is_valid_at(theirs.unwrap()));
            }
        }
    }

    #[test]
    fn a_request_that_is_none_or_was_not_signed_with_its_key_is_refused() {
        let authority = Authority::new("lab").unwrap();
        let whole = request(&KeyPair::generate().unwrap());
        let other = request(&KeyPair::generate().unwrap());
        // The last lines hold the signature.
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (mut forged, other) = (lines(&whole), lines(&other));
        let at = forged.len() - 2;
        forged[at].clone_from(&other[at]);
        for bad in ["", "no PEM", &whole[..whole.len() / 2], &forged.join("\n")] {
            let error = authority.certify_node("n1", bad).err().unwrap();
            assert_eq!(error.reason(), "BadRequest", "{bad}");
        }
    }

    #[test]
    fn what_was_kept_is_the_same_authority_again() {
        let authority = Authority::new("weft").unwrap();
        let again = Authority::from_kept("weft", authority.to_kept()).unwrap();
        assert!(again.to_kept() == authority.to_kept());
        assert_eq!(again.ticket_key(), authority.ticket_key());
        // Its issuer's name is the one that its certificate has.
        let issuer = |authority: &Authority| {
            let pem = authority.node("n1").unwrap().certificate;
            let pem = Pem::iter_from_buffer(pem.as_bytes())
                .next()
                .unwrap()
                .unwrap();
            pem.parse_x509().unwrap().issuer().to_string()
        };
        assert_eq!(issuer(&again), issuer(&authority));
    }

    #[test]
    fn what_was_kept_in_part_or_mixed_up_is_refused_and_says_which_part() {
        let kept = || Authority::new("weft").unwrap().to_kept();
        let (one, other) = (kept(), kept());
        type Change = fn(&mut KeptAuthority, &KeptAuthority);
        let table: [(&str, Change); 6] = [
            ("ca.crt", |kept, _| kept.certificates.clear()),
            ("ca.crt", |kept, other| {
                kept.certificates.clone_from(&other.certificates);
            }),
            ("ca.crt", |kept, _| kept.certificates.truncate(60)),
            ("ca.key", |kept, _| kept.key.clear()),
            ("tickets.key", |kept, _| kept.tickets.clear()),
            ("tickets.key", |kept, _| kept.tickets.clone_from(&kept.key)),
        ];
        for (part, change) in table {
            let mut broken = one.clone();
            change(&mut broken, &other);
            let error = Authority::from_kept("weft", broken).err().unwrap();
            assert_eq!(error.reason(), "AuthorityUnusable");
            assert!(error.to_string().starts_with(part), "{part}: {error}");
        }
        // The one that signs is first; the others are trusted too.
        let mut rotated = one.clone();
        rotated.certificates.push_str(&other.certificates);
        let rotated = Authority::from_kept("weft", rotated).unwrap();
        assert!(rotated.certificate().contains(&other.certificates));
    }

    #[test]
    fn two_names_differ() {
        assert_ne!(unique().unwrap(), unique().unwrap());
    }
}
