//! A Cancel does not reach its node.

use super::*;
use crate::refusal::UNKNOWN;

fn unreachable() -> (Duration, &'static str) {
    (Duration::ZERO, UNREACHABLE)
}

#[test]
fn a_job_that_ends_asks_a_node_out_of_reach_until_it_confirms() {
    let mut world = World::chain(3);
    world.dead.insert(name(1));
    world.log();
    world.answer(stop(true));
    assert_eq!(
        world.log(),
        "discard node0 #1\ndiscard node1 #1\ndiscard node2 #1"
    );
    assert_eq!(world.rests(), Tempo::PERSON.backoff);
    assert_eq!(world.log(), "discard node1 #1");
    // What is asked again is not asked in between.
    world.answer(Answer::Woken);
    assert_eq!(
        (world.log(), world.job.course()),
        (String::new(), Course::Ending)
    );
    world.dead.clear();
    assert_eq!(world.rests(), 2 * Tempo::PERSON.backoff);
    assert_eq!(world.log(), "discard node1 #1");
    assert_eq!(world.job.end(), Some(End::Withdrawn(Cleanup::Partials)));
    assert_eq!(world.job.untold().count(), 0);
}

#[test]
fn a_job_that_ends_gives_a_node_up_that_stays_out_of_reach() {
    let mut world = World::chain(3);
    world.dead.insert(name(1));
    world.answer(stop(true));
    let rests: Vec<Duration> = std::iter::from_fn(|| {
        let is_over = world.job.is_over();
        (!is_over).then(|| world.rests())
    })
    .collect();
    let millis: Vec<u128> = rests.iter().map(Duration::as_millis).collect();
    assert_eq!(millis, [250, 500, 1000]);
    assert_eq!(world.job.untold().collect::<Vec<_>>(), ["node1"]);
}

#[test]
fn a_node_without_an_agent_and_one_that_will_not_are_asked_once() {
    for (reason, retriable) in [(UNKNOWN, true), ("StaleEpoch", false)] {
        let mut world = World::chain(2);
        world.dead.insert(name(1));
        world.death.1 = reason;
        world.is_retriable = retriable;
        world.answer(stop(true));
        assert!(world.job.is_over(), "{reason}");
    }
    // Nor one that this job has never reached, unless an earlier operator may have.
    let mut world = World::without(3, Strategy::Chain, 2);
    world.answer(stop(true));
    assert!(world.job.is_over());
    let mandate = Mandate {
        attempts_before: 1,
        ..Mandate::ONLY
    };
    let spec = Spec {
        mandate,
        ..world.job.spec().clone()
    };
    let (job, commands) = Job::withdraw(spec, Cleanup::Partials);
    let ended = commands.into_iter().fold(job, |job, command| {
        let Command::Cancel { node, .. } = command else {
            panic!("{command:?}");
        };
        let result = match &*node {
            "node2" => Err(refusal(&node, NEVER_REACHED, true)),
            _ => Ok(()),
        };
        let attempt = 1;
        let answer = Answer::Cancelled {
            node,
            attempt,
            result,
        };
        job.step(Duration::ZERO, answer).0
    });
    assert_eq!(ended.wake_at(), Some(Tempo::PERSON.backoff));
}

#[test]
fn a_relay_that_went_away_is_told_with_the_next_attempt_that_the_one_before_has_ended() {
    let mut world = World::chain(3);
    world.verifies(1);
    // It has its copy, and serves nobody any more.
    world.dies(1);
    world.log();
    world.rests();
    let log = world.log();
    assert!(
        log.starts_with("stat\nprepare node2 #2\ncancel node1 #2\nstart node2 #2"),
        "{log}"
    );
    // It has not heard of that either.
    world.reports(0, |report| report.state = State::Verified.into());
    world.ends(2, Err(refusal("node2", "PeerStalled", true)));
    world.dead.clear();
    world.log();
    world.rests();
    assert!(world.log().contains("cancel node1 #3"));
    assert!(world.job.unheard.is_empty());
}

#[test]
fn what_failed_while_others_went_on_is_asked_again_to_leave_nothing() {
    let mut world = World::chain(3);
    world.reports(2, |report| {
        report.state = State::Failed.into();
        report.reason = "DiskFull".into();
    });
    world.death = unreachable();
    world.dead.insert(name(2));
    world.all_verify(0..2);
    assert!(world.log().ends_with("discard node2 #1"));
    assert!(!world.job.is_over());
    world.dead.clear();
    world.rests();
    assert_eq!(world.log(), "discard node2 #1");
    assert_eq!(world.job.end(), Some(End::Failed));
}
