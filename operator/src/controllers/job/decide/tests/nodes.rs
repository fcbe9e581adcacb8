//! Which nodes a job is about: late ones, silent ones, its source, and those that say what they hold.

use super::*;

/// A node appears, with an agent that is ready.
fn appear(stage: &mut Stage, name: &str) {
    stage.cache.nodes.update(scenario::node(name, &["gpu"]));
    stage
        .cache
        .fabric_nodes
        .update(scenario::ready(name, "default"));
}

#[test]
fn a_node_that_comes_to_match_while_the_job_runs_gets_a_copy_too() {
    killed_after_any_request(|stage| {
        stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.verified));
        appear(stage, "n4");
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert_eq!(
            stage.agents.get("n4").map(|agent| agent.verified),
            // The crash came when it was Complete already.
            (stage.status().counts.total == 3).then_some(true),
            "{:?}",
            stage.log
        );
        if stage.life == 1 {
            let status = stage.status();
            assert_eq!((status.counts.total, status.counts.verified), (3, 3));
            assert_eq!((status.bytes, status.attempt), (3000, 2));
        }
    });
}

#[test]
fn a_node_that_matches_no_more_while_the_job_runs_is_no_destination_and_the_others_finish() {
    killed_after_any_request(|stage| {
        stage.dead.insert("n3".into());
        stage.until(|stage| stage.status().counts.verified == 1);
        let mut node = scenario::node("n3", &[]);
        node.metadata.resource_version = Some("2".into());
        stage.cache.nodes.update(node);
        stage.settle();
        let status = stage.status();
        assert_eq!(status.phase, Phase::Complete, "{:?}", stage.log);
        assert_eq!((status.counts.total, status.counts.verified), (1, 1));
        assert_eq!((status.bytes, status.bytes_total), (1000, 1000));
    });
}

#[test]
fn a_node_that_comes_to_match_a_complete_job_changes_nothing() {
    let mut stage = Stage::new();
    stage.settle();
    let (before, log) = (stage.status(), stage.log.len());
    appear(&mut stage, "n4");
    stage.settle();
    assert_eq!((stage.status(), stage.log.len()), (before, log));
    assert!(!stage.agents.contains_key("n4"));
}

#[test]
fn a_node_that_does_not_answer_holds_up_nobody_and_the_end_names_it() {
    killed_after_any_request(|stage| {
        stage.edit(|job| job.spec.backoff_limit = 2);
        stage.dead.insert("n3".into());
        stage.cache.fabric_nodes.forget(&Key::cluster_scoped("n3"));
        let asleep = scenario::asleep("n3", "default");
        stage.cache.fabric_nodes.update(asleep);
        stage.until(|stage| stage.status().counts.verified == 1);
        let status = stage.status();
        let troubled = &status.destinations[0];
        assert_eq!(
            (&*troubled.node, &*troubled.reason),
            ("n3", "NodeNeverReached")
        );
        stage.settle();
        let status = stage.status();
        assert_eq!(status.phase, Phase::Failed, "{:?}", stage.log);
        assert_eq!(
            status.message,
            "1 of 2 destinations failed, 1 have a verified copy: node n3 does not answer"
        );
        assert!(stage.agents["n2"].verified && !has_finalizer(stage.job()));
    });
}

#[test]
fn a_failed_job_names_the_nodes_where_its_partial_files_are_left() {
    let mut stage = Stage::with(|job| job.spec.backoff_limit = 2);
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    stage.dead.insert("n3".into());
    stage.settle();
    assert_eq!(stage.phase(), Phase::Failed, "{:?}", stage.log);
    assert_eq!(stage.leftovers(), ["n3"]);
    let last = stage.log.iter().find(|line| line.starts_with("Failed"));
    assert!(last.unwrap().contains("FilesLeft"), "{:?}", stage.log);
}

#[test]
fn a_node_that_comes_back_while_it_is_retried_gets_its_copy() {
    let mut stage = Stage::new();
    stage.dead.insert("n3".into());
    stage.until(|stage| stage.status().counts.verified == 1);
    stage.dead.clear();
    stage.settle();
    let status = stage.status();
    assert_eq!(
        (status.phase, status.counts.verified),
        (Phase::Complete, 2),
        "{:?}",
        stage.log
    );
}

