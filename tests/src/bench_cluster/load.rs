//! Many nodes and many jobs, and what the operator makes of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use weft_crds::{Phase, RdmaFabric, TransferJob};

use super::fleet::{Fleet, Member};
use super::process::Process;
use super::{ClusterBenchError, MIB, NAMESPACE, OPERATOR_METRICS, Size, metrics, row};
use crate::cluster::Cluster;
use crate::report::Row;

/// Of the simulated nodes.
const FABRIC: &str = "simulated";
const JOBS: &str = "load";
/// Requests under way at a time.
const AT_ONCE: usize = 16;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Over which writes per second are counted.
const WINDOW: usize = 10;
/// Until every simulated node is ready: its FabricNode is written twice, at 20 writes a second.
const READY_WITHIN: Duration = Duration::from_secs(240);

/// A fabric of the nodes with the label `LABEL=true`.
pub(super) fn fabric(name: &str, label: &str) -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "RdmaFabric",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"matchLabels": {label: "true"}},
            "nics": {"include": ["data0"]},
            "roots": [
                {"name": "models", "hostPath": "/var/lib/weft/models", "access": "ReadWrite"},
            ],
        },
    })
}

/// A job that copies PATH of the first node to PATH of the second.
pub(super) fn job(name: &str, namespace: &str, from: (&str, &str), to: (&str, &str)) -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "TransferJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "source": {"file": {"node": from.0, "root": "models", "path": from.1}},
            "destinations": {"nodes": [to.0], "root": "models", "path": to.1},
        },
    })
}

/// Makes a job; the time from then on until it is Complete.
pub(super) fn until_complete(
    cluster: &Cluster,
    job: &Value,
) -> Result<Duration, ClusterBenchError> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let client = client(cluster).await?;
        let namespace = job["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        let jobs: Api<TransferJob> = Api::namespaced(client, namespace);
        let object = parse(job)?;
        let begun = Instant::now();
        jobs.create(&PostParams::default(), &object)
            .await
            .map_err(ClusterBenchError::api("creating a TransferJob"))?;
        loop {
            let now = jobs
                .get(name)
                .await
                .map_err(ClusterBenchError::api("reading a TransferJob"))?;
            let status = now.status.unwrap_or_default();
            match status.phase {
                Phase::Complete => return Ok(begun.elapsed()),
                Phase::Failed => return Err(late(&format!("{name}: {}", status.message), begun)),
                _ if begun.elapsed() > Duration::from_secs(60) => {
                    return Err(late(&format!("{name} Complete"), begun));
                }
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    })
}

fn late(what: &str, begun: Instant) -> ClusterBenchError {
    ClusterBenchError::Late {
        what: what.to_owned(),
        seconds: begun.elapsed().as_secs(),
    }
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, ClusterBenchError> {
    serde_json::from_value(value.clone())
        .map_err(|error| ClusterBenchError::Kubeconfig(error.to_string()))
}

fn runtime() -> Result<Runtime, ClusterBenchError> {
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    made.map_err(ClusterBenchError::system("starting a runtime"))
}

async fn client(cluster: &Cluster) -> Result<Client, ClusterBenchError> {
    let wrong = |error: &dyn std::fmt::Display| ClusterBenchError::Kubeconfig(error.to_string());
    let file = Kubeconfig::read_from(cluster.kubeconfig()).map_err(|error| wrong(&error))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| wrong(&error))?;
    Client::try_from(config).map_err(|error| wrong(&error))
}

/// What was seen of the operator in a second.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    anonymous: u64,
    writes: f64,
}

/// What is done to a cluster.
pub(super) struct Load<'a> {
    cluster: &'a Cluster,
    size: &'a Size,
    operator: Process,
    node: Process,
}

impl<'a> Load<'a> {
    /// On a cluster in which the chart is installed.
    pub(super) fn new(cluster: &'a Cluster, size: &'a Size) -> Result<Self, ClusterBenchError> {
        let find = |name: &str, word: &str| {
            let found = Process::below(cluster.pid(), name, word)
                .map_err(ClusterBenchError::system("looking for a process"))?;
            found
                .first()
                .copied()
                .ok_or_else(|| ClusterBenchError::Late {
                    what: format!("a process {name} {word}"),
                    seconds: 0,
                })
        };
        Ok(Self {
            cluster,
            size,
            operator: find("weft-operator", "")?,
            node: find("kubelet", "--hostname-override=node0")?,
        })
    }

