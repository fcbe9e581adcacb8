//! One job for very many nodes: how long until it is planned.
//!
//! The nodes are simulated, as kwok would, and each has an agent that answers over mutual TLS besides.

use std::path::Path;
use std::time::{Duration, Instant};

use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;
use weft_cluster::{Cluster, output};
use weft_crds::{Phase, TransferJob};

use super::crowd::{Crowd, client, late, parse, runtime};
use super::process::Process;
use super::{ClusterBenchError, MIB, row};
use crate::report::{Row, median};

/// Of the chart: a connection to each agent and one from it, some 50 KiB each.
pub(super) const VALUES: &[&str] = &["--set", "operator.resources.limits.memory=2Gi"];
const NAMESPACE: &str = "default";
const ROUNDS: usize = 5;
/// Longer than anybody looks at it.
const TRANSFER: Duration = Duration::from_secs(600);
const PLANNED_WITHIN: Duration = Duration::from_secs(120);

/// A job from the first node to all.
fn job(name: &str) -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "TransferJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "source": {"file": {"node": Crowd::name(0), "root": "models", "path": "source"}},
            "destinations": {
                "nodeSelector": {"matchLabels": {"simulated": "true"}},
                "root": "models",
                "path": name,
            },
        },
    })
}

/// In a cluster in which the chart is installed with [`VALUES`].
pub(super) fn measure(
    cluster: &Cluster,
    nodes: usize,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, ClusterBenchError> {
    let runtime = runtime()?;
    let client = runtime.block_on(client(cluster))?;
    let operator = Process::one_below(cluster.pid(), "weft-operator", "")?;
    let begun = Instant::now();
    Crowd::new(cluster, nodes, TRANSFER)?
        .old()
        .gather(&runtime, &client, say)?;
    say(&format!(
        "{nodes} nodes ready after {} s, the operator at {:.0} MiB",
        begun.elapsed().as_secs(),
        memory(operator)?
    ));
    let mut asked = asked(cluster)?;
    let mut made = Vec::new();
    for round in 0..ROUNDS {
        made.push(runtime.block_on(planned(&client, &format!("wide-{round}")))?);
    }
    let work = |what: &str| format!("{what} for {nodes} nodes, median of {ROUNDS}");
    say(&format!("the operator at {:.0} MiB", memory(operator)?));
    Ok(vec![
        row(
            "plan-job",
            work("a job created until its status has the plan"),
            "s",
            median(&mut made),
            2.0,
        ),
        row(
            "plan-asked",
            work("kubectl weft plan: the live API asked until the plan is here"),
            "s",
            median(&mut asked),
            2.0,
        ),
    ])
}

fn memory(operator: Process) -> Result<f64, ClusterBenchError> {
    let bytes = operator
        .peak_bytes()
        .map_err(ClusterBenchError::system("the operator's memory"))?;
    Ok(bytes as f64 / MIB)
}

/// What `kubectl weft plan` asks, seconds a time.
fn asked(cluster: &Cluster) -> Result<Vec<f64>, ClusterBenchError> {
    let file = cluster.kubeconfig().with_file_name("wide.json");
    std::fs::write(&file, job("wide").to_string())
        .map_err(ClusterBenchError::system("writing a job"))?;
    let path = format!("/apis/live.weft.dev/v1alpha1/namespaces/{NAMESPACE}/transferplans");
    (0..ROUNDS).map(|_| ask(cluster, &path, &file)).collect()
}

fn ask(cluster: &Cluster, path: &str, file: &Path) -> Result<f64, ClusterBenchError> {
    let mut kubectl = cluster.command("kubectl");
    kubectl.args(["create", "--raw", path, "-f"]).arg(file);
    let begun = Instant::now();
    let told = output(&mut kubectl)?;
    let elapsed = begun.elapsed().as_secs_f64();
    let told: Value = serde_json::from_str(&told).unwrap_or_default();
    if told["plan"].is_null() {
        return Err(late(&format!("a plan ({})", told["obstacles"]), begun));
    }
    Ok(elapsed)
}

/// Makes a job, and deletes it once it is planned; seconds.
async fn planned(client: &Client, name: &str) -> Result<f64, ClusterBenchError> {
    let jobs: Api<TransferJob> = Api::namespaced(client.clone(), NAMESPACE);
    let object = parse(&job(name))?;
    let begun = Instant::now();
    jobs.create(&PostParams::default(), &object)
        .await
        .map_err(ClusterBenchError::api("creating a TransferJob"))?;
    let elapsed = loop {
        let now = jobs
            .get(name)
            .await
            .map_err(ClusterBenchError::api("reading a TransferJob"))?;
        let status = now.status.unwrap_or_default();
        if status.plan.is_some() {
            break begun.elapsed().as_secs_f64();
        }
        if status.phase == Phase::Failed || begun.elapsed() > PLANNED_WITHIN {
            let what = format!("{name} planned ({:?}: {})", status.phase, status.message);
            return Err(late(&what, begun));
        }
        sleep(Duration::from_millis(20)).await;
    };
    // The next one is to find nothing at work.
    jobs.delete(name, &Default::default())
        .await
        .map_err(ClusterBenchError::api("deleting a TransferJob"))?;
    while jobs
        .get_opt(name)
        .await
        .map_err(ClusterBenchError::api("reading a TransferJob"))?
        .is_some()
    {
        sleep(Duration::from_millis(100)).await;
    }
    Ok(elapsed)
}
