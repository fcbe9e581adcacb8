//! The verified copies that agents report, and the removal of those that no job holds.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};
use weft_crds::{CopyRemoval, CopyRemovalRequest, KeptCopy, NodeCopy, live_api_version};
use weft_transfer::ConnectionPool;

use crate::controllers::ReportedCopy;

/// Agents that are told at once.
const CONCURRENCY_MAX: usize = 16;
/// For all agents together: less than the 60 s after which an API server gives an answer up.
const WITHIN: Duration = Duration::from_secs(45);

/// A copy as whoever may list the jobs of this namespace sees it: which jobs others have is not for them. Without a
/// namespace: of all jobs.
pub(super) fn shown(mut copy: NodeCopy, namespace: Option<&str>) -> NodeCopy {
    if let Some(namespace) = namespace {
        copy.jobs.retain(|job| job.namespace == namespace);
    }
    copy
}

/// Has agents remove the copies of a place that were recorded for jobs of this namespace only, none of
/// which exists.
pub(super) async fn remove(
    request: &CopyRemovalRequest,
    namespace: &str,
    copies: Vec<ReportedCopy>,
    pool: &ConnectionPool,
    epoch: u64,
) -> CopyRemoval {
    let is_there =
        |copy: &NodeCopy| (&copy.root, names(&copy.path)) == (&request.root, names(&request.path));
    let mut removal = CopyRemoval {
        api_version: live_api_version(),
        kind: CopyRemoval::KIND.to_owned(),
        removed: Vec::new(),
        kept: Vec::new(),
    };
    let mut keep = |node: &str, message: String| {
        removal.kept.push(KeptCopy {
            node: node.to_owned(),
            message,
        });
    };
    let mut found: BTreeMap<String, ReportedCopy> = copies
        .into_iter()
        .filter(|reported| is_there(&reported.copy))
        .map(|reported| (reported.copy.node.clone(), reported))
        .collect();
    if !request.nodes.is_empty() {
        for node in request
            .nodes
            .iter()
            .filter(|node| !found.contains_key(*node))
        {
            let text = "its agent reports no such copy; see: kubectl weft copies list";
            keep(node, text.to_owned());
        }
        found.retain(|node, _| request.nodes.contains(node));
    }
    let mut calls = Vec::new();
    let deadline = Instant::now() + WITHIN;
    for (node, reported) in found {
        match obstacle(&reported.copy, namespace) {
            Some(obstacle) => keep(&node, obstacle),
            None => calls.push(async move {
                let released = timeout_at(deadline, release(reported, pool, epoch)).await;
                let late = || {
                    format!(
                        "its agent has not answered within {} s; try again",
                        WITHIN.as_secs()
                    )
                };
                (node, released.unwrap_or_else(|_| Err(late())))
            }),
        }
    }
    let mut calls = stream::iter(calls).buffer_unordered(CONCURRENCY_MAX);
    while let Some((node, result)) = calls.next().await {
        match result {
            Ok(()) => removal.removed.push(node),
            Err(message) => removal.kept.push(KeptCopy { node, message }),
        }
    }
    removal.removed.sort();
    removal.kept.sort_by(|one, other| one.node.cmp(&other.node));
    removal
}

fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

/// Why a copy is not to be removed.
fn obstacle(copy: &NodeCopy, namespace: &str) -> Option<String> {
    if copy.jobs.iter().any(|job| job.namespace != namespace) {
        return Some(
            "it is recorded for a job of another namespace, too; ask who administers the cluster"
                .to_owned(),
        );
    }
    if let Some(job) = copy.jobs.iter().find(|job| job.exists) {
        return Some(format!(
            "TransferJob {}/{} holds it; delete the job, with deletionPolicy Delete to remove its copies",
            job.namespace, job.name
        ));
    }
    None
}

