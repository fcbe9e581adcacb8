//! `kubectl weft status`: how far jobs are, as the operator knows it now.
//!
//! Where the operator cannot be asked, it shows what was last written to the jobs, and says so.

mod view;
mod watch;

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use kube::{
    Api,
    api::{ListParams, ObjectMeta},
};
use thiserror::Error;
use tokio::time::{MissedTickBehavior, interval};
use weft_crds::{Phase, TransferJob, TransferProgress, TransferProgressList, live_api_version};

use self::watch::Watch;
use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::{Format, say, text},
};

/// Agents tell the operator how far they are once a second.
const LOOK: Duration = Duration::from_secs(1);

/// What `kubectl weft status` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The job, as NAME, tj/NAME or tj NAME; without one: all of the namespace.
    #[arg(value_name = "tj/NAME")]
    pub job: Option<String>,
    /// The job's name, where its type stands before it.
    pub name: Option<String>,
    /// Follow until they are over: a bar for each destination of a job, or for each of several jobs.
    #[arg(short, long)]
    pub watch: bool,
    /// Of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["job", "namespace"])]
    pub all_namespaces: bool,
    /// Only jobs whose labels match, as in `kubectl get`: team=a,tier!=test
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "job")]
    pub selector: Option<String>,
    /// How it is printed; with --watch a line of JSON or a YAML document a second.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why nothing is shown.
#[derive(Debug, Error)]
pub enum StatusError {
    /// The arguments name no job.
    #[error("{0}; write NAME, tj/NAME or tj NAME")]
    Job(String),
    /// The cluster said no, or nothing.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Nobody reads it.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// NAME of `NAME`, `TYPE/NAME` and `TYPE NAME`, with the types that kubectl takes.
fn job_name(first: &str, second: Option<&str>) -> Result<String, StatusError> {
    let (kind, name) = match (first.split_once('/'), second) {
        (Some((kind, name)), None) => (kind, name),
        (None, Some(name)) => (first, name),
        (None, None) => ("tj", first),
        (Some(_), Some(second)) => {
            return Err(StatusError::Job(format!(
                "{first} and {second}: one job at a time"
            )));
        }
    };
    let plain = kind.strip_suffix(".weft.dev").unwrap_or(kind);
    if !matches!(plain, "tj" | "transferjob" | "transferjobs") {
        return Err(StatusError::Job(format!("{kind} is no TransferJob")));
    }
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.is_empty() || !name.chars().all(is_good) {
        let text = "a job's name has lower-case letters, digits, '-' and '.'";
        return Err(StatusError::Job(text.to_owned()));
    }
    Ok(name.to_owned())
}

/// Shows it; whether no job that was watched has failed.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    args: &Args,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, StatusError> {
    let mut args = args.clone();
    if let Some(first) = &args.job {
        args.job = Some(job_name(first, args.name.as_deref())?);
    }
    let args = &args;
    let cluster = Cluster::reach(&args.reach).await?;
    let (jobs, live) = look(args, &cluster).await?;
    if let Err(why) = live {
        say(format!("as last written, not as it is now: {why}"), err)?;
    }
    if args.watch {
        return follow(args, &cluster, jobs, out, err).await;
    }
    let is_written = match (&args.job, jobs.as_slice()) {
        (Some(_), [one]) => args.format.write(one, out)?,
        (_, jobs) => args.format.write(&list(jobs.to_vec()), out)?,
    };
    if !is_written && jobs.is_empty() {
        say(nothing(args, &cluster), err)?;
    } else if !is_written {
        show(args, &jobs, out)?;
    }
    Ok(true)
}

fn nothing(args: &Args, cluster: &Cluster) -> String {
    let labels = match &args.selector {
        Some(selector) => format!(" with labels {selector}"),
        None => String::new(),
    };
    if args.all_namespaces {
        format!("no TransferJobs{labels} in the cluster")
    } else {
        let namespace = cluster.namespace();
        format!(
            "no TransferJobs{labels} in namespace {namespace}; --all-namespaces shows those of all"
        )
    }
}

/// Prints jobs for people.
fn show(args: &Args, jobs: &[TransferProgress], out: &mut impl Write) -> io::Result<()> {
    match jobs {
        [one] if args.job.is_some() => text(view::Detail(one), out),
        jobs => {
            let table = view::Table::of(jobs, args.all_namespaces, args.format.is_wide());
            text(table, out)
        }
    }
}

fn list(items: Vec<TransferProgress>) -> TransferProgressList {
    TransferProgressList {
        api_version: live_api_version(),
        kind: format!("{}List", TransferProgress::KIND),
        metadata: Default::default(),
        items,
    }
}

/// The jobs, and whether they are as the operator knows them.
async fn look(
    args: &Args,
    cluster: &Cluster,
) -> Result<(Vec<TransferProgress>, Result<(), ClusterError>), ClusterError> {
    let resource = TransferProgress::RESOURCE;
    let namespace = format!("namespaces/{}/{resource}", cluster.namespace());
    let live = match &args.job {
        Some(name) => {
            let one = cluster.live(&format!("{namespace}/{name}")).await;
            one.map(|one| vec![one])
        }
        None => {
            let path = if args.all_namespaces {
                resource
            } else {
                &namespace
            };
            let all = cluster.live::<TransferProgressList>(path).await;
            all.map(|all| all.items)
        }
    };
    match live {
        Ok(mut jobs) => {
            if let Some(selector) = &args.selector {
                let matching = matching(args, selector, cluster).await?;
                jobs.retain(|job| matching.contains(&key(&job.metadata)));
            }
            Ok((jobs, Ok(())))
        }
        Err(why @ ClusterError::NotLive { .. }) => Ok((written(args, cluster).await?, Err(why))),
        Err(error) => Err(error),
    }
}

