use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use weft_crds::DestinationState;
use weft_proto::agent::v1::{ProgressResponse, StatResponse, State};

mod copies;
mod ends;
mod nodes;
mod objects;
mod turns;

use super::*;
use crate::controllers::{
    condition,
    job::obstacle,
    tests::scenario::{self, minilm},
};
use weft_transfer::{Call, Command, DestinationPhase, Failure, Input, Transfer, TransferPhase};

const BYTES: u64 = 1000;

/// An agent by the book.
#[derive(Debug, Default)]
struct Agent {
    /// The newest attempt that it was prepared for, and in which life of the operator.
    attempt: Option<(u32, u32)>,
    /// Something half-written is there.
    partial: bool,
    /// The copy is under its final name.
    verified: bool,
}

/// What an operator's process runs.
struct Process {
    transfer: Transfer,
    pending: VecDeque<Command>,
    /// Attempts up to this number may begin.
    recorded: u32,
    applied_node_revision: Option<u64>,
    began: Timestamp,
}

/// An API server, agents and an operator that may be killed.
struct Stage {
    cache: Cache,
    agents: BTreeMap<String, Agent>,
    process: Option<Process>,
    status_written_at: Option<Timestamp>,
    /// Counts the operator's processes.
    life: u32,
    /// How often agents were told to stop what an earlier process began.
    orphan_cancels: u32,
    now: Timestamp,
    /// What the API server was asked.
    log: Vec<String>,
    /// The process is killed right after its so manieth request, before it does anything else.
    kill_after: Option<usize>,
    /// Agents that do not answer.
    dead: BTreeSet<String>,
    /// What comes of a look at a Secret.
    secret: Result<(), Obstacle>,
    /// Which jobs may begin: what the operator's process knows.
    queue: AdmissionQueue,
    /// What agents say of their nodes.
    reports: BTreeMap<String, NodeState>,
    /// Nodes that were told to release their copies.
    released: BTreeSet<String>,
    /// How long the operator's process has led.
    led_for: Duration,
}

impl Stage {
    fn new() -> Self {
        Self {
            cache: scenario::cache(3),
            agents: BTreeMap::new(),
            process: None,
            status_written_at: None,
            life: 1,
            orphan_cancels: 0,
            now: scenario::start(),
            log: Vec::new(),
            kill_after: None,
            dead: BTreeSet::new(),
            secret: Ok(()),
            queue: AdmissionQueue::new(usize::MAX),
            reports: BTreeMap::new(),
            released: BTreeSet::new(),
            led_for: SILENCE,
        }
    }

    fn with(change: impl FnOnce(&mut TransferJob)) -> Self {
        let mut stage = Self::new();
        stage.edit(change);
        stage
    }

    fn edit(&mut self, change: impl FnOnce(&mut TransferJob)) {
        let uid = uid(self.job());
        self.cache.change_job(&minilm(), &uid, change);
    }

    fn job(&self) -> &TransferJob {
        self.cache.jobs.get(&minilm()).unwrap()
    }

    fn status(&self) -> TransferJobStatus {
        self.job().status.clone().unwrap_or_default()
    }

    fn phase(&self) -> Phase {
        self.status().phase
    }

    /// One decision and what follows from it; whether there was anything to do.
    fn turn(&mut self) -> bool {
        self.now += SignedDuration::from_millis(100);
        let Some(job) = self.cache.jobs.get(&minilm()).cloned() else {
            return false;
        };
        let membership = Membership::of(&self.cache);
        let snapshot = self
            .process
            .as_ref()
            .map(|process| Snapshot::of(&process.transfer, "default", 0));
        let decision = decide(&View {
            job: &job,
            cache: &self.cache,
            membership: &membership,
            snapshot: snapshot.as_ref(),
            applied_node_revision: self
                .process
                .as_ref()
                .and_then(|process| process.applied_node_revision),
            reports: &self.reports,
            queue: &self.queue,
            leader_epoch: 1,
            led_for: self.led_for,
            status_written_at: self.status_written_at,
            now: self.now,
        });
        self.queue.update_entry(&uid(&job), decision.entry);
        let mut is_busy = !self.queue.recompute_admissions().is_empty();
        if let Some(request) = &decision.request {
            is_busy = true;
            self.log.push(line(request));
            self.cache.obey(request);
            if matches!(request.change, Change::ApplyStatus(_)) {
                self.status_written_at = Some(self.now);
            }
            if self.kill_after == Some(self.log.len()) {
                self.kill();
                return true;
            }
        }
        if let Some(effect) = decision.effect {
            is_busy |= self.execute(effect);
        }
        self.carry_on() || is_busy
    }

