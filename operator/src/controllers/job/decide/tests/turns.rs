//! Several jobs of a fabric with a cap: who begins when.

use super::*;
use crate::controllers::job::queue::JOBS_PER_NODE_MAX;

/// What an operator's process runs.
struct Task {
    snapshot: Snapshot,
    /// Attempts up to this number may begin.
    recorded: u32,
}

/// An API server of jobs, and an operator that may be killed.
struct Yard {
    cache: Cache,
    tasks: BTreeMap<String, Task>,
    queue: AdmissionQueue,
    now: Timestamp,
    /// What was asked of the API server, by job.
    log: Vec<(Key, String)>,
    /// The process is killed right after its so manieth request.
    kill_after: Option<usize>,
    is_killed: bool,
}

impl Yard {
    /// Jobs of `NAMESPACE/NAME` from one node to others, made one a second.
    fn of(jobs: &[(&str, &str, &[&str])]) -> Self {
        let mut cache = scenario::cache(6);
        cache.jobs.forget(&minilm());
        let mut fabric = scenario::fabric("default", 1);
        fabric.spec.transport.cap_mbps = Some(1000);
        cache.fabrics = [fabric].into_iter().collect();
        for (second, (name, from, to)) in (0..).zip(jobs) {
            let (namespace, name) = name.split_once('/').unwrap();
            let mut job = scenario::job(name);
            job.metadata.namespace = Some(namespace.to_owned());
            let made = scenario::start() + SignedDuration::from_secs(second);
            job.metadata.creation_timestamp = Some(Time(made));
            job.spec.source.file.as_mut().unwrap().node = (*from).to_owned();
            job.spec.destinations.node_selector = None;
            let to = to.iter().map(|node| (*node).to_owned());
            job.spec.destinations.nodes = Some(to.collect());
            job.spec.destinations.path = format!("{name}/");
            cache.jobs.update(job);
        }
        Self {
            cache,
            tasks: BTreeMap::new(),
            queue: AdmissionQueue::new(usize::MAX),
            now: scenario::start(),
            log: Vec::new(),
            kill_after: None,
            is_killed: false,
        }
    }

    fn key(name: &str) -> Key {
        let (namespace, name) = name.split_once('/').unwrap();
        Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn status(&self, name: &str) -> TransferJobStatus {
        let job = self.cache.jobs.get(&Self::key(name)).unwrap();
        job.status.clone().unwrap_or_default()
    }

    fn phase(&self, name: &str) -> Phase {
        self.status(name).phase
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut TransferJob)) {
        let key = Self::key(name);
        let uid = uid(self.cache.jobs.get(&key).unwrap());
        self.cache.change_job(&key, &uid, change);
    }

