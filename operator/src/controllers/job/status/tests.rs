use weft_crds::Strategy;
use weft_transfer::TransferPhase;

use super::*;
use crate::controllers::condition::TEXT_MAX;
use crate::controllers::job::queue::SlotRequest;
use crate::controllers::tests::scenario;

fn destination(node: &str, state: DestinationState, bytes: i64) -> DestinationStatus {
    DestinationStatus {
        node: node.into(),
        state,
        reason: String::new(),
        message: String::new(),
        bytes,
        digest: String::new(),
    }
}

fn snapshot(destinations: Vec<DestinationStatus>) -> Snapshot {
    Snapshot {
        fabric: "default".into(),
        was_there: false,
        unconfirmed: Vec::new(),
        phase: TransferPhase::Running,
        start_sent: true,
        attempt: 1,
        unrecorded_attempt: None,
        end: None,
        sender: "n0".into(),
        reader: None,
        manifest: Some(weft_crds::ManifestSummary {
            files: 1,
            bytes: 100,
            digest: None,
            not_kept: Vec::new(),
        }),
        plan: Some(weft_crds::PlanSummary {
            strategy: Strategy::Chain,
            estimate_seconds: 1.5,
            bottleneck: Some("n1->leaf at 1000 Mbit/s".into()),
        }),
        link: None,
        bytes: destinations.iter().map(|d| d.bytes).sum(),
        bytes_total: 100 * i64::try_from(destinations.len()).unwrap(),
        bytes_per_second: 60,
        destinations,
    }
}

#[test]
fn of_many_destinations_the_failed_and_the_slowest_are_shown() {
    let mut all: Vec<_> = (0..200)
        .map(|i| destination(&format!("n{i:03}"), DestinationState::Transferring, i))
        .collect();
    all[150].state = DestinationState::Failed;
    all[199].state = DestinationState::Verified;
    let status = transfer_status(&scenario::job("minilm"), &snapshot(all), scenario::start());
    let shown: Vec<&str> = status
        .destinations
        .iter()
        .map(|d| d.node.as_str())
        .collect();
    assert_eq!(shown.len(), DESTINATIONS_SHOWN);
    assert_eq!(shown[..3], ["n150", "n000", "n001"]);
    assert!(status.destinations_truncated);
    let counts = status.counts;
    assert_eq!((counts.total, counts.verified, counts.failed), (200, 1, 1));
}

