use kube::core::PartialObjectMeta;
use weft_crds::RootAccess;

use super::*;
use crate::controllers::scenario;

struct Stage {
    world: World,
    sightings: BTreeMap<String, Sighting>,
    leading: Duration,
    now: Timestamp,
    /// Nodes that the API server does not let anybody write to.
    refused: BTreeSet<String>,
}

impl Stage {
    /// Nodes n1 to n3 with label gpu, which nobody has looked at yet.
    fn new() -> Self {
        let mut world = scenario::world(3);
        world.fabric_nodes = std::iter::empty().collect();
        Self {
            world,
            sightings: BTreeMap::new(),
            leading: Duration::from_secs(3600),
            now: scenario::start(),
            refused: BTreeSet::new(),
        }
    }

    fn decide(&self) -> Vec<Request> {
        let membership = Membership::of(&self.world);
        let template = AgentTemplate {
            namespace: "weft-system".into(),
            ..AgentTemplate::default()
        };
        let mut notes = Notes::default();
        notes.read(&self.world);
        decide(&View {
            world: &self.world,
            membership: &membership,
            sightings: &self.sightings,
            notes: &notes,
            refused: &self.refused,
            leading: self.leading,
            template: &template,
            now: self.now,
        })
    }

    /// Decides anew after each single request, as one who begins anew after each would.
    fn settle(&mut self) -> Vec<String> {
        let mut log = Vec::new();
        let is_let = |request: &Request| {
            let (kind, key) = request.object();
            kind != "Node" || !self.refused.contains(&key.name)
        };
        while let Some(request) = self.decide().iter().find(|request| is_let(request)) {
            log.push(line(request));
            self.world.obey(request);
            assert!(log.len() < 100, "{log:#?}");
        }
        log
    }

    fn sees(&mut self, node: &str, silent: u64) {
        let sighting = scenario::sighting(node, "default", silent);
        self.sightings.insert(node.to_owned(), sighting);
    }

