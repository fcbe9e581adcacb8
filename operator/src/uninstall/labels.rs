//! Removes Weft's labels from the nodes: nobody looks after them any more.
//!
//! The operator still runs and would label the nodes of its fabrics again, so the Lease is taken first.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{CONCURRENCY_MAX, MANAGER, POLL_INTERVAL, fabrics};
use crate::{
    api::call,
    lease::{LeaseStore, seize},
};

/// What the operator writes at nodes.
const OURS: [&str; 2] = ["weft.dev/fabric", "weft.dev/model."];
/// Until whoever led knows that it does not any more: a renewal comes every 2 s.
const NOTICE: Duration = Duration::from_secs(5);

/// The patch that removes all of them from a node; `None` where it has none.
fn patch(node: &PartialObjectMeta<Node>) -> Option<Value> {
    let [fabric, model] = OURS;
    let labels = node.labels().keys();
    let ours = labels.filter(|key| key.as_str() == fabric || key.starts_with(model));
    let labels: Map<String, Value> = ours.map(|key| (key.clone(), Value::Null)).collect();
    (!labels.is_empty()).then(|| json!({"metadata": {"uid": node.uid(), "labels": labels}}))
}

/// Takes it from all nodes; gives how many had any.
///
/// # Errors
/// Why some of it stays.
pub(super) async fn remove(client: &Client, board: impl LeaseStore) -> Result<usize, String> {
    let Some(mut lead) = seize(board).await? else {
        let count = strip(client).await?;
        fabrics::release(client).await?;
        return Ok(count);
    };
    sleep(NOTICE).await;
    let all = async {
        let mut count = 0;
        loop {
            match strip(client).await? {
                0 => break,
                more => count += more,
            }
            sleep(POLL_INTERVAL).await;
        }
        fabrics::release(client).await?;
        Ok(count)
    };
    tokio::select! {
        count = all => count,
        lost = lead.keep() => Err(lost.to_string()),
    }
}

/// Looks at all nodes once; gives how many had any.
async fn strip(client: &Client) -> Result<usize, String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = ListParams::default();
    let listed = call(nodes.list_metadata(&parameters)).await;
    let listed = listed.map_err(|error| error.to_string())?;
    let patches = listed.items.iter().filter_map(|node| {
        let text = patch(node)?;
        let nodes = nodes.clone();
        Some(async move {
            let parameters = PatchParams::apply(MANAGER);
            let text = Patch::Merge(text);
            call(nodes.patch_metadata(&node.name_any(), &parameters, &text)).await
        })
    });
    let mut done = stream::iter(patches).buffer_unordered(CONCURRENCY_MAX);
    let mut count = 0;
    while let Some(patched) = done.next().await {
        match patched {
            Err(error) if !error.is_conflict() => return Err(error.to_string()),
            // A node that is gone says nothing any more.
            _ => count += 1,
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_wrote_goes_and_all_else_stays() {
        let node = |labels: Value| -> PartialObjectMeta<Node> {
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n1", "uid": "u1", "labels": labels},
            }))
            .unwrap()
        };
        let model = "weft.dev/model.team-a.minilm";
        let ours =
            node(json!({"gpu": "true", "weft.dev/fabric": "default", model: "0123456789ab"}));
        let expected = json!({"metadata": {
            "uid": "u1",
            "labels": {"weft.dev/fabric": null, model: null},
        }});
        assert_eq!(patch(&ours), Some(expected));
        let others = node(json!({"gpu": "true", "weft.dev/fabric-x": "y"}));
        assert_eq!(patch(&others), None);
    }
}
