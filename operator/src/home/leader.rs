//! Where the leader is: the chart's Service, and EndpointSlice `weft-operator-leader`, by which it leads
//! to one process.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::{
    api::{
        core::v1::Service,
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Resource as _, api::Patch};

use super::{Home, HomeError, metadata, params};
use crate::{NAME, api::call};

/// The leader's EndpointSlice.
pub(crate) const LEADER: &str = "weft-operator-leader";
/// The port's name in the chart's Service.
const PORT: &str = "control";

/// What agents are told to dial.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// HOST:PORT of the Service.
    pub dial: String,
    /// Where a leader listens.
    pub(super) port: u16,
    /// The Service: what the leader makes ends with the chart's installation.
    pub(crate) owner: Option<OwnerReference>,
}

impl Home {
    /// Where agents reach whoever leads.
    pub async fn address(&self, port: u16) -> Result<Address, HomeError> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |source| self.failed("Service weft-operator", "read", source);
        let found = call(api.get_opt(NAME)).await.map_err(read)?;
        found
            .as_ref()
            .ok_or("is missing")
            .and_then(|service| address(service, port))
            .map_err(|problem| HomeError::Service {
                namespace: self.namespace.clone(),
                problem,
            })
    }

    /// Makes the Service lead to this process.
    pub async fn lead(&self, address: &Address, pod: IpAddr) -> Result<(), HomeError> {
        let slice = slice(address, pod);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let written = call(api.patch(LEADER, &params(), &Patch::Apply(&slice))).await;
        let failed = |source| self.failed("EndpointSlice weft-operator-leader", "written", source);
        written.map(drop).map_err(failed)
    }
}

fn address(service: &Service, port: u16) -> Result<Address, &'static str> {
    let spec = service.spec.as_ref().ok_or("is empty")?;
    let ip: IpAddr = spec
        .cluster_ip
        .as_deref()
        .and_then(|ip| ip.parse().ok())
        .ok_or("has no cluster IP")?;
    Ok(Address {
        dial: SocketAddr::new(ip, port).to_string(),
        port,
        owner: service.owner_ref(&()),
    })
}

fn slice(address: &Address, pod: IpAddr) -> EndpointSlice {
    let mut metadata = metadata(LEADER);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("kubernetes.io/service-name".to_owned(), NAME.to_owned());
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        NAME.to_owned(),
    );
    metadata.owner_references = address.owner.clone().map(|owner| vec![owner]);
    let port = EndpointPort {
        name: Some(PORT.to_owned()),
        port: Some(address.port.into()),
        protocol: Some("TCP".to_owned()),
        ..EndpointPort::default()
    };
    EndpointSlice {
        metadata,
        address_type: if pod.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
        endpoints: vec![Endpoint {
            addresses: vec![pod.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }],
        ports: Some(vec![port]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Service {
        let service = json!({
            "metadata": {"name": "weft-operator", "uid": "u1"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [
                {"name": "other", "port": 80},
                {"name": "control", "port": 7410},
            ]},
        });
        serde_json::from_value(service).unwrap()
    }

    #[test]
    fn the_service_leads_to_the_leaders_pod() {
        let address = address(&service(), 7410).unwrap();
        assert_eq!(address.dial, "10.96.0.7:7410");
        let slice = slice(&address, "10.244.1.5".parse().unwrap());
        let slice = serde_json::to_value(slice).unwrap();
        assert_eq!(
            slice["metadata"]["labels"]["kubernetes.io/service-name"],
            NAME
        );
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(slice["addressType"], "IPv4");
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.244.1.5"]));
        assert_eq!(slice["ports"][0]["name"], "control");
        assert_eq!(slice["ports"][0]["port"], 7410);
        assert_eq!(slice["ports"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn an_address_of_the_sixth_version_is_written_as_one() {
        let mut service = service();
        service.spec.as_mut().unwrap().cluster_ip = Some("fd00::7".to_owned());
        let address = address(&service, 7410).unwrap();
        assert_eq!(address.dial, "[fd00::7]:7410");
        assert_eq!(
            slice(&address, "fd00::5".parse().unwrap()).address_type,
            "IPv6"
        );
    }

    #[test]
    fn a_service_without_an_address_is_named_as_the_cause() {
        let mut headless = service();
        headless.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
        assert_eq!(address(&headless, 7410), Err("has no cluster IP"));
    }
}