    /// All jobs are decided once, then the queue; then what is running goes one step further.
    fn reconcile(&mut self) {
        self.now += SignedDuration::from_secs(1);
        let keys: Vec<Key> = self.cache.jobs.iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            if !self.decide(&key) {
                return;
            }
        }
        self.queue.recompute_admissions();
        for task in self.tasks.values_mut() {
            advance(&mut task.snapshot, task.recorded);
        }
        self.assert_nobody_is_in_too_many();
    }

    /// False once it is killed.
    fn decide(&mut self, key: &Key) -> bool {
        let Some(job) = self.cache.jobs.get(key).cloned() else {
            return true;
        };
        let uid = uid(&job);
        let membership = Membership::of(&self.cache);
        let decision = decide(&View {
            job: &job,
            cache: &self.cache,
            membership: &membership,
            snapshot: self.tasks.get(&uid).map(|task| &task.snapshot),
            applied_node_revision: Some(self.cache.node_revision()),
            reports: &BTreeMap::new(),
            queue: &self.queue,
            leader_epoch: 1,
            led_for: SILENCE,
            status_written_at: None,
            now: self.now,
        });
        self.queue.update_entry(&uid, decision.entry);
        if let Some(request) = &decision.request {
            self.cache.obey(request);
            self.log.push((key.clone(), line(request)));
            if self.kill_after == Some(self.log.len()) {
                self.tasks.clear();
                self.queue = AdmissionQueue::new(usize::MAX);
                self.is_killed = true;
                return false;
            }
        }
        match decision.effect {
            Some(Effect::Begin(transfer)) => {
                let (job, _) = Transfer::begin(transfer.spec);
                let snapshot = Snapshot::of(&job, &transfer.fabric, 0);
                let task = Task {
                    snapshot,
                    recorded: 0,
                };
                assert!(self.tasks.insert(uid, task).is_none());
            }
            Some(Effect::CancelOrphan { transfer, cleanup }) => {
                let (job, _) = Transfer::cancelled(transfer.spec, cleanup);
                let snapshot = Snapshot::of(&job, &transfer.fabric, 0);
                let task = Task {
                    snapshot,
                    recorded: 0,
                };
                assert!(self.tasks.insert(uid, task).is_none());
            }
            Some(Effect::Cancel(cleanup)) => {
                let task = self.tasks.get_mut(&uid).unwrap();
                task.snapshot.end = Some(End::Cancelled(cleanup));
            }
            Some(Effect::AttemptRecorded(attempt)) => {
                self.tasks.get_mut(&uid).unwrap().recorded = attempt;
            }
            Some(Effect::DropTask) => drop(self.tasks.remove(&uid)),
            Some(Effect::ProbeSecret(_) | Effect::UpdateDestinations { .. }) => {
                panic!("nothing asks for that")
            }
            None => {}
        }
        true
    }

    fn assert_nobody_is_in_too_many(&self) {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, job) in self.cache.jobs.iter() {
            let task = self.tasks.get(&uid(job));
            let status = job.status.as_ref();
            let is_said = status.is_some_and(|status| status.phase.is_running());
            if task.map_or(is_said, |task| task.snapshot.end.is_none()) {
                let to = job.spec.destinations.nodes.iter().flatten();
                let from = &job.spec.source.file.as_ref().unwrap().node;
                for node in to.chain([from]) {
                    *count.entry(node).or_default() += 1;
                }
            }
        }
        assert!(
            count.values().all(|count| *count <= JOBS_PER_NODE_MAX),
            "{count:?}"
        );
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..1000 {
            if is_so(self) {
                return;
            }
            self.reconcile();
        }
        panic!("that never happens: {:#?}", self.log);
    }

    fn settle(&mut self) {
        self.until(|yard| {
            let mut jobs = yard.cache.jobs.iter();
            let is_over = |job: &TransferJob| {
                let status = job.status.as_ref();
                status.is_some_and(|status| status.phase.is_over())
            };
            yard.tasks.is_empty() && jobs.all(|(_, job)| is_over(job))
        });
    }

    /// The jobs by when they said so first.
    fn order(&self, word: &str) -> Vec<&str> {
        let said = self.log.iter().filter(|(_, line)| line.starts_with(word));
        let mut names = Vec::new();
        for (key, _) in said {
            if !names.contains(&key.name.as_str()) {
                names.push(key.name.as_str());
            }
        }
        names
    }
}

/// A transfer whose every step takes one reconcile.
fn advance(snapshot: &mut Snapshot, recorded: u32) {
    match snapshot.phase {
        TransferPhase::Listing => {
            snapshot.manifest = Some(weft_crds::ManifestSummary {
                files: 1,
                bytes: 1000,
                digest: None,
                not_kept: Vec::new(),
            });
            (snapshot.phase, snapshot.unrecorded_attempt) =
                (TransferPhase::BetweenAttempts, Some(snapshot.attempt + 1));
        }
        TransferPhase::BetweenAttempts
            if snapshot
                .unrecorded_attempt
                .is_some_and(|number| number <= recorded) =>
        {
            snapshot.attempt = recorded;
            (snapshot.phase, snapshot.unrecorded_attempt) = (TransferPhase::Running, None);
        }
        TransferPhase::Running if !snapshot.start_sent => snapshot.start_sent = true,
        TransferPhase::Running => {
            for destination in &mut snapshot.destinations {
                destination.state = DestinationState::Verified;
            }
            (snapshot.phase, snapshot.end) = (TransferPhase::Over, Some(End::Complete));
        }
        _ => {}
    }
}

fn five() -> Yard {
    Yard::of(&[
        ("team-a/a1", "n1", &["n2", "n3"]),
        ("team-a/a2", "n1", &["n2", "n3"]),
        ("team-a/a3", "n1", &["n2", "n3"]),
        ("team-a/a4", "n1", &["n2", "n3"]),
        ("team-b/b1", "n1", &["n2"]),
        ("team-a/apart", "n4", &["n5"]),
    ])
}

