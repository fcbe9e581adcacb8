//! Programs that end while bytes move.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use weft_cluster::Order;
use weft_crds::RdmaFabric;

use crate::harness::{Harness, Running};
use crate::test_cluster::{SYSTEM, TestCluster};

/// How long the API server is away: the Lease holds for longer.
const OUTAGE: Duration = Duration::from_secs(20);

pub(super) fn a_job_completes_when_the_leading_operator_is_killed(harness: &mut Harness) {
    let (_, before) = harness.leader();
    let running = harness.begin("operator-killed");
    let killed = harness.kill_leader();
    harness.assert_fell_within(&running);
    harness.completes(&running, &format!("{killed} killed"));
    let (_, after) = harness.leader();
    assert!(after > before, "nobody has led since");
}

pub(super) fn a_job_completes_when_the_agent_of_its_source_is_deleted(harness: &mut Harness) {
    let running = harness.begin("source-deleted");
    delete_agent(harness, &running, "node0", "the source's agent deleted");
}

pub(super) fn a_job_completes_when_the_agent_of_its_relay_is_deleted(harness: &mut Harness) {
    let sent = |harness: &Harness| {
        ["node1", "node2"].map(|node| (sent_bytes(&harness.cluster, node), node))
    };
    let before = sent(harness);
    let running = harness.begin("relay-deleted");
    let after = sent(harness);
    // The one that has sent is the relay: chunks of data, not only acknowledgements.
    let gained = |i: usize| after[i].0.saturating_sub(before[i].0);
    let relay = if gained(0) > gained(1) { 0 } else { 1 };
    assert!(
        gained(relay) > 1_000_000,
        "nobody relays: {before:?}, {after:?}"
    );
    delete_agent(
        harness,
        &running,
        after[relay].1,
        "the relay's agent deleted",
    );
}

pub(super) fn a_job_completes_when_the_agent_of_a_destination_is_deleted(harness: &mut Harness) {
    let running = harness.begin("destination-deleted");
    delete_agent(harness, &running, "node2", "a destination's agent deleted");
}

/// Data that an agent's peers have acknowledged.
fn sent_bytes(cluster: &TestCluster, node: &str) -> u64 {
    let agent = cluster.agent(node).name_any();
    let sent = cluster.metric(&agent, "acknowledged_bytes_total");
    sent.unwrap_or_default()
}

fn delete_agent(harness: &mut Harness, running: &Running, node: &str, what: &str) {
    let cluster = &harness.cluster;
    let agent = cluster.agent(node);
    let name = agent.name_any();
    cluster.kubectl(&[
        "delete",
        "pod",
        &name,
        "--namespace",
        SYSTEM,
        "--wait=false",
    ]);
    harness.assert_fell_within(running);
    harness.completes(running, what);
    let pods = cluster.of::<Pod>(SYSTEM);
    cluster.until("the agent's pod is gone", &pods, &name, |pod| pod.is_none());
    agents_are_ready(cluster);
}

/// The next fault finds all agents at work.
pub(super) fn agents_are_ready(cluster: &TestCluster) {
    let sets = cluster.of::<DaemonSet>(SYSTEM);
    cluster.until("all agents are ready", &sets, "weft-agent-default", |set| {
        let status = set.and_then(|set| set.status.as_ref());
        status.is_some_and(|status| {
            status.number_ready == status.desired_number_scheduled
                && status.updated_number_scheduled == Some(status.desired_number_scheduled)
        })
    });
    let fabrics = cluster.all::<RdmaFabric>();
    cluster.until("the fabric is Ready", &fabrics, "default", |fabric| {
        let status = fabric.and_then(|fabric| fabric.status.as_ref());
        status.is_some_and(|status| {
            status.nodes.selected > 0 && status.nodes.ready == status.nodes.selected
        })
    });
}

pub(super) fn a_job_completes_when_a_kubelet_is_killed(harness: &mut Harness) {
    let running = harness.begin("kubelet-killed");
    let kubelet = "node1/kubelet".to_owned();
    harness
        .cluster
        .inner
        .ask(&Order::Kill(kubelet.clone()))
        .unwrap();
    harness.assert_fell_within(&running);
    harness.completes(&running, "the kubelet of a destination killed");
    harness.cluster.inner.ask(&Order::Start(kubelet)).unwrap();
    agents_are_ready(&harness.cluster);
}

pub(super) fn a_job_completes_when_the_api_server_is_away_for_20_s(harness: &mut Harness) {
    let before = harness.leader();
    let running = harness.begin("api-away");
    let api = "kube-apiserver".to_owned();
    harness
        .cluster
        .inner
        .ask(&Order::Kill(api.clone()))
        .unwrap();
    let since = Instant::now();
    harness.assert_fell_within(&running);
    harness
        .cluster
        .wait_until("the copies arrive without an API server", || {
            let copies = running.to.iter().map(|node| harness.copy(&running, node));
            let mut files = copies.map(|copy| copy.join("weights"));
            files.all(|file| file.exists()).then_some(())
        });
    println!(
        "  copies whole {:.1} s later, without an API server",
        since.elapsed().as_secs_f64()
    );
    harness
        .cluster
        .wait_until("the outage", || (since.elapsed() >= OUTAGE).then_some(()));
    harness.cluster.inner.ask(&Order::Start(api)).unwrap();
    harness.cluster.wait_until("the API server answers", || {
        harness
            .cluster
            .inner
            .kubectl(&["get", "--raw=/readyz"])
            .ok()
    });
    harness.completes(&running, "API server away for 20 s");
    assert_eq!(harness.leader(), before, "the leader was deposed");
}

pub(super) fn a_job_completes_when_etcd_is_restarted(harness: &mut Harness) {
    let running = harness.begin("etcd-restarted");
    let etcd = "etcd".to_owned();
    harness
        .cluster
        .inner
        .ask(&Order::Kill(etcd.clone()))
        .unwrap();
    harness.assert_fell_within(&running);
    harness.cluster.inner.ask(&Order::Start(etcd)).unwrap();
    harness.completes(&running, "etcd killed and started");
}
