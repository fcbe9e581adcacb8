//! The labels of nodes: agents run where one says, and pods find copies by the others.

use k8s_openapi::api::core::v1::Node;
use weft_crds::{DestinationState, DestinationStatus, ManifestSummary, Phase, TransferJobStatus};
use weft_proto::operator::v1::{Copy, CopyJob};

use super::*;
use crate::controllers::{
    request::Priority,
    tests::scenario::{MODEL, copy},
};

#[test]
fn a_node_that_changes_its_fabric_rolls_no_agent_of_either() {
    let mut stage = Stage::new();
    let mut younger = scenario::fabric("all", 2);
    younger.spec.node_selector = Default::default();
    stage.cache.fabrics.update(younger);
    stage.settle();
    let labels =
        |stage: &Stage| ["n1", "n2", "n3"].map(|node| stage.label(node).map(str::to_owned));
    let all_of = |fabric: &str| std::array::from_fn(|_| Some(fabric.to_owned()));
    assert_eq!(labels(&stage), all_of("default"));
    // The older one lets go of a node, which the younger has selected all along.
    let mut node = stage.cache.nodes.named("n1").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove("gpu");
    node.metadata.resource_version = Some("9".into());
    stage.cache.nodes.update(node);
    let log = stage.settle();
    assert_eq!(stage.label("n1"), Some("all"));
    assert!(
        !log.iter().any(|line| line.contains("DaemonSet")),
        "{log:?}"
    );
    // Somebody who takes the label away, or writes another, changes nothing for long.
    for (other, version) in [(None, "99"), (Some("mine"), "999")] {
        let mut node = stage.cache.nodes.named("n2").unwrap().clone();
        let labels = node.metadata.labels.as_mut().unwrap();
        labels.remove(FABRIC_LABEL);
        labels.extend(other.map(|other| (FABRIC_LABEL.to_owned(), other.to_owned())));
        node.metadata.resource_version = Some(version.into());
        stage.cache.nodes.update(node);
        assert_eq!(stage.settle(), ["label Node n2"]);
        assert_eq!(stage.label("n2"), Some("default"));
    }
}

#[test]
fn a_node_whose_label_is_refused_says_so_and_holds_up_no_other() {
    let mut stage = Stage::new();
    for node in ["n1", "n3"] {
        stage.add_report(node, 0);
    }
    stage.refused = BTreeSet::from(["n2".to_owned()]);
    let log = stage.settle();
    assert!(
        log.contains(&"apply DaemonSet weft-agent-default".to_owned()),
        "{log:?}"
    );
    let ready = ["n1", "n2", "n3"].map(|node| stage.ready(node).1);
    assert_eq!(ready, ["AgentReady", "NodeNotLabelled", "AgentReady"]);
    // It is labelled, and no agent has come yet.
    stage.refused.clear();
    stage.settle();
    assert_eq!(stage.ready("n2").1, "AgentMissing");
}

impl Stage {
    /// The job minilm is over, and n2 has what it was to have.
    fn complete(&mut self, digest: &str) {
        self.cache
            .change_job(&scenario::minilm(), "job-minilm", |job| {
                job.status = Some(TransferJobStatus {
                    phase: Phase::Complete,
                    manifest: Some(ManifestSummary {
                        files: 1,
                        bytes: 1000,
                        digest: Some(digest.into()),
                        not_kept: Vec::new(),
                    }),
                    destinations: vec![DestinationStatus {
                        node: "n2".into(),
                        state: DestinationState::Verified,
                        reason: String::new(),
                        message: String::new(),
                        bytes: 1000,
                        digest: digest.into(),
                    }],
                    ..TransferJobStatus::default()
                });
            });
    }
}

/// What n2 has, as its agent reports it.
fn reports(stage: &mut Stage, copies: &[Copy], listed: bool) {
    stage.add_report("n2", 0);
    let report = &mut stage.reports.get_mut("n2").unwrap().report;
    report.copies = copies.to_vec();
    report.copies_listed = listed;
}

fn model(stage: &Stage) -> Option<&str> {
    let labels = stage.cache.nodes.named("n2").unwrap().labels();
    labels.get(MODEL).map(String::as_str)
}

