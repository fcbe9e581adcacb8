//! Nodes whose agents' pods were made for an earlier configuration of their fabric.

use super::*;

/// Changes the fabric, as its author does.
fn edit(stage: &mut Stage, change: impl FnOnce(&mut weft_crds::RdmaFabricSpec)) {
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    change(&mut fabric.spec);
    let version: u64 = fabric.metadata.resource_version.unwrap().parse().unwrap();
    fabric.metadata.resource_version = Some((version + 100).to_string());
    stage.cache.fabrics.update(fabric);
}

/// The configuration that the DaemonSet of the fabric makes pods for.
fn of_template(stage: &Stage) -> String {
    let fabric = stage.cache.fabrics.named("default").unwrap();
    let mut template = AgentTemplate::default();
    let pod = template.manifest.spec.get_or_insert_default();
    pod.template.spec.get_or_insert_default().containers = vec![Default::default()];
    let set = agents::daemon_set(&template, fabric);
    let pod = set.spec.unwrap().template;
    let configuration =
        pod.metadata.unwrap().annotations.unwrap()["weft.dev/configuration"].clone();
    let args = pod.spec.unwrap().containers[0].args.clone().unwrap();
    assert!(args.contains(&format!("--pod-configuration={configuration}")));
    configuration
}

/// A node's agent reports from a pod that was made for that configuration.
fn reports(stage: &mut Stage, node: &str, configuration: &str) {
    stage.add_report(node, 0);
    let state = stage.reports.get_mut(node).unwrap();
    state.report.configuration = configuration.to_owned();
}

fn ready(reason: &str) -> (String, String) {
    ("True".to_owned(), reason.to_owned())
}

#[test]
fn a_node_is_ready_and_says_so_while_its_pod_is_of_an_earlier_configuration() {
    let mut stage = Stage::new();
    let before = of_template(&stage);
    for node in ["n1", "n2", "n3"] {
        reports(&mut stage, node, &before);
    }
    stage.settle();
    assert_eq!(stage.ready("n1"), ready("AgentReady"));

    edit(&mut stage, |spec| spec.transport.paths = 16);
    let now = of_template(&stage);
    assert_ne!(now, before);
    reports(&mut stage, "n1", &now);
    // What keeps an agent from working comes first.
    reports(&mut stage, "n3", "");
    stage.reports.get_mut("n3").unwrap().report.ready = false;
    let log = stage.settle();
    let applied = "apply DaemonSet weft-agent-default".to_owned();
    assert!(log.contains(&applied), "{log:?}");
    assert_eq!(stage.ready("n1"), ready("AgentReady"));
    assert_eq!(stage.ready("n2"), ready("ConfigurationPending"));
    assert_eq!(stage.ready("n3").1, "AgentNotReady");
    let node = stage.cache.fabric_nodes.named("n2").unwrap();
    assert_eq!(
        readiness(node).unwrap().message,
        "the agent can work, but with an earlier configuration of fabric default (nics, ports, roots, \
         transport), until its pod is replaced; see: kubectl -n weft-system rollout status \
         daemonset/weft-agent-default"
    );

    for node in ["n2", "n3"] {
        reports(&mut stage, node, &now);
    }
    stage.settle();
    assert_eq!(stage.fabric("default", "Ready").0, "True");
    assert_eq!(stage.ready("n2"), ready("AgentReady"));
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
