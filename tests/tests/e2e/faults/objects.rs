//! Objects that are deleted, or that contradict each other.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use weft_crds::{FabricNode, Phase, RdmaFabric};

use super::programs::agents_are_ready;
use crate::install;
use crate::lent::SYSTEM;
use crate::stage::{Stage, TEAM, job};

pub(super) fn job_deleted(stage: &mut Stage) {
    let running = stage.begin("deleted");
    stage.assert_fell_within(&running);
    stage.lent.kubectl(&[
        "delete",
        "tj",
        "deleted",
        "--namespace",
        TEAM,
        "--timeout=60s",
    ]);
    let seconds = running.since.elapsed().as_secs_f64();
    println!(
        "  deleted at {} %: gone {seconds:.1} s later",
        running.percent
    );
    stage.nothing_is_left(&running);
}

pub(super) fn namespace_deleted(stage: &mut Stage) {
    stage.lent.kubectl(&["create", "namespace", "team-b"]);
    let running = stage.begin_long("team-b", "orphan");
    stage.assert_fell_within(&running);
    stage
        .lent
        .kubectl(&["delete", "namespace", "team-b", "--timeout=120s"]);
    let seconds = running.since.elapsed().as_secs_f64();
    println!(
        "  namespace deleted at {} %: gone {seconds:.1} s later",
        running.percent
    );
    stage.nothing_is_left(&running);
}

pub(super) fn selector_that_matches_nothing(stage: &mut Stage) {
    let name = "nobody-yet";
    let files = stage.files(TEAM, name);
    let mut wanted = job(TEAM, name, &[]);
    wanted["spec"]["destinations"] = json!({
        "nodeSelector": {"matchLabels": {"wants": name}}, "root": "models", "path": name,
    });
    stage.lent.apply(&wanted);
    let message = stage.until_waiting(name, "NoDestinations");
    assert!(message.contains("spec.destinations"), "{message}");
    stage
        .lent
        .kubectl(&["label", "node", "node2", &format!("wants={name}")]);
    let running = stage.moment(TEAM, name, files, &["node2"]);
    stage.completes(&running, "a node labelled");
    stage.lent.kubectl(&["label", "node", "node2", "wants-"]);
}

/// A node that comes to match while bytes move gets its copy, too, and every node that holds the files its label.
pub(super) fn late_joiner(stage: &mut Stage) {
    let name = "late";
    let files = stage.files(TEAM, name);
    let mut wanted = job(TEAM, name, &[]);
    wanted["spec"]["destinations"] = json!({
        "nodeSelector": {"matchLabels": {"wants": name}}, "root": "models", "path": name,
    });
    let label = format!("wants={name}");
    stage.lent.kubectl(&["label", "node", "node1", &label]);
    stage.lent.apply(&wanted);
    let mut running = stage.moment(TEAM, name, files, &["node1"]);
    stage.lent.kubectl(&["label", "node", "node2", &label]);
    stage.assert_fell_within(&running);
    running.to.push("node2".to_owned());
    stage.completes(&running, "another node labelled");
    let digest = running.files.digest();
    let holders = format!("-l=weft.dev/model.{TEAM}.{name}={}", &digest[..12]);
    stage
        .lent
        .wait_until("the nodes with a copy have its label", || {
            let nodes = stage.lent.kubectl(&["get", "nodes", &holders, "-o=name"]);
            // The source has it, too.
            (nodes == "node/node0\nnode/node1\nnode/node2\n").then_some(())
        });
    stage
        .lent
        .kubectl(&["label", "node", "node1", "node2", "wants-"]);
}

pub(super) fn node_outside_the_fabric(stage: &mut Stage) {
    let name = "outside";
    let files = stage.files(TEAM, name);
    stage.lent.apply(&job(TEAM, name, &["node1", "node3"]));
    let message = stage.until_waiting(name, "NodeNotInFabric");
    assert!(
        message.contains("spec.destinations.nodes: node node3"),
        "{message}"
    );
    let since = Instant::now();
    stage.lent.kubectl(&["label", "node", "node3", "gpu=true"]);
    let fabrics = stage.lent.all::<RdmaFabric>();
    stage
        .lent
        .until("four nodes are Ready", &fabrics, "default", |fabric| {
            let status = fabric.and_then(|fabric| fabric.status.as_ref());
            status.is_some_and(|status| status.nodes.ready == 4)
        });
    println!(
        "  node labelled: of the fabric and Ready {:.1} s later",
        since.elapsed().as_secs_f64()
    );
    let running = stage.moment(TEAM, name, files, &["node3", "node1"]);
    stage.completes(&running, "a node that has joined the fabric");
    stage.lent.kubectl(&["label", "node", "node3", "gpu-"]);
    agents_are_ready(&stage.lent);
}

