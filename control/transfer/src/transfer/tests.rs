use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_planner::{Node, Strategy, Topology};
use weft_proto::agent::v1::{Algorithm, Overwrite, PeerProgress, Role, State, Symlinks};

use super::*;
use crate::{
    destinations::DestinationPhase,
    failure::{NEVER_REACHED, UNREACHABLE},
    spec::{LeaderContext, NodeLocation, Timing},
    tls::CONNECT_WITHIN,
};

const BYTES: u64 = 100;

mod cancels;
mod objects;
mod planning;

/// Agents that answer by the book. What goes wrong is one line in a test.
struct Harness {
    transfer: Transfer,
    now: Duration,
    dead: BTreeSet<String>,
    /// What a call of one of them takes, and ends with.
    death: (Duration, &'static str),
    /// Whether a call of one of them may be made again.
    is_retriable: bool,
    /// What nodes answer to Stat, where that is not one file as it always was.
    listings: BTreeMap<String, Result<StatResponse, Failure>>,
    /// Commands that were carried out since the last look.
    log: Vec<String>,
    pending: VecDeque<Command>,
    /// Cancels that are repeated where the node does not answer.
    repeated: usize,
    /// Destinations that get a bad list of files from the holder.
    bad_lists: BTreeSet<String>,
}

fn cancel(cleanup: Cleanup) -> Call {
    Call::Cancel {
        cleanup,
        is_repeated: true,
    }
}

fn called(node: &str, attempt: u32, call: Call, result: Result<(), Failure>) -> Input {
    Input::Called {
        node: node.to_owned(),
        attempt,
        call,
        result,
    }
}

fn stop(remove_partials: bool) -> Input {
    Input::Cancel(cleanup(remove_partials))
}

fn cleanup(remove_partials: bool) -> Cleanup {
    match remove_partials {
        true => Cleanup::Partials,
        false => Cleanup::Nothing,
    }
}

/// One file.
fn found() -> StatResponse {
    StatResponse {
        not_kept: Vec::new(),
        manifest_digest: vec![1; 32],
        files: 1,
        bytes: BYTES,
        fingerprint: vec![1; 32],
    }
}

fn name(node: u32) -> String {
    format!("node{node}")
}

fn failure(node: &str, reason: &str, retriable: bool) -> Failure {
    Failure {
        node: node.to_owned(),
        reason: reason.to_owned(),
        message: format!("node {node}: {reason}"),
        retriable,
    }
}

impl Harness {
    /// A chain: node0 → node1 → … unless another strategy is asked for.
    fn of(nodes: u32, strategy: Strategy) -> Self {
        Self::with(nodes, strategy, None, (Duration::ZERO, UNREACHABLE))
    }

    /// One node is not there from the start.
    fn without(nodes: u32, strategy: Strategy, missing: u32) -> Self {
        let death = (CONNECT_WITHIN, NEVER_REACHED);
        Self::with(nodes, strategy, Some(missing), death)
    }

