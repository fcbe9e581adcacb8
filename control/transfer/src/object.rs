//! An object of a store that one of the destinations reads, in place of files at a source.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use futures::future::BoxFuture;
use weft_proto::agent::v1::{Credentials, ObjectExpect, ObjectSource};

use super::Refusal;

/// Begin the reasons of what a store, a URL or a Secret is to blame for. No other node could read it either.
const OF_THE_STORE: [&str; 4] = ["Object", "Store", "Secret", "Expect"];
/// But for these: one node's way to the store, its name server, clock or configuration may be to blame.
const OF_ACCESS: [&str; 2] = ["ObjectUnavailable", "StoreForbidden"];

/// Where the bytes come from. Its destinations take turns at reading it, one for each attempt.
#[derive(Debug, Clone)]
pub struct Object {
    /// As the job names it.
    pub url: String,
    /// The entity tag that it must have; "" when not known.
    pub etag: String,
    /// Bytes that it must have.
    pub bytes: Option<u64>,
    /// Whose word the store takes; without one nothing is signed.
    pub secret: Option<Secret>,
    /// All destinations, in the order in which they are asked to read.
    pub readers: Vec<String>,
}

/// A tenant's Secret. It is read for each call that needs it, and kept nowhere.
#[derive(Debug, Clone)]
pub struct Secret {
    /// The job's own namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// What can read it.
    pub vault: Vault,
}

/// Reads Secrets.
pub trait Open: Send + Sync {
    /// The values of one, by their keys, or why there are none.
    fn open<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Refusal>>;
}

/// The way to Secrets.
#[derive(Clone)]
pub struct Vault(Arc<dyn Open>);

impl Vault {
    /// By what can read them.
    pub fn new(open: impl Open + 'static) -> Self {
        Self(Arc::new(open))
    }
}

/// One to which there is no way.
impl Default for Vault {
    fn default() -> Self {
        Self::new(Shut)
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault")
    }
}

struct Shut;

impl Open for Shut {
    fn open<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Refusal>> {
        let refusal = Refusal {
            node: String::new(),
            reason: "SecretUnreadable".to_owned(),
            message: format!(
                "Secret {namespace}/{name}: there is no cluster to read it from; run in one"
            ),
            retriable: false,
        };
        Box::pin(std::future::ready(Err(refusal)))
    }
}

impl Object {
    /// What an agent is told that is to list or to read it, with what its Secret holds now.
    pub(super) async fn source(&self) -> Result<ObjectSource, Refusal> {
        let credentials = match &self.secret {
            None => None,
            Some(Secret {
                namespace,
                name,
                vault,
            }) => Some(Credentials {
                values: vault.0.open(namespace, name).await?.into_iter().collect(),
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

    /// Who reads after `node`, which could not: the next that was not passed over, while there is one.
    pub(super) fn after(&self, node: &str, passed: &BTreeSet<String>) -> Option<&str> {
        let at = self.readers.iter().position(|reader| reader == node);
        let next = at.map_or(0, |at| at + 1);
        let (before, after) = self.readers.split_at_checked(next)?;
        let in_turn = || after.iter().chain(before);
        let fresh = in_turn().find(|reader| !passed.contains(*reader));
        fresh.or_else(|| in_turn().next()).map(String::as_str)
    }
}

/// It is not the reader's fault: nobody else could read it either.
pub(super) fn is_of_the_store(reason: &str) -> bool {
    !is_of_access(reason) && OF_THE_STORE.iter().any(|begin| reason.starts_with(begin))
}

/// The store has not served this reader; it may serve another one.
pub(super) fn is_of_access(reason: &str) -> bool {
    OF_ACCESS.contains(&reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_take_turns() {
        let object = Object {
            url: "s3://models/minilm/".into(),
            etag: String::new(),
            bytes: None,
            secret: None,
            readers: vec!["n1".into(), "n2".into()],
        };
        let none = BTreeSet::new();
        assert_eq!(object.after("n1", &none), Some("n2"));
        assert_eq!(object.after("n2", &none), Some("n1"));
        assert_eq!(object.after("gone", &none), Some("n1"));
        let passed = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect();
        assert_eq!(object.after("gone", &passed(&["n1"])), Some("n2"));
        assert_eq!(object.after("n1", &passed(&["n1", "n2"])), Some("n2"));
        let nobody = Object {
            readers: Vec::new(),
            ..object
        };
        assert_eq!(nobody.after("n1", &none), None);
    }

    #[test]
    fn a_disk_is_the_readers_own_and_a_key_is_everybodys() {
        for reason in ["ObjectMissing", "ObjectDenied", "SecretInvalid"] {
            assert!(is_of_the_store(reason), "{reason}");
        }
        for reason in [
            "DiskFull",
            "NodeUnreachable",
            "UnknownRoot",
            "SourceMissing",
            "ObjectUnavailable",
            "StoreForbidden",
        ] {
            assert!(!is_of_the_store(reason), "{reason}");
        }
    }
}
