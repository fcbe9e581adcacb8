//! Jobs of the largest size that the API server takes, and the operator's memory with a thousand of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;
use weft_cluster::Cluster;
use weft_crds::{Phase, TransferJob};

use super::crowd::{at_once, client, late, parse, runtime};
use super::process::Process;
use super::{ClusterBenchError, MIB, NAMESPACE, OPERATOR_METRICS, metrics, row};
use crate::report::Row;

const NAMESPACES: usize = 10;
const DECIDED_WITHIN: Duration = Duration::from_secs(600);
/// From the start of an operator that finds all of them.
const WATCHED: Duration = Duration::from_secs(60);
/// The bounds of `docs/api.md`.
const SELECTOR_KEYS: usize = 16;
const SELECTOR_VALUES: usize = 64;
const NODES: usize = 256;
/// Besides: what the operator does not keep. An object may have 256 KiB of annotations; each status that is
/// written is one more copy of them in etcd.
const ANNOTATION_BYTES: usize = 64 << 10;

/// A value of a label, as long as one may be.
fn long(prefix: &str, number: usize) -> String {
    let name = format!("{prefix}{number}-");
    format!("{name}{}", "x".repeat(63 - name.len()))
}

/// Copies one file from node0 to node1, which a selector of the largest size selects.
fn selecting() -> Value {
    let mut values: Vec<String> = (1..SELECTOR_VALUES).map(|n| long("v", n)).collect();
    values.push("true".to_owned());
    let selects = json!({"key": "gpu", "operator": "In", "values": values});
    let excludes = (1..SELECTOR_KEYS).map(|key| {
        let values: Vec<String> = (0..SELECTOR_VALUES).map(|n| long("v", n)).collect();
        json!({"key": long("k", key), "operator": "NotIn", "values": values})
    });
    let expressions: Vec<Value> = std::iter::once(selects).chain(excludes).collect();
    json!({"nodeSelector": {"matchExpressions": expressions}})
}

/// Names as many nodes as it may, with names as long as they may be; there are none of them.
fn listing() -> Value {
    let part = "x".repeat(62);
    let nodes: Vec<String> = (0..NODES)
        .map(|node| format!("n{node:03}.{part}.{part}.{part}.{}", &part[..58]))
        .collect();
    json!({"nodes": nodes})
}

fn namespace(number: usize) -> String {
    format!("largest-{}", number % NAMESPACES)
}

fn job(number: usize) -> Result<TransferJob, ClusterBenchError> {
    let name = format!("job-{number}");
    let mut destinations = match number.is_multiple_of(2) {
        true => selecting(),
        false => listing(),
    };
    destinations["root"] = "models".into();
    destinations["path"] = long("d", number).into();
    parse(&json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "TransferJob",
        "metadata": {
            "name": name,
            "namespace": namespace(number),
            "annotations": {"example.org/text": "x".repeat(ANNOTATION_BYTES)},
        },
        "spec": {
            "source": {"file": {"node": "node0", "root": "models", "path": "small"}},
            "destinations": destinations,
        },
    }))
}

/// In a cluster of two real nodes in which the chart is installed.
pub(super) fn measure(
    cluster: &Cluster,
    jobs: usize,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, ClusterBenchError> {
    let looking = ClusterBenchError::system;
    let runtime = runtime()?;
    let client = runtime.block_on(client(cluster))?;
    for number in 0..NAMESPACES {
        cluster.kubectl(&["create", "namespace", &namespace(number)])?;
        let directory = format!("/var/lib/weft/models/{}", namespace(number));
        let directory = cluster.file("node0", &directory);
        let made = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(directory.join("small"), "a byte would do\n"));
        made.map_err(looking("writing the source's file"))?;
    }
    say("making jobs of the largest size");
    runtime.block_on(async {
        let make = |number: usize| {
            let jobs: Api<TransferJob> = Api::namespaced(client.clone(), &namespace(number));
            async move {
                jobs.create(&PostParams::default(), &job(number)?)
                    .await
                    .map_err(ClusterBenchError::api("creating a TransferJob"))
                    .map(drop)
            }
        };
        at_once(0..jobs, make).await
    })?;
    let phases = runtime.block_on(decided(&client, jobs, say))?;
    let operator = Process::one_below(cluster.pid(), "weft-operator", "")?;
    let working = operator.peak_bytes().map_err(looking("its memory"))?;

    say("another operator finds them");
    let name = "deployment/weft-operator";
    cluster.kubectl(&["-n", NAMESPACE, "rollout", "restart", name])?;
    cluster.kubectl(&["-n", NAMESPACE, "rollout", "status", name, "--timeout=300s"])?;
    let begun = Instant::now();
    let operator = loop {
        let found = Process::below(cluster.pid(), "weft-operator", "");
        let found = found.map_err(looking("looking for a process"))?;
        // The one before it has ended, and this one leads.
        if let [operator] = found[..]
            && let Ok(text) = operator.http(OPERATOR_METRICS, "/metrics")
            && metrics::value(&text, "weft_operator_leader_epoch").is_some_and(|epoch| epoch > 0.0)
        {
            break operator;
        }
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(late("another operator that leads", begun));
        }
        std::thread::sleep(Duration::from_secs(1));
    };
    std::thread::sleep(WATCHED);
    let starting = operator.peak_bytes().map_err(looking("its memory"))?;
    Ok(vec![row(
        "largest-jobs-rss",
        format!(
            "{jobs} jobs with selectors and lists as long as they may be ({phases:?}): most resident memory of \
             the operator, {:.0} MiB while they came and {:.0} MiB for the one that was started then",
            working as f64 / MIB,
            starting as f64 / MIB
        ),
        "MiB",
        working.max(starting) as f64 / MIB,
        384.0,
    )])
}

/// Waits until the operator has come to every one: half are Complete, and half wait for nodes.
async fn decided(
    client: &Client,
    jobs: usize,
    say: &mut dyn FnMut(&str),
) -> Result<BTreeMap<String, usize>, ClusterBenchError> {
    let begun = Instant::now();
    loop {
        let mut phases = BTreeMap::new();
        let mut undecided = 0;
        for number in 0..NAMESPACES {
            let api: Api<TransferJob> = Api::namespaced(client.clone(), &namespace(number));
            let list = api.list(&ListParams::default()).await;
            for job in list.map_err(ClusterBenchError::api("listing TransferJobs"))? {
                let status = job.status.unwrap_or_default();
                let is_complete = status.phase == Phase::Complete;
                let waits = job.spec.destinations.nodes.is_some() && !status.message.is_empty();
                undecided += usize::from(!is_complete && !waits);
                *phases.entry(format!("{:?}", status.phase)).or_insert(0) += 1;
            }
        }
        say(&format!("{} s: {phases:?}", begun.elapsed().as_secs()));
        if undecided == 0 && phases.values().sum::<usize>() == jobs {
            return Ok(phases);
        }
        if begun.elapsed() > DECIDED_WITHIN {
            return Err(late(&format!("all but {undecided} jobs decided"), begun));
        }
        sleep(Duration::from_secs(10)).await;
    }
}
