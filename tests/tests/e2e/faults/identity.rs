//! Keys in the wrong hands, operators that were deposed, and one authority that follows another.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use weft_cluster::{CLOCK, CONFIGURATION};
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, ConnectRequest, Location, SignedTicket, StatRequest,
};

use super::programs::agents_are_ready;
use crate::caller::{Caller, reason_of};
use crate::harness::{Harness, Running, process};
use crate::test_cluster::{SYSTEM, TestCluster};

/// More than the 25 hours between two steps of a rotation.
const LONG_AGO: Duration = Duration::from_secs(26 * 60 * 60);

/// The fabric's nodes.
const ALL: [&str; 3] = ["node0", "node1", "node2"];

/// An operator's command about a job.
fn cancel(harness: &Harness, running: &Running, leader_epoch: u64) -> CancelRequest {
    let job = harness.of_job(&running.namespace, &running.name);
    CancelRequest {
        attempt: Some(AttemptRef {
            uid: job.uid().unwrap(),
            generation: job.metadata.generation.unwrap().unsigned_abs(),
            number: job.status.unwrap().attempt,
        }),
        leader_epoch,
        remove_partials: true,
        release_copies: false,
    }
}

/// Whoever has a node's key can call neither as the operator nor with a ticket of its own making; it is
/// refused, counted, and made known.
pub(super) fn a_stolen_node_certificate_commands_no_agent_and_is_reported(harness: &mut Harness) {
    let running = harness.begin("thief");
    let thief = Caller::stolen_from(&harness.cluster, "node1");
    let agent = harness.cluster.agent("node2").name_any();
    let refused = |cluster: &TestCluster| {
        let of = |reason: &str| format!("weft_refused_total{{reason=\"{reason}\"}}");
        let count = |reason: &str| cluster.metric(&agent, &of(reason)).unwrap_or_default();
        (count("NotAllowed"), count("TicketForged"))
    };
    let before = refused(&harness.cluster);
    let request = cancel(harness, &running, u64::MAX);
    let answer = thief.call(&harness.cluster, "node2", |mut agent| async move {
        agent.cancel(request).await
    });
    assert_eq!(reason_of(answer), "NotAllowed");
    let answer = thief.call(&harness.cluster, "node2", |mut agent| async move {
        let ticket = SignedTicket {
            ticket: b"let me in".to_vec(),
            signature: vec![7; 64],
        };
        let request = ConnectRequest {
            ticket: Some(ticket),
            ..ConnectRequest::default()
        };
        agent.connect(request).await
    });
    assert_eq!(reason_of(answer), "TicketForged");
    harness.assert_fell_within(&running);
    harness.completes(&running, "commands by a stolen key refused");
    assert_eq!(refused(&harness.cluster), (before.0 + 1, before.1 + 1));
    let since = Instant::now();
    let event = harness.cluster.wait_until("an Event tells of it", || {
        let of = "--field-selector=reason=CertificateMisused";
        let events = harness.cluster.json(&["get", "events", "-n=default", of]);
        let events = events["items"].as_array()?;
        let of_node2 = |event: &&serde_json::Value| {
            event["involvedObject"]["kind"] == "FabricNode"
                && event["involvedObject"]["name"] == "node2"
        };
        let message = events.iter().find(of_node2)?["message"].clone();
        message.as_str().map(str::to_owned)
    });
    println!(
        "  an Event {:.1} s later: {event}",
        since.elapsed().as_secs_f64()
    );
    assert!(event.contains("that of node node1 for Cancel"), "{event}");
    agents_are_ready(&harness.cluster);
}

