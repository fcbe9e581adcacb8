//! Who is calling: the role that a client certificate's URI SAN names.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config_values::{FabricName, NodeName};
use crate::fault::Fault;

/// A caller within this fabric. TLS has checked the certificate against the authority before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// `weft://FABRIC/operator`.
    Operator,
    /// `weft://FABRIC/node/NAME`.
    Node(NodeName),
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Caller::Operator => f.write_str("the operator"),
            Caller::Node(name) => write!(f, "node {name}"),
        }
    }
}

/// The name that an agent's certificate has as DNS SAN, asked for by whoever dials it.
#[must_use]
pub fn server_name(node: &str, fabric: &FabricName) -> String {
    format!("{node}.{fabric}.weft")
}

/// Reads the role from a certificate (DER); refuses those of other fabrics.
pub fn caller(certificate: &[u8], fabric: &FabricName) -> Result<Caller, Fault> {
    let wrong = |problem: String| Fault::WrongCertificate { problem };
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| wrong(format!("cannot be read ({error})")))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| wrong(format!("has names that cannot be read ({error})")))?;
    let mut uris = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("weft://") => Some(*uri),
            _ => None,
        });
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(wrong(
            "does not have exactly one weft:// URI SAN".to_owned(),
        ));
    };
    role(uri, fabric).map_err(wrong)
}

fn role(uri: &str, fabric: &FabricName) -> Result<Caller, String> {
    let rest = uri.strip_prefix("weft://").unwrap_or_default();
    let (theirs, role) = rest.split_once('/').unwrap_or((rest, ""));
    if theirs != fabric.as_str() {
        return Err(format!(
            "is of fabric `{theirs}`, and this node is of fabric `{fabric}`"
        ));
    }
    if role == "operator" {
        return Ok(Caller::Operator);
    }
    role.strip_prefix("node/")
        .and_then(|name| name.parse().ok())
        .map(Caller::Node)
        .ok_or_else(|| format!("says `{uri}`, which is neither the operator nor a node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_from_the_uri_and_from_nothing_else() {
        let fabric: FabricName = "play".parse().unwrap();
        let node = |name: &str| Ok(Caller::Node(name.parse().unwrap()));
        let wrong = |text: &str| Err(text.to_owned());
        let table = [
            ("weft://play/operator", Ok(Caller::Operator)),
            ("weft://play/node/n1", node("n1")),
            ("weft://play/node/n1.example", node("n1.example")),
            (
                "weft://other/operator",
                wrong("is of fabric `other`, and this node is of fabric `play`"),
            ),
            (
                "weft://play",
                wrong("says `weft://play`, which is neither the operator nor a node"),
            ),
            (
                "weft://play/operator/x",
                wrong("says `weft://play/operator/x`, which is neither the operator nor a node"),
            ),
            (
                "weft://play/node/",
                wrong("says `weft://play/node/`, which is neither the operator nor a node"),
            ),
            (
                "weft://play/node/a/b",
                wrong("says `weft://play/node/a/b`, which is neither the operator nor a node"),
            ),
        ];
        for (uri, expected) in table {
            assert_eq!(role(uri, &fabric), expected, "{uri}");
        }
    }
}