/// The second waits for the first, and then replaces it: nothing is mixed.
pub(super) fn two_jobs_one_destination(stage: &mut Stage) {
    let first = stage.begin("first");
    let files = stage.files(TEAM, "second");
    let mut second = job(TEAM, "second", &["node1", "node2"]);
    second["spec"]["destinations"]["path"] = json!("first");
    stage.lent.apply(&second);
    stage.assert_fell_within(&first);
    stage.until_phase(TEAM, "first", Phase::Complete);
    let seconds = first.since.elapsed().as_secs_f64();
    println!(
        "  a second job at {} %: the first Complete {seconds:.1} s later",
        first.percent
    );
    let second = stage.until_phase(TEAM, "second", Phase::Complete);
    for node in ["node1", "node2"] {
        files.assert_is_at(&stage.directory(node, TEAM, "first"));
    }
    let attempts = second.status.unwrap_or_default().attempt;
    let seconds = first.since.elapsed().as_secs_f64();
    println!("  the second Complete {seconds:.1} s later, attempt {attempts}");
}

pub(super) fn node_in_two_fabrics(stage: &mut Stage) {
    let running = stage.begin("two-fabrics");
    let mut second = install::fabric();
    second["metadata"]["name"] = json!("second");
    stage.lent.apply(&second);
    let conflict = [
        "wait",
        "--for=condition=Conflicting",
        "rf/second",
        "--timeout=60s",
    ];
    stage.lent.kubectl(&conflict);
    stage.assert_fell_within(&running);
    let shown = stage.lent.json(&["get", "rf", "second"]);
    let conditions = shown["status"]["conditions"].as_array().unwrap();
    let conflicting = conditions
        .iter()
        .find(|one| one["type"] == "Conflicting")
        .unwrap();
    let message = conflicting["message"].as_str().unwrap();
    assert!(
        message.contains("node0, node1, node2 (of default)"),
        "{message}"
    );
    assert_eq!(shown["status"]["nodes"]["selected"], 0);
    stage.completes(&running, "a second fabric with the same nodes");
    stage
        .lent
        .kubectl(&["delete", "rf", "second", "--timeout=60s"]);
    let sets = stage
        .lent
        .of::<k8s_openapi::api::apps::v1::DaemonSet>(SYSTEM);
    stage
        .lent
        .until("its agents are gone", &sets, "weft-agent-second", |set| {
            set.is_none()
        });
    agents_are_ready(&stage.lent);
}

/// While a leader lives it puts the same authority back; its successor makes another, and every agent
/// asks it for a certificate.
pub(super) fn ca_secret_deleted(stage: &mut Stage) {
    let secrets = stage.lent.of::<Secret>(SYSTEM);
    let read = |stage: &Stage| {
        let there = stage
            .lent
            .until("Secret weft-ca", &secrets, "weft-ca", |one| one.is_some());
        let there = there.unwrap();
        (there.uid(), there.data)
    };
    let delete = |stage: &Stage| {
        let parameters = DeleteParams::default();
        let gone = secrets.delete("weft-ca", &parameters);
        stage.lent.wait(gone).unwrap();
    };
    let (first, authority) = read(stage);
    let running = stage.begin("ca-deleted");
    delete(stage);
    stage.assert_fell_within(&running);
    stage.completes(&running, "Secret weft-ca deleted");
    let (second, same) = read(stage);
    assert_ne!(second, first);
    assert!(
        same == authority,
        "the leader has put another authority there"
    );

    let since = Instant::now();
    let nodes = stage.lent.all::<FabricNode>();
    let certificate = |node: Option<&FabricNode>| {
        let status = node.and_then(|node| node.status.as_ref());
        status.and_then(|status| status.certificate_expires.clone())
    };
    let agents = ["node0", "node1", "node2"].map(|node| {
        let there = stage.lent.wait(nodes.get(node)).unwrap();
        (node, stage.lent.agent(node), certificate(Some(&there)))
    });
    delete(stage);
    stage.kill_leader();
    let (_, other) = read(stage);
    assert!(other != authority, "the leader was faster than its end");
    // Until the kubelet shows its pod the changed ConfigMap, an agent does not believe the new leader:
    // with the kubelet's defaults a minute and a half, here some seconds.
    for (node, _, old) in &agents {
        let what = "the agent has another certificate";
        stage.lent.until(what, &nodes, node, |node| {
            let new = certificate(node);
            new.is_some() && new != *old
        });
    }
    let seconds = since.elapsed().as_secs_f64();
    println!("  with the leader killed: all agents enrolled anew {seconds:.1} s later");
    agents_are_ready(&stage.lent);
    let running = stage.begin("ca-other");
    stage.completes(&running, "a transfer after that");
    let pods = stage.lent.of::<Pod>(SYSTEM);
    for (_, agent, _) in agents {
        let there = stage.lent.wait(pods.get(&agent.name_any())).unwrap();
        assert_eq!(
            there.uid(),
            agent.uid(),
            "an agent was replaced and did not enrol anew"
        );
    }
}
