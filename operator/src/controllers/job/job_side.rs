//! Where a side of a job is: a root, and a path in it, that the job may name.

use kube::{ResourceExt as _, core::SelectorExt as _};
use weft_crds::{Destinations, FileSource, RdmaFabric, Root, RootAccess, RootScope, TransferJob};
use weft_transfer::NodeLocation;

use crate::controllers::{
    condition::listed,
    job::obstacle::{Obstacle, permanent, temporary},
    kinds::Cache,
    membership::selector,
};

/// One side of a job.
#[derive(Clone, Copy)]
pub(crate) enum JobSide<'a> {
    /// What is read.
    Source(&'a FileSource),
    /// Where copies go, on every destination node.
    Destination(&'a Destinations),
}

/// Where a side is, once it is sure that the job may name it.
pub(crate) fn locate(
    job: &TransferJob,
    fabric: &RdmaFabric,
    cache: &Cache,
    side: JobSide<'_>,
) -> Result<NodeLocation, Obstacle> {
    let (field_prefix, node, name, scope, path) = match side {
        JobSide::Source(file) => (
            "spec.source.file",
            file.node.as_str(),
            &*file.root,
            file.scope,
            &*file.path,
        ),
        JobSide::Destination(to) => ("spec.destinations", "", &*to.root, to.scope, &*to.path),
    };
    let field = format!("{field_prefix}.root");
    let fabric_name = fabric.name_any();
    let Some(root) = fabric.spec.roots.iter().find(|root| root.name == name) else {
        let known: Vec<&str> = fabric
            .spec
            .roots
            .iter()
            .map(|root| root.name.as_str())
            .collect();
        let text = format!(
            "{field}: fabric {fabric_name} has no root {name}; it has {}",
            listed(&known)
        );
        return Err(temporary("RootUnknown", text));
    };
    if matches!(side, JobSide::Destination(_)) && root.access == RootAccess::ReadOnly {
        let text = format!(
            "{field}: root {name} of fabric {fabric_name} is ReadOnly; name another, or make it \
             ReadWrite"
        );
        return Err(temporary("RootReadOnly", text));
    }
    let namespace = job.namespace().unwrap_or_default();
    if !admits(root, &namespace, cache)? {
        let text = format!(
            "{field}: root {name} of fabric {fabric_name} is not for jobs of namespace {namespace}; \
             label the namespace as the root's namespaces ask, or name another root"
        );
        return Err(temporary("RootNotAllowed", text));
    }
    if scope != root.scope {
        return Err(temporary(
            "ScopeDiffers",
            scope_differs(field_prefix, root, &fabric_name),
        ));
    }
    let path = scoped(namespace, scope, path);
    // The definition refuses such paths, but it may have been changed since.
    if path.split('/').any(|part| part == "..") || path.starts_with('/') {
        let text = format!("{field}: path {path} must be relative to the root and without '..'");
        return Err(permanent("PathInvalid", text));
    }
    Ok(NodeLocation {
        node: node.to_owned(),
        root: name.to_owned(),
        path,
    })
}

/// The path below the root. In a PerNamespace root it starts with the namespace.
fn scoped(namespace: String, scope: RootScope, path: &str) -> String {
    let path = path.trim_end_matches('/');
    match scope {
        RootScope::Shared => path.to_owned(),
        RootScope::PerNamespace if path.is_empty() => namespace,
        RootScope::PerNamespace => format!("{namespace}/{path}"),
    }
}

/// The root and the path below it that a job's copies are for.
pub(crate) fn destination_path(job: &TransferJob) -> (String, String) {
    let to = &job.spec.destinations;
    let namespace = job.namespace().unwrap_or_default();
    (to.root.clone(), scoped(namespace, to.scope, &to.path))
}

/// Where the root was made Shared after the job, nobody has checked that the job's author may use Shared roots.
fn scope_differs(field_prefix: &str, root: &Root, fabric: &str) -> String {
    let name = &root.name;
    match root.scope {
        RootScope::Shared => format!(
            "{field_prefix}.scope: root {name} of fabric {fabric} is Shared and the job does not say so; \
             delete the job and make another with scope: Shared, which needs the verb use on \
             rdmafabrics"
        ),
        RootScope::PerNamespace => format!(
            "{field_prefix}.scope: root {name} of fabric {fabric} is PerNamespace and the job says Shared; \
             delete the job and make another without scope"
        ),
    }
}

/// Whether a root is for jobs of a namespace.
pub(crate) fn admits(root: &Root, namespace: &str, cache: &Cache) -> Result<bool, Obstacle> {
    let Some(wanted) = &root.namespaces else {
        return Ok(true);
    };
    let wanted = selector(wanted).map_err(|fault| {
        temporary(
            "RootSelectorInvalid",
            format!("root {} of the fabric: namespaces: {fault}", root.name),
        )
    })?;
    Ok(cache
        .namespaces
        .named(namespace)
        .is_some_and(|namespace| wanted.matches(namespace.labels())))
}

/// A copy beside its original must neither lie in it nor hold it.
pub(crate) fn check_not_nested(copy: &NodeLocation, from: &NodeLocation) -> Result<(), Obstacle> {
    let within = |inner: &str, outer: &str| {
        outer.is_empty() || format!("{inner}/").starts_with(&format!("{outer}/"))
    };
    if copy.root != from.root || !within(&copy.path, &from.path) && !within(&from.path, &copy.path)
    {
        return Ok(());
    }
    let text = format!(
        "spec.destinations.path: node {} is the source, and of {} and {} in root {} one lies \
             within the other: give a path of its own, or leave the node out",
        from.node, from.path, copy.path, from.root
    );
    Err(permanent("CopyWithinSource", text))
}
