//! What a bundle gathers over the API server, with the rights of who asks. What they may not read is listed.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{ResourceExt as _, api::ListParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use weft_crds::{FabricNode, GROUP, LIVE_GROUP, LIVE_VERSION, NodeMetrics, RdmaFabric};

use super::archive::Archive;
use crate::{
    cluster::{Cluster, ClusterError, NODES_AT_A_TIME},
    doctor,
    output::say,
};

/// Objects of a kind, and of one answer.
const OBJECTS_MAX: usize = 5_000;
const PAGE: u32 = 500;
/// Pods whose logs are read: operators, then those that are not ready or were restarted, then others.
const PODS_MAX: usize = 64;
/// Of the log of a container: the last lines, and bytes of these.
const LOG_LINES_MAX: usize = 50_000;
const LOG_BYTES_MAX: usize = 10 << 20;
/// Logs that are read at a time.
const LOGS_AT_A_TIME: usize = 8;
/// From the request for a log to its end.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// Nodes whose metrics are read.
const NODES_MAX: usize = 1_000;

/// The version of Weft's group.
const VERSION: &str = "v1alpha1";
/// Where the chart is installed, unless somebody chose otherwise.
const NAMESPACE: &str = "weft-system";
/// Selects what the chart and the operator make.
const OF_WEFT: &str = "app.kubernetes.io/part-of=weft";
/// How the names of the operator's pods begin.
const OPERATOR: &str = "weft-operator";

/// A bundle that is being gathered.
pub(super) struct Gatherer<'a, W: Write> {
    pub(super) cluster: &'a Cluster,
    pub(super) archive: Archive<W>,
    /// Where it says what is being read.
    pub(super) progress: &'a mut dyn Write,
    /// Logs of so many seconds.
    pub(super) since_seconds: u64,
}