    fn kill(&mut self) {
        self.process = None;
        self.status_written_at = None;
        self.queue = AdmissionQueue::new(usize::MAX);
        self.life += 1;
    }

    fn execute(&mut self, effect: Effect) -> bool {
        let begin = |(transfer, commands): (Transfer, Vec<Command>)| Process {
            transfer,
            pending: commands.into(),
            recorded: 0,
            applied_node_revision: None,
            began: self.now,
        };
        match effect {
            Effect::ProbeSecret(secret) => {
                self.cache.secrets.insert(secret, self.secret.clone());
            }
            Effect::Begin(transfer) => {
                assert!(self.process.is_none());
                self.process = Some(begin(Transfer::begin(transfer.spec)));
            }
            Effect::CancelOrphan { transfer, cleanup } => {
                let before = self.process.as_ref();
                assert!(before.is_none_or(|process| process.transfer.is_over()));
                self.orphan_cancels += 1;
                self.process = Some(begin(Transfer::cancelled(transfer.spec, cleanup)));
            }
            Effect::UpdateDestinations { revision, update } => {
                let now = self.since();
                let process = self.process.as_mut().unwrap();
                process.applied_node_revision = Some(revision);
                if let Some((destinations_update, _)) = update.map(|update| *update) {
                    let (transfer, commands) = process
                        .transfer
                        .clone()
                        .step(now, Input::Destinations(Box::new(destinations_update)));
                    process.transfer = transfer;
                    process.pending.extend(commands);
                }
            }
            Effect::AttemptRecorded(attempt) => {
                let process = self.process.as_mut().unwrap();
                return std::mem::replace(&mut process.recorded, attempt) != attempt;
            }
            Effect::Cancel(cleanup) => return self.tell(Input::Cancel(cleanup)),
            Effect::DropTask => {
                assert!(self.process.is_some());
                self.process = None;
            }
        }
        true
    }

    /// Has the job know of it; whether it goes on from there.
    fn tell(&mut self, input: Input) -> bool {
        let now = self.since();
        let process = self.process.as_mut().unwrap();
        let before = process.transfer.phase();
        let (transfer, commands) = process.transfer.clone().step(now, input);
        process.transfer = transfer;
        process.pending.extend(commands);
        process.transfer.phase() != before
    }

    fn since(&self) -> Duration {
        let process = self.process.as_ref().unwrap();
        self.now.duration_since(process.began).unsigned_abs()
    }

