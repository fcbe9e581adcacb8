//! Lets the fabrics go, so that they can be deleted without an operator, and says that nobody knows their state:
//! `kubectl wait` shall not take the last one for that of a new installation.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use weft_crds::RdmaFabric;

use super::MANAGER;
use crate::{
    NAME,
    api::call,
    controllers::{
        FABRIC_FINALIZER,
        condition::{self, ConditionUpdate},
    },
};

/// The patch of a fabric's status; `None` where it says so already, or nothing.
fn patch(fabric: &RdmaFabric, now: Timestamp) -> Option<Value> {
    let mut conditions = fabric.status.as_ref()?.conditions.clone();
    let before = conditions.clone();
    let text = "Weft was uninstalled: no agent runs";
    let update = ConditionUpdate::unknown("Ready", "Uninstalled", text);
    let generation = fabric.metadata.generation.unwrap_or_default();
    condition::set(&mut conditions, update, generation, now);
    let nodes = json!({ "ready": 0 });
    (conditions != before).then(|| json!({"status": {"conditions": conditions, "nodes": nodes}}))
}

/// Looks at all fabrics once. The operator must not write any more.
pub(super) async fn release(client: &Client) -> Result<(), String> {
    let fabrics: Api<RdmaFabric> = Api::all(client.clone());
    let listed = call(fabrics.list(&ListParams::default())).await;
    for fabric in listed.map_err(|error| error.to_string())? {
        let name = fabric.name_any();
        if fabric
            .finalizers()
            .iter()
            .any(|one| one == FABRIC_FINALIZER)
        {
            // The operator applied it; the same manager takes it back.
            let manifest = json!({
                "apiVersion": "weft.dev/v1alpha1",
                "kind": "RdmaFabric",
                "metadata": {"name": name, "uid": fabric.uid(), "finalizers": []},
            });
            let parameters = PatchParams::apply(NAME).force();
            match call(fabrics.patch(&name, &parameters, &Patch::Apply(&manifest))).await {
                Err(error) if !error.is_conflict() => return Err(error.to_string()),
                _ => {}
            }
        }
        let Some(patch) = patch(&fabric, Timestamp::now()) else {
            continue;
        };
        let parameters = PatchParams::apply(MANAGER);
        let patch = Patch::Merge(patch);
        match call(fabrics.patch_status(&name, &parameters, &patch)).await {
            Err(error) if !error.is_conflict() => return Err(error.to_string()),
            // A fabric that is gone says nothing any more.
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::tests::scenario;

    #[test]
    fn a_fabric_that_was_ready_is_unknown_once() {
        let now = scenario::start();
        let mut fabric = scenario::fabric("default", 0);
        assert_eq!(patch(&fabric, now), None, "it has no status");
        let mut status = weft_crds::FabricStatus::default();
        let ready = ConditionUpdate::new("Ready", true, "NodesReady", "3 of 3");
        condition::set(&mut status.conditions, ready, 1, now);
        fabric.status = Some(status);
        let written = patch(&fabric, now).unwrap();
        let condition = &written["status"]["conditions"][0];
        assert_eq!(condition["status"], "Unknown", "{written}");
        fabric.status = serde_json::from_value(written["status"].clone()).unwrap();
        assert_eq!(patch(&fabric, now), None);
    }
}
