//! Many nodes and many jobs, and what the operator makes of them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;
use weft_cluster::Cluster;
use weft_crds::{Phase, TransferJob};

use super::crowd::{Crowd, at_once, client, late, parse, runtime};
use super::process::Process;
use super::{ClusterBenchError, MIB, OPERATOR_METRICS, Size, metrics, row};
use crate::report::Row;

/// Of the chart: all jobs are of one namespace, and all are to be at work.
pub(super) const VALUES: &[&str] = &["--set", "operator.jobsPerNamespace=100000"];
const JOBS: &str = "load";
/// Over which writes per second are counted.
const WINDOW: usize = 10;

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
                {"name": "models", "hostPath": "/var/lib/weft/models", "access": "ReadWrite",
                 "minFree": "0"},
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
}

impl<'a> Load<'a> {
    /// On a cluster in which the chart is installed.
    pub(super) fn new(cluster: &'a Cluster, size: &'a Size) -> Result<Self, ClusterBenchError> {
        Ok(Self {
            cluster,
            size,
            operator: Process::one_below(cluster.pid(), "weft-operator", "")?,
        })
    }

    /// Makes nodes, agents and jobs, and watches.
    pub(super) fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, ClusterBenchError> {
        let runtime = runtime()?;
        let client = runtime.block_on(client(self.cluster))?;
        let crowd = Crowd::new(self.cluster, self.size.agents, self.size.watched / 2)?;
        let fleet = crowd.gather(&runtime, &client, say)?;
        say("making jobs");
        self.cluster.kubectl(&["create", "namespace", JOBS])?;
        let begun = Instant::now();
        runtime.block_on(self.make_jobs(&client))?;
        let mut samples = Vec::new();
        let (mut told, mut looked) = (Instant::now(), Instant::now());
        let mut all_at_work = None;
        while begun.elapsed() < self.size.watched {
            samples.push(self.sample()?);
            if all_at_work.is_none() && looked.elapsed() >= Duration::from_secs(2) {
                looked = Instant::now();
                let phases = runtime.block_on(self.phases(&client))?;
                let at_work = ["Transferring", "Complete"].map(|phase| phases.get(phase));
                let at_work: usize = at_work.into_iter().flatten().sum();
                all_at_work = (at_work == self.size.jobs).then(|| begun.elapsed());
            }
            if told.elapsed() >= Duration::from_secs(10) {
                told = Instant::now();
                let phases = runtime.block_on(self.phases(&client))?;
                say(&format!("{} s: {phases:?}", begun.elapsed().as_secs()));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let phases = runtime.block_on(self.phases(&client))?;
        let reporting = fleet.reporting.load(Ordering::Relaxed);
        let mut rows = self.rows(&samples, &phases, reporting)?;
        rows.push(row(
            "jobs-at-work",
            format!(
                "{} jobs made at once: until every one moves bytes",
                self.size.jobs
            ),
            "s",
            all_at_work.map_or(f64::INFINITY, |time| time.as_secs_f64()),
            80.0,
        ));
        Ok(rows)
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
                // 50 a second and a burst of as many.
                55.0,
            ),
            row(
                "reconcile-p99",
                format!(
                    "{load}: from hearing of a change to having decided and asked for what \
                     follows, 99 of 100"
                ),
                "s",
                step.unwrap_or(f64::INFINITY),
                0.05,
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

    async fn make_jobs(&self, client: &Client) -> Result<(), ClusterBenchError> {
        let jobs: Api<TransferJob> = Api::namespaced(client.clone(), JOBS);
        let agents = self.size.agents;
        let make = |i: usize| {
            let jobs = jobs.clone();
            async move {
                let (from, to) = (Crowd::name(i % agents), Crowd::name((i + 1) % agents));
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
