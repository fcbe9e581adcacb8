//! The chart changes, or goes, while bytes move.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use weft_crds::Phase;

use super::programs::agents_are_ready;
use crate::install::{helm_install, helm_uninstall_leaves_nothing_that_does_not_end, terminating};
use crate::lent::{SYSTEM, repository};
use crate::stage::{Stage, TEAM, job};

/// Operators and agents are replaced, one after the other.
pub(super) fn helm_upgrade(stage: &mut Stage) {
    let running = stage.begin_long(TEAM, "upgraded");
    let chart = repository("charts/weft").display().to_string();
    let agents = ["node0", "node1", "node2"].map(|node| stage.lent.agent(node).metadata.uid);
    stage.lent.helm(&[
        "upgrade",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--set",
        "agent.log=debug",
    ]);
    stage.assert_fell_within(&running);
    stage.completes(&running, "helm upgrade");
    stage.lent.kubectl(&[
        "rollout",
        "status",
        "deployment/weft-operator",
        "--namespace",
        SYSTEM,
        "--timeout=120s",
    ]);
    agents_are_ready(&stage.lent);
    let after = ["node0", "node1", "node2"].map(|node| stage.lent.agent(node).metadata.uid);
    for (before, after) in agents.iter().zip(&after) {
        assert_ne!(before, after, "an agent was not replaced");
    }
    println!(
        "  all agents replaced {:.1} s later",
        running.since.elapsed().as_secs_f64()
    );
}

/// A chart with one more field in the definitions: what is stored stays as it is, and can have it.
pub(super) fn definitions_upgraded(stage: &mut Stage) {
    let before = stage.lent.json(&["get", "tj,rf,fn", "-A"]);
    let copy = stage.lent.scratch.path().join("weft");
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
    let running = stage.begin_long(TEAM, "definitions");
    let chart = copy.display().to_string();
    stage.lent.helm(&[
        "upgrade",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--reuse-values",
    ]);
    stage.assert_fell_within(&running);
    stage.completes(&running, "definitions upgraded");
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
    let after = stage.lent.json(&["get", "tj,rf,fn", "-A"]);
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
    stage
        .lent
        .kubectl(&[&named[..], &["--patch", &patch]].concat());
}

/// The job is suspended and let go; back with the chart, it goes on from where it was.
pub(super) fn helm_uninstall(stage: &mut Stage) {
    agents_are_ready(&stage.lent);
    // Its copies would go with it, if somebody were there to remove them.
    let name = "goes-with-its-copies";
    let files = stage.files(TEAM, name);
    let mut wanted = job(TEAM, name, &["node1", "node2"]);
    wanted["spec"]["deletionPolicy"] = json!("Delete");
    stage.lent.apply(&wanted);
    let done = stage.moment(TEAM, name, files, &["node1", "node2"]);
    stage.completes(&done, "a job with deletionPolicy Delete");

    let running = stage.begin_long(TEAM, "uninstalled");
    helm_uninstall_leaves_nothing_that_does_not_end(&stage.lent);
    stage.assert_fell_within(&running);
    let left = stage.of_job(TEAM, "uninstalled");
    assert_eq!(left.status.unwrap_or_default().phase, Phase::Suspended);
    assert_eq!(left.metadata.finalizers, None);
    println!("  suspended at {} %, no finalizer left", running.percent);
    assert_eq!(stage.of_job(TEAM, name).metadata.finalizers, None);
    for node in &done.to {
        done.files.assert_is_at(&stage.copy(&done, node));
    }

    helm_install(&stage.lent);
    agents_are_ready(&stage.lent);
    let go_on = json!({"spec": {"suspend": false}}).to_string();
    let named = [
        "patch",
        "tj",
        "uninstalled",
        "--namespace",
        TEAM,
        "--type=merge",
    ];
    stage
        .lent
        .kubectl(&[&named[..], &["--patch", &go_on]].concat());
    stage.completes(&running, "uninstalled, installed, let go on");
    helm_uninstall_leaves_nothing_that_does_not_end(&stage.lent);
    // A namespace with jobs in it ends although no operator is there any more.
    stage
        .lent
        .kubectl(&["delete", "namespace", TEAM, "--timeout=120s"]);
    assert_eq!(terminating(&stage.lent), Vec::<String>::new());
}
