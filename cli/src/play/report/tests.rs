use weft_planner::{Node, Strategy, Topology};
use weft_proto::agent::v1::{
    Algorithm, Overwrite, ProgressResponse, StatResponse, State, Symlinks,
};
use weft_transfer::{Call, Cleanup, Failure, Input, LeaderContext, NodeLocation, Spec, Timing};

use super::*;
use crate::play::arguments::FaultKind;

const BYTES: u64 = 90_868_376;

fn node(i: u32) -> String {
    format!("node{i}")
}

/// node0 → node1 → node2, all started; nothing reported yet.
fn running() -> Transfer {
    let place = |i| NodeLocation {
        node: node(i),
        root: "data".into(),
        path: "model".into(),
    };
    let member = |i| Node {
        name: node(i),
        address: None,
        leaf: "leaf0".into(),
        rate_bps: 10_000_000_000,
    };
    let spec = Spec {
        uid: "uid".into(),
        name: None,
        source: place(0),
        symlinks: Symlinks::Follow,
        object: None,
        destinations: vec![place(1), place(2)],
        topology: Topology {
            nodes: (0..3).map(member).collect(),
            uplinks: Vec::new(),
        },
        strategy: Strategy::Auto,
        payload_share: 1.0,
        algorithm: Algorithm::Blake3,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        timing: Timing::INTERACTIVE,
        leader: LeaderContext::ONLY,
        backoff_limit: 0,
    };
    let found = StatResponse {
        files: 1,
        bytes: BYTES,
        ..StatResponse::default()
    };
    let ok = |node: String| called(node, Call::Prepare);
    let mut transfer = Transfer::begin(spec).0;
    let recorded = Input::AttemptRecorded { attempt: 1 };
    for answer in [Input::Stat(Ok(found)), recorded, ok(node(1)), ok(node(2))] {
        transfer = transfer.step(Duration::from_millis(100), answer).0;
    }
    transfer
}

fn called(node: String, call: Call) -> Input {
    Input::Called {
        node,
        attempt: 1,
        call,
        result: Ok(()),
    }
}

fn cancel() -> Call {
    Call::Cancel {
        cleanup: Cleanup::Partials,
        is_repeated: true,
    }
}

fn report(transfer: Transfer, at_ms: u64, i: u32, report: ProgressResponse) -> Transfer {
    let answer = Input::Progress {
        node: node(i),
        attempt: 1,
        progress: Box::new(report),
    };
    transfer.step(Duration::from_millis(at_ms), answer).0
}

fn ended(transfer: Transfer, i: u32) -> Transfer {
    let answer = called(node(i), Call::WatchProgress);
    transfer.step(Duration::from_millis(700), answer).0
}

fn verified(chunks_sent: u64) -> ProgressResponse {
    ProgressResponse {
        state: State::Verified.into(),
        bytes: BYTES,
        digest: "5f3c09a1".repeat(8),
        chunks_sent,
        chunks_resent: chunks_sent / 100,
        link: "udp".into(),
        link_reason: "the only link of this build".into(),
        ..ProgressResponse::default()
    }
}

fn summary(transfer: &Transfer, faults: &[(Fault, Happened)]) -> Summary {
    let spines = vec![50_000_000, 40_000_000, 0, 10_000_000];
    let ended = Duration::from_millis(750);
    Summary::new(
        transfer,
        ended,
        "model".into(),
        |name| Some(format!("/roots/{name}")),
        spines,
        faults,
        "",
    )
}

fn fault(kind: FaultKind, index: usize, ms: u64) -> Fault {
    Fault {
        kind,
        index,
        at: Duration::from_millis(ms),
    }
}

#[test]
fn a_transfer_that_worked() {
    let mut transfer = running();
    transfer = report(transfer, 450, 1, verified(1_500));
    transfer = report(transfer, 600, 2, verified(0));
    transfer = report(transfer, 650, 0, verified(1_500));
    transfer = (0..3).fold(transfer, ended);
    assert!(transfer.is_complete());
    let happened = Happened::At {
        after: Duration::from_millis(201),
        bytes: 45_000_000,
    };
    let summary = summary(
        &transfer,
        &[(fault(FaultKind::FailSpine, 2, 200), happened)],
    );
    assert!(summary.missed().is_empty());
    insta::assert_snapshot!("worked", summary);
    insta::assert_snapshot!(
        "worked_json",
        serde_json::to_string_pretty(&summary.report).unwrap()
    );
}

#[test]
fn a_transfer_that_failed_at_one_node_and_was_over_before_a_fault() {
    let mut transfer = running();
    transfer = report(transfer, 450, 1, verified(1_500));
    let full = Failure {
        node: node(2),
        reason: "DiskFull".into(),
        message: "node node2: root data has 1 MB left: free some space".into(),
        retriable: false,
    };
    let failed = ProgressResponse {
        state: State::Failed.into(),
        reason: full.reason,
        message: full.message,
        bytes: 1_000_000,
        ..ProgressResponse::default()
    };
    transfer = report(transfer, 500, 2, failed);
    for i in 0..3 {
        transfer = transfer
            .step(Duration::from_millis(700), called(node(i), cancel()))
            .0;
    }
    transfer = transfer
        .step(Duration::from_millis(700), called(node(2), cancel()))
        .0;
    assert!(transfer.is_over() && !transfer.is_complete());
    let summary = summary(
        &transfer,
        &[(fault(FaultKind::KillNode, 1, 2000), Happened::No)],
    );
    insta::assert_snapshot!("failed", summary);
    insta::assert_snapshot!(
        "failed_json",
        serde_json::to_string_pretty(&summary.report).unwrap()
    );
    insta::assert_snapshot!("missed", summary.missed().join("\n"));
}