    fn with(
        nodes: u32,
        strategy: Strategy,
        dead: Option<u32>,
        death: (Duration, &'static str),
    ) -> Self {
        let location = |i| NodeLocation {
            node: name(i),
            root: "data".into(),
            path: "x".into(),
        };
        let node = |i| Node {
            name: name(i),
            address: None,
            leaf: "leaf0".into(),
            rate_bps: 1_000_000_000,
        };
        let spec = Spec {
            uid: "uid".into(),
            name: None,
            source: location(0),
            symlinks: Symlinks::Follow,
            object: None,
            destinations: (1..nodes).map(location).collect(),
            topology: Topology {
                nodes: (0..nodes).map(node).collect(),
                uplinks: Vec::new(),
            },
            strategy,
            payload_share: 1.0,
            algorithm: Algorithm::Blake3,
            backoff_limit: 3,
            expect: String::new(),
            overwrite: Overwrite::IfDifferent,
            timing: Timing::INTERACTIVE,
            leader: LeaderContext::ONLY,
        };
        Self::begin(spec, dead, death)
    }

    fn begin(spec: Spec, dead: Option<u32>, death: (Duration, &'static str)) -> Self {
        let (transfer, commands) = Transfer::begin(spec);
        let mut harness = Self {
            transfer,
            now: Duration::ZERO,
            dead: dead.into_iter().map(name).collect(),
            death,
            is_retriable: true,
            listings: BTreeMap::new(),
            log: Vec::new(),
            pending: commands.into(),
            repeated: 0,
            bad_lists: BTreeSet::new(),
        };
        harness.obey();
        harness
    }

    fn chain(nodes: u32) -> Self {
        Self::of(nodes, Strategy::Chain)
    }

    fn answer(&mut self, answer: Input) {
        let (transfer, commands) = self.transfer.clone().step(self.now, answer);
        self.transfer = transfer;
        self.pending.extend(commands);
        self.obey();
    }

    fn obey(&mut self) {
        while let Some(command) = self.pending.pop_front() {
            let mut reach = |node: &str| {
                if self.dead.contains(node) {
                    self.now += self.death.0;
                    Err(failure(node, self.death.1, self.is_retriable))
                } else {
                    Ok(())
                }
            };
            match command {
                Command::Stat { manifest_digest } => {
                    self.log.push(match manifest_digest {
                        Some(_) => "stat of the named".into(),
                        None => "stat".into(),
                    });
                    let source = self.transfer.spec().source.node.clone();
                    let listed = self.listings.get(&source).cloned();
                    let listed = listed.unwrap_or_else(|| Ok(found()));
                    let result = reach(&source).and(listed);
                    self.answer(Input::Stat(result));
                }
                Command::RecordAttempt { attempt } => {
                    self.answer(Input::AttemptRecorded { attempt });
                }
                Command::Call {
                    node,
                    attempt,
                    call,
                } => {
                    let mut repeats = 0;
                    match &call {
                        Call::Prepare => self.log.push(format!("prepare {node} #{attempt}")),
                        Call::Start(assignment) => {
                            let to = assignment.sends_to.join(",");
                            self.log.push(format!("start {node} #{attempt} -> [{to}]"));
                        }
                        Call::WatchProgress => continue,
                        Call::Cancel {
                            cleanup,
                            is_repeated,
                        } => {
                            let how = match cleanup {
                                Cleanup::Nothing => "cancel",
                                Cleanup::Partials => "cancel-partials",
                                Cleanup::Copies => "cancel-copies",
                            };
                            self.log.push(format!("{how} {node} #{attempt}"));
                            repeats = usize::from(*is_repeated);
                        }
                    }
                    self.repeated += repeats;
                    let mut result = reach(&node);
                    if call == Call::Prepare && self.bad_lists.contains(&node) {
                        result = Err(failure(&node, "PeerFaulty", false));
                    }
                    self.answer(called(&node, attempt, call, result));
                }
            }
        }
    }

    fn reports(&mut self, node: u32, change: impl FnOnce(&mut ProgressResponse)) {
        let mut progress = ProgressResponse {
            node: name(node),
            state: State::Transferring.into(),
            bytes_total: BYTES,
            ..ProgressResponse::default()
        };
        change(&mut progress);
        let attempt = self.transfer.attempt();
        self.answer(Input::Progress {
            node: name(node),
            attempt,
            progress: Box::new(progress),
        });
    }

    fn verifies(&mut self, node: u32) {
        self.reports(node, |progress| {
            progress.state = State::Verified.into();
            progress.bytes = BYTES;
            progress.digest = "d1".into();
        });
    }

    fn ends(&mut self, node: u32, result: Result<(), Failure>) {
        let attempt = self.transfer.attempt();
        self.answer(called(&name(node), attempt, Call::WatchProgress, result));
    }

    fn dies(&mut self, node: u32) {
        self.dead.insert(name(node));
        self.ends(node, Err(failure(&name(node), "NodeUnreachable", true)));
    }

    fn all_verify(&mut self, nodes: std::ops::Range<u32>) {
        for node in nodes.clone() {
            self.verifies(node);
        }
        for node in nodes {
            self.ends(node, Ok(()));
        }
    }

    /// Waits as long as the job wants to; how long that was.
    fn wait_out_backoff(&mut self) -> Duration {
        let until = self.transfer.wake_at().expect("it wants to be woken");
        let rest = until - self.now;
        self.now = until;
        self.answer(Input::Woken);
        rest
    }

    fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join("\n")
    }

    fn phase(&self, node: u32) -> &DestinationPhase {
        let mut all = self.transfer.destinations();
        let there = all.find(|d| d.location.node == name(node));
        &there.expect("it is there").phase
    }

    fn reason(&self, node: u32) -> &str {
        match self.phase(node) {
            DestinationPhase::Failed(failure) | DestinationPhase::Retrying(failure) => {
                &failure.reason
            }
            DestinationPhase::InProgress => "",
            DestinationPhase::Verified { .. } => "Verified",
        }
    }
}

#[test]
fn receivers_are_started_before_senders_and_the_source_last() {
    let mut harness = Harness::chain(4);
    assert_eq!(
        harness.log(),
        "stat\nprepare node1 #1\nprepare node2 #1\nprepare node3 #1\n\
         start node3 #1 -> []\nstart node2 #1 -> [node3]\nstart node1 #1 -> [node2]\n\
         start node0 #1 -> [node1]"
    );
    harness.now = Duration::from_secs(2);
    harness.verifies(1);
    harness.now = Duration::from_secs(3);
    harness.verifies(2);
    harness.verifies(3);
    assert!(
        !harness.transfer.is_over(),
        "the source has not said its last word"
    );
    harness.verifies(0);
    (0..4).for_each(|node| harness.ends(node, Ok(())));
    assert!(harness.transfer.is_complete());
    assert_eq!(
        *harness.phase(1),
        DestinationPhase::Verified {
            since_start: Duration::from_secs(2)
        }
    );
    assert_eq!(
        *harness.phase(3),
        DestinationPhase::Verified {
            since_start: Duration::from_secs(3)
        }
    );
    assert_eq!(harness.log(), "");
}

#[test]
fn a_relay_that_dies_and_comes_back_is_in_the_next_attempt_of_the_same_job() {
    let mut harness = Harness::chain(4);
    harness.reports(1, |progress| progress.bytes = 40);
    harness.log();
    harness.dies(1);
    assert_eq!(
        harness.log(),
        "cancel node0 #1\ncancel node1 #1\ncancel node2 #1\ncancel node3 #1",
        "nobody behind it can finish"
    );
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("NodeUnreachable", "SenderLost")
    );
    harness.dead.clear();
    assert_eq!(
        harness.wait_out_backoff(),
        Timing::INTERACTIVE.backoff,
        "40 bytes were moved"
    );
    assert_eq!(
        harness.log(),
        "stat\nprepare node1 #2\nprepare node2 #2\nprepare node3 #2\n\
         start node3 #2 -> []\nstart node2 #2 -> [node3]\nstart node1 #2 -> [node2]\n\
         start node0 #2 -> [node1]"
    );
    harness.all_verify(0..4);
    assert!(harness.transfer.is_complete());
}

#[test]
fn bytes_that_were_there_and_the_copy_of_the_source_for_itself_are_not_received() {
    let mut harness = Harness::chain(2);
    let bytes = |bytes, resumed| {
        move |progress: &mut ProgressResponse| {
            (progress.bytes, progress.bytes_resumed) = (bytes, resumed);
        }
    };
    harness.reports(1, bytes(70, 30));
    assert_eq!(harness.transfer.bytes_verified(), 70);
    assert_eq!(harness.transfer.bytes_received(), 40);
    harness.dies(0);
    harness.dead.clear();
    harness.wait_out_backoff();
    // In the next attempt those 70 are there.
    harness.reports(1, bytes(70, 70));
    assert_eq!(harness.transfer.bytes_received(), 40);
    harness.reports(1, bytes(90, 70));
    assert_eq!(harness.transfer.bytes_received(), 60);
    // The agent's two counters are not read at one moment.
    harness.reports(1, bytes(90, 75));
    harness.reports(1, bytes(95, 75));
    assert_eq!(harness.transfer.bytes_received(), 60);

    let mut states = crate::destinations::DestinationStates::default();
    let location = |node| NodeLocation {
        node,
        root: "data".into(),
        path: "x".into(),
    };
    let own = crate::local_copy_name("node0");
    for (node, resumed) in [(own.clone(), 0), (name(1), BYTES)] {
        states.add(&location(node.clone()));
        let progress = ProgressResponse {
            state: State::Verified.into(),
            bytes: BYTES,
            bytes_resumed: resumed,
            ..ProgressResponse::default()
        };
        states.count(&node, 1, &progress, false);
        states.record(&node, progress, Duration::ZERO);
    }
    assert_eq!((states.bytes(), states.received()), (2 * BYTES, 0));
    assert!(states.get("node1").unwrap().was_there());
    assert!(!states.get(&own).unwrap().was_there());
}

#[test]
fn nodes_that_receive_over_different_links_are_named_with_the_reasons() {
    let mut states = crate::destinations::DestinationStates::default();
    assert_eq!(states.link(), (String::new(), String::new()));
    let mut told = |node: &str, link: &str, reason: &str| {
        states.add(&NodeLocation {
            node: node.to_owned(),
            root: "data".into(),
            path: "x".into(),
        });
        let progress = ProgressResponse {
            link: link.to_owned(),
            link_reason: reason.to_owned(),
            ..ProgressResponse::default()
        };
        states.count(node, 1, &progress, false);
        states.record(node, progress, Duration::ZERO);
        states.link()
    };
    let (udp, tcp) = ("measured", "udp did not pass");
    let said = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
    assert_eq!(told("node1", "udp", udp), said("udp", udp));
    assert_eq!(told("node2", "udp", udp), said("udp", udp));
    let both = "tcp to node3: udp did not pass; udp to 2 nodes, node1 among them: measured";
    assert_eq!(told("node3", "tcp", tcp), said("tcp, udp", both));
}

#[test]
fn a_late_destination_does_not_hold_up_the_others_and_gets_an_attempt_of_its_own() {
    let mut harness = Harness::chain(4);
    harness.dies(2);
    harness.log();
    // node1 is before it in the chain and goes on.
    harness.verifies(1);
    assert!(harness.log().starts_with("cancel node0 #1"));
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node2 #2\nprepare node3 #2\nstart node3 #2 -> []\nstart node0 #2 -> [node3]",
        "node2 is still away"
    );
    harness.verifies(3);
    harness.dead.clear();
    harness.wait_out_backoff();
    assert!(
        harness
            .log()
            .ends_with("prepare node2 #3\nstart node2 #3 -> []\nstart node0 #3 -> [node2]")
    );
    harness.all_verify(0..4);
    assert!(harness.transfer.is_complete());
}