#[test]
fn people_read_how_far_how_fast_and_how_long() {
    let all = vec![destination("n2", DestinationState::Transferring, 40)];
    let status = transfer_status(&scenario::job("minilm"), &snapshot(all), scenario::start());
    assert_eq!(
        (&*status.progress, &*status.rate, &*status.eta),
        ("40% of 100 B", "60 B/s", "1s")
    );
    let planned = &status.conditions[0];
    assert_eq!(
        planned.message,
        "Chain to 1 nodes should take 1.5 s; bottleneck: n1->leaf at 1000 Mbit/s"
    );
    let table = [
        (0, "0 B"),
        (999, "999 B"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (90_868_376, "90.9 MB"),
    ];
    for (count, text) in table {
        assert_eq!(bytes(count), text);
    }
    for (seconds, text) in [(59, "59s"), (61, "1m1s"), (7325, "2h2m")] {
        assert_eq!(duration(seconds), text);
    }
}

#[test]
fn a_failure_names_the_first_destination_that_failed() {
    let mut failed = destination("n2", DestinationState::Failed, 0);
    failed.reason = "DiskFull".into();
    failed.message = "node n2: the disk is full: free some".into();
    let all = vec![destination("n3", DestinationState::Verified, 100), failed];
    let mut snapshot = snapshot(all);
    snapshot.end = Some(End::Failed);
    let job = scenario::job("minilm");
    let status = transfer_status(&job, &snapshot, scenario::start());
    assert_eq!(status.phase, Phase::Failed);
    assert_eq!(
        status.message,
        "1 of 2 destinations failed, 1 have a verified copy: node n2: the disk is full: free some"
    );
    let news = events_for(&TransferJobStatus::default(), &status);
    let last = news.last().unwrap();
    assert_eq!((last.warning, &*last.reason), (true, "DiskFull"));
}

#[test]
fn a_job_that_fails_at_a_long_path_says_why() {
    let mut failed = destination("n2", DestinationState::Failed, 0);
    let path = "ä".repeat(TEXT_MAX);
    failed.message = format!("models/{path}: the disk is full: free some space");
    let mut snapshot = snapshot(vec![failed]);
    snapshot.end = Some(End::Failed);
    let status = transfer_status(&scenario::job("minilm"), &snapshot, scenario::start());
    let events = events_for(&TransferJobStatus::default(), &status);
    for text in [&status.message, &events.last().unwrap().note] {
        assert!(text.len() <= TEXT_MAX, "{}", text.len());
        assert!(text.ends_with("free some space"), "{text}");
    }
}

#[test]
fn a_job_that_was_suspended_goes_on_without_a_complaint() {
    let mut job = scenario::job("minilm");
    let running = transfer_status(&job, &snapshot(Vec::new()), scenario::start());
    job.status = Some(running);
    let old = suspended_status(&job, scenario::start());
    let new = TransferJobStatus {
        attempt: 2,
        phase: Phase::Preparing,
        message: String::new(),
        ..old.clone()
    };
    let news = events_for(&old, &new);
    assert_eq!((news[0].warning, &*news[0].note), (false, "attempt 2"));
}

#[test]
fn another_attempt_says_what_went_wrong_with_the_last() {
    let old = TransferJobStatus {
        attempt: 1,
        message: "node n2 at 10.0.0.2:7400 does not answer".into(),
        ..TransferJobStatus::default()
    };
    let new = TransferJobStatus {
        attempt: 2,
        message: String::new(),
        ..old.clone()
    };
    let news = events_for(&old, &new);
    assert_eq!(news[0].reason, "Retrying");
    assert_eq!(
        news[0].note,
        "attempt 2: node n2 at 10.0.0.2:7400 does not answer"
    );
}

#[test]
fn an_event_names_the_nodes_that_are_no_destinations_any_more() {
    let job = scenario::job("minilm");
    let of = |nodes: &[&str]| {
        let one = |node: &&str| destination(node, DestinationState::Transferring, 0);
        let snapshot = snapshot(nodes.iter().map(one).collect());
        transfer_status(&job, &snapshot, scenario::start())
    };
    let events = events_for(&of(&["n2", "n3", "n4"]), &of(&["n3"]));
    let event = events
        .iter()
        .find(|event| event.reason == "DestinationsLeft")
        .unwrap();
    assert!(
        !event.warning && event.note.ends_with(": n2, n4"),
        "{event:?}"
    );
    let come = events_for(&of(&["n3"]), &of(&["n3", "n4"]));
    assert!(!come.iter().any(|event| event.reason == "DestinationsLeft"));
}

#[test]
fn a_job_whose_files_were_there_says_that_nothing_was_sent() {
    for was_there in [false, true] {
        let snapshot = Snapshot {
            end: Some(End::Complete),
            was_there,
            ..snapshot(vec![destination("n2", DestinationState::Verified, 100)])
        };
        let status = transfer_status(&scenario::job("minilm"), &snapshot, scenario::start());
        let complete = status.conditions.iter().find(|c| c.type_ == "Complete");
        let complete = complete.unwrap();
        let reason = if was_there {
            "AlreadyThere"
        } else {
            "Verified"
        };
        assert_eq!(complete.reason, reason);
        assert_eq!(complete.message.contains("nothing was sent"), was_there);
    }
}

#[test]
fn a_verified_copy_that_sends_in_place_of_a_store_keeps_its_job_slot() {
    let mut cache = scenario::cache(3);
    let mut fabric = scenario::fabric("default", 1);
    fabric.spec.transport.cap_mbps = Some(1000);
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    let from_copy = Snapshot {
        sender: "n1".into(),
        reader: None,
        ..snapshot(vec![destination("n2", DestinationState::Pending, 0)])
    };
    let slots = SlotRequest::of_transfer(&from_copy, &cache).unwrap();
    assert_eq!(slots.source, "n1");
    assert!(slots.receivers.contains("n2"));
}

#[test]
fn a_node_that_joins_many_destinations_brings_no_bytes() {
    let one = |i: i64| destination(&format!("n{i:03}"), DestinationState::Transferring, i);
    let mut all: Vec<_> = (1..=100).map(one).collect();
    let mut job = scenario::job("minilm");
    let status = transfer_status(&job, &snapshot(all.clone()), scenario::start());
    assert!(status.destinations_truncated && status.bytes == 5050);
    job.status = Some(status);
    all.push(destination("n101", DestinationState::Pending, 0));
    let bytes = |all: &[DestinationStatus]| {
        transfer_status(&job, &snapshot(all.to_vec()), scenario::start()).bytes
    };
    assert_eq!(bytes(&all), 5050);
    // After a failover none has reported yet, then some have.
    for destination in &mut all {
        (destination.state, destination.bytes) = (DestinationState::Pending, 0);
    }
    assert_eq!(bytes(&all), 5050);
    for (destination, bytes) in all.iter_mut().rev().skip(1).zip(81..) {
        destination.bytes = bytes;
    }
    assert!(bytes(&all) >= 5050);
}

#[test]
fn a_suspended_job_that_fails_is_not_suspended_any_more() {
    let mut job = scenario::job("minilm");
    job.status = Some(suspended_status(&job, scenario::start()));
    let obstacle = crate::controllers::job::obstacle::permanent("NoDestinations", "none".into());
    let status = failed_status(&job, &obstacle, scenario::start());
    assert!(!condition::is_true(&status.conditions, "Suspended"));
    assert!(condition::is_true(&status.conditions, "Failed"));
}
