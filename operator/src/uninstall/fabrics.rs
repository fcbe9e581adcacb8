//! Lets the fabrics go, so that they can be deleted without an operator, and says that nobody knows their state
//! and that of their nodes: otherwise `kubectl wait` would take the old state for that of a new installation.

use futures::{StreamExt as _, stream};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use weft_crds::{FabricNode, RdmaFabric};

use super::{CONCURRENCY_MAX, MANAGER};
use crate::{
    NAME,
    api::call,
    controllers::{
        FABRIC_FINALIZER,
        condition::{self, ConditionUpdate},
    },
};

/// What an operator watches of the agents, beside Ready.
const WATCHED: [&str; 2] = ["AgentsApplied", "Conflicting"];

/// These conditions with Ready, and those of them that are watched, unknown; `None` where they say so already.
fn unknown(
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let mut conditions = before.to_vec();
    let text = "Weft was uninstalled: no agent runs";
    let is_set = |kind: &&str| before.iter().any(|condition| condition.type_ == **kind);
    for kind in ["Ready"]
        .into_iter()
        .chain(WATCHED.into_iter().filter(is_set))
    {
        let update = ConditionUpdate::unknown(kind, "Uninstalled", text);
        condition::set(&mut conditions, update, generation.unwrap_or_default(), now);
    }
    (conditions != before).then_some(conditions)
}

/// The patch of a fabric's status; `None` where it says so already, or nothing.
fn patch(fabric: &RdmaFabric, now: Timestamp) -> Option<Value> {
    let before = &fabric.status.as_ref()?.conditions;
    let conditions = unknown(before, fabric.metadata.generation, now)?;
    let nodes = json!({ "ready": 0 });
    Some(json!({"status": {"conditions": conditions, "nodes": nodes}}))
}

/// The patch of a node's status; `None` where it says so already, or nothing.
fn node_patch(node: &FabricNode, now: Timestamp) -> Option<Value> {
    let before = &node.status.as_ref()?.conditions;
    let conditions = unknown(before, node.metadata.generation, now)?;
    Some(json!({"status": {"conditions": conditions}}))
}

/// Looks at all fabrics and their nodes once. The operator must not write any more.
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
    release_nodes(client).await
}

async fn release_nodes(client: &Client) -> Result<(), String> {
    let nodes: Api<FabricNode> = Api::all(client.clone());
    let listed = call(nodes.list(&ListParams::default())).await;
    let listed = listed.map_err(|error| error.to_string())?;
    let patches = listed.items.iter().filter_map(|node| {
        let patch = Patch::Merge(node_patch(node, Timestamp::now())?);
        let nodes = nodes.clone();
        Some(async move {
            let parameters = PatchParams::apply(MANAGER);
            call(nodes.patch_status(&node.name_any(), &parameters, &patch)).await
        })
    });
    let mut done = stream::iter(patches).buffer_unordered(CONCURRENCY_MAX);
    while let Some(patched) = done.next().await {
        match patched {
            Err(error) if !error.is_conflict() => return Err(error.to_string()),
            // A node that is gone says nothing any more.
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::tests::{api_server::ApiServer, scenario};

    #[tokio::test]
    async fn no_node_of_a_fabric_is_ready_after_an_uninstallation() {
        let server = ApiServer::new();
        for name in ["n1", "n2"] {
            server.put(&scenario::ready(name, "default"));
        }
        for writes in [2, 0] {
            let before = server.log().len();
            release(&server.client()).await.unwrap();
            assert_eq!(server.log().len() - before, writes, "{:?}", server.log());
            let node: FabricNode = server.get("", "n2").unwrap();
            // What its agent said stays.
            let status = node.status.unwrap();
            let ready = &status.conditions[0];
            assert_eq!((&*ready.status, &*ready.reason), ("Unknown", "Uninstalled"));
            assert_eq!(status.control_address, "10.0.0.2:7400");
        }
    }

    #[test]
    fn a_fabric_that_was_ready_is_unknown_once() {
        let now = scenario::start();
        let mut fabric = scenario::fabric("default", 0);
        assert_eq!(patch(&fabric, now), None, "it has no status");
        let mut status = weft_crds::FabricStatus::default();
        for kind in ["Ready", "AgentsApplied"] {
            let update = ConditionUpdate::new(kind, true, "AllWell", "3 of 3");
            condition::set(&mut status.conditions, update, 1, now);
        }
        fabric.status = Some(status);
        let written = patch(&fabric, now).unwrap();
        let conditions = written["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 2, "what it did not have is not made up");
        for condition in conditions {
            assert_eq!(condition["status"], "Unknown", "{written}");
        }
        fabric.status = serde_json::from_value(written["status"].clone()).unwrap();
        assert_eq!(patch(&fabric, now), None);
    }
}
