//! What a job that was given up has left at a node, and that it goes.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::support::{Lab, job, noise, reason, stat, write};
use crate::transfer::{SLOW, names};
use weft_agent::agent::Agent;
use weft_proto::agent::v1::*;

fn discard(job: &AttemptRef) -> CancelRequest {
    CancelRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_of_an_attempt_that_came_too_late_removes_what_the_earlier_ones_left() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, SLOW).await, lab.agent(1, SLOW).await];
    write(&lab.root(0).join("model/inner/file"), &noise(64 << 20, 7));
    let first = job("late", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let keep = CancelRequest {
        remove_partials: false,
        ..discard(&first)
    };
    lab.operator(1).await.cancel(keep).await.unwrap();
    let kept = names(&lab, 1);
    assert!(
        kept.len() == 1 && kept[0].starts_with(".weft-late-"),
        "{kept:?}"
    );
    // The second attempt's Prepare was refused, or was lost.
    let answer = lab.operator(1).await.cancel(discard(&job("late", 2))).await;
    answer.unwrap();
    assert!(names(&lab, 1).is_empty(), "{:?}", names(&lab, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_after_the_agent_was_restarted_removes_what_the_job_left() {
    let lab = Lab::new();
    let _source = lab.agent(0, SLOW).await;
    let agent = lab.agent(1, SLOW).await;
    write(&lab.root(0).join("model"), &noise(64 << 20, 7));
    let first = job("restarted", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    agent.stop().await;
    assert_eq!(names(&lab, 1).len(), 1);
    let _agent = lab.agent(1, SLOW).await;
    lab.operator(1).await.cancel(discard(&first)).await.unwrap();
    assert!(names(&lab, 1).is_empty(), "{:?}", names(&lab, 1));
}

/// A partial file as an agent that was here before has left it.
fn left(uid: &str) -> String {
    format!(".weft-{uid}-{}", "0".repeat(32))
}

/// Somebody else works on the job in this directory.
fn busy(root: &Path, uid: &str) -> File {
    let file = File::create(root.join(format!(".weft-{uid}.lock"))).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}

/// The second node with a second root, and where that is.
async fn with_two_roots(lab: &Lab) -> (Agent, PathBuf) {
    let other = lab.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let path = other.display();
    let root = format!("  - {{name: other, path: {path}, access: ReadWrite}}\n");
    (lab.agent(1, &root).await, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_that_fails_is_owed_until_one_succeeds() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, SLOW).await, lab.agent(1, SLOW).await];
    write(&lab.root(0).join("model"), &noise(64 << 20, 7));
    let first = job("owed", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let keep = CancelRequest {
        remove_partials: false,
        ..discard(&first)
    };
    let mut operator = lab.operator(1).await;
    operator.cancel(keep).await.unwrap();
    let lock = busy(&lab.root(1), "owed");
    for _ in 0..2 {
        let refused = operator.cancel(discard(&first)).await.unwrap_err();
        assert_eq!(reason(&refused), "DestinationBusy");
    }
    drop(lock);
    operator.cancel(discard(&first)).await.unwrap();
    assert!(names(&lab, 1).is_empty(), "{:?}", names(&lab, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_looked_for_is_looked_for_in_all_roots_until_it_is_gone() {
    let lab = Lab::new();
    let (_agent, other) = with_two_roots(&lab).await;
    let first = job("sought", 1);
    write(&lab.root(1).join(left("sought")), b"1");
    write(&other.join("d").join(left("sought")), b"2");
    let mut operator = lab.operator(1).await;
    let keep = CancelRequest {
        remove_partials: false,
        ..discard(&first)
    };
    // Makes the attempt known; what is there stays.
    operator.cancel(keep).await.unwrap();
    let lock = busy(&lab.root(1), "sought");
    for _ in 0..2 {
        let refused = operator.cancel(discard(&first)).await.unwrap_err();
        assert_eq!(reason(&refused), "DestinationBusy");
        assert_eq!(std::fs::read_dir(other.join("d")).unwrap().count(), 0);
    }
    drop(lock);
    operator.cancel(discard(&first)).await.unwrap();
    assert!(names(&lab, 1).is_empty(), "{:?}", names(&lab, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_looked_for_where_a_first_prepare_was_refused() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), b"1");
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let mut operator = lab.operator(1).await;
    for (uid, attempt, remain) in [("refused", 1, 1), ("resumed", 2, 0)] {
        // Shows whether all directories were walked through.
        write(&lab.root(1).join(left(uid)), b"1");
        let given_up = job(uid, attempt);
        let request = PrepareRequest {
            location: Some(Location {
                root: "none".to_owned(),
                path: "model".to_owned(),
            }),
            ..lab.prepare(&given_up, 1, &manifest)
        };
        let refused = operator.prepare(request).await.unwrap_err();
        assert_eq!(reason(&refused), "UnknownRoot");
        operator.cancel(discard(&given_up)).await.unwrap();
        let of_this = |name: &String| name.contains(uid);
        let found = names(&lab, 1).into_iter().filter(of_this).count();
        assert_eq!(found, remain, "{uid}");
    }
}
