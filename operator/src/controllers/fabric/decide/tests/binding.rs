//! Which agents run where a node's label says, and what keeps a fabric from having them.

use super::*;

#[test]
fn a_node_that_changes_its_fabric_rolls_no_agent_of_either() {
    let mut stage = Stage::new();
    let mut younger = scenario::fabric("all", 2);
    younger.spec.node_selector = Default::default();
    stage.cache.fabrics.learn(younger);
    stage.settle();
    let labels =
        |stage: &Stage| ["n1", "n2", "n3"].map(|node| stage.label(node).map(str::to_owned));
    let all_of = |fabric: &str| std::array::from_fn(|_| Some(fabric.to_owned()));
    assert_eq!(labels(&stage), all_of("default"));
    // The older one lets go of a node, which the younger has selected all along.
    let mut node = stage.cache.nodes.named("n1").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove("gpu");
    node.metadata.resource_version = Some("9".into());
    stage.cache.nodes.learn(node);
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
        stage.cache.nodes.learn(node);
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
    stage.cache.daemon_sets.learn(set_of_an_earlier_release());
    let log = stage.settle();
    let at = |line: &str| log.iter().position(|one| one == line).unwrap();
    assert!(
        at("apply DaemonSet weft-agent-default") > at("label Node n3"),
        "{log:?}"
    );
    // From then on a node without the label holds nothing up.
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    fabric.spec.roots.pop();
    fabric.metadata.resource_version = Some("50".into());
    stage.cache.fabrics.learn(fabric);
    stage.cache.nodes.learn(scenario::node("n4", &["gpu"]));
    let asked = stage.decide();
    assert!(
        asked
            .iter()
            .any(|one| one.kind() == "DaemonSet" && matches!(one.change, Change::Apply(_)))
    );
}

#[test]
fn a_node_whose_label_is_refused_is_named_with_what_to_do_while_the_agents_wait_for_it() {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.sees(node, 0);
    }
    stage.cache.daemon_sets.learn(set_of_an_earlier_release());
    let updated = |stage: &Stage| stage.fabric("default", "AgentsUpdated");
    let says = |stage: &mut Stage| {
        for request in stage.decide() {
            if request.kind() == "RdmaFabric" {
                stage.cache.obey(&request);
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
    let mut node = stage.cache.nodes.named("n2").unwrap().clone();
    node.labels_mut()
        .insert(FABRIC_LABEL.to_owned(), "default".to_owned());
    node.metadata.resource_version = Some("9".into());
    stage.cache.nodes.learn(node);
    let log = stage.settle();
    assert!(
        log.contains(&"apply DaemonSet weft-agent-default".to_owned()),
        "{log:?}"
    );
    let (status, reason, _) = updated(&stage);
    assert_eq!((&*status, &*reason), ("True", "NodesLabelled"));
    // Once it follows the label, a node that has none is waited for by nobody.
    stage.cache.nodes.learn(scenario::node("n4", &["gpu"]));
    stage.refused.insert("n4".to_owned());
    stage.settle();
    assert_eq!(updated(&stage).0, "True");
}

#[test]
fn of_many_nodes_whose_labels_are_refused_a_few_are_named() {
    let mut stage = Stage::new();
    stage.cache = scenario::cache(9);
    stage.cache.daemon_sets.learn(set_of_an_earlier_release());
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
