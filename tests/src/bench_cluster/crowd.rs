//! Many nodes that are none: each is a Node object, the pod of an agent that no kubelet starts, and a
//! stand-in for that agent (`fleet`).

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use weft_cluster::Cluster;
use weft_crds::{FabricNode, RdmaFabric};
use weft_proto::operator::v1::NodeReport;

use super::fleet::{Fleet, Member};
use super::load::fabric;
use super::process::Process;
use super::{ClusterBenchError, NAMESPACE};

/// Of the simulated nodes.
const FABRIC: &str = "simulated";
/// Who alone may write FabricNodes.
const OPERATOR: &str = "system:serviceaccount:weft-system:weft-operator";
/// Requests under way at a time.
const AT_ONCE: usize = 16;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// The nodes and their agents.
pub(super) struct Crowd<'a> {
    cluster: &'a Cluster,
    agents: usize,
    transfer: Duration,
    /// Between two reports of an agent.
    report: Duration,
    /// The operator finds what it has written of the nodes at an earlier time.
    is_old: bool,
    /// In whose network the agents are.
    node: Process,
}

impl<'a> Crowd<'a> {
    /// So many, in a cluster in which the chart is installed; a transfer takes so long. Each reports once
    /// a second.
    pub(super) fn new(
        cluster: &'a Cluster,
        agents: usize,
        transfer: Duration,
    ) -> Result<Self, ClusterBenchError> {
        Ok(Self {
            cluster,
            agents,
            transfer,
            report: Duration::from_secs(1),
            is_old: false,
            node: Process::one_below(cluster.pid(), "kubelet", "--hostname-override=node0")?,
        })
    }

    /// The same as an operator finds them that begins at a cluster which is there: what it would write of
    /// each node, three times at 18 a second, is written. Each reports as often as a real agent does.
    pub(super) fn old(self) -> Self {
        Self {
            report: Duration::from_secs(10),
            is_old: true,
            ..self
        }
    }

    /// Makes them, and waits until their fabric is ready.
    pub(super) fn gather(
        &self,
        runtime: &Runtime,
        client: &Client,
        say: &mut dyn FnMut(&str),
    ) -> Result<Arc<Fleet>, ClusterBenchError> {
        say("making nodes");
        self.cluster
            .apply(&fabric(FABRIC, "simulated").to_string())?;
        runtime.block_on(self.make_nodes(client))?;
        say("waiting for their agents' pods");
        let members = runtime.block_on(self.tokens(client))?;
        say("starting their agents");
        let fleet = self.start(runtime, client, members)?;
        if self.is_old {
            say("writing what the operator would write of them");
            runtime.block_on(async {
                let operator = client_as(self.cluster, Some(OPERATOR)).await?;
                self.write(&operator, &fleet).await
            })?;
        }
        say("waiting for their fabric");
        runtime.block_on(self.ready(client))?;
        Ok(fleet)
    }

