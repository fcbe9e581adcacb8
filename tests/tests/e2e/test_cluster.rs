//! A cluster for a test, with Weft's images in it, and how a test asks it.

use std::any::Any;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout_at;
use weft_cluster::{Cluster, ClusterError, Settings, Up, in_network_of, programs};
use weft_identity::AGENT_NAME;
use weft_tests::program;

use crate::eventually::eventually;
use crate::harness::processes;

/// Where the chart is installed.
pub(crate) const SYSTEM: &str = "weft-system";
/// What an object may take to become as it should be, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Of the fabric's root.
pub(crate) const MODELS: &str = "/var/lib/weft/models";

/// A cluster in a directory of its own, taken down whatever becomes of the test.
pub(crate) struct TestCluster {
    pub(crate) inner: Cluster,
    pub(crate) scratch: TempDir,
    runtime: Runtime,
    client: Client,
    /// A token of the account that may read metrics.
    reader: Mutex<Option<String>>,
}

/// The cluster that is up, with what its trials know of it.
pub(crate) type Shared = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

/// The one that these trials share, made with the first of them. Another one that is up is taken down: two are more than two
/// cores carry.
pub(crate) fn share<T: Any + Send, R>(
    shared: &Shared,
    make: impl FnOnce() -> T,
    play: impl FnOnce(&mut T) -> R,
) -> R {
    // A trial that failed says nothing of the cluster: the next one is played all the same.
    let mut up = shared.lock().unwrap_or_else(PoisonError::into_inner);
    if !up.as_ref().is_some_and(|up| up.is::<T>()) {
        *up = None;
        *up = Some(Box::new(make()));
    }
    let made = up.as_mut().and_then(|up| up.downcast_mut());
    play(made.unwrap())
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if let Err(error) = Cluster::down(&self.state()) {
            eprintln!("{error}");
        }
    }
}

/// A place in the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A line of the report that `make e2e` prints.
pub(crate) fn report(what: &str, begun: Instant) {
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
}

impl TestCluster {
    /// Brings one up and puts the images of agent and operator into it.
    pub(crate) fn up(settings: &Settings) -> Self {
        let begun = Instant::now();
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        let server = program("cluster");
        let up = Cluster::up(settings, &state, &programs().unwrap(), &server, &mut |_| {});
        let Up::Made(cluster) = up.unwrap_or_else(|error| panic!("{error}")) else {
            panic!("a cluster was up in a new directory");
        };
        report(&format!("cluster of {} nodes up", settings.nodes), begun);
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(client(&cluster.kubeconfig()));
        let cluster = Self {
            inner: cluster,
            scratch,
            runtime,
            client,
            reader: Mutex::default(),
        };
        cluster.load_images();
        cluster
    }

    fn state(&self) -> PathBuf {
        self.scratch.path().join("state")
    }