impl Harness {
    /// The job has these destinations now.
    fn has_only(&mut self, nodes: &[u32]) {
        let spec = Harness::chain(4).transfer.spec().clone();
        let names: Vec<String> = nodes.iter().copied().map(name).collect();
        let mut destinations = spec.destinations;
        destinations.retain(|location| names.contains(&location.node));
        self.answer(Input::Destinations(Box::new(DestinationsUpdate {
            destinations,
            topology: spec.topology,
            payload_share: spec.payload_share,
            configuration_pending: BTreeSet::new(),
        })));
    }

    fn destinations(&self) -> Vec<&str> {
        let all = self.transfer.destinations();
        all.map(|there| &*there.location.node).collect()
    }
}

#[test]
fn a_node_that_is_no_destination_any_more_is_not_waited_for_and_keeps_no_partial_file() {
    // Its agent is still there, and sends on what the next one needs.
    let mut harness = Harness::chain(4);
    harness.reports(2, |progress| progress.bytes = 40);
    harness.log();
    harness.has_only(&[1, 3]);
    assert_eq!(harness.destinations(), ["node1", "node3"]);
    assert_eq!(harness.log(), "");
    for node in [1, 3, 0] {
        harness.verifies(node);
        harness.ends(node, Ok(()));
    }
    harness.wait_out_backoff();
    assert_eq!(harness.log(), "cancel-partials node2 #1");
    assert!(harness.transfer.is_complete());
    // Its agent goes with it: the others get another attempt.
    let mut harness = Harness::chain(4);
    harness.has_only(&[1, 3]);
    harness.dies(2);
    harness.verifies(1);
    harness.log();
    harness.wait_out_backoff();
    assert_eq!(
        harness.log(),
        "stat\nprepare node3 #2\nstart node3 #2 -> []\nstart node0 #2 -> [node3]"
    );
    harness.all_verify(3..4);
    harness.all_verify(0..1);
    assert!(harness.transfer.is_complete());
    let unconfirmed: Vec<&str> = harness.transfer.unconfirmed().collect();
    assert_eq!(unconfirmed, ["node2"]);
}

