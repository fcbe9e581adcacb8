//! How long a node is waited for that does not take its fabric's configuration over.

use super::*;

/// Why the scenario's job does not begin; "" where it does.
fn obstacle(stage: &Stage) -> String {
    let job = scenario::job("minilm");
    let membership = Membership::of(&stage.cache);
    let resolved = crate::controllers::job::resolve::resolve(&job, &stage.cache, &membership, 1);
    resolved.map_or_else(|obstacle| obstacle.reason.to_owned(), |_| String::new())
}

#[test]
fn a_destination_that_does_not_take_a_configuration_over_is_waited_for_for_half_an_hour() {
    let mut stage = Stage::new();
    let asked = |stage: &Stage| {
        let fabric = stage.cache.fabrics.named("default").unwrap();
        config(fabric, &stage.cache.ticket_key).hash
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
        let status = stage.cache.fabric_nodes.named(node).unwrap().status.clone();
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
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    let mut root = fabric.spec.roots[0].clone();
    root.name = "more".into();
    fabric.spec.roots.push(root);
    fabric.metadata.resource_version = Some("50".into());
    stage.cache.fabrics.learn(fabric);
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
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    fabric.spec.roots.pop();
    fabric.spec.transport.dscp += 1;
    fabric.metadata.resource_version = Some("60".into());
    stage.cache.fabrics.learn(fabric);
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
    let status = stage.cache.fabric_nodes.named("n1").unwrap().status.clone();
    let kinds = status.unwrap().conditions.into_iter().map(|one| one.type_);
    assert_eq!(kinds.collect::<Vec<_>>(), ["Ready"]);
}

#[test]
fn the_limits_of_a_root_are_told_in_bytes_and_percent() {
    use weft_proto::operator::v1::root::MinFree;

    let mut fabric = scenario::fabric("default", 0);
    let mut told = |min_free: &str, namespace: Option<&str>| {
        let root = &mut fabric.spec.roots[0];
        root.min_free = min_free.to_owned();
        root.bytes_per_namespace = namespace.map(str::to_owned);
        let root = config(&fabric, "").roots.remove(0);
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
