//! A Cancel does not reach its node.

use super::*;
use crate::failure::NODE_UNKNOWN;

#[test]
fn a_job_that_is_cancelled_names_the_nodes_that_have_not_confirmed_it() {
    let mut harness = Harness::chain(3);
    harness.dead.insert(name(1));
    harness.log();
    harness.answer(stop(true));
    assert_eq!(
        harness.log(),
        "cancel-partials node0 #1\ncancel-partials node1 #1\ncancel-partials node2 #1"
    );
    assert_eq!(harness.repeated, 3);
    assert_eq!(
        harness.transfer.end(),
        Some(End::Cancelled(Cleanup::Partials))
    );
    assert_eq!(
        harness.transfer.unconfirmed().collect::<Vec<_>>(),
        ["node1"]
    );
}

#[test]
fn a_job_that_is_cancelled_names_the_nodes_that_cannot_remove_its_files() {
    let mut harness = Harness::chain(2);
    harness.dead.insert(name(1));
    (harness.death.1, harness.is_retriable) = ("PermissionDenied", false);
    harness.answer(stop(true));
    let unconfirmed: Vec<&str> = harness.transfer.unconfirmed().collect();
    assert_eq!(unconfirmed, ["node1"]);
}

#[test]
fn a_node_without_an_agent_and_one_that_refuses_have_nothing_to_confirm() {
    let cases = [
        (NODE_UNKNOWN, true),
        ("StaleEpoch", false),
        (NEVER_REACHED, true),
    ];
    for (reason, retriable) in cases {
        let refused = failure("node1", reason, retriable);
        assert_eq!(refused.is_worth_repeating(), reason == NEVER_REACHED);
    }
    let mut harness = Harness::chain(2);
    harness.dead.insert(name(1));
    (harness.death.1, harness.is_retriable) = ("StaleEpoch", false);
    harness.answer(stop(true));
    assert_eq!(harness.transfer.unconfirmed().count(), 0);
    assert!(failure("node1", UNREACHABLE, true).is_worth_repeating());
}

#[test]
fn destinations_that_failed_while_others_went_on_are_told_to_keep_nothing() {
    let mut harness = Harness::chain(3);
    harness.reports(2, |progress| {
        progress.state = State::Failed.into();
        progress.reason = "DiskFull".into();
    });
    harness.all_verify(0..2);
    assert!(harness.log().ends_with("cancel-partials node2 #1"));
    assert_eq!(harness.repeated, 1);
    assert_eq!(harness.transfer.end(), Some(End::Failed));
}

#[test]
fn a_destination_that_was_reached_keeps_no_partial_files_when_the_source_becomes_unknown() {
    let mut harness = Harness::chain(3);
    harness.death.1 = NODE_UNKNOWN;
    harness.dies(0);
    while !harness.transfer.is_over() {
        harness.wait_out_backoff();
    }
    assert_eq!(harness.transfer.end(), Some(End::Failed));
    let log = harness.log();
    for node in 1..3 {
        assert!(
            log.contains(&format!("cancel-partials node{node} #")),
            "{log}"
        );
    }
}

#[test]
fn the_answer_of_an_earlier_cancel_is_not_taken_for_that_of_the_end() {
    let (mut transfer, _) = Harness::chain(2)
        .transfer
        .step(Duration::ZERO, Input::Cancel(Cleanup::Copies));
    let earlier = Call::Cancel {
        cleanup: Cleanup::Nothing,
        is_repeated: false,
    };
    for (call, is_over) in [(earlier, false), (cancel(Cleanup::Copies), true)] {
        for node in 0..2 {
            let answer = called(&name(node), 1, call.clone(), Ok(()));
            let _ = transfer.advance(Duration::ZERO, answer);
        }
        assert_eq!(transfer.is_over(), is_over);
    }
}

#[test]
fn a_healthy_node_that_ends_its_part_as_told_is_not_called_stopped() {
    let mut harness = Harness::chain(3);
    let lost = failure(&name(0), UNREACHABLE, true);
    // The answers to the Cancels are still on their way when the streams end.
    let take = |transfer: Transfer, answer| transfer.step(Duration::ZERO, answer).0;
    let ended = |node, result| called(&name(node), 1, Call::WatchProgress, result);
    let mut transfer = take(harness.transfer.clone(), ended(0, Err(lost)));
    for node in [1, 2] {
        transfer = take(transfer, ended(node, Ok(())));
    }
    for node in [0, 1, 2] {
        let told = Call::Cancel {
            cleanup: Cleanup::Nothing,
            is_repeated: false,
        };
        transfer = take(transfer, called(&name(node), 1, told, Ok(())));
    }
    harness.transfer = transfer;
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("SenderLost", "SenderLost")
    );
    // One that ends its stream untold has been stopped.
    let mut harness = Harness::chain(2);
    harness.ends(1, Ok(()));
    assert_eq!(harness.reason(1), "AgentStopped");
}

#[test]
fn a_successor_whose_job_fails_before_its_first_attempt_leaves_no_partial_files_of_earlier_ones() {
    let leader = LeaderContext {
        attempts_before: 1,
        ..LeaderContext::ONLY
    };
    let spec = Harness::chain(3).transfer.spec().clone();
    let (transfer, _) = Transfer::begin(Spec { leader, ..spec });
    let gone = failure("node0", "SourceNotFound", false);
    let (transfer, commands) = transfer.step(Duration::ZERO, Input::Stat(Err(gone)));
    let cancelled = |node: u32| Command::Call {
        node: name(node),
        attempt: 1,
        call: Call::Cancel {
            cleanup: Cleanup::Partials,
            is_repeated: true,
        },
    };
    assert_eq!(commands, [cancelled(1), cancelled(2)]);
    assert_eq!(transfer.phase(), TransferPhase::Ending);
}
