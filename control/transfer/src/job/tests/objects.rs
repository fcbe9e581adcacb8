//! The bytes come from a store: one destination reads and passes on.

use super::*;
use crate::object::StoreObject;

/// The object reaches all of them; node0 is the first to read it.
fn reading(nodes: u32, dead: Option<u32>) -> World {
    let spec = World::chain(nodes).job.spec().clone();
    let mut destinations = vec![spec.source.clone()];
    destinations.extend(spec.destinations.clone());
    let object = StoreObject {
        url: "s3://models/x".into(),
        etag: String::new(),
        bytes: None,
        secret: None,
        readers: (0..nodes).map(name).collect(),
    };
    let spec = Spec {
        destinations,
        object: Some(object),
        ..spec
    };
    World::begin(spec, dead, (Duration::ZERO, UNREACHABLE))
}

fn reader(world: &World) -> Option<&str> {
    let spec = world.job.spec();
    spec.object.as_ref().map(|_| spec.source.node.as_str())
}

#[test]
fn the_reader_is_prepared_like_the_others_and_started_last() {
    let mut world = reading(3, None);
    assert_eq!(
        world.log(),
        "stat\nprepare node0 #1\nprepare node1 #1\nprepare node2 #1\n\
         start node2 #1 -> []\nstart node1 #1 -> [node2]\nstart node0 #1 -> [node1]"
    );
    world.verifies(1);
    world.verifies(2);
    assert!(!world.job.is_over(), "the reader's own copy is one of them");
    world.verifies(0);
    (0..3).for_each(|node| world.ends(node, Ok(())));
    assert!(world.job.is_complete());
    assert_eq!((world.job.digest(), world.reason(0)), ("d1", "Verified"));
    assert_eq!(world.job.bytes_moved(), 3 * BYTES);
}

#[test]
fn one_that_is_the_only_destination_reads_for_itself() {
    let mut world = reading(1, None);
    assert_eq!(world.log(), "stat\nprepare node0 #1\nstart node0 #1 -> []");
    world.all_verify(0..1);
    assert!(world.job.is_complete());
}

#[test]
fn the_same_one_reads_again_after_it_has_come_back() {
    let mut world = reading(3, None);
    world.reports(0, |report| report.bytes = 40);
    world.dies(0);
    world.log();
    world.dead.clear();
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node1 #2 -> [node2]\nstart node0 #2 -> [node1]"
    );
    world.all_verify(0..3);
    assert!(world.job.is_complete());
}

#[test]
fn where_the_reader_does_not_come_back_the_next_one_reads() {
    let mut world = reading(3, None);
    world.dies(0);
    world.log();
    world.rests();
    assert_eq!(world.log(), "stat", "of node0, which does not answer");
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node1 #2 -> [node2]"
    );
    assert_eq!(reader(&world), Some("node1"));
}

#[test]
fn a_reader_that_cannot_even_be_asked_is_passed_over() {
    let mut world = reading(2, Some(0));
    assert_eq!((&*world.log(), reader(&world)), ("stat", Some("node1")));
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node0 #1\nprepare node1 #1\nstart node1 #1 -> []"
    );
}

fn fails(world: &mut World, node: u32, reason: &str) {
    world.reports(node, |report| {
        report.state = State::Failed.into();
        report.reason = reason.into();
        report.retriable = reason == "ObjectUnavailable";
        report.message = format!("node {node}: {reason}");
    });
    world.ends(node, Ok(()));
}

#[test]
fn a_full_disk_at_the_reader_is_its_own_and_another_one_reads() {
    let mut world = reading(3, None);
    fails(&mut world, 0, "DiskFull");
    world.log();
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node1 #2\nprepare node2 #2\nstart node2 #2 -> []\nstart node1 #2 -> [node2]"
    );
    assert_eq!(world.reason(0), "DiskFull");
    for node in [1, 2] {
        world.verifies(node);
        world.ends(node, Ok(()));
    }
    assert!(world.job.is_over() && !world.job.is_complete());
    assert_eq!((world.reason(1), world.reason(2)), ("Verified", "Verified"));
}

