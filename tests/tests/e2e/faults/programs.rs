//! Programs that end while bytes move.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use weft_crds::RdmaFabric;
use weft_tests::cluster::Order;

use crate::lent::{Lent, SYSTEM};
use crate::stage::{Running, Stage};

/// How long the API server is away: the Lease holds for longer.
const OUTAGE: Duration = Duration::from_secs(20);

pub(super) fn operator_killed(stage: &mut Stage) {
    let (_, before) = stage.leader();
    let running = stage.begin("operator-killed");
    let killed = stage.kill_leader();
    stage.assert_fell_within(&running);
    stage.completes(&running, &format!("{killed} killed"));
    let (_, after) = stage.leader();
    assert!(after > before, "nobody has led since");
}

pub(super) fn agent_of_the_source_deleted(stage: &mut Stage) {
    let running = stage.begin("source-deleted");
    delete_agent(stage, &running, "node0", "the source's agent deleted");
}

pub(super) fn agent_of_the_relay_deleted(stage: &mut Stage) {
    let sent = |stage: &Stage| ["node1", "node2"].map(|node| (sent_bytes(&stage.lent, node), node));
    let before = sent(stage);
    let running = stage.begin("relay-deleted");
    let after = sent(stage);
    // The one that has sent is the relay: chunks of data, not only acknowledgements.
    let gained = |i: usize| after[i].0.saturating_sub(before[i].0);
    let relay = if gained(0) > gained(1) { 0 } else { 1 };
    assert!(
        gained(relay) > 1_000_000,
        "nobody relays: {before:?}, {after:?}"
    );
    delete_agent(stage, &running, after[relay].1, "the relay's agent deleted");
}

pub(super) fn agent_of_a_destination_deleted(stage: &mut Stage) {
    let running = stage.begin("destination-deleted");
    delete_agent(stage, &running, "node2", "a destination's agent deleted");
}

/// Data that an agent's peers have acknowledged.
fn sent_bytes(lent: &Lent, node: &str) -> u64 {
    let agent = lent.agent(node).name_any();
    let sent = lent.metric(&agent, "acknowledged_bytes_total");
    sent.unwrap_or_default()
}

fn delete_agent(stage: &mut Stage, running: &Running, node: &str, what: &str) {
    let lent = &stage.lent;
    let agent = lent.agent(node);
    let name = agent.name_any();
    lent.kubectl(&[
        "delete",
        "pod",
        &name,
        "--namespace",
        SYSTEM,
        "--wait=false",
    ]);
    stage.assert_fell_within(running);
    stage.completes(running, what);
    let pods = lent.of::<Pod>(SYSTEM);
    lent.until("the agent's pod is gone", &pods, &name, |pod| pod.is_none());
    agents_are_ready(lent);
}

/// The next fault finds all agents at work.
pub(super) fn agents_are_ready(lent: &Lent) {
    let sets = lent.of::<DaemonSet>(SYSTEM);
    lent.until("all agents are ready", &sets, "weft-agent-default", |set| {
        let status = set.and_then(|set| set.status.as_ref());
        status.is_some_and(|status| {
            status.number_ready == status.desired_number_scheduled
                && status.updated_number_scheduled == Some(status.desired_number_scheduled)
        })
    });
    let fabrics = lent.all::<RdmaFabric>();
    lent.until("the fabric is Ready", &fabrics, "default", |fabric| {
        let status = fabric.and_then(|fabric| fabric.status.as_ref());
        status.is_some_and(|status| {
            status.nodes.selected > 0 && status.nodes.ready == status.nodes.selected
        })
    });
}

pub(super) fn kubelet_killed(stage: &mut Stage) {
    let running = stage.begin("kubelet-killed");
    let kubelet = "node1/kubelet".to_owned();
    stage
        .lent
        .cluster
        .ask(&Order::Kill(kubelet.clone()))
        .unwrap();
    stage.assert_fell_within(&running);
    stage.completes(&running, "the kubelet of a destination killed");
    stage.lent.cluster.ask(&Order::Start(kubelet)).unwrap();
    agents_are_ready(&stage.lent);
}

pub(super) fn api_server_away(stage: &mut Stage) {
    let before = stage.leader();
    let running = stage.begin("api-away");
    let api = "kube-apiserver".to_owned();
    stage.lent.cluster.ask(&Order::Kill(api.clone())).unwrap();
    let since = Instant::now();
    stage.assert_fell_within(&running);
    stage
        .lent
        .wait_until("the copies arrive without an API server", || {
            let copies = running.to.iter().map(|node| stage.copy(&running, node));
            let mut files = copies.map(|copy| copy.join("weights"));
            files.all(|file| file.exists()).then_some(())
        });
    println!(
        "  copies whole {:.1} s later, without an API server",
        since.elapsed().as_secs_f64()
    );
    stage
        .lent
        .wait_until("the outage", || (since.elapsed() >= OUTAGE).then_some(()));
    stage.lent.cluster.ask(&Order::Start(api)).unwrap();
    stage.lent.wait_until("the API server answers", || {
        stage.lent.cluster.kubectl(&["get", "--raw=/readyz"]).ok()
    });
    stage.completes(&running, "API server away for 20 s");
    assert_eq!(stage.leader(), before, "the leader was deposed");
}

pub(super) fn etcd_restarted(stage: &mut Stage) {
    let running = stage.begin("etcd-restarted");
    let etcd = "etcd".to_owned();
    stage.lent.cluster.ask(&Order::Kill(etcd.clone())).unwrap();
    stage.assert_fell_within(&running);
    stage.lent.cluster.ask(&Order::Start(etcd)).unwrap();
    stage.completes(&running, "etcd killed and started");
}
