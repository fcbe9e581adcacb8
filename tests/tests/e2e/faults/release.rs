//! The chart changes, or goes, while bytes move.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use weft_crds::Phase;

use super::programs::agents_are_ready;
use crate::harness::{Harness, TEAM, job};
use crate::install::{helm_install, helm_uninstall_leaves_nothing_that_does_not_end, terminating};
use crate::test_cluster::{SYSTEM, repository};

/// Operators and agents are replaced, one after the other.
pub(super) fn a_job_completes_during_helm_upgrade(harness: &mut Harness) {
    let running = harness.begin_long(TEAM, "upgraded");
    let chart = repository("charts/weft").display().to_string();
    let agents = ["node0", "node1", "node2"].map(|node| harness.cluster.agent(node).metadata.uid);
    harness.cluster.helm(&[
        "upgrade",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--set",
        "agent.log=debug",
    ]);
    harness.assert_fell_within(&running);
    harness.completes(&running, "helm upgrade");
    harness.cluster.kubectl(&[
        "rollout",
        "status",
        "deployment/weft-operator",
        "--namespace",
        SYSTEM,
        "--timeout=120s",
    ]);
    agents_are_ready(&harness.cluster);
    let after = ["node0", "node1", "node2"].map(|node| harness.cluster.agent(node).metadata.uid);
    for (before, after) in agents.iter().zip(&after) {
        assert_ne!(before, after, "an agent was not replaced");
    }
    println!(
        "  all agents replaced {:.1} s later",
        running.since.elapsed().as_secs_f64()
    );
}

/// A chart with one more field in the definitions: what is stored stays as it is, and can have it.
pub(super) fn a_job_completes_while_the_definitions_are_upgraded(harness: &mut Harness) {
    let earlier = harness.begin("before-definitions");
    harness.completes(&earlier, "a job before the upgrade");
    let before = harness.cluster.json(&["get", "tj,rf,fn", "-A"]);
    let copy = harness.cluster.scratch.path().join("weft");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(repository("charts/weft"))
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    let file = copy.join("templates/crds/transferjobs.weft.dev.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let suspend = "              suspend:\n";
    assert_eq!(text.matches(suspend).count(), 1, "{}", file.display());
    let more = "              wishes:\n                type: string\n";
    fs::write(&file, text.replace(suspend, &format!("{more}{suspend}"))).unwrap();
    let running = harness.begin_long(TEAM, "definitions");
    let chart = copy.display().to_string();
    harness.cluster.helm(&[
        "upgrade",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--reuse-values",
    ]);
    harness.assert_fell_within(&running);
    harness.completes(&running, "definitions upgraded");
    let bare = |list: &Value| -> Vec<(Value, Value, Value)> {
        let items = list["items"].as_array().unwrap().iter();
        let items = items.filter(|one| one["metadata"]["name"] != "definitions");
        items
            .map(|one| {
                (
                    one["kind"].clone(),
                    one["metadata"]["uid"].clone(),
                    one["spec"].clone(),
                )
            })
            .collect()
    };
    let after = harness.cluster.json(&["get", "tj,rf,fn", "-A"]);
    assert!(before["items"].as_array().unwrap().len() > 4);
    assert_eq!(bare(&after), bare(&before));
    let patch = json!({"spec": {"wishes": "many"}}).to_string();
    let named = [
        "patch",
        "tj",
        "definitions",
        "--namespace",
        TEAM,
        "--type=merge",
    ];
    harness
        .cluster
        .kubectl(&[&named[..], &["--patch", &patch]].concat());
}

/// The job is suspended and let go; back with the chart, it goes on from where it was.
pub(super) fn a_job_goes_on_after_helm_uninstall_and_install(harness: &mut Harness) {
    agents_are_ready(&harness.cluster);
    // Its copies would go with it, if somebody were there to remove them.
    let name = "goes-with-its-copies";
    let files = harness.files(TEAM, name);
    let mut wanted = job(TEAM, name, &["node1", "node2"]);
    wanted["spec"]["deletionPolicy"] = json!("Delete");
    harness.cluster.apply(&wanted);
    let done = harness.moment(TEAM, name, files, &["node1", "node2"]);
    harness.completes(&done, "a job with deletionPolicy Delete");

    let running = harness.begin_long(TEAM, "uninstalled");
    helm_uninstall_leaves_nothing_that_does_not_end(&harness.cluster);
    harness.assert_fell_within(&running);
    let left = harness.of_job(TEAM, "uninstalled");
    assert_eq!(left.status.unwrap_or_default().phase, Phase::Suspended);
    assert_eq!(left.metadata.finalizers, None);
    println!("  suspended at {} %, no finalizer left", running.percent);
    assert_eq!(harness.of_job(TEAM, name).metadata.finalizers, None);
    for node in &done.to {
        done.files.assert_is_at(&harness.copy(&done, node));
    }

    helm_install(&harness.cluster);
    agents_are_ready(&harness.cluster);
    let go_on = json!({"spec": {"suspend": false}}).to_string();
    let named = [
        "patch",
        "tj",
        "uninstalled",
        "--namespace",
        TEAM,
        "--type=merge",
    ];
    harness
        .cluster
        .kubectl(&[&named[..], &["--patch", &go_on]].concat());
    harness.completes(&running, "uninstalled, installed, let go on");
    helm_uninstall_leaves_nothing_that_does_not_end(&harness.cluster);
    // A namespace with jobs in it ends although no operator is there any more.
    harness
        .cluster
        .kubectl(&["delete", "namespace", TEAM, "--timeout=120s"]);
    assert_eq!(terminating(&harness.cluster), Vec::<String>::new());
}