    /// Carries out a command, or lets an agent say something.
    fn carry_on(&mut self) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        let answer = match process.pending.pop_front() {
            // One that is stopped records no attempt any more.
            Some(Command::RecordAttempt { attempt })
                if process.recorded < attempt
                    && process.transfer.unrecorded_attempt() == Some(attempt) =>
            {
                process
                    .pending
                    .push_front(Command::RecordAttempt { attempt });
                return false;
            }
            Some(command) => self.answer(command),
            None => self.speak(),
        };
        let Some(answer) = answer else { return false };
        let now = self.since();
        let process = self.process.as_mut().unwrap();
        let (transfer, commands) = process.transfer.clone().step(now, answer);
        process.transfer = transfer;
        process.pending.extend(commands);
        true
    }

    fn answer(&mut self, command: Command) -> Option<Input> {
        Some(match command {
            Command::Stat { .. } => Input::Stat(Ok(StatResponse {
                files: 1,
                bytes: BYTES,
                ..StatResponse::default()
            })),
            Command::RecordAttempt { attempt } => Input::AttemptRecorded { attempt },
            Command::Call {
                call: Call::WatchProgress,
                ..
            } => return self.speak(),
            Command::Call {
                node,
                attempt,
                call,
            } => {
                let result = self.called(&node, attempt, &call);
                Input::Called {
                    node,
                    attempt,
                    call,
                    result,
                }
            }
        })
    }

    fn called(&mut self, node: &str, attempt: u32, call: &Call) -> Result<(), Failure> {
        let is_dead = self.dead.contains(node);
        match call {
            Call::Prepare if is_dead => return Err(unreachable(node)),
            Call::Prepare => {
                let agent = self.agents.entry(node.to_owned()).or_default();
                if let Some((before, life)) = agent.attempt {
                    // It would be refused: the number stands for what another process did.
                    assert!(
                        attempt > before || life == self.life,
                        "attempt {attempt} again"
                    );
                }
                agent.attempt = Some((attempt, self.life));
                agent.partial = !agent.verified;
            }
            Call::Start(_) | Call::WatchProgress => {}
            Call::Cancel { .. } if is_dead => return Err(unreachable(node)),
            Call::Cancel { cleanup, .. } => {
                let agent = self.agents.entry(node.to_owned()).or_default();
                agent.partial &= *cleanup == Cleanup::Nothing;
                if *cleanup == Cleanup::Copies {
                    // The source's own files stay.
                    agent.verified &= node == "n1";
                    self.released.insert(node.to_owned());
                }
            }
        }
        Ok(())
    }

    /// The next who has not said that it is through says so; then all hang up.
    fn speak(&mut self) -> Option<Input> {
        let process = self.process.as_ref().unwrap();
        let (transfer, attempt) = (&process.transfer, process.transfer.attempt());
        if transfer.phase() != TransferPhase::Running {
            return transfer.wake_at().map(|_| Input::Woken);
        }
        let is_in = |node: &str| {
            let agent = self.agents.get(node).and_then(|agent| agent.attempt);
            agent.is_some_and(|(number, _)| number == attempt)
        };
        let dead = self.dead.iter();
        let mut dead = dead.filter(|node| is_in(node) && transfer.stalled(node).is_none());
        if let Some(node) = dead.next() {
            return Some(Input::Called {
                node: node.clone(),
                attempt,
                call: Call::WatchProgress,
                result: Err(unreachable(node)),
            });
        }
        let waiting = transfer
            .destinations()
            .filter(|view| !self.dead.contains(&view.location.node))
            .find(|view| {
                !matches!(view.phase, DestinationPhase::Verified { .. })
                    && is_in(&view.location.node)
            })
            .map(|view| view.location.node.clone());
        let node = match waiting {
            Some(node) => node,
            None if is_in("n2") && transfer.source_progress().state() != State::Verified => {
                "n1".to_owned()
            }
            None => {
                let silent = ["n1", "n2", "n3", "n4", "n1/here"]
                    [usize::try_from(self.now.as_millisecond() / 100 % 5).unwrap()];
                return Some(Input::Called {
                    node: silent.into(),
                    attempt,
                    call: Call::WatchProgress,
                    result: Ok(()),
                });
            }
        };
        let agent = self.agents.entry(node.clone()).or_default();
        (agent.verified, agent.partial) = (true, false);
        let report = ProgressResponse {
            state: State::Verified.into(),
            bytes: BYTES,
            bytes_total: BYTES,
            digest: "d1".into(),
            link: "udp".into(),
            ..ProgressResponse::default()
        };
        Some(Input::Progress {
            node,
            attempt,
            progress: Box::new(report),
        })
    }

    /// Until there is nothing to do.
    fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..2000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            if idle > 3 {
                return;
            }
        }
        panic!("it never settles: {:#?}", self.log);
    }

    /// Until that is so.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("that never happens: {:#?}", self.log);
    }

    fn leftovers(&self) -> Vec<&str> {
        let partial = self.agents.iter().filter(|(_, agent)| agent.partial);
        partial.map(|(node, _)| node.as_str()).collect()
    }
}

