//! A verified copy stays while an attempt at its node has its place open.

use std::time::Duration;

use tokio::time::timeout;
use weft_agent::fault::Fault;
use weft_proto::agent::v1::start_request::Part;
use weft_proto::agent::v1::*;

use crate::support::{Lab, job, model, noise, prepare, start_source, stat, write};

const PLACE: &str = "shelf/model";
/// Node 2 has no agent: it is called for as long as a test takes.
const PATIENT: &str = "transport: {stallTimeout: 60s}\n";

fn at(path: &str) -> Option<Location> {
    Some(Location {
        path: path.to_owned(),
        ..model().unwrap()
    })
}

/// Brings a copy to node 1; what removes it, and the manifest of what node 0 has.
async fn copied(lab: &Lab) -> (RemoveRequest, Manifest) {
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    let first = job("first", 1);
    lab.begin_at(PLACE, &first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let end = lab.finish(1, &first).await;
    assert_eq!(end.state(), State::Verified, "{}", end.message);
    lab.finish(0, &first).await;
    let request = RemoveRequest {
        leader_epoch: 1,
        location: at(PLACE),
        fingerprint: end.fingerprint,
    };
    (request, stat(&mut lab.operator(0).await).await.unwrap())
}

async fn remove(lab: &Lab, request: &RemoveRequest) -> (bool, Kept) {
    let mut operator = lab.operator(1).await;
    let answer = operator.remove(request.clone()).await.unwrap().into_inner();
    let there = lab.root(1).join(PLACE).join("weights").exists();
    assert_eq!(there, !answer.removed);
    (answer.removed, answer.kept())
}

async fn cancel(lab: &Lab, job: &JobRef) {
    let request = CancelRequest {
        job: Some(job.clone()),
        leader_epoch: 1,
        discard: true,
    };
    lab.operator(1).await.cancel(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_until_the_attempts_that_write_at_its_place_have_ended() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    let (request, manifest) = copied(&lab).await;
    let prepare_at = async |uid: &str, path: &str| {
        let job = job(uid, 1);
        let request = PrepareRequest {
            location: at(path),
            ..prepare(&job, &manifest)
        };
        lab.operator(1).await.prepare(request).await.unwrap();
        job
    };
    let _beside = prepare_at("beside", "shelf/model-2").await;
    for (uid, path) in [
        ("at", PLACE),
        ("in", "shelf/model/sub"),
        ("around", "shelf"),
    ] {
        let other = prepare_at(uid, path).await;
        assert_eq!(remove(&lab, &request).await, (false, Kept::InUse), "{path}");
        cancel(&lab, &other).await;
    }
    assert_eq!(remove(&lab, &request).await, (true, Kept::Unspecified));
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_about_to_end_is_waited_for() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    let (request, manifest) = copied(&lab).await;
    let other = job("other", 1);
    let prepare = PrepareRequest {
        location: at(PLACE),
        ..prepare(&other, &manifest)
    };
    lab.operator(1).await.prepare(prepare).await.unwrap();
    let runs = agents[1].jobs().runs();
    let run = runs.iter().find(|run| run.attempt.job == other).unwrap();
    // Somebody who writes still.
    let worker = run.attempt.worker();
    run.attempt.fail(Fault::Cancelled);
    let mut removing = Box::pin(remove(&lab, &request));
    let early = timeout(Duration::from_millis(500), &mut removing).await;
    assert!(early.is_err(), "{early:?}");
    drop(worker);
    assert_eq!(removing.await, (true, Kept::Unspecified));
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_while_a_source_sends_it() {
    let lab = Lab::new();
    let agents = [lab.agent(0, PATIENT).await, lab.agent(1, PATIENT).await];
    let (request, _) = copied(&lab).await;
    let source = job("source", 1);
    let location = request.location.clone();
    let listing = StatRequest {
        leader_epoch: 1,
        location: location.clone(),
        object: None,
    };
    let mut operator = lab.operator(1).await;
    let listed = operator.stat(listing).await.unwrap().into_inner().manifest;
    let children = vec![lab.child(&source, 1, 2)];
    let mut start = start_source(&source, &listed.unwrap(), children, Algorithm::Blake3);
    if let Some(Part::Source(part)) = &mut start.part {
        part.location = location;
    }
    operator.start(start).await.unwrap();
    assert_eq!(remove(&lab, &request).await, (false, Kept::InUse));
    cancel(&lab, &source).await;

    assert_eq!(remove(&lab, &request).await, (true, Kept::Unspecified));
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stays_while_a_relay_that_is_verified_passes_it_on() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, PATIENT).await, lab.agent(1, PATIENT).await];
    let (request, manifest) = copied(&lab).await;
    let relay = job("relay", 1);
    let prepare = PrepareRequest {
        location: at(PLACE),
        ..prepare(&relay, &manifest)
    };
    let mut operator = lab.operator(1).await;
    operator.prepare(prepare).await.unwrap();
    let start = StartRequest {
        job: Some(relay.clone()),
        leader_epoch: 1,
        part: Some(Part::Destination(DestinationPart {
            receives_from: "n0".to_owned(),
            object: None,
        })),
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
    assert_eq!(remove(&lab, &request).await, (false, Kept::InUse));
}
