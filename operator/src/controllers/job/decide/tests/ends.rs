//! What becomes of a job that is suspended, overdue, or over for long.

use super::*;

#[test]
fn a_suspended_job_keeps_what_it_has_and_goes_on_from_there() {
    killed_after_any_request(|stage| {
        stage.until(|stage| {
            stage.agents.get("n3").is_some_and(|agent| agent.partial)
                || stage.life == 2 && stage.log.len() > 4
        });
        stage.edit(|job| job.spec.suspend = true);
        stage.settle();
        if stage.phase() != Phase::Complete {
            assert_eq!(stage.phase(), Phase::Suspended, "{:?}", stage.log);
            assert!(condition::is_true(&stage.status().conditions, "Suspended"));
            assert!(stage.process.is_none());
        }
        stage.edit(|job| job.spec.suspend = false);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
        assert!(!condition::is_true(&stage.status().conditions, "Suspended"));
    });
}

#[test]
fn a_successor_that_waits_for_a_node_ends_what_runs_when_the_job_is_suspended() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    // The next leader finds a job running and may not go on with it: it writes Waiting.
    stage.kill();
    stage.edit(|job| {
        let status = job.status.get_or_insert_default();
        status.phase = Phase::Waiting;
        job.spec.suspend = true;
    });
    stage.settle();
    assert_eq!(stage.phase(), Phase::Suspended, "{:?}", stage.log);
    assert_eq!(stage.orphan_cancels, 1);
}

#[test]
fn a_suspended_job_that_is_deleted_leaves_nothing() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    stage.edit(|job| job.spec.suspend = true);
    stage.settle();
    assert_eq!(stage.leftovers(), ["n2", "n3"]);
    stage.edit(deleted);
    stage.settle();
    assert_eq!(stage.leftovers(), Vec::<&str>::new());
    assert!(stage.cache.jobs.get(&minilm()).is_none());
}

#[test]
fn a_job_past_its_deadline_fails_and_its_partial_files_go() {
    killed_after_any_request(|stage| {
        stage.edit(|job| job.spec.deadline_seconds = Some(60));
        stage.until(|stage| {
            stage.agents.get("n3").is_some_and(|agent| agent.partial)
                || stage.life == 2 && stage.log.len() > 4
        });
        stage.now += SignedDuration::from_secs(60);
        stage.settle();
        let status = stage.status();
        if status.phase != Phase::Complete {
            let failed = status
                .conditions
                .iter()
                .find(|c| c.type_ == "Failed")
                .unwrap();
            assert_eq!(
                (&*failed.status, &*failed.reason),
                ("True", "DeadlineExceeded")
            );
        }
        assert_eq!(stage.leftovers(), Vec::<&str>::new(), "{:?}", stage.log);
        assert!(!has_finalizer(stage.job()));
    });
}

#[test]
fn of_a_job_whose_deadline_ends_while_agents_are_told_that_it_is_suspended_nothing_is_left() {
    for turns in 0.. {
        let mut stage = Stage::with(|job| job.spec.deadline_seconds = Some(1000));
        stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
        stage.edit(|job| job.spec.suspend = true);
        for _ in 0..turns {
            stage.turn();
        }
        // Once that is written the time does not run any more, and it goes on from what is there.
        if stage.phase() == Phase::Suspended {
            assert!(turns > 2);
            return;
        }
        stage.now += SignedDuration::from_secs(1000);
        stage.settle();
        assert_eq!(stage.phase(), Phase::Failed, "{turns}: {:?}", stage.log);
        assert_eq!(
            stage.leftovers(),
            Vec::<&str>::new(),
            "{turns}: {:?}",
            stage.log
        );
    }
}

#[test]
fn a_finished_job_is_deleted_when_its_time_is_over_and_not_before() {
    let mut stage = Stage::with(|job| job.spec.ttl_seconds_after_finished = Some(3600));
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete);
    stage.now += SignedDuration::from_secs(3590);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete);
    stage.now += SignedDuration::from_secs(10);
    stage.settle();
    assert!(stage.cache.jobs.get(&minilm()).is_none());
    assert_eq!(stage.log.last().unwrap(), "delete");
}

#[test]
fn a_job_that_can_no_more_go_on_after_a_failover_leaves_nothing_at_agents() {
    let mut stage = Stage::new();
    stage.until(|stage| stage.agents.get("n3").is_some_and(|agent| agent.partial));
    stage.kill();
    // The source's node is a destination now, and the copy would lie within the source.
    stage.edit(|job| job.spec.destinations.path = "minilm/copy".into());
    stage.settle();
    assert_eq!(stage.phase(), Phase::Failed, "{:?}", stage.log);
    assert_eq!(stage.leftovers(), Vec::<&str>::new(), "{:?}", stage.log);
    let conditions = stage.status().conditions;
    let failed = conditions
        .iter()
        .find(|condition| condition.type_ == "Failed");
    assert_eq!(failed.unwrap().reason, "CopyWithinSource");
}