/// The leader reaches neither the API server nor the other replica any more. The other one leads when
/// the Lease is over; what is then said in the name of the earlier one is refused.
pub(super) fn a_leader_cut_off_from_the_cluster_can_no_longer_command_agents(
    harness: &mut Harness,
) {
    let (leader, before) = harness.leader();
    let running = harness.begin("partitioned");
    let cut = Cut::off(harness, &leader);
    harness.assert_fell_within(&running);
    let leases = harness.cluster.of::<Lease>(SYSTEM);
    let is_led_by_another = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty() && holder != leader)
    };
    let what = "another replica leads";
    harness
        .cluster
        .until(what, &leases, "weft-operator", is_led_by_another);
    let seconds = running.since.elapsed().as_secs_f64();
    println!("  {leader} cut off: another leads {seconds:.1} s later");
    harness.completes(&running, "the leader cut off");
    let (leader, after) = harness.leader();

    // Whatever the deposed one might still say while it does not know.
    let running = harness.begin("deposed");
    // A leader's epoch is the number of its lease, and that of the first is 1.
    let epoch = |transitions: i32| u64::from(transitions.unsigned_abs()) + 1;
    let (earlier, now) = (epoch(before), epoch(after));
    let operator = Caller::operator(&harness.cluster, &leader);
    for node in ALL {
        let request = cancel(harness, &running, earlier);
        let answer = operator.call(&harness.cluster, node, |mut agent| async move {
            agent.cancel(request).await
        });
        assert_eq!(reason_of(answer), "StaleEpoch", "{node}");
    }
    // The same caller is heard in the name of the one that leads.
    let request = StatRequest {
        leader_epoch: now,
        location: Some(Location {
            root: "models".to_owned(),
            path: format!("{}/{}", running.namespace, running.name),
        }),
        ..StatRequest::default()
    };
    let answer = operator.call(&harness.cluster, "node0", |mut agent| async move {
        agent.stat(request).await
    });
    let found = answer.unwrap().into_inner();
    assert_eq!(found.files as usize, running.files.files());
    harness.assert_fell_within(&running);
    harness.completes(&running, "commands of a deposed leader refused");
    drop(cut);
}

/// A pod that reaches nobody but who calls it, until this is dropped.
struct Cut {
    /// Of the pod: its containers may end.
    network: File,
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.nft("delete table ip cut");
    }
}

impl Cut {
    fn off(harness: &Harness, pod: &str) -> Self {
        let pid = process(
            &harness.cluster,
            "weft-operator",
            &format!("POD_NAME={pod}"),
        );
        let pid = pid.unwrap_or_else(|| harness.cluster.fail(&format!("{pod} has no process")));
        let cut = Self {
            network: File::open(format!("/proc/{pid}/ns/net")).unwrap(),
        };
        // Agents are reached still: it is the worst of partitions.
        let api = harness
            .cluster
            .json(&["get", "endpoints", "kubernetes", "-n=default"]);
        let api = api["subsets"][0]["addresses"][0]["ip"]
            .as_str()
            .unwrap()
            .to_owned();
        let service = harness
            .cluster
            .json(&["get", "service", "kubernetes", "-n=default"]);
        let service = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let pods = harness.cluster.json(&[
            "get",
            "pods",
            "-n",
            SYSTEM,
            "-l=app.kubernetes.io/name=weft-operator",
        ]);
        let others = pods["items"].as_array().unwrap().iter();
        let others = others.filter(|other| other["metadata"]["name"] != pod);
        let others =
            others.filter_map(|other| other["status"]["podIP"].as_str().map(str::to_owned));
        let all: Vec<String> = [api, service].into_iter().chain(others).collect();
        let rules = format!(
            "table ip cut {{ chain out {{ type filter hook output priority 0; ip daddr {{ {} }} drop; }}; }}",
            all.join(", ")
        );
        cut.nft(&rules);
        cut
    }

    fn nft(&self, rules: &str) {
        let network = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.network.as_raw_fd()
        );
        let made = Command::new("nsenter")
            .arg(format!("--net={network}"))
            .args(["nft", rules])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{rules}: {said}");
    }
}

