//! What a job has brought, and what becomes of it.

use serde_json::{Value, json};
use weft_crds::Phase;

use crate::stage::{Stage, TEAM, job};

/// A job of that name for the files of `path`, which takes its copies with it.
fn going(name: &str, path: &str, to: &[&str]) -> Value {
    let mut wanted = job(TEAM, path, to);
    wanted["metadata"]["name"] = json!(name);
    wanted["spec"]["deletionPolicy"] = json!("Delete");
    wanted
}

fn delete(stage: &Stage, name: &str) {
    let named = ["delete", "tj", name, "--namespace", TEAM, "--timeout=60s"];
    stage.lent.kubectl(&named);
}

/// What a job has brought goes with it; what another one has as well stays for that one.
pub(super) fn copies_go_with_their_job(stage: &mut Stage) {
    let path = "shared-copy";
    let files = stage.files_of(1_000_000, TEAM, path);
    let at = |stage: &Stage, node: &str| stage.directory(node, TEAM, path);
    stage
        .lent
        .apply(&going("first-with-it", path, &["node1", "node2"]));
    stage.until_phase(TEAM, "first-with-it", Phase::Complete);
    stage.lent.apply(&going("second-with-it", path, &["node1"]));
    stage.until_phase(TEAM, "second-with-it", Phase::Complete);
    delete(stage, "first-with-it");
    assert!(!at(stage, "node2").exists());
    files.assert_is_at(&at(stage, "node1"));

    delete(stage, "second-with-it");
    assert!(!at(stage, "node1").exists());
    files.assert_is_at(&at(stage, "node0"));
    println!("  two jobs: the copies went with the last job of each node");
}

/// The source's node gets a copy for another place, too, which it makes itself.
pub(super) fn the_sources_node_makes_its_own_copy(stage: &mut Stage) {
    let name = "copied-here";
    let files = stage.files_of(1_000_000, TEAM, name);
    let mut wanted = going(name, name, &["node0", "node1"]);
    wanted["spec"]["destinations"]["path"] = json!("copied-there");
    stage.lent.apply(&wanted);
    stage.until_phase(TEAM, name, Phase::Complete);
    let copies = ["node0", "node1"].map(|node| stage.directory(node, TEAM, "copied-there"));
    for copy in &copies {
        files.assert_is_at(copy);
    }
    delete(stage, name);
    assert!(copies.iter().all(|copy| !copy.exists()));
    files.assert_is_at(&stage.directory("node0", TEAM, name));
}