#[test]
fn four_jobs_of_a_namespace_do_not_hold_up_one_of_another() {
    let mut yard = five();
    yard.until(|yard| yard.phase("team-a/a4") == Phase::Waiting);
    let status = yard.status("team-a/a4");
    let planned = status.conditions.iter().find(|one| one.type_ == "Planned");
    let planned = planned.unwrap();
    assert_eq!((&*planned.status, &*planned.reason), ("False", "Queued"));
    assert_eq!(
        (&*planned.message, &*status.fabric),
        (&*status.message, "default")
    );
    assert!(
        status
            .message
            .starts_with("node n1 takes part in 2 jobs at a time")
    );
    assert!(
        status.start_time.is_none()
            && !has_finalizer(yard.cache.jobs.get(&Yard::key("team-a/a4")).unwrap())
    );
    yard.settle();
    // b1 begins with the oldest, and what is apart waits for nobody.
    assert_eq!(
        yard.order("Preparing"),
        ["a1", "apart", "b1", "a2", "a3", "a4"]
    );
    assert_eq!(yard.order("Waiting"), ["a2", "a3", "a4"]);
    // Said once each.
    let said = yard
        .log
        .iter()
        .filter(|(_, line)| line.starts_with("Waiting"));
    assert_eq!(said.count(), 3);
    assert_eq!(yard.status("team-a/a4").fabric, "default");
}

#[test]
fn turns_are_the_same_after_a_crash_after_any_request() {
    let mut whole = five();
    whole.settle();
    for kill in 1..=whole.log.len() {
        let mut yard = five();
        yard.kill_after = Some(kill);
        yard.settle();
        assert!(yard.is_killed);
        for name in ["a1", "a2", "a3", "a4", "apart"] {
            let phase = yard.phase(&format!("team-a/{name}"));
            assert_eq!(
                phase,
                Phase::Complete,
                "killed after {kill}: {:#?}",
                yard.log
            );
        }
        assert_eq!(
            yard.order("Complete").last(),
            Some(&"a4"),
            "{:#?}",
            yard.log
        );
    }
}

#[test]
fn a_job_that_is_suspended_or_cannot_begin_holds_no_place() {
    let mut yard = five();
    yard.edit("team-a/a2", |job| {
        job.spec.source.file.as_mut().unwrap().root = "attic".into();
    });
    yard.until(|yard| yard.phase("team-a/a4") == Phase::Waiting);
    assert_eq!(yard.phase("team-a/a3"), Phase::Waiting);
    yard.edit("team-a/a1", |job| job.spec.suspend = true);
    yard.until(|yard| yard.phase("team-a/a1") == Phase::Suspended);
    yard.until(|yard| yard.phase("team-a/a3") == Phase::Complete);
    yard.until(|yard| yard.phase("team-a/a4") == Phase::Complete);
    let reason = |yard: &Yard, name: &str| {
        let status = yard.status(name);
        let planned = status.conditions.iter().find(|one| one.type_ == "Planned");
        planned.map(|one| one.reason.clone())
    };
    assert_eq!(reason(&yard, "team-a/a2").unwrap(), "RootUnknown");
    yard.edit("team-a/a1", |job| job.spec.suspend = false);
    yard.until(|yard| yard.phase("team-a/a1") == Phase::Complete);
}

#[test]
fn waiting_for_a_turn_is_not_counted_by_the_deadline() {
    let mut yard = five();
    yard.edit("team-a/a4", |job| job.spec.deadline_seconds = Some(8));
    yard.until(|yard| yard.phase("team-a/a4") == Phase::Waiting);
    yard.now += SignedDuration::from_secs(60);
    yard.settle();
    assert_eq!(yard.phase("team-a/a4"), Phase::Complete);
}