/// A node's agent sees a time that is ten minutes off; certificates, tickets and reports go on.
pub(super) fn a_node_whose_clock_is_ten_minutes_off_still_takes_part(harness: &mut Harness) {
    let clock = format!("{CONFIGURATION}/{CLOCK}");
    let clock = harness.cluster.inner.file("node2", &clock);
    for (ahead, seconds) in [("+10m", 600), ("-10m", -600)] {
        fs::write(&clock, ahead).unwrap();
        agents_are_made_anew(harness, &["node2"]);
        let pod = harness.cluster.agent("node2").name_any();
        let said = harness.cluster.kubectl(&["logs", "-n", SYSTEM, &pod]);
        let last = said.lines().last().and_then(|line| line.split(' ').next());
        let last: Timestamp = last.unwrap().parse().unwrap();
        let off = last.as_second() - Timestamp::now().as_second();
        assert!((off - seconds).abs() < 60, "{off} s: {said}");
        let running = harness.begin(if seconds > 0 { "ahead" } else { "behind" });
        harness.assert_fell_within(&running);
        harness.completes(&running, &format!("the clock of a destination {ahead}"));
    }
    fs::remove_file(&clock).unwrap();
    agents_are_made_anew(harness, &["node2"]);
}

/// The authority is followed by another, a step in the middle of each of three transfers. A day goes by
/// between two steps: all agents then have another certificate, which they get here by being made anew.
pub(super) fn the_certificate_authority_is_rotated_while_bytes_move(harness: &mut Harness) {
    let secrets = harness.cluster.of::<Secret>(SYSTEM);
    let maps = harness.cluster.of::<ConfigMap>(SYSTEM);
    let trusted = |harness: &Harness| {
        let map = harness.cluster.wait(maps.get("weft-ca")).unwrap();
        map.data.unwrap_or_default()["ca.crt"].clone()
    };
    let first = trusted(harness);
    let steps = [
        (
            "another authority announced",
            "weft.dev/rotate=now".to_owned(),
        ),
        ("it signs", step_was_long_ago()),
        ("the earlier one retired", step_was_long_ago()),
    ];
    for (i, (what, annotation)) in steps.into_iter().enumerate() {
        let running = harness.begin_long("team-a", &format!("rotation-{i}"));
        let (_, before) = harness.leader();
        let version = |secret: Option<&Secret>| secret.and_then(|secret| secret.data.clone());
        let found = harness.cluster.wait(secrets.get("weft-ca")).unwrap();
        let old = found.data.clone();
        let annotate = [
            "annotate",
            "secret",
            "weft-ca",
            &annotation,
            "--overwrite",
            "-n",
            SYSTEM,
        ];
        harness.cluster.kubectl(&annotate);
        harness.cluster.until(what, &secrets, "weft-ca", |secret| {
            version(secret).is_some_and(|new| Some(&new) != old.as_ref())
        });
        harness.assert_fell_within(&running);
        harness.completes(&running, what);
        assert!(
            harness.leader().1 > before,
            "the leader has not taken it up"
        );
        if i < 2 {
            agents_are_made_anew(harness, &ALL);
        }
    }
    let last = trusted(harness);
    let count = last.matches("BEGIN CERTIFICATE").count();
    assert!(count == 1 && last != first, "{count} certificates");
    agents_are_made_anew(harness, &ALL);
    let running = harness.begin("rotation-after");
    harness.completes(&running, "a transfer after that");
}

fn step_was_long_ago() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("weft.dev/rotation-step-at={}", (now - LONG_AGO).as_secs())
}

fn agents_are_made_anew(harness: &Harness, nodes: &[&str]) {
    let agents = nodes
        .iter()
        .map(|node| harness.cluster.agent(node).name_any());
    let agents: Vec<String> = agents.collect();
    let pods = harness.cluster.of::<Pod>(SYSTEM);
    let delete = [
        &["delete", "pod", "-n", SYSTEM],
        agents
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice(),
    ]
    .concat();
    harness.cluster.kubectl(&delete);
    for agent in &agents {
        let what = "the agent's pod is gone";
        harness
            .cluster
            .until(what, &pods, agent, |pod| pod.is_none());
    }
    agents_are_ready(&harness.cluster);
}
