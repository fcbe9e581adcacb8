//! The agents' control API, called by whoever holds a key: a thief, or an operator that was deposed.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Secret;
use nix::unistd::Pid;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use weft_cluster::in_network_of;
use weft_crds::FabricNode;
use weft_identity::{
    authority::{Authority, KeptAuthority},
    server_name,
};
use weft_proto::agent::v1::agent_client::AgentClient;
use weft_proto::{Message as _, agent::v1::ErrorDetail};

use crate::harness::process;
use crate::test_cluster::{SYSTEM, TestCluster};

/// Where an agent keeps its key.
const STATE: &str = "var/lib/weft/agent";
const FABRIC: &str = "default";

/// A certificate, its key, and whom it believes.
pub(crate) struct Caller {
    /// In whose network it is.
    from: Pid,
    certificate: String,
    key: String,
    authorities: String,
}

impl Caller {
    /// Steals a node's key, as who has become root on that node could.
    pub(crate) fn stolen_from(cluster: &TestCluster, node: &str) -> Self {
        let pid = process(cluster, "weft-agent", &format!("NODE_NAME={node}"));
        let pid =
            pid.unwrap_or_else(|| cluster.fail(&format!("the agent of {node} has no process")));
        let directory = Path::new("/proc")
            .join(pid.to_string())
            .join("root")
            .join(STATE);
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        Self {
            from: pid,
            certificate: read("node.pem"),
            key: read("node.key"),
            authorities: read("ca.pem"),
        }
    }

    /// An operator, as what is in the Secret makes one; called from this one's pod.
    pub(crate) fn operator(cluster: &TestCluster, pod: &str) -> Self {
        let from = process(cluster, "weft-operator", &format!("POD_NAME={pod}"));
        let secrets = cluster.of::<Secret>(SYSTEM);
        let data = cluster.wait(secrets.get("weft-ca")).unwrap().data.unwrap();
        let part = |name: &str| {
            let bytes = data.get(name).map(|bytes| bytes.0.clone());
            String::from_utf8(bytes.unwrap_or_default()).unwrap()
        };
        let kept = KeptAuthority {
            certificates: part("ca.crt"),
            key: part("ca.key"),
            tickets: part("tickets.key"),
            next: part("ca.next.key"),
        };
        let authority = Authority::from_kept("weft", kept).unwrap();
        let identity = authority.of_fabric(FABRIC).operator().unwrap();
        Self {
            from: from.unwrap_or_else(|| cluster.fail(&format!("{pod} has no process"))),
            certificate: identity.certificate,
            key: identity.key,
            authorities: authority.certificate().to_owned(),
        }
    }

    /// Calls a node's agent over the management network.
    pub(crate) fn call<T, F, Answer>(&self, cluster: &TestCluster, node: &str, call: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(AgentClient<Channel>) -> Answer + Send + 'static,
        Answer: Future<Output = T>,
    {
        let there = cluster.wait(cluster.all::<FabricNode>().get(node)).unwrap();
        let address = there.status.unwrap().control_address;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authorities))
            .identity(Identity::from_pem(&self.certificate, &self.key))
            .domain_name(server_name(FABRIC, node));
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        let endpoint = endpoint.tls_config(tls).unwrap();
        let called = in_network_of(self.from.as_raw().cast_unsigned(), move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let channel = endpoint.connect().await.unwrap();
                call(AgentClient::new(channel)).await
            })
        });
        called.unwrap().join().unwrap()
    }
}

/// The stable reason of a refusal.
pub(crate) fn reason_of<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> String {
    let status = answer.unwrap_err();
    let detail = ErrorDetail::decode(status.details());
    let reason = detail.map(|detail| detail.reason).unwrap_or_default();
    assert!(!reason.is_empty(), "{status:?}");
    reason
}
