//! The controllers against an API server in memory, in virtual time: watches in, requests out, as in a
//! cluster. What is decided is tested where it is decided; here it is that it happens.

pub(crate) mod api_server;
/// The example of docs/add-a-kind.md.
pub(crate) mod example;
pub(crate) mod scenario;

use std::{collections::BTreeMap, num::NonZeroU32};

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt as _;
use tokio::{sync::watch, task::JoinHandle};
use weft_crds::{FabricNode, Phase, RdmaFabric, TransferJob};
use weft_identity::authority::Authority;
use weft_transfer::ConnectionPool;

use self::{
    api_server::{ApiServer, Behaviour},
    example::{Shortcut, ShortcutSpec},
};
use crate::{
    controllers::{resource_slice::ResourceSlice, *},
    reports::{Fabrics, NodeState},
    web::Heartbeat,
};

const SECOND: Duration = Duration::from_secs(1);

/// Controllers that lead, and what they are connected to.
struct Stage {
    server: ApiServer,
    reports: watch::Sender<BTreeMap<String, NodeState>>,
    queries: mpsc::Sender<Query>,
    renew: watch::Sender<Instant>,
    metrics: Metrics,
    controllers: JoinHandle<()>,
    _fabrics: watch::Receiver<Fabrics>,
}

impl Stage {
    /// A cluster of so many nodes of one fabric, whose agents report.
    async fn new(nodes: usize) -> Self {
        let server = ApiServer::new();
        server.put(&scenario::fabric("default", 1));
        server.put(&scenario::namespace("team-a", &["models"]));
        for name in names(nodes) {
            server.put(&scenario::node(&name, &["gpu"]));
        }
        let (reports, reported) = watch::channel(BTreeMap::new());
        let (renew, renewals) = watch::channel(Instant::now());
        let (fabrics, told) = watch::channel(Fabrics::new());
        let (queries, asked) = mpsc::channel(8);
        let authority = Arc::new(Authority::new("lab").unwrap());
        let metrics = Metrics::default();
        let context = Context {
            client: server.client(),
            epoch: 1,
            renewals,
            heartbeat: Heartbeat::default(),
            authority: Arc::clone(&authority),
            pool: ConnectionPool::new(authority),
            tracer: None,
            reports: reported,
            fabrics,
            template: AgentTemplate {
                namespace: "weft-system".to_owned(),
                leader_address: "weft-operator:7410".to_owned(),
                ..AgentTemplate::default()
            },
            service_problem: watch::channel(None).1,
            resource_slices: true,
            consumable_capacity: false,
            writes_per_second: NonZeroU32::new(50).unwrap(),
            jobs_per_namespace: NonZeroU32::new(256).unwrap(),
            labels_per_namespace: NonZeroU32::new(32).unwrap(),
            metrics: metrics.clone(),
        };
        let controllers = tokio::spawn(async move { match run(context, asked).await {} });
        let stage = Self {
            server,
            reports,
            queries,
            renew,
            metrics,
            controllers,
            _fabrics: told,
        };
        stage.report(nodes);
        stage
    }

    /// All agents report.
    fn report(&self, nodes: usize) {
        let reports = names(nodes).map(|name| {
            let report = scenario::report(&name, "default");
            (name, NodeState::new("default", report, Instant::now()))
        });
        self.reports.send_replace(reports.collect());
    }

    /// Lets this much time pass, while the Lease is renewed and the agents report.
    async fn pass(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.renew.send_replace(Instant::now());
            self.reports.send_modify(|reports| {
                for state in reports.values_mut() {
                    state.received_at = Instant::now();
                }
            });
            elapse(SECOND / 10).await;
            assert!(!self.controllers.is_finished());
        }
    }

    /// Lets time pass until this is so. Returns how long it took.
    async fn until(&self, within: Duration, is_so: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < within, "{:#?}", self.server.log());
            self.pass(SECOND / 10).await;
        }
        start.elapsed()
    }

    fn is_fabric_ready(&self) -> bool {
        let fabric: RdmaFabric = self.server.get("", "default").unwrap();
        let conditions = fabric.status.unwrap_or_default().conditions;
        let mut ready = conditions.iter().filter(|one| one.type_ == "Ready");
        ready.next().is_some_and(|one| one.status == "True")
    }

    fn phase(&self, job: &str) -> Phase {
        let job: TransferJob = self.server.get("team-a", job).unwrap();
        job.status.unwrap_or_default().phase
    }

    /// A job that waits: its source is no node of the fabric.
    fn add_job(&self, name: &str) {
        let mut job = scenario::job(name);
        job.spec.source.file.as_mut().unwrap().node = "absent".to_owned();
        self.server.put(&job);
    }

    /// How long a query waits for its answer.
    async fn ask(&self) -> Duration {
        let start = Instant::now();
        let (answer, answered) = tokio::sync::oneshot::channel();
        let query: Query = Box::new(move |known| {
            answer.send(query::neighbours(known.cache, "n1")).unwrap();
        });
        self.queries.send(query).await.unwrap();
        answered.await.unwrap();
        start.elapsed()
    }

    fn edit_job(&self, name: &str, change: impl FnOnce(&mut TransferJob)) {
        let mut job: TransferJob = self.server.get("team-a", name).unwrap();
        change(&mut job);
        self.server.put(&job);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.controllers.abort();
    }
}