#[test]
fn a_node_has_the_labels_of_the_copies_that_its_agent_reports() {
    let mut stage = Stage::new();
    stage.settle();
    reports(&mut stage, &[copy("0123456789abcdef")], true);
    let requests = stage.decide();
    let of_node = requests.iter().find(|request| request.kind() == "Node");
    // Nobody waits for it.
    assert_eq!(of_node.unwrap().priority, Priority::Low);
    stage.settle();
    assert_eq!(model(&stage), Some("0123456789ab"));
    // Other files took their place.
    reports(&mut stage, &[copy("fedcba9876543210")], true);
    stage.settle();
    assert_eq!(model(&stage), Some("fedcba987654"));
    reports(&mut stage, &[], true);
    assert_eq!(stage.settle().first().unwrap(), "label Node n2");
    assert_eq!(model(&stage), None);
}

#[test]
fn all_labels_of_a_node_change_with_one_request() {
    let mut stage = Stage::new();
    let mut second = copy("2");
    second.jobs[0].name = "other".into();
    reports(&mut stage, &[copy("1"), second], true);
    let log = stage.settle();
    let of_node = log.iter().filter(|line| *line == "label Node n2");
    assert_eq!(of_node.count(), 1, "{log:?}");
    assert_eq!(
        (model(&stage), stage.label("n2")),
        (Some("1"), Some("default"))
    );
}

#[test]
fn a_label_stays_while_nobody_knows_whether_the_copy_is_there() {
    let mut stage = Stage::new();
    reports(&mut stage, &[copy("d1")], true);
    stage.settle();
    // The agent has begun anew, and has not read its records yet; or a new leader has not heard of it.
    reports(&mut stage, &[], false);
    stage.settle();
    assert_eq!(model(&stage), Some("d1"));
    stage.reports.clear();
    stage.settle();
    assert_eq!(model(&stage), Some("d1"));
    // An agent that has fallen silent tells nothing of what is there now.
    reports(&mut stage, &[copy("d2")], true);
    stage.reports.get_mut("n2").unwrap().received_at = stage.now_instant - SILENCE;
    stage.settle();
    assert_eq!(model(&stage), Some("d1"));
    // No fabric has the node: nobody looks after it.
    let mut node = stage.cache.nodes.named("n2").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove("gpu");
    node.metadata.resource_version = Some("99".into());
    stage.cache.nodes.update(node);
    stage.settle();
    assert_eq!(model(&stage), None);
}

#[test]
fn a_label_that_somebody_changes_by_hand_is_written_again() {
    let mut stage = Stage::new();
    reports(&mut stage, &[copy("d1")], true);
    stage.settle();
    let mut node = stage.cache.nodes.named("n2").unwrap().clone();
    let labels = node.metadata.labels.as_mut().unwrap();
    labels.insert(MODEL.into(), "mine".into());
    labels.insert("weft.dev/model.x.y".into(), "mine".into());
    node.metadata.resource_version = Some("99".into());
    stage.cache.nodes.update(node);
    assert_eq!(stage.settle(), ["label Node n2"]);
    let labels = stage.cache.nodes.named("n2").unwrap().labels();
    assert_eq!(labels.get(MODEL).map(String::as_str), Some("d1"));
    assert!(!labels.contains_key("weft.dev/model.x.y"));
}

#[test]
fn of_two_copies_under_one_name_the_one_of_the_job_that_has_it_now_counts() {
    let mut old = copy("old");
    old.jobs[0].uid = "job-before".into();
    for copies in [[old.clone(), copy("new")], [copy("new"), old]] {
        let mut stage = Stage::new();
        reports(&mut stage, &copies, true);
        stage.settle();
        assert_eq!(model(&stage), Some("new"));
    }
}

#[test]
fn names_that_no_label_may_have_keep_no_other_label_from_being_written() {
    let mut stage = Stage::new();
    let named = |name: &str| {
        let mut copy = copy("d2");
        copy.jobs[0].name = name.into();
        copy
    };
    let copies = [named(""), named("a/b"), named("x-"), named("ü"), copy("d1")];
    reports(&mut stage, &copies, true);
    stage.settle();
    let labels = stage.cache.nodes.named("n2").unwrap().labels();
    let models = labels
        .iter()
        .filter(|(key, _)| key.starts_with("weft.dev/model."));
    let models: Vec<_> = models
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(models, [(MODEL, "d1")]);
}