#[test]
fn without_a_cap_all_begin_at_once_and_those_that_wait_begin_when_it_goes() {
    let mut yard = five();
    yard.until(|yard| yard.phase("team-a/a4") == Phase::Waiting);
    let mut fabric = scenario::fabric("default", 1);
    fabric.metadata.resource_version = Some("2".into());
    yard.cache.fabrics.update(fabric);
    // They are in each other's way by no rule any more.
    yard.cache.jobs.forget(&Yard::key("team-a/a2"));
    yard.tasks.remove("job-a2");
    for _ in 0..3 {
        let keys: Vec<Key> = yard.cache.jobs.iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            yard.decide(&key);
        }
        yard.queue.recompute_admissions();
    }
    for name in ["job-a1", "job-a3", "job-a4", "job-b1", "job-apart"] {
        assert!(yard.tasks.contains_key(name), "{name}: {:#?}", yard.log);
    }
}

/// Jobs of these names that write to the same path, the first the oldest. The fabric has no cap.
fn to_one_path(names: &[&str]) -> Yard {
    let jobs: Vec<(&str, &str, &[&str])> = names
        .iter()
        .map(|name| (*name, "n1", ["n2"].as_slice()))
        .collect();
    let mut yard = Yard::of(&jobs);
    yard.cache.fabrics = [scenario::fabric("default", 1)].into_iter().collect();
    for name in names {
        yard.edit(name, |job| job.spec.destinations.path = "minilm/".into());
    }
    yard
}

#[test]
fn one_job_at_a_time_writes_to_a_path_and_the_oldest_comes_first() {
    let names = ["team-a/c", "team-a/b", "team-a/a"];
    let mut yard = to_one_path(&names);
    for (number, name) in names.iter().enumerate() {
        yard.until(|yard| yard.phase(name) == Phase::Complete);
        let others = names.iter().skip(number + 1);
        let begun = others.filter(|other| yard.status(other).attempt > 0);
        assert!(begun.count() <= 1, "{:#?}", yard.log);
    }
    let begins = yard
        .log
        .iter()
        .filter(|(_, line)| line.contains("#1 Started"));
    let begins: Vec<&str> = begins.map(|(key, _)| &*key.name).collect();
    assert_eq!(begins, ["c", "b", "a"], "{:#?}", yard.log);
}

#[test]
fn a_job_that_waits_for_a_path_says_for_which_job() {
    let mut yard = to_one_path(&["team-a/first", "team-a/second"]);
    yard.until(|yard| yard.phase("team-a/first") == Phase::Transferring);
    yard.reconcile();
    let status = yard.status("team-a/second");
    assert_eq!(status.phase, Phase::Waiting);
    assert_eq!(
        status.message,
        "spec.destinations.path: TransferJob team-a/first comes first at team-a/minilm of root models; this \
         job begins once that one is over"
    );
    // It does so, too, when that one is deleted.
    yard.edit("team-a/first", deleted);
    yard.until(|yard| yard.phase("team-a/second") == Phase::Complete);
}

#[test]
fn a_successor_lets_nobody_in_beside_a_job_that_is_at_work() {
    let story = |kill_after| {
        let mut yard = to_one_path(&["team-a/z", "team-a/a"]);
        yard.kill_after = kill_after;
        yard.until(|yard| {
            let is_running = |name| yard.status(name).phase.is_running();
            assert!(
                !(is_running("team-a/z") && is_running("team-a/a")),
                "{:#?}",
                yard.log
            );
            yard.phase("team-a/a") == Phase::Complete
        });
        yard
    };
    for request in 1..=story(None).log.len() {
        assert!(story(Some(request)).is_killed);
    }
}

#[test]
fn a_job_that_is_deleted_after_a_crash_keeps_its_path_until_its_agents_know() {
    let mut yard = to_one_path(&["team-a/z", "team-a/a"]);
    yard.until(|yard| yard.phase("team-a/z") == Phase::Transferring);
    // The other one has begun before, so it begins with one step.
    yard.edit("team-a/a", |job| {
        job.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    });
    yard.tasks.clear();
    yard.queue = AdmissionQueue::new(usize::MAX);
    yard.edit("team-a/z", deleted);
    let has_begun = |yard: &Yard| yard.tasks.contains_key("job-a");
    let is_there = |yard: &Yard| yard.cache.jobs.get(&Yard::key("team-a/z")).is_some();
    while is_there(&yard) {
        assert!(!has_begun(&yard), "{:#?}", yard.log);
        yard.reconcile();
    }
    yard.until(has_begun);
}
