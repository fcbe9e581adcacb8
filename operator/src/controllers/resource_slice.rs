//! What the operator reads of ResourceSlices.

use std::borrow::Cow;

use kube::{
    Resource,
    core::{ClusterResourceScope, ObjectMeta, PartialObjectMeta},
    runtime::watcher,
};
use serde::Deserialize;

use super::{
    cache::{Cached, metadata_differs},
    fabric::agents::FABRIC_LABEL,
};

/// A ResourceSlice, of which only the metadata is read. `resource.k8s.io/v1` is served from Kubernetes 1.34 on.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ResourceSlice {
    metadata: ObjectMeta,
}

impl Resource for ResourceSlice {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ResourceSlice".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "resource.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "resourceslices".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Cached for PartialObjectMeta<ResourceSlice> {
    const IS_OPTIONAL: bool = true;

    fn differs(&self, other: &Self) -> bool {
        metadata_differs(self.meta(), other.meta())
    }

    fn watched() -> watcher::Config {
        watcher::Config::default().labels(FABRIC_LABEL)
    }
}
