//! What `helm uninstall` has done before anything is removed: nothing may stay behind that waits for
//! an operator.
//!
//! Jobs that are not over are suspended, so that the operator, which still runs, ends them at the
//! agents; then their finalizer goes. They stay, and go on from where they are once the chart is back
//! and `spec.suspend` is false. When the operator does not answer, the finalizers go all the same
//! after [`PATIENCE`]: agents end by themselves what no operator renews. Last, `labels` takes from the
//! nodes what they say of fabrics and models, and `fabrics` lets the
//! fabrics go and says that nobody knows their state and that of their nodes.

mod fabrics;
mod labels;

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use weft_crds::{DeletionPolicy, Phase, TransferJob};

use crate::{
    NAME,
    api::{CallError, call},
    controllers::{FINALIZER, FORCE},
    in_use::{self, Feature},
    lease::LeaseStore,
};

/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Who changes `spec.suspend`, and removes labels.
const MANAGER: &str = "weft-uninstall";
/// Objects that are written to at once.
const CONCURRENCY_MAX: usize = 8;
/// So long the operator has to end the jobs at the agents.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// After that it may take so long to let them go.
const GRACE: Duration = Duration::from_secs(30);
/// After that, nodes may be written to for so long: thousands take seconds.
const LABELS_WITHIN: Duration = Duration::from_secs(60);

/// Why the chart stays.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// Jobs could not be let go.
    #[error(
        "TransferJobs that keep the finalizer {FINALIZER}: {left}{because}; look at the operator's log, or \
         uninstall with --no-hooks and take the finalizer away by hand"
    )]
    Held {
        /// Which.
        left: String,
        /// What was in the way.
        because: String,
    },
    /// Pods use what the chart brought.
    #[error(
        "pods use {0}; `kubectl weft devices -A` lists those with devices. Delete these pods, those of a node \
         in no fabric once it is in one again, or uninstall all the same after `kubectl annotate rdmafabrics --all {FORCE}=true`: \
         then programs with devices fail, and pods with volumes or claims cannot end. Remove that annotation afterwards, it outlives the \
         release. \
         To keep the release, `helm rollback` it to its last revision: helm has noted that it is uninstalled"
    )]
    InUse(String),
    /// It is not known whether pods do.
    #[error(
        "nobody knows whether pods use devices or volumes ({0}); try again when the API server answers"
    )]
    NotRead(String),
}

/// What a job needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// That it be stopped.
    Suspend,
    /// That the operator be done with it.
    Wait,
    /// That it be held no more.
    LetGo,
}

/// What to do about a job; `None` where nothing keeps it. `late`: the operator had its time.
fn step(job: &TransferJob, late: bool) -> Option<Step> {
    let status = job.status.clone().unwrap_or_default();
    let is_deleted = job.metadata.deletion_timestamp.is_some();
    let is_over = status.phase.is_over();
    let is_held = job.finalizers().iter().any(|one| one == FINALIZER);
    // One that is over is held until its copies have gone with it, unless it is suspended.
    let goes_on = !is_over || (is_held && job.spec.deletion_policy == DeletionPolicy::Delete);
    if goes_on && !is_deleted && !job.spec.suspend {
        return Some(Step::Suspend);
    }
    let stopped = (status.phase == Phase::Suspended || is_over && job.spec.suspend) && !is_deleted;
    match (is_held, late || stopped) {
        (false, _) => None,
        (true, true) => Some(Step::LetGo),
        (true, false) => Some(Step::Wait),
    }
}

/// Stops all jobs and lets them go, within [`PATIENCE`] and a little more; then nodes say nothing of
/// fabrics and models any more. What cannot be taken from them is no reason to stay installed.
///
/// It begins only where no pod has a device or a volume: programs end with the engines, and nobody unmounts a volume without its
/// driver. Those of a fabric with the annotation weft.dev/force=true do not count.
///
/// # Errors
/// [`UninstallError`].
pub async fn run(client: Client, board: impl LeaseStore) -> Result<(), UninstallError> {
    nothing_is_in_use(&client).await?;
    let_go(&client).await?;
    match timeout(LABELS_WITHIN, labels::remove(&client, board)).await {
        Ok(Ok(nodes)) => tracing::info!(nodes, "no node says anything of fabrics and models"),
        Ok(Err(problem)) => tracing::warn!(
            "labels weft.dev/* of nodes and finalizers of fabrics may stay: {problem}"
        ),
        Err(_) => tracing::warn!(
            "labels weft.dev/* of nodes and finalizers of fabrics may stay: not done in {LABELS_WITHIN:?}"
        ),
    }
    Ok(())
}

async fn nothing_is_in_use(client: &Client) -> Result<(), UninstallError> {
    let all = [Feature::Devices, Feature::Volumes];
    let not_read = |error: CallError| UninstallError::NotRead(error.to_string());
    let mut in_use = in_use::find(client, &all).await.map_err(not_read)?;
    let outside = in_use::find_outside_fabrics(client).await;
    in_use.extend(outside.map_err(not_read)?);
    match in_use.is_empty() {
        true => Ok(()),
        false => Err(UninstallError::InUse(in_use.join(", "))),
    }
}

