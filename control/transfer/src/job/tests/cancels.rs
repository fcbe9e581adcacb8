//! A Cancel does not reach its node.

use super::*;
use crate::failure::UNKNOWN;

#[test]
fn a_job_that_is_cancelled_names_the_nodes_that_have_not_confirmed_it() {
    let mut world = World::chain(3);
    world.dead.insert(name(1));
    world.log();
    world.answer(stop(true));
    assert_eq!(
        world.log(),
        "discard node0 #1\ndiscard node1 #1\ndiscard node2 #1"
    );
    assert_eq!(world.repeated, 3);
    assert_eq!(world.job.end(), Some(End::Cancelled(Cleanup::Partials)));
    assert_eq!(world.job.unconfirmed().collect::<Vec<_>>(), ["node1"]);
}

#[test]
fn a_node_without_an_agent_and_one_that_refuses_have_nothing_to_confirm() {
    let cases = [
        (UNKNOWN, true),
        ("StaleEpoch", false),
        (NEVER_REACHED, true),
    ];
    for (reason, retriable) in cases {
        let refused = failure("node1", reason, retriable);
        assert_eq!(refused.is_worth_repeating(), reason == NEVER_REACHED);
    }
    let mut world = World::chain(2);
    world.dead.insert(name(1));
    (world.death.1, world.is_retriable) = ("StaleEpoch", false);
    world.answer(stop(true));
    assert_eq!(world.job.unconfirmed().count(), 0);
    assert!(failure("node1", UNREACHABLE, true).is_worth_repeating());
}

#[test]
fn destinations_that_failed_while_others_went_on_are_told_to_keep_nothing() {
    let mut world = World::chain(3);
    world.reports(2, |report| {
        report.state = State::Failed.into();
        report.reason = "DiskFull".into();
    });
    world.all_verify(0..2);
    assert!(world.log().ends_with("discard node2 #1"));
    assert_eq!(world.repeated, 1);
    assert_eq!(world.job.end(), Some(End::Failed));
}

#[test]
fn a_destination_that_was_reached_keeps_no_partial_files_when_the_source_becomes_unknown() {
    let mut world = World::chain(3);
    world.death.1 = UNKNOWN;
    world.dies(0);
    while !world.job.is_over() {
        world.rests();
    }
    assert_eq!(world.job.end(), Some(End::Failed));
    let log = world.log();
    for node in 1..3 {
        assert!(log.contains(&format!("discard node{node} #")), "{log}");
    }
}

#[test]
fn the_answer_of_an_earlier_cancel_is_not_taken_for_that_of_the_end() {
    let (mut job, _) = World::chain(2)
        .job
        .step(Duration::ZERO, Input::Cancel(Cleanup::Copies));
    let earlier = Call::Cancel {
        cleanup: Cleanup::Nothing,
        is_repeated: false,
    };
    for (call, is_over) in [(earlier, false), (cancel(Cleanup::Copies), true)] {
        for node in 0..2 {
            let answer = called(&name(node), 1, call.clone(), Ok(()));
            let _ = job.advance(Duration::ZERO, answer);
        }
        assert_eq!(job.is_over(), is_over);
    }
}
