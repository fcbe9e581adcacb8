//! What pods have of what the chart brings for them. It is looked at before `helm uninstall` takes all of it away, or an upgrade
//! or a rollback a part: programs end with their engines, and without its driver nobody unmounts a volume or takes a claim back.

use std::collections::{BTreeMap, BTreeSet};

use kube::{Api, Client, ResourceExt as _, api::ListParams};
use weft_crds::{FabricNode, RdmaFabric};

use crate::{
    api::{CallError, call},
    claims,
    controllers::FORCE,
};

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
    let Some((nodes, fabrics)) = nodes_and_fabrics(client).await? else {
        return Ok(Vec::new());
    };
    let forced = forced(&fabrics);
    let mut in_use = of_nodes(&nodes, &forced, features);
    if features.contains(&Feature::Claims) && !features.contains(&Feature::Devices) {
        let pools = claims::pods_by_pool(client).await?;
        let all_are_forced = forced.len() == fabrics.len();
        in_use.extend(of_pools(&pools, &nodes, &forced, all_are_forced));
    }
    Ok(in_use)
}

/// Which pods have devices by claims of nodes that have left their fabric: no FabricNode counts them.
///
/// # Errors
/// The API server does not say.
pub(crate) async fn find_outside_fabrics(client: &Client) -> Result<Vec<String>, CallError> {
    let Some((nodes, fabrics)) = nodes_and_fabrics(client).await? else {
        return Ok(Vec::new());
    };
    let mut pools = match claims::pods_by_pool(client).await {
        Ok(pools) => pools,
        // The operator's account may list claims where the chart has devices by claims.
        Err(error) if error.has_code(403) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names: BTreeSet<String> = nodes.iter().map(FabricNode::name_any).collect();
    pools.retain(|pool, _| !names.contains(pool));
    let forced = forced(&fabrics);
    let all_are_forced = !fabrics.is_empty() && forced.len() == fabrics.len();
    Ok(of_pools(&pools, &nodes, &forced, all_are_forced))
}

/// All of them; `None` where the definitions are gone, and with them all nodes.
async fn nodes_and_fabrics(
    client: &Client,
) -> Result<Option<(Vec<FabricNode>, Vec<RdmaFabric>)>, CallError> {
    let all = ListParams::default();
    let nodes: Api<FabricNode> = Api::all(client.clone());
    let fabrics: Api<RdmaFabric> = Api::all(client.clone());
    let found = match call(nodes.list(&all)).await {
        Ok(nodes) => call(fabrics.list(&all))
            .await
            .map(|fabrics| (nodes.items, fabrics.items)),
        Err(error) => Err(error),
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The fabrics whose pods do not count.
fn forced(fabrics: &[RdmaFabric]) -> BTreeSet<String> {
    let forced = fabrics.iter().filter(|fabric| {
        let force = fabric.annotations().get(FORCE);
        force.is_some_and(|value| value == "true")
    });
    forced.map(RdmaFabric::name_any).collect()
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
        let devices = status.devices.unwrap_or_default();
        let by_resource = match features.contains(&Feature::Devices) {
            // These are all of them.
            true => 0,
            false => devices.in_use.saturating_sub(devices.by_claims),
        };
        for (count, what, how, feature) in [
            (devices.in_use, "device", "", Feature::Devices),
            (by_resource, "device", " by the resource", Feature::Resource),
            (status.volumes_in_use, "volume", "", Feature::Volumes),
        ] {
            let plural = if count == 1 { "" } else { "s" };
            if count > 0 && features.contains(&feature) {
                let node = node.name_any();
                in_use.push(format!("{count} {what}{plural} of node {node}{how}"));
            }
        }
    }
    in_use
}

/// Which pods have devices by claims. The pool of a device is named after its node; one whose node is in no fabric any more is
/// forced with the fabrics that there are.
fn of_pools(
    pools: &BTreeMap<String, BTreeSet<String>>,
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
    let text = |(pool, pods): (&String, &BTreeSet<String>)| {
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        format!("devices by claims of node {pool} ({})", pods.join(", "))
    };
    counted.map(text).collect()
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use serde_json::json;

    use super::*;
    use crate::controllers::tests::{api_server::ApiServer, scenario};

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
        // All devices of pods were named already.
        assert_eq!(found(&[Feature::Devices, Feature::Resource]), [devices]);
        let forced = ["default".to_owned()].into();
        assert!(of_nodes(&nodes, &forced, &[Feature::Devices, Feature::Volumes]).is_empty());
    }

    #[test]
    fn devices_by_the_resource_are_those_that_are_not_of_claims() {
        let with_claims = |name: &str, devices: u32, by_claims: u32| {
            let mut node = node(name, devices, 0);
            let counts = node.status.as_mut().unwrap().devices.as_mut().unwrap();
            counts.by_claims = by_claims;
            node
        };
        let nodes = [
            with_claims("n1", 3, 2),
            with_claims("n2", 2, 0),
            with_claims("n3", 2, 2),
        ];
        let found = of_nodes(&nodes, &BTreeSet::new(), &[Feature::Resource]);
        let expected = [
            "1 device of node n1 by the resource",
            "2 devices of node n2 by the resource",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pods_with_devices_by_claims_are_named() {
        let pods = ["team-a/trainer-0", "team-a/trainer-1"].map(str::to_owned);
        let pools = BTreeMap::from([("n1".to_owned(), pods.into())]);
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

    #[tokio::test]
    async fn pods_with_claims_of_a_node_that_left_its_fabric_are_found() {
        let server = ApiServer::new();
        server.put(&scenario::ready("n1", "default"));
        for node in ["n1", "n9"] {
            let device = json!({"request": "rdma", "driver": claims::DRIVER, "pool": node, "device": "vdev-1"});
            let claim = json!({
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"namespace": "team-a", "name": node},
                "status": {
                    "allocation": {"devices": {"results": [device]}},
                    "reservedFor": [{"resource": "pods", "name": format!("of-{node}"), "uid": node}],
                },
            });
            let claim: DynamicObject = serde_json::from_value(claim).unwrap();
            server.put_dynamic("resourceclaims", &claim);
        }
        let expected = ["devices by claims of node n9 (team-a/of-n9)"];
        let client = server.client();
        // Also where there is no fabric any more.
        assert_eq!(find_outside_fabrics(&client).await.unwrap(), expected);
        let mut fabric = scenario::fabric("default", 0);
        server.put(&fabric);
        assert_eq!(find_outside_fabrics(&client).await.unwrap(), expected);
        let forced = [(FORCE.to_owned(), "true".to_owned())];
        fabric.metadata.annotations = Some(forced.into());
        server.put(&fabric);
        let found = find_outside_fabrics(&client).await.unwrap();
        assert_eq!(found, Vec::<String>::new());
    }
}