/// Lets virtual time pass: it does once every task waits.
async fn elapse(time: Duration) {
    let never = std::future::pending::<()>();
    assert!(tokio::time::timeout(time, never).await.is_err());
}

fn names(nodes: usize) -> impl Iterator<Item = String> {
    (1..=nodes).map(|number| format!("n{number}"))
}

#[tokio::test(start_paused = true)]
async fn a_fabric_is_ready_once_its_agents_run_and_report() {
    let stage = Stage::new(3).await;
    let took = stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    assert!(took <= 3 * SECOND, "{took:?}");
    let sets: Vec<DaemonSet> = stage.server.all();
    assert_eq!(sets.len(), 1);
    for node in stage.server.all::<FabricNode>() {
        assert_eq!(node.spec.fabric, "default");
        assert_eq!(node.status.unwrap().leader_epoch, 1);
    }
    // Nothing is written while nothing changes.
    stage.pass(SECOND).await;
    let before = stage.server.log().len();
    stage.pass(60 * SECOND).await;
    assert_eq!(stage.server.log()[before..], [""; 0]);
}

/// As a kubelet does when the node's driver is away for 30 s.
#[tokio::test(start_paused = true)]
async fn slices_of_a_fabrics_devices_come_with_its_nodes_and_again_when_a_kubelet_removes_them() {
    let stage = Stage::new(2).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    let slices = |stage: &Stage| stage.server.all::<ResourceSlice>().len();
    assert_eq!(slices(&stage), 0);
    let mut fabric: RdmaFabric = stage.server.get("", "default").unwrap();
    fabric.spec.devices = Some(serde_json::from_str(r#"{"perNode": 256}"#).unwrap());
    stage.server.put(&fabric);
    stage.until(5 * SECOND, |stage| slices(stage) == 4).await;
    // The answers have come.
    stage.pass(SECOND).await;
    stage.server.delete::<ResourceSlice>("", "vdev-n2-1");
    assert_eq!(slices(&stage), 3);
    stage.until(5 * SECOND, |stage| slices(stage) == 4).await;
    // Nothing is written while nothing changes.
    stage.pass(5 * SECOND).await;
    let before = stage.server.log().len();
    stage.pass(30 * SECOND).await;
    assert_eq!(stage.server.log()[before..], [""; 0]);
}

/// A release of agents that do not start, or end at once: one node's agent was heard, another's was Ready before
/// this process led.
#[tokio::test(start_paused = true)]
async fn a_node_whose_agent_does_not_report_is_not_ready_after_the_time_of_a_silent_agent() {
    let stage = Stage::new(3).await;
    stage.server.put(&scenario::ready("n2", "default"));
    let reason = |stage: &Stage, name: &str| {
        let node: FabricNode = stage.server.get("", name).unwrap();
        let ready = cache::readiness(&node).cloned().unwrap();
        (ready.status, ready.reason)
    };
    stage.reports.send_modify(|reports| {
        reports.remove("n2");
    });
    let is_heard = |stage: &Stage| {
        stage
            .server
            .get("", "n1")
            .is_some_and(|node: FabricNode| cache::readiness(&node).is_some())
    };
    stage.until(10 * SECOND, is_heard).await;
    assert_eq!(reason(&stage, "n2").0, "True");
    for _ in 0..320 {
        stage.renew.send_replace(Instant::now());
        elapse(SECOND / 10).await;
    }
    assert_eq!(reason(&stage, "n1"), ("False".into(), "AgentSilent".into()));
    assert_eq!(
        reason(&stage, "n2"),
        ("False".into(), "AgentMissing".into())
    );
}

/// A new fabric of 5,000 nodes is to be Ready 240 s after all agents have dialled: at 50 writes a second two writes
/// a node take 200 s. Here 200 nodes have 8 s for that, and 2 s for everything else.
#[tokio::test(start_paused = true)]
async fn a_new_node_costs_two_writes_and_its_fabric_is_ready_as_soon_as_these_are_made() {
    const NODES: usize = 200;
    let stage = Stage::new(0).await;
    for name in names(NODES) {
        // Agents run where the fabric's label is, so they dial after it is written.
        let mut node = scenario::node(&name, &["gpu"]);
        let label = ("weft.dev/fabric".to_owned(), "default".to_owned());
        node.metadata.labels.get_or_insert_default().extend([label]);
        stage.server.put(&node);
    }
    // An agent reports first that it starts, and a second later that it can work.
    stage.report(NODES);
    let ready = |is_ready: bool| {
        stage.reports.send_modify(|reports| {
            for state in reports.values_mut() {
                state.report.ready = is_ready;
            }
        });
    };
    ready(false);
    stage.pass(SECOND).await;
    ready(true);
    let took = SECOND + stage.until(30 * SECOND, Stage::is_fabric_ready).await;
    assert!(took <= 10 * SECOND, "{took:?}");
    let log = stage.server.log();
    let mut writes: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.iter().filter(|line| line.contains("nodes/")) {
        let (_, node) = line.split_once("nodes/").unwrap();
        *writes.entry(node.trim_end_matches("/status")).or_default() += 1;
    }
    assert_eq!(writes.len(), NODES);
    assert!(writes.values().all(|count| *count == 2), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_hangs_for_jobs_holds_up_no_decision_and_no_other_kind() {
    let stage = Stage::new(3).await;
    stage.server.behave("transferjobs", Behaviour::Hangs);
    for number in 0..100 {
        stage.add_job(&format!("job{number}"));
    }
    stage.until(20 * SECOND, Stage::is_fabric_ready).await;
    stage.pass(30 * SECOND).await;
    let asked = stage.ask().await;
    assert!(asked <= SECOND / 20, "{asked:?}");
    // A new node comes, and is written at once.
    stage.server.put(&scenario::node("n4", &["gpu"]));
    stage.report(4);
    let is_known = |stage: &Stage| stage.server.get::<FabricNode>("", "n4").is_some();
    stage.until(3 * SECOND, is_known).await;
    // Once it answers, all jobs have their status.
    let answers = Behaviour::Answers(Duration::ZERO);
    stage.server.behave("transferjobs", answers);
    let all_wait = |stage: &Stage| {
        (0..100).all(|number| stage.phase(&format!("job{number}")) == Phase::Waiting)
    };
    stage.until(60 * SECOND, all_wait).await;
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_hang_for_nodes_and_events_hold_up_no_job() {
    let stage = Stage::new(20).await;
    stage.server.behave("nodes", Behaviour::Hangs);
    stage.server.behave("events", Behaviour::Hangs);
    // That each of them waits is an Event.
    for name in ["first", "second", "third"] {
        stage.add_job(name);
    }
    stage.pass(5 * SECOND).await;
    let log = stage.server.log();
    let events = log.iter().filter(|line| line.contains("/events"));
    assert_eq!(events.count(), 1, "{log:#?}");
    stage.add_job("job");
    let waits = |stage: &Stage| stage.phase("job") == Phase::Waiting;
    let took = stage.until(10 * SECOND, waits).await;
    assert!(took <= SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_answers_in_two_seconds_delays_writes_and_no_decision() {
    let stage = Stage::new(3).await;
    for kind in [
        "transferjobs",
        "nodes",
        "fabricnodes",
        "rdmafabrics",
        "daemonsets",
        "events",
    ] {
        stage.server.behave(kind, Behaviour::Answers(2 * SECOND));
    }
    for number in 0..20 {
        stage.add_job(&format!("job{number}"));
    }
    for _ in 0..100 {
        stage.pass(SECOND / 10).await;
        let asked = stage.ask().await;
        assert!(asked <= SECOND / 20, "{asked:?}");
    }
    stage.until(60 * SECOND, Stage::is_fabric_ready).await;
    assert_eq!(stage.phase("job19"), Phase::Waiting);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_is_made_again_less_and_less_often() {
    let stage = Stage::new(1).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    stage.server.behave("transferjobs", Behaviour::Refuses(500));
    stage.add_job("job");
    let before = stage.server.log().len();
    stage.pass(64 * SECOND).await;
    let log = stage.server.log();
    // At 0, 1, 3, 7, 15, 31 and 63 s.
    assert_eq!(log[before..].len(), 7, "{log:#?}");
    assert_eq!(stage.metrics.failed.get(), 7);
    let answers = Behaviour::Answers(Duration::ZERO);
    stage.server.behave("transferjobs", answers);
    let waits = |stage: &Stage| stage.phase("job") == Phase::Waiting;
    stage.until(33 * SECOND, waits).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_user_edits_all_the_time_gets_its_status() {
    let stage = Stage::new(1).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    let late = Behaviour::Answers(SECOND / 20);
    stage.server.behave("transferjobs", late);
    stage.add_job("job");
    let mut edits = 0;
    while stage.phase("job") != Phase::Waiting {
        edits += 1;
        assert!(edits < 100);
        stage.edit_job("job", |job| {
            job.annotations_mut()
                .insert("edited".into(), edits.to_string());
        });
        stage.pass(SECOND / 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_end_of_its_object_brings_nothing_back() {
    let stage = Stage::new(1).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    let late = Behaviour::AnswersLate(3 * SECOND);
    stage.server.behave("transferjobs", late);
    stage.add_job("job");
    stage.pass(SECOND).await;
    // Its status is written, and the answer is on its way.
    assert_eq!(stage.phase("job"), Phase::Waiting);
    stage.server.delete::<TransferJob>("team-a", "job");
    stage.pass(10 * SECOND).await;
    let before = stage.server.log().len();
    stage.pass(60 * SECOND).await;
    let log = stage.server.log();
    assert_eq!(log[before..], [""; 0], "nothing is written to what is gone");
    // One that takes its name is decided, though an answer to the old one comes after it.
    stage.add_job("job");
    stage.pass(SECOND).await;
    stage.server.delete::<TransferJob>("team-a", "job");
    let mut again = scenario::job("job");
    again.metadata.uid = Some("job-again".to_owned());
    again.spec.source.file.as_mut().unwrap().node = "absent".to_owned();
    stage.server.put(&again);
    let waits = |stage: &Stage| stage.phase("job") == Phase::Waiting;
    stage.until(20 * SECOND, waits).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_ends_before_its_creation_is_answered_is_made_again() {
    let stage = Stage::new(1).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    let late = Behaviour::AnswersLate(3 * SECOND);
    stage.server.behave("fabricnodes", late);
    stage.server.put(&scenario::node("n2", &["gpu"]));
    stage.report(2);
    stage.pass(SECOND).await;
    assert!(stage.server.get::<FabricNode>("", "n2").is_some());
    stage.server.delete::<FabricNode>("", "n2");
    // The answer brings it back into the cache, until a write to it finds that it is gone.
    let is_again = |stage: &Stage| stage.server.get::<FabricNode>("", "n2").is_some();
    stage.until(60 * SECOND, is_again).await;
    stage.until(60 * SECOND, Stage::is_fabric_ready).await;
}

#[tokio::test(start_paused = true)]
async fn writes_stay_within_the_rate() {
    let stage = Stage::new(100).await;
    let mut counts = vec![0];
    while !stage.is_fabric_ready() {
        stage.pass(SECOND).await;
        counts.push(stage.server.log().len());
        assert!(counts.len() < 60, "{counts:?}");
    }
    let most = counts.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(most.is_some_and(|most| most <= 60), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_once_the_lease_is_not_renewed() {
    let stage = Stage::new(1).await;
    stage.until(10 * SECOND, Stage::is_fabric_ready).await;
    elapse(60 * SECOND).await;
    let before = stage.server.log().len();
    stage.add_job("job");
    elapse(60 * SECOND).await;
    assert_eq!(stage.server.log().len(), before);
    // It leads on: everything is made up for.
    let waits = |stage: &Stage| stage.phase("job") == Phase::Waiting;
    stage.until(10 * SECOND, waits).await;
}

/// docs/add-a-kind.md shows this kind.
#[tokio::test(start_paused = true)]
async fn a_kind_of_one_module_and_one_line_is_watched_and_decided() {
    let stage = Stage::new(1).await;
    let spec = ShortcutSpec {
        job: "job".to_owned(),
    };
    let mut shortcut = Shortcut::new("mine", spec);
    shortcut.metadata.namespace = Some("team-a".to_owned());
    stage.server.put(&shortcut);
    let shows = |phase: &'static str| {
        move |stage: &Stage| {
            let shortcut: Shortcut = stage.server.get("team-a", "mine").unwrap();
            shortcut.status.is_some_and(|status| status.phase == phase)
        }
    };
    stage.until(10 * SECOND, shows("")).await;
    stage.add_job("job");
    stage.until(10 * SECOND, shows("Waiting")).await;
    stage.server.behave("shortcuts", Behaviour::Refuses(500));
    stage.edit_job("job", |job| job.spec.suspend = true);
    stage.pass(5 * SECOND).await;
    assert!(shows("Waiting")(&stage));
    let answers = Behaviour::Answers(Duration::ZERO);
    stage.server.behave("shortcuts", answers);
    stage.until(10 * SECOND, shows("Suspended")).await;
}
