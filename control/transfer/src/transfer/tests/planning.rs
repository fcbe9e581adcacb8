//! A plan is there before anybody is asked, and the one in force is for those that were ready.

use super::*;

fn nodes(transfer: &Transfer) -> Vec<&str> {
    let assignments = transfer
        .plan()
        .into_iter()
        .flat_map(|plan| &plan.assignments);
    assignments
        .map(|assignment| assignment.node.as_str())
        .collect()
}

/// A job of four nodes whose source has said what it has, and what is to be done next.
fn stated() -> (Transfer, Vec<Command>) {
    let spec = Harness::of(4, Strategy::Chain).transfer.spec().clone();
    let (transfer, _) = Transfer::begin(spec);
    transfer.step(Duration::ZERO, Input::Stat(Ok(found())))
}

fn prepared(mut transfer: Transfer, dead: Option<u32>) -> Transfer {
    transfer = transfer
        .step(Duration::ZERO, Input::AttemptRecorded { attempt: 1 })
        .0;
    for node in 1..4 {
        let is_dead = dead == Some(node);
        let result = if is_dead {
            Err(failure(&name(node), "DiskFull", true))
        } else {
            Ok(())
        };
        let answer = called(&name(node), 1, Call::Prepare, result);
        transfer = transfer.step(Duration::ZERO, answer).0;
    }
    transfer
}

#[test]
fn a_plan_for_all_is_there_before_anybody_is_asked_to_be_ready() {
    let (transfer, commands) = stated();
    assert!(
        matches!(commands[..], [Command::RecordAttempt { attempt: 1 }]),
        "{commands:?}"
    );
    assert_eq!(nodes(&transfer), ["node0", "node1", "node2", "node3"]);
    let planned = transfer.plan().cloned();

    let transfer = prepared(transfer, None);
    assert_eq!(transfer.plan().cloned(), planned);
}

#[test]
fn the_plan_in_force_is_for_those_that_were_ready() {
    let (transfer, _) = stated();
    let transfer = prepared(transfer, Some(2));
    assert_eq!(nodes(&transfer), ["node0", "node1", "node3"]);
}

#[test]
fn a_plan_is_made_anew_when_the_topology_changes() {
    let (transfer, _) = stated();
    let spec = transfer.spec();
    let mut update = DestinationsUpdate {
        destinations: spec.destinations.clone(),
        topology: spec.topology.clone(),
        payload_share: spec.payload_share,
        configuration_pending: BTreeSet::new(),
    };
    let (same, _) = transfer.clone().step(
        Duration::ZERO,
        Input::Destinations(Box::new(update.clone())),
    );
    assert_eq!(nodes(&same), ["node0", "node1", "node2", "node3"]);

    update.topology.nodes[1].rate_bps /= 2;
    let (other, _) = transfer.step(Duration::ZERO, Input::Destinations(Box::new(update)));
    let estimate = |transfer: &Transfer| transfer.plan().unwrap().estimate_seconds;
    assert!(estimate(&other) > estimate(&same));
    let other = prepared(other, None);
    assert_eq!(nodes(&other), ["node0", "node1", "node2", "node3"]);
}

/// An agent that works with an older configuration makes ready, and no connection with its sender.
#[test]
fn a_node_that_breaks_every_attempt_does_not_take_those_behind_it_with_it() {
    let mut harness = Harness::chain(4);
    let refuses = |harness: &mut Harness| {
        harness.reports(0, |progress| {
            progress.peers = vec![PeerProgress {
                node: name(1),
                role: Role::Child.into(),
                failed: true,
                reason: "SettingsDiffer".into(),
                retriable: true,
                ..PeerProgress::default()
            }];
        });
    };
    refuses(&mut harness);
    harness.wait_out_backoff();
    refuses(&mut harness);
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("SettingsDiffer", "SenderLost")
    );
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node1 #3\nprepare node2 #3\nprepare node3 #3\nstart node3 #3 -> []\n\
         start node1 #3 -> []\nstart node2 #3 -> [node3]\nstart node0 #3 -> [node2,node1]"
    );
    refuses(&mut harness);
    harness.verifies(2);
    harness.verifies(3);
    harness.verifies(0);
    // By now it may have taken the configuration over.
    harness.wait_out_backoff();
    assert!(
        harness
            .log()
            .ends_with("prepare node1 #4\nstart node1 #4 -> []\nstart node0 #4 -> [node1]")
    );
    harness.verifies(1);
    harness.verifies(0);
    for node in 0..2 {
        harness.ends(node, Ok(()));
    }
    assert!(harness.transfer.is_complete());
}

#[test]
fn a_node_that_comes_back_while_others_prepare_is_in_the_attempt_once() {
    let (mut transfer, _) = stated();
    let recorded = Input::AttemptRecorded { attempt: 1 };
    transfer = transfer.step(Duration::ZERO, recorded).0;
    let prepare = |transfer: Transfer, node: u32| {
        let answer = called(&name(node), 1, Call::Prepare, Ok(()));
        transfer.step(Duration::ZERO, answer).0
    };
    transfer = prepare(transfer, 1);
    let spec = transfer.spec().clone();
    for nodes in [&[2, 3][..], &[1, 2, 3]] {
        let names: Vec<String> = nodes.iter().copied().map(name).collect();
        let mut destinations = spec.destinations.clone();
        destinations.retain(|location| names.contains(&location.node));
        let update = DestinationsUpdate {
            destinations,
            topology: spec.topology.clone(),
            payload_share: spec.payload_share,
            configuration_pending: BTreeSet::new(),
        };
        let update = Input::Destinations(Box::new(update));
        transfer = transfer.step(Duration::ZERO, update).0;
    }
    for node in [1, 2, 3] {
        transfer = prepare(transfer, node);
    }
    assert!(transfer.started().is_some(), "nobody was started");
    let mut in_plan = nodes(&transfer);
    in_plan.sort_unstable();
    assert_eq!(in_plan, ["node0", "node1", "node2", "node3"]);
}

#[test]
fn no_node_sends_to_more_than_an_agent_allows_when_nearly_all_are_to_receive_only() {
    let mut spec = Harness::of(4, Strategy::Chain).transfer.spec().clone();
    for number in 4..200 {
        let mut location = spec.source.clone();
        location.node = name(number);
        spec.destinations.push(location);
        let mut node = spec.topology.nodes[0].clone();
        node.name = name(number);
        spec.topology.nodes.push(node);
    }
    let (transfer, _) = Transfer::begin(spec);
    let (mut transfer, _) = transfer.step(Duration::ZERO, Input::Stat(Ok(found())));
    transfer.failures = 2;
    for node in 2..200 {
        let failure = failure(&name(node), "PeerStalled", true);
        transfer.destinations.record_failure(&name(node), failure);
    }
    let assignments = transfer.assignments_for((1..200).map(name).collect());
    let assignments = assignments.unwrap();
    let most = assignments.iter().map(|one| one.sends_to.len()).max();
    assert_eq!(most, Some(weft_planner::RECEIVERS_MAX));
    let sent: usize = assignments.iter().map(|one| one.sends_to.len()).sum();
    assert_eq!((assignments.len(), sent), (200, 199));
}