    fn ready(&self, node: &str) -> (String, String) {
        let node = self.world.fabric_nodes.named(node).unwrap();
        let condition = readiness(node).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    /// The fabric that a node says it is of.
    fn label(&self, node: &str) -> Option<&str> {
        let labels = self.world.nodes.named(node).unwrap().labels();
        labels.get(FABRIC_LABEL).map(String::as_str)
    }

    fn fabric(&self, name: &str, kind: &str) -> (String, String, String) {
        let status = self
            .world
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
    let (kind, key) = request.object();
    let verb = match request {
        Request::FabricStatus { .. } | Request::FabricNodeStatus { .. } => "status",
        Request::NodeFabric { .. } => "label",
        Request::ApplyFabricNode { .. } | Request::ApplyDaemonSet(_) => "apply",
        Request::DeleteFabricNode { .. } | Request::DeleteDaemonSet { .. } => "delete",
        _ => "other",
    };
    format!("{verb} {kind} {}", key.name)
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
        stage.sees(node, 1);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");
    let count = stage
        .world
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
fn a_node_is_not_ready_after_thirty_seconds_of_silence() {
    let mut stage = Stage::new();
    for (silent, expected) in [(29, "AgentReady"), (30, "AgentSilent"), (0, "AgentReady")] {
        stage.sees("n1", silent);
        stage.settle();
        assert_eq!(stage.ready("n1").1, expected, "{silent}");
    }
    let sighting = stage.sightings.get_mut("n1").unwrap();
    sighting.report.ready = false;
    sighting.report.findings = vec![weft_proto::operator::v1::Finding {
        reason: "RootMissing".into(),
        message: "root models is not mounted".into(),
    }];
    stage.settle();
    assert_eq!(stage.ready("n1"), ("False".into(), "AgentNotReady".into()));
    let status = stage
        .world
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
fn a_node_full_of_models_says_so_beside_what_its_agent_says() {
    let mut stage = Stage::new();
    stage.sees("n1", 0);
    let found = |stage: &mut Stage| {
        stage.settle();
        let status = stage.world.fabric_nodes.named("n1").unwrap().status.clone();
        let findings = status.unwrap().findings.into_iter();
        findings.map(|found| found.reason).collect::<Vec<_>>()
    };
    let note = |stage: &mut Stage, models: usize, path: &str| {
        let mut node = stage.world.nodes.named("n1").unwrap().clone();
        let note = models::Note {
            root: "models".to_owned(),
            path: path.to_owned(),
            digest: "d".to_owned(),
            fingerprint: "f".to_owned(),
            job: String::new(),
            brought: false,
        };
        let keys = (0..models).map(|n| format!("weft.dev/model.a.m{n}"));
        let notes = keys.clone().map(|key| (key, note.text())).collect();
        node.annotations_mut().clone_from(&notes);
        let labels = node.labels_mut();
        labels.retain(|key, _| !key.starts_with("weft.dev/model."));
        labels.extend(keys.map(|key| (key, "d".to_owned())));
        stage.world.nodes.learn(node);
    };
    note(&mut stage, 127, "m");
    assert_eq!(found(&mut stage), [""; 0]);
    note(&mut stage, 128, "m");
    assert_eq!(found(&mut stage), ["ModelsFull"]);
    let sighting = stage.sightings.get_mut("n1").unwrap();
    sighting.report.findings = vec![weft_proto::operator::v1::Finding {
        reason: "NotRenewed".into(),
        message: "the operator does not answer".into(),
    }];
    assert_eq!(found(&mut stage), ["NotRenewed", "ModelsFull"]);
    assert_eq!(stage.ready("n1").1, "AgentReady");
    // As many bytes, in fewer models.
    note(&mut stage, 62, &"x".repeat(2 << 10));
    assert_eq!(found(&mut stage), ["NotRenewed", "ModelsFull"]);
    note(&mut stage, 1, "m");
    assert_eq!(found(&mut stage), ["NotRenewed"]);
}

#[test]
fn a_new_leader_believes_what_is_written_until_agents_had_time_to_find_it() {
    let mut stage = Stage::new();
    stage.world = scenario::world(3);
    stage.leading = Duration::from_secs(29);
    stage.settle();
    assert_eq!(stage.ready("n1").0, "True");
    stage.leading = Duration::from_secs(30);
    stage.settle();
    assert_eq!(stage.ready("n1").1, "AgentMissing");
}

#[test]
fn an_agent_of_another_fabric_does_not_speak_for_a_node() {
    let mut stage = Stage::new();
    stage
        .sightings
        .insert("n1".into(), scenario::sighting("n1", "other", 0));
    stage.settle();
    assert_eq!(stage.ready("n1").1, "AgentMissing");
}

#[test]
fn a_node_of_two_fabrics_belongs_to_the_older_and_the_other_says_so() {
    let mut stage = Stage::new();
    let mut younger = scenario::fabric("all", 2);
    younger.spec.node_selector = Default::default();
    stage.world.fabrics.learn(younger);
    stage.world.nodes.learn(scenario::node("n4", &[]));
    stage.settle();
    let fabric = |node| {
        stage
            .world
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
    stage.world.nodes.learn({
        let mut node = stage.world.nodes.named("n3").unwrap().clone();
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
    stage.world.fabrics = std::iter::empty().collect();
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
    let mut fabric = stage.world.fabrics.named("default").unwrap().clone();
    let requirement = k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement {
        key: "gpu".into(),
        operator: "Equals".into(),
        values: None,
    };
    fabric.spec.node_selector.match_expressions = Some(vec![requirement]);
    fabric.metadata.resource_version = Some("50".into());
    stage.world.fabrics.learn(fabric);
    // A younger one that selects the same nodes does not get them meanwhile.
    let mut younger = scenario::fabric("younger", 60);
    younger.metadata.resource_version = Some("51".into());
    stage.world.fabrics.learn(younger);
    let log = stage.settle();
    let touched = |line: &&String| {
        line.starts_with("delete") || line.contains("DaemonSet weft-agent-default")
    };
    assert_eq!(log.iter().find(touched), None, "{log:?}");
    assert_eq!(stage.fabric("default", "Ready").1, "SelectorInvalid");
    for (_, node) in stage.world.fabric_nodes.iter() {
        assert_eq!(node.spec.fabric, "default");
    }
}

#[test]
fn a_set_that_somebody_else_made_is_left_alone() {
    let mut stage = Stage::new();
    let mut stranger = PartialObjectMeta::default();
    stranger.metadata.name = Some("weft-agent-mine".into());
    stage.world.daemon_sets.learn(stranger);
    let log = stage.settle();
    assert!(
        !log.iter().any(|line| line.starts_with("delete")),
        "{log:?}"
    );
}

#[test]
fn a_configuration_has_another_hash_when_anything_of_it_is_another() {
    let hash = |change: fn(&mut weft_crds::RdmaFabricSpec), key: &str| {
        let mut fabric = scenario::fabric("default", 1);
        change(&mut fabric.spec);
        config(&fabric, key).hash
    };
    let now = hash(|_| {}, "00");
    assert_eq!(now.len(), 16);
    assert_eq!(hash(|_| {}, "00"), now);
    let others = [
        hash(|_| {}, "01"),
        hash(|spec| spec.transport.paths = 4, "00"),
        hash(|spec| spec.ports.first = 7600, "00"),
        hash(|spec| spec.nics.include = vec!["ib*".into()], "00"),
        hash(|spec| spec.roots[1].access = RootAccess::ReadWrite, "00"),
        hash(|spec| drop(spec.roots.pop()), "00"),
        hash(|spec| spec.objects.allow_insecure = true, "00"),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(*other, now, "{i}");
    }
    // What agents are not told is no news to them.
    let same = hash(|spec| spec.topology.link_mbps = Some(1), "00");
    assert_eq!(same, now);
}

#[test]
fn agents_are_told_no_more_paths_than_the_ports_give() {
    let mut fabric = scenario::fabric("default", 1);
    fabric.spec.ports.count = 8;
    let config = config(&fabric, "00");
    assert_eq!(config.transport.unwrap().paths, 64);
    let writable: Vec<bool> = config.roots.iter().map(|root| root.writable).collect();
    assert_eq!(writable, [true, false]);
}

#[test]
fn what_an_agent_finds_is_an_event_once() {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.sees(node, 0);
    }
    stage.settle();
    let finding = |message: &str| weft_proto::operator::v1::Finding {
        reason: "CertificateMisused".to_owned(),
        message: message.to_owned(),
    };
    let told = |stage: &mut Stage| {
        let requests = stage.decide();
        let notes = requests.iter().filter_map(|request| match request {
            Request::FabricNodeStatus { name, news, .. } => Some((name.clone(), news.clone())),
            _ => None,
        });
        let notes = notes.flat_map(|(name, news)| {
            let line =
                move |one: News| format!("{name} {} {}: {}", one.warning, one.reason, one.note);
            news.into_iter().map(line)
        });
        let notes: Vec<String> = notes.collect();
        stage.settle();
        notes
    };
    let sighting = stage.sightings.get_mut("n2").unwrap();
    sighting.report.findings = vec![finding("node n1 tried Prepare")];
    assert_eq!(
        told(&mut stage),
        ["n2 true CertificateMisused: node n1 tried Prepare"]
    );
    assert_eq!(told(&mut stage), [""; 0]);
    let sighting = stage.sightings.get_mut("n2").unwrap();
    sighting.report.findings.push(finding("another"));
    assert_eq!(told(&mut stage), ["n2 true CertificateMisused: another"]);
    // It is gone: nothing to say.
    stage
        .sightings
        .get_mut("n2")
        .unwrap()
        .report
        .findings
        .clear();
    assert_eq!(told(&mut stage), [""; 0]);
}

#[test]
fn a_node_that_changes_its_fabric_rolls_no_agent_of_either() {
    let mut stage = Stage::new();
    let mut younger = scenario::fabric("all", 2);
    younger.spec.node_selector = Default::default();
    stage.world.fabrics.learn(younger);
    stage.settle();
    let labels =
        |stage: &Stage| ["n1", "n2", "n3"].map(|node| stage.label(node).map(str::to_owned));
    let all_of = |fabric: &str| std::array::from_fn(|_| Some(fabric.to_owned()));
    assert_eq!(labels(&stage), all_of("default"));
    // The older one lets go of a node, which the younger has selected all along.
    let mut node = stage.world.nodes.named("n1").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove("gpu");
    node.metadata.resource_version = Some("9".into());
    stage.world.nodes.learn(node);
    let log = stage.settle();
    assert_eq!(stage.label("n1"), Some("all"));
    assert!(
        !log.iter().any(|line| line.contains("DaemonSet")),
        "{log:?}"
    );
    // Somebody who takes the label away, or writes another, changes nothing for long.
    for (other, version) in [(None, "99"), (Some("mine"), "999")] {
        let mut node = stage.world.nodes.named("n2").unwrap().clone();
        let labels = node.metadata.labels.as_mut().unwrap();
        labels.remove(FABRIC_LABEL);
        labels.extend(other.map(|other| (FABRIC_LABEL.to_owned(), other.to_owned())));
        node.metadata.resource_version = Some(version.into());
        stage.world.nodes.learn(node);
        assert_eq!(stage.settle(), ["label Node n2"]);
        assert_eq!(stage.label("n2"), Some("default"));
    }
}

/// That of fabric default, bound to its nodes by their own labels.
fn set_of_an_earlier_release() -> PartialObjectMeta<k8s_openapi::api::apps::v1::DaemonSet> {
    let mut set = PartialObjectMeta::default();
    set.metadata.name = Some("weft-agent-default".into());
    set.metadata.namespace = Some("weft-system".into());
    set.metadata.uid = Some("set-weft-agent-default".into());
    set.metadata.labels = Some([(FABRIC_LABEL.to_owned(), "default".to_owned())].into());
    set.metadata.annotations = Some([(APPLIED.to_owned(), "0".to_owned())].into());
    set
}

#[test]
fn a_set_of_an_earlier_release_keeps_its_agents_until_all_nodes_are_labelled() {
    let mut stage = Stage::new();
    stage.world.daemon_sets.learn(set_of_an_earlier_release());
    let log = stage.settle();
    let at = |line: &str| log.iter().position(|one| one == line).unwrap();
    assert!(
        at("apply DaemonSet weft-agent-default") > at("label Node n3"),
        "{log:?}"
    );
    // From then on a node without the label holds nothing up.
    let mut fabric = stage.world.fabrics.named("default").unwrap().clone();
    fabric.spec.roots.pop();
    fabric.metadata.resource_version = Some("50".into());
    stage.world.fabrics.learn(fabric);
    stage.world.nodes.learn(scenario::node("n4", &["gpu"]));
    let asked = stage.decide();
    assert!(
        asked
            .iter()
            .any(|one| matches!(one, Request::ApplyDaemonSet(_)))
    );
}

#[test]
fn a_node_whose_label_is_refused_is_named_with_what_to_do_while_the_agents_wait_for_it() {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.sees(node, 0);
    }
    stage.world.daemon_sets.learn(set_of_an_earlier_release());
    let updated = |stage: &Stage| stage.fabric("default", "AgentsUpdated");
    let says = |stage: &mut Stage| {
        for request in stage.decide() {
            if matches!(request, Request::FabricStatus { .. }) {
                stage.world.obey(&request);
            }
        }
        updated(stage)
    };
    // In the course of every upgrade from there.
    let (status, reason, message) = says(&mut stage);
    assert_eq!((&*status, &*reason), ("False", "NodesNotLabelled"));
    assert_eq!(
        message,
        "3 of 3 nodes have no label weft.dev/fabric=default yet: n1, n2, n3; the operator writes it, and \
         replaces the agents of the earlier release once all nodes have it; where that lasts, its log says why"
    );

    stage.refused = BTreeSet::from(["n2".to_owned()]);
    let log = stage.settle();
    assert!(
        !log.iter().any(|line| line.contains("DaemonSet")),
        "{log:?}"
    );
    let (status, reason, message) = updated(&stage);
    assert_eq!((&*status, &*reason), ("False", "LabelsRefused"));
    assert_eq!(
        message,
        "the operator may not write the label weft.dev/fabric=default to 1 of 3 nodes: n2; the agents stay \
         those of the earlier release until all nodes have it: the operator's log says who refuses; allow its \
         ServiceAccount to patch nodes, or write the label yourself: kubectl label node n2 \
         weft.dev/fabric=default --overwrite"
    );
    // The agents work as they did.
    assert_eq!(stage.fabric("default", "Ready").0, "True");

    // Somebody does so.
    let mut node = stage.world.nodes.named("n2").unwrap().clone();
    node.labels_mut()
        .insert(FABRIC_LABEL.to_owned(), "default".to_owned());
    node.metadata.resource_version = Some("9".into());
    stage.world.nodes.learn(node);
    let log = stage.settle();
    assert!(
        log.contains(&"apply DaemonSet weft-agent-default".to_owned()),
        "{log:?}"
    );
    let (status, reason, _) = updated(&stage);
    assert_eq!((&*status, &*reason), ("True", "NodesLabelled"));
    // Once it follows the label, a node that has none is waited for by nobody.
    stage.world.nodes.learn(scenario::node("n4", &["gpu"]));
    stage.refused.insert("n4".to_owned());
    stage.settle();
    assert_eq!(updated(&stage).0, "True");
}

#[test]
fn of_many_nodes_whose_labels_are_refused_a_few_are_named() {
    let mut stage = Stage::new();
    stage.world = scenario::world(9);
    stage.world.daemon_sets.learn(set_of_an_earlier_release());
    stage.refused = (1..=9).map(|i| format!("n{i}")).collect();
    stage.settle();
    let (_, _, message) = stage.fabric("default", "AgentsUpdated");
    assert!(
        message.contains("to 9 of 9 nodes: n1, n2, n3, n4, n5 and 4 more;")
            && message
                .ends_with("kubectl label node n1 n2 n3 n4 n5 weft.dev/fabric=default --overwrite"),
        "{message}"
    );
}

/// Why the scenario's job does not begin; "" where it does.
fn obstacle(stage: &Stage) -> String {
    let job = scenario::job("minilm");
    let membership = Membership::of(&stage.world);
    let resolved = crate::controllers::resolve::resolve(&job, &stage.world, &membership, 1);
    resolved.map_or_else(|obstacle| obstacle.reason.to_owned(), |_| String::new())
}

#[test]
fn a_destination_that_does_not_take_a_configuration_over_is_waited_for_for_half_an_hour() {
    let mut stage = Stage::new();
    let asked = |stage: &Stage| {
        let fabric = stage.world.fabrics.named("default").unwrap();
        config(fabric, &stage.world.ticket_key).hash
    };
    let before = asked(&stage);
    let says = |stage: &mut Stage, node: &str, hash: &str, finding: &str| {
        stage.sees(node, 0);
        let report = &mut stage.sightings.get_mut(node).unwrap().report;
        report.configuration = hash.to_owned();
        let finds = weft_proto::operator::v1::Finding {
            reason: finding.to_owned(),
            message: String::new(),
        };
        report.findings = Some(finds)
            .filter(|_| !finding.is_empty())
            .into_iter()
            .collect();
    };
    let after = |stage: &mut Stage, seconds: i64| {
        stage.now = Timestamp::from_second(scenario::start().as_second() + seconds).unwrap();
        stage.settle();
        obstacle(stage)
    };
    let condition = |stage: &Stage, node: &str| {
        let status = stage.world.fabric_nodes.named(node).unwrap().status.clone();
        let conditions = status.unwrap().conditions.into_iter();
        let mut found = conditions.filter(|one| one.type_ == "Configured");
        found.next().map(|one| (one.status, one.reason))
    };
    let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    for node in ["n1", "n2", "n3"] {
        says(&mut stage, node, &before, "");
    }
    assert_eq!(after(&mut stage, 0), "");
    assert_eq!(condition(&stage, "n3"), None);

    // A root more, whose volume never comes to n3.
    let mut fabric = stage.world.fabrics.named("default").unwrap().clone();
    let mut root = fabric.spec.roots[0].clone();
    root.name = "more".into();
    fabric.spec.roots.push(root);
    fabric.metadata.resource_version = Some("50".into());
    stage.world.fabrics.learn(fabric);
    let now = asked(&stage);
    says(&mut stage, "n1", &now, "");
    says(&mut stage, "n2", &now, "");
    says(&mut stage, "n3", &before, "RootMissing");
    assert_eq!(after(&mut stage, 100), "ConfigurationPending");
    assert_eq!(condition(&stage, "n3"), is("False", "Pending"));
    assert_eq!(after(&mut stage, 1899), "ConfigurationPending");
    assert_eq!(after(&mut stage, 1900), "");
    assert_eq!(condition(&stage, "n3"), is("False", "NotTakenOver"));
    assert_eq!(stage.settle(), [""; 0]);
    // That it is one of many that wait is no reason to begin.
    says(&mut stage, "n2", &before, "");
    assert_eq!(after(&mut stage, 2000), "ConfigurationPending");
    says(&mut stage, "n2", &now, "");
    assert_eq!(after(&mut stage, 2001), "");

    // One that only waits for its jobs to end is given more time.
    says(&mut stage, "n3", &before, "RestartPending");
    assert_eq!(after(&mut stage, 3699), "ConfigurationPending");
    assert_eq!(after(&mut stage, 3700), "");

    says(&mut stage, "n3", &now, "");
    assert_eq!(after(&mut stage, 4000), "");
    assert_eq!(condition(&stage, "n3"), is("True", "Current"));
    // The next time it is waited for again, from then on.
    says(&mut stage, "n3", &before, "RootMissing");
    assert_eq!(after(&mut stage, 5000), "ConfigurationPending");
    assert_eq!(after(&mut stage, 6800), "");
    // With another configuration, too.
    let mut fabric = stage.world.fabrics.named("default").unwrap().clone();
    fabric.spec.roots.pop();
    fabric.spec.transport.dscp += 1;
    fabric.metadata.resource_version = Some("60".into());
    stage.world.fabrics.learn(fabric);
    let now = asked(&stage);
    says(&mut stage, "n1", &now, "");
    says(&mut stage, "n2", &now, "");
    says(&mut stage, "n3", &before, "RootMissing");
    assert_eq!(after(&mut stage, 6801), "ConfigurationPending");
    assert_eq!(after(&mut stage, 8600), "ConfigurationPending");
    assert_eq!(after(&mut stage, 8601), "");

    // The source is waited for as long as it takes.
    says(&mut stage, "n1", &before, "RootMissing");
    assert_eq!(after(&mut stage, 9000), "ConfigurationPending");
    assert_eq!(after(&mut stage, 99_999), "ConfigurationPending");
    assert_eq!(condition(&stage, "n1"), is("False", "NotTakenOver"));
}

#[test]
fn a_node_that_is_away_is_not_said_to_be_behind() {
    let mut stage = Stage::new();
    stage.sees("n1", 30);
    let report = &mut stage.sightings.get_mut("n1").unwrap().report;
    report.configuration = "another".to_owned();
    stage.settle();
    let status = stage.world.fabric_nodes.named("n1").unwrap().status.clone();
    let kinds = status.unwrap().conditions.into_iter().map(|one| one.type_);
    assert_eq!(kinds.collect::<Vec<_>>(), ["Ready"]);
}