#[test]
fn a_label_is_of_the_namespace_and_fits() {
    assert_eq!(model_label("team-a", "minilm", "0123456789abcdef").0, MODEL);
    let long = |name: &str| model_label("team-a", name, "d1").0;
    let (one, other) = (long(&"x".repeat(60)), long(&format!("{}y", "x".repeat(59))));
    assert_ne!(one, other);
    let name = one.strip_prefix("weft.dev/").unwrap();
    assert!(
        name.len() <= 63 && name.starts_with("model.team-a.xxx"),
        "{one}"
    );
}

/// A copy of another job of a namespace, which is there.
fn other(stage: &mut Stage, namespace: &str, name: &str) -> Copy {
    let mut job = scenario::job(name);
    job.metadata.namespace = Some(namespace.into());
    stage.cache.jobs.update(job);
    let known = scenario::namespace(namespace, &[]);
    stage.cache.namespaces.update(known);
    let mut copy = copy("d1");
    copy.path = format!("{namespace}/{name}");
    copy.jobs[0] = CopyJob {
        uid: format!("job-{name}"),
        namespace: namespace.into(),
        name: name.into(),
        namespace_uid: format!("namespace-{namespace}"),
    };
    copy
}

fn models(stage: &Stage) -> Vec<String> {
    let labels = stage.cache.nodes.named("n2").unwrap().labels();
    let models = labels
        .keys()
        .filter_map(|key| key.strip_prefix("weft.dev/model."));
    models.map(str::to_owned).collect()
}

#[test]
fn a_namespace_has_so_many_labels_at_a_node_and_takes_none_from_another() {
    let mut stage = Stage::new();
    let mut copies: Vec<Copy> = ["a", "b"]
        .map(|name| other(&mut stage, "team-b", name))
        .into();
    copies.push(copy("d1"));
    reports(&mut stage, &copies, true);
    stage.settle();
    assert_eq!(models(&stage), ["team-a.minilm", "team-b.a", "team-b.b"]);
    assert_eq!(stage.decision().label_problems, BTreeMap::new());
    // One that sorts before does not push one out that is there.
    copies.push(other(&mut stage, "team-b", "0"));
    reports(&mut stage, &copies, true);
    stage.settle();
    assert_eq!(models(&stage), ["team-a.minilm", "team-b.a", "team-b.b"]);
    let label_problems = stage.decision().label_problems;
    let of = |namespace: &str, name: &str| Key {
        namespace: namespace.into(),
        name: name.into(),
    };
    assert_eq!(label_problems.len(), 1);
    let obstacle = &label_problems[&of("team-b", "0")];
    assert_eq!(obstacle.reason, "NamespaceLabelsFull");
    assert!(
        obstacle.message.contains("n2") && obstacle.message.contains("operator.labelsPerNamespace"),
        "{}",
        obstacle.message
    );
    // A copy whose job is gone gives its label up, though the files are there.
    stage.cache.jobs.forget(&of("team-b", "a"));
    stage.settle();
    assert_eq!(models(&stage), ["team-a.minilm", "team-b.0", "team-b.b"]);
    assert_eq!(stage.decision().label_problems, BTreeMap::new());
}

#[test]
fn the_labels_of_a_namespace_go_with_it_though_its_copies_stay() {
    let mut stage = Stage::new();
    let copies = [other(&mut stage, "team-b", "a"), copy("d1")];
    for listed in [true, false] {
        let known = scenario::namespace("team-b", &[]);
        stage.cache.namespaces.update(known);
        reports(&mut stage, &copies, true);
        stage.settle();
        assert_eq!(models(&stage), ["team-a.minilm", "team-b.a"]);
        let gone = if listed { &copies[..] } else { &copies[1..] };
        reports(&mut stage, gone, listed);
        stage
            .cache
            .namespaces
            .forget(&Key::cluster_scoped("team-b"));
        stage.settle();
        assert_eq!(models(&stage), ["team-a.minilm"], "listed: {listed}");
    }
}

