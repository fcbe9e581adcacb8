use std::time::Duration;

use kube::core::PartialObjectMeta;
use tokio::time::Instant;
use weft_crds::RootAccess;

use super::*;
use crate::controllers::{
    cache::FORCE,
    fabric::{agents::AgentTemplate, configuration::config},
    membership::Membership,
    tests::scenario,
};

mod configuration;
mod devices;
mod labels;

/// Labels of models of one namespace that a node may have.
const LABELS: usize = 2;
const HOUR: Duration = Duration::from_secs(3600);

struct Stage {
    cache: Cache,
    reports: BTreeMap<String, NodeState>,
    led_for: Duration,
    now: Timestamp,
    now_instant: Instant,
    /// Nodes that the API server does not let anybody write to.
    refused: BTreeSet<String>,
    /// What the API server has refused to write, and why.
    errors: BTreeMap<ObjectId, String>,
    /// What is wrong with the Service that owns the DaemonSets.
    service_problem: Option<&'static str>,
}

impl Stage {
    /// Nodes n1 to n3 with label gpu, which nobody has looked at yet.
    fn new() -> Self {
        let mut cache = scenario::cache(3);
        cache.fabric_nodes = std::iter::empty().collect();
        Self {
            cache,
            reports: BTreeMap::new(),
            now_instant: Instant::now() + HOUR,
            led_for: HOUR,
            now: scenario::start(),
            refused: BTreeSet::new(),
            errors: BTreeMap::new(),
            service_problem: None,
        }
    }

    fn decide(&self) -> Vec<Request> {
        self.decision().requests
    }

    fn decision(&self) -> Decision {
        let membership = Membership::of(&self.cache);
        let template = AgentTemplate {
            namespace: "weft-system".into(),
            ..AgentTemplate::default()
        };
        decide(&View {
            cache: &self.cache,
            membership: &membership,
            reports: &self.reports,
            led_for: self.led_for,
            refused: &self.errors,
            service_problem: self.service_problem,
            labels_per_namespace: LABELS,
            template: &template,
            now: self.now,
            now_instant: self.now_instant,
        })
    }

    /// Decides anew after each single request, as one who begins anew after each would.
    fn settle(&mut self) -> Vec<String> {
        let mut log = Vec::new();
        let is_let = |request: &Request| {
            request.kind() != "Node" || !self.refused.contains(&request.key.name)
        };
        while let Some(request) = self.decide().iter().find(|request| is_let(request)) {
            log.push(line(request));
            self.cache.obey(request);
            assert!(log.len() < 100, "{log:#?}");
        }
        log
    }

    fn add_report(&mut self, node: &str, silent: u64) {
        let received_at = self.now_instant - Duration::from_secs(silent);
        let state = NodeState::new("default", scenario::report(node, "default"), received_at);
        self.reports.insert(node.to_owned(), state);
    }

    /// Somebody deletes the fabric, which has these annotations.
    fn delete_fabric(&mut self, annotations: &[&str]) {
        let mut fabric = self.cache.fabrics.named("default").unwrap().clone();
        let version = if annotations.is_empty() { "100" } else { "200" };
        fabric.metadata.resource_version = Some(version.into());
        fabric.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now),
        );
        let annotations = annotations.iter();
        let annotations = annotations.map(|key| ((*key).to_owned(), "true".to_owned()));
        fabric.metadata.annotations = Some(annotations.collect());
        self.cache.fabrics.update(fabric);
    }

    fn ready(&self, node: &str) -> (String, String) {
        let node = self.cache.fabric_nodes.named(node).unwrap();
        let condition = readiness(node).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    /// The fabric that a node says it is of.
    fn label(&self, node: &str) -> Option<&str> {
        let labels = self.cache.nodes.named(node).unwrap().labels();
        labels.get(FABRIC_LABEL).map(String::as_str)
    }

    fn fabric(&self, name: &str, kind: &str) -> (String, String, String) {
        let status = self
            .cache
            .fabrics
            .named(name)
            .unwrap()
            .status
            .clone()
            .unwrap();
        let condition = status
            .conditions
            .iter()
            .find(|c| c.type_ == kind)
            .unwrap()
            .clone();
        (condition.status, condition.reason, condition.message)
    }
}

fn line(request: &Request) -> String {
    let verb = match request.change {
        Change::ApplyStatus(_) => "status",
        Change::MergeMetadata(_) => "label",
        Change::Apply(_) => "apply",
        Change::Delete => "delete",
    };
    format!("{verb} {} {}", request.kind(), request.key.name)
}

