//! Which copies go with a job, and which stay.

use tokio::time::Instant;

use super::*;

fn goes_with_its_copies(job: &mut TransferJob) {
    job.spec.deletion_policy = DeletionPolicy::Delete;
}

/// It is deleted, and soon gone.
fn delete(stage: &mut Stage) {
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert!(stage.leftovers().is_empty(), "{:?}", stage.log);
}

fn has_copy(stage: &Stage, node: &str) -> bool {
    stage.agents.get(node).is_some_and(|agent| agent.verified)
}

#[test]
fn copies_go_with_a_job_that_says_so_and_the_sources_files_stay() {
    killed_after_any_request(|stage| {
        stage.edit(goes_with_its_copies);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert!(has_finalizer(stage.job()), "{:?}", stage.log);
        delete(stage);
        assert!(!has_copy(stage, "n2") && !has_copy(stage, "n3"));
        assert!(has_copy(stage, "n1"));
    });
}

#[test]
fn copies_of_another_job_stay_and_no_agent_is_asked() {
    let mut stage = Stage::new();
    stage.settle();
    assert!(!has_finalizer(stage.job()), "{:?}", stage.log);
    delete(&mut stage);
    assert!(has_copy(&stage, "n2") && has_copy(&stage, "n3"));
    assert_eq!(stage.orphan_cancels, 0);
}

#[test]
fn copies_go_with_a_job_that_is_deleted_while_it_runs() {
    for node in ["n2", "n3"] {
        killed_after_any_request(|stage| {
            stage.edit(goes_with_its_copies);
            stage.until(|stage| has_copy(stage, node) || stage.phase().is_over());
            delete(stage);
            assert!(!has_copy(stage, "n2") && !has_copy(stage, "n3"));
        });
    }
}

#[test]
fn what_is_verified_before_the_deadline_goes_with_the_job() {
    killed_after_any_request(|stage| {
        stage.edit(|job| {
            goes_with_its_copies(job);
            job.spec.deadline_seconds = Some(1000);
        });
        stage.until(|stage| has_copy(stage, "n2"));
        stage.now += SignedDuration::from_secs(1000);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Failed, "{:?}", stage.log);
        // Whoever has died before it was written does not know of it, and the agent does.
        stage.reports = reports(&["n2"]);
        delete(stage);
        if stage.life == 1 {
            assert!(!has_copy(stage, "n2"), "{:?}", stage.log);
        }
    });
}

#[test]
fn copies_go_with_a_job_that_is_deleted_between_its_deadline_and_its_end() {
    for turns in 0.. {
        let mut stage = Stage::with(|job| {
            goes_with_its_copies(job);
            job.spec.deadline_seconds = Some(1000);
        });
        stage.until(|stage| has_copy(stage, "n2"));
        stage.now += SignedDuration::from_secs(1000);
        for _ in 0..turns {
            stage.turn();
        }
        let is_over = stage.phase().is_over();
        delete(&mut stage);
        assert!(!has_copy(&stage, "n2"), "{turns}: {:?}", stage.log);
        if is_over {
            return;
        }
    }
}

fn reports(nodes: &[&str]) -> BTreeMap<String, NodeState> {
    let state = |node: &&str| {
        let mut report = scenario::report(node, "default");
        report.copies = vec![scenario::copy("d1")];
        let state = NodeState::new("default", report, Instant::now());
        ((*node).to_owned(), state)
    };
    nodes.iter().map(state).collect()
}

#[tokio::test]
async fn a_node_that_the_job_does_not_name_any_more_is_told_when_it_reports_a_copy() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.settle();
    stage.cache.nodes.update(scenario::node("n4", &["gpu"]));
    stage
        .cache
        .fabric_nodes
        .update(scenario::ready("n4", "default"));
    stage.reports = reports(&["n4"]);
    stage.edit(|job| {
        job.spec.destinations.node_selector = None;
        job.spec.destinations.nodes = Some(vec!["n2".into()]);
    });
    delete(&mut stage);
    let told: Vec<&str> = stage.released.iter().map(String::as_str).collect();
    assert_eq!(told, ["n1", "n2", "n3", "n4"]);
}

#[test]
fn a_suspended_job_is_kept_by_no_copy() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.settle();
    assert!(has_finalizer(stage.job()));
    // As an uninstall does: nobody is there afterwards to remove anything.
    stage.edit(|job| job.spec.suspend = true);
    stage.settle();
    assert!(!has_finalizer(stage.job()), "{:?}", stage.log);
}

#[test]
fn a_copy_on_a_node_that_is_down_keeps_no_job_for_ever_and_is_named() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.settle();
    stage.dead.insert("n3".into());
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert_eq!(stage.log.last().unwrap(), "release FilesLeft");
    assert!(!has_copy(&stage, "n2") && has_copy(&stage, "n3"));
    let said = status::left_behind(&scenario::job("minilm"), &["n3".to_owned()]);
    assert!(said.unwrap().note.starts_with("n3 did not confirm"));
}
