//! The custom resource definitions as the chart has them.

use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::{FabricNode, RdmaFabric, TransferJob, bounds};

/// A generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its name, without a directory.
    pub name: String,
    /// The definition.
    pub definition: Value,
}

/// All definitions, by their names.
///
/// # Panics
/// Never: a definition is made of types that JSON has.
pub fn documents() -> Vec<Document> {
    let definitions = [RdmaFabric::crd(), FabricNode::crd(), TransferJob::crd()];
    let document = |definition| {
        let mut definition = serde_json::to_value(definition).expect("a definition is plain data");
        // The API server's to fill, and no part of what is installed.
        if let Some(fields) = definition.as_object_mut() {
            fields.remove("status");
        }
        for version in definition["spec"]["versions"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            bounds::bound_status(&mut version["schema"]["openAPIV3Schema"]["properties"]["status"]);
        }
        let name = format!(
            "{}.yaml",
            definition["metadata"]["name"].as_str().unwrap_or_default()
        );
        Document { name, definition }
    };
    definitions.map(document).into()
}