#[test]
fn a_new_fabric_gets_agents_and_nodes_and_is_ready_once_all_have_reported() {
    let mut stage = Stage::new();
    let log = stage.settle();
    assert_eq!(
        log,
        [
            "label Node n1",
            "label Node n2",
            "label Node n3",
            "apply DaemonSet weft-agent-default",
            "apply FabricNode n1",
            "status FabricNode n1",
            "apply FabricNode n2",
            "status FabricNode n2",
            "apply FabricNode n3",
            "status FabricNode n3",
            "apply RdmaFabric default",
            "status RdmaFabric default",
        ]
    );
    assert_eq!(stage.ready("n1"), ("False".into(), "AgentMissing".into()));
    let (status, reason, message) = stage.fabric("default", "Ready");
    assert_eq!((&*status, &*reason), ("False", "NodesNotReady"));
    assert!(
        message.starts_with("3 of 3 nodes are not ready: n1, n2, n3;"),
        "{message}"
    );

    for node in ["n1", "n2", "n3"] {
        stage.add_report(node, 1);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");
    let count = stage
        .cache
        .fabrics
        .named("default")
        .unwrap()
        .status
        .clone()
        .unwrap()
        .nodes;
    assert_eq!((count.selected, count.ready), (3, 3));
    // What has been said is not said again.
    assert_eq!(stage.settle(), Vec::<String>::new());
}

#[test]
fn a_new_leader_says_that_a_fabric_is_unknown_until_its_agents_have_reported() {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.add_report(node, 1);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");
    let reports = std::mem::take(&mut stage.reports);
    stage.led_for = Duration::ZERO;
    assert_eq!(stage.settle(), ["status RdmaFabric default"]);
    let (status, reason, message) = stage.fabric("default", "Ready");
    assert_eq!((&*status, &*reason), ("Unknown", "AgentsNotHeard"));
    assert!(message.contains("3 of 3 nodes"), "{message}");
    stage.reports = reports;
    assert_eq!(stage.settle(), ["status RdmaFabric default"]);
    assert_eq!(stage.fabric("default", "Ready").0, "True");
}

#[test]
fn a_fabric_says_why_the_daemon_set_of_its_agents_cannot_be_written() {
    let mut stage = Stage::new();
    stage.settle();
    assert_eq!(stage.fabric("default", "AgentsApplied").0, "True");
    let problem = "quantities must match the regular expression".to_owned();
    let daemon_set = Key {
        namespace: "weft-system".into(),
        name: "weft-agent-default".into(),
    };
    let daemon_set = ObjectId::of::<DaemonSet>(daemon_set);
    stage.errors.insert(daemon_set, problem);
    assert_eq!(stage.settle(), ["status RdmaFabric default"]);
    let (status, reason, message) = stage.fabric("default", "AgentsApplied");
    assert_eq!((&*status, &*reason), ("False", "WriteRefused"));
    assert!(
        message.contains("weft-agent-default") && message.contains("quantities"),
        "{message}"
    );
    stage.errors.clear();
    stage.settle();
    assert_eq!(stage.fabric("default", "AgentsApplied").0, "True");
}

#[test]
fn a_fabric_names_the_service_without_which_it_has_no_daemon_set() {
    let mut stage = Stage::new();
    stage.settle();
    // Kubernetes deletes the DaemonSet with the Service that owns it.
    stage.service_problem = Some("Service weft-operator in namespace weft-system is missing");
    stage.cache.daemon_sets = std::iter::empty().collect();
    assert_eq!(stage.settle(), ["status RdmaFabric default"]);
    let (status, reason, message) = stage.fabric("default", "AgentsApplied");
    assert_eq!((&*status, &*reason), ("False", "ServiceMissing"));
    assert!(message.starts_with("Service weft-operator"), "{message}");
    stage.service_problem = None;
    let requests = stage.settle();
    assert!(
        requests.iter().any(|one| one.contains("DaemonSet")),
        "{requests:?}"
    );
    assert_eq!(stage.fabric("default", "AgentsApplied").0, "True");
}

#[test]
fn an_agent_whose_control_address_is_not_its_nodes_is_not_ready_and_not_called() {
    let mut stage = Stage::new();
    let mut report = |control: &str| {
        stage.add_report("n1", 0);
        let report = &mut stage.reports.get_mut("n1").unwrap().report;
        report.control_address = control.to_owned();
        // The data may take another interface.
        report.data_address = "192.168.7.1".to_owned();
        stage.settle();
        let node = stage.cache.fabric_nodes.named("n1").unwrap();
        let ready = readiness(node).unwrap().clone();
        (ready, node.status.clone().unwrap().control_address)
    };
    let (ready, address) = report("10.0.0.2:7400");
    assert_eq!(
        (&*ready.status, &*ready.reason, &*address),
        ("False", "ControlAddressNotOfNode", "")
    );
    for named in ["10.0.0.2:7400", "(10.0.0.1)"] {
        assert!(ready.message.contains(named), "{}", ready.message);
    }
    let (ready, address) = report("10.0.0.1:7500");
    assert_eq!((&*ready.reason, &*address), ("AgentReady", "10.0.0.1:7500"));
}

#[test]
fn the_status_of_a_new_node_waits_a_minute_for_its_agent_to_start() {
    let mut stage = Stage::new();
    stage.settle();
    let node = |stage: &mut Stage, age: SignedDuration| {
        let mut node = stage.cache.fabric_nodes.named("n1").unwrap().clone();
        node.status = None;
        node.metadata.creation_timestamp = Some(condition::whole_seconds(stage.now - age));
        stage.cache.fabric_nodes.update(node);
        stage.settle();
        let node = stage.cache.fabric_nodes.named("n1").unwrap();
        readiness(node).map(|ready| ready.reason.clone())
    };
    let almost = STARTUP - SignedDuration::from_secs(1);
    assert_eq!(node(&mut stage, almost), None);
    assert_eq!(node(&mut stage, STARTUP).as_deref(), Some("AgentMissing"));
    // An agent that starts says no more than that it runs.
    stage.add_report("n1", 0);
    stage.reports.get_mut("n1").unwrap().report.ready = false;
    assert_eq!(node(&mut stage, almost), None);
    assert_eq!(node(&mut stage, STARTUP).as_deref(), Some("AgentNotReady"));
    let report = &mut stage.reports.get_mut("n1").unwrap().report;
    report.findings = vec![weft_proto::operator::v1::Finding {
        reason: "RootMissing".into(),
        message: "root models is not mounted".into(),
    }];
    assert_eq!(node(&mut stage, almost).as_deref(), Some("AgentNotReady"));
    stage.add_report("n1", 0);
    assert_eq!(node(&mut stage, almost).as_deref(), Some("AgentReady"));
}

#[test]
fn a_nic_that_goes_down_and_comes_up_is_in_the_status_and_an_event_each_time() {
    let mut stage = Stage::new();
    let nic = |number: u8, up| weft_proto::operator::v1::NodeNic {
        interface: format!("rail{number}"),
        address: format!("192.168.{number}.5"),
        mbps: 100_000,
        up,
    };
    let down = weft_proto::operator::v1::Finding {
        reason: "NicDown".into(),
        message: "rail1 (192.168.1.5) has no carrier".into(),
    };
    stage.add_report("n1", 0);
    stage.settle();
    let mut report = |is_up: bool| {
        let before = stage.cache.fabric_nodes.named("n1").unwrap().status.clone();
        let report = &mut stage.reports.get_mut("n1").unwrap().report;
        report.nics = vec![nic(0, true), nic(1, is_up)];
        report.findings = (!is_up).then(|| down.clone()).into_iter().collect();
        stage.settle();
        assert_eq!(stage.ready("n1").1, "AgentReady");
        let node = stage.cache.fabric_nodes.named("n1").unwrap();
        let now = node.status.clone().unwrap();
        assert_eq!(now.nics[1].up, is_up);
        let events = node_events(before.as_ref(), &now).into_iter();
        events
            .map(|event| (event.reason, event.note))
            .collect::<Vec<_>>()
    };
    assert_eq!(report(true), []);
    let told = |reason: &str, note: &str| vec![(reason.to_owned(), note.to_owned())];
    assert_eq!(report(false), told("NicDown", &down.message));
    let up = "rail1 (192.168.1.5) is up again";
    assert_eq!(report(true), told("NicUp", up));
}

#[test]
fn a_node_is_not_ready_after_thirty_seconds_of_silence() {
    let mut stage = Stage::new();
    for (silent, expected) in [(29, "AgentReady"), (30, "AgentSilent"), (0, "AgentReady")] {
        stage.add_report("n1", silent);
        stage.settle();
        assert_eq!(stage.ready("n1").1, expected, "{silent}");
    }
    let state = stage.reports.get_mut("n1").unwrap();
    state.report.ready = false;
    state.report.findings = vec![weft_proto::operator::v1::Finding {
        reason: "RootMissing".into(),
        message: "root models is not mounted".into(),
    }];
    stage.settle();
    assert_eq!(stage.ready("n1"), ("False".into(), "AgentNotReady".into()));
    let status = stage
        .cache
        .fabric_nodes
        .named("n1")
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!(status.findings[0].reason, "RootMissing");
    assert!(
        status.conditions[0]
            .message
            .contains("root models is not mounted")
    );
}

#[test]
fn a_new_leader_believes_what_is_written_until_agents_had_time_to_find_it() {
    let mut stage = Stage::new();
    stage.cache = scenario::cache(3);
    stage.led_for = Duration::from_secs(29);
    stage.settle();
    assert_eq!(stage.ready("n1").0, "True");
    stage.led_for = Duration::from_secs(30);
    stage.settle();
    assert_eq!(stage.ready("n1").1, "AgentMissing");
}

#[test]
fn a_node_that_an_uninstallation_left_unknown_is_ready_once_its_agent_has_reported_and_else_not() {
    let mut stage = Stage::new();
    stage.cache = scenario::cache(3);
    for name in ["n1", "n2"] {
        let mut node = stage.cache.fabric_nodes.named(name).unwrap().clone();
        let conditions = &mut node.status.as_mut().unwrap().conditions;
        let update = ConditionUpdate::unknown("Ready", "Uninstalled", "");
        condition::set(conditions, update, 1, stage.now);
        node.metadata.resource_version = Some("100".into());
        stage.cache.fabric_nodes.update(node);
    }
    stage.led_for = Duration::ZERO;
    stage.add_report("n1", 0);
    stage.settle();
    assert_eq!(stage.ready("n1").0, "True");
    assert_eq!(stage.ready("n2").0, "Unknown");
    stage.led_for = SILENCE;
    stage.settle();
    assert_eq!(stage.ready("n2"), ("False".into(), "AgentMissing".into()));
}

#[test]
fn an_agent_of_another_fabric_does_not_speak_for_a_node() {
    let mut stage = Stage::new();
    let report = scenario::report("n1", "other");
    let state = NodeState::new("other", report, stage.now_instant);
    stage.reports.insert("n1".into(), state);
    stage.settle();
    assert_eq!(stage.ready("n1").1, "AgentMissing");
}

#[test]
fn a_node_of_two_fabrics_belongs_to_the_older_and_the_other_says_so() {
    let mut stage = Stage::new();
    let mut younger = scenario::fabric("all", 2);
    younger.spec.node_selector = Default::default();
    stage.cache.fabrics.update(younger);
    stage.cache.nodes.update(scenario::node("n4", &[]));
    stage.settle();
    let fabric = |node| {
        stage
            .cache
            .fabric_nodes
            .named(node)
            .unwrap()
            .spec
            .fabric
            .clone()
    };
    assert_eq!(
        [fabric("n1"), fabric("n3"), fabric("n4")],
        ["default", "default", "all"]
    );
    assert_eq!(stage.fabric("default", "Conflicting").0, "False");
    let (status, reason, message) = stage.fabric("all", "Conflicting");
    assert_eq!((&*status, &*reason), ("True", "NodesTaken"));
    assert_eq!(
        message,
        "older fabrics have nodes that spec.nodeSelector selects: n1, n2, n3 (of default); make the \
         selectors apart"
    );
}

#[test]
fn what_a_fabric_or_node_leaves_is_removed() {
    let mut stage = Stage::new();
    stage.settle();
    stage.cache.nodes.update({
        let mut node = stage.cache.nodes.named("n3").unwrap().clone();
        node.metadata.labels.as_mut().unwrap().remove("gpu");
        node.metadata.resource_version = Some("9".into());
        node
    });
    let log = stage.settle();
    let expected = [
        "label Node n3",
        "delete FabricNode n3",
        "status RdmaFabric default",
    ];
    assert_eq!(log, expected);
    assert_eq!(stage.label("n3"), None);
    stage.cache.fabrics = std::iter::empty().collect();
    let log = stage.settle();
    assert_eq!(
        log,
        [
            "label Node n1",
            "label Node n2",
            "delete DaemonSet weft-agent-default",
            "delete FabricNode n1",
            "delete FabricNode n2"
        ]
    );
}

#[test]
fn a_selector_that_is_none_ends_no_agents() {
    let mut stage = Stage::new();
    stage.settle();
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    let requirement = k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement {
        key: "gpu".into(),
        operator: "Equals".into(),
        values: None,
    };
    fabric.spec.node_selector.match_expressions = Some(vec![requirement]);
    fabric.metadata.resource_version = Some("50".into());
    stage.cache.fabrics.update(fabric);
    // A younger one that selects the same nodes does not get them meanwhile.
    let mut younger = scenario::fabric("younger", 60);
    younger.metadata.resource_version = Some("51".into());
    stage.cache.fabrics.update(younger);
    let log = stage.settle();
    let touched = |line: &&String| {
        line.starts_with("delete") || line.contains("DaemonSet weft-agent-default")
    };
    assert_eq!(log.iter().find(touched), None, "{log:?}");
    assert_eq!(stage.fabric("default", "Ready").1, "SelectorInvalid");
    for (_, node) in stage.cache.fabric_nodes.iter() {
        assert_eq!(node.spec.fabric, "default");
    }
}

#[test]
fn a_set_that_somebody_else_made_is_left_alone() {
    let mut stage = Stage::new();
    let mut stranger = PartialObjectMeta::default();
    stranger.metadata.name = Some("weft-agent-mine".into());
    stage.cache.daemon_sets.update(stranger);
    let log = stage.settle();
    assert!(
        !log.iter().any(|line| line.starts_with("delete")),
        "{log:?}"
    );
}

#[test]
fn agents_are_told_no_more_paths_than_the_ports_give() {
    let mut fabric = scenario::fabric("default", 1);
    fabric.spec.ports.count = 8;
    let config = config(&fabric, "00");
    assert_eq!(config.engine.unwrap().transport.unwrap().paths, 64);
    let roots = config.agent.unwrap().roots;
    let writable: Vec<bool> = roots.iter().map(|root| root.writable).collect();
    assert_eq!(writable, [true, false]);
}

#[test]
fn what_an_agent_finds_is_an_event_once() {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.add_report(node, 0);
    }
    stage.settle();
    let finding = |message: &str| weft_proto::operator::v1::Finding {
        reason: "CertificateMisused".to_owned(),
        message: message.to_owned(),
    };
    let told = |stage: &mut Stage| {
        let requests = stage.decide();
        let notes = requests.iter().flat_map(|request| {
            let name = &request.key.name;
            let line =
                move |one: &Event| format!("{name} {} {}: {}", one.warning, one.reason, one.note);
            request.events.iter().map(line)
        });
        let notes: Vec<String> = notes.collect();
        stage.settle();
        notes
    };
    let state = stage.reports.get_mut("n2").unwrap();
    state.report.findings = vec![finding("node n1 tried Prepare")];
    assert_eq!(
        told(&mut stage),
        ["n2 true CertificateMisused: node n1 tried Prepare"]
    );
    assert_eq!(told(&mut stage), [""; 0]);
    let state = stage.reports.get_mut("n2").unwrap();
    state.report.findings.push(finding("another"));
    assert_eq!(told(&mut stage), ["n2 true CertificateMisused: another"]);
    // It is gone: nothing to say.
    stage.reports.get_mut("n2").unwrap().report.findings.clear();
    assert_eq!(told(&mut stage), [""; 0]);
}