    fn load_images(&self) {
        let begun = Instant::now();
        let images = self.scratch.path().join("images");
        let made = Command::new(repository("hack/images.sh"))
            .arg(&images)
            .arg(format!("agent={}", program("weft-agent").display()))
            .arg(format!("operator={}", program("weft-operator").display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        let archives = ["agent.tar", "operator.tar"].map(|name| images.join(name));
        self.inner.load_images(&archives).unwrap();
        fs::remove_dir_all(images).unwrap();
        report("images made and loaded", begun);
    }

    /// What kubectl says; the test ends if it fails.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.told(self.inner.kubectl(arguments))
    }

    /// What the live API says. Of two replicas any may be asked, and one that does not lead says that one tries
    /// again (decision 0014).
    pub(crate) fn live(&self, path: &str) -> String {
        self.wait_until("the leader answers", || {
            let told = self.inner.kubectl(&["get", "--raw", path]);
            match told {
                Err(error) if error.to_string().contains("(NotLeading)") => None,
                told => Some(self.told(told)),
            }
        })
    }

    /// What kubectl says when it fails, which it must.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        match self.inner.kubectl(arguments) {
            Ok(said) => panic!("kubectl {arguments:?} was not refused: {said}"),
            Err(error) => error.to_string(),
        }
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let said = self.kubectl(&[arguments, &["-o=json"]].concat());
        serde_json::from_str(&said).unwrap()
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.told(self.inner.apply(&object.to_string()));
    }

    pub(crate) fn helm(&self, arguments: &[&str]) -> String {
        let made = self.inner.command("helm").args(arguments).output();
        let made = made.unwrap();
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            self.fail(&format!("helm {arguments:?}: {said}"));
        }
        String::from_utf8(made.stdout).unwrap()
    }

    fn told(&self, said: Result<String, ClusterError>) -> String {
        said.unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    /// Ends the test with what the cluster has to say about it.
    pub(crate) fn fail(&self, what: &str) -> ! {
        let mut text = String::from(what);
        for arguments in [
            &["get", "rf,fn,tj,pods", "-A", "-o=wide"][..],
            &["get", "tj", "-A", "-o=yaml"],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "-n",
                SYSTEM,
                "-l",
                "app.kubernetes.io/part-of=weft",
                "--prefix",
                "--tail=60",
            ],
        ] {
            let said = self.inner.kubectl(arguments);
            let said = said.unwrap_or_else(|error| error.to_string());
            // Writing to a String cannot fail.
            let _ = write!(text, "\n\n== kubectl {}\n{said}", arguments.join(" "));
        }
        panic!("{text}");
    }

    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(crate) fn of<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The object once this holds of it, as a watch tells; `None` if it holds of none.
    pub(crate) fn until<K>(
        &self,
        what: &str,
        api: &Api<K>,
        name: &str,
        holds: impl Fn(Option<&K>) -> bool,
    ) -> Option<K>
    where
        K: Resource + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
    {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let watched = async {
            loop {
                match timeout_at(deadline, await_condition(api.clone(), name, &holds)).await {
                    Ok(Ok(object)) => return Ok(object),
                    // The API server may have been away.
                    Ok(Err(_)) => tokio::task::yield_now().await,
                    Err(_) => return Err(format!("not within {PATIENCE:?}: {what} ({name})")),
                }
            }
        };
        self.runtime
            .block_on(watched)
            .unwrap_or_else(|late| self.fail(&late))
    }

    /// Looks until there is an answer.
    pub(crate) fn wait_until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        self.runtime.block_on(eventually(what, || {
            // It may wait for answers itself.
            let found = tokio::task::block_in_place(&mut look);
            async { found }
        }))
    }

    /// The pod of a fabric's agents on a node.
    pub(crate) fn agent(&self, node: &str) -> Pod {
        let pods: Api<Pod> = self.of(SYSTEM);
        let wanted = ListParams::default()
            .labels("weft.dev/fabric")
            .fields(&format!("spec.nodeName={node}"));
        let found = self.wait(pods.list(&wanted)).unwrap().items;
        let live = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        found
            .into_iter()
            .find(live)
            .unwrap_or_else(|| self.fail(&format!("no agent on {node}")))
    }

    /// Checked bytes of a job at an agent; `None` while it does not say.
    pub(crate) fn arrived(&self, agent: &str, namespace: &str, job: &str) -> Option<u64> {
        let labels = format!("job_namespace=\"{namespace}\",job_name=\"{job}\"");
        self.metric(agent, &format!("job_bytes_total{{{labels}}}"))
    }

    /// The sum of an agent's metrics with this in their names and labels.
    pub(crate) fn metric(&self, agent: &str, metric: &str) -> Option<u64> {
        let metrics = self.metrics(agent)?;
        let lines = metrics.lines().filter(|line| line.contains(metric));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        values.reduce(|sum, value| sum + value)
    }

    /// What an agent tells Prometheus.
    fn metrics(&self, agent: &str) -> Option<String> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        // Not a new one for each look: an agent has few new tokens reviewed.
        let token = match reader.take() {
            Some(token) => token,
            None => self.token(SYSTEM, "weft-metrics-reader")?,
        };
        let answer = self.ask_metrics(agent, &token)?;
        if !answer.status.success() {
            // It is of an account that the chart has made anew.
            return None;
        }
        *reader = Some(token);
        String::from_utf8(answer.stdout).ok()
    }

    /// A token of an account.
    pub(crate) fn token(&self, namespace: &str, account: &str) -> Option<String> {
        let accounts: Api<ServiceAccount> = self.of(namespace);
        let (request, params) = (TokenRequest::default(), PostParams::default());
        let token = accounts.create_token_request(account, &params, &request);
        Some(self.wait(token).ok()?.status?.token)
    }

    /// What an agent answers to who asks for its metrics by a token: over TLS, as Prometheus does. kubectl serves as the client,
    /// for which the agent is a server like another.
    pub(crate) fn ask_metrics(&self, agent: &str, token: &str) -> Option<Output> {
        // Agents are in their nodes' networks, which reach each other.
        let from = processes(self, "weft-agent").into_iter().next()?;
        let pods: Api<Pod> = self.of(SYSTEM);
        let address = self.wait(pods.get(agent)).ok()?.status?.host_ip?;
        let maps: Api<ConfigMap> = self.of(SYSTEM);
        let authorities = self.wait(maps.get("weft-ca")).ok()?.data?;
        let file = self.scratch.path().join("weft-ca.crt");
        fs::write(&file, authorities.get("ca.crt")?).ok()?;
        let mut kubectl = self.inner.command("kubectl");
        kubectl
            .env("KUBECONFIG", "/dev/null")
            .arg(format!("--server=https://{address}:7401"))
            .arg(format!("--certificate-authority={}", file.display()))
            .arg(format!("--tls-server-name={AGENT_NAME}"))
            .arg(format!("--token={token}"))
            .args(["get", "--raw", "/metrics"]);
        let asked = in_network_of(from.as_raw().cast_unsigned(), move || kubectl.output());
        asked.ok()?.join().ok()?.ok()
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}