#[test]
fn a_source_that_is_selected_for_another_place_copies_for_itself() {
    killed_after_any_request(|stage| {
        stage.edit(|job| job.spec.destinations.path = "copy/".into());
        stage.settle();
        let status = stage.status();
        assert_eq!(status.phase, Phase::Complete, "{:?}", stage.log);
        let nodes: Vec<&str> = status
            .destinations
            .iter()
            .map(|destination| destination.node.as_str())
            .collect();
        assert_eq!(nodes, ["n1", "n2", "n3"]);
        assert!(stage.agents["n1/here"].verified && stage.agents["n3"].verified);
    });
}

#[test]
fn the_status_names_the_label_by_which_pods_find_the_copies() {
    let mut stage = Stage::new();
    stage.settle();
    assert_eq!(stage.status().node_label, "weft.dev/model.team-a.minilm=d1");
}

#[test]
fn a_complete_job_says_once_that_nodes_cannot_have_its_label_and_that_they_can_again() {
    let mut stage = Stage::new();
    stage.settle();
    let labelled = |stage: &Stage| {
        let conditions = stage.status().conditions;
        let found = conditions.into_iter().find(|c| c.type_ == "Labelled")?;
        Some((found.status, found.reason, found.message))
    };
    assert_eq!(labelled(&stage), None);
    let writes = |stage: &mut Stage| {
        let before = stage.log.len();
        stage.settle();
        stage.log.len() - before
    };
    for node in ["n2", "n3"] {
        let text = format!("{node} has no room");
        let obstacle = obstacle::temporary("NamespaceLabelsFull", text);
        stage.cache.label_problems.insert(minilm(), obstacle);
        assert_eq!(writes(&mut stage), usize::from(node == "n2"));
        let (status, reason, message) = labelled(&stage).unwrap();
        assert_eq!((&*status, &*reason), ("False", "NamespaceLabelsFull"));
        assert_eq!(message, "n2 has no room");
    }
    // A new leader has not heard the agents yet.
    stage.cache.label_problems.clear();
    stage.led_for = Duration::ZERO;
    assert_eq!(writes(&mut stage), 0);
    stage.led_for = SILENCE;
    assert_eq!(writes(&mut stage), 1);
    assert_eq!(labelled(&stage).unwrap().0, "True");
    assert_eq!(stage.phase(), Phase::Complete);
}

#[test]
fn a_copy_on_the_source_alone_needs_no_network() {
    let mut stage = Stage::with(|job| {
        job.spec.destinations.path = "copy/".into();
        job.spec.destinations.node_selector = None;
        job.spec.destinations.nodes = Some(vec!["n1".into()]);
    });
    stage.settle();
    let status = stage.status();
    assert_eq!(status.phase, Phase::Complete, "{:?}", stage.log);
    assert_eq!((status.counts.total, status.bytes), (1, 1000));
    assert_eq!(status.manifest.unwrap().digest.unwrap(), "d1");
    assert!(status.plan.is_none() && !stage.agents.contains_key("n1"));
}

#[test]
fn a_job_that_runs_in_a_fabric_that_is_being_deleted_goes_on_after_a_change_of_leader() {
    killed_after_any_request(|stage| {
        stage.until(|stage| stage.phase() == Phase::Transferring);
        let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
        fabric.metadata.deletion_timestamp = Some(Time(stage.now));
        fabric.metadata.resource_version = Some("2".into());
        stage.cache.fabrics.update(fabric);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert!(!stage.log.iter().any(|line| line.starts_with("Waiting")));
    });
}

#[test]
fn a_node_that_leaves_a_fabric_that_is_being_deleted_is_not_waited_for() {
    let mut stage = Stage::new();
    stage.dead.insert("n3".into());
    stage.until(|stage| stage.status().counts.verified == 1);
    let mut fabric = stage.cache.fabrics.named("default").unwrap().clone();
    fabric.metadata.deletion_timestamp = Some(Time(stage.now));
    fabric.metadata.resource_version = Some("2".into());
    stage.cache.fabrics.update(fabric);
    let mut node = scenario::node("n3", &[]);
    node.metadata.resource_version = Some("2".into());
    stage.cache.nodes.update(node);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
}