#[test]
fn a_namespace_that_fills_the_list_of_copies_keeps_the_labels_of_no_other() {
    let mut stage = Stage::new();
    let mut copies = vec![copy("d1")];
    copies.extend((0..LABELS).map(|number| other(&mut stage, "team-b", &number.to_string())));
    reports(&mut stage, &copies, true);
    stage.settle();
    assert_eq!(models(&stage).len(), 1 + LABELS);
    // Of team-b the agent lists two more, which are others, and not those before. The copy of team-a is gone.
    let listed = ["x", "y"].map(|name| other(&mut stage, "team-b", name));
    reports(&mut stage, &listed, false);
    let report = &mut stage.reports.get_mut("n2").unwrap().report;
    // Nor does one whose long name begins as another's.
    report.unlisted_namespaces = vec!["team-b".to_owned(), format!("team-a{}", "x".repeat(50))];
    stage.settle();
    let labels = models(&stage);
    assert!(labels.iter().all(|name| name.starts_with("team-b.")));
    assert_eq!(labels.len(), LABELS, "{labels:?}");
    assert!(
        ["team-b.x", "team-b.y"]
            .iter()
            .all(|new| labels.iter().any(|name| name == new))
    );
}

#[test]
fn a_job_has_its_label_again_when_another_has_written_the_same_bytes() {
    let mut stage = Stage::new();
    let digest = "0123456789abcdef";
    stage.complete(digest);
    // The agent knows the last one only.
    let mut rewritten = copy(digest);
    rewritten.jobs[0].name = "second".into();
    rewritten.jobs[0].uid = "job-second".into();
    reports(&mut stage, std::slice::from_ref(&rewritten), true);
    stage.settle();
    assert_eq!(models(&stage), ["team-a.minilm", "team-a.second"]);
    // Other bytes are not its own.
    rewritten.digest = "fedcba9876543210".into();
    reports(&mut stage, &[rewritten], true);
    stage.settle();
    assert_eq!(models(&stage), ["team-a.second"]);
}

#[test]
fn a_job_says_why_its_label_is_not_written() {
    let mut stage = Stage::new();
    stage.complete("d1");
    reports(&mut stage, &[copy("d1")], true);
    let node = ObjectId::of::<Node>(Key::cluster_scoped("n2"));
    stage.errors.insert(node, "denied by webhook x".into());
    let reason = |stage: &Stage| {
        let mut label_problems = stage.decision().label_problems;
        let obstacle = label_problems.remove(&scenario::minilm())?;
        Some((obstacle.reason, obstacle.message))
    };
    let (why, message) = reason(&stage).unwrap();
    assert_eq!(why, "NodeLabelRefused");
    assert!(message.contains("denied by webhook x"), "{message}");
    stage.settle();
    assert_eq!(reason(&stage), None);
    // Or the agent cannot list all copies.
    stage.errors.clear();
    let another = other(&mut stage, "team-b", "a");
    reports(&mut stage, &[another], false);
    let mut node = stage.cache.nodes.named("n2").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove(MODEL);
    node.metadata.resource_version = Some("999".into());
    stage.cache.nodes.update(node);
    assert_eq!(reason(&stage), None);
    let report = &mut stage.reports.get_mut("n2").unwrap().report;
    report.findings.push(weft_proto::operator::v1::Finding {
        reason: "CopiesFull".into(),
        message: String::new(),
    });
    assert_eq!(reason(&stage).unwrap().0, "CopiesFull");
}

#[test]
fn a_namespace_that_is_made_again_has_no_label_of_the_one_before() {
    let mut stage = Stage::new();
    let copies = [copy("d1")];
    reports(&mut stage, &copies, true);
    stage.settle();
    assert_eq!(models(&stage), ["team-a.minilm"]);
    stage.cache.jobs.forget(&scenario::minilm());
    let mut again = scenario::namespace("team-a", &[]);
    again.metadata.uid = Some("another".into());
    again.metadata.resource_version = Some("9".into());
    stage.cache.namespaces.update(again);
    stage.settle();
    assert_eq!(models(&stage), Vec::<String>::new());
}