#[test]
fn a_destination_says_at_once_why_it_gets_no_more_bytes_while_the_others_go_on() {
    let stalled = |harness: &Harness, node| harness.transfer.stalled(&name(node)).map(|f| f.reason);
    let mut harness = Harness::chain(4);
    assert_eq!(stalled(&harness, 2), None);
    harness.dies(2);
    assert_eq!(harness.transfer.phase(), TransferPhase::Running);
    assert_eq!(stalled(&harness, 1), None);
    assert_eq!(stalled(&harness, 2).as_deref(), Some("NodeUnreachable"));
    assert_eq!(stalled(&harness, 3).as_deref(), Some("SenderLost"));
    // The next attempt includes both.
    harness.dead.clear();
    harness.verifies(1);
    harness.wait_out_backoff();
    assert_eq!((stalled(&harness, 2), stalled(&harness, 3)), (None, None));
}

#[test]
fn a_node_that_waits_for_another_attempt_says_why_its_sender_does_not_send() {
    let message = |harness: &Harness| match harness.phase(3) {
        DestinationPhase::Retrying(failure) => failure.message.clone(),
        phase => panic!("{phase:?}"),
    };
    for is_noticed in [false, true] {
        // Somebody takes the label from node2, and its agent ends.
        let mut harness = Harness::chain(4);
        harness.has_only(&[1, 3]);
        harness.dies(2);
        if is_noticed {
            harness.ends(3, Err(failure(&name(3), "PeerLost", true)));
        }
        harness.verifies(1);
        assert_eq!(
            (harness.reason(3), &*message(&harness)),
            (
                "SenderLost",
                "node node3 has no sender any more: node node2 sent to it and is no destination any more"
            )
        );
    }
    let mut harness = Harness::chain(4);
    harness.dies(2);
    harness.verifies(1);
    let cause = failure(&name(2), "NodeUnreachable", true).message;
    assert!(message(&harness).ends_with(&cause), "{}", message(&harness));
}

#[test]
fn a_verified_copy_stays_one_and_a_node_that_comes_back_gets_its_own() {
    let mut harness = Harness::chain(4);
    harness.verifies(1);
    harness.has_only(&[3]);
    assert_eq!(harness.destinations(), ["node1", "node3"]);
    harness.has_only(&[1, 2, 3]);
    for node in [2, 3, 0] {
        harness.verifies(node);
    }
    (0..4).for_each(|node| harness.ends(node, Ok(())));
    assert!(harness.transfer.is_complete());
    assert_eq!(harness.transfer.bytes_verified(), 3 * BYTES);
}