    /// Makes nodes, agents and jobs, and watches.
    pub(super) fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, ClusterBenchError> {
        let runtime = runtime()?;
        let client = runtime.block_on(client(self.cluster))?;
        say("making nodes");
        self.cluster
            .apply(&fabric(FABRIC, "simulated").to_string())?;
        runtime.block_on(self.make_nodes(&client))?;
        let members = runtime.block_on(self.tokens(&client))?;
        say("starting their agents");
        let fleet = self.start(&runtime, &client, members)?;
        runtime.block_on(self.ready(&client))?;
        say("making jobs");
        self.cluster.kubectl(&["create", "namespace", JOBS])?;
        let begun = Instant::now();
        runtime.block_on(self.make_jobs(&client))?;
        let mut samples = Vec::new();
        let mut told = Instant::now();
        while begun.elapsed() < self.size.watched {
            samples.push(self.sample()?);
            if told.elapsed() >= Duration::from_secs(10) {
                told = Instant::now();
                let phases = runtime.block_on(self.phases(&client))?;
                say(&format!("{} s: {phases:?}", begun.elapsed().as_secs()));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let phases = runtime.block_on(self.phases(&client))?;
        let reporting = fleet.reporting.load(Ordering::Relaxed);
        self.rows(&samples, &phases, reporting)
    }

    fn sample(&self) -> Result<Sample, ClusterBenchError> {
        let looking = ClusterBenchError::system;
        let text = self
            .operator
            .http(OPERATOR_METRICS, "/metrics")
            .map_err(looking("the operator's metrics"))?;
        let anonymous = self
            .operator
            .anonymous_bytes()
            .map_err(looking("the operator's memory"))?;
        Ok(Sample {
            at: Instant::now(),
            anonymous,
            writes: metrics::value(&text, "weft_operator_writes_total").unwrap_or_default(),
        })
    }

    fn rows(
        &self,
        samples: &[Sample],
        phases: &BTreeMap<String, usize>,
        reporting: usize,
    ) -> Result<Vec<Row>, ClusterBenchError> {
        let looking = ClusterBenchError::system;
        let Size { jobs, watched, .. } = self.size;
        let minutes = watched.as_secs_f64() / 60.0;
        let load = format!("{jobs} jobs, {reporting} agents at 1 Hz, {minutes:.0} min");
        let peak = self
            .operator
            .peak_bytes()
            .map_err(looking("the operator's memory"))?;
        let anonymous = samples.iter().map(|s| s.anonymous).max().unwrap_or(0);
        let writes = samples
            .windows(WINDOW + 1)
            .map(|window| {
                let (first, last) = (window[0], window[WINDOW]);
                (last.writes - first.writes) / (last.at - first.at).as_secs_f64()
            })
            .fold(0.0, f64::max);
        let text = self
            .operator
            .http(OPERATOR_METRICS, "/metrics")
            .map_err(looking("the operator's metrics"))?;
        let step = metrics::quantile(&text, "weft_operator_step_seconds", 0.99);
        let complete = phases.get("Complete").copied().unwrap_or(0);
        Ok(vec![
            row(
                "operator-rss",
                format!(
                    "{load}: most resident memory of the operator, its program included \
                     (anonymous {:.0} MiB)",
                    anonymous as f64 / MIB
                ),
                "MiB",
                peak as f64 / MIB,
                64.0,
            ),
            row(
                "operator-writes",
                format!("{load}: writes to the API server, most in 10 s, per second"),
                "writes/s",
                writes,
                20.0,
            ),
            row(
                "reconcile-p99",
                format!(
                    "{load}: from hearing of a change to having decided and asked for what \
                     follows, 99 of 100"
                ),
                "s",
                step.unwrap_or(f64::INFINITY),
                1.0,
            ),
            row(
                "jobs-open",
                format!("{load}: jobs that are not Complete at the end"),
                "jobs",
                jobs.saturating_sub(complete) as f64,
                0.0,
            ),
        ])
    }

    fn name(i: usize) -> String {
        format!("simulated{i}")
    }

    async fn make_nodes(&self, client: &Client) -> Result<(), ClusterBenchError> {
        let nodes: Api<Node> = Api::all(client.clone());
        let make = |i: usize| {
            let nodes = nodes.clone();
            async move {
                // What a kubelet would say of a machine with room for pods.
                let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
                let node = parse(&json!({
                    "metadata": {"name": Self::name(i), "labels": {"simulated": "true"}},
                    "spec": {"taints": [{"key": "weft.dev/simulated", "effect": "NoSchedule"}]},
                    "status": {"capacity": room, "allocatable": room},
                }))?;
                nodes
                    .create(&PostParams::default(), &node)
                    .await
                    .map_err(ClusterBenchError::api("creating a Node"))
                    .map(drop)
            }
        };
        at_once(0..self.size.agents, make).await
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
            if bound.len() >= self.size.agents {
                break bound;
            }
            if begun.elapsed() > READY_WITHIN {
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
            transfer: self.size.watched / 2,
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
            if ready >= self.size.agents {
                return Ok(());
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(late(&format!("{ready} simulated nodes ready"), begun));
            }
            sleep(LOOK).await;
        }
    }

    async fn make_jobs(&self, client: &Client) -> Result<(), ClusterBenchError> {
        let jobs: Api<TransferJob> = Api::namespaced(client.clone(), JOBS);
        let agents = self.size.agents;
        let make = |i: usize| {
            let jobs = jobs.clone();
            async move {
                let (from, to) = (Self::name(i % agents), Self::name((i + 1) % agents));
                let name = format!("job-{i}");
                let object = job(&name, JOBS, (&from, "source"), (&to, &name));
                jobs.create(&PostParams::default(), &parse(&object)?)
                    .await
                    .map_err(ClusterBenchError::api("creating a TransferJob"))
                    .map(drop)
            }
        };
        at_once(0..self.size.jobs, make).await
    }

    async fn phases(&self, client: &Client) -> Result<BTreeMap<String, usize>, ClusterBenchError> {
        let jobs: Api<TransferJob> = Api::namespaced(client.clone(), JOBS);
        let all = jobs
            .list(&ListParams::default())
            .await
            .map_err(ClusterBenchError::api("listing TransferJobs"))?;
        let mut phases = BTreeMap::new();
        for job in all {
            let phase = format!("{:?}", job.status.unwrap_or_default().phase);
            *phases.entry(phase).or_insert(0) += 1;
        }
        Ok(phases)
    }
}

/// In the network of the thread that calls it, as its threads are.
fn runtime_of_fleet() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

async fn at_once<I: IntoIterator, F: Future<Output = Result<(), ClusterBenchError>>>(
    all: I,
    f: impl Fn(I::Item) -> F,
) -> Result<(), ClusterBenchError> {
    stream::iter(all)
        .map(f)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
