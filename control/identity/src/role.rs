//! Roles: which node or operator a certificate is for, by its URI SAN. TLS has checked the certificate
//! against the authority before.

use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

/// What the URI of a role begins with.
const SCHEME: &str = "weft://";

/// What the holder of a certificate is in a fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// `weft://FABRIC/operator`.
    Operator,
    /// `weft://FABRIC/node/NAME`.
    Node(String),
}

/// Whose a certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The fabric.
    pub fabric: String,
    /// What it is there.
    pub role: Role,
    /// When the certificate ends, seconds since the Unix epoch.
    pub until_unix_s: u64,
}

/// Why a certificate has no role. The text goes on after "the certificate".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// It is no certificate.
    #[error("cannot be read ({problem})")]
    Unreadable {
        /// What the parser said.
        problem: String,
    },
    /// Its names are not as X.509 has them.
    #[error("has names that cannot be read ({problem})")]
    UnreadableNames {
        /// What the parser said.
        problem: String,
    },
    /// It has no name of ours, or several.
    #[error("does not have exactly one weft:// URI SAN")]
    NotOneName,
    /// Its name is no role's.
    #[error("says `{uri}`, which is neither the operator nor a node")]
    NoRole {
        /// The name.
        uri: String,
    },
    /// It is for another fabric.
    #[error("is of fabric `{theirs}`, and this node is of fabric `{ours}`")]
    OtherFabric {
        /// The fabric it is for.
        theirs: String,
        /// The fabric of the node that reads it.
        ours: String,
    },
}

impl Role {
    /// The role's name in a certificate.
    #[must_use]
    pub fn uri(&self, fabric: &str) -> String {
        match self {
            Self::Operator => format!("{SCHEME}{fabric}/operator"),
            Self::Node(name) => format!("{SCHEME}{fabric}/node/{name}"),
        }
    }

    /// Fabric and role of a name.
    ///
    /// # Errors
    /// It is no role's.
    pub fn parse(uri: &str) -> Result<(&str, Self), RoleError> {
        let role = || {
            let (fabric, role) = uri.strip_prefix(SCHEME)?.split_once('/')?;
            let role = match role.strip_prefix("node/") {
                None if role == "operator" => Self::Operator,
                Some(name) if !name.is_empty() && !name.contains('/') => {
                    Self::Node(name.to_owned())
                }
                _ => return None,
            };
            (!fabric.is_empty()).then_some((fabric, role))
        };
        role().ok_or_else(|| RoleError::NoRole {
            uri: uri.to_owned(),
        })
    }
}

impl Holder {
    /// Reads a certificate (DER).
    ///
    /// # Errors
    /// It has no role.
    pub fn read(certificate: &[u8]) -> Result<Self, RoleError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| RoleError::Unreadable {
                problem: error.to_string(),
            })?;
        let names =
            parsed
                .subject_alternative_name()
                .map_err(|error| RoleError::UnreadableNames {
                    problem: error.to_string(),
                })?;
        let mut uris = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
                _ => None,
            });
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(RoleError::NotOneName);
        };
        let (fabric, role) = Role::parse(uri)?;
        Ok(Self {
            fabric: fabric.to_owned(),
            role,
            until_unix_s: u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_from_the_uri_and_from_nothing_else() {
        let node = |name: &str| Role::Node(name.to_owned());
        let table = [
            ("weft://lab/operator", Some(("lab", Role::Operator))),
            ("weft://lab/node/n1", Some(("lab", node("n1")))),
            (
                "weft://lab/node/n1.example",
                Some(("lab", node("n1.example"))),
            ),
            ("weft://lab/operator/x", None),
            ("weft://lab/Operator", None),
            ("weft://lab/node/", None),
            ("weft://lab/node", None),
            ("weft://lab/node/a/b", None),
            ("weft:///node/n1", None),
            ("weft://lab", None),
            ("https://lab/node/n1", None),
        ];
        for (uri, expected) in table {
            assert_eq!(Role::parse(uri).ok(), expected, "{uri}");
            if let Some((fabric, role)) = expected {
                assert_eq!(role.uri(fabric), uri);
            }
        }
    }

    #[test]
    fn a_certificate_has_one_name_of_ours_beside_any_others() {
        let operator = "weft://lab/operator";
        let table: [(&[&str], bool); 5] = [
            (&[], false),
            (&["https://lab/operator"], false),
            (&[operator], true),
            (&[operator, "https://lab/operator"], true),
            (&[operator, "weft://lab/node/n1"], false),
        ];
        for (uris, is_read) in table {
            let mut params = rcgen::CertificateParams::default();
            params.subject_alt_names = uris
                .iter()
                .map(|uri| rcgen::SanType::URI((*uri).try_into().unwrap()))
                .collect();
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let read = Holder::read(certificate.der());
            assert_eq!(read.is_ok(), is_read, "{uris:?}: {read:?}");
        }
    }
}
