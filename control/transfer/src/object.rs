//! An object of a store that one of the destinations reads, instead of files at a source.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures::future::BoxFuture;
use weft_proto::agent::v1::{Credentials, ObjectExpect, ObjectSource};

use crate::failure::Failure;

/// The first word of reasons for which the store, the URL or the Secret is at fault: no other node could
/// read the object either.
const OF_THE_STORE: [&str; 4] = ["Object", "Store", "Secret", "Expect"];
/// Exceptions: the network, name server, clock or configuration of one node may be at fault.
const OF_ACCESS: [&str; 2] = ["ObjectUnavailable", "StoreForbidden"];

/// An object of a store. In each attempt one destination reads it and sends it to the others.
#[derive(Debug, Clone)]
pub struct StoreObject {
    /// As the job names it.
    pub url: String,
    /// The entity tag that it must have; "" when not known.
    pub etag: String,
    /// Bytes that it must have.
    pub bytes: Option<u64>,
    /// Holds the credentials for the store; without one, requests are not signed.
    pub secret: Option<Secret>,
    /// All destinations, in the order in which they are chosen as reader.
    pub readers: Vec<String>,
}

/// A tenant's Secret. It is read for each call that needs it, and kept nowhere.
#[derive(Debug, Clone)]
pub struct Secret {
    /// The job's own namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// Reads it.
    pub reader: Arc<dyn ReadSecret>,
}

/// Reads Secrets.
pub trait ReadSecret: Send + Sync {
    /// The values of one Secret, by their keys, or why they cannot be read.
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Failure>>;
}

impl fmt::Debug for dyn ReadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadSecret")
    }
}

impl StoreObject {
    /// What an agent needs to list or read it, with the present values of its Secret.
    pub(crate) async fn source(&self) -> Result<ObjectSource, Failure> {
        let credentials = match &self.secret {
            None => None,
            Some(Secret {
                namespace,
                name,
                reader,
            }) => Some(Credentials {
                values: reader.read(namespace, name).await?.into_iter().collect(),
                secret: format!("{namespace}/{name}"),
            }),
        };
        let expect = (!self.etag.is_empty() || self.bytes.is_some()).then(|| ObjectExpect {
            etag: self.etag.clone(),
            bytes: self.bytes,
        });
        Ok(ObjectSource {
            url: self.url.clone(),
            credentials,
            expect,
        })
    }
}

/// The reader is not at fault: no other node could read the object either.
pub(crate) fn is_store_error(reason: &str) -> bool {
    !is_access_error(reason) && OF_THE_STORE.iter().any(|begin| reason.starts_with(begin))
}

/// The store has not served this reader; it may serve another one.
pub(crate) fn is_access_error(reason: &str) -> bool {
    OF_ACCESS.contains(&reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_the_readers_own_and_a_key_is_everybodys() {
        for reason in ["ObjectMissing", "ObjectDenied", "SecretInvalid"] {
            assert!(is_store_error(reason), "{reason}");
        }
        for reason in [
            "DiskFull",
            "NodeUnreachable",
            "UnknownRoot",
            "SourceMissing",
            "ObjectUnavailable",
            "StoreForbidden",
        ] {
            assert!(!is_store_error(reason), "{reason}");
        }
    }
}
