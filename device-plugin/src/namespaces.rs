//! Which namespaces' pods may have devices: the fabric's `spec.devices.namespaces`.
//!
//! A pod's namespace is what the kubelet says, of its pods and of its claims; nothing that a tenant writes is asked.

/// The namespaces whose pods may have devices; all where there is none.
#[derive(Debug, Clone)]
pub(crate) struct Namespaces(Vec<String>);

/// A pod of a namespace that may have none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pods of namespace {0} may have no RDMA device here: spec.devices.namespaces of the node's RdmaFabric does not list it; \
     ask an administrator of the cluster to add it, or delete the pod"
)]
pub(crate) struct NotListed(String);

impl Namespaces {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    /// Whether pods of this namespace may have devices.
    pub(crate) fn check(&self, namespace: &str) -> Result<(), NotListed> {
        let is_listed = self.0.is_empty() || self.0.iter().any(|name| name == namespace);
        match is_listed {
            true => Ok(()),
            false => Err(NotListed(namespace.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_listed_is_told_the_field_and_none_of_the_others() {
        let some = Namespaces::new(&["team-a".to_owned(), "team-c".to_owned()]);
        assert_eq!(some.check("team-a"), Ok(()));
        for other in ["team-b", "team-", ""] {
            let problem = some.check(other).unwrap_err().to_string();
            assert!(problem.contains("spec.devices.namespaces"), "{problem}");
            for listed in ["team-a", "team-c"] {
                assert!(!problem.contains(listed), "{problem}");
            }
        }
        assert_eq!(Namespaces::new(&[]).check("team-b"), Ok(()));
    }
}
