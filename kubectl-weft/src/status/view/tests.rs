use insta::assert_snapshot;
use weft_crds::{
    Counts, LinkInUse, ManifestSummary, Phase, PlanSummary, Strategy, live_api_version,
};

use super::*;

fn on(node: &str, state: DestinationState, bytes: i64) -> DestinationStatus {
    DestinationStatus {
        node: node.to_owned(),
        state,
        reason: String::new(),
        message: String::new(),
        bytes,
        digest: String::new(),
    }
}

/// minilm of team-a to n2, a quarter of which is there, and n3.
pub(in super::super) fn job(name: &str, phase: Phase) -> TransferProgress {
    let metadata = kube::core::ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("team-a".to_owned()),
        ..Default::default()
    };
    TransferProgress {
        api_version: live_api_version(),
        kind: TransferProgress::KIND.to_owned(),
        metadata,
        status: TransferJobStatus {
            phase,
            attempt: 1,
            counts: Counts {
                total: 2,
                verified: 1,
                failed: 0,
            },
            bytes: 125_000_000,
            bytes_total: 200_000_000,
            bytes_per_second: 25_000_000,
            eta_seconds: Some(3),
            manifest: Some(ManifestSummary {
                files: 7,
                bytes: 100_000_000,
                digest: None,
                not_kept: Vec::new(),
            }),
            plan: Some(PlanSummary {
                strategy: Strategy::Chain,
                estimate_seconds: 4.25,
                bottleneck: Some("n1->leaf0 at 1000 Mbit/s".to_owned()),
            }),
            link: Some(LinkInUse {
                name: "udp".to_owned(),
                reason: "the only link in this build".to_owned(),
            }),
            destinations: vec![
                on("n2", DestinationState::Transferring, 25_000_000),
                on("n3", DestinationState::Verified, 100_000_000),
            ],
            ..TransferJobStatus::default()
        },
        ahead: None,
    }
}

#[test]
fn a_job_is_shown_with_its_plan_and_all_its_destinations() {
    assert_snapshot!(Detail(&job("minilm", Phase::Transferring)));
}

#[test]
fn a_job_that_failed_says_where_and_why() {
    let mut job = job("minilm", Phase::Failed);
    job.status.message = "1 of 2 destinations failed: node n2: the disk is full".to_owned();
    job.status.bytes_per_second = 0;
    job.status.eta_seconds = None;
    let failed = &mut job.status.destinations[0];
    failed.state = DestinationState::Failed;
    failed.reason = "DiskFull".to_owned();
    failed.message = "node n2: the disk is full".to_owned();
    assert_snapshot!(Detail(&job));
}

#[test]
fn a_message_without_a_reason_stands_alone() {
    let mut verified = on("n2", DestinationState::Verified, 1);
    verified.message = "node n2: the directory was there before".to_owned();
    assert_eq!(reason(&verified), "node n2: the directory was there before");
    verified.reason = "Replaced".to_owned();
    assert_eq!(
        reason(&verified),
        "Replaced: node n2: the directory was there before"
    );
}

#[test]
fn a_job_that_waits_for_its_turn_has_a_place_in_the_queue() {
    let mut job = job("minilm", Phase::Waiting);
    job.ahead = Some(3);
    job.status = TransferJobStatus {
        phase: Phase::Waiting,
        fabric: "default".to_owned(),
        message: "node n1 takes part in 2 jobs at a time".to_owned(),
        ..TransferJobStatus::default()
    };
    assert_eq!(
        Detail(&job).to_string(),
        "job         team-a/minilm\n\
         phase       Waiting\n\
         fabric      default\n\
         queue       place 4\n\
         message     node n1 takes part in 2 jobs at a time\n"
    );
    assert_eq!(
        Table::of(&[job], false, false).to_string(),
        "name    phase    verified  bytes  rate  ETA  message\n\
         minilm  Waiting  0/0       -      -     -    place 4 in the queue: node n1 takes part in 2 \
         jobs at a time\n"
    );
}

#[test]
fn jobs_stand_in_a_table_with_their_namespaces_where_there_are_several() {
    let mut waiting = job("waits", Phase::Waiting);
    waiting.status = TransferJobStatus {
        phase: Phase::Waiting,
        message: "spec.destinations: no node matches".to_owned(),
        ..TransferJobStatus::default()
    };
    let jobs = [job("minilm", Phase::Transferring), waiting];
    assert_snapshot!(Table::of(&jobs, true, false));
    assert_eq!(
        Table::of(&jobs[..1], false, false).to_string(),
        "name    phase         verified  bytes             rate     ETA     message\n\
         minilm  Transferring  1/2       125 MB of 200 MB  25 MB/s  3.00 s\n"
    );
}

#[test]
fn a_wide_table_has_the_fabric_the_attempt_and_the_link_besides() {
    let mut job = job("minilm", Phase::Transferring);
    job.status.fabric = "default".to_owned();
    job.status.attempt = 2;
    job.status.message = "tried again".to_owned();
    let mut waits = job.clone();
    waits.status = TransferJobStatus::default();
    let shown = Table::of(&[job, waits], false, true).to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].ends_with("ETA     fabric   attempt  link  message"),
        "{shown}"
    );
    assert!(
        lines[1].ends_with("3.00 s  default  2        udp   tried again"),
        "{shown}"
    );
    assert!(lines[2].ends_with("-       -        0        -"), "{shown}");
}

#[test]
fn a_destination_is_told_by_bytes_rate_and_time_left_or_by_its_state() {
    let moving = |bytes| on("n2", DestinationState::Transferring, bytes);
    let all = Some(100_000_000);
    for (one, rate, expected) in [
        (
            moving(50_000_000),
            25_000_000,
            "50 MB of 100 MB, 25 MB/s, ETA 2.00 s",
        ),
        (moving(50_000_000), 0, "50 MB of 100 MB, stalled"),
        (moving(0), 0, "0 B of 100 MB, waiting for bytes"),
        (
            on("n2", DestinationState::Verifying, 100_000_000),
            0,
            "100 MB of 100 MB, verifying",
        ),
    ] {
        assert_eq!(destination(&one, all, rate), expected);
    }
    let mut troubled = moving(0);
    troubled.reason = "NodeUnreachable".to_owned();
    assert_eq!(destination(&troubled, None, 0), "waiting: NodeUnreachable");
}
