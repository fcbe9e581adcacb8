//! Which copies go with a job, and which stay.

use super::*;
use crate::controllers::models::write_note;

const KEY: &str = "weft.dev/model.team-a.minilm";

fn goes_with_its_copies(job: &mut TransferJob) {
    job.spec.deletion_policy = DeletionPolicy::Delete;
}

/// A job of minilm's name has run, and is gone; its copies and the word on them are there.
fn after_a_job() -> Stage {
    let mut stage = Stage::new();
    stage.fingerprint = "f1".into();
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert!(stage.removed.is_empty());
    stage
}

/// Another job of that name is made, which goes with its copies, runs and is deleted.
fn again(stage: &mut Stage, change: impl FnOnce(&mut TransferJob)) {
    let mut job = scenario::job("minilm");
    job.metadata.uid = Some("job-minilm-again".into());
    goes_with_its_copies(&mut job);
    change(&mut job);
    stage.agents.clear();
    stage.cache.jobs.learn(job);
    stage.settle();
    assert!(stage.phase().is_over(), "{:?}", stage.log);
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
}

fn to(nodes: &[&str]) -> impl FnOnce(&mut TransferJob) {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    |job| {
        job.spec.destinations.node_selector = None;
        job.spec.destinations.nodes = Some(nodes);
    }
}

fn removed(stage: &Stage) -> Vec<(&str, &str)> {
    let removed = stage.removed.iter();
    removed.map(|(node, path)| (&**node, &**path)).collect()
}

#[test]
fn copies_go_with_a_job_that_says_so_and_the_sources_files_stay() {
    killed_after_any_request(|stage| {
        stage.fingerprint = "f1".into();
        stage.edit(goes_with_its_copies);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert!(is_held(stage.job()), "{:?}", stage.log);
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        let holds = |node: &str| stage.agents[node].verified;
        assert!(!holds("n2") && !holds("n3"), "{:?}", stage.log);
        assert!(holds("n1"));
    });
}

#[test]
fn copies_that_are_there_go_with_a_job_that_is_deleted_while_it_runs() {
    let mut stage = Stage::new();
    stage.fingerprint = "f1".into();
    stage.edit(goes_with_its_copies);
    stage.until(|stage| stage.log.iter().any(|line| line == "label n2"));
    stage.edit(deleted);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert!(!stage.agents["n2"].verified && stage.left().is_empty());
}

#[test]
fn copies_that_no_node_says_yet_go_with_a_job_too() {
    // Right after the last is Verified, and between the first and the second.
    for node in ["n3", "n2"] {
        killed_after_any_request(|stage| {
            stage.fingerprint = "f1".into();
            stage.edit(goes_with_its_copies);
            stage.until(|stage| stage.agents.get(node).is_some_and(|agent| agent.verified));
            let said = format!("label {node}");
            assert!(stage.life == 2 || !stage.log.contains(&said));
            stage.edit(deleted);
            stage.settle();
            assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
            if stage.life == 1 {
                assert!(!stage.agents[node].verified, "{:?}", stage.log);
            }
        });
    }
}

#[test]
fn a_job_removes_no_copy_of_another_job_that_had_its_name() {
    let elsewhere = |job: &mut TransferJob| job.spec.destinations.path = "other/".into();
    let mut stage = after_a_job();
    again(&mut stage, |job| {
        to(&["n2"])(job);
        elsewhere(job);
    });
    assert_eq!(removed(&stage), [("n2", "team-a/other")]);
    // One that brought nothing anywhere.
    let mut stage = after_a_job();
    again(&mut stage, |job| {
        job.spec.destinations.path = "minilm/x/".into();
    });
    assert_eq!(removed(&stage), []);
    let node = stage.cache.nodes.named("n3").unwrap();
    assert!(node.labels().contains_key(KEY));
}

#[test]
fn a_job_removes_no_files_that_it_found_as_another_job_of_its_name_had_left_them() {
    let mut stage = after_a_job();
    again(&mut stage, |_| {});
    assert_eq!(removed(&stage), []);
    // What it finds changed it brings anew.
    let mut stage = after_a_job();
    for node in ["n2", "n3"] {
        let mut note = noted(&stage, node);
        note["digest"] = "of another release".into();
        note["fingerprint"] = "f0".into();
        annotate(&mut stage, node, &note);
    }
    again(&mut stage, |_| {});
    let both = [("n2", "team-a/minilm"), ("n3", "team-a/minilm")];
    assert_eq!(removed(&stage), both);
}

