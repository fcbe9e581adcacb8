//! Which devices of a node a ResourceClaim has been allocated: asked of the API server, a few at a time.
//!
//! An agent learns of its own node's devices only, and of a claim that it names by its UID.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use weft_proto::claims::v1::{
    AllocatedDevice, DeviceParameters, FindClaimRequest, FindClaimResponse,
};

use crate::{
    api::{CallError, call},
    fault::Fault,
};

/// The driver of Weft's devices, as the chart's DeviceClass and ResourceSlices name it.
pub(crate) const DRIVER: &str = "vdev.weft.dev";
/// Questions to the API server at a time: a thousand pods that start at once, some 5 ms each, are through in a second. Others
/// wait for their turn.
const AT_A_TIME: usize = 8;
/// What a DeviceClass configures Weft's devices by.
const PARAMETERS_VERSION: &str = "weft.dev/v1alpha1";
const PARAMETERS_KIND: &str = "DeviceParameters";
/// The largest weight, as of `spec.devices.share`.
const SHARE_MAX: u32 = 10_000;
/// As of `spec.devices.capMbps`.
const CAP_MBPS_MAX: u32 = 10_000_000;
/// Of a name: what Kubernetes takes for one.
const NAME_BYTES_MAX: usize = 253;

/// A ResourceClaim, as far as it is read. `resource.k8s.io/v1` is served from Kubernetes 1.34 on.
#[derive(Debug, Clone, Deserialize)]
struct ResourceClaim {
    metadata: ObjectMeta,
    #[serde(default)]
    status: ClaimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    allocation: Allocation,
    reserved_for: Vec<Consumer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: DeviceAllocation,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DeviceAllocation {
    results: Vec<DeviceResult>,
    /// As it was in DeviceClass and claim when the scheduler allocated.
    config: Vec<DeviceConfig>,
}

#[derive(Debug, Clone, Deserialize)]
struct DeviceConfig {
    source: ConfigSource,
    /// Of the claim; empty: all.
    #[serde(default)]
    requests: Vec<String>,
    opaque: Option<OpaqueConfig>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum ConfigSource {
    /// The DeviceClass, which administrators write.
    FromClass,
    /// The claim, which its namespace's users write.
    FromClaim,
}

#[derive(Debug, Clone, Deserialize)]
struct OpaqueConfig {
    driver: String,
    #[serde(default)]
    parameters: Value,
}

/// What a DeviceClass may say of its devices, as docs/devices.md has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClassParameters {
    api_version: String,
    kind: String,
    share: Option<u32>,
    cap_mbps: Option<u32>,
    operations_per_second: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
struct DeviceResult {
    request: String,
    driver: String,
    pool: String,
    device: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Consumer {
    resource: String,
    name: String,
    uid: String,
}

impl Resource for ResourceClaim {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ResourceClaim".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "resource.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "resourceclaims".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Asks the API server, a few questions at a time.
pub(crate) struct Claims {
    client: Client,
    turns: Semaphore,
}

impl Claims {
    /// By this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(AT_A_TIME),
        }
    }