/// Takes all jobs out of a copy's record.
async fn release(reported: ReportedCopy, pool: &ConnectionPool, epoch: u64) -> Result<(), String> {
    let ReportedCopy {
        copy,
        fabric,
        endpoint,
    } = reported;
    let pool = pool.of_fabric(&fabric);
    for job in &copy.jobs {
        let released = weft_transfer::release_copies(&job.uid, epoch, &pool, &endpoint);
        released.await.map_err(|refusal| refusal.message)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_crds::CopyJob;
    use weft_identity::authority::Authority;
    use weft_transfer::AgentEndpoint;

    use super::*;

    fn reported(node: &str, jobs: &[(&str, bool)]) -> ReportedCopy {
        let job = |&(namespace, exists): &(&str, bool)| CopyJob {
            namespace: namespace.to_owned(),
            name: "minilm".to_owned(),
            uid: "u1".to_owned(),
            exists,
        };
        ReportedCopy {
            copy: NodeCopy {
                node: node.to_owned(),
                root: "models".to_owned(),
                path: "team-a/minilm".to_owned(),
                digest: "d1".to_owned(),
                bytes: 1,
                files: 1,
                jobs: jobs.iter().map(job).collect(),
            },
            fabric: "default".to_owned(),
            endpoint: AgentEndpoint {
                node: node.to_owned(),
                // Nobody listens there.
                address: "127.0.0.1:1".to_owned(),
            },
        }
    }

    #[test]
    fn jobs_of_other_namespaces_are_not_shown() {
        let copy = reported("n1", &[("team-a", true), ("team-b", true)]).copy;
        let namespaces = |namespace| -> Vec<String> {
            let jobs = shown(copy.clone(), namespace).jobs.into_iter();
            jobs.map(|job| job.namespace).collect()
        };
        assert_eq!(namespaces(Some("team-b")), ["team-b"]);
        assert_eq!(namespaces(None), ["team-a", "team-b"]);
    }

    /// Of two calls to an agent that takes connections and says nothing, the second one is not made.
    #[tokio::test(start_paused = true)]
    async fn agents_that_do_not_answer_are_given_up_in_time_for_the_answer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = ConnectionPool::new(Arc::new(Authority::new("weft").unwrap()));
        let mut silent = reported("n1", &[("team-a", false), ("team-a", false)]);
        silent.endpoint.address = listener.local_addr().unwrap().to_string();
        let request = CopyRemovalRequest {
            root: "models".to_owned(),
            path: "team-a/minilm".to_owned(),
            nodes: Vec::new(),
        };
        let begun = Instant::now();
        let removal = remove(&request, "team-a", vec![silent], &pool, 1).await;
        assert!(begun.elapsed() <= WITHIN);
        assert_eq!(removal.kept.len(), 1);
    }

    #[tokio::test]
    async fn copies_that_a_job_holds_or_another_namespace_has_stay() {
        let pool = ConnectionPool::new(Arc::new(Authority::new("weft").unwrap()));
        let copies = vec![
            reported("n1", &[("team-a", true)]),
            reported("n2", &[("team-a", false), ("team-b", false)]),
            reported("n3", &[("team-a", false)]),
        ];
        let mut request = CopyRemovalRequest {
            root: "models".to_owned(),
            path: "team-a/minilm/".to_owned(),
            nodes: Vec::new(),
        };
        let removal = remove(&request, "team-a", copies.clone(), &pool, 1).await;
        assert_eq!(removal.removed, Vec::<String>::new());
        let words = ["team-a/minilm holds it", "another namespace", "n3"];
        assert_eq!(removal.kept.len(), 3);
        for (kept, word) in removal.kept.iter().zip(words) {
            assert!(kept.message.contains(word), "{kept:?}");
        }
        request.nodes = vec!["n1".to_owned(), "n9".to_owned()];
        let removal = remove(&request, "team-a", copies.clone(), &pool, 1).await;
        let kept: Vec<&str> = removal.kept.iter().map(|kept| &*kept.node).collect();
        assert_eq!(kept, ["n1", "n9"]);
        request.path = "team-a".to_owned();
        request.nodes.clear();
        let removal = remove(&request, "team-a", copies, &pool, 1).await;
        assert!(removal.kept.is_empty() && removal.removed.is_empty());
    }
}