fn line(request: &Request) -> String {
    let events = request.events.iter().map(|event| event.reason.as_str());
    let events: Vec<&str> = events.collect();
    match &request.change {
        Change::ApplyStatus(status) => {
            let status: TransferJobStatus = serde_json::from_value(status.clone()).unwrap();
            format!(
                "{:?} #{} {}",
                status.phase,
                status.attempt,
                events.join(",")
            )
        }
        Change::Apply(manifest) => {
            let has_finalizer = manifest["metadata"]["finalizers"][0] == FINALIZER;
            let word = if has_finalizer { "hold" } else { "release" };
            [vec![word], events].concat().join(" ")
        }
        Change::Delete => "delete".to_owned(),
        Change::MergeMetadata(_) => panic!("{request:?}"),
    }
}

fn unreachable(node: &str) -> Failure {
    Failure {
        reason: "NodeNeverReached".into(),
        message: format!("node {node} does not answer"),
        node: node.to_owned(),
        retriable: true,
    }
}

fn deleted(job: &mut TransferJob) {
    job.metadata.deletion_timestamp = Some(Time(scenario::start()));
}

#[test]
fn a_job_gets_its_finalizer_records_an_attempt_moves_and_loses_its_finalizer() {
    let mut stage = Stage::new();
    stage.settle();
    assert_eq!(
        stage.log,
        [
            "hold",
            "Preparing #1 Started,Planned",
            "Transferring #1 Transferring",
            "Transferring #1 ",
            "Transferring #1 ",
            "Transferring #1 ",
            "Complete #1 Complete",
            "release",
        ]
    );
    let status = stage.status();
    assert_eq!((status.counts.total, status.counts.verified), (2, 2));
    assert_eq!((status.bytes, status.bytes_total), (2000, 2000));
    assert_eq!(status.progress, "100% of 2.0 kB");
    assert_eq!(status.manifest.unwrap().digest.unwrap(), "d1");
    assert!(condition::is_true(&status.conditions, "Complete"));
    assert!(condition::is_true(&status.conditions, "Planned"));
    assert!(status.completion_time >= status.start_time && status.start_time.is_some());
    assert!(
        status
            .destinations
            .iter()
            .all(|d| d.state == DestinationState::Verified)
    );
    assert_eq!(status.link.unwrap().name, "udp");
}

/// Runs a story once for every request that it makes, with the operator killed right after it.
fn killed_after_any_request(story: impl Fn(&mut Stage)) {
    let mut whole = Stage::new();
    story(&mut whole);
    for kill in 1..=whole.log.len() {
        let mut stage = Stage::new();
        stage.kill_after = Some(kill);
        story(&mut stage);
        assert_eq!(
            stage.life, 2,
            "killed after request {kill}: {:?}",
            stage.log
        );
    }
}

#[test]
fn a_job_is_complete_after_a_crash_after_any_request() {
    killed_after_any_request(|stage| {
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert!(["n2", "n3"].iter().all(|node| stage.agents[*node].verified));
        assert!(!has_finalizer(stage.job()) && stage.leftovers().is_empty());
    });
}

#[test]
fn a_successor_goes_on_with_the_next_attempt() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    stage.kill();
    stage.settle();
    assert_eq!(
        (stage.phase(), stage.status().attempt),
        (Phase::Complete, 2)
    );
}

#[test]
fn a_job_deleted_while_it_runs_leaves_nothing_at_the_agents() {
    killed_after_any_request(|stage| {
        stage.until(|stage| {
            stage.agents.get("n3").is_some_and(|agent| agent.partial)
                || stage.life == 2 && stage.log.len() > 4
        });
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        assert_eq!(stage.leftovers(), Vec::<&str>::new(), "{:?}", stage.log);
    });
}