impl<W: Write> Gatherer<'_, W> {
    /// Gathers everything. An error is that it cannot be written.
    pub(super) async fn gather(
        &mut self,
        server: &Value,
        namespace: Option<&str>,
    ) -> io::Result<()> {
        self.reads("objects of Weft");
        let service = self.api_service().await?;
        let namespace = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => self.namespace(&service),
        };
        let objects = self.objects().await?;
        self.findings(&objects)?;
        self.reads(&format!("Events and workloads of namespace {namespace}"));
        self.events(&namespace).await?;
        let pods = self.workloads(&namespace).await?;
        self.versions(server, &namespace, &pods, &objects.nodes)?;
        self.reads(&format!("logs of {} pods", pods.len().min(PODS_MAX)));
        self.logs(&namespace, &pods).await?;
        let nodes = objects.nodes.len().min(NODES_MAX);
        self.reads(&format!("metrics of {nodes} nodes"));
        self.metrics(&objects.nodes).await
    }

    /// Says what is being read. The bundle needs nobody who listens.
    fn reads(&mut self, what: &str) {
        let _ = say(format!("reading {what}"), &mut self.progress);
    }

    /// How the API server finds the operator's API.
    async fn api_service(&mut self) -> io::Result<Value> {
        let name = format!("{LIVE_VERSION}.{LIVE_GROUP}");
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
        match self.cluster.send::<Value>("GET", &path, Vec::new()).await {
            Ok(service) => {
                let says = "whether the API server reaches the operator's API";
                let file = "objects/apiservice.json";
                self.archive.object(file, says, service.clone())?;
                Ok(service)
            }
            Err(error) => {
                self.archive.missing(format!("APIService {name}"), error);
                Ok(Value::Null)
            }
        }
    }

    /// That of the operator, as the APIService says, which a tenant cannot write.
    fn namespace(&mut self, service: &Value) -> String {
        if let Some(namespace) = service["spec"]["service"]["namespace"].as_str() {
            return namespace.to_owned();
        }
        let why = format!(
            "no APIService says it: {NAMESPACE} was looked at; name another by --namespace"
        );
        self.archive.missing("namespace of Weft", why);
        NAMESPACE.to_owned()
    }

    /// What runs where.
    fn versions(
        &mut self,
        server: &Value,
        namespace: &str,
        pods: &[Pod],
        nodes: &[FabricNode],
    ) -> io::Result<()> {
        let containers = pods.iter().filter_map(|pod| pod.spec.as_ref());
        let containers = containers.flat_map(|spec| &spec.containers);
        let images: BTreeSet<_> = containers.filter_map(|one| one.image.as_deref()).collect();
        let agents = nodes.iter().filter_map(|node| node.status.as_ref());
        let agents: BTreeSet<_> = agents.map(|status| status.version.as_str()).collect();
        let versions = json!({
            "kubectlWeft": weft_cli::VERSION, "apiServer": server, "namespace": namespace,
            "images": images, "agents": agents,
        });
        let says = "releases of kubectl weft, of the API server, of Weft's images and of agents";
        self.archive.object("versions.json", says, versions)
    }

    /// All objects of Weft.
    async fn objects(&mut self) -> io::Result<Objects> {
        let group = format!("/apis/{GROUP}/{VERSION}");
        let mut objects = Objects::default();
        for kind in self.kinds(&group).await {
            let path = format!("objects/{kind}.json");
            let says = format!("all {kind} with their status and conditions");
            let from = format!("{group}/{kind}");
            let items = self.list(&path, &says, &from, all()).await?;
            match kind.as_str() {
                "fabricnodes" => objects.nodes = read(items),
                "rdmafabrics" => objects.fabrics = read(items),
                _ => {}
            }
        }
        Ok(objects)
    }

    /// The resources of a group that can be listed; those that there have always been where it does not say.
    async fn kinds(&mut self, group: &str) -> Vec<String> {
        let found = self.cluster.send::<Value>("GET", group, Vec::new()).await;
        let list = found.unwrap_or_else(|error| {
            self.archive
                .missing(format!("the list of resources of {GROUP}"), error);
            let resources = ["rdmafabrics", "fabricnodes", "transferjobs"];
            let resources = resources.map(|name| json!({"name": name, "verbs": ["list"]}));
            json!({"resources": resources})
        });
        let resources = list["resources"].as_array().into_iter().flatten();
        let names = resources.filter_map(|resource| {
            let is_listed = |verbs: &Vec<Value>| verbs.contains(&json!("list"));
            let name = resource["name"].as_str()?;
            let is_kind = resource["verbs"].as_array().is_some_and(is_listed);
            // A subresource, or something that would be no name in a path.
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric());
            (is_kind && is_plain).then(|| name.to_owned())
        });
        names.collect()
    }

    /// What can be said of objects without asking a node.
    fn findings(&mut self, objects: &Objects) -> io::Result<()> {
        if objects.nodes.is_empty() && objects.fabrics.is_empty() {
            self.archive.missing(
                "findings.json",
                "there are no fabrics and no nodes, or they cannot be read",
            );
            return Ok(());
        }
        let found = doctor::of_objects(&objects.fabrics, &objects.nodes, Timestamp::now());
        let says = "what kubectl weft doctor finds in these objects; it measures nothing here";
        self.archive
            .object("findings.json", says, serde_json::to_value(found)?)
    }

    async fn events(&mut self, namespace: &str) -> io::Result<()> {
        let about = all().fields(&format!("involvedObject.apiVersion={GROUP}/{VERSION}"));
        let says = "Events about objects of Weft";
        self.list("events/weft.json", says, "/api/v1/events", about)
            .await?;
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let says = format!("Events of namespace {namespace}");
        self.list("events/namespace.json", &says, &path, all())
            .await?;
        Ok(())
    }

    /// What Weft runs, with its arguments, which the chart's values are rendered to. The pods.
    async fn workloads(&mut self, namespace: &str) -> io::Result<Vec<Pod>> {
        for kind in ["deployments", "daemonsets"] {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/{kind}");
            let says = format!("{kind} of Weft: their arguments are its configuration");
            let file = format!("workloads/{kind}.json");
            self.list(&file, &says, &path, all().labels(OF_WEFT))
                .await?;
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let says = "pods of Weft, where they run and how they are";
        let of_weft = all().labels(OF_WEFT);
        let pods = self
            .list("workloads/pods.json", says, &path, of_weft)
            .await?;
        Ok(read(pods))
    }

    async fn logs(&mut self, namespace: &str, pods: &[Pod]) -> io::Result<()> {
        let mut pods: Vec<_> = pods.iter().collect();
        pods.sort_by_key(|pod| (urgency(pod), pod.name_any()));
        if pods.len() > PODS_MAX {
            let what = format!("logs of {} pods", pods.len() - PODS_MAX);
            let why = format!("a bundle has those of {PODS_MAX}; see: kubectl logs");
            self.archive.missing(what, why);
            pods.truncate(PODS_MAX);
        }
        let logs = pods.iter().flat_map(|pod| {
            let containers = containers(pod).into_iter();
            let logs = containers.flat_map(|(container, restarts)| {
                let previous = (restarts > 0).then_some(true);
                let runs = std::iter::once(false).chain(previous);
                let log = |is_previous| self.log(namespace, pod, &container, is_previous);
                runs.map(log).collect::<Vec<_>>()
            });
            logs.collect::<Vec<_>>()
        });
        let logs: Vec<Log> = logs.collect();
        let cluster = self.cluster;
        let asked = logs.into_iter().map(|log| async move {
            let end = cluster.text_end(&log.from, LOG_BYTES_MAX);
            (timeout(LOG_TIMEOUT, end).await, log)
        });
        let mut answers = stream::iter(asked).buffered(LOGS_AT_A_TIME);
        while let Some((answer, Log { file, says, .. })) = answers.next().await {
            match answer {
                Ok(Ok((text, is_cut))) => {
                    if is_cut || text.lines().count() >= LOG_LINES_MAX {
                        let why = format!(
                            "a bundle has the last {LOG_LINES_MAX} lines of a container, and of these {} MiB; see: kubectl logs",
                            LOG_BYTES_MAX >> 20
                        );
                        self.archive
                            .missing(format!("earlier lines of {file}"), why);
                    }
                    self.archive.text(&file, says, &text)?;
                }
                Ok(Err(error)) => self.archive.missing(file, error),
                Err(_) => {
                    let seconds = LOG_TIMEOUT.as_secs();
                    let why =
                        format!("it did not come to its end in {seconds} s; see: kubectl logs");
                    self.archive.missing(file, why);
                }
            }
        }
        Ok(())
    }

    fn log(&self, namespace: &str, pod: &Pod, container: &str, is_previous: bool) -> Log {
        let pod = pod.name_any();
        let since = self.since_seconds;
        let (end, says, which) = match is_previous {
            true => (
                ".previous",
                "the log of the container before its last restart",
                "previous=true".to_owned(),
            ),
            false => (
                "",
                "the log of the container",
                format!("sinceSeconds={since}"),
            ),
        };
        Log {
            file: format!("logs/{pod}/{container}{end}.log"),
            says,
            from: format!(
                "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={LOG_LINES_MAX}&{which}"
            ),
        }
    }

    async fn metrics(&mut self, nodes: &[FabricNode]) -> io::Result<()> {
        if nodes.len() > NODES_MAX {
            let what = format!("metrics of {} nodes", nodes.len() - NODES_MAX);
            self.archive
                .missing(what, format!("a bundle has those of {NODES_MAX}"));
        }
        let cluster = self.cluster;
        let asked = nodes.iter().take(NODES_MAX).map(|node| async move {
            let node = node.name_any();
            let page = cluster.live_text(&NodeMetrics::Agent.path(&node)).await;
            (node, page)
        });
        let mut answers = stream::iter(asked).buffered(NODES_AT_A_TIME);
        while let Some((node, page)) = answers.next().await {
            let file = format!("metrics/{node}.txt");
            match page {
                Ok(page) => {
                    let says = "what the node's agent exports for Prometheus";
                    self.archive.text(&file, says, &page)?;
                }
                // The same for every node.
                Err(error) if error.affects_every_node() => {
                    self.archive.missing("metrics of nodes", error);
                    break;
                }
                Err(error) => self.archive.missing(file, error),
            }
        }
        Ok(())
    }

    /// Adds a list of objects, which comes in pages. Those that came.
    async fn list(
        &mut self,
        file: &str,
        says: &str,
        path: &str,
        which: ListParams,
    ) -> io::Result<Vec<Value>> {
        let mut items = Vec::new();
        match self.pages(path, which, &mut items).await {
            Ok(false) => {}
            Ok(true) => {
                let why = format!("a bundle has the first {OBJECTS_MAX}");
                self.archive
                    .missing(format!("further objects of {file}"), why);
            }
            Err(error) => {
                let what = match items.is_empty() {
                    true => file.to_owned(),
                    false => format!("further objects of {file}"),
                };
                self.archive.missing(what, error);
                if items.is_empty() {
                    return Ok(items);
                }
            }
        }
        let list = json!({"items": items});
        self.archive.object(file, says, list)?;
        Ok(items)
    }

    /// Whether there are more than are taken.
    async fn pages(
        &self,
        path: &str,
        mut which: ListParams,
        items: &mut Vec<Value>,
    ) -> Result<bool, ClusterError> {
        loop {
            let mut list = self.cluster.list(path, &which).await?;
            if let Value::Array(page) = list["items"].take() {
                let room = OBJECTS_MAX - items.len();
                let is_cut = page.len() > room;
                items.extend(page.into_iter().take(room));
                if is_cut {
                    return Ok(true);
                }
            }
            let next = list["metadata"]["continue"].as_str();
            match next.filter(|token| !token.is_empty()) {
                Some(_) if items.len() == OBJECTS_MAX => return Ok(true),
                Some(token) => which.continue_token = Some(token.to_owned()),
                None => return Ok(false),
            }
        }
    }
}