#[test]
fn the_files_of_a_jobs_source_are_nobodys_copy_when_another_node_is_the_source() {
    let from_n2 = |job: &mut TransferJob| job.spec.source.file.as_mut().unwrap().node = "n2".into();
    // n1 is away, and no destination now.
    let mut stage = after_a_job();
    assert_eq!(noted(&stage, "n1")["brought"], false);
    again(&mut stage, |job| {
        from_n2(job);
        to(&["n3"])(job);
    });
    assert_eq!(removed(&stage), []);
    // It is one.
    let mut stage = after_a_job();
    again(&mut stage, from_n2);
    assert_eq!(removed(&stage), []);
}

#[test]
fn a_word_of_a_release_that_named_no_job_removes_nothing() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.settle();
    let mut note = noted(&stage, "n2");
    let fields = note.as_object_mut().unwrap();
    assert!(fields.remove("job").is_some() && fields.remove("brought").is_some());
    annotate(&mut stage, "n2", &note);
    stage.edit(deleted);
    stage.settle();
    assert_eq!(removed(&stage), [("n3", "team-a/minilm")]);
}

#[test]
fn a_copy_that_is_another_jobs_too_goes_with_the_last_of_them() {
    killed_after_any_request(|stage| {
        stage.fingerprint = "f1".into();
        stage.edit(goes_with_its_copies);
        let base = serde_json::json!({
            "root": "models", "path": "team-a/minilm/base", "digest": "d0", "fingerprint": "f0",
            "job": "job-base", "brought": true,
        });
        let other = "weft.dev/model.team-b.base";
        stage.settle();
        annotate_as(stage, "n2", other, &base);
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        assert_eq!(removed(stage), [("n3", "team-a/minilm")], "{:?}", stage.log);
        // The other one's alone from now on.
        let node = stage.cache.nodes.named("n2").unwrap();
        assert!(!node.labels().contains_key(KEY) && !node.annotations().contains_key(KEY));
        assert!(node.annotations().contains_key(other));
    });
}

/// n2 and n3 have copies, n3 is down, and the job is deleted: it asks n3 again and again.
fn while_agents_are_told() -> Stage {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.settle();
    stage.dead.insert("n3".into());
    stage.edit(deleted);
    let is_at_it = |stage: &Stage| {
        let course = stage.process.as_ref().map(|process| process.job.course());
        course == Some(Course::Ending)
    };
    stage.until(is_at_it);
    (0..3).for_each(|_| assert!(stage.turn() && is_at_it(&stage)));
    assert!(stage.removed.is_empty());
    stage
}

#[test]
fn a_copy_that_has_become_another_jobs_while_agents_were_told_stays() {
    let gone = |stage: &mut Stage| {
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    };
    let mut stage = while_agents_are_told();
    gone(&mut stage);
    let both = [("n2", "team-a/minilm"), ("n3", "team-a/minilm")];
    assert_eq!(removed(&stage), both);
    // One that has come to its end, and one that is at work.
    let mut stage = while_agents_are_told();
    let other = serde_json::json!({
        "root": "models", "path": "team-a/minilm", "digest": "d1", "fingerprint": "f1",
        "job": "job-too", "brought": true,
    });
    annotate_as(&mut stage, "n2", "weft.dev/model.team-a.minilm-too", &other);
    gone(&mut stage);
    assert_eq!(removed(&stage), [("n3", "team-a/minilm")]);
    let mut stage = while_agents_are_told();
    stage.cache.jobs.learn(scenario::job("minilm-too"));
    gone(&mut stage);
    assert_eq!(removed(&stage), []);
}

#[test]
fn what_is_verified_before_the_deadline_is_said_and_goes_with_the_job() {
    killed_after_any_request(|stage| {
        stage.fingerprint = "f1".into();
        stage.edit(|job| {
            goes_with_its_copies(job);
            job.spec.deadline_seconds = Some(1000);
        });
        stage.until(|stage| stage.agents.get("n2").is_some_and(|agent| agent.verified));
        stage.now += SignedDuration::from_secs(1000);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Failed, "{:?}", stage.log);
        let is_said = stage.log.iter().any(|line| line == "label n2");
        assert!(is_said || stage.life == 2, "{:?}", stage.log);
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        if stage.life == 1 {
            assert!(!stage.agents["n2"].verified, "{:?}", stage.log);
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
        stage.fingerprint = "f1".into();
        stage.until(|stage| stage.agents.get("n2").is_some_and(|agent| agent.verified));
        stage.now += SignedDuration::from_secs(1000);
        for _ in 0..turns {
            stage.turn();
        }
        let is_over = stage.phase().is_over();
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        assert!(!stage.agents["n2"].verified, "{turns}: {:?}", stage.log);
        if is_over {
            return;
        }
    }
}

#[test]
fn of_two_jobs_that_go_at_the_same_time_the_last_takes_the_copies() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.settle();
    let other = "weft.dev/model.team-a.minilm-too";
    let says = serde_json::json!({
        "root": "models", "path": "team-a/minilm", "digest": "d1", "fingerprint": "f1",
        "job": "job-too", "brought": true,
    });
    for node in ["n2", "n3"] {
        annotate_as(&mut stage, node, other, &says);
    }
    stage.edit(deleted);
    // The other one has let go of n2 first, and is about to let go of n3.
    let unsaid = |stage: &mut Stage, node: &str| {
        let request = write_note(stage.cache.nodes.named(node).unwrap(), other, None);
        stage.cache.obey(&request);
    };
    unsaid(&mut stage, "n2");
    assert!(stage.turn() && stage.process.is_none(), "more may come");
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert_eq!(removed(&stage), [("n2", "team-a/minilm")]);
}

