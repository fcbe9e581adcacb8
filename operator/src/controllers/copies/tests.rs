use weft_crds::{DestinationStatus, Phase, RootScope};

use super::*;
use crate::controllers::scenario::{self, MODEL, note, noted};

/// minilm has brought a copy to n2.
fn cache() -> Cache {
    let mut cache = scenario::cache(3);
    noted(&mut cache, "n2", MODEL, &note("f1"));
    cache
}

/// Whether the copy on n2 goes with minilm, by what nodes say and by what is known from before.
fn goes(cache: &Cache) -> bool {
    let job = scenario::job("minilm");
    let known = Removal {
        place: Place {
            node: "n2".into(),
            root: "models".into(),
            path: "team-a/minilm".into(),
        },
        fingerprint: "f1".into(),
    };
    let membership = Membership::of(cache);
    let parting = Parting::of(
        &job,
        (cache, &membership),
        None,
        (&HeldNodes::default(), None),
    );
    assert_eq!(parting.unsay.is_none(), parting.going == [known.clone()]);
    let going = parting.going.clone();
    assert_eq!(parting.with(std::slice::from_ref(&known)), going);
    !going.is_empty()
}

/// minilm-too, for the same place on all nodes, as another has changed it.
fn beside(change: impl FnOnce(&mut TransferJob)) -> Cache {
    let mut cache = cache();
    let mut other = scenario::job("minilm-too");
    change(&mut other);
    cache.jobs.learn(other);
    cache
}

fn begun(phase: Phase) -> impl FnOnce(&mut TransferJob) {
    move |job| job.status.get_or_insert_default().phase = phase
}

#[test]
fn a_copy_stays_while_another_job_is_at_it_though_no_node_says_so() {
    assert!(goes(&cache()));
    assert!(!goes(&beside(|_| {})));
    assert!(!goes(&beside(begun(Phase::Transferring))));
    // It goes on with what is there.
    assert!(!goes(&beside(begun(Phase::Suspended))));
    assert!(!goes(&beside(
        |job| job.spec.destinations.path = "minilm/sub/".into()
    )));
    assert!(!goes(&beside(|job| {
        job.spec.destinations.node_selector = None;
        job.spec.destinations.nodes = Some(vec!["n2".into()]);
    })));
    // All that it has brought is said by then.
    assert!(goes(&beside(begun(Phase::Complete))));
    assert!(goes(&beside(begun(Phase::Failed))));
    assert!(goes(&beside(|job| {
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(scenario::start());
        job.metadata.deletion_timestamp = Some(now);
        job.metadata.finalizers = Some(vec!["weft.dev/transfer".into()]);
    })));
}

fn over(phase: Phase, state: DestinationState) -> impl FnOnce(&mut TransferJob) {
    move |job| {
        let there = |node: &str, state| DestinationStatus {
            node: node.into(),
            state,
            reason: String::new(),
            message: String::new(),
            bytes: 0,
            digest: String::new(),
        };
        let status = job.status.get_or_insert_default();
        status.phase = phase;
        status.destinations = vec![there("n2", state), there("n3", DestinationState::Verified)];
    }
}

#[test]
fn a_copy_stays_that_a_job_that_is_over_says_it_has_though_the_node_has_no_room_to_say_so() {
    use DestinationState::{Failed, Transferring, Verified};
    assert!(!goes(&beside(over(Phase::Complete, Verified))));
    assert!(!goes(&beside(over(Phase::Failed, Verified))));
    assert!(!goes(&beside(over(Phase::Failed, Transferring))));
    assert!(goes(&beside(over(Phase::Failed, Failed))));
    // It says so of some only.
    let unlisted = |is_some_only| {
        move |job: &mut TransferJob| {
            over(Phase::Complete, Verified)(job);
            let status = job.status.as_mut().unwrap();
            status.destinations.remove(0);
            status.destinations_truncated = is_some_only;
        }
    };
    assert!(!goes(&beside(unlisted(true))));
    assert!(goes(&beside(unlisted(false))));
    // The node has changed its labels since.
    let others_too = |job: &mut TransferJob| {
        job.spec.destinations.node_selector = Some(scenario::labelled("other"));
    };
    assert!(!goes(&beside(|job| {
        others_too(job);
        over(Phase::Complete, Verified)(job);
    })));
    assert!(!goes(&beside(|job| {
        others_too(job);
        over(Phase::Transferring, Transferring)(job);
    })));
    // It has read them, and reads them no more.
    assert!(goes(&beside(|job| {
        over(Phase::Complete, Verified)(job);
        job.spec.source.file.as_mut().unwrap().node = "n2".into();
        job.spec.destinations.path = "elsewhere/".into();
    })));
}

