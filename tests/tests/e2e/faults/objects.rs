//! Objects that are deleted, or that contradict each other.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use weft_crds::{FabricNode, Phase, RdmaFabric};

use super::programs::agents_are_ready;
use crate::harness::{Harness, TEAM, job, process};
use crate::install;
use crate::test_cluster::SYSTEM;

pub(super) fn a_job_deleted_while_bytes_move_leaves_no_file(harness: &mut Harness) {
    let running = harness.begin("deleted");
    harness.assert_fell_within(&running);
    harness.cluster.kubectl(&[
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
    harness.nothing_is_left(&running);
}

pub(super) fn a_namespace_deleted_while_bytes_move_leaves_no_file(harness: &mut Harness) {
    harness.cluster.kubectl(&["create", "namespace", "team-b"]);
    let running = harness.begin_long("team-b", "orphan");
    let cluster = &harness.cluster;
    // Kubernetes takes its time to come to the job, within which all bytes could arrive.
    let source = process(cluster, "weft-agent", "NODE_NAME=node0");
    let source = source.unwrap_or_else(|| cluster.fail("node0 has no agent"));
    kill(source, Signal::SIGSTOP).unwrap();
    harness.assert_fell_within(&running);
    cluster.kubectl(&["delete", "namespace", "team-b", "--wait=false"]);
    let path = "-o=jsonpath={.metadata.deletionTimestamp}";
    let job = ["get", "tj", "orphan", "--namespace", "team-b", path];
    let listed = ["get", "tj", "--namespace", "team-b", "-o=name"];
    cluster.wait_until("the job is deleted, too", || {
        let said = cluster.inner.kubectl(&job);
        let is_gone = || cluster.inner.kubectl(&listed).is_ok_and(|it| it.is_empty());
        said.map_or_else(|_| is_gone(), |since| !since.is_empty())
            .then_some(())
    });
    harness.assert_fell_within(&running);
    kill(source, Signal::SIGCONT).unwrap();
    cluster.kubectl(&["wait", "--for=delete", "namespace/team-b", "--timeout=120s"]);
    let seconds = running.since.elapsed().as_secs_f64();
    println!(
        "  namespace deleted at {} %: gone {seconds:.1} s later",
        running.percent
    );
    harness.nothing_is_left(&running);
}

pub(super) fn a_job_whose_selector_matches_no_node_waits_for_one(harness: &mut Harness) {
    let name = "nobody-yet";
    let files = harness.files(TEAM, name);
    let mut wanted = job(TEAM, name, &[]);
    wanted["spec"]["destinations"] = json!({
        "nodeSelector": {"matchLabels": {"wants": name}}, "root": "models", "path": name,
    });
    harness.cluster.apply(&wanted);
    let message = harness.until_waiting(name, "NoDestinations");
    assert!(message.contains("spec.destinations"), "{message}");
    harness
        .cluster
        .kubectl(&["label", "node", "node2", &format!("wants={name}")]);
    let running = harness.moment(TEAM, name, files, &["node2"]);
    harness.completes(&running, "a node labelled");
    harness
        .cluster
        .kubectl(&["label", "node", "node2", "wants-"]);
}

/// A node that comes to match while bytes move gets its copy, too, and every node that holds the files its label.
pub(super) fn a_node_that_joins_while_bytes_move_gets_its_copy(harness: &mut Harness) {
    let name = "late";
    let files = harness.files(TEAM, name);
    let mut wanted = job(TEAM, name, &[]);
    wanted["spec"]["destinations"] = json!({
        "nodeSelector": {"matchLabels": {"wants": name}}, "root": "models", "path": name,
    });
    let label = format!("wants={name}");
    harness.cluster.kubectl(&["label", "node", "node1", &label]);
    harness.cluster.apply(&wanted);
    let mut running = harness.moment(TEAM, name, files, &["node1"]);
    harness.cluster.kubectl(&["label", "node", "node2", &label]);
    harness.assert_fell_within(&running);
    running.to.push("node2".to_owned());
    harness.completes(&running, "another node labelled");
    let digest = running.files.digest();
    let holders = format!("-l=weft.dev/model.{TEAM}.{name}={}", &digest[..12]);
    harness
        .cluster
        .wait_until("the nodes with a copy have its label", || {
            let nodes = harness
                .cluster
                .kubectl(&["get", "nodes", &holders, "-o=name"]);
            // The source has it, too.
            (nodes == "node/node0\nnode/node1\nnode/node2\n").then_some(())
        });
    harness
        .cluster
        .kubectl(&["label", "node", "node1", "node2", "wants-"]);
}

pub(super) fn a_job_to_a_node_outside_the_fabric_waits_until_the_node_joins(harness: &mut Harness) {
    let name = "outside";
    let files = harness.files(TEAM, name);
    harness.cluster.apply(&job(TEAM, name, &["node1", "node3"]));
    let message = harness.until_waiting(name, "NodeNotInFabric");
    assert!(
        message.contains("spec.destinations.nodes: node node3"),
        "{message}"
    );
    let since = Instant::now();
    harness
        .cluster
        .kubectl(&["label", "node", "node3", "gpu=true"]);
    let fabrics = harness.cluster.all::<RdmaFabric>();
    harness
        .cluster
        .until("four nodes are Ready", &fabrics, "default", |fabric| {
            let status = fabric.and_then(|fabric| fabric.status.as_ref());
            status.is_some_and(|status| status.nodes.ready == 4)
        });
    println!(
        "  node labelled: of the fabric and Ready {:.1} s later",
        since.elapsed().as_secs_f64()
    );
    let running = harness.moment(TEAM, name, files, &["node3", "node1"]);
    harness.completes(&running, "a node that has joined the fabric");
    harness.cluster.kubectl(&["label", "node", "node3", "gpu-"]);
    agents_are_ready(&harness.cluster);
}

/// The second waits for the first, and then replaces it: nothing is mixed.
pub(super) fn of_two_jobs_with_one_destination_the_second_waits_and_then_replaces_the_copy(
    harness: &mut Harness,
) {
    let first = harness.begin("first");
    let files = harness.files(TEAM, "second");
    let mut second = job(TEAM, "second", &["node1", "node2"]);
    second["spec"]["destinations"]["path"] = json!("first");
    harness.cluster.apply(&second);
    harness.assert_fell_within(&first);
    harness.until_phase(TEAM, "first", Phase::Complete);
    let seconds = first.since.elapsed().as_secs_f64();
    println!(
        "  a second job at {} %: the first Complete {seconds:.1} s later",
        first.percent
    );
    let second = harness.until_phase(TEAM, "second", Phase::Complete);
    for node in ["node1", "node2"] {
        files.assert_is_at(&harness.directory(node, TEAM, "first"));
    }
    let attempts = second.status.unwrap_or_default().attempt;
    let seconds = first.since.elapsed().as_secs_f64();
    println!("  the second Complete {seconds:.1} s later, attempt {attempts}");
}

pub(super) fn a_second_fabric_with_the_same_nodes_is_conflicting(harness: &mut Harness) {
    let running = harness.begin("two-fabrics");
    let mut second = install::fabric();
    second["metadata"]["name"] = json!("second");
    harness.cluster.apply(&second);
    let conflict = [
        "wait",
        "--for=condition=Conflicting",
        "rf/second",
        "--timeout=60s",
    ];
    harness.cluster.kubectl(&conflict);
    harness.assert_fell_within(&running);
    let shown = harness.cluster.json(&["get", "rf", "second"]);
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
    harness.completes(&running, "a second fabric with the same nodes");
    harness
        .cluster
        .kubectl(&["delete", "rf", "second", "--timeout=60s"]);
    let sets = harness
        .cluster
        .of::<k8s_openapi::api::apps::v1::DaemonSet>(SYSTEM);
    harness
        .cluster
        .until("its agents are gone", &sets, "weft-agent-second", |set| {
            set.is_none()
        });
    agents_are_ready(&harness.cluster);
}

/// While a leader lives it puts the same authority back; its successor makes another, and every agent
/// asks it for a certificate.
pub(super) fn a_deleted_authority_secret_is_restored_or_replaced(harness: &mut Harness) {
    let secrets = harness.cluster.of::<Secret>(SYSTEM);
    let read = |harness: &Harness| {
        let there = harness
            .cluster
            .until("Secret weft-ca", &secrets, "weft-ca", |one| one.is_some());
        let there = there.unwrap();
        (there.uid(), there.data)
    };
    let delete = |harness: &Harness| {
        let parameters = DeleteParams::default();
        let gone = secrets.delete("weft-ca", &parameters);
        harness.cluster.wait(gone).unwrap();
    };
    let (first, authority) = read(harness);
    let running = harness.begin("ca-deleted");
    delete(harness);
    harness.assert_fell_within(&running);
    harness.completes(&running, "Secret weft-ca deleted");
    let (second, same) = read(harness);
    assert_ne!(second, first);
    assert!(
        same == authority,
        "the leader has put another authority there"
    );

    let since = Instant::now();
    let nodes = harness.cluster.all::<FabricNode>();
    let certificate = |node: Option<&FabricNode>| {
        let status = node.and_then(|node| node.status.as_ref());
        status.and_then(|status| status.certificate_expires.clone())
    };
    let agents = ["node0", "node1", "node2"].map(|node| {
        let there = harness.cluster.wait(nodes.get(node)).unwrap();
        (node, harness.cluster.agent(node), certificate(Some(&there)))
    });
    delete(harness);
    harness.kill_leader();
    let (_, other) = read(harness);
    assert!(other != authority, "the leader was faster than its end");
    // Until the kubelet shows its pod the changed ConfigMap, an agent does not believe the new leader:
    // with the kubelet's defaults a minute and a half, here some seconds.
    for (node, _, old) in &agents {
        let what = "the agent has another certificate";
        harness.cluster.until(what, &nodes, node, |node| {
            let new = certificate(node);
            new.is_some() && new != *old
        });
    }
    let seconds = since.elapsed().as_secs_f64();
    println!("  with the leader killed: all agents enrolled anew {seconds:.1} s later");
    agents_are_ready(&harness.cluster);
    let running = harness.begin("ca-other");
    harness.completes(&running, "a transfer after that");
    let pods = harness.cluster.of::<Pod>(SYSTEM);
    for (_, agent, _) in agents {
        let there = harness.cluster.wait(pods.get(&agent.name_any())).unwrap();
        assert_eq!(
            there.uid(),
            agent.uid(),
            "an agent was replaced and did not enrol anew"
        );
    }
}