#[test]
fn a_job_that_waits_for_a_node_alone_that_is_gone_is_complete() {
    let mut harness = Harness::chain(4);
    harness.dies(3);
    harness.verifies(1);
    harness.verifies(2);
    (0..3).for_each(|node| harness.ends(node, Ok(())));
    assert!(!harness.transfer.is_over());
    harness.has_only(&[1, 2]);
    assert!(harness.transfer.is_complete());
    // None is left: nothing was copied.
    let mut harness = Harness::without(2, Strategy::Chain, 1);
    harness.has_only(&[]);
    assert_eq!(harness.transfer.end(), Some(End::Failed));
}

#[test]
fn a_node_that_stays_away_is_given_up_after_the_backoff_limit() {
    let mut harness = Harness::chain(3);
    harness.verifies(1);
    harness.dies(2);
    let mut rests = Vec::new();
    while !harness.transfer.is_over() {
        rests.push(harness.wait_out_backoff().as_millis());
    }
    assert_eq!(
        rests,
        [250, 250, 500, 1000],
        "the first attempt brought node1 through"
    );
    assert!(!harness.transfer.is_complete());
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("Verified", "NodeUnreachable")
    );
    assert!(
        harness.log().ends_with("cancel-partials node2 #5"),
        "a partial file is not left"
    );
}

#[test]
fn a_destination_that_is_never_reached_is_given_up_within_seconds() {
    let mut harness = Harness::without(2, Strategy::Chain, 1);
    assert_eq!(harness.reason(1), "NodeNeverReached");
    harness.wait_out_backoff();
    assert!(harness.transfer.is_over());
    assert_eq!(
        harness.now,
        2 * CONNECT_WITHIN + Timing::INTERACTIVE.backoff
    );
    assert!(matches!(harness.phase(1), DestinationPhase::Failed(_)));
    assert_eq!(
        harness.log(),
        "stat\nprepare node1 #1\nstat\nprepare node1 #2",
        "there is nothing to cancel-partials where nobody was reached"
    );
}

#[test]
fn a_destination_that_is_never_reached_is_given_up_as_soon_as_the_others_are_through() {
    let mut harness = Harness::without(3, Strategy::Chain, 2);
    harness.now = Duration::from_secs(60);
    harness.verifies(1);
    harness.wait_out_backoff();
    assert!(harness.transfer.is_over());
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("Verified", "NodeNeverReached")
    );
    assert!(
        harness
            .log()
            .ends_with("cancel node1 #1\nstat\nprepare node2 #2")
    );
}

#[test]
fn a_source_that_is_never_reached_is_given_up_within_seconds() {
    let mut harness = Harness::without(2, Strategy::Chain, 0);
    harness.wait_out_backoff();
    assert!(harness.transfer.is_over());
    assert_eq!(
        harness.now,
        2 * CONNECT_WITHIN + Timing::INTERACTIVE.backoff
    );
    assert_eq!(harness.reason(1), "NodeNeverReached");
    assert_eq!(harness.log(), "stat\nstat");
}

#[test]
fn a_node_that_dies_while_it_prepares_is_waited_for_and_what_it_left_is_removed() {
    // The connection stands, and breaks long after.
    let death = (Duration::from_secs(30), UNREACHABLE);
    let mut harness = Harness::with(2, Strategy::Chain, Some(1), death);
    assert!(matches!(harness.phase(1), DestinationPhase::Retrying(_)));
    let mut rests = 0;
    while !harness.transfer.is_over() {
        harness.wait_out_backoff();
        rests += 1;
    }
    assert_eq!(rests, 3, "as often as the backoff limit says");
    assert!(
        harness
            .log()
            .ends_with("prepare node1 #4\ncancel-partials node1 #4"),
        "it may have made partial files"
    );
}

#[test]
fn a_source_that_dies_is_waited_for_and_the_job_resumes() {
    let mut harness = Harness::chain(3);
    harness.reports(1, |progress| progress.bytes = 10);
    harness.dies(0);
    harness.wait_out_backoff();
    assert_eq!(harness.reason(1), "SenderLost");
    harness.dead.clear();
    harness.log();
    assert_eq!(
        harness.wait_out_backoff(),
        Timing::INTERACTIVE.backoff,
        "it was asked in vain once"
    );
    assert!(harness.log().ends_with("start node0 #2 -> [node1]"));
    harness.all_verify(0..3);
    assert!(harness.transfer.is_complete());
}

#[test]
fn a_full_disk_fails_its_destination_and_no_other() {
    let mut harness = Harness::chain(4);
    harness.log();
    harness.reports(1, |progress| {
        progress.state = State::Failed.into();
        progress.reason = "DiskFull".into();
    });
    // The sender sees it as a child that failed; that is not the source's failure.
    harness.reports(0, |progress| {
        progress.state = State::Failed.into();
        progress.reason = "PeerRefused".into();
        progress.peers = vec![PeerProgress {
            node: name(1),
            role: Role::Child.into(),
            failed: true,
            reason: "PeerRefused".into(),
            ..PeerProgress::default()
        }];
    });
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("DiskFull", "SenderLost")
    );
    harness.wait_out_backoff();
    assert!(
        harness
            .log()
            .ends_with("start node2 #2 -> [node3]\nstart node0 #2 -> [node2]")
    );
    harness.all_verify(0..4);
    assert!(harness.transfer.is_over() && !harness.transfer.is_complete());
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("DiskFull", "Verified")
    );
}