/// All objects of a kind, in pages.
fn all() -> ListParams {
    ListParams::default().limit(PAGE)
}

/// A log that is read.
struct Log {
    file: String,
    says: &'static str,
    /// Where it is.
    from: String,
}

/// What findings and metrics need.
#[derive(Default)]
struct Objects {
    fabrics: Vec<RdmaFabric>,
    nodes: Vec<FabricNode>,
}

/// Those that this release understands.
fn read<T: DeserializeOwned>(items: Vec<Value>) -> Vec<T> {
    let items = items.into_iter();
    items
        .filter_map(|item| serde_json::from_value(item).ok())
        .collect()
}

/// The logs of which pods are read first.
fn urgency(pod: &Pod) -> u8 {
    let status = pod.status.as_ref();
    let is_ready = |condition: &k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    let mut conditions = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let was_restarted = containers(pod).iter().any(|(_, restarts)| *restarts > 0);
    if pod.name_any().starts_with(OPERATOR) {
        0
    } else if was_restarted || !conditions.any(is_ready) {
        1
    } else {
        2
    }
}

/// The containers of a pod, and how often each was restarted.
fn containers(pod: &Pod) -> Vec<(String, i32)> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let status = pod.status.as_ref();
    let names = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let restarts = |name: &str| {
        let all = status.iter().flat_map(|status| {
            let first = status.init_container_statuses.iter().flatten();
            first.chain(status.container_statuses.iter().flatten())
        });
        let found = all
            .filter(|one| one.name == name)
            .map(|one| one.restart_count);
        found.max().unwrap_or_default()
    };
    names
        .map(|one| (one.name.clone(), restarts(&one.name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ready: &str, restarts: i32) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "agent"}], "initContainers": [{"name": "init"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "agent", "ready": true, "restartCount": restarts,
                                       "image": "", "imageID": ""}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn logs_of_operators_and_of_pods_that_are_not_well_come_first() {
        assert_eq!(urgency(&pod("weft-operator-1", "True", 0)), 0);
        assert_eq!(urgency(&pod("weft-agent-1", "False", 0)), 1);
        assert_eq!(urgency(&pod("weft-agent-2", "True", 3)), 1);
        assert_eq!(urgency(&pod("weft-agent-3", "True", 0)), 2);
        let expected = [("init".to_owned(), 0), ("agent".to_owned(), 3)];
        assert_eq!(containers(&pod("weft-agent-2", "True", 3)), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_does_not_come_to_its_end_is_given_up_and_the_others_are_read() {
        let server = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            if request.uri().path().contains("weft-agent-1") {
                return std::future::pending().await;
            }
            http::Response::builder().body(kube::client::Body::from(b"line\n".to_vec()))
        });
        let cluster = Cluster::of(kube::Client::new(server, "default"));
        let mut gatherer = Gatherer {
            cluster: &cluster,
            archive: Archive::new(Vec::new(), "bundle", String::new(), 0),
            progress: &mut io::sink(),
            since_seconds: 60,
        };
        let pods = ["weft-agent-1", "weft-agent-2"].map(|name| pod(name, "True", 0));
        gatherer.logs("weft-system", &pods).await.unwrap();
        let (index, _) = gatherer.archive.finish().unwrap();
        let index = index.to_string();
        for container in ["init", "agent"] {
            let read = format!("| logs/weft-agent-2/{container}.log | 5 |");
            let given_up = format!("| logs/weft-agent-1/{container}.log | it did not come");
            assert!(
                index.contains(&read) && index.contains(&given_up),
                "{index}"
            );
        }
    }
}
