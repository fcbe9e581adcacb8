//! `kubectl weft plan`: what a TransferJob would do in a cluster, asked before it is made.
//!
//! The API server is asked first, by a dry run with the user's own rights: it checks the schema, the
//! rules and the admission policies, and keeps nothing. Then the operator is asked what it would make
//! of the job; it asks the source's agent what there is, and nobody to change anything.

use std::{
    fmt, fs,
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
};

use kube::core::ObjectMeta;
use serde_json::Value;
use thiserror::Error;
use weft_cli::{plan::Table, printable::line};
use weft_crds::{GROUP, Obstacle, TransferJob, TransferPlan, VERSION, live_api_version};

use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::Format,
};

/// Whose words a refusal of the API server is.
const REFUSED: &str = "Refused";

/// What `kubectl weft plan` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A TransferJob (YAML; - is standard input): what it would do in the cluster of the kubeconfig if
    /// it were made now, and everything that is in its way. Nothing is written and nothing moves.
    #[arg(short = 'f', long = "filename", value_name = "JOB")]
    pub job: PathBuf,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why there is nothing to print. Every text names the flag or the file, the field and the remedy.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("-f {}: {source}; give a text file that can be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds no TransferJob.
    #[error("-f {}: {problem}", path.display())]
    Job {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The cluster said no, or nothing.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The plan could not be written.
    #[error("the plan could not be written: {0}; check the pipe or the disk behind the output")]
    Write(#[from] io::Error),
}

impl PlanError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "PlanFileUnreadable",
            Self::Job { .. } => "PlanJob",
            Self::Cluster(error) => error.reason(),
            Self::Write(_) => "PlanOutput",
        }
    }
}

/// Asks and prints; whether nothing is in the job's way.
///
/// # Errors
/// Why there is nothing to print.
pub async fn run(args: &Args, out: &mut impl Write) -> Result<bool, PlanError> {
    let path = &args.job;
    let job = read(path)?;
    let cluster = Cluster::reach(&args.reach).await?;
    let named = job["metadata"]["namespace"].as_str();
    let namespace = match (&args.reach.namespace, named) {
        (Some(asked), Some(named)) if asked != named => {
            let problem = format!(
                "metadata.namespace is {named}, and --namespace {asked}: leave one of them out"
            );
            return Err(wrong(path, problem));
        }
        (_, named) => named.unwrap_or(cluster.namespace()).to_owned(),
    };
    let told = match dry_run(&cluster, &namespace, &job).await? {
        Ok(body) => {
            let path = format!("namespaces/{namespace}/{}", TransferPlan::RESOURCE);
            cluster.ask::<TransferPlan>(&path, body).await?
        }
        Err(obstacle) => TransferPlan {
            api_version: live_api_version(),
            kind: TransferPlan::KIND.to_owned(),
            obstacles: vec![obstacle],
            manifest: None,
            plan: None,
        },
    };
    args.format.show(&told, View(&told), out)?;
    Ok(told.obstacles.is_empty())
}

fn wrong(path: &Path, problem: String) -> PlanError {
    PlanError::Job {
        path: path.to_owned(),
        problem,
    }
}

/// The one TransferJob of a file.
fn read(path: &Path) -> Result<Value, PlanError> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|source| PlanError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|problem| wrong(path, problem))
}

fn parse(text: &str) -> Result<Value, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| format!("{}; give a TransferJob in YAML", error.without_snippet()))?;
    let is_job = |one: &&Value| one["kind"] == "TransferJob";
    let mut jobs = documents.iter().filter(is_job);
    let (Some(job), None) = (jobs.next(), jobs.next()) else {
        let text =
            "must hold exactly one object of kind TransferJob; others beside it are passed over";
        return Err(text.to_owned());
    };
    let version = format!("{GROUP}/{VERSION}");
    if job["apiVersion"] != version.as_str() {
        return Err(format!("apiVersion: must be {version}"));
    }
    Ok(job.clone())
}

/// The job as the API server would keep it, or what it says against it.
async fn dry_run(
    cluster: &Cluster,
    namespace: &str,
    job: &Value,
) -> Result<Result<Vec<u8>, Obstacle>, ClusterError> {
    let query = "dryRun=All&fieldValidation=Strict&fieldManager=kubectl-weft";
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/transferjobs?{query}");
    let body = anew(job, namespace);
    match cluster.send::<TransferJob>("POST", &path, body).await {
        Ok(mut kept) => {
            kept.metadata = ObjectMeta {
                name: job["metadata"]["name"].as_str().map(str::to_owned),
                ..kept.metadata
            };
            let body = serde_json::to_vec(&kept);
            // It came as JSON.
            Ok(Ok(body.unwrap_or_default()))
        }
        // Who may not make it, or whose job breaks a rule, sees why; nothing else is wrong.
        Err(ClusterError::Refused {
            code: 400 | 403 | 404 | 422,
            message,
        }) => Ok(Err(Obstacle {
            reason: REFUSED.to_owned(),
            message,
            is_final: true,
        })),
        Err(error) => Err(error),
    }
}

