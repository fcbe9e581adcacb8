//! The bytes come from a store: one destination reads and passes on.

use super::*;
use crate::object::StoreObject;

/// The object reaches all of them; node0 is the first to read it.
fn reading(nodes: u32, dead: Option<u32>) -> Harness {
    let spec = Harness::chain(nodes).transfer.spec().clone();
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
    Harness::begin(spec, dead, (Duration::ZERO, UNREACHABLE))
}

fn reader(harness: &Harness) -> Option<&str> {
    let spec = harness.transfer.spec();
    spec.object.as_ref().map(|_| spec.source.node.as_str())
}

#[test]
fn the_reader_is_prepared_like_the_others_and_started_last() {
    let mut harness = reading(3, None);
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #1\nprepare node1 #1\nprepare node2 #1\n\
         start node2 #1 -> []\nstart node1 #1 -> [node2]\nstart node0 #1 -> [node1]"
    );
    harness.verifies(1);
    harness.verifies(2);
    assert!(
        !harness.transfer.is_over(),
        "the reader's own copy is one of them"
    );
    harness.verifies(0);
    (0..3).for_each(|node| harness.ends(node, Ok(())));
    assert!(harness.transfer.is_complete());
    assert_eq!(
        (harness.transfer.digest(), harness.reason(0)),
        ("d1", "Verified")
    );
    assert_eq!(harness.transfer.bytes_verified(), 3 * BYTES);
}

#[test]
fn one_that_is_the_only_destination_reads_for_itself() {
    let mut harness = reading(1, None);
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #1\nstart node0 #1 -> []"
    );
    harness.all_verify(0..1);
    assert!(harness.transfer.is_complete());
}

#[test]
fn the_same_one_reads_again_after_it_has_come_back() {
    let mut harness = reading(3, None);
    harness.reports(0, |progress| progress.bytes = 40);
    harness.dies(0);
    harness.log();
    harness.dead.clear();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node1 #2 -> [node2]\nstart node0 #2 -> [node1]"
    );
    harness.all_verify(0..3);
    assert!(harness.transfer.is_complete());
}

#[test]
fn where_the_reader_does_not_come_back_the_next_one_reads() {
    let mut harness = reading(3, None);
    harness.dies(0);
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(harness.log(), "stat", "of node0, which does not answer");
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node1 #2 -> [node2]"
    );
    assert_eq!(reader(&harness), Some("node1"));
}

#[test]
fn a_reader_that_cannot_even_be_asked_is_passed_over() {
    let mut harness = reading(2, Some(0));
    assert_eq!((&*harness.log(), reader(&harness)), ("stat", Some("node1")));
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #1\nprepare node1 #1\nstart node1 #1 -> []"
    );
}

fn fails(harness: &mut Harness, node: u32, reason: &str) {
    harness.reports(node, |progress| {
        progress.state = State::Failed.into();
        progress.reason = reason.into();
        progress.retriable = reason == "ObjectUnavailable";
        progress.message = format!("node {node}: {reason}");
    });
    harness.ends(node, Ok(()));
}

#[test]
fn a_full_disk_at_the_reader_is_its_own_and_another_one_reads() {
    let mut harness = reading(3, None);
    fails(&mut harness, 0, "DiskFull");
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node1 #2\nprepare node2 #2\nstart node2 #2 -> []\nstart node1 #2 -> [node2]"
    );
    assert_eq!(harness.reason(0), "DiskFull");
    for node in [1, 2] {
        harness.verifies(node);
        harness.ends(node, Ok(()));
    }
    assert!(harness.transfer.is_over() && !harness.transfer.is_complete());
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("Verified", "Verified")
    );
}

#[test]
fn what_the_store_refuses_it_would_refuse_to_everybody() {
    let mut harness = reading(3, None);
    fails(&mut harness, 0, "ObjectDenied");
    assert!(harness.transfer.is_over());
    for node in 0..3 {
        assert_eq!(harness.reason(node), "ObjectDenied", "{node}");
    }
}

#[test]
fn once_there_is_a_verified_copy_nobody_asks_the_store_again() {
    let mut harness = reading(3, None);
    harness.verifies(0);
    harness.verifies(1);
    harness.dies(2);
    (0..2).for_each(|node| harness.ends(node, Ok(())));
    harness.log();
    harness.dead.clear();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node0 #2 -> [node2]"
    );
    let spec = harness.transfer.spec();
    assert!(spec.object.is_none(), "its files are sent");
    // They are sent as what was verified, or not at all.
    assert_eq!((&*spec.source.node, &*spec.expect), ("node0", "d1"));
    let received = harness.transfer.bytes_received();
    harness.verifies(0);
    assert_eq!(
        harness.transfer.bytes_received(),
        received,
        "what it reads of its copy is received by nobody"
    );
    harness.verifies(2);
    assert_eq!(harness.transfer.bytes_received(), received + BYTES);
    harness.ends(0, Ok(()));
    harness.ends(2, Ok(()));
    assert!(harness.transfer.is_complete());
}