#[test]
fn a_fabric_that_is_deleted_is_kept_while_jobs_run_in_it_and_says_which() {
    for forced in [false, true] {
        let mut stage = Stage::new();
        stage.settle();
        stage
            .cache
            .change_job(&scenario::minilm(), "job-minilm", |job| {
                job.status = Some(weft_crds::TransferJobStatus {
                    phase: weft_crds::Phase::Transferring,
                    fabric: "default".into(),
                    ..Default::default()
                });
            });
        assert_eq!(stage.settle(), Vec::<String>::new());
        stage.delete_fabric(&[]);
        assert_eq!(stage.settle(), ["status RdmaFabric default"]);
        let (status, reason, message) = stage.fabric("default", "InUse");
        assert_eq!((&*status, &*reason), ("True", "JobsRunning"));
        assert!(
            message.contains("team-a/minilm") && message.contains(FORCE),
            "{message}"
        );
        // The agents stay as they are.
        assert!(stage.cache.daemon_sets.iter().next().is_some());
        if forced {
            stage.delete_fabric(&[FORCE]);
        } else {
            stage
                .cache
                .change_job(&scenario::minilm(), "job-minilm", |job| {
                    job.status.as_mut().unwrap().phase = weft_crds::Phase::Complete;
                });
        }
        let log = stage.settle();
        assert_eq!(log[0], "apply RdmaFabric default", "{log:?}");
        assert!(
            log.contains(&"delete DaemonSet weft-agent-default".into()),
            "{log:?}"
        );
    }
}

#[test]
fn a_fabric_in_which_no_job_runs_is_let_go_at_once() {
    let mut stage = Stage::new();
    stage.settle();
    stage.delete_fabric(&[]);
    let log = stage.settle();
    assert_eq!(log[0], "apply RdmaFabric default", "{log:?}");
    assert!(stage.cache.fabrics.named("default").is_none());
}