#[test]
fn what_the_store_refuses_it_would_refuse_to_everybody() {
    let mut world = reading(3, None);
    fails(&mut world, 0, "ObjectDenied");
    assert!(world.job.is_over());
    for node in 0..3 {
        assert_eq!(world.reason(node), "ObjectDenied", "{node}");
    }
}

#[test]
fn once_there_is_a_verified_copy_nobody_asks_the_store_again() {
    let mut world = reading(3, None);
    world.verifies(0);
    world.verifies(1);
    world.dies(2);
    (0..2).for_each(|node| world.ends(node, Ok(())));
    world.log();
    world.dead.clear();
    world.rests();
    assert_eq!(
        world.log(),
        "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node0 #2 -> [node2]"
    );
    let spec = world.job.spec();
    assert!(spec.object.is_none(), "its files are sent");
    // They are sent as what was verified, or not at all.
    assert_eq!((&*spec.source.node, &*spec.expect), ("node0", "d1"));
    world.verifies(0);
    world.verifies(2);
    world.ends(0, Ok(()));
    world.ends(2, Ok(()));
    assert!(world.job.is_complete());
}

#[test]
fn a_verified_copy_whose_node_has_gone_is_passed_over_and_at_last_the_store_is_asked_again() {
    let mut world = reading(3, None);
    world.verifies(0);
    world.verifies(1);
    world.dies(2);
    (0..2).for_each(|node| world.ends(node, Ok(())));
    world.log();
    world.dead = ["node0".to_owned(), "node2".to_owned()].into();
    world.rests();
    assert_eq!(
        world.log(),
        "stat of the named",
        "of node0, which does not answer"
    );
    world.dead = ["node0".to_owned(), "node1".to_owned()].into();
    world.rests();
    assert_eq!(
        world.log(),
        "stat of the named",
        "of node1, which has gone as well"
    );
    world.rests();
    assert_eq!(world.log(), "stat\nprepare node2 #2\nstart node2 #2 -> []");
    assert_eq!(reader(&world), Some("node2"));
    assert_eq!(world.job.spec().expect, "d1", "the same bytes, or none");
    world.verifies(2);
    world.ends(2, Ok(()));
    assert!(world.job.is_complete());
}

/// node0 and node1 have a verified copy, and node2 comes back after a fault of its own.
fn with_a_late_one() -> World {
    let mut world = reading(3, None);
    world.verifies(0);
    world.verifies(1);
    world.dies(2);
    (0..2).for_each(|node| world.ends(node, Ok(())));
    world.dead.clear();
    world.log();
    world
}

/// Node 2 gets what `sender` sends.
fn node2_verifies(world: &mut World, sender: u32) {
    world.verifies(sender);
    world.verifies(2);
    for node in [sender, 2] {
        world.ends(node, Ok(()));
    }
    assert!(world.job.is_complete(), "{}", world.reason(2));
}

#[test]
fn of_what_lies_where_a_copy_is_only_that_is_sent_which_the_store_has() {
    let mut world = with_a_late_one();
    // Of its own files that node has the times, so the state is another.
    let there = StatResponse {
        state: vec![2; 32],
        ..found()
    };
    world.listings.insert(name(0), Ok(there));
    world.rests();
    assert_eq!(
        world.log(),
        "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node0 #2 -> [node2]"
    );
    assert_eq!(world.job.listing().unwrap().holder, "node0");
    node2_verifies(&mut world, 0);
}

#[test]
fn a_copy_that_is_not_what_it_was_is_passed_over_whatever_its_node_says_of_it() {
    let gone = Err(failure("node0", "SourceMissing", false));
    let link = Err(failure("node0", "SymlinkRefused", false));
    let other = Err(failure("node0", "SourceChanged", false));
    let lost = Err(failure("node0", "ManifestUnknown", true));
    for listed in [gone, link, other, lost] {
        let mut world = with_a_late_one();
        world.listings.insert(name(0), listed);
        world.rests();
        assert_eq!(world.log(), "stat of the named");
        assert_eq!(world.rests(), Duration::ZERO, "others are there");
        assert_eq!(
            world.log(),
            "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node1 #2 -> [node2]"
        );
        node2_verifies(&mut world, 1);
    }
}