#[test]
fn a_child_that_was_told_of_the_end_before_its_sender_does_not_hide_the_cause() {
    let mut harness = Harness::chain(3);
    let cause = failure(&name(0), "NodeUnreachable", true);
    let died = called(&name(0), 1, Call::WatchProgress, Err(cause.clone()));
    let (transfer, commands) = harness.transfer.clone().step(harness.now, died);
    harness.transfer = transfer;
    harness.reports(1, |progress| {
        progress.peers = vec![PeerProgress {
            node: name(2),
            role: Role::Child.into(),
            failed: true,
            reason: "PeerRefused".into(),
            message: "node node2 refused the call (Cancelled)".into(),
            retriable: true,
            ..PeerProgress::default()
        }];
    });
    harness.pending.extend(commands);
    harness.obey();
    let DestinationPhase::Retrying(failure) = harness.phase(2) else {
        panic!("{:?}", harness.phase(2));
    };
    assert_eq!(failure.reason, "SenderLost");
    assert!(failure.message.contains(&cause.message), "{failure:?}");
}

#[test]
fn nodes_that_receive_from_a_verified_relay_go_on_without_the_source() {
    let mut harness = Harness::chain(4);
    harness.verifies(1);
    harness.log();
    harness.dies(0);
    assert_eq!(harness.log(), "");
    harness.all_verify(2..4);
    assert_eq!(harness.reason(3), "Verified");
}

#[test]
fn a_changed_source_fails_everyone_at_once() {
    let mut harness = Harness::of(3, Strategy::Direct);
    harness.verifies(1);
    harness.log();
    harness.reports(0, |progress| {
        progress.state = State::Failed.into();
        progress.reason = "SourceChanged".into();
    });
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("Verified", "SourceChanged")
    );
    assert!(harness.log().ends_with("cancel-partials node2 #1"));
    assert!(harness.transfer.is_over() && !harness.transfer.is_complete());
}

#[test]
fn a_source_that_is_another_one_at_the_next_attempt_fails_what_is_left() {
    let mut harness = Harness::chain(3);
    harness.verifies(1);
    harness.dies(2);
    harness.ends(0, Ok(()));
    let other = StatResponse {
        fingerprint: vec![2; 32],
        ..found()
    };
    harness.listings.insert(name(0), Ok(other));
    harness.log();
    harness.dead.clear();
    harness.wait_out_backoff();
    assert_eq!(harness.log(), "stat\ncancel-partials node2 #1");
    assert!(harness.transfer.is_over() && !harness.transfer.is_complete());
    assert_eq!(
        (harness.reason(1), harness.reason(2)),
        ("Verified", "SourceChanged")
    );
}

#[test]
fn an_agent_that_has_lost_the_list_is_asked_to_list_again() {
    let (mut transfer, _) = Transfer::begin(Harness::chain(2).transfer.spec().clone());
    transfer = transfer.step(Duration::ZERO, Input::Stat(Ok(found()))).0;
    transfer = transfer
        .step(Duration::ZERO, Input::AttemptRecorded { attempt: 1 })
        .0;
    let lost = called(
        &name(1),
        1,
        Call::Prepare,
        Err(failure(&name(1), "PeerRefused", true)),
    );
    transfer = transfer.step(Duration::ZERO, lost).0;
    let at = transfer.wake_at().unwrap();
    let commands = transfer.step(at, Input::Woken).1;
    assert_eq!(
        commands,
        [Command::Stat {
            manifest_digest: None
        }]
    );
}

#[test]
fn a_source_that_objects_after_all_are_verified_makes_the_job_incomplete() {
    let mut harness = Harness::chain(2);
    harness.verifies(1);
    harness.reports(0, |progress| {
        progress.state = State::Failed.into();
        progress.reason = "SourceChanged".into();
    });
    (0..2).for_each(|node| harness.ends(node, Ok(())));
    assert!(harness.transfer.is_over() && !harness.transfer.is_complete());
    assert_eq!(
        harness.transfer.source_fault().unwrap().reason,
        "SourceChanged"
    );
}

#[test]
fn another_digest_than_the_sources_is_not_verified() {
    let mut harness = Harness::chain(2);
    harness.verifies(1);
    harness.reports(0, |progress| {
        progress.state = State::Verified.into();
        progress.digest = "d2".into();
    });
    (0..2).for_each(|node| harness.ends(node, Ok(())));
    assert_eq!(harness.reason(1), "DigestMismatch");
}

