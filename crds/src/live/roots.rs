//! The roots that the jobs of a namespace may name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Serialize};

use crate::{RootAccess, RootScope};

/// A root of a fabric, as the jobs of a namespace see it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AvailableRoot {
    /// The fabric.
    pub fabric: String,
    /// What jobs call the root.
    pub name: String,
    /// What jobs may do there.
    pub access: RootAccess,
    /// Whose files jobs see there. `Shared` needs the verb `use` on rdmafabrics in the namespace.
    pub scope: RootScope,
    /// Bytes that the namespace may have there at each node; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_namespace: Option<String>,
    /// The nodes of the fabric.
    pub nodes: Vec<String>,
}

impl AvailableRoot {
    /// In paths, and in roles.
    pub const RESOURCE: &str = "availableroots";
}

/// The roots that the jobs of a namespace may name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AvailableRootList {
    /// `live.weft.dev/v1alpha1`.
    pub api_version: String,
    /// `AvailableRootList`.
    pub kind: String,
    /// Empty: there is nothing to be continued or watched.
    #[serde(default)]
    pub metadata: ListMeta,
    /// By fabric; those of a fabric in the order of its spec.
    pub items: Vec<AvailableRoot>,
}

impl AvailableRootList {
    /// Its kind.
    pub const KIND: &str = "AvailableRootList";
}