#[test]
fn a_verified_copy_whose_node_has_gone_is_passed_over_and_at_last_the_store_is_asked_again() {
    let mut harness = reading(3, None);
    harness.verifies(0);
    harness.verifies(1);
    harness.dies(2);
    (0..2).for_each(|node| harness.ends(node, Ok(())));
    harness.log();
    harness.dead = ["node0".to_owned(), "node2".to_owned()].into();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat of the named",
        "of node0, which does not answer"
    );
    harness.dead = ["node0".to_owned(), "node1".to_owned()].into();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat of the named",
        "of node1, which has gone as well"
    );
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node2 #2\nstart node2 #2 -> []"
    );
    assert_eq!(reader(&harness), Some("node2"));
    assert_eq!(
        harness.transfer.spec().expect,
        "d1",
        "the same bytes, or none"
    );
    harness.verifies(2);
    harness.ends(2, Ok(()));
    assert!(harness.transfer.is_complete());
}

/// node0 and node1 have a verified copy, and node2 comes back after a fault of its own.
fn with_a_late_one() -> Harness {
    let mut harness = reading(3, None);
    harness.verifies(0);
    harness.verifies(1);
    harness.dies(2);
    (0..2).for_each(|node| harness.ends(node, Ok(())));
    harness.dead.clear();
    harness.log();
    harness
}

/// Node 2 gets what `sender` sends.
fn node2_verifies(harness: &mut Harness, sender: u32) {
    harness.verifies(sender);
    harness.verifies(2);
    for node in [sender, 2] {
        harness.ends(node, Ok(()));
    }
    assert!(harness.transfer.is_complete(), "{}", harness.reason(2));
}

#[test]
fn of_what_lies_where_a_copy_is_only_that_is_sent_which_the_store_has() {
    let mut harness = with_a_late_one();
    // Of its own files that node has the times, so the state is another.
    let there = StatResponse {
        fingerprint: vec![2; 32],
        ..found()
    };
    harness.listings.insert(name(0), Ok(there));
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node0 #2 -> [node2]"
    );
    assert_eq!(harness.transfer.listing().unwrap().holder, "node0");
    node2_verifies(&mut harness, 0);
}

#[test]
fn a_copy_that_is_not_what_it_was_is_passed_over_whatever_its_node_says_of_it() {
    let gone = Err(failure("node0", "SourceMissing", false));
    let link = Err(failure("node0", "SymlinkRefused", false));
    let other = Err(failure("node0", "SourceChanged", false));
    let lost = Err(failure("node0", "ManifestUnknown", true));
    for listed in [gone, link, other, lost] {
        let mut harness = with_a_late_one();
        harness.listings.insert(name(0), listed);
        harness.wait_out_backoff();
        assert_eq!(harness.log(), "stat of the named");
        assert_eq!(
            harness.wait_out_backoff(),
            Duration::ZERO,
            "others are there"
        );
        assert_eq!(
            harness.log(),
            "stat of the named\nprepare node2 #2\nstart node2 #2 -> []\nstart node1 #2 -> [node2]"
        );
        node2_verifies(&mut harness, 1);
    }
}

#[test]
fn a_copy_that_cannot_be_sent_or_has_other_bytes_is_passed_over_and_at_last_the_store_is_read() {
    let mut harness = with_a_late_one();
    harness.wait_out_backoff();
    assert_eq!(harness.transfer.spec().source.node, "node0");
    // Other bytes of the same size: who gets them finds that out.
    fails(&mut harness, 2, "ExpectMismatch");
    assert!(!harness.transfer.is_over());
    harness.ends(0, Ok(()));
    assert_eq!(harness.reason(2), "ExpectMismatch");
    harness.wait_out_backoff();
    assert_eq!(harness.transfer.spec().source.node, "node1");
    fails(&mut harness, 1, "SourceChanged");
    assert!(!harness.transfer.is_over());
    harness.ends(2, Ok(()));
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node2 #4\nstart node2 #4 -> []"
    );
    assert_eq!(reader(&harness), Some("node2"));
    // What the store has now is something else: that is nobody's fault.
    fails(&mut harness, 2, "ExpectMismatch");
    assert!(harness.transfer.is_over());
    assert_eq!(harness.reason(2), "ExpectMismatch");
}

