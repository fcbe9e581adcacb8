//! What a job has brought, and what becomes of it.

use serde_json::{Value, json};
use weft_crds::Phase;

use crate::harness::{Harness, TEAM, job};

/// A job of that name for the files of `path`, which takes its copies with it.
fn going(name: &str, path: &str, to: &[&str]) -> Value {
    let mut wanted = job(TEAM, path, to);
    wanted["metadata"]["name"] = json!(name);
    wanted["spec"]["deletionPolicy"] = json!("Delete");
    wanted
}

fn delete(harness: &Harness, name: &str) {
    let named = ["delete", "tj", name, "--namespace", TEAM, "--timeout=60s"];
    harness.cluster.kubectl(&named);
}

/// What a job has brought goes with it; what another one has as well stays for that one.
pub(super) fn files_are_deleted_with_the_last_job_that_holds_the_copy(harness: &mut Harness) {
    let path = "shared-copy";
    let files = harness.files_of(1_000_000, TEAM, path);
    let at = |harness: &Harness, node: &str| harness.directory(node, TEAM, path);
    harness
        .cluster
        .apply(&going("first-with-it", path, &["node1", "node2"]));
    harness.until_phase(TEAM, "first-with-it", Phase::Complete);
    harness
        .cluster
        .apply(&going("second-with-it", path, &["node1"]));
    harness.until_phase(TEAM, "second-with-it", Phase::Complete);
    delete(harness, "first-with-it");
    assert!(!at(harness, "node2").exists());
    files.assert_is_at(&at(harness, "node1"));

    delete(harness, "second-with-it");
    assert!(!at(harness, "node1").exists());
    files.assert_is_at(&at(harness, "node0"));
    println!("  two jobs: the copies went with the last job of each node");
}

/// The source's node gets a copy for another place, too, which it makes itself.
pub(super) fn the_node_of_the_source_can_be_a_destination(harness: &mut Harness) {
    let name = "copied-here";
    let files = harness.files_of(1_000_000, TEAM, name);
    let mut wanted = going(name, name, &["node0", "node1"]);
    wanted["spec"]["destinations"]["path"] = json!("copied-there");
    harness.cluster.apply(&wanted);
    harness.until_phase(TEAM, name, Phase::Complete);
    let copies = ["node0", "node1"].map(|node| harness.directory(node, TEAM, "copied-there"));
    for copy in &copies {
        files.assert_is_at(copy);
    }
    delete(harness, name);
    assert!(copies.iter().all(|copy| !copy.exists()));
    files.assert_is_at(&harness.directory("node0", TEAM, name));
}