#[test]
fn a_job_is_gone_soon_though_a_node_is_down_and_says_what_is_left_there() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    // A successor does not know whether the node was ever reached.
    stage.kill();
    stage.until(|stage| stage.process.is_some());
    stage.dead.insert("n3".into());
    let since = stage.now;
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert_eq!(stage.log.last().unwrap(), "release FilesLeft");
    assert_eq!(stage.leftovers(), ["n3"]);
    let took = stage.now.duration_since(since);
    assert!(took < SignedDuration::from_secs(10), "{took:?}");
    let said = status::left_behind(&scenario::job("minilm"), &["n3".to_owned()]);
    assert_eq!(
        said.unwrap().note,
        "n3 did not confirm that the job's files are removed: the agent was not reached, or could not remove them (its \
         log says why); what had arrived may be left: files .weft-job-minilm-* in root models at team-a/minilm; remove \
         them when no job of that name is under way there"
    );
}

#[test]
fn a_job_that_never_began_is_deleted_without_a_word_to_anybody() {
    let mut stage =
        Stage::with(|job| job.spec.destinations.node_selector = Some(scenario::labelled("none")));
    stage.settle();
    assert_eq!(stage.log, ["Waiting #0 NoDestinations"]);
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none() && stage.agents.is_empty());
}

#[test]
fn a_job_waits_for_a_destination_and_goes_on_when_there_is_one() {
    let mut stage = Stage::new();
    for node in ["n2", "n3"] {
        stage.cache.nodes.forget(&Key::cluster_scoped(node));
    }
    stage.settle();
    assert_eq!(stage.log, ["Waiting #0 NoDestinations"]);
    stage.cache.nodes.update(scenario::node("n2", &["gpu"]));
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete);
    assert_eq!(stage.status().message, "");
}

#[test]
fn a_successor_shows_what_is_there_from_its_first_word_on() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.status().counts.verified == 1);
    stage.kill();
    // From then on until n3 is through, too.
    stage.until(|stage| {
        let status = stage.status();
        assert_eq!(status.bytes_total, 2000);
        assert!(status.bytes >= 1000, "{:?}", stage.log);
        assert!(!status.progress.starts_with("0%"), "{}", status.progress);
        status.phase == Phase::Complete
    });
    assert_eq!(stage.status().bytes, 2000);
}

#[test]
fn a_job_that_can_never_begin_fails_at_once() {
    let mut stage = Stage::with(|job| job.spec.destinations.path = "minilm/copy".into());
    stage.settle();
    assert_eq!(stage.log, ["Failed #0 CopyWithinSource"]);
}

#[test]
fn progress_is_written_when_it_is_old_and_a_hundredth_has_moved_or_the_rate_is_another() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.phase() == Phase::Transferring);
    let process = stage.process.as_ref().unwrap();
    let snapshot = Snapshot {
        bytes_total: 100_000,
        ..Snapshot::of(&process.transfer, "default", 1_000_000)
    };
    let membership = Membership::of(&stage.cache);
    let mut job = stage.job().clone();
    job.status = Some(status::transfer_status(&job, &snapshot, stage.now));
    let now = stage.now;
    let decide = |bytes, bytes_per_second, age| {
        let snapshot = Snapshot {
            bytes,
            bytes_per_second,
            ..snapshot.clone()
        };
        decide(&View {
            job: &job,
            cache: &stage.cache,
            membership: &membership,
            snapshot: Some(&snapshot),
            applied_node_revision: Some(stage.cache.node_revision()),
            reports: &stage.reports,
            queue: &stage.queue,
            leader_epoch: 1,
            led_for: SILENCE,
            status_written_at: Some(now),
            now: now + SignedDuration::from_secs(age),
        })
        .request
    };
    assert_eq!(decide(999, 1_000_000, 60), None);
    assert_eq!(decide(50_000, 1_000_000, 4), None);
    for (rate, age, is_written) in [
        (499_999, 60, true),
        (2_000_002, 60, true),
        (499_999, 59, false),
        (500_000, 600, false),
        (2_000_000, 600, false),
    ] {
        assert_eq!(decide(0, rate, age).is_some(), is_written, "{rate}");
    }
    let request = decide(1000, 1_000_000, 5).unwrap();
    assert_eq!(request.priority, Priority::Low);
    assert_eq!(request.events, []);
}
