//! Which devices of a node a ResourceClaim has been allocated: asked of the API server, a few at a time.
//!
//! An agent learns of its own node's devices only, and of a claim that it names by its UID.

use std::borrow::Cow;

use kube::{
    Api, Client, Resource,
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::Deserialize;
use tokio::sync::Semaphore;
use weft_proto::claims::v1::{AllocatedDevice, FindClaimRequest, FindClaimResponse};

use crate::{api::call, fault::Fault};

/// The driver of Weft's devices, as the chart's DeviceClass and ResourceSlices name it.
pub(crate) const DRIVER: &str = "vdev.weft.dev";
/// Questions to the API server at a time: a thousand pods that start at once, some 5 ms each, are through in a second. Others
/// wait for their turn.
const AT_A_TIME: usize = 8;
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

fn no_claim(request: &FindClaimRequest, problem: &str) -> Fault {
    let FindClaimRequest {
        namespace, name, ..
    } = request;
    Fault::NoClaim {
        claim: format!("{namespace}/{name}"),
        problem: problem.to_owned(),
    }
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
    let devices: Vec<AllocatedDevice> = of_node
        .map(|result| AllocatedDevice {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
        })
        .collect();
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

    #[test]
    fn what_is_no_name_does_not_become_a_path() {
        for name in ["", "a/b", "..", "A", "a?b", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name("trainer-0-vdev-x2p4"));
    }
}