#[test]
fn a_job_of_another_fabric_keeps_nothing() {
    let elsewhere = |change: fn(&mut TransferJob)| {
        let mut cache = beside(|job| {
            job.spec.source.file.as_mut().unwrap().node = "m1".into();
            change(job);
        });
        cache.fabrics.learn(scenario::fabric("other", 2));
        let mut fabric = cache.fabrics.named("other").unwrap().clone();
        fabric.spec.node_selector = scenario::labelled("other");
        fabric.metadata.resource_version = Some("2".into());
        cache.fabrics.learn(fabric);
        cache.nodes.learn(scenario::node("m1", &["other"]));
        cache
    };
    assert!(goes(&elsewhere(|_| {})));
    // It has begun in that of the copy before its source's node went to another.
    assert!(!goes(&elsewhere(|job| {
        job.status.get_or_insert_default().fabric = "default".into();
    })));
}

#[test]
fn a_job_for_another_place_or_other_nodes_keeps_nothing() {
    assert!(goes(&beside(
        |job| job.spec.destinations.path = "minilm2/".into()
    )));
    assert!(goes(&beside(
        |job| job.spec.destinations.root = "scratch".into()
    )));
    assert!(goes(&beside(
        |job| job.metadata.namespace = Some("team-b".into())
    )));
    assert!(goes(&beside(|job| {
        job.spec.source.file.as_mut().unwrap().path = "other/".into();
        job.spec.destinations.scope = RootScope::Shared;
    })));
    assert!(goes(&beside(|job| {
        job.spec.destinations.node_selector = None;
        job.spec.destinations.nodes = Some(vec!["n3".into()]);
    })));
    assert!(goes(&beside(|job| {
        job.spec.destinations.node_selector = Some(scenario::labelled("other"));
    })));
}

#[test]
fn a_copy_that_another_job_reads_stays() {
    let from = |node: &'static str| {
        move |job: &mut TransferJob| {
            job.spec.source.file.as_mut().unwrap().node = node.into();
            job.spec.destinations.path = "elsewhere/".into();
        }
    };
    assert!(!goes(&beside(from("n2"))));
    assert!(goes(&beside(from("n3"))));
}

#[test]
fn a_copy_is_another_jobs_too_where_that_lies_at_its_place_or_in_it_or_around_it() {
    for (root, path, is_anothers) in [
        ("models", "team-a/minilm", true),
        ("models", "team-a/minilm/", true),
        ("models", "team-a/minilm/sub", true),
        ("models", "team-a", true),
        ("models", "", true),
        ("models", "team-a/minilm2", false),
        ("models", "team-b/minilm", false),
        ("scratch", "team-a/minilm", false),
    ] {
        let mut cache = cache();
        let there = Note {
            root: root.into(),
            path: path.into(),
            ..note("f2")
        };
        noted(&mut cache, "n2", "weft.dev/model.team-b.other", &there);
        assert_eq!(goes(&cache), !is_anothers, "{path}");
    }
}

#[test]
fn of_copies_that_stay_those_are_unsaid_first_whose_nodes_can_be_written_to() {
    let mut cache = beside(|_| {});
    noted(&mut cache, "n3", MODEL, &note("f1"));
    let membership = Membership::of(&cache);
    let job = scenario::job("minilm");
    let over = Some(Duration::from_secs(1000));
    let unsaid = |refused: &[&str], failed: &[&str], waited| {
        let held = scenario::held(refused, failed);
        let parting = Parting::of(&job, (&cache, &membership), None, (&held, waited));
        Some(parting.unsay?.key.name)
    };
    assert_eq!(unsaid(&[], &[], None).as_deref(), Some("n2"));
    assert_eq!(unsaid(&[], &["n2"], None).as_deref(), Some("n3"));
    assert_eq!(unsaid(&[], &["n3", "n2"], None).as_deref(), Some("n3"));
    assert_eq!(unsaid(&["n2"], &[], None).as_deref(), Some("n3"));
    assert_eq!(unsaid(&[], &["n2"], over).as_deref(), Some("n3"));
    assert_eq!(unsaid(&["n2"], &["n3"], over), None);
}