/// Namespace and name.
fn key(metadata: &ObjectMeta) -> (Option<String>, Option<String>) {
    (metadata.namespace.clone(), metadata.name.clone())
}

/// The jobs whose labels match: what the operator answers has no labels.
async fn matching(
    args: &Args,
    selector: &str,
    cluster: &Cluster,
) -> Result<BTreeSet<(Option<String>, Option<String>)>, ClusterError> {
    let params = ListParams::default().labels(selector);
    let jobs = stored(args, cluster).list_metadata(&params).await;
    let jobs = jobs.map_err(|error| refused(args, cluster, error))?;
    Ok(jobs.iter().map(|job| key(&job.metadata)).collect())
}

/// What the API server answered; a bad request is one with a bad selector.
fn refused(args: &Args, cluster: &Cluster, error: kube::Error) -> ClusterError {
    match cluster.explain("", error) {
        ClusterError::Refused { code: 400, message } if args.selector.is_some() => {
            let message = format!("--selector: {message}");
            ClusterError::Refused { code: 400, message }
        }
        other => other,
    }
}

/// The jobs that the API server has.
fn stored(args: &Args, cluster: &Cluster) -> Api<TransferJob> {
    if args.all_namespaces {
        Api::all(cluster.client())
    } else {
        Api::namespaced(cluster.client(), cluster.namespace())
    }
}

/// The jobs as the API server has them.
async fn written(args: &Args, cluster: &Cluster) -> Result<Vec<TransferProgress>, ClusterError> {
    let api = stored(args, cluster);
    let params = ListParams {
        label_selector: args.selector.clone(),
        ..ListParams::default()
    };
    let jobs = match &args.job {
        Some(name) => api.get(name).await.map(|job| vec![job]),
        None => api.list(&params).await.map(|list| list.items),
    };
    let jobs = jobs.map_err(|error| refused(args, cluster, error))?;
    let progress = |job: TransferJob| TransferProgress {
        api_version: live_api_version(),
        kind: TransferProgress::KIND.to_owned(),
        metadata: job.metadata,
        status: job.status.unwrap_or_default(),
        ahead: None,
    };
    Ok(jobs.into_iter().map(progress).collect())
}

async fn follow(
    args: &Args,
    cluster: &Cluster,
    mut jobs: Vec<TransferProgress>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, StatusError> {
    let mut watch = Watch::new(args.job.is_some(), io::stderr().is_terminal());
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut away: Option<String> = None;
    loop {
        let is_written = match (&args.job, jobs.as_slice()) {
            (Some(_), [one]) => args.format.write_next(one, out)?,
            _ => args.format.write_next(&list(jobs.clone()), out)?,
        };
        if !is_written {
            watch.show(&jobs, Instant::now(), err)?;
        }
        if jobs.iter().all(|job| job.status.phase.is_over()) {
            break;
        }
        ticks.tick().await;
        match look(args, cluster).await {
            Ok((seen, live)) => {
                jobs = seen;
                // Said once: what is shown is what was written last.
                let why = live.err().map(|why| format!("not live: {why}"));
                if let Some(why) = why.as_ref().filter(|why| away.as_ref() != Some(why)) {
                    watch.say(why, err)?;
                }
                away = why;
            }
            // It comes back; a person may end the wait.
            Err(error) if error.is_transient() => {
                let text = error.to_string();
                if away.as_ref() != Some(&text) {
                    watch.say(&text, err)?;
                    away = Some(text);
                }
            }
            Err(error) => {
                watch.end(err)?;
                return Err(error.into());
            }
        }
    }
    watch.end(err)?;
    if !args.format.is_object() {
        show(args, &jobs, out)?;
    }
    Ok(jobs.iter().all(|job| job.status.phase != Phase::Failed))
}

#[cfg(test)]
mod tests {
    use super::job_name;

    fn arguments(text: &str) -> (&str, Option<&str>) {
        match text.split_once(' ') {
            Some((first, second)) => (first, Some(second)),
            None => (text, None),
        }
    }

    #[test]
    fn a_job_is_named_as_kubectl_names_it() {
        for text in [
            "minilm",
            "tj/minilm",
            "tj minilm",
            "transferjob/minilm",
            "transferjobs minilm",
            "transferjobs.weft.dev/minilm",
            "transferjobs.weft.dev minilm",
        ] {
            let (first, second) = arguments(text);
            let name = job_name(first, second).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(name, "minilm");
        }
    }

    #[test]
    fn what_names_no_job_is_refused_with_the_forms_that_do() {
        for text in [
            "pod/minilm",
            "pod minilm",
            "transferjobs.example.org/minilm",
            "tj/",
            "a/b/c",
            "tj/a b",
            "../x",
            "A",
        ] {
            let (first, second) = arguments(text);
            let error = job_name(first, second).expect_err(text).to_string();
            assert!(
                error.ends_with("; write NAME, tj/NAME or tj NAME"),
                "{error}"
            );
        }
    }
}