#[test]
fn a_child_that_its_sender_has_lost_is_not_waited_for() {
    let mut harness = Harness::of(3, Strategy::Direct);
    harness.verifies(1);
    harness.log();
    harness.reports(0, |progress| {
        progress.peers = vec![PeerProgress {
            node: name(2),
            role: Role::Child.into(),
            failed: true,
            reason: "PeerStalled".into(),
            retriable: true,
            ..PeerProgress::default()
        }];
    });
    assert_eq!(
        harness.log(),
        "cancel node0 #1\ncancel node1 #1\ncancel node2 #1"
    );
    assert_eq!(harness.reason(2), "PeerStalled");
}

#[test]
fn answers_about_an_earlier_attempt_change_nothing_but_the_counts() {
    let mut harness = Harness::chain(3);
    harness.reports(0, |progress| progress.chunks_sent = 7);
    harness.dies(1);
    harness.dead.clear();
    harness.wait_out_backoff();
    harness.reports(0, |progress| {
        (progress.chunks_sent, progress.chunks_resent) = (5, 1);
    });
    let before = format!("{:?}", harness.transfer.state);
    let progress = ProgressResponse {
        state: State::Failed.into(),
        chunks_sent: 9,
        ..ProgressResponse::default()
    };
    harness.answer(Input::Progress {
        node: name(0),
        attempt: 1,
        progress: Box::new(progress),
    });
    harness.answer(called(&name(0), 1, Call::WatchProgress, Ok(())));
    harness.answer(called(&name(0), 1, cancel(Cleanup::Nothing), Ok(())));
    harness.answer(called(&name(1), 1, Call::Prepare, Ok(())));
    assert_eq!(format!("{:?}", harness.transfer.state), before);
    assert_eq!(harness.transfer.chunks(), (14, 1));
}

#[test]
fn a_source_out_of_reach_is_asked_again_and_one_that_says_no_is_not() {
    let (transfer, _) = Transfer::begin(Harness::chain(2).transfer.spec().clone());
    let no = |retriable| Input::Stat(Err(failure("node0", "SourceMissing", retriable)));
    let (refused, commands) = transfer.clone().step(Duration::ZERO, no(false));
    assert!(refused.is_over() && !refused.is_complete() && commands.is_empty());

    let mut transfer = transfer;
    for _ in 0..3 {
        let rest = transfer.step(Duration::ZERO, no(true)).0;
        let until = rest.wake_at().unwrap();
        let (asking, commands) = rest.step(until, Input::Woken);
        assert_eq!(
            commands,
            [Command::Stat {
                manifest_digest: None
            }]
        );
        transfer = asking;
    }
    assert!(transfer.step(Duration::ZERO, no(true)).0.is_over());
}

#[test]
fn a_job_that_nobody_wants_any_more_is_over_once_everybody_knows() {
    let mut harness = Harness::chain(3);
    harness.log();
    harness.answer(stop(true));
    assert_eq!(
        harness.log(),
        "cancel-partials node0 #1\ncancel-partials node1 #1\ncancel-partials node2 #1"
    );
    assert_eq!(
        harness.transfer.end(),
        Some(End::Cancelled(Cleanup::Partials))
    );
    // What was on its way changes nothing any more.
    harness.verifies(1);
    harness.answer(stop(false));
    assert_eq!(
        harness.transfer.end(),
        Some(End::Cancelled(Cleanup::Partials))
    );
    assert_eq!(harness.log(), "");
}

#[test]
fn agents_of_a_job_that_ends_are_told_what_to_remove() {
    for (cleanup, how) in [
        (Cleanup::Nothing, "cancel"),
        (Cleanup::Partials, "cancel-partials"),
        (Cleanup::Copies, "cancel-copies"),
    ] {
        let mut harness = Harness::chain(2);
        harness.log();
        harness.answer(Input::Cancel(cleanup));
        assert_eq!(harness.log(), format!("{how} node0 #1\n{how} node1 #1"));
        assert_eq!(harness.transfer.end(), Some(End::Cancelled(cleanup)));
    }
}

#[test]
fn a_job_that_is_complete_is_not_stopped_while_the_last_reports_come_in() {
    let mut harness = Harness::chain(3);
    (0..3).for_each(|node| harness.verifies(node));
    harness.log();
    harness.answer(stop(true));
    (0..3).for_each(|node| harness.ends(node, Ok(())));
    assert_eq!(harness.transfer.end(), Some(End::Complete));
    assert_eq!(harness.log(), "");
}

