//! Which namespaces' pods may have devices: the fabric's `spec.devices.namespaces`.
//!
//! A pod's namespace is what the kubelet says, of its pods and of its claims; nothing that a tenant writes is asked.

/// A pod of a namespace that may have none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pods of namespace {0} may have no RDMA device here: spec.devices.namespaces of the node's RdmaFabric does not list it; \
     ask an administrator of the cluster to add it, or delete the pod"
)]
pub(crate) struct NotListed(String);

/// Whether pods of this namespace may have devices, where these are listed; all where there is none.
pub(crate) fn check(listed: &[String], namespace: &str) -> Result<(), NotListed> {
    let is_listed = listed.is_empty() || listed.iter().any(|name| name == namespace);
    match is_listed {
        true => Ok(()),
        false => Err(NotListed(namespace.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_listed_is_told_the_field_and_none_of_the_others() {
        let some = ["team-a".to_owned(), "team-c".to_owned()];
        assert_eq!(check(&some, "team-a"), Ok(()));
        for other in ["team-b", "team-", ""] {
            let problem = check(&some, other).unwrap_err().to_string();
            assert!(problem.contains("spec.devices.namespaces"), "{problem}");
            for listed in ["team-a", "team-c"] {
                assert!(!problem.contains(listed), "{problem}");
            }
        }
        assert_eq!(check(&[], "team-b"), Ok(()));
    }
}
