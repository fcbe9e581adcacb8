//! Which node calls: what a client certificate says. TLS has checked it against the authority before.

use weft_identity::role::{Holder, Role};

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
    let holder = Holder::read(certificate)?;
    match holder.role {
        Role::Node(node) => Ok(Caller {
            fabric: holder.fabric,
            node,
            until_unix_s: holder.until_unix_s,
        }),
        Role::Operator => Err(Fault::WrongCertificate {
            problem: format!(
                "says `{}`, which is no node of a fabric",
                Role::Operator.uri(&holder.fabric)
            ),
        }),
    }
}
