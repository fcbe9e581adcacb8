//! Tenants who would fill a node's disk.

use serde_json::{Value, json};
use weft_crds::{Phase, RdmaFabric, TransferJob};

use super::programs::agents_are_ready;
use crate::harness::{Harness, job};

/// The tenant that makes more jobs than it has room for, and another.
const GREEDY: &str = "team-greedy";
const OTHER: &str = "team-modest";
const QUOTA: u64 = 100_000_000;
/// Of each job: there is room for two.
const BYTES: usize = 40_000_000;
const JOBS: [&str; 3] = ["large-1", "large-2", "large-3"];

/// Sets a field of the root `models`, or takes it away.
fn limit(harness: &Harness, field: &str, value: Option<&str>) {
    let path = format!("/spec/roots/0/{field}");
    let change = match value {
        Some(value) => json!({"op": "add", "path": path, "value": value}),
        None => json!({"op": "remove", "path": path}),
    };
    let patch = json!([{"op": "test", "path": "/spec/roots/0/name", "value": "models"}, change]);
    let patch = patch.to_string();
    let patch = ["patch", "rf", "default", "--type=json", "-p", &patch];
    harness.cluster.kubectl(&patch);
    let fabrics = harness.cluster.all::<RdmaFabric>();
    harness
        .cluster
        .until("the fabric is decided", &fabrics, "default", |fabric| {
            fabric.is_some_and(|fabric| {
                let status = fabric.status.as_ref();
                status.map(|status| status.observed_generation) == fabric.metadata.generation
            })
        });
    agents_are_ready(&harness.cluster);
}

/// Takes its copy with it.
fn going(namespace: &str, name: &str) -> Value {
    let mut wanted = job(namespace, name, &["node1"]);
    wanted["spec"]["deletionPolicy"] = json!("Delete");
    wanted
}

/// Waits until it is over; the reason if its copy failed.
fn outcome(harness: &Harness, namespace: &str, name: &str) -> Option<String> {
    let api = harness.cluster.of::<TransferJob>(namespace);
    let job = harness.cluster.until("over", &api, name, |job| {
        let status = job.and_then(|job| job.status.as_ref());
        status.is_some_and(|status| status.phase.is_over())
    });
    let status = job.and_then(|job| job.status).unwrap();
    let [destination] = &status.destinations[..] else {
        panic!("{status:?}");
    };
    (status.phase == Phase::Failed).then(|| destination.reason.clone())
}

/// Of three jobs at once two have room. The third fails before a byte of it moves; another tenant's job is not
/// concerned; and what a tenant deletes is room again.
pub(super) fn a_tenant_who_would_fill_a_node_is_stopped_at_its_quota_and_hinders_nobody(
    harness: &mut Harness,
) {
    limit(harness, "bytesPerNamespace", Some(&QUOTA.to_string()));
    for namespace in [GREEDY, OTHER] {
        harness.cluster.kubectl(&["create", "namespace", namespace]);
    }
    let mut jobs = Vec::new();
    for name in JOBS {
        harness.files_of(BYTES, GREEDY, name);
        jobs.push(going(GREEDY, name));
    }
    let files = harness.files_of(BYTES, OTHER, "modest");
    jobs.push(going(OTHER, "modest"));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": jobs});
    harness.cluster.apply(&list);

    let outcomes = JOBS.map(|name| (name, outcome(harness, GREEDY, name)));
    let (failed, complete): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|(_, failed)| failed.is_some());
    let [(refused, Some(reason))] = &failed[..] else {
        panic!("{failed:?}");
    };
    assert_eq!(reason, "NamespaceQuota");
    assert!(!harness.directory("node1", GREEDY, refused).exists());
    harness.until_phase(OTHER, "modest", Phase::Complete);
    files.assert_is_at(&harness.directory("node1", OTHER, "modest"));

    let namespace = ["--namespace", GREEDY, "--timeout=60s"];
    for name in [complete[0].0, refused] {
        let delete = ["delete", "tj", name];
        harness.cluster.kubectl(&[&delete[..], &namespace].concat());
    }
    harness.cluster.apply(&going(GREEDY, refused));
    assert_eq!(outcome(harness, GREEDY, refused), None);
    limit(harness, "bytesPerNamespace", None);

    // No job takes what is to stay free.
    limit(harness, "minFree", Some("100%"));
    harness.files_of(1_000_000, OTHER, "small");
    harness.cluster.apply(&going(OTHER, "small"));
    let failed = outcome(harness, OTHER, "small");
    assert_eq!(failed.as_deref(), Some("RootReserve"));
    limit(harness, "minFree", Some("0"));
    for namespace in [GREEDY, OTHER] {
        let delete = ["delete", "namespace", namespace, "--timeout=120s"];
        harness.cluster.kubectl(&delete);
    }
}