/// Agents are told first when it is deleted beside another job of the same place, while it would go on with a
/// node that is down, and after that has happened.
fn agents_are_told_first(before: impl FnOnce(&mut Stage)) -> Stage {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.dead.insert("n3".into());
    stage.until(|stage| stage.log.iter().any(|line| line == "label n2"));
    before(&mut stage);
    stage.cache.jobs.learn(scenario::job("minilm-too"));
    stage.edit(deleted);
    stage.turn();
    let course = stage.process.as_ref().map(|process| process.job.course());
    assert_eq!(course, Some(Course::Ending));
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert_eq!(removed(&stage), []);
    stage
}

#[test]
fn agents_are_told_by_a_successor_before_nodes_unsay_anything() {
    agents_are_told_first(Stage::kill);
}

#[test]
fn copies_stay_if_the_job_comes_to_say_so_while_agents_are_told() {
    let mut stage = while_agents_are_told();
    stage.edit(|job| job.spec.deletion_policy = DeletionPolicy::Retain);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert_eq!(removed(&stage), []);
}

#[test]
fn a_job_is_stopped_before_its_nodes_say_that_a_copy_is_anothers() {
    let stage = agents_are_told_first(|_| {});
    let node = stage.cache.nodes.named("n2").unwrap();
    assert!(!node.annotations().contains_key(KEY));
}

fn noted(stage: &Stage, node: &str) -> serde_json::Value {
    let node = stage.cache.nodes.named(node).unwrap();
    serde_json::from_str(&node.annotations()[KEY]).unwrap()
}

fn annotate(stage: &mut Stage, node: &str, note: &serde_json::Value) {
    annotate_as(stage, node, KEY, note);
}

fn annotate_as(stage: &mut Stage, node: &str, key: &str, note: &serde_json::Value) {
    let mut node = stage.cache.nodes.named(node).unwrap().clone();
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), note.to_string());
    // The label's value follows from it.
    let version = node.metadata.resource_version.take();
    let version: u64 = version.unwrap().parse().unwrap();
    node.metadata.resource_version = Some((version + 1).to_string());
    stage.cache.nodes.learn(node);
}

#[test]
fn a_node_that_cannot_be_written_to_holds_up_neither_an_end_nor_a_deletion_for_ever() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.failing = vec!["n2".into()];
    stage.until(|stage| stage.over_since.is_some());
    let since = stage.now;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete);
    let took = stage.now.duration_since(since);
    assert!(took > NOTING && took < NOTING * 2, "{took}");
    assert!(stage.log.iter().any(|line| line == "label n3"));

    // Another has it, too: what n2 says of it cannot be taken away, and it stays.
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.settle();
    stage.cache.jobs.learn(scenario::job("minilm-too"));
    stage.failing = vec!["n2".into()];
    let now = stage.now;
    stage.edit(|job| {
        deleted(job);
        job.metadata.deletion_timestamp = Some(Time(now));
    });
    // A leader that comes much later is as patient.
    let now = now + SignedDuration::from_hours(24);
    (stage.began, stage.now) = (now, now);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
    assert!(stage.now.duration_since(now) > NOTING);
    assert_eq!(removed(&stage), []);
}

#[test]
fn after_an_hour_nobody_is_waited_for_whatever_is_known_of_the_nodes() {
    let mut stage = Stage::with(goes_with_its_copies);
    stage.fingerprint = "f1".into();
    stage.failing = vec!["n3".into()];
    stage.is_unnoticed = true;
    stage.until(|stage| stage.over_since.is_some());
    stage.now += SignedDuration::from_secs(3590);
    stage.turn();
    assert_eq!(stage.phase(), Phase::Transferring);
    stage.now += SignedDuration::from_secs(10);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);

    stage.cache.jobs.learn(scenario::job("minilm-too"));
    // n2 has said its own, which is to be taken away.
    stage.failing = vec!["n2".into()];
    let now = stage.now;
    stage.edit(|job| {
        deleted(job);
        job.metadata.deletion_timestamp = Some(Time(now));
    });
    stage.now += SignedDuration::from_secs(3590);
    stage.turn();
    assert!(stage.cache.jobs.get(&minilm()).is_some());
    stage.now += SignedDuration::from_secs(10);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
}
