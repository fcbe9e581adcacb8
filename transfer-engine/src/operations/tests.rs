//! Operations in virtual time.

use super::*;
use crate::outcome::Completion;

const SECOND: Duration = Duration::from_secs(1);

fn connection(id: u32) -> Arc<Connection> {
    Arc::new(Connection {
        engine: 0,
        id: ConnectionId(id),
        path: format!("path {id}"),
    })
}

fn peer() -> Part {
    let peer = EngineAddress {
        endpoints: ["127.0.0.1:1".parse().unwrap()].into(),
        certificate: [0; 9].into(),
        token: [0; 16],
    };
    Part {
        peer: Some(peer),
        place: Place::Waiting,
    }
}

/// An operation whose deadline is the fifth second.
fn begin(operations: &mut Operations, parts: usize) -> PartId {
    let parts = (0..parts).map(|_| peer()).collect();
    let state = State::new(Completion::None);
    let begun = operations.begin(state, parts, 5 * SECOND);
    begun.expect("it is open").0
}

fn outcome(ended: Option<Ended>) -> Outcome {
    ended.expect("it has ended").outcome
}

fn goes_on(ended: &Option<Ended>) -> bool {
    ended.is_none()
}

#[test]
fn an_operation_ends_with_its_last_part_whatever_their_order() {
    let mut operations = Operations::default();
    let id = begin(&mut operations, 3);
    let other = begin(&mut operations, 1);
    for part in [id + 2, id] {
        assert!(operations.post(part, &connection(1)));
        assert!(goes_on(&operations.end(part, PartEnd::Done)));
        // A second report of the same end is nobody's.
        assert!(goes_on(&operations.end(part, PartEnd::Done)));
    }
    assert_eq!(
        outcome(operations.end(id + 1, PartEnd::Done)),
        Outcome::Done
    );
    assert!(goes_on(&operations.end(id + 1, PartEnd::Done)));
    assert_eq!(outcome(operations.end(other, PartEnd::Done)), Outcome::Done);
    assert_eq!((operations.len(), operations.deadlines.len()), (0, 0));
}

#[test]
fn the_first_part_that_fails_is_named_when_all_have_ended() {
    let mut operations = Operations::default();
    let id = begin(&mut operations, 3);
    for (part, id) in (id..).zip([1, 2, 2]) {
        operations.post(part, &connection(id));
    }
    let on = (0, ConnectionId(2));
    assert!(operations.fail(Some(on), &Cause::PeerEnded).is_empty());
    let Outcome::Failed(failure) = outcome(operations.end(id, PartEnd::Done)) else {
        panic!("it has failed");
    };
    assert_eq!(
        failure.to_string(),
        format!(
            "127.0.0.1:1#00000000, stage Transfer, path path 2: {}",
            Cause::PeerEnded
        )
    );
}

#[test]
fn a_deadline_passes_at_its_moment_and_what_is_posted_has_time_to_be_cancelled() {
    let mut operations = Operations::default();
    let id = begin(&mut operations, 3);
    operations.post(id + 1, &connection(1));
    let just_before = 5 * SECOND - Duration::from_nanos(1);
    assert!(matches!(operations.poll(just_before), Deadline::Until(at) if at == 5 * SECOND));
    assert!(matches!(operations.poll(5 * SECOND), Deadline::Passed(it) if it == id));
    let stop = operations.stop(id, &Cause::DeadlinePassed, 6 * SECOND);
    assert_eq!((stop.posted.len(), stop.posted[0].0), (1, id + 1));
    assert!(stop.ended.is_none() && operations.is_stopped(id + 1));
    // What waited is not posted any more.
    assert!(!operations.post(id, &connection(1)));
    assert!(matches!(operations.poll(5 * SECOND), Deadline::Until(_)));
    let Outcome::Reusable(failure) = outcome(operations.end(id + 1, PartEnd::Cancelled)) else {
        panic!("the cancel is confirmed");
    };
    assert_eq!(
        (failure.stage, failure.cause),
        (Stage::Transfer, Cause::DeadlinePassed)
    );
    assert_eq!((operations.len(), operations.deadlines.len()), (0, 0));
}

#[test]
fn a_stop_that_nobody_confirms_is_never_called_reusable() {
    let mut operations = Operations::default();
    let id = begin(&mut operations, 2);
    operations.post(id, &connection(1));
    operations.stop(id, &Cause::Cancelled, 2 * SECOND);
    let Deadline::Ended(ended) = operations.poll(2 * SECOND) else {
        panic!("the time to confirm is over");
    };
    assert!(
        matches!(ended.outcome, Outcome::Unconfirmed(failure) if failure.cause == Cause::Cancelled)
    );
    // The end of the connection confirms nothing either.
    let id = begin(&mut operations, 1);
    operations.post(id, &connection(1));
    operations.stop(id, &Cause::Cancelled, 2 * SECOND);
    let ended = operations.fail(Some((0, ConnectionId(1))), &Cause::PeerEnded);
    assert!(matches!(ended[0].outcome, Outcome::Unconfirmed(_)));
    // What was done before the stop came is done.
    let id = begin(&mut operations, 1);
    operations.post(id, &connection(1));
    operations.stop(id, &Cause::Cancelled, 2 * SECOND);
    assert_eq!(outcome(operations.end(id, PartEnd::Done)), Outcome::Done);
}

#[test]
fn what_waits_is_stopped_at_once_and_says_for_what() {
    let mut operations = Operations::default();
    let id = begin(&mut operations, 2);
    let stop = operations.stop(id, &Cause::Cancelled, SECOND);
    let Some(Outcome::Reusable(failure)) = stop.ended.map(|ended| ended.outcome) else {
        panic!("nothing was posted");
    };
    assert_eq!(failure.stage, Stage::Connect);
    let state = State::new(Completion::None);
    let count = Part {
        peer: None,
        place: Place::Expected(4),
    };
    let begun = operations.begin(state, vec![count], SECOND);
    let (id, wakes) = begun.expect("it is open");
    assert!(!wakes, "the thread has not slept yet");
    let stop = operations.stop(id, &Cause::DeadlinePassed, 2 * SECOND);
    assert_eq!(stop.expected, Some(4));
    let Some(Outcome::Reusable(failure)) = stop.ended.map(|ended| ended.outcome) else {
        panic!("nothing was posted");
    };
    assert_eq!((failure.stage, failure.peer), (Stage::Count, None));
    assert_eq!(operations.len(), 0);
}