    /// The devices of the pool of a node that a claim has.
    pub(crate) async fn find(
        &self,
        node: &str,
        request: &FindClaimRequest,
    ) -> Result<FindClaimResponse, Fault> {
        for (field, text) in [
            ("namespace", &request.namespace),
            ("name", &request.name),
            ("uid", &request.uid),
        ] {
            if !is_name(text) {
                let problem = "give that of a ResourceClaim".to_owned();
                return Err(Fault::BadRequest { field, problem });
            }
        }
        // The turn is waited for within the same time.
        let answer = call(async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            let api = Api::<ResourceClaim>::namespaced(self.client.clone(), &request.namespace);
            api.get(&request.name).await
        });
        match answer.await {
            Ok(claim) => devices(&claim, node, request),
            Err(error) if error.is_not_found() => Err(no_claim(request, "is not there")),
            Err(error) => Err(Fault::ClaimNotRead(error)),
        }
    }
}

/// The pods that have devices of a pool by claims, as NAMESPACE/NAME. None where the API server has no claims.
pub(crate) async fn pods_by_pool(
    client: &Client,
) -> Result<BTreeMap<String, BTreeSet<String>>, CallError> {
    let claims = Api::<ResourceClaim>::all(client.clone());
    match call(claims.list(&ListParams::default())).await {
        Ok(claims) => Ok(pods_of(&claims.items)),
        Err(error) if error.has_code(404) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn pods_of(claims: &[ResourceClaim]) -> BTreeMap<String, BTreeSet<String>> {
    let mut pools: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for claim in claims {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let results = claim.status.allocation.devices.results.iter();
        for result in results.filter(|result| result.driver == DRIVER) {
            let consumers = claim.status.reserved_for.iter();
            let pods = consumers.filter(|consumer| consumer.resource == "pods");
            let pods = pods.map(|pod| format!("{namespace}/{}", pod.name));
            let mut pods = pods.peekable();
            if pods.peek().is_some() {
                pools.entry(result.pool.clone()).or_default().extend(pods);
            }
        }
    }
    pools
}

fn no_claim(request: &FindClaimRequest, problem: &str) -> Fault {
    let FindClaimRequest {
        namespace, name, ..
    } = request;
    Fault::NoClaim {
        claim: format!("{namespace}/{name}"),
        problem: problem.to_owned(),
    }
}

/// What the DeviceClass of a request says of its devices. A claim says nothing: its author would choose a share.
fn parameters(configs: &[DeviceConfig], request: &str) -> Result<DeviceParameters, String> {
    let mut found = DeviceParameters::default();
    // Of a request with alternatives the class may be configured as a whole.
    let parent = request.split('/').next().unwrap_or(request);
    for config in configs {
        let Some(opaque) = config.opaque.as_ref().filter(|it| it.driver == DRIVER) else {
            continue;
        };
        if config.source == ConfigSource::FromClaim {
            return Err(format!(
                "has a config of its own for driver {DRIVER}, which a claim may not have: remove spec.devices.config, the share \
                 and the limits of a device are those of its DeviceClass"
            ));
        }
        let mut requests = config.requests.iter();
        if !config.requests.is_empty() && !requests.any(|it| it == request || it == parent) {
            continue;
        }
        let said = class_parameters(&opaque.parameters).map_err(|problem| {
            format!("has a DeviceClass whose config.opaque.parameters{problem}")
        })?;
        found = DeviceParameters {
            share: said.share.unwrap_or(found.share),
            cap_mbps: said.cap_mbps.unwrap_or(found.cap_mbps),
            operations_per_second: said
                .operations_per_second
                .unwrap_or(found.operations_per_second),
        };
    }
    Ok(found)
}

/// The problem begins behind the name of the field that has them.
fn class_parameters(given: &Value) -> Result<ClassParameters, String> {
    let said: ClassParameters = serde_json::from_value(given.clone()).map_err(|problem| {
        format!(
            " are not {PARAMETERS_KIND} of {PARAMETERS_VERSION}: {problem}: give apiVersion, kind, and of share, capMbps and \
             operationsPerSecond those that differ from the fabric's"
        )
    })?;
    if (&*said.api_version, &*said.kind) != (PARAMETERS_VERSION, PARAMETERS_KIND) {
        return Err(format!(
            " are {} of {}: give kind {PARAMETERS_KIND} of apiVersion {PARAMETERS_VERSION}",
            said.kind, said.api_version
        ));
    }
    for (field, given, most) in [
        ("share", said.share, SHARE_MAX),
        ("capMbps", said.cap_mbps, CAP_MBPS_MAX),
        ("operationsPerSecond", said.operations_per_second, u32::MAX),
    ] {
        if given.is_some_and(|given| !(1..=most).contains(&given)) {
            return Err(format!(".{field} is out of range: give 1 to {most}"));
        }
    }
    Ok(said)
}

/// It becomes a part of the path at the API server.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(is_letter)
}

/// What a claim has of a node's pool.
fn devices(
    claim: &ResourceClaim,
    node: &str,
    request: &FindClaimRequest,
) -> Result<FindClaimResponse, Fault> {
    if claim.metadata.uid.as_deref() != Some(&request.uid) {
        return Err(no_claim(request, "is another one of that name now"));
    }
    let results = claim.status.allocation.devices.results.iter();
    let of_node = results.filter(|result| result.driver == DRIVER && result.pool == node);
    let config = &claim.status.allocation.devices.config;
    let devices = of_node.map(|result| {
        let parameters = parameters(config, &result.request);
        let parameters = parameters.map_err(|problem| Fault::ClaimConfig {
            claim: format!("{}/{}", request.namespace, request.name),
            problem,
        });
        Ok(AllocatedDevice {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            parameters: Some(parameters?),
        })
    });
    let devices = devices.collect::<Result<Vec<AllocatedDevice>, Fault>>()?;
    if devices.is_empty() {
        return Err(no_claim(request, "has no device of this node"));
    }
    let consumers = claim.status.reserved_for.iter();
    let mut pods = consumers.filter(|consumer| consumer.resource == "pods");
    let pod = pods.next();
    let pod = pod.ok_or_else(|| no_claim(request, "is reserved for no pod"))?;
    Ok(FindClaimResponse {
        pod: pod.name.clone(),
        pod_uid: pod.uid.clone(),
        devices,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: &Value) -> ResourceClaim {
        let claim = json!({
            "metadata": {"namespace": "team-a", "name": "trainer-0-vdev", "uid": "5d1e"},
            "status": status,
        });
        serde_json::from_value(claim).unwrap()
    }

    fn request() -> FindClaimRequest {
        FindClaimRequest {
            namespace: "team-a".to_owned(),
            name: "trainer-0-vdev".to_owned(),
            uid: "5d1e".to_owned(),
        }
    }

    fn allocated() -> Value {
        let device = |driver: &str, pool: &str, device: &str| json!({"request": "rdma", "driver": driver, "pool": pool, "device": device});
        json!({
            "allocation": {"devices": {"results": [
                device(DRIVER, "n1", "vdev-7"),
                device(DRIVER, "n2", "vdev-8"),
                device("gpu.example.com", "n1", "gpu-0"),
            ]}},
            "reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": "77"}],
        })
    }

    #[test]
    fn pods_are_listed_by_the_nodes_whose_devices_they_have() {
        let unused = json!({"allocation": allocated()["allocation"]});
        let pools = pods_of(&[claim(&allocated()), claim(&unused), claim(&json!({}))]);
        let pods = || BTreeSet::from(["team-a/trainer-0".to_owned()]);
        let expected = [("n1".to_owned(), pods()), ("n2".to_owned(), pods())];
        assert_eq!(pools, expected.into());
    }

    #[test]
    fn a_node_learns_of_its_own_devices_of_this_driver_only() {
        let found = devices(&claim(&allocated()), "n1", &request()).unwrap();
        assert_eq!((&*found.pod, &*found.pod_uid), ("trainer-0", "77"));
        let names: Vec<&str> = found.devices.iter().map(|it| it.device.as_str()).collect();
        assert_eq!(names, ["vdev-7"]);
    }

    #[test]
    fn a_claim_that_is_another_one_or_has_nothing_of_the_node_or_no_pod_is_none() {
        let problem = |claim: &ResourceClaim, node: &str, uid: &str| {
            let request = FindClaimRequest {
                uid: uid.to_owned(),
                ..request()
            };
            let fault = devices(claim, node, &request).unwrap_err();
            assert_eq!(fault.reason(), "NoClaim");
            fault.to_string()
        };
        let mut unreserved = allocated();
        unreserved["reservedFor"] = json!([]);
        for (status, node, uid, wanted) in [
            (allocated(), "n1", "6666", "another one"),
            (allocated(), "n3", "5d1e", "no device of this node"),
            (json!({}), "n1", "5d1e", "no device of this node"),
            (unreserved, "n1", "5d1e", "reserved for no pod"),
        ] {
            let problem = problem(&claim(&status), node, uid);
            assert!(problem.contains(wanted), "{problem}");
        }
    }

    /// The devices of a claim with this config in its allocation.
    fn configured(config: &Value) -> Result<DeviceParameters, String> {
        let mut status = allocated();
        status["allocation"]["devices"]["config"] = config.clone();
        let found = devices(&claim(&status), "n1", &request());
        let found = found.map_err(|fault| {
            assert_eq!(fault.reason(), "ClaimConfig");
            fault.to_string()
        })?;
        Ok(found.devices[0].parameters.unwrap())
    }

    fn config(source: &str, driver: &str, requests: &Value, more: &Value) -> Value {
        let mut parameters = json!({"apiVersion": "weft.dev/v1alpha1", "kind": "DeviceParameters"});
        for (field, value) in more.as_object().unwrap() {
            parameters[field] = value.clone();
        }
        let opaque = json!({"driver": driver, "parameters": parameters});
        json!({"source": source, "requests": requests, "opaque": opaque})
    }

    #[test]
    fn a_device_has_the_share_and_the_limits_of_its_class() {
        let of_class = |requests: Value, more: Value| config("FromClass", DRIVER, &requests, &more);
        let none = DeviceParameters::default();
        assert_eq!(configured(&json!([])), Ok(none));
        let said = configured(&json!([
            of_class(json!(["rdma"]), json!({"share": 400, "capMbps": 1000})),
            of_class(json!(["other"]), json!({"share": 7})),
            config(
                "FromClaim",
                "gpu.example.com",
                &json!([]),
                &json!({"mode": "fast"})
            ),
            of_class(json!([]), json!({"operationsPerSecond": 20000})),
        ]));
        let wanted = DeviceParameters {
            share: 400,
            cap_mbps: 1000,
            operations_per_second: 20_000,
        };
        assert_eq!(said, Ok(wanted));
    }

    #[test]
    fn a_claim_that_configures_its_devices_is_refused_and_a_wrong_class_is_told_the_field() {
        let of_class = |more: Value| config("FromClass", DRIVER, &json!([]), &more);
        let of_claim = config(
            "FromClaim",
            DRIVER,
            &json!(["other"]),
            &json!({"share": 400}),
        );
        for (config, wanted) in [
            (of_claim, "a claim may not have: remove spec.devices.config"),
            (
                of_class(json!({"share": 0})),
                "parameters.share is out of range: give 1 to 10000",
            ),
            (
                of_class(json!({"capMbps": 0})),
                "parameters.capMbps is out of range",
            ),
            (of_class(json!({"weight": 3})), "unknown field `weight`"),
            (
                of_class(json!({"kind": "Other"})),
                "give kind DeviceParameters of apiVersion",
            ),
        ] {
            let problem = configured(&json!([config])).unwrap_err();
            assert!(problem.contains(wanted), "{problem}");
            assert!(problem.contains("team-a/trainer-0-vdev"), "{problem}");
        }
    }

    #[test]
    fn what_is_no_name_does_not_become_a_path() {
        for name in ["", "a/b", "..", "A", "a?b", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name("trainer-0-vdev-x2p4"));
    }
}