async fn let_go(client: &Client) -> Result<(), UninstallError> {
    let begun = Instant::now();
    let mut suspended = BTreeSet::new();
    loop {
        let late = begun.elapsed() >= PATIENCE;
        let (left, problem) = match pass(client, late, &mut suspended).await {
            Ok(left) => (left, String::new()),
            Err(problem) => ("unknown".to_owned(), format!(" ({problem})")),
        };
        if left.is_empty() {
            tracing::info!(
                suspended = suspended.len(),
                "no TransferJob needs an operator"
            );
            return Ok(());
        }
        if begun.elapsed() >= PATIENCE + GRACE {
            let because = problem;
            return Err(UninstallError::Held { left, because });
        }
        if !problem.is_empty() {
            tracing::warn!("TransferJobs cannot be stopped{problem}; trying on");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Looks at all jobs once and does what they need; names those that need more.
async fn pass(
    client: &Client,
    late: bool,
    suspended: &mut BTreeSet<String>,
) -> Result<String, CallError> {
    let all: Api<TransferJob> = Api::all(client.clone());
    let jobs = match call(all.list(&ListParams::default())).await {
        Ok(jobs) => jobs.items,
        // The definition is gone, and with it all jobs.
        Err(error) if error.is_conflict() => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut left = Vec::new();
    let mut problem = None;
    for job in jobs {
        let Some(step) = step(&job, late) else {
            continue;
        };
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let display = format!("{namespace}/{name}");
        left.push(display.clone());
        let api: Api<TransferJob> = Api::namespaced(client.clone(), &namespace);
        let done = match step {
            Step::Wait => continue,
            Step::Suspend => {
                tracing::info!(namespace, name, "is suspended");
                suspended.insert(display);
                let text = json!({"metadata": {"uid": job.uid()}, "spec": {"suspend": true}});
                let parameters = PatchParams::apply(MANAGER);
                call(api.patch(&name, &parameters, &Patch::Merge(&text))).await
            }
            Step::LetGo => {
                if late {
                    tracing::warn!(
                        namespace,
                        name,
                        "is let go before its agents have said that they ended it"
                    );
                }
                // The operator applied it; the same manager takes it back.
                let text = json!({
                    "apiVersion": "weft.dev/v1alpha1",
                    "kind": "TransferJob",
                    "metadata": {"name": name, "namespace": namespace, "uid": job.uid(), "finalizers": []},
                });
                let parameters = PatchParams::apply(NAME).force();
                call(api.patch(&name, &parameters, &Patch::Apply(&text))).await
            }
        };
        // One that is gone, or not the same any more, is looked at again.
        problem = done.err().filter(|error| !error.is_conflict()).or(problem);
    }
    match problem {
        Some(problem) => Err(problem),
        None => Ok(left.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn job(phase: Phase, suspend: bool, held: bool) -> TransferJob {
        let place = json!({"root": "models", "path": "minilm/", "node": "n1", "nodes": ["n2"]});
        let finalizers: &[&str] = if held { &[FINALIZER] } else { &[] };
        let job = json!({
            "apiVersion": "weft.dev/v1alpha1",
            "kind": "TransferJob",
            "metadata": {"name": "minilm", "finalizers": finalizers},
            "spec": {"source": {"file": place}, "destinations": place, "suspend": suspend},
            "status": {"phase": phase},
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_at_work_is_suspended_awaited_and_let_go() {
        let at_work = |suspend| job(Phase::Transferring, suspend, true);
        assert_eq!(step(&at_work(false), false), Some(Step::Suspend));
        assert_eq!(step(&at_work(true), false), Some(Step::Wait));
        let stopped = job(Phase::Suspended, true, true);
        assert_eq!(step(&stopped, false), Some(Step::LetGo));
        assert_eq!(step(&job(Phase::Suspended, true, false), false), None);
    }

    #[test]
    fn a_job_that_has_not_begun_is_kept_from_beginning() {
        assert_eq!(
            step(&job(Phase::Waiting, false, false), false),
            Some(Step::Suspend)
        );
        assert_eq!(step(&job(Phase::Waiting, true, false), false), None);
    }

    #[test]
    fn what_ends_anyway_is_left_to_the_operator() {
        assert_eq!(
            step(&job(Phase::Complete, false, true), false),
            Some(Step::Wait)
        );
        assert_eq!(step(&job(Phase::Complete, false, false), false), None);
        let mut deleted = job(Phase::Transferring, false, true);
        deleted.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(step(&deleted, false), Some(Step::Wait));
    }

    #[test]
    fn a_job_whose_copies_go_with_it_is_let_go_and_they_stay() {
        let with_policy = |suspend| {
            let mut job = job(Phase::Complete, suspend, true);
            job.spec.deletion_policy = DeletionPolicy::Delete;
            job
        };
        // Its operator puts the finalizer back as long as it is not suspended.
        assert_eq!(step(&with_policy(false), false), Some(Step::Suspend));
        assert_eq!(step(&with_policy(true), false), Some(Step::LetGo));
        let mut free = with_policy(true);
        free.metadata.finalizers = None;
        assert_eq!(step(&free, false), None);
    }

    #[test]
    fn an_operator_that_does_not_answer_holds_nothing_back() {
        for phase in [Phase::Transferring, Phase::Suspended, Phase::Complete] {
            assert_eq!(step(&job(phase, true, true), true), Some(Step::LetGo));
        }
        let at_work = job(Phase::Preparing, false, true);
        assert_eq!(step(&at_work, true), Some(Step::Suspend));
    }
}