#[test]
fn a_late_one_that_never_gets_its_copy_is_given_up_by_the_backoff_limit() {
    let mut harness = with_a_late_one();
    harness.dead.insert(name(2));
    for _ in 0..20 {
        if harness.transfer.is_over() {
            break;
        }
        harness.wait_out_backoff();
    }
    assert!(harness.transfer.is_over());
    assert_eq!(harness.reason(2), UNREACHABLE);
}

#[test]
fn a_store_that_does_not_serve_one_reader_is_asked_by_the_others_before_the_job_fails() {
    let mut harness = reading(3, None);
    let mut readers = Vec::new();
    while !harness.transfer.is_over() {
        let node = harness.transfer.spec().source.node.clone();
        let number = node.trim_start_matches("node").parse().unwrap();
        readers.push(number);
        fails(&mut harness, number, "ObjectUnavailable");
        (0..3).for_each(|node| harness.ends(node, Ok(())));
        if !harness.transfer.is_over() {
            harness.wait_out_backoff();
        }
    }
    assert_eq!(readers[..3], [0, 1, 2]);
    // Once each has had its turn, the backoff limit of 3 counts.
    assert_eq!(readers.len(), 6, "{readers:?}");

    // Another one's way to the store is good: all get it.
    let mut harness = reading(3, None);
    fails(&mut harness, 0, "StoreForbidden");
    (1..3).for_each(|node| harness.ends(node, Ok(())));
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node0 #2\nprepare node1 #2\nprepare node2 #2\n\
         start node2 #2 -> []\nstart node0 #2 -> [node2]\nstart node1 #2 -> [node0]"
    );
    harness.all_verify(0..3);
    assert!(harness.transfer.is_complete());
}

#[test]
fn a_reader_that_has_got_something_reads_on() {
    let mut harness = reading(2, None);
    harness.reports(0, |progress| progress.bytes = 40);
    fails(&mut harness, 0, "ObjectUnavailable");
    harness.ends(1, Ok(()));
    harness.wait_out_backoff();
    assert_eq!(reader(&harness), Some("node0"));
}

#[test]
fn a_store_that_cannot_be_listed_from_one_node_is_listed_from_the_next_and_at_last_from_none() {
    let spec = reading(3, None).transfer.spec().clone();
    let start = |listings: BTreeMap<String, Result<StatResponse, Failure>>| {
        let (transfer, commands) = Transfer::begin(spec.clone());
        let mut harness = Harness {
            transfer,
            listings,
            pending: commands.into(),
            ..reading(1, None)
        };
        harness.log();
        harness.obey();
        harness
    };
    let refused = |node: u32, reason| (name(node), Err(failure(&name(node), reason, false)));
    let mut harness = start([refused(0, "StoreForbidden")].into());
    assert_eq!((&*harness.log(), reader(&harness)), ("stat", Some("node1")));
    assert_eq!(harness.wait_out_backoff(), Duration::ZERO);
    assert!(harness.log().starts_with("stat\nprepare node0 #1"));
    assert_eq!(reader(&harness), Some("node1"));

    let all = (0..3).map(|node| refused(node, "StoreForbidden"));
    let mut harness = start(all.collect());
    harness.wait_out_backoff();
    harness.wait_out_backoff();
    assert!(harness.transfer.is_over());
    assert_eq!(
        (&*harness.log(), harness.reason(0)),
        ("stat\nstat\nstat", "StoreForbidden")
    );
    // A key is everybody's.
    let harness = start([refused(0, "ObjectDenied")].into());
    assert!(harness.transfer.is_over());
}

#[test]
fn a_reader_that_is_no_destination_any_more_is_not_waited_for() {
    let mut harness = reading(3, None);
    harness.dies(0);
    let spec = harness.transfer.spec().clone();
    let left = spec.destinations.iter().filter(|it| it.node != name(1));
    harness.answer(Input::Destinations(Box::new(DestinationsUpdate {
        destinations: left.cloned().collect(),
        topology: spec.topology.clone(),
        payload_share: spec.payload_share,
        configuration_pending: BTreeSet::new(),
    })));
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(harness.log(), "stat", "of node0, which does not answer");
    harness.wait_out_backoff();
    assert_eq!(reader(&harness), Some("node2"));
    assert!(harness.log().contains("start node2 #2 -> []"));
}
