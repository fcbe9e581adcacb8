//! Jobs of a fabric with a cap.

use std::time::Instant;

use serde_json::json;
use weft_crds::{Phase, TransferJob};

use super::programs::agents_are_ready;
use crate::harness::{Harness, TEAM, job};

/// Another tenant.
const OTHER: &str = "team-c";
/// Of each job: some three seconds of the nodes' links.
const BYTES: usize = 40_000_000;
/// The oldest first.
const JOBS: [&str; 4] = ["turn-1", "turn-2", "turn-3", "turn-4"];

/// Four jobs of one namespace do not hold up the one of another that is made after them.
pub(super) fn under_a_cap_the_job_of_one_namespace_does_not_wait_for_all_jobs_of_another(
    harness: &mut Harness,
) {
    let cap = |harness: &Harness, mbps: Option<u32>| {
        let patch = json!({"spec": {"transport": {"capMbps": mbps}}}).to_string();
        let patch = ["patch", "rf", "default", "--type=merge", "-p", &patch];
        harness.cluster.kubectl(&patch);
    };
    harness.cluster.kubectl(&["create", "namespace", OTHER]);
    let to = ["node1", "node2"];
    let mut made = JOBS.map(|name| (TEAM, name)).to_vec();
    made.push((OTHER, "turn"));
    let mut trees = Vec::new();
    for (namespace, name) in &made {
        trees.push(harness.files_of(BYTES, namespace, name));
    }
    cap(harness, Some(90));
    let since = Instant::now();
    let jobs = made.iter();
    let jobs: Vec<_> = jobs
        .map(|(namespace, name)| job(namespace, name, &to))
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": jobs});
    harness.cluster.apply(&list);

    let api = harness.cluster.of::<TransferJob>(TEAM);
    let last = harness.cluster.until("Queued", &api, JOBS[3], |job| {
        let status = job.and_then(|job| job.status.as_ref());
        let conditions = status.map(|status| &status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one.type_ == "Planned" && one.reason == "Queued")
    });
    let status = last.and_then(|job| job.status).unwrap();
    assert_eq!((status.phase, &*status.fabric), (Phase::Waiting, "default"));
    let full = "node0 takes part in 2 jobs at a time";
    assert!(status.message.contains(full), "{}", status.message);
    assert!(status.start_time.is_none(), "{status:?}");
    let path = format!(
        "/apis/live.weft.dev/v1alpha1/namespaces/{TEAM}/transferprogress/{}",
        JOBS[3]
    );
    let told = harness.cluster.live(&path);
    assert!(told.contains("\"ahead\":"), "{told}");

    harness.until_phase(OTHER, "turn", Phase::Complete);
    let first = since.elapsed().as_secs_f64();
    let phase = harness
        .of_job(TEAM, JOBS[3])
        .status
        .map(|status| status.phase);
    assert_ne!(phase, Some(Phase::Complete), "the other tenant's was last");
    for ((namespace, name), files) in made.iter().zip(&trees) {
        harness.until_phase(namespace, name, Phase::Complete);
        for node in to {
            files.assert_is_at(&harness.directory(node, namespace, name));
        }
    }
    let all = since.elapsed().as_secs_f64();
    println!("  the other tenant's job Complete after {first:.1} s, all five after {all:.1} s");
    cap(harness, None);
    harness
        .cluster
        .kubectl(&["delete", "namespace", OTHER, "--timeout=120s"]);
    agents_are_ready(&harness.cluster);
}