#[test]
fn a_copy_that_cannot_be_sent_or_has_other_bytes_is_passed_over_and_at_last_the_store_is_read() {
    let mut world = with_a_late_one();
    world.rests();
    assert_eq!(world.job.spec().source.node, "node0");
    // Other bytes of the same size: who gets them finds that out.
    fails(&mut world, 2, "ExpectMismatch");
    assert!(!world.job.is_over());
    world.ends(0, Ok(()));
    assert_eq!(world.reason(2), "ExpectMismatch");
    world.rests();
    assert_eq!(world.job.spec().source.node, "node1");
    fails(&mut world, 1, "SourceChanged");
    assert!(!world.job.is_over());
    world.ends(2, Ok(()));
    world.log();
    world.rests();
    assert_eq!(world.log(), "stat\nprepare node2 #4\nstart node2 #4 -> []");
    assert_eq!(reader(&world), Some("node2"));
    // What the store has now is something else: that is nobody's fault.
    fails(&mut world, 2, "ExpectMismatch");
    assert!(world.job.is_over());
    assert_eq!(world.reason(2), "ExpectMismatch");
}

#[test]
fn a_late_one_that_never_gets_its_copy_is_given_up_by_the_backoff_limit() {
    let mut world = with_a_late_one();
    world.dead.insert(name(2));
    for _ in 0..20 {
        if world.job.is_over() {
            break;
        }
        world.rests();
    }
    assert!(world.job.is_over());
    assert_eq!(world.reason(2), UNREACHABLE);
}

#[test]
fn a_store_that_does_not_serve_one_reader_is_asked_by_the_others_before_the_job_fails() {
    let mut world = reading(3, None);
    let mut readers = Vec::new();
    while !world.job.is_over() {
        let node = world.job.spec().source.node.clone();
        let number = node.trim_start_matches("node").parse().unwrap();
        readers.push(number);
        fails(&mut world, number, "ObjectUnavailable");
        (0..3).for_each(|node| world.ends(node, Ok(())));
        if !world.job.is_over() {
            world.rests();
        }
    }
    assert_eq!(readers[..3], [0, 1, 2]);
    // Once each has had its turn, the backoff limit of 3 counts.
    assert_eq!(readers.len(), 6, "{readers:?}");

    // Another one's way to the store is good: all get it.
    let mut world = reading(3, None);
    fails(&mut world, 0, "StoreForbidden");
    (1..3).for_each(|node| world.ends(node, Ok(())));
    world.log();
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node0 #2 -> [node2]\nstart node1 #2 -> [node0]"
    );
    world.all_verify(0..3);
    assert!(world.job.is_complete());
}

#[test]
fn a_reader_that_has_got_something_reads_on() {
    let mut world = reading(2, None);
    world.reports(0, |report| report.bytes = 40);
    fails(&mut world, 0, "ObjectUnavailable");
    world.ends(1, Ok(()));
    world.rests();
    assert_eq!(reader(&world), Some("node0"));
}

#[test]
fn a_store_that_cannot_be_listed_from_one_node_is_listed_from_the_next_and_at_last_from_none() {
    let spec = reading(3, None).job.spec().clone();
    let start = |listings: BTreeMap<String, Result<StatResponse, Failure>>| {
        let (job, commands) = Job::begin(spec.clone());
        let mut world = World {
            job,
            listings,
            pending: commands.into(),
            ..reading(1, None)
        };
        world.log();
        world.obey();
        world
    };
    let refused = |node: u32, reason| (name(node), Err(failure(&name(node), reason, false)));
    let mut world = start([refused(0, "StoreForbidden")].into());
    assert_eq!((&*world.log(), reader(&world)), ("stat", Some("node1")));
    assert_eq!(world.rests(), Duration::ZERO);
    assert!(world.log().starts_with("stat\nprepare node0 #1"));
    assert_eq!(reader(&world), Some("node1"));

    let all = (0..3).map(|node| refused(node, "StoreForbidden"));
    let mut world = start(all.collect());
    world.rests();
    world.rests();
    assert!(world.job.is_over());
    assert_eq!(
        (&*world.log(), world.reason(0)),
        ("stat\nstat\nstat", "StoreForbidden")
    );
    // A key is everybody's.
    let world = start([refused(0, "ObjectDenied")].into());
    assert!(world.job.is_over());
}
