//! What pods have of what the chart brings for them. It is looked at before `helm uninstall` takes all of it away, or an upgrade
//! or a rollback a part: programs end with their engines, and without its driver nobody unmounts a volume or takes a claim back.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use weft_crds::{FabricNode, RdmaFabric};

use crate::{
    api::{CallError, call},
    claims::{self, PoolUse},
    controllers::FORCE,
};

/// What pods ask for to get a device without a claim.
const RESOURCE: &str = "weft.dev/vdev";

/// What the chart brings for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Feature {
    /// Volumes that show verified copies (volumes.enabled).
    Volumes,
    /// Virtual devices, however pods ask for them (devices.enabled).
    Devices,
    /// Virtual devices by ResourceClaims (devices.mode).
    Claims,
    /// Virtual devices by the resource weft.dev/vdev (devices.mode).
    Resource,
}

/// What of these pods have. Pods of a fabric with the annotation weft.dev/force=true do not count.
///
/// # Errors
/// The API server does not say.
pub(crate) async fn find(client: &Client, features: &[Feature]) -> Result<Vec<String>, CallError> {
    let all = ListParams::default();
    let nodes: Api<FabricNode> = Api::all(client.clone());
    let fabrics: Api<RdmaFabric> = Api::all(client.clone());
    let found = match call(nodes.list(&all)).await {
        Ok(nodes) => call(fabrics.list(&all))
            .await
            .map(|fabrics| (nodes.items, fabrics.items)),
        Err(error) => Err(error),
    };
    let (nodes, fabrics) = match found {
        Ok(found) => found,
        // The definition is gone, and with it all nodes.
        Err(error) if error.is_conflict() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let forced = fabrics.iter().filter(|fabric| {
        let force = fabric.annotations().get(FORCE);
        force.is_some_and(|value| value == "true")
    });
    let forced: BTreeSet<String> = forced.map(RdmaFabric::name_any).collect();
    let mut in_use = of_nodes(&nodes, &forced, features);
    let is_taken = |feature| features.contains(&feature) && !features.contains(&Feature::Devices);
    if is_taken(Feature::Claims) || is_taken(Feature::Resource) {
        let pools = claims::use_by_pool(client).await?;
        if is_taken(Feature::Claims) {
            let all_are_forced = forced.len() == fabrics.len();
            in_use.extend(of_pools(&pools, &nodes, &forced, all_are_forced));
        }
        if is_taken(Feature::Resource) {
            for (node, count) in by_resource(&nodes, &pools, &forced) {
                if has_device_plugin(client, &node).await? {
                    in_use.push(counted(count, "device", &format!("{node} by the resource")));
                }
            }
        }
    }
    Ok(in_use)
}

/// Whether the kubelet of a node knows devices of a device plugin. Without one the devices of its pods are those of claims, of
/// which some may have come or gone since the node has counted them.
async fn has_device_plugin(client: &Client, node: &str) -> Result<bool, CallError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = match call(nodes.get(node)).await {
        Ok(node) => node,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error),
    };
    let capacity = node.status.and_then(|status| status.capacity);
    let devices = capacity.and_then(|capacity| capacity.get(RESOURCE).cloned());
    Ok(devices.is_some_and(|devices| devices.0 != "0"))
}

fn counted(count: u32, what: &str, node: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural} of node {node}")
}

/// How many devices and volumes the pods of which node have.
fn of_nodes(nodes: &[FabricNode], forced: &BTreeSet<String>, features: &[Feature]) -> Vec<String> {
    let mut in_use = Vec::new();
    for node in nodes {
        let Some(status) = &node.status else {
            continue;
        };
        if forced.contains(&node.spec.fabric) {
            continue;
        }
        let devices = status.devices.map_or(0, |devices| devices.in_use);
        for (count, what, feature) in [
            (devices, "device", Feature::Devices),
            (status.volumes_in_use, "volume", Feature::Volumes),
        ] {
            if count > 0 && features.contains(&feature) {
                in_use.push(counted(count, what, &node.name_any()));
            }
        }
    }
    in_use
}