/// The same job under a name that nothing has: a plan may be asked for a job that is there.
fn anew(job: &Value, namespace: &str) -> Vec<u8> {
    let mut job = job.clone();
    let name = job["metadata"]["name"].as_str().unwrap_or("plan");
    // The API server adds five characters and cuts what is too long.
    let prefix = format!("{name}-");
    if !job["metadata"].is_object() {
        job["metadata"] = Value::Object(Default::default());
    }
    if let Some(metadata) = job["metadata"].as_object_mut() {
        for field in ["name", "uid", "resourceVersion", "creationTimestamp"] {
            metadata.remove(field);
        }
        metadata.insert("generateName".to_owned(), prefix.into());
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    job.to_string().into_bytes()
}

/// What is in the way, then the plan.
struct View<'a>(&'a TransferPlan);

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for obstacle in &self.0.obstacles {
            let would = if obstacle.is_final { "fail" } else { "wait" };
            let Obstacle {
                reason, message, ..
            } = obstacle;
            let cause = format!("{reason}: {message}");
            writeln!(f, "it would {would}: {}", line(cause))?;
        }
        if let Some(manifest) = &self.0.manifest {
            let files = if manifest.files == 1 { "file" } else { "files" };
            writeln!(f, "source      {} {files}", manifest.files)?;
        }
        match &self.0.plan {
            Some(plan) => write!(f, "{}", Table(plan)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use weft_crds::ManifestSummary;
    use weft_planner::{Node, Request, Topology};

    use super::*;

    const JOB: &str =
        "apiVersion: weft.dev/v1alpha1\nkind: TransferJob\nmetadata: {name: minilm, uid: u1}\n";

    #[test]
    fn a_file_holds_one_job_and_may_hold_what_it_needs_beside_it() {
        let fabric = "apiVersion: weft.dev/v1alpha1\nkind: RdmaFabric\nmetadata: {name: default}\n";
        let job = parse(&format!("{fabric}---\n{JOB}")).unwrap();
        assert_eq!(job["metadata"]["name"], "minilm");
        for text in [fabric, "", &format!("{JOB}---\n{JOB}")] {
            assert!(parse(text).unwrap_err().starts_with("must hold"), "{text}");
        }
        let old = JOB.replace("v1alpha1", "v1");
        let error = parse(&old).unwrap_err();
        assert_eq!(error, "apiVersion: must be weft.dev/v1alpha1");
        assert!(
            parse("a: [")
                .unwrap_err()
                .ends_with("give a TransferJob in YAML")
        );
    }

    #[test]
    fn a_dry_run_takes_no_name_that_may_be_taken() {
        let sent = anew(&parse(JOB).unwrap(), "team-a");
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        let wanted = serde_json::json!({"generateName": "minilm-", "namespace": "team-a"});
        assert_eq!(sent["metadata"], wanted);
    }

    #[test]
    fn what_is_in_the_way_stands_before_the_plan() {
        let node = |name: &str| Node {
            name: name.to_owned(),
            address: None,
            leaf: "leaf".to_owned(),
            rate_bps: 1_000_000_000,
        };
        let topology = Topology {
            nodes: ["n1", "n2", "n3"].map(node).into(),
            uplinks: Vec::new(),
        };
        let request = Request::new("n1", vec!["n2".into(), "n3".into()], 92_000_000);
        let obstacle = |reason: &str, message: &str, is_final| Obstacle {
            reason: reason.to_owned(),
            message: message.to_owned(),
            is_final,
        };
        let told = TransferPlan {
            api_version: live_api_version(),
            kind: TransferPlan::KIND.to_owned(),
            obstacles: vec![
                obstacle("RootUnknown", "spec.source.file.root: no root attic", false),
                obstacle(
                    REFUSED,
                    "spec.destinations: give either nodeSelector or nodes",
                    true,
                ),
            ],
            manifest: Some(ManifestSummary {
                files: 7,
                bytes: 92_000_000,
                digest: None,
                not_kept: Vec::new(),
            }),
            plan: weft_planner::plan(&request, &topology).ok(),
        };
        assert_snapshot!(View(&told));
    }
}
