//! Nodes whose agents' pods were made for an earlier configuration of their fabric.

use super::*;

/// Changes the fabric, as its author does.
fn edit(stage: &mut Stage, change: impl FnOnce(&mut weft_crds::RdmaFabricSpec)) {
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    change(&mut fabric.spec);
    let version: u64 = fabric.metadata.resource_version.unwrap().parse().unwrap();
    fabric.metadata.resource_version = Some((version + 100).to_string());
    stage.cache.fabrics.learn(fabric);
}

/// The configuration that the DaemonSet of the fabric makes pods for.
fn of_template(stage: &Stage) -> String {
    let fabric = stage.cache.fabrics.named("default").unwrap();
    let set = agents::daemon_set(&AgentTemplate::default(), fabric);
    let pod = set.spec.unwrap().template.metadata.unwrap();
    pod.annotations.unwrap()["weft.dev/configuration"].clone()
}

/// A node's agent reports from a pod that was made for that configuration.
fn reports(stage: &mut Stage, node: &str, configuration: &str) {
    stage.sees(node, 0);
    let sighting = stage.sightings.get_mut(node).unwrap();
    sighting.report.configuration = configuration.to_owned();
}

fn is_ready_of(stage: &Stage, node: &str) -> bool {
    stage.ready(node) == ("True".to_owned(), "AgentReady".to_owned())
}

#[test]
fn a_node_is_not_ready_until_its_pod_is_made_for_the_fabrics_configuration() {
    let mut stage = Stage::new();
    let before = of_template(&stage);
    for node in ["n1", "n2", "n3"] {
        reports(&mut stage, node, &before);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");

    edit(&mut stage, |spec| spec.transport.paths = 16);
    let now = of_template(&stage);
    assert_ne!(now, before);
    reports(&mut stage, "n1", &now);
    let log = stage.settle();
    assert!(
        log.contains(&"apply DaemonSet weft-agent-default".to_owned()),
        "{log:?}"
    );
    assert!(is_ready_of(&stage, "n1"));
    for node in ["n2", "n3"] {
        let pending = ("False".to_owned(), "ConfigurationPending".to_owned());
        assert_eq!(stage.ready(node), pending);
    }
    let node = stage.cache.fabric_nodes.named("n2").unwrap();
    assert_eq!(
        readiness(node).unwrap().message,
        "the pod of the agent of node n2 was made for an earlier configuration of fabric default (nics, \
         ports, roots, transport) and is replaced; see: kubectl -n weft-system rollout status \
         daemonset/weft-agent-default"
    );
    assert_eq!(stage.fabric("default", "Ready").1, "NodesNotReady");

    for node in ["n2", "n3"] {
        reports(&mut stage, node, &now);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");
}

#[test]
fn what_a_running_agent_takes_over_replaces_no_pod() {
    let configuration = |change: fn(&mut weft_crds::RdmaFabricSpec)| {
        let mut fabric = scenario::fabric("default", 1);
        change(&mut fabric.spec);
        pod_configuration(&fabric)
    };
    let now = configuration(|_| {});
    assert_eq!(now.len(), 16);
    let others = [
        configuration(|spec| spec.transport.paths = 4),
        configuration(|spec| spec.ports.first = 7600),
        configuration(|spec| spec.nics.include = vec!["ib*".into()]),
        configuration(|spec| spec.roots[1].access = RootAccess::ReadWrite),
        configuration(|spec| spec.roots[1].host_path = "/srv/other".into()),
        configuration(|spec| drop(spec.roots.pop())),
    ];
    for (index, other) in others.iter().enumerate() {
        assert_ne!(*other, now, "{index}");
    }
    let same = [
        configuration(|_| {}),
        configuration(|spec| spec.transport.cap_mbps = Some(100)),
        configuration(|spec| spec.transport.dscp = 10),
        configuration(|spec| spec.objects.allow_insecure = true),
        configuration(|spec| spec.topology.link_mbps = Some(1)),
    ];
    for (index, same) in same.iter().enumerate() {
        assert_eq!(*same, now, "{index}");
    }
}

#[test]
fn the_limits_of_a_root_are_told_in_bytes_and_percent() {
    use weft_proto::operator::v1::root::MinFree;

    let mut fabric = scenario::fabric("default", 0);
    let mut told = |min_free: &str, namespace: Option<&str>| {
        let root = &mut fabric.spec.roots[0];
        root.min_free = min_free.to_owned();
        root.bytes_per_namespace = namespace.map(str::to_owned);
        let root = config(&fabric, "").agent.unwrap().roots.remove(0);
        (root.min_free.unwrap(), root.bytes_per_namespace)
    };
    for (min_free, namespace, expected) in [
        ("10%", None, (MinFree::Percent(10), None)),
        ("0", Some("7"), (MinFree::Bytes(0), Some(7))),
        ("200Gi", Some("3k"), (MinFree::Bytes(200 << 30), Some(3000))),
        (
            "5P",
            Some("1Pi"),
            (MinFree::Bytes(5_000_000_000_000_000), Some(1 << 50)),
        ),
        (
            "999999999999999Pi",
            Some("2M"),
            (MinFree::Bytes(u64::MAX), Some(2_000_000)),
        ),
    ] {
        assert_eq!(told(min_free, namespace), expected);
    }
}
