use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::controllers::tests::scenario;

/// A claim of a job that was made in this second.
fn claim(name: &str, second: i64, path: &str) -> Claim {
    let mut job = scenario::job(name);
    let made = scenario::start() + SignedDuration::from_secs(second);
    job.metadata.creation_timestamp = Some(Time(made));
    job.spec.destinations.path = path.into();
    Claim::of(&job, "default", false)
}

fn at_work(claim: Claim) -> Claim {
    Claim {
        is_at_work: true,
        ..claim
    }
}

/// Who is in the way of a claim.
fn blocker(grants: &PathLocks, claim: &Claim) -> Option<String> {
    let message = grants.obstacle(claim)?.message;
    let (_, rest) = message.split_once("team-a/")?;
    Some(rest.split(' ').next()?.to_owned())
}

#[test]
fn equal_paths_and_those_above_and_below_conflict_and_no_others() {
    let mut grants = PathLocks::default();
    grants.update("1", Some(at_work(claim("first", 1, "models/a"))));
    let blocked = |path: &str| blocker(&grants, &claim("second", 2, path)).is_some();
    for path in [
        "models/a",
        "models/a/",
        "models",
        "models/a/sub",
        "models/a/sub/x",
        "",
    ] {
        assert!(blocked(path), "{path}");
    }
    for path in ["models/b", "models/ab", "models/a.bin", "other"] {
        assert!(!blocked(path), "{path}");
    }
    let second = claim("second", 2, "models/a");
    let elsewhere = [
        Claim {
            root: ("default".into(), "scratch".into()),
            ..second.clone()
        },
        Claim {
            root: ("other".into(), "models".into()),
            ..second
        },
    ];
    for claim in elsewhere {
        assert!(grants.obstacle(&claim).is_none(), "{claim:?}");
    }
}

#[test]
fn who_is_at_work_comes_first_and_then_the_oldest() {
    let mut grants = PathLocks::default();
    let claims = [("a", 3), ("b", 1), ("c", 2)];
    for (name, second) in claims {
        grants.update(name, Some(claim(name, second, "x")));
    }
    let of = |grants: &PathLocks, name: &str, second| blocker(grants, &claim(name, second, "x"));
    assert_eq!(of(&grants, "b", 1), None);
    assert_eq!(of(&grants, "c", 2).as_deref(), Some("b"));
    assert_eq!(of(&grants, "a", 3).as_deref(), Some("b"));
    grants.update("a", Some(at_work(claim("a", 3, "x"))));
    assert_eq!(of(&grants, "b", 1).as_deref(), Some("a"));
    assert!(grants.obstacle(&grants.claims["a"]).is_none());
}

#[test]
fn those_that_waited_are_decided_again_when_the_way_is_free() {
    let mut grants = PathLocks::default();
    grants.update("1", Some(at_work(claim("first", 1, "x"))));
    assert!(grants.take_changed().is_empty());
    grants.update("2", Some(claim("second", 2, "x/y")));
    grants.update("3", Some(claim("third", 3, "z")));
    // They were only now heard of.
    assert_eq!(grants.take_changed().len(), 2);
    grants.update("2", Some(claim("second", 2, "x/y")));
    assert!(grants.take_changed().is_empty());
    grants.keep(&["2".to_owned(), "3".to_owned()].into());
    let again: Vec<String> = grants
        .take_changed()
        .into_iter()
        .map(|key| key.name)
        .collect();
    assert_eq!(again, ["second"]);
    assert!(grants.obstacle(&claim("second", 2, "x/y")).is_none());
}
