//! Who is calling: the role in this fabric that a client certificate names.

use weft_identity::role::{Holder, Role, RoleError};

use crate::config::values::{FabricName, NodeName};

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

/// Reads the role from a certificate (DER); refuses those of other fabrics.
pub fn caller(certificate: &[u8], fabric: &FabricName) -> Result<Caller, RoleError> {
    let holder = Holder::read(certificate)?;
    of_role(&holder.fabric, &holder.role, fabric)
}

fn of_role(theirs: &str, role: &Role, fabric: &FabricName) -> Result<Caller, RoleError> {
    if theirs != fabric.as_str() {
        return Err(RoleError::OtherFabric {
            theirs: theirs.to_owned(),
            ours: fabric.to_string(),
        });
    }
    let name = match role {
        Role::Operator => return Ok(Caller::Operator),
        Role::Node(name) => name.parse(),
    };
    name.map(Caller::Node).map_err(|_| RoleError::NoRole {
        uri: role.uri(theirs),
    })
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
            let found = Role::parse(uri).and_then(|(theirs, role)| of_role(theirs, &role, &fabric));
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expected, "{uri}");
        }
    }
}
