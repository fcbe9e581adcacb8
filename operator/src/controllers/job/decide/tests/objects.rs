//! The source is an object, which a destination reads.

use super::*;
use crate::controllers::job::secret::forbidden;

fn of_object(job: &mut TransferJob) {
    job.spec.source = scenario::object("s3://models/minilm/");
}

#[test]
fn a_job_of_an_object_is_complete_after_a_crash_after_any_request() {
    killed_after_any_request(|stage| {
        stage.edit(of_object);
        stage.settle();
        let status = stage.status();
        assert_eq!(status.phase, Phase::Complete, "{:?}", stage.log);
        assert_eq!((status.counts.total, status.counts.verified), (3, 3));
        assert!(["n1", "n2", "n3"].contains(&&*status.reader), "{status:?}");
        for node in ["n1", "n2", "n3"] {
            assert!(stage.agents[node].verified, "{node}");
        }
        assert!(!has_finalizer(stage.job()) && stage.leftovers().is_empty());
    });
}

#[test]
fn a_job_of_an_object_that_is_deleted_leaves_nothing_at_the_agents() {
    killed_after_any_request(|stage| {
        stage.edit(of_object);
        stage.until(|stage| {
            stage.agents.get("n3").is_some_and(|agent| agent.partial)
                || stage.life == 2 && stage.log.len() > 4
        });
        stage.edit(deleted);
        stage.settle();
        assert!(stage.cache.jobs.get(&minilm()).is_none(), "{:?}", stage.log);
        assert_eq!(stage.leftovers(), Vec::<&str>::new(), "{:?}", stage.log);
    });
}

#[test]
fn a_job_keeps_its_place_in_the_queue_while_its_secret_is_probed_again() {
    let mut stage = Stage::with(of_object);
    let other = QueueEntry {
        key: Key::cluster_scoped("other"),
        ..QueueEntry::new(stage.job(), "default", true, None)
    };
    stage.queue.update_entry("other", Some(other));
    stage.settle();
    assert_eq!(stage.log, ["Waiting #0 PathInUse"]);
    let uid = uid(stage.job());
    assert!(stage.queue.has_entry(&uid));
    stage.cache.secrets.clear();
    stage.turn();
    assert!(stage.cache.secrets.len() == 1 && stage.queue.has_entry(&uid));
}

#[test]
fn a_job_waits_for_the_right_to_read_its_secret_and_says_how_it_is_given() {
    let mut stage = Stage::with(of_object);
    stage.secret = Err(forbidden("team-a", "store", "weft-system:weft-operator"));
    stage.settle();
    assert_eq!(stage.log, ["Waiting #0 SecretForbidden"]);
    let message = stage.status().message;
    for part in [
        "spec.source.object.secretRef",
        "kubectl create role weft-read-store --namespace team-a --verb get --resource secrets \
         --resource-name store",
        "--serviceaccount weft-system:weft-operator",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // What was seen is forgotten after a while.
    stage.cache.secrets.clear();
    stage.secret = Ok(());
    stage.settle();
    assert_eq!(stage.phase(), Phase::Complete, "{:?}", stage.log);
}
