//! Keys in the wrong hands, operators that were deposed, and one authority that follows another.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use weft_proto::agent::v1::{
    CancelRequest, ConnectRequest, JobRef, Location, SignedTicket, StatRequest,
};

use weft_tests::cluster::{CLOCK, CONFIGURATION};

use super::programs::agents_are_ready;
use crate::caller::{Caller, reason_of};
use crate::lent::{Lent, SYSTEM};
use crate::stage::{Running, Stage, process};

/// More than the 25 hours between two steps of a rotation.
const LONG_AGO: Duration = Duration::from_secs(26 * 60 * 60);

/// The fabric's nodes.
const ALL: [&str; 3] = ["node0", "node1", "node2"];

/// An operator's command about a job.
fn cancel(stage: &Stage, running: &Running, leader_epoch: u64) -> CancelRequest {
    let job = stage.of_job(&running.namespace, &running.name);
    CancelRequest {
        job: Some(JobRef {
            uid: job.uid().unwrap(),
            generation: job.metadata.generation.unwrap().unsigned_abs(),
            attempt: job.status.unwrap().attempt,
        }),
        leader_epoch,
        discard: true,
        release: false,
    }
}

/// Whoever has a node's key can call neither as the operator nor with a ticket of its own making; it is
/// refused, counted, and made known.
pub(super) fn stolen_certificate(stage: &mut Stage) {
    let running = stage.begin("thief");
    let thief = Caller::stolen_from(&stage.lent, "node1");
    let agent = stage.lent.agent("node2").name_any();
    let refused = |lent: &Lent| {
        let of = |reason: &str| format!("weft_refused_total{{reason=\"{reason}\"}}");
        let count = |reason: &str| lent.metric(&agent, &of(reason)).unwrap_or_default();
        (count("NotAllowed"), count("TicketForged"))
    };
    let before = refused(&stage.lent);
    let request = cancel(stage, &running, u64::MAX);
    let answer = thief.call(&stage.lent, "node2", |mut agent| async move {
        agent.cancel(request).await
    });
    assert_eq!(reason_of(answer), "NotAllowed");
    let answer = thief.call(&stage.lent, "node2", |mut agent| async move {
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
    stage.assert_fell_within(&running);
    stage.completes(&running, "commands by a stolen key refused");
    assert_eq!(refused(&stage.lent), (before.0 + 1, before.1 + 1));
    let since = Instant::now();
    let event = stage.lent.wait_until("an Event tells of it", || {
        let of = "--field-selector=reason=CertificateMisused";
        let events = stage.lent.json(&["get", "events", "-n=default", of]);
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
    agents_are_ready(&stage.lent);
}

/// The leader reaches neither the API server nor the other replica any more. The other one leads when
/// the Lease is over; what is then said in the name of the earlier one is refused.
pub(super) fn replicas_partitioned(stage: &mut Stage) {
    let (leader, before) = stage.leader();
    let running = stage.begin("partitioned");
    let cut = Cut::off(stage, &leader);
    stage.assert_fell_within(&running);
    let leases = stage.lent.of::<Lease>(SYSTEM);
    let is_led_by_another = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty() && holder != leader)
    };
    let what = "another replica leads";
    stage
        .lent
        .until(what, &leases, "weft-operator", is_led_by_another);
    let seconds = running.since.elapsed().as_secs_f64();
    println!("  {leader} cut off: another leads {seconds:.1} s later");
    stage.completes(&running, "the leader cut off");
    let (leader, after) = stage.leader();

    // Whatever the deposed one might still say while it does not know.
    let running = stage.begin("deposed");
    // A leader's epoch is the number of its lease, and that of the first is 1.
    let epoch = |transitions: i32| u64::from(transitions.unsigned_abs()) + 1;
    let (earlier, now) = (epoch(before), epoch(after));
    let operator = Caller::operator(&stage.lent, &leader);
    for node in ALL {
        let request = cancel(stage, &running, earlier);
        let answer = operator.call(&stage.lent, node, |mut agent| async move {
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
    let answer = operator.call(&stage.lent, "node0", |mut agent| async move {
        agent.stat(request).await
    });
    let found = answer.unwrap().into_inner();
    assert_eq!(found.files as usize, running.files.files());
    stage.assert_fell_within(&running);
    stage.completes(&running, "commands of a deposed leader refused");
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
    fn off(stage: &Stage, pod: &str) -> Self {
        let pid = process(&stage.lent, "weft-operator", &format!("POD_NAME={pod}"));
        let pid = pid.unwrap_or_else(|| stage.lent.fail(&format!("{pod} has no process")));
        let cut = Self {
            network: File::open(format!("/proc/{pid}/ns/net")).unwrap(),
        };
        // Agents are reached still: it is the worst of partitions.
        let api = stage
            .lent
            .json(&["get", "endpoints", "kubernetes", "-n=default"]);
        let api = api["subsets"][0]["addresses"][0]["ip"]
            .as_str()
            .unwrap()
            .to_owned();
        let service = stage
            .lent
            .json(&["get", "service", "kubernetes", "-n=default"]);
        let service = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let pods = stage.lent.json(&[
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
pub(super) fn clock_of_a_node_is_off(stage: &mut Stage) {
    let clock = format!("{CONFIGURATION}/{CLOCK}");
    let clock = stage.lent.cluster.file("node2", &clock);
    for (ahead, seconds) in [("+10m", 600), ("-10m", -600)] {
        fs::write(&clock, ahead).unwrap();
        agents_are_made_anew(stage, &["node2"]);
        let pod = stage.lent.agent("node2").name_any();
        let said = stage.lent.kubectl(&["logs", "-n", SYSTEM, &pod]);
        let last = said.lines().last().and_then(|line| line.split(' ').next());
        let last: Timestamp = last.unwrap().parse().unwrap();
        let off = last.as_second() - Timestamp::now().as_second();
        assert!((off - seconds).abs() < 60, "{off} s: {said}");
        let running = stage.begin(if seconds > 0 { "ahead" } else { "behind" });
        stage.assert_fell_within(&running);
        stage.completes(&running, &format!("the clock of a destination {ahead}"));
    }
    fs::remove_file(&clock).unwrap();
    agents_are_made_anew(stage, &["node2"]);
}

/// The authority is followed by another, a step in the middle of each of three transfers. A day goes by
/// between two steps: all agents then have another certificate, which they get here by being made anew.
pub(super) fn authority_rotated(stage: &mut Stage) {
    let secrets = stage.lent.of::<Secret>(SYSTEM);
    let maps = stage.lent.of::<ConfigMap>(SYSTEM);
    let trusted = |stage: &Stage| {
        let map = stage.lent.wait(maps.get("weft-ca")).unwrap();
        map.data.unwrap_or_default()["ca.crt"].clone()
    };
    let first = trusted(stage);
    let steps = [
        (
            "another authority announced",
            "weft.dev/rotate=now".to_owned(),
        ),
        ("it signs", step_was_long_ago()),
        ("the earlier one retired", step_was_long_ago()),
    ];
    for (i, (what, annotation)) in steps.into_iter().enumerate() {
        let running = stage.begin_long("team-a", &format!("rotation-{i}"));
        let (_, before) = stage.leader();
        let version = |secret: Option<&Secret>| secret.and_then(|secret| secret.data.clone());
        let found = stage.lent.wait(secrets.get("weft-ca")).unwrap();
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
        stage.lent.kubectl(&annotate);
        stage.lent.until(what, &secrets, "weft-ca", |secret| {
            version(secret).is_some_and(|new| Some(&new) != old.as_ref())
        });
        stage.assert_fell_within(&running);
        stage.completes(&running, what);
        assert!(stage.leader().1 > before, "the leader has not taken it up");
        if i < 2 {
            agents_are_made_anew(stage, &ALL);
        }
    }
    let last = trusted(stage);
    let count = last.matches("BEGIN CERTIFICATE").count();
    assert!(count == 1 && last != first, "{count} certificates");
    agents_are_made_anew(stage, &ALL);
    let running = stage.begin("rotation-after");
    stage.completes(&running, "a transfer after that");
}

fn step_was_long_ago() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("weft.dev/rotation-step-at={}", (now - LONG_AGO).as_secs())
}

fn agents_are_made_anew(stage: &Stage, nodes: &[&str]) {
    let agents = nodes.iter().map(|node| stage.lent.agent(node).name_any());
    let agents: Vec<String> = agents.collect();
    let pods = stage.lent.of::<Pod>(SYSTEM);
    let delete = [
        &["delete", "pod", "-n", SYSTEM],
        agents
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice(),
    ]
    .concat();
    stage.lent.kubectl(&delete);
    for agent in &agents {
        let what = "the agent's pod is gone";
        stage.lent.until(what, &pods, agent, |pod| pod.is_none());
    }
    agents_are_ready(&stage.lent);
}