#[test]
fn a_successor_counts_on_and_may_cancel_what_it_did_not_begin() {
    let spec = Harness::chain(3).transfer.spec().clone();
    let leader = LeaderContext {
        attempts_before: 4,
        ..LeaderContext::ONLY
    };
    let spec = Spec { leader, ..spec };
    let (transfer, commands) = Transfer::begin(spec.clone());
    assert_eq!(
        commands,
        [Command::Stat {
            manifest_digest: None
        }]
    );
    let (transfer, commands) = transfer.step(Duration::ZERO, Input::Stat(Ok(found())));
    assert_eq!(commands, [Command::RecordAttempt { attempt: 5 }]);
    assert_eq!(
        (transfer.attempt(), transfer.unrecorded_attempt()),
        (4, Some(5))
    );
    // Nothing is asked of a destination before that is written down.
    let (transfer, commands) = transfer.step(Duration::ZERO, Input::AttemptRecorded { attempt: 4 });
    assert_eq!((commands, transfer.attempt()), (vec![], 4));
    let (transfer, commands) = transfer.step(Duration::ZERO, Input::AttemptRecorded { attempt: 5 });
    let prepare = |node: u32| Command::Call {
        node: name(node),
        attempt: 5,
        call: Call::Prepare,
    };
    assert_eq!(
        (commands, transfer.attempt()),
        (vec![prepare(1), prepare(2)], 5)
    );

    let (transfer, commands) = Transfer::cancelled(spec, Cleanup::Nothing);
    assert_eq!(commands.len(), 3);
    assert_eq!(transfer.phase(), TransferPhase::Ending);
    let ended = commands.into_iter().fold(transfer, |transfer, command| {
        let Command::Call {
            node,
            attempt: 4,
            call,
        } = command
        else {
            panic!("{command:?}");
        };
        assert_eq!(call, cancel(Cleanup::Nothing));
        transfer
            .step(Duration::ZERO, called(&node, 4, call, Ok(())))
            .0
    });
    assert_eq!(ended.end(), Some(End::Cancelled(Cleanup::Nothing)));
}

#[test]
fn a_bad_list_of_files_is_fetched_from_another_agent_in_the_next_attempt() {
    let mut harness = Harness::of(3, Strategy::Direct);
    harness.dies(1);
    harness.dies(2);
    harness.dead.clear();
    harness.bad_lists.insert(name(2));
    harness.wait_out_backoff();
    // node1 got a good one: node2 is tried again, and fetches from there.
    assert_eq!(harness.reason(2), "PeerFaulty");
    assert!(matches!(harness.phase(2), DestinationPhase::Retrying(_)));
    harness.verifies(1);
    harness.verifies(0);
    harness.bad_lists.clear();
    harness.wait_out_backoff();
    assert_eq!(harness.transfer.listing().unwrap().holder, "node1");
    harness.verifies(2);
    harness.verifies(0);
    (0..3).for_each(|node| harness.ends(node, Ok(())));
    assert!(harness.transfer.is_complete());
}

#[test]
fn a_bad_list_that_no_agent_mends_fails_the_job_after_the_backoff_limit() {
    let mut harness = Harness::chain(2);
    harness.dies(1);
    harness.dead.clear();
    harness.bad_lists.insert(name(1));
    let mut rests = 0;
    while !harness.transfer.is_over() {
        harness.wait_out_backoff();
        rests += 1;
    }
    assert_eq!((rests, harness.reason(1)), (3, "PeerFaulty"));
}

#[test]
fn attempts_that_fail_for_a_pending_configuration_do_not_count_towards_the_backoff_limit() {
    let mut harness = Harness::chain(2);
    let update = |configuration_pending| {
        let spec = Harness::chain(2).transfer.spec().clone();
        Input::Destinations(Box::new(DestinationsUpdate {
            destinations: spec.destinations,
            topology: spec.topology,
            payload_share: spec.payload_share,
            configuration_pending,
        }))
    };
    let refuses = |harness: &mut Harness| {
        harness.reports(1, |progress| {
            progress.state = State::Failed.into();
            progress.reason = "SettingsDiffer".into();
            progress.retriable = true;
        });
    };
    harness.answer(update(BTreeSet::from([name(1)])));
    refuses(&mut harness);
    for _ in 0..20 {
        assert!(harness.wait_out_backoff() <= Timing::INTERACTIVE.backoff_max);
        refuses(&mut harness);
    }
    assert_eq!(harness.reason(1), "SettingsDiffer");
    assert!(!harness.transfer.is_over());
    // All agents have it by now: the next failures count.
    harness.answer(update(BTreeSet::new()));
    for _ in 0..4 {
        assert!(!harness.transfer.is_over());
        harness.wait_out_backoff();
        refuses(&mut harness);
    }
    assert!(harness.transfer.is_over());
}

#[test]
fn destinations_say_what_is_wrong_with_a_source_that_cannot_list() {
    let mut harness = Harness::without(2, Strategy::Chain, 0);
    assert_eq!(harness.reason(1), NEVER_REACHED);
    harness.dead.clear();
    harness.wait_out_backoff();
    assert_eq!(
        harness.reason(1),
        "",
        "it is listed, and the attempt has begun"
    );
}

#[test]
fn a_report_that_comes_late_and_says_verified_ends_the_transfer() {
    let mut harness = Harness::chain(3);
    harness.verifies(2);
    harness.dies(0);
    // All are told to end the attempt; then node1 says that it has everything.
    harness.verifies(1);
    assert!(!harness.transfer.is_over());
    harness.dead.clear();
    while let Some(until) = harness.transfer.wake_at() {
        harness.now = until;
        harness.answer(Input::Woken);
    }
    assert!(harness.transfer.is_complete());
}