/// How many devices the pods of which node have by the resource: all that they have, less those of claims.
fn by_resource(
    nodes: &[FabricNode],
    pools: &BTreeMap<String, PoolUse>,
    forced: &BTreeSet<String>,
) -> Vec<(String, u32)> {
    let counted = nodes
        .iter()
        .filter(|node| !forced.contains(&node.spec.fabric));
    let count = |node: &FabricNode| {
        let name = node.name_any();
        let devices = node.status.as_ref()?.devices?.in_use;
        let of_claims = pools.get(&name).map_or(0, |pool| pool.devices);
        let left = devices.saturating_sub(of_claims);
        (left > 0).then_some((name, left))
    };
    counted.filter_map(count).collect()
}

/// Which pods have devices by claims. The pool of a device is named after its node; one whose node is in no fabric any more is
/// forced with the fabrics that there are.
fn of_pools(
    pools: &BTreeMap<String, PoolUse>,
    nodes: &[FabricNode],
    forced: &BTreeSet<String>,
    all_are_forced: bool,
) -> Vec<String> {
    let is_forced = |pool: &String| {
        let mut nodes = nodes.iter();
        let node = nodes.find(|node| node.name_any() == *pool);
        node.map_or(all_are_forced, |node| forced.contains(&node.spec.fabric))
    };
    let counted = pools.iter().filter(|(pool, _)| !is_forced(pool));
    let text = |(pool, in_use): (&String, &PoolUse)| {
        let pods: Vec<&str> = in_use.pods.iter().map(String::as_str).collect();
        format!("devices by claims of node {pool} ({})", pods.join(", "))
    };
    counted.map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, devices: u32, volumes: u32) -> FabricNode {
        let node = json!({
            "apiVersion": "weft.dev/v1alpha1",
            "kind": "FabricNode",
            "metadata": {"name": name},
            "spec": {"fabric": "default"},
            "status": {
                "devices": {"total": 8, "inUse": devices, "unhealthy": 0},
                "volumesInUse": volumes,
            },
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn devices_and_volumes_of_pods_are_listed_as_far_as_they_are_taken_away() {
        let nodes = [node("n1", 2, 1), node("n2", 0, 0), node("n3", 0, 3)];
        let found = |features: &[Feature]| of_nodes(&nodes, &BTreeSet::new(), features);
        let devices = "2 devices of node n1";
        let volumes = ["1 volume of node n1", "3 volumes of node n3"];
        assert_eq!(
            found(&[Feature::Devices, Feature::Volumes]),
            [devices, volumes[0], volumes[1]]
        );
        assert_eq!(found(&[Feature::Devices]), [devices]);
        assert_eq!(found(&[Feature::Volumes]), volumes);
        assert!(found(&[Feature::Claims]).is_empty());
        let forced = ["default".to_owned()].into();
        assert!(of_nodes(&nodes, &forced, &[Feature::Devices, Feature::Volumes]).is_empty());
    }

    /// Two devices of n1.
    fn pools() -> BTreeMap<String, PoolUse> {
        let pods = ["team-a/trainer-0", "team-a/trainer-1"].map(str::to_owned);
        let in_use = PoolUse {
            devices: 2,
            pods: pods.into(),
        };
        BTreeMap::from([("n1".to_owned(), in_use)])
    }

    #[test]
    fn devices_by_the_resource_are_those_that_no_claim_has() {
        let nodes = [node("n1", 3, 1), node("n2", 2, 0), node("n3", 0, 3)];
        let none = BTreeSet::new();
        let left = |count: u32, name: &str| (name.to_owned(), count);
        let found = by_resource(&nodes, &pools(), &none);
        assert_eq!(found, [left(1, "n1"), left(2, "n2")]);
        // One of the claims is not prepared yet.
        let nodes = [node("n1", 1, 0)];
        assert_eq!(by_resource(&nodes, &pools(), &none), []);
        let forced = ["default".to_owned()].into();
        assert_eq!(by_resource(&nodes, &BTreeMap::new(), &forced), []);
    }

    #[test]
    fn pods_with_devices_by_claims_are_named() {
        let pools = pools();
        let nodes = [node("n1", 2, 0)];
        let found = of_pools(&pools, &nodes, &BTreeSet::new(), false);
        let text = "devices by claims of node n1 (team-a/trainer-0, team-a/trainer-1)";
        assert_eq!(found, [text]);
        let forced = ["default".to_owned()].into();
        assert!(of_pools(&pools, &nodes, &forced, true).is_empty());
        // Its node has left the fabric.
        assert_eq!(of_pools(&pools, &[], &forced, false), [text]);
        assert!(of_pools(&pools, &[], &forced, true).is_empty());
    }
}
