//! What the operator reads of ResourceSlices.

use std::borrow::Cow;

use kube::{
    Resource,
    core::{ClusterResourceScope, ObjectMeta},
    runtime::watcher,
};
use serde::Deserialize;

use super::cache::{Cached, PAGE, metadata_differs};
use crate::claims::DRIVER;

/// A ResourceSlice, as far as it is read. `resource.k8s.io/v1` is served from Kubernetes 1.34 on.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ResourceSlice {
    metadata: ObjectMeta,
    pub(crate) spec: ResourceSliceSpec,
}

/// The API server lets nobody change these, and a kubelet make slices with its own node's name only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceSliceSpec {
    pub(crate) driver: String,
    /// "" where the devices are not of one node.
    pub(crate) node_name: String,
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

impl Cached for ResourceSlice {
    const IS_OPTIONAL: bool = true;

    fn differs(&self, other: &Self) -> bool {
        metadata_differs(self.meta(), other.meta()) || self.spec != other.spec
    }

    fn watched() -> watcher::Config {
        // Not by a label: a label can be left out. In pages: a slice with 128 devices has some 30 kB.
        let of_driver = format!("spec.driver={DRIVER}");
        watcher::Config::default()
            .fields(&of_driver)
            .page_size(PAGE)
    }
}
