//! What becomes of the copies of a job that was stopped.

use super::*;

fn copy(i: u32) -> Removal {
    Removal {
        place: Place {
            node: name(i),
            root: "data".into(),
            path: "x".into(),
        },
        fingerprint: "f1".into(),
    }
}

/// node1 and node2 have copies, and all nodes have been told.
fn parting() -> World {
    let mut world = World::chain(3);
    let copies = vec![copy(1), copy(2)];
    world.answer(Answer::Stop {
        discard: true,
        copies: copies.clone(),
    });
    assert_eq!(world.job.parting(), Some(&*copies));
    world.log.clear();
    world
}

#[test]
fn nothing_goes_before_that_is_said() {
    let mut world = World::chain(3);
    // It is not asked yet.
    world.answer(Answer::Remove(vec![copy(1)]));
    assert_eq!(world.job.end(), None);
    let mut world = parting();
    assert_eq!(world.job.wake_at(), None);
    world.answer(Answer::Stop {
        discard: true,
        copies: vec![copy(1)],
    });
    assert!(world.job.parting().is_some() && world.log.is_empty());
}

#[test]
fn what_is_said_goes_and_the_rest_stays() {
    let withdrawn = Some(End::Withdrawn { discard: true });
    let mut world = parting();
    world.answer(Answer::Remove(vec![copy(2)]));
    assert_eq!(world.log, ["remove node2"]);
    assert_eq!(world.job.end(), withdrawn);
    assert!(world.job.has_parted());
    let mut world = parting();
    world.answer(Answer::Remove(Vec::new()));
    assert!(world.log.is_empty() && world.job.has_parted());
    assert_eq!(world.job.end(), withdrawn);
}

#[test]
fn a_job_without_copies_is_asked_nothing() {
    let mut world = World::chain(3);
    world.answer(stop(true));
    assert_eq!(world.job.end(), Some(End::Withdrawn { discard: true }));
    assert!(!world.job.has_parted());
}

#[test]
fn a_job_that_was_never_begun_parts_at_once() {
    let world = World::chain(2);
    let spec = world.job.spec().clone();
    let (job, commands) = Job::withdraw(spec, true, vec![copy(1)]);
    assert!(commands.is_empty() && job.parting().is_some());
}
