//! Jobs of a fabric with a cap.

use std::time::Instant;

use serde_json::json;
use weft_crds::{Phase, TransferJob};

use super::programs::agents_are_ready;
use crate::stage::{Stage, TEAM, job};

/// Another tenant.
const OTHER: &str = "team-c";
/// Of each job: some three seconds of the nodes' links.
const BYTES: usize = 40_000_000;
/// The oldest first.
const JOBS: [&str; 4] = ["turn-1", "turn-2", "turn-3", "turn-4"];

/// Four jobs of one namespace do not hold up the one of another that is made after them.
pub(super) fn jobs_take_turns_under_a_cap(stage: &mut Stage) {
    let cap = |stage: &Stage, mbps: Option<u32>| {
        let patch = json!({"spec": {"transport": {"capMbps": mbps}}}).to_string();
        let patch = ["patch", "rf", "default", "--type=merge", "-p", &patch];
        stage.lent.kubectl(&patch);
    };
    stage.lent.kubectl(&["create", "namespace", OTHER]);
    let to = ["node1", "node2"];
    let mut made = JOBS.map(|name| (TEAM, name)).to_vec();
    made.push((OTHER, "turn"));
    let mut trees = Vec::new();
    for (namespace, name) in &made {
        trees.push(stage.files_of(BYTES, namespace, name));
    }
    cap(stage, Some(90));
    let since = Instant::now();
    let jobs = made.iter();
    let jobs: Vec<_> = jobs
        .map(|(namespace, name)| job(namespace, name, &to))
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": jobs});
    stage.lent.apply(&list);

    let api = stage.lent.of::<TransferJob>(TEAM);
    let last = stage.lent.until("Queued", &api, JOBS[3], |job| {
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
    let told = stage.lent.kubectl(&["get", "--raw", &path]);
    assert!(told.contains("\"ahead\":"), "{told}");

    stage.until_phase(OTHER, "turn", Phase::Complete);
    let first = since.elapsed().as_secs_f64();
    let phase = stage
        .of_job(TEAM, JOBS[3])
        .status
        .map(|status| status.phase);
    assert_ne!(phase, Some(Phase::Complete), "the other tenant's was last");
    for ((namespace, name), files) in made.iter().zip(&trees) {
        stage.until_phase(namespace, name, Phase::Complete);
        for node in to {
            files.assert_is_at(&stage.directory(node, namespace, name));
        }
    }
    let all = since.elapsed().as_secs_f64();
    println!("  the other tenant's job Complete after {first:.1} s, all five after {all:.1} s");
    cap(stage, None);
    stage
        .lent
        .kubectl(&["delete", "namespace", OTHER, "--timeout=120s"]);
    agents_are_ready(&stage.lent);
}
