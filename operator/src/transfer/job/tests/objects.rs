//! The bytes come from a store: one destination reads and passes on.

use super::*;
use crate::transfer::Object;

/// The object reaches all of them; node0 is the first to read it.
fn reading(nodes: u32, dead: Option<u32>) -> World {
    let spec = World::chain(nodes).job.spec().clone();
    let mut destinations = vec![spec.source.clone()];
    destinations.extend(spec.destinations.clone());
    let object = Object {
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
        "prepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
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
    assert_eq!(
        world.log(),
        "prepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
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
        "prepare node1 #2\nprepare node2 #2\nstart node2 #2 -> []\nstart node1 #2 -> [node2]"
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
        "stat\nprepare node2 #2\nstart node2 #2 -> []\nstart node0 #2 -> [node2]"
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
    assert_eq!(world.log(), "stat", "of node0, which does not answer");
    world.dead = ["node0".to_owned(), "node1".to_owned()].into();
    world.rests();
    assert_eq!(world.log(), "stat", "of node1, which has gone as well");
    world.rests();
    assert_eq!(world.log(), "stat\nprepare node2 #2\nstart node2 #2 -> []");
    assert_eq!(reader(&world), Some("node2"));
    assert_eq!(world.job.spec().expect, "d1", "the same bytes, or none");
    world.verifies(2);
    world.ends(2, Ok(()));
    assert!(world.job.is_complete());
}
