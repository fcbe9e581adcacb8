//! A plan is there before anybody is asked, and the one in force is for those that were ready.

use super::*;

fn nodes(job: &Job) -> Vec<&str> {
    let parts = job.plan().into_iter().flat_map(|plan| &plan.parts);
    parts.map(|part| part.node.as_str()).collect()
}

/// A job of four nodes whose source has said what it has, and what is to be done next.
fn stated() -> (Job, Vec<Command>) {
    let spec = World::of(4, Strategy::Chain).job.spec().clone();
    let (job, _) = Job::begin(spec);
    job.step(Duration::ZERO, Input::Stat(Ok(found())))
}

fn prepared(mut job: Job, dead: Option<u32>) -> Job {
    job = job
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
        job = job.step(Duration::ZERO, answer).0;
    }
    job
}

#[test]
fn a_plan_for_all_is_there_before_anybody_is_asked_to_be_ready() {
    let (job, commands) = stated();
    assert!(
        matches!(commands[..], [Command::RecordAttempt { attempt: 1 }]),
        "{commands:?}"
    );
    assert_eq!(nodes(&job), ["node0", "node1", "node2", "node3"]);
    let planned = job.plan().cloned();

    let job = prepared(job, None);
    assert_eq!(job.plan().cloned(), planned);
}

#[test]
fn the_plan_in_force_is_for_those_that_were_ready() {
    let (job, _) = stated();
    let job = prepared(job, Some(2));
    assert_eq!(nodes(&job), ["node0", "node1", "node3"]);
}

#[test]
fn a_plan_is_made_anew_when_the_topology_changes() {
    let (job, _) = stated();
    let spec = job.spec();
    let mut members = MembershipUpdate {
        destinations: spec.destinations.clone(),
        topology: spec.topology.clone(),
        payload_share: spec.payload_share,
        configuration_pending: BTreeSet::new(),
    };
    let (same, _) = job
        .clone()
        .step(Duration::ZERO, Input::Members(Box::new(members.clone())));
    assert_eq!(nodes(&same), ["node0", "node1", "node2", "node3"]);

    members.topology.nodes[1].rate_bps /= 2;
    let (other, _) = job.step(Duration::ZERO, Input::Members(Box::new(members)));
    let estimate = |job: &Job| job.plan().unwrap().estimate_seconds;
    assert!(estimate(&other) > estimate(&same));
    let other = prepared(other, None);
    assert_eq!(nodes(&other), ["node0", "node1", "node2", "node3"]);
}

/// An agent that works with an older configuration makes ready, and no connection with its sender.
#[test]
fn a_node_that_breaks_every_attempt_does_not_take_those_behind_it_with_it() {
    let mut world = World::chain(4);
    let refuses = |world: &mut World| {
        world.reports(0, |report| {
            report.peers = vec![PeerProgress {
                node: name(1),
                role: Role::Child.into(),
                failed: true,
                reason: "SettingsDiffer".into(),
                retriable: true,
                ..PeerProgress::default()
            }];
        });
    };
    refuses(&mut world);
    world.rests();
    refuses(&mut world);
    assert_eq!(
        (world.reason(1), world.reason(2)),
        ("SettingsDiffer", "SenderLost")
    );
    world.log();
    world.rests();
    assert_eq!(
        world.log(),
        "stat\nprepare node1 #3\nprepare node2 #3\nprepare node3 #3\nstart node3 #3 -> []\n\
         start node1 #3 -> []\nstart node2 #3 -> [node3]\nstart node0 #3 -> [node2,node1]"
    );
    refuses(&mut world);
    world.verifies(2);
    world.verifies(3);
    world.verifies(0);
    // By now it may have taken the configuration over.
    world.rests();
    assert!(
        world
            .log()
            .ends_with("prepare node1 #4\nstart node1 #4 -> []\nstart node0 #4 -> [node1]")
    );
    world.verifies(1);
    world.verifies(0);
    for node in 0..2 {
        world.ends(node, Ok(()));
    }
    assert!(world.job.is_complete());
}
