//! Which pod has which device, by the kubelet's Pod Resources API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use tonic::Status;
use tonic::transport::Channel;

use crate::kubelet;
use crate::kubelet::pod_resources::ListPodResourcesRequest;
use crate::kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;

/// The pod that has a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A device as a container has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) pod: Pod,
    /// Which of its container's devices it is, in the order of their ids.
    pub(crate) index: usize,
}

/// The pods of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pods {
    pub(crate) names: BTreeSet<Pod>,
    /// All devices that containers have, by id. Init containers are not listed, whose devices a container of the pod has, too.
    pub(crate) allocations: BTreeMap<String, Allocation>,
}

impl Pods {
    /// How many devices the pod's containers have by the resource: the one that has most.
    pub(crate) fn most_of_a_container(&self, pod: &Pod) -> usize {
        let devices = self.allocations.values();
        let of_pod = devices.filter(|allocation| allocation.pod == *pod);
        of_pod.map(|it| it.index + 1).max().unwrap_or_default()
    }
}

/// The Pod Resources API, for one resource.
#[derive(Debug, Clone)]
pub(crate) struct PodResources {
    client: PodResourcesListerClient<Channel>,
    resource: String,
}

impl PodResources {
    /// Of the kubelet with this directory.
    pub(crate) fn new(directory: &Path, resource: &str) -> Self {
        let socket = directory.join("kubelet.sock");
        Self {
            client: PodResourcesListerClient::new(kubelet::channel(&socket)),
            resource: resource.to_owned(),
        }
    }

    /// All pods.
    pub(crate) async fn list(&self) -> Result<Pods, Status> {
        let request = ListPodResourcesRequest {};
        let listed = self.client.clone().list(request).await?.into_inner();
        let mut pods = Pods::default();
        for pod in listed.pod_resources {
            let name = Pod {
                namespace: pod.namespace,
                name: pod.name,
            };
            for container in pod.containers {
                let devices = container.devices.into_iter();
                let ours = devices.filter(|devices| devices.resource_name == self.resource);
                // One entry for each NUMA node.
                let ids: BTreeSet<String> = ours.flat_map(|devices| devices.device_ids).collect();
                let of_container = ids.into_iter().enumerate();
                pods.allocations.extend(of_container.map(|(index, id)| {
                    let pod = name.clone();
                    (id, Allocation { pod, index })
                }));
            }
            pods.names.insert(name);
        }
        Ok(pods)
    }
}