    async fn write(&self, client: &Client, fleet: &Fleet) -> Result<(), ClusterBenchError> {
        let nodes: Api<FabricNode> = Api::all(client.clone());
        let write = |(node, report): (String, NodeReport)| {
            let nodes = nodes.clone();
            async move {
                let object = parse(&json!({
                    "apiVersion": "weft.dev/v1alpha1",
                    "kind": "FabricNode",
                    "metadata": {"name": node},
                    "spec": {"fabric": FABRIC},
                }))?;
                match nodes.create(&PostParams::default(), &object).await {
                    // The operator has come to it already.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    made => {
                        made.map_err(ClusterBenchError::api("creating a FabricNode"))?;
                    }
                }
                let ports = report.ports.unwrap_or_default();
                let status = json!({"status": {
                    "controlAddress": report.control_address,
                    "dataAddress": report.data_address,
                    "interface": report.interface,
                    "mtu": report.mtu,
                    "linkMbps": report.link_mbps,
                    "ports": {"first": ports.first, "count": ports.count},
                    "version": report.version,
                    "configuration": report.configuration,
                    "observedGeneration": 1,
                    "conditions": [{
                        "type": "Ready",
                        "status": "True",
                        "reason": "AgentReady",
                        "message": "the agent reports and can work",
                        "observedGeneration": 1,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                }});
                nodes
                    .patch_status(&node, &PatchParams::default(), &Patch::Merge(&status))
                    .await
                    .map_err(ClusterBenchError::api("writing a FabricNode's status"))
                    .map(drop)
            }
        };
        at_once(fleet.reports(), write).await
    }

    /// The operator writes every node three times, at 50 writes a second: its label, and two for its FabricNode.
    fn ready_within(&self) -> Duration {
        Duration::from_secs(240)
            + Duration::from_millis(200) * u32::try_from(self.agents).unwrap_or(u32::MAX)
    }

    /// Of the node of that number.
    pub(super) fn name(i: usize) -> String {
        format!("simulated{i}")
    }

    async fn make_nodes(&self, client: &Client) -> Result<(), ClusterBenchError> {
        let nodes: Api<Node> = Api::all(client.clone());
        let make = |i: usize| {
            let nodes = nodes.clone();
            async move {
                // What a kubelet would say of a machine with room for pods.
                let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
                let mut labels = json!({"simulated": "true"});
                if self.is_old {
                    labels["weft.dev/fabric"] = FABRIC.into();
                }
                let node = parse(&json!({
                    "metadata": {"name": Self::name(i), "labels": labels},
                    "spec": {"taints": [{"key": "weft.dev/simulated", "effect": "NoSchedule"}]},
                    "status": {
                        "capacity": room,
                        "allocatable": room,
                        // Their agents are in the network of node0.
                        "addresses": [{"type": "InternalIP", "address": self.cluster.nodes()[0].address}],
                    },
                }))?;
                nodes
                    .create(&PostParams::default(), &node)
                    .await
                    .map_err(ClusterBenchError::api("creating a Node"))
                    .map(drop)
            }
        };
        at_once(0..self.agents, make).await
    }

    /// A token for every agent's pod, once it is bound to its node.
    async fn tokens(&self, client: &Client) -> Result<Vec<Member>, ClusterBenchError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let begun = Instant::now();
        let bound = loop {
            let all = pods
                .list(&ListParams::default())
                .await
                .map_err(ClusterBenchError::api("listing pods"))?;
            let bound: Vec<(String, String, String)> = all
                .into_iter()
                .filter_map(|pod| {
                    let node = pod.spec.as_ref()?.node_name.clone()?;
                    let simulated = node.starts_with("simulated");
                    simulated.then(|| (node, pod.name_any(), pod.uid().unwrap_or_default()))
                })
                .collect();
            if bound.len() >= self.agents {
                break bound;
            }
            // A list of very many is work for the API server.
            sleep(LOOK * u32::try_from(self.agents / 500).unwrap_or(u32::MAX)).await;
            if begun.elapsed() > self.ready_within() {
                return Err(late(&format!("{} of the agents' pods", bound.len()), begun));
            }
            sleep(LOOK).await;
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let token = |(i, (node, pod, uid)): (usize, (String, String, String))| {
            let accounts = accounts.clone();
            async move {
                let request: TokenRequest = parse(&json!({
                    "spec": {
                        "audiences": ["weft.dev/operator"],
                        "boundObjectRef":
                            {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid},
                    },
                }))?;
                let token = accounts
                    .create_token_request("weft-agent", &PostParams::default(), &request)
                    .await
                    .map_err(ClusterBenchError::api("asking for a token"))?;
                let [_, _, high, low] = (i as u32).to_be_bytes();
                Ok(Member {
                    node,
                    token: token.status.map(|status| status.token).unwrap_or_default(),
                    data_address: Ipv4Addr::new(10, 99, high, low),
                })
            }
        };
        stream::iter(bound.into_iter().enumerate())
            .map(token)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Starts the agents on threads of their own, in the network of node0.
    fn start(
        &self,
        runtime: &Runtime,
        client: &Client,
        members: Vec<Member>,
    ) -> Result<Arc<Fleet>, ClusterBenchError> {
        let (operator, authorities) = runtime.block_on(async {
            let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
            let service = services
                .get("weft-operator")
                .await
                .map_err(ClusterBenchError::api("reading the Service weft-operator"))?;
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
            let map = maps
                .get("weft-ca")
                .await
                .map_err(ClusterBenchError::api("reading the ConfigMap weft-ca"))?;
            let address = service.spec.and_then(|spec| spec.cluster_ip);
            let authorities = map.data.unwrap_or_default().into_values().collect();
            Ok::<_, ClusterBenchError>((address.unwrap_or_default(), authorities))
        })?;
        let fleet = Arc::new(Fleet {
            fabric: FABRIC.to_owned(),
            operator: format!("{operator}:7410"),
            authorities,
            address: self.cluster.nodes()[0].address,
            transfer: self.transfer,
            report: self.report,
            joined: Mutex::default(),
            reporting: AtomicUsize::new(0),
        });
        let (sender, started) = std::sync::mpsc::channel();
        let joining = Arc::clone(&fleet);
        let inside = self.node.in_network(move || {
            let runtime = runtime_of_fleet();
            let joined = runtime
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|runtime| {
                    runtime
                        .block_on(async {
                            let join = |member| {
                                let fleet = Arc::clone(&joining);
                                async move { fleet.join(member).await }
                            };
                            at_once(members, join).await
                        })
                        .map_err(|error| error.to_string())
                });
            let goes_on = joined.is_ok();
            // Whoever waits for it waits for nothing else.
            let _ = sender.send(joined);
            if goes_on {
                std::thread::park();
            }
        });
        // It ends with the process.
        drop(inside.map_err(ClusterBenchError::system("entering the network of node0"))?);
        match started.recv() {
            Ok(Ok(())) => Ok(fleet),
            Ok(Err(problem)) => Err(ClusterBenchError::Fleet {
                node: "node0".to_owned(),
                problem,
            }),
            Err(_) => Err(ClusterBenchError::Fleet {
                node: "node0".to_owned(),
                problem: "its thread panicked".to_owned(),
            }),
        }
    }

    async fn ready(&self, client: &Client) -> Result<(), ClusterBenchError> {
        let fabrics: Api<RdmaFabric> = Api::all(client.clone());
        let begun = Instant::now();
        loop {
            let fabric = fabrics
                .get(FABRIC)
                .await
                .map_err(ClusterBenchError::api("reading the RdmaFabric"))?;
            let ready = fabric.status.unwrap_or_default().nodes.ready as usize;
            if ready >= self.agents {
                return Ok(());
            }
            if begun.elapsed() > self.ready_within() {
                return Err(late(&format!("{ready} simulated nodes ready"), begun));
            }
            sleep(LOOK).await;
        }
    }
}

pub(super) fn late(what: &str, begun: Instant) -> ClusterBenchError {
    ClusterBenchError::Late {
        what: what.to_owned(),
        seconds: begun.elapsed().as_secs(),
    }
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, ClusterBenchError> {
    serde_json::from_value(value.clone())
        .map_err(|error| ClusterBenchError::Kubeconfig(error.to_string()))
}

pub(super) fn runtime() -> Result<Runtime, ClusterBenchError> {
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    made.map_err(ClusterBenchError::system("starting a runtime"))
}

pub(super) async fn client(cluster: &Cluster) -> Result<Client, ClusterBenchError> {
    client_as(cluster, None).await
}

/// In somebody else's name.
async fn client_as(cluster: &Cluster, who: Option<&str>) -> Result<Client, ClusterBenchError> {
    let wrong = |error: &dyn std::fmt::Display| ClusterBenchError::Kubeconfig(error.to_string());
    let file = Kubeconfig::read_from(cluster.kubeconfig()).map_err(|error| wrong(&error))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| wrong(&error))?;
    config.auth_info.impersonate = who.map(str::to_owned);
    Client::try_from(config).map_err(|error| wrong(&error))
}

/// In the network of the thread that calls it, as its threads are.
fn runtime_of_fleet() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

/// Does it for all, some at a time.
pub(super) async fn at_once<I: IntoIterator, F: Future<Output = Result<(), ClusterBenchError>>>(
    all: I,
    f: impl Fn(I::Item) -> F,
) -> Result<(), ClusterBenchError> {
    stream::iter(all)
        .map(f)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
