//! Which node calls: what a client certificate says. TLS has checked it against the authority before.

use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use crate::fault::Fault;

/// A node of a fabric, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The fabric.
    pub(crate) fabric: String,
    /// The node.
    pub(crate) node: String,
    /// When the certificate ends, seconds since the Unix epoch.
    pub(crate) until_unix_s: u64,
}

/// Reads a certificate (DER).
pub(crate) fn caller(certificate: &[u8]) -> Result<Caller, Fault> {
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
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(wrong("does not have exactly one URI SAN".to_owned()));
    };
    let (fabric, node) =
        node(uri).ok_or_else(|| wrong(format!("says `{uri}`, which is no node of a fabric")))?;
    Ok(Caller {
        fabric: fabric.to_owned(),
        node: node.to_owned(),
        until_unix_s: u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
    })
}

/// Fabric and node of `weft://FABRIC/node/NAME`.
fn node(uri: &str) -> Option<(&str, &str)> {
    let (fabric, role) = uri.strip_prefix("weft://")?.split_once('/')?;
    let node = role.strip_prefix("node/")?;
    (!fabric.is_empty() && !node.is_empty() && !node.contains('/')).then_some((fabric, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_from_the_uri_and_from_nothing_else() {
        let table = [
            ("weft://lab/node/n1", Some(("lab", "n1"))),
            ("weft://lab/node/n1.example", Some(("lab", "n1.example"))),
            ("weft://lab/operator", None),
            ("weft://lab/node/", None),
            ("weft://lab/node/a/b", None),
            ("weft:///node/n1", None),
            ("weft://lab", None),
            ("https://lab/node/n1", None),
        ];
        for (uri, expected) in table {
            assert_eq!(node(uri), expected, "{uri}");
        }
    }
}
