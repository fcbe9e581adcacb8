//! A released copy stays while an attempt at its node has its place open.

use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::*;

use crate::support::{Lab, job, model, name_of, noise, release_copies, start_source, stat, write};

const PLACE: &str = "shelf/model";
/// Node 2 has no agent: it is called for as long as a test takes.
const PATIENT: &str = "transport: {stallTimeout: 60s}\n";

fn at(path: &str) -> Option<Location> {
    Some(Location {
        path: path.to_owned(),
        ..model().unwrap()
    })
}

/// Brings a copy to node 1 for the job `first`; the manifest of what node 0 has.
async fn copied(lab: &Lab) -> StatResponse {
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    let first = job("first", 1);
    lab.begin_at(PLACE, &first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let end = lab.finish(1, &first).await;
    assert_eq!(end.state(), State::Verified, "{}", end.message);
    lab.finish(0, &first).await;
    stat(&mut lab.operator(0).await).await.unwrap()
}

/// Releases the copy at node 1; whether it is gone.
async fn is_removed(lab: &Lab) -> bool {
    release_copies(lab, 1, &job("first", 1)).await;
    !lab.root(1).join(PLACE).join("weights").exists()
}

async fn cancel(lab: &Lab, job: &AttemptRef) {
    let request = CancelRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: false,
    };
    lab.operator(1).await.cancel(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_until_the_attempts_that_write_at_its_place_have_ended() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    let manifest = copied(&lab).await;
    let prepare_at = async |uid: &str, path: &str| {
        let job = job(uid, 1);
        let request = PrepareRequest {
            location: at(path),
            ..lab.prepare(&job, 1, &manifest)
        };
        lab.operator(1).await.prepare(request).await.unwrap();
        job
    };
    let _beside = prepare_at("beside", "shelf-2/model").await;
    for (uid, path) in [
        ("at", PLACE),
        ("in", "shelf/model/sub"),
        ("around", "shelf"),
    ] {
        let other = prepare_at(uid, path).await;
        assert!(!is_removed(&lab).await, "{path}");
        cancel(&lab, &other).await;
    }
    assert!(is_removed(&lab).await);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_while_a_source_sends_it() {
    let lab = Lab::new();
    let agents = [lab.agent(0, PATIENT).await, lab.agent(1, PATIENT).await];
    copied(&lab).await;
    let source = job("source", 1);
    let location = at(PLACE);
    let listing = StatRequest {
        leader_epoch: 1,
        location: location.clone(),
        ..StatRequest::default()
    };
    let mut operator = lab.operator(1).await;
    let listed = operator.stat(listing).await.unwrap().into_inner();
    let children = vec![lab.child(&source, 1, 2)];
    let mut start = start_source(&source, &listed, children, Algorithm::Blake3);
    if let Some(Task::Source(part)) = &mut start.task {
        part.location = location;
    }
    operator.start(start).await.unwrap();
    assert!(!is_removed(&lab).await);
    cancel(&lab, &source).await;

    assert!(is_removed(&lab).await);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_while_a_relay_that_is_verified_passes_it_on() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, PATIENT).await, lab.agent(1, PATIENT).await];
    let manifest = copied(&lab).await;
    let relay = job("relay", 1);
    let prepare = PrepareRequest {
        location: at(PLACE),
        ..lab.prepare(&relay, 1, &manifest)
    };
    let mut operator = lab.operator(1).await;
    operator.prepare(prepare).await.unwrap();
    let start = StartRequest {
        attempt: Some(relay.clone()),
        leader_epoch: 1,
        job_name: name_of(&relay),
        task: Some(Task::Destination(DestinationTask { object: None })),
        sends_to: vec![lab.child(&relay, 1, 2)],
    };
    operator.start(start).await.unwrap();
    let child = Child {
        ticket: Some(lab.ticket(&relay, 0, 1, |ticket| ticket.destination = at(PLACE))),
        ..lab.child(&relay, 0, 1)
    };
    let start = start_source(&relay, &manifest, vec![child], Algorithm::Blake3);
    lab.operator(0).await.start(start).await.unwrap();
    let mut told = lab.follow(1, &relay).await;
    let verified = loop {
        let now = told.message().await.unwrap().unwrap();
        if now.state() != State::Transferring && now.state() != State::Verifying {
            break now;
        }
    };
    assert_eq!(verified.state(), State::Verified, "{}", verified.message);
    assert!(verified.serving);
    assert!(!is_removed(&lab).await);
}
